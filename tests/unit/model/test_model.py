"""A bounded part of the protocol's model: the rules hold, and leaving one out is noticed.

``tests/model`` explores all mixes of actors in a minute or two (``python tests/model/model.py``).
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).resolve().parents[2] / "model" / "model.py"


@pytest.fixture(scope="module")
def model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("thermocline_model", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOLDS = [
    ("read", "update", "evict"),
    ("read", "delete", "evict", "warm"),
    ("update", "delete", "evict", "evict"),
    ("delete", "insert", "evict"),
    ("insert", "evict", "warm", "read"),
    ("scan", "update", "evict"),
    ("cscan", "cover", "evict", "delete"),
    ("cscan", "cover", "evict", "insert"),
    ("insert", "evict", "evict", "update"),
]


@pytest.mark.parametrize("start", ["cold", "hot", "fresh", "none"])
@pytest.mark.parametrize("mix", HOLDS, ids="-".join)
def test_holds_in_every_interleaving(model: ModuleType, mix: tuple[str, ...], start: str) -> None:
    assert model.run(mix, getattr(model, start), limit=60_000).startswith("holds")


MUTANTS = [
    ("no_removal_lookup", ("read", "delete", "evict", "warm")),
    ("no_token_check", ("read", "update", "evict", "warm")),
    ("record_without_doc_check", ("read", "delete", "evict", "warm")),
    ("ignore_deleted", ("read", "delete", "evict", "warm")),
    ("no_conflict", ("read", "update", "evict", "warm")),
    ("evict_at_once", ("insert", "evict")),
    ("no_cancel", ("insert", "evict")),
    ("ignore_cancel", ("insert", "evict")),
    ("trust_record_alone", ("read", "delete", "evict", "warm")),
    ("evict_ignores_d", ("read", "delete", "evict", "warm")),
    ("split_fetch", ("read", "delete", "evict", "warm")),
    ("no_barrier", ("scan", "update", "evict", "warm")),
    ("publish_without_cas", ("cscan", "cover", "evict", "update")),
    ("no_lease_wait", ("cscan", "cover", "evict", "update")),
    ("ignore_claim", ("cscan", "cover", "evict", "update")),
    ("no_coverage_write no_cancel", ("cscan", "cover", "evict", "update")),
    ("second_evictor_no_wait", ("cscan", "cscan", "cover", "evict", "evict")),
    ("no_generation_check", ("cscan", "cscan", "cover", "evict", "evict")),
]


@pytest.mark.parametrize("rule", ["no_coverage_write", "no_cancel"])
def test_either_keeps_a_claimed_document(model: ModuleType, rule: str) -> None:
    """A claim makes the eviction conflict, and copying cancels the departure: one of them suffices."""
    assert model.run(("cscan", "cover", "evict"), model.hot, (rule,)).startswith("holds")


@pytest.mark.parametrize(("rule", "mix"), MUTANTS, ids=[rule for rule, _ in MUTANTS])
def test_a_missing_rule_is_a_violation(model: ModuleType, rule: str, mix: tuple[str, ...]) -> None:
    rules = tuple(rule.split())
    found = (model.run(mix, start, rules, 200_000) for start in (model.cold, model.hot))
    assert any(each.startswith("VIOLATION") for each in found)
