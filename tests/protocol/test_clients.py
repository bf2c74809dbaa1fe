"""Clients that people use give the same answers through the proxy as on a plain mongod.

The collection of each is tiered by age, and half of its documents are in the archive alone.
"""

import datetime as dt
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from support.clients import Client, MissingError, node_client, python_client, run
from support.haste import HASTE
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CLIENTS: dict[str, Callable[[], Client]] = {
    "pymongo": lambda: python_client("sync_pymongo.py"),
    "asyncio": lambda: python_client("async_pymongo.py"),
    "motor": lambda: python_client("on_motor.py"),
    "mongoengine": lambda: python_client("on_mongoengine.py"),
    "node": lambda: node_client("node_driver.js"),
    "mongoose": lambda: node_client("on_mongoose.js", "mongoose"),
    "mongosh": lambda: node_client("shell.mongosh.js", "mongosh"),
}
COLLECTIONS = (*CLIENTS, "dumped")


@dataclass(frozen=True, slots=True)
class World:
    """A plain mongod, and a proxy, with the same documents."""

    plain: ReplicaSet
    thermocline: Thermocline


def seed(client: MongoClient[dict[str, Any]]) -> None:
    now = dt.datetime.now(dt.UTC)
    ages = (dt.timedelta(days=400), dt.timedelta(days=2))  # cold where the number is even
    for name in COLLECTIONS:
        items = client["clients"][name]
        items.create_index("at")
        items.insert_many(
            [{"_id": n, "kind": "abc"[n % 3], "n": n, "at": now - ages[n % 2]} for n in range(20)]
        )


@pytest.fixture(scope="module")
def world(mongod_binary: str) -> Iterator[World]:
    with (
        ReplicaSet("plain") as plain,
        ReplicaSet("fast") as fast,
        ReplicaSet("archive") as archive,
    ):
        for replica_set in (plain, archive):
            with replica_set.client() as client:
                seed(client)
        policies = [
            {"namespace": f"clients.{name}", "ageField": "at", "maxAge": "30d"}
            for name in COLLECTIONS
        ]
        thermocline = Thermocline(fast, archive, policies, environment=HASTE)
        with thermocline.logs_on_failure():
            try:
                thermocline.start(only=("feeder", "proxy", "warmer"))
                thermocline.wait_state("Active")
                with fast.client() as client:
                    for name in COLLECTIONS:
                        wait_until(f"{name} is warm", partial(_is_hot, client, name), 90)
                yield World(plain, thermocline)
            finally:
                thermocline.stop()


def _is_hot(fast: MongoClient[dict[str, Any]], name: str) -> bool:
    return fast["clients"][name].count_documents({}) == 10


@pytest.mark.parametrize("name", CLIENTS)
def test_answers(name: str, world: World) -> None:
    try:
        client = CLIENTS[name]()
    except MissingError as error:
        pytest.skip(f"{name}: {error}")
    expected = run(client, world.plain.uri, name)
    assert len(expected) > 10
    assert run(client, world.thermocline.uri(), name) == expected


def test_dump_and_restore(world: World, tmp_path: Path) -> None:
    """What mongodump takes from the proxy is whole, and mongorestore brings it back through the proxy."""
    dump, restore = shutil.which("mongodump"), shutil.which("mongorestore")
    if not (dump and restore):
        pytest.skip("no mongodump and mongorestore on this machine")
    uri = world.thermocline.uri()
    with world.thermocline.client() as client:
        items = client["clients"]["dumped"]
        before = list(items.find().sort("_id"))
        asked = [dump, f"--uri={uri}", "--db=clients", "--collection=dumped", f"--out={tmp_path}"]
        subprocess.run(asked, check=True, timeout=120)
        items.delete_many({"_id": {"$lt": 15}})
        subprocess.run([restore, f"--uri={uri}", str(tmp_path)], check=True, timeout=120)
        assert len(before) == 20
        assert list(items.find().sort("_id")) == before
