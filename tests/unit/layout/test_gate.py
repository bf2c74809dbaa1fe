"""The gate finds what it is there for."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[3] / ".ci" / "gate.py"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("see /" + "work/main/x", True),
        ("TO" + "DO later", True),
        ("index = https://py" + "pi.org/simple", True),
        ("the framework/work/ folder", False),
        ("a todo list", False),
    ],
)
def test_rules(line: str, found: bool) -> None:
    spec = importlib.util.spec_from_file_location("gate", PATH)
    assert spec is not None
    assert spec.loader is not None
    gate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gate)
    assert any(rule.search(line) for rule in gate.RULES.values()) is found
