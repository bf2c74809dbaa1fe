"""One long-lived Thermocline for many cases: both tiers, all services, logins off."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pymongo import MongoClient

from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)


def age(days: float) -> dt.datetime:
    """So many days before the tests began."""
    return NOW - dt.timedelta(days=days)


def orders() -> list[dict[str, Any]]:
    """60 documents, a day apart, by age: the first 30 are hot."""
    return [
        {
            "_id": n,
            "t": age(n),
            "v": n,
            "k": f"key {n}",
            "name": f"Name {n % 7}",
            "product": n % 10,
            "place": [n / 10, n / 10],
            "tags": [n % 3, n % 5],
        }
        for n in range(60)
    ]


def products() -> list[dict[str, Any]]:
    """Ten documents of a small collection that is kept whole."""
    return [{"_id": n, "title": f"Product {n}", "parent": n // 2} for n in range(10)]


@dataclass(frozen=True)
class World:
    """``oracle`` is a database of the archive, reached directly, with the same documents."""

    thermocline: Thermocline
    client: MongoClient[dict[str, Any]]
    direct: MongoClient[dict[str, Any]]
    fast: MongoClient[dict[str, Any]]

    @property
    def shop(self) -> Any:
        """The tiered database, through the proxy."""
        return self.client.shop

    @property
    def oracle(self) -> Any:
        """The same documents in one plain MongoDB."""
        return self.direct.oracle

    def routes(self) -> dict[str, dict[str, int]]:
        """The proxy's counts, by tier and reason."""
        found: dict[str, dict[str, int]] = self.thermocline.services["proxy"].status()["proxy"][
            "routes"
        ]
        return found


def fill(database: Any) -> None:
    """The collections with their indexes."""
    database.orders.create_index("t")
    database.orders.create_index("k", unique=True, sparse=True)
    database.orders.create_index([("place", "2d")])
    database.orders.create_index(
        "name", name="old_names", partialFilterExpression={"v": {"$gte": 50}}
    )
    database.orders.insert_many(orders())
    database.products.insert_many(products())
    database.strict.create_index("t")
    database.strict.insert_many(
        [{"_id": "old", "t": age(50)}, {"_id": "other", "t": age(51)}, {"_id": "hot", "t": age(1)}]
    )
    database.command(
        "collMod", "strict", validator={"price": {"$type": "number"}}, validationLevel="strict"
    )


@pytest.fixture(scope="module")
def world(mongod_binary: str) -> Iterator[World]:
    """Warm, with documents 30 to 59 of ``shop.orders`` in the archive alone."""
    collections = [
        {"namespace": "shop.orders", "ageField": "t", "maxAge": "30d"},
        {"namespace": "shop.strict", "ageField": "t", "maxAge": "30d"},
        {"namespace": "shop.products", "keep": "All"},
    ]
    with ReplicaSet("fast") as fast, ReplicaSet("archive") as archive:
        with archive.client() as client:
            fill(client.shop)
            fill(client.oracle)
            client.shop.plain.insert_many(orders())
            client.oracle.plain.insert_many(orders())
        thermocline = Thermocline(fast, archive, collections, lease="2s")
        with thermocline, thermocline.logs_on_failure():
            thermocline.wait_state("Active")

            def warm() -> bool:
                found = [
                    thermocline.coverage(namespace) or {} for namespace in thermocline.namespaces
                ]
                return all("floor" in c or c.get("complete") for c in found)

            wait_until("warm", warm, 60, 0.2)
            with (
                thermocline.client() as through,
                archive.client() as direct,
                fast.client() as fast_client,
            ):
                yield World(thermocline, through, direct, fast_client)
