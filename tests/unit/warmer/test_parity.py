"""What is mended in F, and what is left alone."""

from typing import Any

import pytest

from thermocline_warmer.plan.parity import OptionsPlan, plan_indexes, plan_options

ID = {"v": 2, "key": {"_id": 1}, "name": "_id_"}
AB = {"v": 2, "key": {"a": 1, "b": -1}, "name": "ab"}
BA = {"v": 2, "key": {"b": -1, "a": 1}, "name": "ab"}
TTL = {"v": 2, "key": {"t": 1}, "name": "t", "expireAfterSeconds": 5}
PLAIN_T = {"v": 2, "key": {"t": 1}, "name": "t"}


@pytest.mark.parametrize(
    ("archive", "fast", "drop", "create"),
    [
        pytest.param([ID, AB], [ID, AB], (), (), id="equal"),
        pytest.param([ID, AB], [ID], (), (AB,), id="missing"),
        pytest.param([ID], [ID, AB], ("ab",), (), id="too many"),
        pytest.param([ID, AB], [ID, BA], ("ab",), (AB,), id="the order of the key counts"),
        pytest.param([ID, TTL], [ID, PLAIN_T], (), (), id="expiry is left out"),
        pytest.param([ID, TTL], [ID], (), (PLAIN_T,), id="built without expiry"),
        pytest.param([ID, TTL], [ID, TTL], ("t",), (PLAIN_T,), id="expiry in F is taken away"),
        pytest.param(
            [ID, {**AB, "unique": True}],
            [ID, AB],
            ("ab",),
            ({**AB, "unique": True},),
            id="another option",
        ),
        pytest.param(
            [ID, {"name": "ab", "v": 2, "key": {"a": 1, "b": -1}}],
            [ID, AB],
            (),
            (),
            id="the order of options doesn't",
        ),
    ],
)
def test_indexes(archive: list[Any], fast: list[Any], drop: tuple[str, ...], create: Any) -> None:
    plan = plan_indexes(archive, fast)
    assert plan.drop == drop
    assert plan.create == create


VALIDATOR = {"a": {"$exists": True}}


@pytest.mark.parametrize(
    ("archive", "fast", "expected"),
    [
        pytest.param({}, {}, OptionsPlan(), id="none"),
        pytest.param(
            {"validator": VALIDATOR, "validationLevel": "strict", "validationAction": "error"},
            {},
            OptionsPlan({"validator": VALIDATOR}),
            id="validator missing; defaults are no difference",
        ),
        pytest.param(
            {},
            {"validator": VALIDATOR, "validationLevel": "moderate"},
            OptionsPlan({"validator": {}, "validationLevel": "strict"}),
            id="validator too many",
        ),
        pytest.param(
            {"changeStreamPreAndPostImages": {"enabled": True}},
            {},
            OptionsPlan({"changeStreamPreAndPostImages": {"enabled": True}}),
            id="pre-images",
        ),
        pytest.param(
            {"expireAfterSeconds": 5}, {}, OptionsPlan(), id="expiry is the evictor's business"
        ),
        pytest.param(
            {"storageEngine": {"wiredTiger": {}}},
            {},
            OptionsPlan({}, ("storageEngine",)),
            id="told",
        ),
    ],
)
def test_options(archive: Any, fast: Any, expected: OptionsPlan) -> None:
    assert plan_options(archive, fast) == expected
