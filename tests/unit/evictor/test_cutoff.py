"""Tables of horizons, bounds and raises."""

import datetime as dt
from dataclasses import replace

import pytest

from thermocline_common.ages import to_milliseconds
from thermocline_common.coverage import Coverage, State
from thermocline_evictor.plan.cutoff import (
    Off,
    Policy,
    Raise,
    bound_of,
    horizon_of,
    off,
    raise_needed,
)

DAY = dt.timedelta(days=1)
AGE = 20 * DAY
HORIZON = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
ACTIVE = Coverage("shop.orders", State.ACTIVE, State.ACTIVE, age_field="t")
AGED = Policy("shop.orders", "t", AGE)


@pytest.mark.parametrize(
    ("coverage", "policy", "expected"),
    [
        (ACTIVE, AGED, None),
        (None, AGED, Off.NO_COVERAGE),
        (replace(ACTIVE, state=State.PAUSING), AGED, Off.NOT_ACTIVE),
        (replace(ACTIVE, state=State.PASSTHROUGH), AGED, Off.NOT_ACTIVE),
        (replace(ACTIVE, target=State.PASSTHROUGH), AGED, Off.NOT_ACTIVE),
        (replace(ACTIVE, age_field="u"), AGED, Off.OTHER_POLICY),
        (replace(ACTIVE, age_field=None, keep_all=True), AGED, Off.OTHER_POLICY),
        (replace(ACTIVE, age_field=None, keep_all=True), Policy("shop.orders"), Off.KEPT_WHOLE),
        (ACTIVE, Policy("shop.orders"), Off.KEPT_WHOLE),
    ],
)
def test_off(coverage: Coverage | None, policy: Policy, expected: Off | None) -> None:
    assert off(coverage, policy) is expected


@pytest.mark.parametrize(
    ("floor", "claim", "expected"),
    [
        pytest.param(None, None, None, id="nothing covered"),
        pytest.param(HORIZON, None, None, id="at the horizon"),
        pytest.param(HORIZON - DAY, None, None, id="a twentieth below: not yet"),
        pytest.param(
            HORIZON - DAY - dt.timedelta(milliseconds=1), None, Raise(HORIZON), id="further below"
        ),
        pytest.param(HORIZON + DAY, None, None, id="above"),
        pytest.param(None, HORIZON - 2 * DAY, Raise(None), id="old claim, no floor to lower"),
        pytest.param(
            HORIZON + 5 * DAY,
            HORIZON - 2 * DAY,
            Raise(HORIZON + 5 * DAY),
            id="old claim voided, a higher floor isn't lowered",
        ),
        pytest.param(HORIZON - 9 * DAY, HORIZON, Raise(HORIZON), id="low floor, fresh claim"),
    ],
)
def test_raise_needed(
    floor: dt.datetime | None, claim: dt.datetime | None, expected: Raise | None
) -> None:
    assert raise_needed(replace(ACTIVE, floor=floor, claim=claim), HORIZON, AGE) == expected


@pytest.mark.parametrize(
    ("floor", "claim", "expected"),
    [
        (None, None, HORIZON),
        (HORIZON - DAY, None, HORIZON - DAY),
        (None, HORIZON - DAY, HORIZON - DAY),
        (HORIZON + DAY, HORIZON - DAY, HORIZON - DAY),
        (HORIZON - 2 * DAY, HORIZON - DAY, HORIZON - 2 * DAY),
        (HORIZON + DAY, HORIZON + DAY, HORIZON),
    ],
)
def test_bound_is_the_least(
    floor: dt.datetime | None, claim: dt.datetime | None, expected: dt.datetime
) -> None:
    assert bound_of(replace(ACTIVE, floor=floor, claim=claim), HORIZON) == to_milliseconds(expected)


def test_horizon_is_what_mongodb_can_store() -> None:
    now = dt.datetime(2026, 6, 21, 0, 0, 0, 1_999, tzinfo=dt.UTC)
    assert horizon_of(AGE, now) == HORIZON + dt.timedelta(milliseconds=1)
