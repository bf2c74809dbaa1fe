"""The share of documents whose age isn't a date, from a sample's counts."""

from typing import Any

import pytest

from thermocline_warmer.plan.ages import AgeTypes, add_groups


@pytest.mark.parametrize(
    ("counts", "percent", "by_type"),
    [
        ({}, None, {}),
        ({"date": 10}, 0.0, {}),
        ({"date": 1, "string": 1}, 50.0, {"string": 50.0}),
        ({"missing": 3}, 100.0, {"missing": 100.0}),
        (
            {"date": 996, "array": 2, "null": 1, "string": 1},
            0.4,
            {"array": 0.2, "null": 0.1, "string": 0.1},
        ),
    ],
)
def test_shares(counts: dict[str, int], percent: float | None, by_type: dict[str, Any]) -> None:
    types = AgeTypes()
    for name, n in counts.items():
        types = add_groups(types, [{"_id": name, "count": n - 1}])
        types = add_groups(types, [{"_id": name, "count": 1}])
    assert types == AgeTypes(counts)
    assert types.status() == {
        "notDatePercent": percent,
        "byType": by_type,
        "sampled": sum(counts.values()),
    }
