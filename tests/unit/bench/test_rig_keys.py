"""Which documents the workloads want."""

import random

import pytest

from rig.keys import Choice, Concentrated, Newest, Uniform
from rig.workloads import WORKLOADS, Kind

PICKS = 20_000


def shares(choice: Choice, top: int, newest: float) -> float:
    dice = random.Random(1)
    edge = top - int(top * newest)
    return sum(choice.pick(dice, top) >= edge for _ in range(PICKS)) / PICKS


@pytest.mark.parametrize("choice", [Uniform(), Concentrated(0.09, 0.99), Newest()], ids=str)
@pytest.mark.parametrize("top", [1, 2, 10, 1_000_000])
def test_picks_are_documents(choice: Choice, top: int) -> None:
    dice = random.Random(2)
    assert all(0 <= choice.pick(dice, top) < top for _ in range(2_000))


@pytest.mark.parametrize(
    ("choice", "newest", "share"),
    [
        (Uniform(), 0.09, 0.09),
        (Concentrated(0.09, 0.99), 0.09, 0.99),
        (Concentrated(0.09, 0.99), 0.045, 0.495),
        (Newest(), 0.09, 0.82),  # of YCSB's `latest` over a million
        (Newest(), 1e-6, 0.05),
    ],
)
def test_share_of_the_newest(choice: Choice, newest: float, share: float) -> None:
    assert shares(choice, 1_000_000, newest) == pytest.approx(share, abs=0.02)


def test_the_same_seed_gives_the_same_picks() -> None:
    runs = [[Newest().pick(random.Random(3), 1_000) for _ in range(5)] for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", WORKLOADS)
def test_kinds_come_in_their_shares(name: str) -> None:
    workload = WORKLOADS[name]
    assert workload.reads + workload.updates + workload.inserts == pytest.approx(1)
    dice = random.Random(4)
    kinds = [workload.kind(dice) for _ in range(PICKS)]
    for kind, share in (
        (Kind.READ, workload.reads),
        (Kind.UPDATE, workload.updates),
        (Kind.INSERT, workload.inserts),
    ):
        assert kinds.count(kind) / PICKS == pytest.approx(share, abs=0.02)
