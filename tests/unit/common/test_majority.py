"""No coordination write counts as done while no majority has it: invariant 8, for every component."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from thermocline_common import barrier, coverage_store, schema_requests
from thermocline_common.coverage import Coverage, State
from thermocline_common.ids import INT32, DocId
from thermocline_common.leases import UNPUBLISHED
from thermocline_common.tiers import Tiers
from thermocline_evictor import records
from thermocline_feeder import catalog, checkpoint, switch
from thermocline_feeder.lease import LeasePublisher
from thermocline_feeder.moves import Moves
from thermocline_feeder.plan.states import Wanted

SEEN = Coverage("a.b", State.PASSTHROUGH, State.PASSTHROUGH, age_field="t")
ME = uuid.uuid4()
ID = DocId.of_value(INT32, b"\1\0\0\0")
OWNER = checkpoint.Owner("n", "r", "u", 1, 2)


@dataclass
class Server:
    """A client, database and collection at once that answers every command as if nobody followed."""

    confirmed: bool

    def __getitem__(self, _name: str) -> "Server":
        return self

    def get_database(self, *_: Any, **__: Any) -> "Server":
        return self

    @property
    def admin(self) -> "Server":
        return self

    async def command(self, _command: Any, **_: Any) -> dict[str, Any]:
        reply: dict[str, Any] = {"ok": 1.0, "n": 1, "operationTime": Timestamp(1, 1)}
        reply |= {"opTime": {"ts": Timestamp(1, 1)}, "$clusterTime": {}}
        if not self.confirmed:
            concern = {"code": 64, "errmsg": "waiting for replication timed out"}
            reply["writeConcernError"] = concern
        return reply


def moves(tiers: Tiers) -> Moves:
    known = SimpleNamespace(forget=lambda _namespace: None)
    stage: Any = SimpleNamespace(tiers=tiers, owner=OWNER, epoch=uuid.uuid4, registry=known)
    return Moves(stage)


async def publish(tiers: Tiers) -> None:
    await LeasePublisher(tiers.archive, ME)._write(UNPUBLISHED, UNPUBLISHED)


WRITES: dict[str, Callable[[Tiers], Awaitable[Any]]] = {
    "marker": lambda t: barrier.write_marker(t, "barrier:x"),
    "floor": lambda t: coverage_store.raise_floor(t, SEEN, None),
    "archive time": lambda t: coverage_store.raise_archive_time(t, ["a.b"], Timestamp(5, 1), {}),
    "request": lambda t: schema_requests.ask(t, ["a.b"], ME, "drop"),
    "beat": lambda t: schema_requests.beat(t, ["a.b"], ME),
    "take back": lambda t: schema_requests.take_back(t, ["a.b"], ME),
    "grant": lambda t: schema_requests.grant(t, SEEN),
    "announcement": lambda t: records.announce(t, "a.b", [ID]),
    "checkpoint": lambda t: checkpoint.beat(t.archive, ME),
    "lease": publish,
    "look at the archive": lambda t: switch.archive_now(t.archive, "a.b"),
    "list": lambda t: moves(t).list_in_archive("a.b"),
    "unlist": lambda t: moves(t).unlist("a.b"),
    "coverage document": lambda t: moves(t).create("a.b", Wanted(True, "t")),
    "forget": lambda t: moves(t).forget(SEEN),
    "coordination collections": lambda t: catalog.create_missing(t.fast, ["removed"]),
    "indexes": lambda t: catalog.create_indexes(
        t.fast, "a.b", ME, [{"key": {"t": 1}, "name": "t"}]
    ),
    "drop": lambda t: catalog.drop(t.fast, "a.b", ME),
    "set aside": lambda t: catalog.set_aside(t.fast, "a.b", ME),
}


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_that_no_majority_confirmed_is_an_error(name: str) -> None:
    write = WRITES[name]
    sound: Any = Server(confirmed=True)
    await write(Tiers(sound, sound))
    unsound: Any = Server(confirmed=False)
    with pytest.raises(OperationFailure, match="replication timed out"):
        await write(Tiers(unsound, unsound))
