"""Every case of the catalogue has a test that exists, and the page says so."""

import re

from support.cases import PAGE, TESTS, Case, functions_in, missing_tests, read_catalogue, render

NUMBERS = {
    "C": "2 3 5 7 8",
    "D": "1 2 4 5 8 9",
    "E": "1 2 3 4 6 8",
    "F": "1 3 4 5 6",
    "G": "1 2 4 5 7 9 10 12 13 14 15 17 19 20 22 23 24",
    "H": "1 3 4 5 6 7 9 11 12 14 15 17 18 19 21 22 23 24 27 28 29 31 32 33 34",
    "I": "1 2 3 4 7 10 11",
    "L": "5",
    "M": " ".join(map(str, range(1, 39))),
}


def test_every_case_is_there() -> None:
    cases, invariants = read_catalogue()
    expected = {f"{letter}{n}" for letter, numbers in NUMBERS.items() for n in numbers.split()}
    numbers = [case.number for case in cases]
    assert len(set(numbers)) == len(numbers)
    assert expected <= set(numbers)
    assert [case.number for case in invariants] == list("12345678")


def test_every_case_has_a_test_or_a_reason() -> None:
    cases, invariants = read_catalogue()
    assert [case.number for case in cases if not (case.tests or case.reason)] == []
    assert [case.number for case in invariants if not case.tests] == []
    assert missing_tests([*cases, *invariants]) == []


def test_a_test_that_is_gone_is_found() -> None:
    here = "unit/support/test_cases.py::test_a_test_that_is_gone_is_found"
    wrong = (f"{here}_no", "unit/nowhere.py::test_x", "unit/support/test_cases.py")
    assert missing_tests([Case("X1", "", (here,))]) == []
    assert len(missing_tests([Case("X1", "", wrong)])) == 3


def test_tests_that_name_a_case_are_in_the_catalogue() -> None:
    """``test_m12_...`` stands for case M12."""
    cases, _ = read_catalogue()
    listed = {case.number: set(case.tests) for case in cases}
    missing = []
    for file in sorted(TESTS.glob("*/**/test_*.py")):
        path = file.relative_to(TESTS).as_posix()
        for name in functions_in(path) if path.startswith(("unit/", "integration/")) else ():
            named = re.match(r"test_([a-km])(\d{1,2})_", name)
            number = f"{named[1].upper()}{named[2]}" if named else None
            if number is not None and f"{path}::{name}" not in listed.get(number, set()):
                missing.append(f"{number}: {path}::{name}")
    assert missing == [], "to be named in tests/cases/cases.json"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == render(), "make cases"
