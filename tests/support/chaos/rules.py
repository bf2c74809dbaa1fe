"""What can be wrong with a link between two parts. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    """What happens to a link. Bytes that were dropped never come later: the connection ends."""

    CUT = "cut"
    NO_REQUESTS = "requests lost"
    NO_REPLIES = "replies lost"
    SLOW = "slow"


def drops(effect: Effect | None, forward: bool) -> bool:
    """Whether bytes in this direction are lost."""
    return effect is Effect.CUT or effect is (Effect.NO_REQUESTS if forward else Effect.NO_REPLIES)


@dataclass(frozen=True, slots=True)
class Rule:
    """Between two parts, ``source`` being who connects; None: anyone."""

    source: str | None
    target: str | None
    effect: Effect


def effect_on(rules: Iterable[Rule], source: Callable[[str], bool], target: str) -> Effect | None:
    """The worst that any rule says of a link; ``source``: whether a name is who connected."""
    found = {
        rule.effect
        for rule in rules
        if rule.target in (None, target) and (rule.source is None or source(rule.source))
    }
    return next((effect for effect in Effect if effect in found), None)
