"""Each rule of the protocol, taken out of the real code: one order of steps that breaks it then.

The same order, with the rule in place, breaks nothing. The rules' names are those of
``tests/model/mutants.py``.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from support.mongod import ReplicaSet
from support.schedules.actors import Mix, Times
from support.schedules.exploration import Scripted, run_schedule
from support.schedules.mutants import BEYOND, MUTANTS, WIDENED
from support.schedules.scheduler import Violation
from support.schedules.world import open_world

pytestmark = pytest.mark.integration

Script = Sequence[tuple[str, str | int | None]]
SHORT = Times(announce=1.0)
"""Announcements of a second: shorter than a lease, which otherwise is over long before an eviction."""
USUAL = Times()
DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Case:
    """``script``: who goes on, and until where (see ``Scripted``). ``under``: what else is taken out,
    with and without the rule."""

    actors: str
    start: str
    script: Script
    floor: bool = False
    times: Times = USUAL
    under: tuple[str, ...] = ()
    age: dt.timedelta = 60 * DAY
    covered: dt.timedelta = 90 * DAY

    def mix(self) -> Mix:
        actors = tuple(name.strip() for name in self.actors.split(","))
        return Mix(
            actors,
            {"x": self.start},
            floor=self.floor,
            times=self.times,
            age=self.age,
            covered=self.covered,
        )


CASES = {
    "no_removal_lookup": Case("read, delete", "hot", [("delete", None), ("read", None)]),
    "no_token_check": Case(
        "update, evict, warm",
        "cold",
        [
            ("warm", "F find plain (transaction)"),
            ("update", None),
            ("feeder", 3),
            ("evict", None),
            ("warm", None),
        ],
        times=SHORT,  # by the usual times the copy would notice that it took too long
    ),
    "record_without_doc_check": Case("delete", "cold", [("delete", None)]),
    "ignore_deleted": Case("delete, warm", "hot", [("delete", None), ("warm", None)]),
    "no_conflict": Case("warm, delete", "cold", [("warm", 5), ("delete", None), ("warm", None)]),
    "no_position_check": Case(
        "set x 2, set x 1, evict",
        "hot",
        [
            ("evict", "F find plain (transaction)"),
            ("set x 2", None),
            ("feeder", "apply"),
            ("set x 1", None),
            ("evict", None),
        ],
    ),
    "evict_at_once": Case(
        "insert, evict", "hot", [("insert", "send F insert"), ("evict", None), ("insert", None)]
    ),
    "no_cancel": Case(
        "insert, evict",
        "hot",
        [
            ("evict", "F update markers"),
            ("insert", "send F insert"),
            ("evict", None),
            ("insert", None),
        ],
    ),
    "ignore_cancel": Case(
        "insert, evict",
        "hot",
        [
            ("evict", "F update markers"),
            ("insert", "send F insert"),
            ("evict", None),
            ("insert", None),
        ],
    ),
    "trust_record_alone": Case(
        "read, delete",
        "cold",
        [("read", "F find removed"), ("delete", "send F delete"), ("read", None)],
    ),
    "evict_ignores_d": Case(
        "delete, evict",
        "hot",
        [
            ("delete", "send F delete"),
            ("evict", "F update removed"),
            ("evict", 1),
            ("delete", None),
        ],
    ),
    # Evictions make no events that the feeder sees, so it never asks at two times about a document
    # that was evicted; the rule holds without that, too.
    "split_fetch": Case(
        "read, delete, warm, evict",
        "hot",
        [
            ("evict", None),
            ("read", "send A find"),
            ("feeder", 1),
            ("warm", None),
            ("delete", "send F delete"),
            ("feeder", "fetch"),
            ("read", None),
        ],
        under=("whole_stream",),
    ),
    "no_barrier": Case("scan, update", "hot", [("update", None), ("scan", None)]),
    "publish_without_cas": Case(
        "cover, evict, cscan",
        "cold",
        [
            ("cover", "F update markers"),
            ("cover", "F update coverage"),
            ("feeder", 2),
            ("evict", None),
            ("cover", None),
            ("cscan", None),
        ],
    ),
    "no_lease_wait": Case(
        "cscan, evict",
        "hot",
        [("cscan", "send F find"), ("evict", None), ("cscan", None)],
        floor=True,
        times=SHORT,
    ),
    # So little below the horizon that the floor isn't raised for it.
    "ignore_claim": Case(
        "cscan, evict",
        "hot",
        [("evict", None), ("cscan", None)],
        floor=True,
        age=30.5 * DAY,
        covered=31 * DAY,
    ),
    # Either suffices here: the warmer's copying cancels departures, and its claim conflicts.
    "no_coverage_write": Case(
        "cover, evict, cscan",
        "hot",
        [
            ("evict", "F update removed (transaction)"),
            ("cover", None),
            ("cscan", "send F find"),
            ("evict", None),
            ("cscan", None),
        ],
        under=("no_cancel",),
    ),
    "second_evictor_no_wait": Case(
        "cscan, evict, evict",
        "hot",
        [
            ("cscan", "send F find"),
            ("evict", "F update coverage"),
            ("evict", 1),
            ("evict #2", None),
            ("cscan", None),
        ],
        floor=True,
        times=SHORT,
    ),
    "no_generation_check": Case(
        "cscan, cover, evict, evict",
        "hot",
        [
            ("evict", "A find checkpoint"),
            ("cover", None),
            ("cscan", "send F find"),
            ("evict #2", "F update coverage"),
            ("evict #2", 1),
            ("evict", None),
            ("cscan", None),
        ],
        times=SHORT,
    ),
    # The insert asks A before the feeder has come so far, and F's records after the eviction.
    "no_kept_limit": Case(
        "insert, evict",
        "fresh",
        [
            ("insert", 2),
            ("insert", "take A find plain"),
            ("feeder", 3),
            ("evict", None),
            ("insert", None),
        ],
    ),
}
RULES = {**MUTANTS, **BEYOND}


@pytest.mark.parametrize("rule", RULES)
async def test_without_the_rule_the_protocol_breaks(
    rule: str, quick_sets: tuple[ReplicaSet, ReplicaSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[rule]
    for other in case.under:
        {**RULES, **WIDENED}[other](monkeypatch)
    world = await open_world(*quick_sets, monkeypatch)
    try:
        assert await run_schedule(world, case.mix(), Scripted(case.script))
        RULES[rule](monkeypatch)
        with pytest.raises(Violation):
            await run_schedule(world, case.mix(), Scripted(case.script))
    finally:
        await world.close()


def test_every_rule_has_a_case() -> None:
    assert CASES.keys() == RULES.keys()
