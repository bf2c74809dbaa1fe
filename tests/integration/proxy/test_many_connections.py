"""Many connections, few of them active: see bench/connections.py for the real numbers."""

import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from support.crowd import Crowd, resident, take_descriptors
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline

pytestmark = pytest.mark.integration

CONNECTIONS = 500
ACTIVE = 40
MOST = 10
HELLO: dict[str, Any] = {"hello": 1, "client": {"driver": {"name": "crowd"}}, "$db": "admin"}
LIST: dict[str, Any] = {"find": "c", "batchSize": 2, "$db": "t"}
FIND: dict[str, Any] = {"find": "c", "filter": {"_id": 7}, "limit": 1, "$db": "t"}
COUNT: dict[str, Any] = {"count": "c", "query": {"n": 5}, "$db": "t"}


@pytest.fixture
def passthrough(fast: ReplicaSet, archive: ReplicaSet) -> Iterator[Thermocline]:
    thermocline = Thermocline(
        fast,
        archive,
        [],
        mode="Passthrough",
        spec={"proxy": {"lease": "2s", "maxUpstreamConnections": MOST, "drainTimeout": "2s"}},
        environment={"THERMOCLINE_TEST_VANISHED_SECONDS": "3"},
    )
    thermocline.start(only=("proxy",))
    try:
        with thermocline.logs_on_failure():
            yield thermocline
    finally:
        thermocline.stop()


async def test_all_get_on_over_few_connections(
    passthrough: Thermocline, archive: ReplicaSet
) -> None:
    take_descriptors()
    proxy = passthrough.services["proxy"]
    with archive.client() as direct:
        direct.t.c.insert_many([{"_id": n, "n": n % 10} for n in range(200)])

        def cursors() -> int:
            return int(direct.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"])

        def connections() -> int:
            """The proxy's for applications; its own say so."""
            found = direct.admin.aggregate([{"$currentOp": {"idleConnections": True}}])
            return len([o for o in found if o.get("appName") == "thermocline-proxy" and o.get("clientMetadata", {}).get("driver", {}).get("name") == "thermocline-proxy"])  # fmt: skip

        before = cursors()
        crowd = Crowd(passthrough.port)
        await crowd.grow(ACTIVE, [HELLO, LIST, FIND])
        await crowd.work(ACTIVE, 0.5, [FIND, LIST, COUNT])
        empty = resident(proxy.process.pid)
        await crowd.grow(CONNECTIONS, [HELLO, LIST])
        grown = resident(proxy.process.pid) - empty
        assert grown / (CONNECTIONS - ACTIVE) < 40 * 1024
        assert cursors() - before >= CONNECTIONS, "and each of them is open"
        assert 0 < connections() <= MOST
        done = await crowd.work(ACTIVE, 4.0, [FIND, LIST, COUNT])
        assert min(done) > 0.2 * statistics.median(done), sorted(done)
        status = proxy.status()["proxy"]
        assert status["connections"] == CONNECTIONS
        assert 0 < max(status["upstreamConnections"].values()) <= MOST
        assert connections() <= MOST
        await crowd.leave()
        wait_until("nothing is left", lambda: cursors() <= before, 60, 0.2)
