"""Manifests: the cases of ``tests/cases/manifests.json``, odd files, and what must never be shown."""

import datetime as dt
import json
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from support.manifests import ADMISSION, CASES, patched
from thermocline_common import names
from thermocline_common.spec.manifest import (
    ManifestError,
    find_problems,
    parse_manifest,
    parse_text,
)
from thermocline_common.spec.models import (
    MAX_COLLECTIONS,
    ArchiveReads,
    CollectionPolicy,
    EvictorMode,
    Keep,
    Mode,
)


@pytest.mark.parametrize("case", CASES["good"], ids=lambda case: case["name"])
def test_good_ones(case: dict[str, Any]) -> None:
    resource = patched(case["patch"])
    manifest = parse_manifest(resource)
    # What is written reads back as the same.
    written = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert parse_manifest(written) == manifest
    assert parse_text(yaml.safe_dump(resource)) == manifest
    assert parse_text(json.dumps(resource)) == manifest


@pytest.mark.parametrize("case", CASES["bad"], ids=lambda case: case["name"])
def test_bad_ones(case: dict[str, Any]) -> None:
    problems = find_problems(patched(case["patch"]))
    assert [p.path for p in problems] == [path for path, _, _ in case["problems"]]
    for problem, (_, reason, remedy) in zip(problems, case["problems"], strict=True):
        assert reason in problem.reason
        assert problem.remedy
        assert remedy in problem.remedy
        assert "geheim" not in str(problem).lower()


def test_tells_all_problems_at_once() -> None:
    patches = [
        c["patch"] for c in CASES["bad"] if c["name"] in ("months", "credentials in the URI")
    ]
    resource = patched([*patches[0], *patches[1], ["spec.mode", "Activ"], ["metadata.name", "A"]])
    assert {p.path for p in find_problems(resource)} == {
        "metadata.name",
        "spec.mode",
        "spec.archive.uri",
        "spec.collections[0].maxAge",
    }


def test_values_as_attributes() -> None:
    spec = parse_manifest(CASES["base"]).spec
    orders, products = spec.collections
    assert orders == CollectionPolicy(
        namespace="shop.orders", age_field="createdAt", max_age=dt.timedelta(days=30)
    )
    assert products.keep is Keep.ALL
    assert products.archive_reads is ArchiveReads.STRICT
    assert spec.mode is Mode.ACTIVE
    assert spec.evictor.mode is EvictorMode.DRY_RUN
    assert (spec.proxy.lease, spec.proxy.replicas) == (dt.timedelta(seconds=5), 2)
    assert spec.archive.local_threshold_ms == 15


def test_texts_in_the_models_are_those_of_names() -> None:
    base = CASES["base"]
    assert (base["apiVersion"], base["kind"]) == (names.API_VERSION, names.KIND)
    parse_manifest(base)


@pytest.mark.parametrize(("count", "problems"), [(MAX_COLLECTIONS, 0), (MAX_COLLECTIONS + 1, 1)])
def test_number_of_collections_is_bounded(count: int, problems: int) -> None:
    policies = [{"namespace": f"shop.c{i}", "keep": "All"} for i in range(count)]
    found = find_problems(patched([["spec.collections", policies]]))
    assert len(found) == problems
    if found:
        assert found[0].path == "spec.collections"
        assert "501 entries" in found[0].reason
        assert "at most 500" in found[0].remedy


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ("", "file", "is empty"),
        ("# nothing\n", "file", "is empty"),
        ("---\n---\n", "file", "is empty"),
        ("[]", "file", "not an object"),
        ("geheim", "file", "not an object"),
        ("a: 1\n---\nb: 2\n", "file", "holds 2 documents"),
        ("a: [geheim\n", "line 2, column 1", "not YAML"),
        ("a: geheim: b\n", "line 1, column 10", "not YAML"),
        ("a: 1\nb: 2\na: 3\n", "line 3", "'a' stands there twice"),
        ("x: {a: 1, a: 2}\n", "line 1", "'a' stands there twice"),
        ("a: !!python/object:os.system geheim\n", "line 1, column 4", "not YAML"),
        ("a: 2026-01-01\n", "a", "read by YAML as date"),
        ("a: .nan\n", "a", "not a finite number"),
        ("a: !!binary Z2VoZWlt\n", "a", "read by YAML as bytes"),
        ("on: 1\n", "file", "field name that YAML reads as bool"),
        ("a: {1: 2}\n", "a", "field name that YAML reads as int"),
        ("a: &x [*x]\n", "", ""),
        ("\0", "file", "not YAML"),
    ],
)
def test_files_that_are_no_manifest(text: str, where: str, reason: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_text(text)
    problem = caught.value.problems[0]
    assert reason in problem.reason
    assert "geheim" not in str(caught.value)
    if where:
        assert problem.path == where


def test_a_file_that_unfolds_is_refused_quickly() -> None:
    lines = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 10)}]" for i in range(12)]
    with pytest.raises(ManifestError, match="too large"):
        parse_text("\n".join(lines))


def test_huge_files_are_refused() -> None:
    with pytest.raises(ManifestError, match=r"larger than 1\.5 MB"):
        parse_text("a: " + "x" * 2_000_000)


SCALARS = st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["spec", "metadata", "name", "archive", "fastTier", "uri", "collections", "namespace",
             "tls", "proxy", "lease", "maxAge", "keep", "caSecretRef", "readPreferenceTags"]
        ) | st.text(max_size=4),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


def assert_explained(text: str) -> None:
    try:
        parse_text(text)
    except ManifestError as error:
        problems = error.problems
    else:
        return
    assert problems
    assert all(p.path and p.reason and p.remedy for p in problems)


@given(st.dictionaries(st.sampled_from(["spec", "metadata", "kind", "apiVersion", "x"]), VALUES))
def test_any_object_is_explained_and_never_breaks_the_validator(value: dict[str, Any]) -> None:
    assert_explained(json.dumps(value))


@given(st.sampled_from(["archive", "fastTier", "proxy", "collections", "mode"]), VALUES)
def test_any_field_in_a_good_manifest_is_explained(field: str, value: Any) -> None:
    assert_explained(json.dumps(patched([[f"spec.{field}", value if value is not None else {}]])))


def test_every_bad_one_says_what_kubernetes_makes_of_it() -> None:
    """Else only a run on a real API server would find out that nobody said so."""
    assert {case["name"] for case in CASES["bad"]} <= ADMISSION.keys()
