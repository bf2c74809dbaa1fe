"""Tables of what the warmer does next."""

import datetime as dt
from dataclasses import replace

import pytest

from thermocline_common.ages import to_milliseconds
from thermocline_common.coverage import Coverage, State
from thermocline_warmer.plan.windows import (
    FIRST_SLICE,
    LARGEST_SLICE,
    LATEST,
    SMALLEST_SLICE,
    Idle,
    Policy,
    WarmAll,
    WarmSlice,
    choose_lower,
    claim_for,
    ends_claim,
    next_slice_size,
    next_work,
)

NOW = dt.datetime(2026, 6, 30, 12, 0, 0, 1_999, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
AGED = Policy("shop.orders", "t", 30 * DAY)
WHOLE = Policy("shop.products")
HORIZON = dt.datetime(2026, 5, 31, 12, 0, 0, 1_000, tzinfo=dt.UTC)
ACTIVE = Coverage("shop.orders", State.ACTIVE, State.ACTIVE, age_field="t")
ACTIVE_WHOLE = Coverage("shop.products", State.ACTIVE, State.ACTIVE, keep_all=True)


@pytest.mark.parametrize(
    ("coverage", "policy", "expected"),
    [
        pytest.param(None, AGED, Idle.NO_COVERAGE, id="no document"),
        pytest.param(
            replace(ACTIVE, state=State.PAUSING), AGED, Idle.NOT_ACTIVE, id="pausing to active"
        ),
        pytest.param(
            replace(ACTIVE, target=State.PASSTHROUGH), AGED, Idle.NOT_ACTIVE, id="about to leave"
        ),
        pytest.param(
            replace(ACTIVE, age_field="u"), AGED, Idle.OTHER_POLICY, id="another age field in force"
        ),
        pytest.param(ACTIVE_WHOLE, AGED, Idle.OTHER_POLICY, id="keep All in force, age wanted"),
        pytest.param(ACTIVE, WHOLE, Idle.OTHER_POLICY, id="age in force, keep All wanted"),
        pytest.param(ACTIVE_WHOLE, WHOLE, WarmAll(), id="whole, incomplete"),
        pytest.param(replace(ACTIVE_WHOLE, complete=True), WHOLE, Idle.WARM, id="whole, complete"),
        pytest.param(ACTIVE, AGED, WarmSlice(None, HORIZON), id="nothing covered: no upper end"),
        pytest.param(
            replace(ACTIVE, floor=HORIZON + DAY), AGED, WarmSlice(HORIZON + DAY, HORIZON), id="gap"
        ),
        pytest.param(replace(ACTIVE, floor=HORIZON), AGED, Idle.WARM, id="at the horizon"),
        pytest.param(replace(ACTIVE, floor=HORIZON - DAY), AGED, Idle.WARM, id="below the horizon"),
        pytest.param(
            replace(ACTIVE, floor=HORIZON + dt.timedelta(seconds=60)),
            AGED,
            Idle.WARM,
            id="clocks that differ by a minute cause no work",
        ),
        pytest.param(
            replace(ACTIVE, floor=HORIZON + dt.timedelta(seconds=61)),
            AGED,
            WarmSlice(HORIZON + dt.timedelta(seconds=61), HORIZON),
            id="just beyond the slack",
        ),
    ],
)
def test_next_work(
    coverage: Coverage | None, policy: Policy, expected: Idle | WarmAll | WarmSlice
) -> None:
    assert next_work(coverage, policy, NOW) == expected


@pytest.mark.parametrize(
    ("upper", "found", "expected"),
    [
        pytest.param(None, None, HORIZON, id="fewer documents than a slice"),
        pytest.param(None, to_milliseconds(NOW), NOW.replace(microsecond=1_000), id="cut there"),
        pytest.param(None, 0, HORIZON, id="an array's key below the horizon"),
        pytest.param(HORIZON + DAY, to_milliseconds(HORIZON + DAY), HORIZON, id="not below upper"),
        pytest.param(
            HORIZON + DAY,
            to_milliseconds(HORIZON + DAY) - 1,
            HORIZON + DAY - dt.timedelta(milliseconds=1),
            id="covers at least a millisecond",
        ),
        pytest.param(
            None, 2**62, dt.datetime(9999, 12, 31, tzinfo=dt.UTC), id="beyond Python's years"
        ),
    ],
)
def test_choose_lower(upper: dt.datetime | None, found: int | None, expected: dt.datetime) -> None:
    assert to_milliseconds(dt.datetime(9999, 12, 31, tzinfo=dt.UTC)) == LATEST
    assert choose_lower(WarmSlice(upper, HORIZON), found) == expected


@pytest.mark.parametrize(
    ("claim", "lower", "written", "ended"),
    [
        pytest.param(None, HORIZON, HORIZON, False, id="none yet"),
        pytest.param(HORIZON + DAY, HORIZON, HORIZON, True, id="lowered, never left higher"),
        pytest.param(HORIZON, HORIZON, None, True, id="the same stands"),
        pytest.param(
            HORIZON, HORIZON + DAY, None, False, id="a lower one is neither raised nor removed"
        ),
    ],
)
def test_claims_only_go_down(
    claim: dt.datetime | None, lower: dt.datetime, written: dt.datetime | None, ended: bool
) -> None:
    assert claim_for(claim, lower) == written
    assert ends_claim(claim, lower) is ended


@pytest.mark.parametrize(
    ("size", "took", "lost", "expected"),
    [
        (FIRST_SLICE, 0.1, False, 2 * FIRST_SLICE),
        (FIRST_SLICE, 2.0, False, FIRST_SLICE),
        (FIRST_SLICE, 7.0, False, FIRST_SLICE // 2),
        (FIRST_SLICE, 0.1, True, FIRST_SLICE // 2),
        (LARGEST_SLICE, 0.1, False, LARGEST_SLICE),
        (SMALLEST_SLICE, 9.0, True, SMALLEST_SLICE),
    ],
)
def test_slices_adapt(size: int, took: float, lost: bool, expected: int) -> None:
    assert next_slice_size(size, took, lost) == expected
