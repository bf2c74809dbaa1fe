"""One tiered namespace beside a plain collection with the same documents: replies and contents must agree."""

import re
import uuid
from typing import Any

from bson.binary import Binary
from pymongo.errors import OperationFailure

from support.direct import PLAIN, DirectWorld, strip
from thermocline_proxy.writes import handle

PLACES = {
    1: ("hot", ("fast", "archive")),
    2: ("cold", ("archive",)),
    3: ("leaving", ("fast", "archive", "leaving")),
    4: ("deleted", ("archive", "deleted")),
    5: ("absent", ()),
    6: ("evicted", ("archive", "evicted")),
    7: ("fresh", ("fast",)),
    8: ("void record", ("fast", "archive", "deleted")),
}
EXISTING = (1, 2, 3, 6, 7, 8)


class Comparison:
    """The tiered namespace, and the same documents in a plain collection."""

    def __init__(self, world: DirectWorld) -> None:
        self.world = world
        self.plain = world.tiers.archive["plan"]["orders"]
        self.session = {"id": Binary(uuid.uuid4().bytes, 4)}
        self.number = 0

    async def fill(self, **more: Any) -> None:
        """One document in every place, each with the fields ``more``."""
        for doc_id, (name, where) in PLACES.items():
            document = {"_id": doc_id, "n": doc_id, "tags": [1, 2], "place": name, **more}
            await self.world.place(document, *where)
            if doc_id in EXISTING:
                await self.plain.insert_one(dict(document))

    async def both(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run it on both; the replies must be equal. Returns the reply."""
        expected = await self._plain(command)
        got: dict[str, Any] = _renamed(await self.world.run(command, handle))
        assert _sorted(got) == _sorted(expected), f"{command}\n  got {got}\n  for {expected}"
        return got

    async def _plain(self, command: dict[str, Any]) -> dict[str, Any]:
        try:
            reply = await self.world.tiers.archive["plan"].command(command, codec_options=PLAIN)
        except OperationFailure as error:
            reply = dict(error.details or {})
        renamed: dict[str, Any] = _renamed(strip(reply))
        return renamed

    async def same_documents(self) -> None:
        expected = [d async for d in self.plain.find()]
        expected.sort(key=lambda d: (str(type(d["_id"])), repr(d["_id"])))
        assert await self.world.truth() == expected

    async def at_rest(self) -> None:
        """Once everything is replayed, the archive alone holds the truth."""
        await self.same_documents()
        await self.world.replay()
        archive = [d async for d in self.world.archive.find().sort("_id", 1)]
        assert archive == [d async for d in self.plain.find().sort("_id", 1)]


def _renamed(value: Any) -> Any:
    if isinstance(value, str):
        # The planner's errors show the filter, which may be a narrowed one.
        return re.sub(
            r"Tree: .*?\nSort", "Sort", value.replace("plan.orders", "shop.orders"), flags=re.S
        )
    if isinstance(value, dict):
        return {k: _renamed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_renamed(v) for v in value]
    return value


def _sorted(reply: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(reply.items()))
