"""Waits for what runs on a tier to end, by repeated looks at ``$currentOp``."""

import asyncio
from collections.abc import Mapping
from typing import Any

import bson
from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.read_preferences import Nearest, _ServerMode

from thermocline_common.raw_reads import find_raw
from thermocline_common.tiers import PLAIN
from thermocline_feeder.plan.operations import cursors, transactions, writes

Client = AsyncMongoClient[dict[str, Any]]

QUIET_LOOKS = 5
"""One look can miss what runs; so many in a row must show nothing."""
LOOK_EVERY = 0.2


class Member(_ServerMode):
    """A read preference that selects one member by its address."""

    def __init__(self, address: tuple[str, int | None]) -> None:
        super().__init__(Nearest().mode)
        self._address = address

    def __call__(self, selection: Any) -> Any:
        """Only that member, if it is known."""
        chosen = [s for s in selection.server_descriptions if s.address == self._address]
        return selection.with_server_descriptions(chosen)


async def operations(
    client: Client, preference: _ServerMode | None = None
) -> list[Mapping[str, Any]]:
    """Everything that runs or idles on a member (the primary, unless ``preference`` says otherwise)."""
    # Every batch: what commands hold may fill more than one.
    found = find_raw(
        client,
        "admin",
        {
            "aggregate": 1,
            "pipeline": [
                {"$currentOp": {"allUsers": True, "idleSessions": True, "idleCursors": True, "idleConnections": False}},
                {
                    "$project": {
                        "type": 1, "ns": 1, "op": 1, "opid": 1, "active": 1, "command": 1, "lsid": 1,
                        "transaction.parameters": 1, "cursor.cursorId": 1, "cursor.tailable": 1,
                    }
                },
            ],
            "cursor": {"batchSize": 100_000},
        },
        read_preference=preference or ReadPreference.PRIMARY,
    )  # fmt: skip
    plain: CodecOptions[Any] = PLAIN
    return [bson.decode(operation.raw, plain) async for operation in found]


async def writes_ended(client: Client, namespace: str) -> None:
    """Wait until no write runs on the namespace and every transaction open at the beginning is over.

    To be called when no new ones can come. Waits without a limit of its own.
    """
    older: set[tuple[bytes, int]] = set()
    for _ in range(QUIET_LOOKS):
        older |= transactions(await operations(client))
        await asyncio.sleep(LOOK_EVERY / 4)
    quiet = 0
    while quiet < QUIET_LOOKS:
        seen = await operations(client)
        busy = writes(seen, namespace) or (older & transactions(seen))
        quiet = 0 if busy else quiet + 1
        await asyncio.sleep(LOOK_EVERY / 4 if not busy else LOOK_EVERY)


async def cursors_ended(client: Client, namespace: str, limit: float) -> bool:
    """Wait until no member holds a cursor on the namespace; False: some were still there after ``limit`` s."""
    try:
        async with asyncio.timeout(limit):
            for address in sorted(client.nodes, key=str):
                quiet = 0
                while quiet < QUIET_LOOKS:
                    busy = cursors(await operations(client, Member(address)), namespace)
                    quiet = 0 if busy else quiet + 1
                    await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        return False
    return True
