"""The stages of replay: how far one may be ahead of the next."""

import asyncio
from typing import Any, cast

from bson import encode
from bson.timestamp import Timestamp

from thermocline_feeder.applier import Prepared
from thermocline_feeder.plan.batches import Pace
from thermocline_feeder.plan.dirty import Batch, Change
from thermocline_feeder.replay import Replay


def change(number: int) -> Change:
    return Change(Timestamp(100, number), "shop.o", None, encode({"_id": number}))


class Applier:
    """Applies nothing before it is told to."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(0)
        self.applied: list[list[int]] = []

    async def apply(self, prepared: Prepared) -> None:
        await self.turns.acquire()
        self.applied.append(cast("Any", prepared.touched)["numbers"])


class Problems:
    """Of no interest here."""

    def clear(self, _: str) -> None:
        pass


class Stages(Replay):
    """Without servers: a batch's state is the numbers of its changes."""

    __slots__ = ()

    async def prepare(self, batch: Batch, *, most_bytes: int | None = None) -> Prepared:
        numbers = [change.time.inc for change in batch.changes]
        touched = cast("Any", {"numbers": numbers})
        return Prepared([], touched, {"time": batch.time}, cast("Any", None))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_only_one_batch_is_cut_ahead() -> None:
    """What comes while one is applied and one is ready shares the next, instead of queueing one by one."""
    applier = Applier()
    nothing: Any = None
    stages = Stages(
        nothing, nothing, nothing, nothing, cast("Any", applier), cast("Any", Problems()),
        asyncio.get_running_loop().time, nothing, nothing, nothing, nothing, nothing,
    )  # fmt: skip
    stages._pace = Pace(100)
    queue: asyncio.Queue[Prepared] = asyncio.Queue(1)
    tasks = [
        asyncio.create_task(stages._prepare_all(queue)),
        asyncio.create_task(stages._apply_all(queue)),
    ]
    for number in range(1, 6):
        stages._backlog.add([change(number)], caught_up=True)
        stages._news.set()
        await settle()
    for _ in range(3):
        applier.turns.release()
        await settle()
    assert applier.applied == [[1], [2], [3, 4, 5]]
    assert stages.time == Timestamp(100, 5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
