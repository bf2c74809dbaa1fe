"""Which members a read preference chooses, and why: tables on descriptions of sets, no server runs."""

from typing import Any

import bson
import pytest
from pymongo.topology_description import TopologyDescription

from support.topologies import described, member
from thermocline_common.errors import CommandError
from thermocline_proxy.choosing import Zone, choose, tags_of, unmatched

P = member("p", "primary", 150, dc="west", rack="1")
S1 = member("s1", "secondary", 1, dc="east", rack="1")
S2 = member("s2", "secondary", 2, 500, dc="east", rack="2")
S3 = member("s3", "secondary", 151, dc="west", rack="2")
ARBITER = member("x", "arbiter", 1)
ALL = described(P, S1, S2, S3, ARBITER)
NO_PRIMARY = described(S1, S2)
NO_SECONDARY = described(P, ARBITER)
EAST, WEST, NORTH = (Zone("dc", name) for name in ("east", "west", "north"))

CASES: list[tuple[TopologyDescription, dict[str, Any] | None, Zone | None, dict[str, str]]] = [
    (ALL, None, None, {"p": "primary"}),
    (ALL, {"mode": "primary"}, EAST, {"p": "primary"}),
    (ALL, {"mode": "secondary"}, None, {"s1": "latency", "s2": "latency"}),
    (ALL, {"mode": "nearest"}, None, {"s1": "latency", "s2": "latency"}),
    (ALL, {"mode": "primaryPreferred"}, EAST, {"p": "primary"}),
    (ALL, {"mode": "secondaryPreferred"}, None, {"s1": "latency", "s2": "latency"}),
    # Tag sets: the first that any member matches; an empty one matches any.
    (ALL, {"mode": "secondary", "tags": [{"dc": "west"}]}, None, {"s3": "tags"}),
    (ALL, {"mode": "secondary", "tags": [{"dc": "north"}, {"dc": "west"}]}, None, {"s3": "tags"}),
    (ALL, {"mode": "secondary", "tags": [{"dc": "east", "rack": "2"}, {}]}, None, {"s2": "tags"}),
    (ALL, {"mode": "secondary", "tags": [{"dc": "north"}, {}]}, None, {"s1": "latency", "s2": "latency"}),
    (ALL, {"mode": "secondary", "tags": [{"dc": "north"}]}, None, {}),
    (ALL, {"mode": "secondaryPreferred", "tags": [{"dc": "north"}]}, None, {"p": "fallback"}),
    (ALL, {"mode": "nearest", "tags": [{"dc": "west"}]}, None, {"p": "tags", "s3": "tags"}),
    # Staleness.
    (ALL, {"mode": "secondary", "maxStalenessSeconds": 120}, None, {"s1": "latency"}),
    (ALL, {"mode": "secondary", "tags": [{"rack": "2"}], "maxStalenessSeconds": 120}, None, {"s3": "tags"}),
    # What isn't there.
    (NO_PRIMARY, None, None, {}),
    (NO_PRIMARY, {"mode": "primaryPreferred"}, None, {"s1": "fallback", "s2": "fallback"}),
    (NO_SECONDARY, {"mode": "secondaryPreferred"}, EAST, {"p": "fallback"}),
    (NO_SECONDARY, {"mode": "secondary"}, EAST, {}),
    # The proxy's own zone, before the latency window, and never beyond what the client allows.
    (ALL, {"mode": "nearest"}, WEST, {"p": "own-zone", "s3": "own-zone"}),
    (ALL, {"mode": "secondary"}, WEST, {"s3": "own-zone"}),
    (ALL, {"mode": "secondaryPreferred"}, WEST, {"s3": "own-zone"}),
    (ALL, {"mode": "secondary"}, NORTH, {"s1": "latency", "s2": "latency"}),
    (ALL, {"mode": "secondary", "tags": [{"dc": "east"}]}, WEST, {"s1": "tags", "s2": "tags"}),
    (ALL, {"mode": "secondary", "tags": [{"rack": "2"}]}, EAST, {"s2": "own-zone"}),
]  # fmt: skip


@pytest.mark.parametrize(("description", "preference", "zone", "expected"), CASES)
def test_choices(
    description: TopologyDescription,
    preference: dict[str, Any] | None,
    zone: Zone | None,
    expected: dict[str, str],
) -> None:
    found = choose(description, None if preference is None else bson.encode(preference), zone)
    assert {one.address.removesuffix(":1"): one.why.value for one in found} == expected
    mode = "primary" if preference is None else preference["mode"]
    assert {one.mode for one in found} <= {mode}


@pytest.mark.parametrize(
    ("preference", "code"),
    [
        ({"mode": "slave"}, 9),
        ({"tags": [{}]}, 9),
        ({"mode": 1}, 9),
        ({"mode": {"a": 1}}, 9),
        ({"mode": "secondary", "maxStalenessSeconds": 12}, 160),
        ({"mode": "secondary", "maxStalenessSeconds": "120"}, 9),
        ({"mode": "secondary", "maxStalenessSeconds": float("inf")}, 9),
        ({"mode": "secondary", "maxStalenessSeconds": -5}, 9),
        ({"mode": "secondary", "tags": {"dc": "east"}}, 9),
        ({"mode": "secondary", "tags": 5}, 9),
        ({"mode": "secondary", "tags": [["ab"]]}, 9),
        ({"mode": "secondary", "tags": [{"dc": 5}]}, 9),
    ],
)
def test_what_is_no_preference(preference: dict[str, Any], code: int) -> None:
    with pytest.raises(CommandError) as caught:
        choose(ALL, bson.encode(preference))
    assert caught.value.code == code


def test_tag_sets_that_no_member_matches_are_named_with_the_members_tags() -> None:
    tags = tags_of(ALL)
    assert sorted(tags) == ["p:1", "s1:1", "s2:1", "s3:1"]
    empty: dict[str, str] = {}
    for fits in ([], [empty], [{"dc": "north"}, empty], [{"dc": "north"}, {"dc": "west"}]):
        assert unmatched(fits, tags) is None
    two = {"p:1": tags["p:1"], "s1:1": tags["s1:1"]}
    assert unmatched([{"dc": "north"}, {"dc": "east", "rack": "9"}], two) == (
        'no member matches the tag set { dc: "north" } or { dc: "east", rack: "9" }; '
        'there are p:1 { dc: "west", rack: "1" }, s1:1 { dc: "east", rack: "1" }'
    )
