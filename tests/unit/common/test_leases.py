"""How long proxies may rest on coordination data, and who waits how long."""

import itertools
from typing import Any

import pytest

from thermocline_common.leases import UNPUBLISHED, Lease, published, usable


@pytest.mark.parametrize(
    ("checkpoint", "wanted", "expected"),
    [
        (None, 0.5, 0.5),
        (None, 30.0, 1.0),
        ({"_id": "feeder"}, 30.0, 1.0),
        ({"lease": {"longest": 2_000, "wait": 2_000}}, 30.0, 2.0),
        ({"lease": {"longest": 2_000, "wait": 30_000}}, 30.0, 2.0),
        ({"lease": {"longest": 30_000, "wait": 30_000}}, 2.0, 2.0),
        ({"lease": {"longest": 30_000, "wait": 30_000}}, 30.0, 30.0),
    ],
)
def test_a_proxy_uses_the_shorter_of_its_file_and_what_is_published(
    checkpoint: dict[str, Any] | None, wanted: float, expected: float
) -> None:
    assert usable(wanted, checkpoint) == expected


@pytest.mark.parametrize("lease", [{"longest": 5, "wait": 4}, {"longest": 0, "wait": 4}])
def test_nonsense_gives_no_lease(lease: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no sense"):
        published({"lease": lease})


@pytest.mark.parametrize(
    ("before", "wanted", "at_once", "in_the_end"),
    [
        (UNPUBLISHED, 5_000, (5_000, 5_000), (5_000, 5_000)),
        (UNPUBLISHED, 200, (200, 1_000), (200, 200)),
        (UNPUBLISHED, 30_000, (30_000, 30_000), (30_000, 30_000)),
        (Lease(200, 30_000), 500, (500, 30_000), (500, 500)),
        (Lease(200, 200), 500, (500, 500), (500, 500)),
    ],
)
def test_proxies_follow_at_once_and_waiters_downwards_only_later(
    before: Lease, wanted: int, at_once: tuple[int, int], in_the_end: tuple[int, int]
) -> None:
    first = before.towards(wanted)
    assert (first.longest, first.wait) == at_once
    last = first.settled()
    assert (last.longest, last.wait) == in_the_end
    assert published({"lease": first.document()}) == first


def test_nobody_is_ever_waited_for_too_briefly() -> None:
    """Every order of a few changes of the wish, with proxies and waiters reading at every moment."""
    sizes = (1, 3, 6)
    for wishes in itertools.product(sizes, repeat=3):
        for gaps in itertools.product((1, 2, 7), repeat=3):
            history = _history(wishes, gaps)
            for start, lease in enumerate(history):
                for changed in range(start, len(history)):
                    over = changed + history[changed].wait
                    assert over >= start + lease.longest, (wishes, gaps, start, changed)


def _history(wishes: tuple[int, ...], gaps: tuple[int, ...]) -> list[Lease]:
    """What is published at each unit of time; the feeder may be told something else before it has waited."""
    lease, settle_at = Lease(3, 3), -1
    history: list[Lease] = []
    for wish, gap in zip(wishes, gaps, strict=True):
        for step in range(gap):
            now = len(history)
            if step == 0:
                lease = lease.towards(wish)
                settle_at = now + lease.wait
            elif now >= settle_at:
                lease = lease.settled()
            history.append(lease)
    return history
