"""When a proxy compares the tiers' users by itself."""

import asyncio

from pymongo.errors import AutoReconnect

from thermocline_proxy.account_sync import CHANGES, PAUSE_SECONDS, AccountSync
from thermocline_proxy.commands.catalog import CATALOG, Kind


class Accounts:
    """Counts comparisons; each takes a moment."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.now = 0.0
        self.failing = False

    async def bring_over(self) -> None:
        self.begun.append(self.now)
        self.now += 0.25
        await asyncio.sleep(0)
        if self.failing:
            raise AutoReconnect("down")


def sync(accounts: Accounts, *, reachable: bool = True) -> AccountSync:
    return AccountSync(accounts, lambda: reachable, lambda: accounts.now)  # type: ignore[arg-type]


def test_commands_that_change_users_go_to_the_archive() -> None:
    assert {CATALOG[name].kind for name in CHANGES} == {Kind.ADMIN}
    others = {name for name in CATALOG if "Role" in name or "User" in name} - CHANGES
    assert others == {"invalidateUserCache", "_getUserCacheGeneration", "setUserWriteBlockMode"}


async def test_each_change_is_followed_by_a_comparison_that_began_after_it() -> None:
    accounts = Accounts()
    work = sync(accounts)
    await work.changed()
    accounts.now += 0.1
    await work.changed()
    assert len(accounts.begun) == 2


async def test_those_who_wait_share_one() -> None:
    accounts = Accounts()
    work = sync(accounts)
    await asyncio.gather(*(work.changed() for _ in range(20)))
    assert len(accounts.begun) <= 2


async def test_refusals_are_followed_at_intervals(monkeypatch: object) -> None:
    accounts = Accounts()
    work = sync(accounts)

    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        accounts.now += seconds
        await real(0)

    monkeypatch.setattr("thermocline_proxy.account_sync.asyncio.sleep", sleep)  # type: ignore[attr-defined]
    for _ in range(3):
        await work.refused()
        accounts.now += 0.01
    gaps = [b - a for a, b in zip(accounts.begun, accounts.begun[1:], strict=False)]
    assert all(gap >= PAUSE_SECONDS for gap in gaps)
    assert len(accounts.begun) == 3


async def test_a_tier_that_is_down_is_not_waited_for() -> None:
    accounts = Accounts()
    await sync(accounts, reachable=False).changed()
    assert not accounts.begun
    accounts.failing = True
    await sync(accounts).changed()
    assert len(accounts.begun) == 1
