"""What the feeder remembers between two looks: switches to look back over, requests that nobody keeps alive."""

import uuid
from dataclasses import replace
from typing import Any, cast

import pytest
from bson.timestamp import Timestamp

from thermocline_common.coverage import Coverage, SchemaRequest, State, Tier
from thermocline_common.spec.models import Manifest
from thermocline_feeder.settings import Settings
from thermocline_feeder.states import States, held_still

NS = "shop.orders"
NOTHING = cast("Any", None)
SETTINGS = Settings(look_back=100.0, request_age=50.0, request_rest=5.0)


def states() -> States:
    return States(NOTHING, NOTHING, SETTINGS, NOTHING, lambda: 0.0, dict, NOTHING)


def test_looking_back_lasts_from_the_last_switch() -> None:
    """Drops and unique indexes switch often: what was executed before the latest switch counts too."""
    seen = states()
    active = Coverage(
        NS, State.ACTIVE, State.ACTIVE, look_back=Tier.ARCHIVE, activated_at=Timestamp(1, 1)
    )
    left = replace(active, state=State.PASSTHROUGH, look_back=Tier.FAST)
    again = replace(active, activated_at=Timestamp(2, 1))
    left_again = replace(left, activated_at=Timestamp(2, 1))
    assert not seen._look_back_over(NS, active, 0.0)
    assert not seen._look_back_over(NS, active, 99.0)
    assert seen._look_back_over(NS, active, 100.0)
    for coverage, since in ((left, 101.0), (again, 150.0), (left_again, 200.0)):
        assert not seen._look_back_over(NS, coverage, since)
        # A raised floor is no switch.
        assert not seen._look_back_over(NS, replace(coverage, raised=9), since + 40)
    assert seen._look_back_over(NS, left_again, 300.0)


def test_the_same_direction_again_is_another_switch_even_if_the_way_between_was_not_seen() -> None:
    seen = states()
    first = Coverage(
        NS, State.ACTIVE, State.ACTIVE, look_back=Tier.ARCHIVE, activated_at=Timestamp(1, 1)
    )
    assert not seen._look_back_over(NS, first, 0.0)
    second = replace(first, activated_at=Timestamp(2, 1))
    assert not seen._look_back_over(NS, second, 99.0)
    assert not seen._look_back_over(NS, second, 150.0)
    assert seen._look_back_over(NS, second, 199.0)


def test_a_request_lives_by_its_beats() -> None:
    seen = states()
    token = uuid.uuid4()

    def asked(beats: int) -> Coverage:
        request = SchemaRequest(token, "drop", beats)
        return Coverage(NS, State.PASSTHROUGH, State.PASSTHROUGH, requests=(request,))

    assert seen._stale(NS, asked(0), 0.0) == ()
    assert seen._stale(NS, asked(0), 49.0) == ()
    assert seen._stale(NS, asked(1), 49.5) == ()
    assert seen._stale(NS, asked(1), 99.0) == ()
    assert seen._stale(NS, asked(1), 99.5) == (token,)
    assert seen._rests_until(NS) == 104.5
    assert states()._stale(NS, asked(1), 1_000.0) == (), "a successor counts anew"


@pytest.mark.parametrize(
    ("spec", "drain", "why"),
    [
        ({}, False, None),
        ({"paused": True}, False, "spec.paused is true"),
        ({"feeder": {"mode": "Paused"}}, False, "spec.feeder.mode is Paused"),
        ({"paused": True, "feeder": {"mode": "Paused"}}, True, None),
    ],
    ids=["running", "paused", "feeder paused", "told to drain"],
)
def test_what_holds_switches_still(spec: dict[str, Any], drain: bool, why: str | None) -> None:
    tier = {"uri": "mongodb://127.0.0.1:1/?replicaSet=rs"}
    manifest = Manifest.model_validate(
        {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": {"name": "shop"},
            "spec": {"archive": tier, "fastTier": tier, **spec},
        },
        strict=False,
    )
    assert held_still(manifest, drain=drain) == why
