"""``proxy.verify``: clean tiers never look different, and a document that is wrong in the fast tier is found."""

import asyncio
import datetime as dt
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError
from typer.testing import CliRunner

from support.haste import HASTE
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import ServiceProcess, Thermocline
from thermocline_cli.__main__ import app
from thermocline_common.reserved import reserved_sessions

pytestmark = pytest.mark.integration

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
RECENT = {"t": {"$gte": NOW - dt.timedelta(days=20)}}


def outcomes(*proxies: ServiceProcess) -> dict[str, int]:
    found: dict[str, int] = {}
    for proxy in proxies:
        for outcome, count in proxy.status()["proxy"]["verify"]["outcomes"].items():
            found[outcome] = found.get(outcome, 0) + count
    return found


def is_warm(thermocline: Thermocline, namespace: str) -> bool:
    return bool({"floor", "complete"} & (thermocline.coverage(namespace) or {}).keys())


def warm(thermocline: Thermocline) -> None:
    thermocline.wait_state("Active")
    for namespace in thermocline.namespaces:
        wait_until(
            f"{namespace} warm",
            partial(is_warm, thermocline, namespace),
            60,
            0.1,
        )


def by_id(orders: Any, draw: random.Random) -> Any:
    return orders.find_one({"_id": draw.randrange(60)})


READS: dict[str, Callable[[Any, random.Random], Any]] = {
    "by id": by_id,
    "by ids": lambda c, r: list(c.find({"_id": {"$in": [r.randrange(20) for _ in range(3)]}})),
    "covered": lambda c, r: list(c.find(RECENT)),
    "part": lambda c, r: list(c.find(RECENT, limit=5)),
    "ordered part": lambda c, r: list(c.find(RECENT, sort=[("k", 1)], limit=5)),
    "newest": lambda c, r: list(c.find(sort=[("t", -1)], limit=5)),
    "any": lambda c, r: c.find_one({"k": 1}),
    "without ids": lambda c, r: list(c.find(RECENT, {"_id": 0, "v": 1})),
    "count": lambda c, r: c.count_documents(RECENT),
    "plain count": lambda c, r: c.database.command("count", c.name, query=RECENT),
    "distinct": lambda c, r: c.distinct("v", RECENT),
    "group": lambda c, r: list(
        c.aggregate([{"$match": RECENT}, {"$group": {"_id": "$k", "n": {"$sum": "$v"}}}])
    ),
    "join": lambda c, r: list(
        c.aggregate(
            [
                {"$match": RECENT},
                {"$lookup": {"from": "kinds", "localField": "k", "foreignField": "_id", "as": "x"}},
            ]
        )
    ),
    "kinds": lambda c, r: list(c.database.kinds.find()),
}


def write(client: MongoClient[Any], draw: random.Random) -> None:
    """One write: hot and cold documents, changed, deleted and inserted anew; sometimes two at once."""
    orders, number = client.shop.orders, draw.randrange(60)
    match draw.randrange(6):
        case 0:
            orders.delete_one({"_id": number})
        case 1:
            fields = {"t": NOW - dt.timedelta(days=number), "k": number % 3, "v": draw.randrange(9)}
            orders.replace_one({"_id": number}, fields, upsert=True)
        case 2:
            client.shop.kinds.update_one({"_id": number % 3}, {"$inc": {"v": 1}}, upsert=True)
        case 3:
            with client.start_session() as session, session.start_transaction():
                for one in (0, 1):
                    orders.update_one({"_id": one}, {"$inc": {"v": 1}}, session=session)
        case _:
            orders.update_one({"_id": number}, {"$inc": {"v": 1}})


def test_clean_tiers_never_look_different(fast: ReplicaSet, archive: ReplicaSet) -> None:
    with archive.client() as client:
        client.shop.orders.create_index("t")
        client.shop.orders.insert_many(
            [{"_id": n, "t": NOW - dt.timedelta(days=n), "k": n % 3, "v": 0} for n in range(60)]
        )
        client.shop.kinds.insert_many([{"_id": n, "v": n} for n in range(3)])
    thermocline = Thermocline(
        fast,
        archive,
        [
            {"namespace": "shop.orders", "ageField": "t", "maxAge": "30d"},
            {"namespace": "shop.kinds", "keep": "All"},
        ],
        spec={"proxy": {"lease": "500ms", "verify": 1.0}},
        environment=HASTE,
    )
    stop = threading.Event()
    with thermocline, thermocline.logs_on_failure(), thermocline.client() as client:
        warm(thermocline)

        def write_on() -> None:
            draw = random.Random(7)
            while not stop.is_set():
                try:
                    write(client, draw)
                except PyMongoError as error:
                    if not error.has_error_label("TransientTransactionError"):
                        raise
                time.sleep(0.02)

        writer = threading.Thread(target=write_on)
        writer.start()
        proxy = thermocline.services["proxy"]
        try:
            draw = random.Random(5)

            def enough() -> bool:
                for read in READS.values():
                    read(client.shop.orders, draw)
                found = outcomes(proxy)
                assert found["different"] == 0, proxy.status()["proxy"]["verify"]
                looked_again = found["moved"] + found["undecided"]
                return found["same"] > 50 and looked_again > 5 and thermocline.evicted() > 0

            wait_until("answers checked while documents leave and return", enough, 120, 0.05)
        finally:
            stop.set()
            writer.join()
        wait_until("all checked", lambda: not proxy.status()["proxy"]["verify"]["waiting"], 60)
        found = proxy.status()["proxy"]["verify"]
        assert found["outcomes"]["different"] == found["outcomes"]["unexplained"] == 0, found
        assert found["archiveOnly"] == {}


async def plant(fast: ReplicaSet, change: Callable[[Any, Any], Any]) -> None:
    """Change F behind everybody's back: the feeder leaves reserved sessions out."""
    async with (
        fast.async_client() as client,
        reserved_sessions(client).session() as session,
        await session.start_transaction(),
    ):
        await change(client.shop, session)


PLANTED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any], str]] = {
    # What is planted in shop.<name>, what notices it, and what is said.
    "changed": (
        lambda shop, session: shop.changed.update_one(
            {"_id": 3}, {"$set": {"v": "wrong"}}, session=session
        ),
        lambda shop: shop.changed.find_one({"_id": 3}),
        "changed 3",
    ),
    "missing": (
        lambda shop, session: shop.missing.delete_one({"_id": 4}, session=session),
        lambda shop: shop.missing.count_documents(RECENT),
        "missing 4",
    ),
    "extra": (
        lambda shop, session: shop.extra.insert_one({"_id": "x", "t": NOW}, session=session),
        lambda shop: list(shop.extra.find(RECENT)),
        'extra "x"',
    ),
}


def _documents() -> list[dict[str, Any]]:
    return [{"_id": n, "t": NOW - dt.timedelta(days=n), "v": n} for n in range(10)]


@pytest.fixture
def doubtful(secure_fast: ReplicaSet, secure_archive: ReplicaSet) -> Iterator[Thermocline]:
    with secure_archive.client() as client:
        for name in (*PLANTED, "right"):
            client.shop[name].create_index("t")
            client.shop[name].insert_many(_documents())
    thermocline = Thermocline(
        secure_fast,
        secure_archive,
        [
            {"namespace": f"shop.{name}", "ageField": "t", "maxAge": "30d"}
            for name in (*PLANTED, "right")
        ],
        spec={"proxy": {"lease": "500ms", "verify": 1.0}},
        environment=HASTE,
    )
    with thermocline, thermocline.logs_on_failure():
        warm(thermocline)
        yield thermocline


def test_a_wrong_document_is_found_named_and_kept_from_readers(
    doubtful: Thermocline, secure_fast: ReplicaSet
) -> None:
    proxy, second = doubtful.services["proxy"], doubtful.add_service("proxy", "second")
    second.wait_ready()
    for change, _, _ in PLANTED.values():
        asyncio.run(plant(secure_fast, change))

    def doubt(name: str) -> dict[str, Any]:
        found: dict[str, Any] = (doubtful.coverage(f"shop.{name}") or {}).get("archiveOnly", {})
        return found

    other: MongoClient[dict[str, Any]] = MongoClient(doubtful.uri(second.listen))
    with doubtful.client() as client, other:
        assert client.shop.changed.find_one({"_id": 3})["v"] == "wrong"  # type: ignore[index]
        for name, (_, notice, expected) in PLANTED.items():

            def noticed(name: str = name, notice: Callable[[Any], Any] = notice) -> bool:
                notice(client.shop)
                list(client.shop.right.find(RECENT))
                return bool(doubt(name))

            wait_until(f"{name} noticed", noticed, 60, 0.2)
            assert doubt(name)["documents"] == [expected]
        assert not doubt("right")

        def followed() -> bool:
            problems: dict[str, str] = second.status()["problems"]
            return {f"verify shop.{name}" for name in PLANTED} <= problems.keys()

        wait_until("the second proxy follows", followed, 30)
        second.kill()
        second.start()
        second.wait_ready()
        wait_until("it does after a restart", followed, 30)
        assert "changed 3" in second.status()["problems"]["verify shop.changed"]
        assert 'archive_only{namespace="shop.extra"} 1.0' in second.metrics()
        for shop in (client.shop, other.shop):
            assert shop.changed.find_one({"_id": 3})["v"] == 3  # type: ignore[index]
            assert shop.missing.count_documents(RECENT) == 10
            assert shop.extra.find_one({"_id": "x"}) is None
            # Writes go on, and are seen at once.
            shop.missing.update_one({"_id": 5}, {"$inc": {"v": 1}})
        assert client.shop.missing.find_one({"_id": 5})["v"] == 7  # type: ignore[index]
        with client.start_session() as session, session.start_transaction():
            shop = client.shop
            shop.changed.update_one({"_id": 6}, {"$inc": {"v": 1}}, session=session)
            with pytest.raises(OperationFailure) as refused:
                shop.changed.find_one({"_id": 3}, session=session)
            assert refused.value.code == 263
            session.abort_transaction()
        # The fast tier lacks it, and isn't trusted with what a filter matches either.
        assert client.shop.missing.update_many(RECENT, {"$set": {"w": 1}}).matched_count == 10
        assert second.status()["proxy"]["routes"]["archive"]["in-doubt"] >= 3

        with secure_fast.client() as direct:
            direct.shop.changed.update_one({"_id": 3}, {"$set": {"v": 3}})
        released = release(doubtful, "shop.changed", "shop.right")
        assert "shop.changed: released" in released
        assert "shop.right: nothing to release" in released
        assert "shop.missing" in release(doubtful)

        def fast_again() -> bool:
            other.shop.changed.find_one({"_id": 3})
            status = second.status()
            gone = "verify shop.changed" not in status["problems"]
            return bool(gone and "point-id" in status["proxy"]["routes"].get("fast", {}))

        wait_until("the fast tier answers again", fast_again, 30)
        assert doubt("missing")
    assert outcomes(proxy)["different"] >= 3


def release(thermocline: Thermocline, *namespaces: str) -> str:
    arguments = ["release", str(thermocline.manifest.path), *namespaces]
    result = CliRunner().invoke(app, [*arguments, "--credentials", str(thermocline.credentials)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output
