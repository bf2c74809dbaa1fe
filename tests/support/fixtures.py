"""Pytest fixtures: pairs of replica sets, with and without logins."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from pymongo.errors import OperationFailure

from support import accounts
from support.binaries import NoMongodError, find_mongod
from support.mongod import ReplicaSet

FAST_KEY: Final = "ZmFzdC10aWVyLWtleWZpbGU="
ARCHIVE_KEY: Final = "YXJjaGl2ZS1rZXlmaWxl"
CLOCK_AHEAD_SECONDS: Final = 1_000

_SYSTEM_DATABASES = frozenset({"admin", "config", "local"})


def wipe(replica_set: ReplicaSet) -> None:
    """End every session; drop every database but the server's own, and every user but the root user."""
    if replica_set.keyfile:
        accounts.drop_users(replica_set)
    with replica_set.client() as client:
        # A cursor or transaction that an earlier test left would hold up evictions, or the drops.
        with contextlib.suppress(OperationFailure):
            client.admin.command("killAllSessions", [])
        for name in client.list_database_names():
            if name not in _SYSTEM_DATABASES:
                client.drop_database(name)


@pytest.fixture(scope="session")
def mongod_binary() -> str:
    """Skips, loudly, where no mongod can run; CI must have one."""
    try:
        return str(find_mongod())
    except NoMongodError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(f"no mongod: {error}")


@pytest.fixture(scope="session")
def _plain_sets(mongod_binary: str) -> Iterator[tuple[ReplicaSet, ReplicaSet]]:
    with ReplicaSet("fast") as fast, ReplicaSet("archive") as archive:
        yield fast, archive


@pytest.fixture(scope="session")
def _secure_sets(mongod_binary: str) -> Iterator[tuple[ReplicaSet, ReplicaSet]]:
    with (
        ReplicaSet("fast", keyfile=FAST_KEY) as fast,
        ReplicaSet("archive", keyfile=ARCHIVE_KEY) as archive,
    ):
        archive.push_clock(CLOCK_AHEAD_SECONDS)
        yield fast, archive


@pytest.fixture
def fast(_plain_sets: tuple[ReplicaSet, ReplicaSet]) -> ReplicaSet:
    """A fast tier without logins, one member, emptied before the test. Don't stop it."""
    wipe(_plain_sets[0])
    return _plain_sets[0]


@pytest.fixture
def archive(_plain_sets: tuple[ReplicaSet, ReplicaSet]) -> ReplicaSet:
    """An archive without logins, one member, emptied before the test. Don't stop it."""
    wipe(_plain_sets[1])
    return _plain_sets[1]


@pytest.fixture
def secure_fast(_secure_sets: tuple[ReplicaSet, ReplicaSet]) -> ReplicaSet:
    """A fast tier with logins (its own keyfile), emptied before the test."""
    wipe(_secure_sets[0])
    return _secure_sets[0]


@pytest.fixture
def secure_archive(_secure_sets: tuple[ReplicaSet, ReplicaSet]) -> ReplicaSet:
    """An archive with logins (another keyfile) and its clock 1,000 s ahead, emptied before the test."""
    fast, archive = _secure_sets
    wipe(archive)
    # A clock that was pushed stands still until the wall clock has caught up: push it again.
    if _cluster_time(archive) - _cluster_time(fast) < CLOCK_AHEAD_SECONDS - 100:
        archive.push_clock(CLOCK_AHEAD_SECONDS - (_cluster_time(archive) - _cluster_time(fast)))
    return archive


def _cluster_time(replica_set: ReplicaSet) -> int:
    with replica_set.client() as client:
        return int(client.admin.command("ping")["operationTime"].time)


@pytest.fixture
def make_replica_set(mongod_binary: str) -> Iterator[Callable[..., ReplicaSet]]:
    """``make_replica_set("name", members=3, ...)``: a set of the test's own, started; for tests that
    kill, freeze or reconfigure. Arguments as of :class:`ReplicaSet`."""
    with contextlib.ExitStack() as stack:

        def make(name: str, *arguments: Any, **options: Any) -> ReplicaSet:
            return stack.enter_context(ReplicaSet(name, *arguments, **options))

        yield make


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say by name what this machine lacked: a skip must not pass for a success."""
    skipped = terminalreporter.getreports("skipped")
    if not skipped:
        return
    terminalreporter.section("not run on this machine")
    names: dict[str, list[str]] = {}
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        names.setdefault(reason.removeprefix("Skipped: "), []).append(report.nodeid)
    for reason, tests in names.items():
        terminalreporter.line(f"{reason}\n  " + "\n  ".join(tests))
