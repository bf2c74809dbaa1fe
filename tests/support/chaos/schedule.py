"""What is broken when: a plan made from a seed alone. Pure.

A fault takes hold of resources (a service, a tier's members, the manifest), and no two faults hold the
same one at a time: a tier always keeps a majority. Faults of different resources overlap freely.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Fault(StrEnum):
    """Kinds of faults."""

    KILL_SERVICE = "kill a service"
    FREEZE_SERVICE = "freeze a service"
    RESTART_SERVICE = "restart a service"
    SECOND_COPY = "second copy of a service"
    KILL_MEMBER = "kill a member"
    FREEZE_MEMBER = "freeze a member"
    RESTART_MEMBER = "restart a member"
    STEP_DOWN = "step down"
    CUT_SERVICE = "service cut off from a tier"
    CUT_MEMBER = "member cut off from its tier"
    DEAF_LINK = "one-sided link"
    SLOW_LINK = "slow link"
    FULL_DISK = "full disk"
    POLICY = "policy change"
    MODE = "mode change"
    DDL = "DDL"


WEIGHTS: Final[Mapping[Fault, int]] = {
    Fault.KILL_SERVICE: 4,
    Fault.FREEZE_SERVICE: 3,
    Fault.RESTART_SERVICE: 2,
    Fault.SECOND_COPY: 2,
    Fault.KILL_MEMBER: 3,
    Fault.FREEZE_MEMBER: 2,
    Fault.RESTART_MEMBER: 1,
    Fault.STEP_DOWN: 2,
    Fault.CUT_SERVICE: 2,
    Fault.CUT_MEMBER: 2,
    Fault.DEAF_LINK: 2,
    Fault.SLOW_LINK: 2,
    Fault.FULL_DISK: 1,
    Fault.POLICY: 2,
    Fault.MODE: 1,
    Fault.DDL: 3,
}
"""How often each kind stands in the deck that faults are drawn from."""
TIERS: Final = ("fast", "archive")
ROLES: Final = ("primary", "primary", "secondary")
POLICIES: Final = ("longer", "shorter", "another field", "keep all", "one left out")
STATEMENTS: Final = (
    "index", "unique index", "drop", "rename", "collMod", "create",
)  # fmt: skip
CALM: Final = 38.0
"""Seconds at the end without faults: errors have to end within 30 s of the last one."""
GRACE: Final = 4.0
"""Seconds from the end of a fault until its resource may meet the next one."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault that begins ``at`` seconds and lasts ``seconds``. ``target``: a service, or ``tier role``
    (who that is, is seen when the time comes); ``other``: the far end of a link; ``detail``: which change."""

    at: float
    seconds: float
    fault: Fault
    target: str = ""
    other: str = ""
    detail: str = ""

    def __str__(self) -> str:
        words = " ".join(
            w for w in (self.target, self.other and f"-> {self.other}", self.detail) if w
        )
        return f"{self.at:6.1f} s for {self.seconds:4.1f} s: {self.fault}: {words}"


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is to break. ``freeze``: seconds, least and most, that fit the services' waits."""

    services: Sequence[str]
    doubles: Sequence[str] = ("feeder", "evictor", "warmer")
    members: bool = True
    full_disk: bool = True
    freeze: tuple[float, float] = (5.0, 20.0)
    kinds: frozenset[Fault] = frozenset(Fault)


def plan(seed: int, seconds: float, scene: Scene, calm: float = CALM) -> tuple[Planned, ...]:
    """The faults of a run of so many seconds, in the order of their beginning; the last end before ``calm``."""
    dice = random.Random(f"schedule/{seed}")
    busy: dict[str, float] = {}
    planned: list[Planned] = []
    deck: list[Fault] = []
    services: list[str] = []
    at = 2.0
    while at < seconds - calm and scene.kinds:
        if not deck:
            deck = _deck(dice, scene)
        for number, fault in enumerate(deck):
            if not services:
                services = dice.sample(list(scene.services), k=len(scene.services))
            new = _draw(dice, at, fault, scene, services)
            end = new.at + new.seconds
            held = resources(new)
            if end > seconds - calm or any(busy.get(r, 0.0) > at for r in held):
                continue
            if new.target in services and fault in _OF_SERVICES:
                services.remove(new.target)
            del deck[number]
            planned.append(new)
            busy.update(dict.fromkeys(held, end + GRACE))
            break
        at += dice.uniform(0.7, 3.0)
    return tuple(planned)


_OF_SERVICES: Final = frozenset({Fault.KILL_SERVICE, Fault.FREEZE_SERVICE, Fault.RESTART_SERVICE})
_OF_MEMBERS: Final = frozenset(
    {
        Fault.KILL_MEMBER, Fault.FREEZE_MEMBER, Fault.RESTART_MEMBER, Fault.STEP_DOWN,
        Fault.CUT_MEMBER, Fault.FULL_DISK,
    }
)  # fmt: skip


def resources(planned: Planned) -> frozenset[str]:
    """What a fault takes hold of."""
    match planned.fault:
        case Fault.POLICY | Fault.MODE | Fault.DDL:
            return frozenset({"manifest"})
        case Fault.CUT_SERVICE | Fault.DEAF_LINK | Fault.SLOW_LINK:
            ends = {planned.target, planned.other}
            return frozenset(e.partition(" ")[0] for e in ends if e != "application")
        case Fault.SECOND_COPY:
            return frozenset({f"second {planned.target}"})
        case _:
            return frozenset({planned.target.partition(" ")[0]})


def _deck(dice: random.Random, scene: Scene) -> list[Fault]:
    """One of each kind in any order, then the rest: a short run sees every kind as far as it gets."""
    kinds = [f for f in Fault if f in scene.kinds and (scene.members or f not in _OF_MEMBERS)]
    if not scene.full_disk and Fault.FULL_DISK in kinds:
        kinds.remove(Fault.FULL_DISK)
    rest = [f for f in kinds for _ in range(WEIGHTS[f] - 1)]
    return dice.sample(kinds, k=len(kinds)) + dice.sample(rest, k=len(rest))


def _draw(
    dice: random.Random, at: float, fault: Fault, scene: Scene, services: Sequence[str]
) -> Planned:
    member = f"{dice.choice(TIERS)} {dice.choice(ROLES)}"
    low, high = scene.freeze
    match fault:
        case Fault.KILL_SERVICE:
            return Planned(at, dice.uniform(0.1, 2.0), fault, dice.choice(services))
        case Fault.FREEZE_SERVICE:
            return Planned(at, dice.uniform(low, high), fault, dice.choice(services))
        case Fault.RESTART_SERVICE:
            return Planned(at, 1.0, fault, dice.choice(services))
        case Fault.SECOND_COPY:
            return Planned(at, dice.uniform(8, 25), fault, dice.choice(scene.doubles))
        case Fault.KILL_MEMBER:
            return Planned(at, dice.uniform(1, 8), fault, member)
        case Fault.FREEZE_MEMBER:
            return Planned(at, dice.uniform(low, high), fault, member)
        case Fault.RESTART_MEMBER:
            return Planned(at, 2.0, fault, member)
        case Fault.STEP_DOWN:
            return Planned(at, 2.0, fault, f"{dice.choice(TIERS)} primary")
        case Fault.CUT_MEMBER:
            return Planned(at, dice.uniform(4, 12), fault, member, detail=dice.choice(
                ("from its peers", "from its peers", "from everyone")
            ))  # fmt: skip
        case Fault.CUT_SERVICE:
            service = dice.choice(list(scene.services))
            return Planned(at, dice.uniform(2, 10), fault, service, dice.choice(TIERS))
        case Fault.DEAF_LINK | Fault.SLOW_LINK:
            effect = dice.choice(("requests lost", "replies lost"))
            ends = _link(dice, scene)
            return Planned(
                at,
                dice.uniform(2, 10),
                fault,
                *ends,
                effect if fault is Fault.DEAF_LINK else "slow",
            )
        case Fault.FULL_DISK:
            return Planned(at, dice.uniform(4, 10), fault, "archive disk")
        case Fault.POLICY:
            return Planned(at, dice.uniform(6, 15), fault, detail=dice.choice(POLICIES))
        case Fault.MODE:
            return Planned(at, dice.uniform(4, 12), fault, detail="Passthrough")
        case Fault.DDL:
            return Planned(at, 6.0, fault, detail=dice.choice(STATEMENTS))


def _link(dice: random.Random, scene: Scene) -> tuple[str, str]:
    """Two parts that talk to each other, the one who connects first."""
    if dice.random() < 0.25:
        return "application", dice.choice([s for s in scene.services if s.startswith("proxy")])
    member = f"{dice.choice(TIERS)} {dice.choice(ROLES)}"
    return dice.choice(list(scene.services)), member
