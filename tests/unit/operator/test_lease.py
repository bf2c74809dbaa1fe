"""The Lease: who holds it, who waits, and who ends, with an API server that fails in every way."""

import asyncio
from typing import Any

import pytest

from support.fake_kubernetes import FakeApi, FakeKubernetes
from thermocline_operator.api import ApiError
from thermocline_operator.lease import LeaderLease, LeaseLost


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sleeping moves it at once, everything else takes no time."""
    found = Clock()
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        found.now += seconds
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


@pytest.fixture
def server() -> FakeKubernetes:
    return FakeKubernetes()


async def until(clock: Clock, now: float) -> None:
    """Let others run, whose sleeping moves the clock."""
    for _ in range(10_000):
        if clock.now >= now:
            return
        await asyncio.sleep(0)
    raise AssertionError("nobody sleeps")


def lease(server: FakeKubernetes, identity: str, clock: Clock) -> LeaderLease:
    return LeaderLease(FakeApi(server), "ops", "thermocline-operator", identity, clock=clock)


def spec(server: FakeKubernetes) -> dict[str, Any]:
    return dict(server.objects["leases", "ops", "thermocline-operator"]["spec"])


async def test_the_first_one_gets_it_and_keeps_it(server: FakeKubernetes, clock: Clock) -> None:
    first = lease(server, "first", clock)
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    await until(clock, 1_100)
    assert not keeping.done()
    keeping.cancel()
    assert spec(server)["holderIdentity"] == "first"
    assert spec(server)["leaseTransitions"] == 0
    assert spec(server)["renewTime"].endswith("Z")


async def test_another_waits_its_whole_duration_by_its_own_clock(
    server: FakeKubernetes, clock: Clock
) -> None:
    await lease(server, "first", clock).acquire()
    # What the holder wrote into it counts for nothing: its clock may be wrong by hours.
    server.objects["leases", "ops", "thermocline-operator"]["spec"]["renewTime"] = "2001-01-01"
    began = clock.now
    second = lease(server, "second", clock)
    await second.acquire()
    assert 30 <= clock.now - began < 40
    assert spec(server)["holderIdentity"] == "second"
    assert spec(server)["leaseTransitions"] == 1


async def test_a_lease_that_was_given_back_is_taken_at_once(
    server: FakeKubernetes, clock: Clock
) -> None:
    first = lease(server, "first", clock)
    await first.acquire()
    await first.release()
    began = clock.now
    await lease(server, "second", clock).acquire()
    assert clock.now == began


async def test_errors_are_waited_out_before_it_is_held(
    server: FakeKubernetes, clock: Clock
) -> None:
    def refuse(method: str, path: str) -> None:
        if clock.now < 1_050:
            raise ApiError(403, "Forbidden", path)

    server.fault = refuse
    await lease(server, "first", clock).acquire()
    assert clock.now >= 1_050


@pytest.mark.parametrize("status", [0, 403, 409, 429, 500])
async def test_who_cant_renew_in_time_ends_before_anybody_takes_over(
    server: FakeKubernetes, clock: Clock, status: int
) -> None:
    first = lease(server, "first", clock)
    await first.acquire()
    renewed = clock.now

    def refuse(method: str, path: str) -> None:
        if method != "GET":
            raise ApiError(status, "Fault", path)

    server.fault = refuse
    with pytest.raises(LeaseLost):
        await first.keep()
    assert 20 <= clock.now - renewed < 30
    assert not first.held


async def test_a_short_outage_is_survived(server: FakeKubernetes, clock: Clock) -> None:
    first = lease(server, "first", clock)
    await first.acquire()

    def refuse(method: str, path: str) -> None:
        if 1_010 < clock.now < 1_022:
            raise ApiError(0, "NoAnswer", path)

    server.fault = refuse
    keeping = asyncio.create_task(first.keep())
    await until(clock, 1_100)
    assert not keeping.done()
    keeping.cancel()


async def test_an_answer_that_got_lost_is_no_other_holder(
    server: FakeKubernetes, clock: Clock
) -> None:
    first = lease(server, "first", clock)
    await first.acquire()
    lost = 0

    def lose(method: str, path: str) -> None:
        nonlocal lost
        if method == "PUT" and lost < 1:
            lost += 1
            raise ApiError(0, "NoAnswer", path)

    server.late = lose
    keeping = asyncio.create_task(first.keep())
    await until(clock, 1_100)
    assert lost == 1
    assert not keeping.done()
    keeping.cancel()


async def test_a_lease_that_somebody_deleted_is_made_anew(
    server: FakeKubernetes, clock: Clock
) -> None:
    first = lease(server, "first", clock)
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    await until(clock, 1_020)
    del server.objects["leases", "ops", "thermocline-operator"]
    await until(clock, 1_100)
    assert not keeping.done()
    assert spec(server)["holderIdentity"] == "first"
    keeping.cancel()


async def test_who_was_frozen_ends_where_another_has_taken_over(
    server: FakeKubernetes, clock: Clock
) -> None:
    first = lease(server, "first", clock)
    await first.acquire()
    clock.now += 60
    await lease(server, "second", clock).acquire()
    with pytest.raises(LeaseLost, match="second"):
        await first.keep()


async def test_two_that_begin_together_are_one(server: FakeKubernetes, clock: Clock) -> None:
    both = [lease(server, name, clock) for name in ("a", "b")]
    tasks = [asyncio.create_task(one.acquire()) for one in both]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert sum(one.held for one in both) == 1
    for task in tasks:
        task.cancel()


class Frozen(FakeApi):
    """Answers nothing from the moment that it is told to."""

    frozen = False

    async def _request(self, *words: Any, **named: Any) -> dict[str, Any]:
        if self.frozen:
            await asyncio.Event().wait()
        return await super()._request(*words, **named)


async def test_a_frozen_api_server_ends_it_in_time(server: FakeKubernetes) -> None:
    api = Frozen(server)
    first = LeaderLease(api, "ops", "l", "first", duration=5, deadline=0.4, renew=0.05)
    await first.acquire()
    api.frozen = True
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(first.keep(), 4)
