"""What the world does wrong: full disks, wrong clocks, replies that end in the middle. Said, and nothing lost."""

import datetime as dt
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from support.clocks import shifted
from support.feeders import QUICK
from support.haste import HASTE
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import SERVICES, ServiceProcess, Thermocline
from support.truncating import RelayedSet
from support.wire import Closed, Wire, message

pytestmark = pytest.mark.integration
NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
NS = "shop.orders"
POLICY = {"namespace": NS, "ageField": "t", "maxAge": "30d"}
HOUR = 3_600


def age(days: float) -> dt.datetime:
    return NOW - dt.timedelta(days=days)


def all_ids(replica_set: ReplicaSet) -> set[Any]:
    with replica_set.client() as client:
        return {d["_id"] for d in client.shop.orders.find({}, {"_id": 1})}


@contextmanager
def running(system: Thermocline, only: Sequence[str] = ("feeder", "proxy")) -> Iterator[None]:
    """Started, and active; ended in any case."""
    system.start(only)
    try:
        with system.logs_on_failure():
            system.wait_state("Active")
            yield
    finally:
        system.stop()


# Clocks.

CLOCKS = {
    "feeder": 50 * HOUR,
    "proxy": -24 * 365 * HOUR,
    "evictor": 14 * HOUR,
    "warmer": -16 * HOUR,
}
"""Evictor and warmer are less than a twentieth of ``maxAge`` apart: else each undoes the other's work."""


def test_services_with_wrong_clocks_say_so_and_answer_right(
    fast: ReplicaSet, archive: ReplicaSet, tmp_path: Path
) -> None:
    """Nothing but the choice of what is warm may follow a wall clock."""
    expected: dict[int, dict[str, Any]] = {
        n: {"_id": n, "t": age(n + 0.5), "v": 0} for n in range(60)
    }
    with archive.client() as client:
        client.shop.orders.create_index("t")
        client.shop.orders.insert_many(expected.values())
    system = Thermocline(fast, archive, [POLICY], directory=tmp_path)
    for name, seconds in CLOCKS.items():
        environment = {**HASTE, **shifted(tmp_path / f"clock-{name}", seconds)}
        system.services[name].process.environment = environment
    with running(system, SERVICES), system.client() as client:
        orders = client.shop.orders

        def check() -> None:
            assert {d["_id"]: d for d in orders.find({"v": {"$gte": 0}})} == expected
            for days in (3, 29, 32):
                hot = {n for n, d in expected.items() if d["t"] >= age(days)}
                found = orders.find({"t": {"$gte": age(days)}}, {"_id": 1})
                assert {d["_id"] for d in found} == hot

        wait_until("warm", lambda: "floor" in (system.coverage(NS) or {}), 150)
        check()
        for n in (2, 29, 45):
            orders.update_one({"_id": n}, {"$inc": {"v": 1}})
            expected[n]["v"] = 1
        for n in (3, 29, 46):
            assert orders.delete_one({"_id": n}).deleted_count == 1
            del expected[n]
        expected[100] = {"_id": 100, "t": age(0), "v": 0}
        orders.insert_one(expected[100])
        check()
        # 45 came in by the update, and is sent away.
        wait_until("evicted", lambda: system.evicted() > 0 and 45 not in all_ids(fast), 150)
        check()
        system.wait_applied()
        assert all_ids(archive) == set(expected)
        for name, words in (
            ("feeder", "50 hours ahead of the archive's and 50 hours ahead of the fast tier's"),
            ("proxy", "8760 hours behind"),
            ("evictor", "14 hours ahead"),
            ("warmer", "16 hours behind"),
        ):
            assert words in system.services[name].status()["problems"]["clock"]


# Replies that end in the middle.


@contextmanager
def relayed(directory: Path) -> Iterator[tuple[Thermocline, RelayedSet, RelayedSet]]:
    with RelayedSet("fast") as fast, RelayedSet("archive") as archive:
        with archive.client() as client:
            client.shop.orders.create_index("t")
            client.shop.orders.insert_many([{"_id": n, "t": age(n), "v": 0} for n in range(40)])
            client.shop.plain.insert_many([{"_id": n, "v": 0} for n in range(40)])
        system = Thermocline(fast, archive, [POLICY], directory=directory)
        with running(system):
            with system.client() as through:
                through.shop.orders.insert_one({"_id": "hot", "t": age(0), "v": 0})
            yield system, fast, archive


Ask = dict[str, Any]
HALVES: dict[str, tuple[str, Ask]] = {
    "untiered": ("archive", {"find": "plain", "filter": {"v": 0}}),
    "point read, hot": ("fast", {"find": "orders", "filter": {"_id": "hot"}}),
    "point read, cold": ("archive", {"find": "orders", "filter": {"_id": 7}}),
    "scan behind the barrier": ("archive", {"find": "orders", "filter": {"v": {"$gte": 0}}}),
    "untiered write": (
        "archive",
        {"update": "plain", "updates": [{"q": {"_id": 3}, "u": {"$inc": {"v": 1}}}]},
    ),
    "tiered write": (
        "fast",
        {"update": "orders", "updates": [{"q": {"_id": "hot"}, "u": {"$inc": {"v": 1}}}]},
    ),
}


def ask_raw(port: int, command: Ask) -> dict[str, Any] | None:
    """The whole reply; None: the connection was closed at its boundary. Half a reply fails the test."""
    with Wire(port, timeout=20) as wire:
        wire.send(message({**command, "$db": "shop"}))
        head = b""
        while len(head) < 16:
            part = wire.socket.recv(16 - len(head))
            if not part:
                assert not head, "half a header was passed on"
                return None
            head += part
        size = int.from_bytes(head[:4], "little")
        try:
            body = wire._exactly(size - 16)
        except Closed:
            pytest.fail("half a reply was passed on")
        return dict(bson.decode(body[5:]))


def test_half_a_reply_is_never_passed_on(tmp_path: Path, mongod_binary: str) -> None:
    with relayed(tmp_path) as (system, fast, archive):
        marks = 0
        for tier, command in HALVES.values():
            relay = (fast if tier == "fast" else archive).relay
            for keep in (1, 16, 0.5):
                marks += 1
                mark = f"half {marks}"
                before = relay.truncated
                relay.arm(mark.encode(), keep)
                reply = ask_raw(system.port, {**command, "comment": mark})
                assert relay.truncated == before + 1, (tier, command, keep)
                if reply is not None:
                    assert reply["ok"] == 0, (command, keep, reply)
                    assert reply["code"] == 6
                # The next one on the same proxy is served as if nothing had happened.
                after = ask_raw(system.port, command)
                assert after is not None
                assert after["ok"] == 1
        _drivers_retry(system, fast, archive)
        _the_feeder_loses_nothing(system, fast, archive)


def values(collection: Any, _id: Any, **options: Any) -> list[int]:
    return [document["v"] for document in collection.find({"_id": _id}, **options)]


def _drivers_retry(system: Thermocline, fast: RelayedSet, archive: RelayedSet) -> None:
    with system.client() as client:
        orders, plain = client.shop.orders, client.shop.plain
        orders.update_one({"_id": "hot"}, {"$set": {"v": 0}})
        plain.update_one({"_id": 3}, {"$set": {"v": 0}})
        for n in range(1, 4):
            for relay, collection, _id in ((fast.relay, orders, "hot"), (archive.relay, plain, 3)):
                relay.arm(f"counted {n}".encode(), 0.5)
                collection.update_one({"_id": _id}, {"$inc": {"v": 1}}, comment=f"counted {n}")
                relay.disarm()
                assert values(collection, _id) == [n]
        for relay, collection, _id in ((fast.relay, orders, "hot"), (archive.relay, plain, 3)):
            relay.arm(b"read again", 0.5)
            assert values(collection, _id, comment="read again") == [3]


def reached(tier: RelayedSet, count: int) -> bool:
    return tier.relay.truncated >= count


def _the_feeder_loses_nothing(system: Thermocline, fast: RelayedSet, archive: RelayedSet) -> None:
    """Every kind of request of the feeder meets half a reply some time."""
    requests: tuple[tuple[RelayedSet, bytes], ...] = (
        (fast, b"$cmd.aggregate"),
        (fast, b"atClusterTime"),
        (archive, b"commitTransaction"),
        (archive, b"bypassDocumentValidation"),
    )
    with system.client() as client:
        for number, (tier, marker) in enumerate(requests):
            before = tier.relay.truncated
            tier.relay.arm(marker, 0.5, times=2)
            client.shop.orders.insert_many(
                [{"_id": f"{number} {n}", "t": age(1), "v": n} for n in range(50)]
            )
            wait_until("truncated", partial(reached, tier, before + 2))
            tier.relay.disarm()
        client.shop.orders.delete_one({"_id": "0 0"})
    system.wait_applied()
    assert all_ids(archive) == all_ids(fast) | set(range(40))
    assert "0 0" not in all_ids(archive)
    feeder = system.services["feeder"]
    assert feeder.process.running
    wait_until("nothing left to say", partial(silent, feeder), 30)


# Full disks.


def says(service: ServiceProcess, key: str, words: str = "") -> bool:
    problems = service.status()["problems"]
    return key in problems and words in problems[key]


def silent(service: ServiceProcess) -> bool:
    return not service.status()["problems"]


def fail_writes(member: MongoClient[dict[str, Any]], mode: Any) -> None:
    """The archive has no room for application documents."""
    member.admin.command(
        {
            "configureFailPoint": "failCommand",
            "mode": mode,
            "data": {"failCommands": ["update", "insert"], "errorCode": 14031, "namespace": NS},
        }
    )


def test_an_archive_without_room_is_waited_for(
    make_replica_set: Callable[..., ReplicaSet], tmp_path: Path
) -> None:
    fast, archive = make_replica_set("fast"), make_replica_set("archive", test_commands=True)
    with archive.client() as direct:
        direct.shop.orders.create_index("t")
        environment = {"THERMOCLINE_TEST_FEEDER_STATE_POLL": str(QUICK.state_poll)}
        system = Thermocline(fast, archive, [POLICY], environment=environment, directory=tmp_path)
        feeder = system.services["feeder"]
        with running(system):
            fail_writes(direct, "alwaysOn")
            with system.client() as client:
                client.shop.orders.insert_many([{"_id": n, "t": age(1)} for n in range(300)])
                wait_until("said", partial(says, feeder, "replay", "failCommand"), 60)
                client.shop.orders.insert_one({"_id": "later", "t": age(1)})
                assert client.shop.orders.find_one({"_id": 1}) is not None
            assert feeder.status()["feeder"]["quarantined"] == 0
            fail_writes(direct, "off")
            system.wait_applied()
            assert all_ids(archive) == {*range(300), "later"}
            wait_until("solved", partial(silent, feeder), 30)


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Callable[[int], None]]:
    """A file system in memory; yields a function that changes its size."""
    path.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")

    def resize(size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}m", str(path)], check=True)

    try:
        yield resize
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def test_a_full_disk_under_the_archive_costs_nothing_that_was_acknowledged(
    fast: ReplicaSet, mongod_binary: str, tmp_path: Path
) -> None:
    """A mongod without room ends itself; writes stop within a lease, and go on once it is back."""
    with (
        small_disk(tmp_path / "disk", 340) as resize,
        ReplicaSet("archive", directory=tmp_path / "disk") as archive,
    ):
        with archive.client() as direct:
            direct.shop.orders.create_index("t")
        services = tmp_path / "services"
        services.mkdir()
        system = Thermocline(
            fast, archive, [POLICY], spec={"proxy": {"barrierTimeout": "1s"}}, directory=services
        )
        feeder, proxy = system.services["feeder"], system.services["proxy"]
        mongod = archive.members[0]
        acknowledged = set()
        with running(system):
            with system.client(retryWrites=False) as client:
                for n in range(2_000):
                    try:
                        client.shop.orders.insert_one(
                            {"_id": n, "t": age(1), "x": os.urandom(300_000)}
                        )
                    except PyMongoError:
                        if not mongod.process.running:
                            break
                        continue  # slowed down before the disk was full
                    acknowledged.add(n)
                wait_until("the archive ended itself", lambda: not mongod.process.running, 60)
                assert len(acknowledged) < 2_000
                for service in (feeder, proxy):
                    wait_until("said", partial(says, service, "archive"), 60)
                resize(1_500)
                mongod.start()

                def served() -> bool:
                    try:
                        client.shop.orders.insert_one({"_id": "after", "t": age(1)})
                    except PyMongoError:
                        return False
                    return True

                wait_until("served again", served, 60, 0.5)
            system.wait_applied()
            assert acknowledged | {"after"} <= all_ids(archive)
            for service in (feeder, proxy):
                wait_until("solved", partial(silent, service), 60)
