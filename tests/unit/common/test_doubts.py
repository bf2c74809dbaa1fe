"""The mark of a namespace whose tiers differ, as coverage documents hold it."""

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from thermocline_common.coverage import Coverage, Doubt, State, parse_coverage, trusted

SINCE = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
DOCUMENT = {"_id": "a.b", "state": "Active", "target": "Active"}


@pytest.mark.parametrize(
    ("stands", "expected"),
    [
        pytest.param(None, None, id="none"),
        pytest.param(
            {"since": SINCE, "command": "find", "documents": ["missing 5"], "count": 7},
            Doubt(SINCE, "find", ("missing 5",), 7),
            id="whole",
        ),
        pytest.param({}, Doubt(), id="empty, by hand"),
        pytest.param(True, Doubt(), id="true, by hand"),
        pytest.param({"since": "today", "documents": 5, "count": "x"}, Doubt(), id="unreadable"),
    ],
)
def test_whatever_stands_there_is_a_doubt(stands: Any, expected: Doubt | None) -> None:
    document = DOCUMENT if stands is None else {**DOCUMENT, "archiveOnly": stands}
    found = parse_coverage(document)
    assert found.doubt == expected
    assert not found.unknown_fields


def test_in_doubt_nothing_is_covered() -> None:
    aged = Coverage("a.b", State.ACTIVE, State.ACTIVE, age_field="t", floor=SINCE)
    whole = Coverage("a.b", State.ACTIVE, State.ACTIVE, keep_all=True, complete=True)
    assert trusted(aged) is aged
    assert trusted(replace(aged, doubt=Doubt())).floor is None
    assert trusted(whole).complete
    assert not trusted(replace(whole, doubt=Doubt())).complete
