"""Writers are slowed down, and held in the end, while the feeder is frozen; nothing is lost."""

import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pymongo import WriteConcern
from pymongo.errors import ExecutionTimeout, OperationFailure

from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline
from thermocline_common.oplog_window import SLOW_FROM

pytestmark = pytest.mark.integration
NS = "shop.orders"
POLICY = {"namespace": NS, "keep": "All"}
OPLOG_BYTES = 8_000_000
ENVIRONMENT = {"THERMOCLINE_TEST_OPLOG_BYTES": str(OPLOG_BYTES)}


def fill(replica_set: ReplicaSet, share: float) -> None:
    """Use a share of the pretended oplog up, beside Thermocline."""
    with replica_set.client() as client:
        notes = client.get_database("elsewhere", write_concern=WriteConcern("majority"))
        for _ in range(20):
            notes.notes.insert_one({"x": os.urandom(int(OPLOG_BYTES * share / 20))})


def test_writers_wait_for_a_frozen_feeder(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet, tmp_path: Path
) -> None:
    system = Thermocline(
        secure_fast,
        secure_archive,
        [POLICY],
        spec={"proxy": {"lease": "3s", "barrierTimeout": "30s"}},
        environment=ENVIRONMENT,
        directory=tmp_path,
    )
    proxy, feeder = system.services["proxy"], system.services["feeder"]

    def pressure() -> dict[str, Any]:
        found: dict[str, Any] = proxy.status().get("proxy", {}).get("writePressure", {})
        return found

    def behind(size: int) -> bool:
        return bool(pressure()["behindBytes"] >= size)

    def patience(barrier_timeout: str) -> None:
        """How long writes are held."""
        system.manifest.change(proxy={"lease": "3s", "barrierTimeout": barrier_timeout})
        wanted = system.manifest.generation
        wait_until("applied", lambda: proxy.status()["appliedGeneration"] == wanted)

    system.start(only=("feeder", "proxy"))
    acknowledged: list[Any] = []
    try:
        system.wait_state("Active")
        with system.client(retryWrites=False) as client, system.logs_on_failure():
            orders = client.shop.orders

            def write(_id: Any, size: int = 100) -> None:
                orders.insert_one({"_id": _id, "x": os.urandom(size)})
                acknowledged.append(_id)

            write("before")
            wait_until("measured", lambda: pressure().get("windowUsed") is not None)
            assert pressure()["brake"] == "free"
            assert "window" not in proxy.status()["problems"]
            # Feeder frozen: the share grows with what is written, and writes get slower and slower.
            feeder.process.pause()
            delays = []
            for step in range(1, 20):
                for n in range(10):
                    write(f"slowed {step} {n}", 60_000)
                wait_until("measured", partial(behind, step * 600_000))
                delays.append(pressure()["delaySeconds"])
                if delays[-1] > 0.02:
                    break
            assert delays[0] == 0
            assert delays[-1] > 0.02
            assert delays == sorted(delays)
            shown = pressure()
            assert shown["brake"] == "slowed"
            assert shown["windowUsed"] > SLOW_FROM
            began = time.monotonic()
            write("slow")
            assert time.monotonic() - began > 0.02
            assert "slowed down" in proxy.status()["problems"]["window"]
            assert "thermocline_proxy_oplog_window_used 0." in proxy.metrics()
            assert orders.find_one({"_id": "slow"}) is not None  # reads don't wait
            # The end of the window: held, then refused; transactions too, as something to repeat.
            fill(secure_fast, 0.6)
            wait_until("held", lambda: pressure()["brake"] == "held")
            patience("3s")
            with (
                system.client() as repeating,
                pytest.raises(OperationFailure, match="writes are held") as caught,
            ):
                repeating.shop.orders.insert_one({"_id": "refused"})
            assert caught.value.code == 262
            with pytest.raises(ExecutionTimeout):
                client.shop.command("insert", "orders", documents=[{"_id": "late"}], maxTimeMS=300)
            with client.start_session() as session:
                session.start_transaction()
                with pytest.raises(OperationFailure, match="writes are held") as caught:
                    orders.insert_one({"_id": "refused"}, session=session)
                assert caught.value.has_error_label("TransientTransactionError")
                session.abort_transaction()
            # The feeder comes back while a writer is held: it goes on by itself.
            held = threading.Thread(target=write, args=("held",))
            held.start()
            wait_until("one waits", lambda: pressure()["waiting"] == 1)
            feeder.process.resume()
            held.join(30)
            assert not held.is_alive()
            wait_until("free again", lambda: pressure()["brake"] == "free")
            wait_until("solved", lambda: "window" not in proxy.status()["problems"])
            assert pressure()["delaySeconds"] == 0
            assert pressure()["refusedTotal"] == 3  # the driver sent the first one twice
            write("after")
            system.wait_applied()
            with secure_archive.client() as archive:
                found = {d["_id"] for d in archive.shop.orders.find({}, {"_id": 1})}
            assert found == set(acknowledged)
            assert feeder.status()["feeder"]["resyncs"] == 0
    finally:
        feeder.process.resume()
        system.stop()
