"""The short path: what it takes, what it changes in a frame, and that a repetition is no other command."""

import struct
import types
from collections import defaultdict
from typing import Any, cast

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from hypothesis import given, settings, strategies as st

from thermocline_common.coverage import Coverage, State, Tier
from thermocline_common.health import Problems
from thermocline_common.sessions import new_reserved_id
from thermocline_proxy.choosing import Choice, Why
from thermocline_proxy.commands.fail_point import FailPoint, Failure, Switch
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.leaving import Leaving, Phase
from thermocline_proxy.observe import CollectionReads, Counter, Latency
from thermocline_proxy.pools import Pools
from thermocline_proxy.relay import Relay
from thermocline_proxy.routing.snapshot import Snapshot, Tiering
from thermocline_proxy.sessions import ClientSession
from thermocline_proxy.state import LeaseKeeper
from thermocline_proxy.times import TierClock
from thermocline_proxy.upstream import Endpoint, Upstream

FAST_TIME: dict[str, Any] = {
    "clusterTime": Timestamp(10, 1),
    "signature": {"hash": b"f" * 20, "keyId": Int64(1)},
}
ARCHIVE_TIME: dict[str, Any] = {
    "clusterTime": Timestamp(99, 1),
    "signature": {"hash": b"a" * 20, "keyId": Int64(2)},
}
LSID = {"id": Binary(bytes(range(16)), 4)}


class Members:
    primary = "h:1"

    def primary_at(self, now: float) -> str | None:
        return self.primary

    def choose(self, preference: bytes) -> str | None:
        return "h:2"

    def choice(self, preference: bytes | None, address: str) -> Choice:
        return Choice(address, "primary" if preference is None else "other", Why.PRIMARY)


class World:
    """A proxy without sockets: ``shop.orders`` is tiered, the rest isn't."""

    def __init__(self, *, default_preference: bytes | None = None, login: bool = False) -> None:
        self.counted: dict[tuple[Tier, str, str], Latency] = {}
        self.collections: defaultdict[str, CollectionReads] = defaultdict(CollectionReads)
        self.clocks = {tier: TierClock() for tier in Tier}
        self.clocks[Tier.FAST].learn_document(
            {"$clusterTime": FAST_TIME, "operationTime": Timestamp(10, 1)}
        )
        self.clocks[Tier.ARCHIVE].learn_document(
            {"$clusterTime": ARCHIVE_TIME, "operationTime": Timestamp(99, 1)}
        )
        self.members = {tier: Members() for tier in Tier}
        self.pools = Pools({tier: Endpoint(tier, self.clocks[tier], 10) for tier in Tier})
        configured = types.SimpleNamespace(preference=lambda _: default_preference)
        self.now = 0.0
        self.leases = LeaseKeeper(
            cast("Any", None),
            self.clocks,
            lambda: cast("Any", configured),
            Problems(),
            lambda: self.now,
        )
        coverage = Coverage("shop.orders", State.ACTIVE, State.ACTIVE, age_field="t")
        self.leases.snapshot = Snapshot(
            1e18,
            1e18,
            tierings={"shop.orders": Tiering(coverage)},
            listed=frozenset({"shop.orders"}),
        )
        self.session = ClientSession(1, "")
        self.proxy = cast(
            "Proxy",
            types.SimpleNamespace(
                leases=self.leases,
                clock=self.clocks.__getitem__,
                upstreams=types.SimpleNamespace(members=self.members, pools=self.pools),
                settings=lambda: configured,
                logins=types.SimpleNamespace(may_be_required=login),
                leaving=Leaving(),
                fail_point=FailPoint(),
                observer=types.SimpleNamespace(
                    commands=defaultdict(Counter),
                    read=self.reads,
                    collection=self.collections.__getitem__,
                ),
            ),
        )
        self.relay = Relay(self.proxy, self.session)

    def reads(self, tier: Tier, choice: Choice) -> Latency:
        return self.counted.setdefault((tier, choice.address, choice.mode), Latency())

    def idle(self, tier: Tier, address: str = "h:1") -> Upstream:
        pool = self.pools.pool(tier, address, None)
        upstream = Upstream(pool)
        pool.idle.append(upstream)
        return upstream

    def route(
        self, frame: bytes, relay: Relay | None = None
    ) -> tuple[Tier, str, dict[str, Any]] | None:
        """Where a frame goes and what is sent; both tiers have idle connections."""
        for tier in Tier:
            for address in ("h:1", "h:2"):
                self.pools.pool(tier, address, None).idle.clear()
                self.idle(tier, address)
        found = (relay or self.relay).route(frame)
        return None if found is None else self.sent(*found)

    def repeat(self, frame: bytes) -> tuple[Tier, str, dict[str, Any]] | None:
        for tier in Tier:
            self.pools.pool(tier, "h:1", None).idle.clear()
            self.idle(tier)
        found = self.relay.repeat(frame)
        return None if found is None else self.sent(*found)

    @staticmethod
    def sent(upstream: Upstream, frame: bytes) -> tuple[Tier, str, dict[str, Any]]:
        assert struct.unpack_from("<i", frame)[0] == len(frame)
        return upstream.pool.tier, upstream.pool.address, bson.decode(frame[21:])


def message(document: dict[str, Any], request_id: int = 7) -> bytes:
    body = bson.encode(document)
    return struct.pack("<iiii", 21 + len(body), request_id, 0, 2013) + bytes(5) + body


def find(collection: str = "plain", **fields: Any) -> dict[str, Any]:
    return {
        "find": collection,
        "filter": {"_id": 5},
        "limit": 1,
        "lsid": LSID,
        **fields,
        "$db": "shop",
    }


def timed(collection: str = "plain", time: dict[str, Any] = FAST_TIME) -> dict[str, Any]:
    return {**find(collection), "$clusterTime": time}


def test_an_untiered_find_goes_to_the_archive_with_the_archives_time() -> None:
    found = World().route(message(timed()))
    assert found is not None
    assert found[:2] == (Tier.ARCHIVE, "h:1")
    assert found[2] == timed(time=ARCHIVE_TIME)


def test_a_point_read_of_a_tiered_namespace_goes_to_the_fast_tier_as_it_is() -> None:
    document = timed("orders")
    assert World().route(message(document)) == (Tier.FAST, "h:1", document)


def test_a_time_of_the_archive_never_reaches_the_fast_tier() -> None:
    """Case D1: the client spoke to the archive directly before."""
    world = World()
    frame = message(timed("orders", ARCHIVE_TIME))
    for found in (world.route(frame), world.repeat(frame)):
        assert found is not None
        assert found[0] is Tier.FAST
        assert found[2]["$clusterTime"] == FAST_TIME
    after = {"readConcern": {"afterClusterTime": Timestamp(10, 1)}}
    assert world.route(message(find("orders", **after))) is not None
    late = {"readConcern": {"afterClusterTime": Timestamp(99, 1)}}
    assert world.route(message(find("orders", **late))) is None


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(find("orders", filter={"_id": 5, "x": 1}), id="more than the id"),
        pytest.param(find("orders", filter={"_id": {"$gt": 5}}), id="an operator"),
        pytest.param(find("orders", filter={"_id": [5]}), id="an array"),
        pytest.param(find("orders", filter={"_id": None}), id="null"),
        pytest.param(find("orders", filter={}), id="everything"),
        pytest.param(find("orders", skip=1), id="skip"),
        pytest.param(find("orders", batchSize=0), id="no first batch"),
        pytest.param(find("orders", collation={"locale": "de"}), id="collation"),
        pytest.param(find("orders", readConcern={"level": "linearizable"}), id="linearizable"),
        pytest.param(find("orders", **{"$readPreference": {"mode": "nearest"}}), id="nearest"),
        pytest.param(find("orders", startTransaction=True, autocommit=False), id="transaction"),
        pytest.param({"insert": "orders", "documents": [{}], "$db": "shop"}, id="write"),
        pytest.param({"aggregate": "plain", "pipeline": [], "$db": "shop"}, id="aggregate"),
        pytest.param({"find": "coverage", "$db": "thermocline"}, id="closed database"),
        pytest.param(find(lsid={"id": Binary(new_reserved_id().bytes, 4)}), id="reserved session"),
        pytest.param(find(readConcern={"level": "snapshot"}), id="snapshot"),
        pytest.param(find(readConcern={"atClusterTime": Timestamp(1, 1)}), id="atClusterTime"),
        pytest.param({"find": 5, "$db": "shop"}, id="no collection"),
        pytest.param({"find": Binary(bytes(16), 4), "$db": "shop"}, id="by uuid"),
        pytest.param({"bogus": "plain", "$db": "shop"}, id="unknown"),
    ],
)
def test_the_rest_takes_the_long_path(document: dict[str, Any]) -> None:
    assert World().route(message(document)) is None


def test_a_causal_read_waits_for_the_archives_own_time() -> None:
    concern = {"level": "majority", "afterClusterTime": Timestamp(10, 1)}
    found = World().route(message(find(readConcern=concern)))
    assert found is not None
    assert found[2]["readConcern"] == {"level": "majority", "afterClusterTime": Timestamp(99, 1)}


def test_read_preferences_choose_a_member_for_reads_only() -> None:
    preference = {"$readPreference": {"mode": "secondary"}}
    found = World().route(message({**find(), **preference}))
    assert found is not None
    assert found[1] == "h:2"
    write = {"delete": "plain", "deletes": [], **preference, "$db": "shop"}
    found = World().route(message(write))
    assert found is not None
    assert found[1] == "h:1"


def test_what_the_operator_prefers_for_reads_is_left_to_the_long_path() -> None:
    assert World(default_preference=b"x").route(message(find())) is None


def test_nothing_is_relayed_without_a_login_where_one_is_needed() -> None:
    assert World(login=True).route(message(find())) is None


def test_nothing_is_relayed_while_a_fail_point_is_on() -> None:
    world = World()
    assert world.route(message(find()))
    assert world.repeat(message(find()))
    world.proxy.fail_point.switch(Switch(Failure(frozenset({"find"}), code=91)))
    world.leases.forget_plans()
    assert world.repeat(message(find())) is None
    assert world.route(message(find())) is None
    world.proxy.fail_point.switch(Switch())
    assert world.route(message(find()))


def test_a_proxy_that_is_leaving_relays_nothing() -> None:
    world = World()
    assert world.route(message(find()))
    world.proxy.leaving.phase = Phase.LEAVING
    world.leases.token = object()
    assert world.repeat(message(find())) is None
    assert world.route(message(find())) is None


def test_nothing_is_relayed_without_a_lease() -> None:
    world = World()
    world.leases.snapshot = Snapshot(0.0, 0.0)
    assert world.route(message(find())) is None


@pytest.mark.parametrize("collection", ["plain", "orders"])
def test_a_repetition_is_recognised(collection: str) -> None:
    world = World()
    assert world.route(message(find(collection))) is not None
    other = find(collection, filter={"_id": 123_456})
    assert world.repeat(message(other, 9)) == (
        Tier.FAST if collection == "orders" else Tier.ARCHIVE, "h:1", other
    )  # fmt: skip


def test_a_repetition_gets_the_newest_time() -> None:
    world = World()
    document = timed()
    assert world.route(message(document)) is not None
    later = {**ARCHIVE_TIME, "clusterTime": Timestamp(100, 3)}
    world.clocks[Tier.ARCHIVE].learn_document({"$clusterTime": later})
    found = world.repeat(message(document))
    assert found is not None
    assert found[2]["$clusterTime"] == later


def test_a_repetition_is_nothing_after_anything_changed() -> None:
    frame = message(find())
    for change in ("token", "lease", "primary", "identity", "retired"):
        world = World()
        assert world.route(frame) is not None
        if change == "token":
            world.leases.token = object()
        elif change == "lease":
            world.leases.snapshot = Snapshot(0.0, 0.0)
        elif change == "primary":
            world.members[Tier.ARCHIVE].primary = "h:9"
        elif change == "identity":
            world.session.identity = cast("Any", object())
        else:
            world.pools.pool(Tier.ARCHIVE, "h:1", None).retired = True
        assert world.repeat(frame) is None, change


IDS = st.one_of(
    st.integers(-(2**31), 2**63 - 1), st.floats(), st.text("ab", max_size=3), st.binary(max_size=3),
    st.none(), st.just(ObjectId(bytes(12))), st.just({"$gt": 1}), st.just([1]),
)  # fmt: skip
FILTERS = st.dictionaries(st.sampled_from(["_id", "x"]), IDS, max_size=2)
COMMANDS = st.builds(
    lambda collection, filter_, extra, db: {
        "find": collection, "filter": filter_, "limit": 1, **extra, "$db": db,
    },
    st.sampled_from(["plain", "orders"]),
    FILTERS,
    st.sampled_from(
        [{}, {"lsid": LSID}, {"skip": 1}, {"$clusterTime": FAST_TIME}, {"lsid": LSID, "$clusterTime": FAST_TIME}]
    ),
    st.sampled_from(["shop", "thermocline"]),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(COMMANDS, COMMANDS, st.integers(0, 200), st.integers(0, 255))
def test_a_repetition_always_equals_a_fresh_decision(
    first: dict[str, Any], second: dict[str, Any], at: int, byte: int
) -> None:
    world = World()
    world.route(message(first))
    frame = message(second)
    assert_same(world, frame)
    # And with one byte changed behind the header, which may make it anything.
    position = 21 + at % (len(frame) - 21)
    assert_same(world, frame[:position] + bytes((byte,)) + frame[position + 1 :])


def assert_same(world: World, frame: bytes) -> None:
    """Where a repetition is accepted, a fresh look at the frame decides the same."""
    try:
        repeated = world.repeat(frame)
    except bson.InvalidBSON:
        return  # the server's to refuse: only the value in the middle can be malformed
    if repeated is not None:
        fresh = World()
        assert fresh.route(frame, Relay(fresh.proxy, fresh.session)) is not None
        again = fresh.route(frame)
        assert again is not None
        assert (again[0], again[1]) == (repeated[0], repeated[1])
        assert bson.encode(again[2]) == bson.encode(repeated[2])


def test_reads_count_for_the_member_that_answers_and_the_preference_that_chose_it() -> None:
    world = World()
    for frame, expected in (
        (message({"find": "plain", "filter": {}, "$db": "shop"}), (Tier.ARCHIVE, "h:1", "primary")),
        (
            message({"find": "plain", "$readPreference": {"mode": "nearest"}, "$db": "shop"}),
            (Tier.ARCHIVE, "h:2", "other"),
        ),
        (
            message({"find": "orders", "filter": {"_id": 1}, "$db": "shop"}),
            (Tier.FAST, "h:1", "primary"),
        ),
    ):
        assert world.route(frame) is not None
        assert world.relay.read is world.counted[expected]
    assert world.route(message({"insert": "plain", "documents": [{}], "$db": "shop"})) is not None
    world.relay.read.add(1.0)
    assert len(world.counted) == 3
    assert not any(latency.count for latency in world.counted.values())


def test_a_point_read_counts_for_its_collection_and_no_other_command_does() -> None:
    world = World()
    point = message({"find": "orders", "filter": {"_id": 1}, "$db": "shop"})
    assert world.route(point) is not None
    assert world.relay.fast is world.collections["shop.orders"].fast
    assert world.repeat(point) is not None
    assert world.relay.fast is world.collections["shop.orders"].fast
    assert list(world.collections) == ["shop.orders"]
