"""Documents that can be made again from their number, and what counts as a wrong answer."""

import datetime as dt
from typing import Any

import pytest

from rig.documents import YEAR, Catalogue, id_of

NOW = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
CATALOGUE = Catalogue.make(1_000, 64, NOW)


def test_ids_are_distinct_and_in_no_order_of_age() -> None:
    ids = [id_of(number) for number in range(1_000)]
    assert len(set(ids)) == 1_000
    assert ids != sorted(ids)
    assert {len(each) for each in ids} == {24}


def test_dates_spread_over_the_last_year_in_order() -> None:
    ages = [CATALOGUE.age(number) for number in range(1_000)]
    assert ages == sorted(ages)
    assert ages[0] == NOW - YEAR
    assert ages[-1] == NOW - YEAR / 1_000


def test_a_document_is_the_same_each_time() -> None:
    assert CATALOGUE.document(7) == Catalogue.make(1_000, 64, NOW).document(7)
    assert CATALOGUE.document(7)["x"] != CATALOGUE.document(8)["x"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"v": 3}, None),
        ({"v": 1}, "7: version 1, must be 2 to 3"),
        ({"v": 4}, "7: version 4, must be 2 to 3"),
        ({"v": None}, "7: version None, must be 2 to 3"),
        ({"x": b"y"}, "7: other content"),
        ({"n": 8}, "7: got document 8"),
        ({"_id": id_of(8)}, "7: got document 7"),
    ],
)
def test_faults(change: dict[str, Any], fault: str | None) -> None:
    found = {**CATALOGUE.document(7), "v": 2, **change}
    assert CATALOGUE.fault(found, 7, 2, 3) == fault


def test_a_missing_document_is_a_fault() -> None:
    assert CATALOGUE.fault(None, 7, 0, 0) == "7: missing"
