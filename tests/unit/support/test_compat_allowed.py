"""What a run of other people's suites may lose: exactly what the page names."""

import fnmatch
import json
from pathlib import Path
from typing import Any

import pytest

from support.compat.allowed import Allowed, judge, parse
from support.compat.suites import KIT, PAGE, SETTINGS, groups, namespaces, outcome

PAGE_OF_TWO = """# Title

## Allowed differences

Text.

| test | settings | reason |
| --- | --- | --- |
| `spec/a :: *::test_one` | tiered, working | Its reason. |
| `spec/a :: *::test_two*` | all | Another. |

## Next

| not | one | of them |
"""
ROWS = [
    Allowed("spec/a :: *::test_one", frozenset({"tiered", "working"}), "Its reason."),
    Allowed("spec/a :: *::test_two*", frozenset({"all"}), "Another."),
]


def test_the_rows_of_a_page() -> None:
    assert parse(PAGE_OF_TWO, SETTINGS) == ROWS


@pytest.mark.parametrize(
    "line",
    [
        "| spec/a :: test | all | No marks around the test. |",
        "| `test without a unit` | all | Reason. |",
        "| `spec/a :: test` | everywhere | No such setting. |",
        "| `spec/a :: test` | all | |",
        "| `spec/a :: test` | all |",
    ],
)
def test_a_row_that_says_too_little(line: str) -> None:
    with pytest.raises(ValueError, match=r"row|settings"):
        parse(PAGE_OF_TWO.replace("\n\n## Next", f"\n{line}\n\n## Next"), SETTINGS)


def test_a_page_without_the_table() -> None:
    with pytest.raises(ValueError, match="heading"):
        parse("# Title\n", SETTINGS)


def test_only_listed_tests_may_differ_and_only_where_they_are_listed() -> None:
    lost = {
        "spec/a :: f.py::test_one": "failed: x",
        "spec/a :: f.py::test_two_b": "skipped: y",
        "spec/a :: f.py::test_three": "failed: z",
    }
    passed = ["spec/a :: f.py::test_two_a", "spec/a :: f.py::test_four"]
    verdict = judge(lost, passed, ROWS, "tiered")
    assert verdict.unexpected == {"spec/a :: f.py::test_three": "failed: z"}
    assert verdict.allowed == {
        "spec/a :: f.py::test_one": "Its reason.",
        "spec/a :: f.py::test_two_b": "Another.",
    }
    assert verdict.passed == ["spec/a :: f.py::test_two_a"]
    assert "spec/a :: f.py::test_one" in judge(lost, passed, ROWS, "passthrough").unexpected


def test_the_page_names_tests_that_pass_on_a_plain_mongod() -> None:
    baseline = json.loads((KIT / "baseline-mongos.json").read_text())["tests"]
    passing = [test for test, how in baseline.items() if how == "passed"]
    for row in parse(PAGE.read_text(), SETTINGS):
        assert fnmatch.filter(passing, row.pattern), row.pattern


def test_groups_stay_below_what_one_resource_can_tier() -> None:
    units = list(json.loads((KIT / "namespaces.json").read_text()))
    made = list(groups(units))
    assert [unit for group in made for unit in group] == units
    assert len(made) > 1
    assert all(len(namespaces(group)) <= 500 for group in made)


def write(folder: Path, tests: dict[str, str], ended: dict[str, str] | None = None) -> None:
    folder.mkdir(exist_ok=True)
    results: dict[str, Any] = {"tests": {name: {"o": how} for name, how in tests.items()}}
    lost = [[name, how, "why\nmore"] for name, how in tests.items() if how != "passed"]
    comparison = {"lost": lost, "lost_to_skip": [], "units": ended or {}}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "compare.json").write_text(json.dumps(comparison))


def test_a_test_that_passes_the_second_time_is_named(tmp_path: Path) -> None:
    tests = {"spec/x :: a": "passed", "spec/x :: b": "failed", "spec/x :: c": "hung"}
    write(tmp_path, tests, {"spec/x": "unit-timeout", "spec/y": "crashed"})
    first = outcome("tiered", tmp_path)
    assert (first.passed, first.good) == (1, False)
    assert first.verdict.unexpected == {"spec/x :: b": "failed: why", "spec/x :: c": "hung: why"}
    assert len(first.ended) == 2
    write(tmp_path / "again", {"spec/x :: b": "passed", "spec/x :: c": "failed"})
    second = outcome("tiered", tmp_path)
    assert (second.passed, second.again) == (2, ["spec/x :: b"])
    assert second.verdict.unexpected == {"spec/x :: c": "hung: why"}
    assert second.ended == ["spec/y: crashed"]
