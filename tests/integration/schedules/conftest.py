"""Two replica sets of the schedules' own, which journal at once: most steps wait for a majority."""

from collections.abc import Iterator

import pytest

from support.fixtures import wipe
from support.mongod import ReplicaSet
from support.schedules.world import JOURNAL_AT_ONCE

Sets = tuple[ReplicaSet, ReplicaSet]


@pytest.fixture(scope="session")
def _quick_sets(mongod_binary: str) -> Iterator[Sets]:
    with (
        ReplicaSet("fast", extra=JOURNAL_AT_ONCE) as fast,
        ReplicaSet("archive", extra=JOURNAL_AT_ONCE) as archive,
    ):
        yield fast, archive


@pytest.fixture
def quick_sets(_quick_sets: Sets) -> Sets:
    """A fast tier and an archive, emptied before the test."""
    for replica_set in _quick_sets:
        wipe(replica_set)
    return _quick_sets
