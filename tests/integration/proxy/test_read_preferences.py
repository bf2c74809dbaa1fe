"""Reads by preference through a real proxy: three members with tags, its own zone, and what it says of them."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import MongoClient, WriteConcern
from pymongo.errors import OperationFailure
from typer.testing import CliRunner

from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline
from thermocline_cli.__main__ import app

pytestmark = pytest.mark.integration
TAGS = ("west", "east", "north")
OPTIONS = [{"tags": {"dc": dc}, "priority": int(dc == "west")} for dc in TAGS]
OLD = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def members(make_replica_set: Callable[..., ReplicaSet]) -> ReplicaSet:
    """The first is the primary."""
    made = make_replica_set("archive", members=3, member_options=OPTIONS)
    with made.client() as client:
        database = client.get_database("shop", write_concern=WriteConcern(3))
        database.orders.create_index("createdAt")
        database.orders.insert_one({"_id": 1, "createdAt": OLD})
        database.plain.insert_one({"_id": 1})
    return made


def test_members_are_chosen_counted_and_explained(fast: ReplicaSet, members: ReplicaSet) -> None:
    west, east, north = (member.address for member in members.members)
    orders = {"namespace": "shop.orders", "ageField": "createdAt", "maxAge": "30d"}
    archive = {"uri": f"{members.uri}&localThresholdMS=60000"}
    thermocline = Thermocline(
        fast,
        members,
        [orders],
        spec={
            "archive": archive,
            "proxy": {"lease": "500ms", "drainTimeout": "2s", "locality": {"tag": "dc"}},
        },
        environment={"THERMOCLINE_ZONE": "east"},
    )
    proxy = thermocline.services["proxy"]

    def reads() -> dict[tuple[str, str, str], int]:
        found = proxy.status()["proxy"]["reads"]
        return {
            (one["member"], one["preference"], one["reason"]): one["count"]
            for one in found
            if one["tier"] == "archive"
        }

    def read(collection: str, options: str = "", **query: Any) -> dict[tuple[str, str, str], int]:
        """Read once; whom that was counted for."""
        before = reads()
        with MongoClient[dict[str, Any]](thermocline.uri() + options) as client:
            assert client.shop[collection].find_one(query) is not None
        after = reads()
        more = {key: count - before.get(key, 0) for key, count in after.items()}
        return {key: count for key, count in more.items() if count}

    with thermocline.logs_on_failure():
        try:
            thermocline.start(only=("feeder", "proxy"))
            thermocline.wait_state("Active")
            wait_until(
                "members", lambda: len(proxy.status()["proxy"]["members"]["archive"]["known"]) == 3
            )
            # An untiered collection on the short path, a tiered one behind the barrier.
            for collection, query in (("plain", {}), ("orders", {"createdAt": OLD})):
                for options, expected in (
                    ("", (west, "primary", "primary")),
                    ("?readPreference=nearest", (east, "nearest", "own-zone")),
                    ("?readPreference=secondaryPreferred&readPreferenceTags=dc:north",
                     (north, "secondaryPreferred", "tags")),
                    ("?readPreference=secondaryPreferred&readPreferenceTags=dc:nowhere",
                     (west, "secondaryPreferred", "fallback")),
                ):  # fmt: skip
                    assert read(collection, options, **query) == {expected: 1}, (collection, query)
            with MongoClient[dict[str, Any]](
                thermocline.uri() + "?readPreference=secondary&readPreferenceTags=dc:nowhere"
            ) as client, pytest.raises(OperationFailure) as caught:  # fmt: skip
                client.shop.plain.find_one(max_time_ms=500)
            assert caught.value.code == 50
            metrics = proxy.metrics()
            labels = f'member="{east}",preference="nearest",reason="own-zone",tier="archive"'
            assert f"thermocline_proxy_read_seconds_count{{{labels}}}" in metrics
            shares = [
                one["share"] for one in proxy.status()["proxy"]["reads"] if one["tier"] == "archive"
            ]
            assert sum(shares) == pytest.approx(1, abs=0.01)
            # The tier's own preference, from its URI; changes of it need no restart.
            assert "topology" not in proxy.status()["problems"]
            preferred = "&readPreference=secondaryPreferred&readPreferenceTags=dc:nowhere"
            thermocline.manifest.change(archive={"uri": archive["uri"] + preferred})
            wait_until("topology", lambda: "topology" in proxy.status()["problems"], 20, 0.1)
            problem = proxy.status()["problems"]["topology"]
            assert (
                'spec.archive.readPreferenceTags: no member matches the tag set { dc: "nowhere" }'
                in problem
            )
            assert f'{north} {{ dc: "north" }}' in problem
            assert read("plain") == {(west, "secondaryPreferred", "fallback"): 1}
            command = [
                "explain",
                str(thermocline.manifest.path),
                "-c",
                '{"find": "orders"}',
                "--members",
            ]
            told = CliRunner().invoke(app, command).output
            assert f"{west} (fallback" in told
            assert "TopologySatisfiable is False" in told
            preferred = "&readPreference=nearest&readPreferenceTags=dc:north&readPreferenceTags="
            thermocline.manifest.change(archive={"uri": archive["uri"] + preferred})
            wait_until("topology", lambda: "topology" not in proxy.status()["problems"], 20, 0.1)
            assert read("orders", createdAt=OLD) == {(north, "nearest", "tags"): 1}
            assert f"{north} (tags" in CliRunner().invoke(app, command).output
            assert "restart" not in proxy.status()["problems"]
        finally:
            thermocline.stop()
