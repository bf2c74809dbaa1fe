"""Writers wait on a clock of the test's own."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure

from thermocline_common.errors import CommandError
from thermocline_common.health import Problems
from thermocline_common.oplog_window import Brake, Look, Window
from thermocline_proxy.back_pressure import BackPressure

LOOK = Look("p", Timestamp(2, 1), 0, 0, 100, Timestamp(1, 1))


class Bench:
    """A :class:`BackPressure` whose waits move the clock, and which may change what it sees meanwhile."""

    def __init__(self, used: float, *, gone: bool = False) -> None:
        self.now = 100.0
        self.error: Exception | None = None
        self.problems = Problems()
        self.used, self.gone = used, gone
        self.meanwhile: Callable[[], None] = lambda: None
        self.pressure = BackPressure(
            look=self._look,
            window=lambda *_: Window(int(self.used * 1_000), 1_000, 7, self.gone),
            checkpoint=self._checkpoint,
            wanted=lambda: True,
            problems=self.problems,
            clock=lambda: self.now,
        )

        async def wait(seconds: float) -> None:
            assert seconds > 0
            self.now += min(seconds, 0.25)
            self.meanwhile()
            await self.pressure.look()

        made: Any = self.pressure
        made._wait = wait

    async def _look(self) -> Look:
        if self.error is not None:
            raise self.error
        return LOOK

    async def _checkpoint(self) -> Timestamp:
        return Timestamp(1, 1)

    async def admit(self, *, size: int = 100, deadline: float | None = None) -> float:
        await self.pressure.look()
        started = self.now
        await self.pressure.admit(size, deadline, 10.0)
        return self.now - started

    @property
    def said(self) -> str:
        return self.problems.current.get("window", "")


@pytest.mark.parametrize(
    ("used", "expected"), [(0.0, 0.0), (0.2, 0.0), (0.25, 0.001), (0.5, 0.032), (0.75, 1.024)]
)
async def test_a_write_waits_its_time(used: float, expected: float) -> None:
    bench = Bench(used)
    assert await bench.admit() == pytest.approx(expected)
    assert bool(bench.said) is (used >= 0.25)
    assert bench.pressure.status()["slowedTotal"] == (1 if expected else 0)
    assert bench.pressure.status()["delaySeconds"] == pytest.approx(expected)


async def test_a_wait_ends_early_when_replay_catches_up() -> None:
    bench = Bench(0.8)

    def catch_up() -> None:
        bench.used = 0.1

    bench.meanwhile = catch_up
    assert await bench.admit() == pytest.approx(0.25)
    assert not bench.said


async def test_the_last_room_is_held_and_then_refused() -> None:
    bench = Bench(0.95)
    with pytest.raises(CommandError) as caught:
        await bench.admit()
    assert caught.value.code == 262
    assert "feeder" in str(caught.value)
    assert bench.now == pytest.approx(110.0)
    assert bench.pressure.status()["refusedTotal"] == 1
    assert bench.pressure.status()["waiting"] == 0
    assert "held" in bench.said


async def test_a_held_write_goes_on_when_there_is_room_again() -> None:
    bench = Bench(0.95)

    def catch_up() -> None:
        bench.used = 0.95 if bench.now < 103 else 0.2

    bench.meanwhile = catch_up
    assert await bench.admit() == pytest.approx(3.0)
    assert bench.pressure.refused == 0


@pytest.mark.parametrize("used", [0.8, 0.95])
async def test_max_time_ms_ends_a_wait(used: float) -> None:
    bench = Bench(used)
    with pytest.raises(CommandError) as caught:
        await bench.admit(deadline=100.5)
    assert caught.value.code == 50
    assert bench.now == pytest.approx(100.5)


async def test_an_oplog_that_is_gone_holds_nobody() -> None:
    bench = Bench(1.2, gone=True)
    assert await bench.admit() == 0
    assert bench.pressure.brake is Brake.GONE
    assert "nothing is lost" in bench.said


async def test_a_failed_look_changes_nothing() -> None:
    bench = Bench(0.5)
    await bench.pressure.look()
    bench.error = AutoReconnect("away")
    await bench.pressure.look()
    assert bench.pressure.brake is Brake.SLOWED


async def test_a_missing_privilege_is_said_and_slows_nobody() -> None:
    bench = Bench(0.95)
    bench.error = OperationFailure("not authorized", 13, {"errmsg": "not authorized on local"})
    assert await bench.admit() == 0
    assert "collStats" in bench.said
    bench.error = None
    await bench.pressure.look()
    assert "held" in bench.said


async def test_news_wake_those_who_wait() -> None:
    bench = Bench(0.95)
    made: Any = bench.pressure
    await bench.pressure.look()
    waiting = asyncio.create_task(BackPressure._wait(made, 60.0))
    await asyncio.sleep(0)
    await bench.pressure.look()
    await asyncio.wait_for(waiting, 5)
