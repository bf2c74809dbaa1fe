"""What a proxy may believe: epochs, owners, and the standing of a namespace."""

import dataclasses
import uuid
from typing import Any

import pytest

from thermocline_common.coverage import Coverage, Doubt, State, Tier
from thermocline_proxy.routing.snapshot import Snapshot, Tiering
from thermocline_proxy.state import NoLease, Standing, check_document, check_epoch, standing

EPOCH = uuid.UUID(int=1)
OTHER = uuid.UUID(int=2)


@pytest.mark.parametrize(
    ("checkpoint", "marker", "good"),
    [
        (None, None, True),
        (None, {"epoch": EPOCH, "counter": 1}, True),
        ({"epoch": EPOCH, "counter": 5}, {"epoch": EPOCH, "counter": 5}, True),
        ({"epoch": EPOCH, "counter": 5}, {"epoch": EPOCH, "counter": 9}, True),
        ({"epoch": EPOCH, "counter": 5}, {"epoch": EPOCH, "counter": 4}, False),
        ({"epoch": EPOCH, "counter": 5}, {"epoch": OTHER, "counter": 9}, False),
        ({"epoch": EPOCH, "counter": 5}, None, False),
        ({"epoch": EPOCH, "counter": 5, "nextEpoch": OTHER}, {"epoch": EPOCH, "counter": 5}, False),
    ],
)
def test_a_fast_tier_that_went_back_gives_no_lease(
    checkpoint: dict[str, Any] | None, marker: dict[str, Any] | None, good: bool
) -> None:
    if good:
        check_epoch(checkpoint, marker)
    else:
        with pytest.raises(NoLease):
            check_epoch(checkpoint, marker)


def test_foreign_or_newer_coordination_data_gives_no_lease() -> None:
    owner = {"namespace": "shop", "name": "shop"}
    check_document({"formatVersion": 1, "owner": owner}, ("shop", "shop"))
    with pytest.raises(NoLease, match="shop/shop"):
        check_document({"formatVersion": 1, "owner": owner}, ("shop", "crm"))
    with pytest.raises(NoLease, match="format"):
        check_document({"formatVersion": 2, "owner": owner}, ("shop", "shop"))


def coverage(state: State, target: State = State.ACTIVE) -> Tiering:
    return Tiering(Coverage("d.c", state, target, age_field="t"))


def snapshot(tiering: Tiering | None = None, **fields: Any) -> Snapshot:
    tierings = {} if tiering is None else {"d.c": tiering}
    return dataclasses.replace(Snapshot(1.0, 1.0, tierings=tierings), **fields)


@pytest.mark.parametrize(
    ("namespace", "seen", "expected"),
    [
        pytest.param("d.c", snapshot(), Standing.UNTIERED, id="not listed"),
        pytest.param(
            "d.c", snapshot(listed=frozenset({"d.c"})), Standing.CONSIDER, id="listed only"
        ),
        pytest.param("d.c", snapshot(coverage(State.ACTIVE)), Standing.POINTS_ON_FAST, id="active"),
        pytest.param("d.x", snapshot(coverage(State.ACTIVE)), Standing.UNTIERED, id="another"),
        pytest.param("d.c", snapshot(coverage(State.PASSTHROUGH)), Standing.CONSIDER, id="left"),
        pytest.param("d.c", snapshot(coverage(State.PAUSING)), Standing.CONSIDER, id="to active"),
        pytest.param(
            "d.c",
            snapshot(coverage(State.PAUSING, State.PASSTHROUGH)),
            Standing.CONSIDER,
            id="to passthrough",
        ),
        pytest.param(
            "d.c",
            snapshot(coverage(State.ACTIVE), archive_only=True),
            Standing.CONSIDER,
            id="archive only",
        ),
        pytest.param(
            "d.c",
            snapshot(Tiering(dataclasses.replace(coverage(State.ACTIVE).coverage, doubt=Doubt()))),
            Standing.CONSIDER,
            id="in doubt",
        ),
        pytest.param(
            "d.v",
            snapshot(coverage(State.ACTIVE), views={"d.v": frozenset({"d.c"})}),
            Standing.CONSIDER,
            id="view",
        ),
        pytest.param(
            "d.v",
            snapshot(coverage(State.ACTIVE), views={"d.v": frozenset({"d.x"})}),
            Standing.UNTIERED,
            id="view on another",
        ),
        pytest.param("thermocline.coverage", snapshot(), Standing.CONSIDER, id="closed"),
    ],
)
def test_standing(namespace: str, seen: Snapshot, expected: Standing) -> None:
    assert standing(namespace, seen) is expected


def test_a_namespace_that_was_left_is_considered_for_its_look_back() -> None:
    left = Tiering(dataclasses.replace(coverage(State.PASSTHROUGH).coverage, look_back=Tier.FAST))
    assert standing("d.c", snapshot(left)) is Standing.CONSIDER
