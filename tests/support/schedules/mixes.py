"""Which actors run together: the model's mixes, and what the model leaves out (more documents, unique keys)."""

from collections.abc import Iterator
from typing import Final

from support.schedules.actors import Mix
from support.schedules.world import STARTS

_MODEL: Final = (
    "read, update, evict, warm",
    "read, delete, evict, warm",
    "update, delete, evict, evict",
    "delete, insert, evict, warm",
    "read, delete, insert, evict",
    "update, update, evict, warm",
    "delete, delete, warm, evict",
    "insert, insert, evict, warm",
    "read, delete, update, evict, warm",
    "scan, update, evict, warm",
    "scan, delete, insert, evict",
    "cscan, cover, evict, update",
    "cscan, cover, evict, delete",
    "cscan, cscan, cover, evict, evict",
    "cscan, cover, evict, insert",
    "cover, evict, evict, delete, cscan",
    "insert, evict, evict",
    "insert, evict, evict, update",
    "insert, evict, warm, read",
    "insert, insert, evict, evict",
)
_ONE_MORE: Final = (
    "upsert, delete, evict, read",
    "upsert, upsert, evict, delete",
    "fam, famrm, evict, warm",
    "famrm, insert, evict, read",
    "set x 2, set x 1, evict, scan",
    "set x 2, set x 1, evict, evict, read",
    "delete, insert, evict, collect, read",
    "delete, warm, evict, collect",
    "update, delete, insert, collect, scan",
)
_TWO: Final = (
    "many, evict, read, read y",
    "many, many, evict, warm",
    "many, delete y, evict, evict",
    "many, insert, dmany, evict",
    "dmany, insert, warm, evict",
    "dmany, dmany, evict, ids",
    "any, any, evict, delete",
    "any, dmany, evict, warm",
    "scan, many, delete, evict",
    "ids, delete, insert, evict",
    "cscan, cover, evict, many",
    "cscan, cover, evict, dmany, insert y",
    "many, dmany, evict, evict, collect",
)
_UNIQUE: Final = (
    "insertkey x, delete x, evict, warm",
    "insertkey x, insertkey x, evict, delete x",
    "takekey y x, delete x, evict, read y",
    "takekey y x, takekey x y, evict, evict",
    "takekey x z, takekey y z, evict, warm",
    "takekey x z, insertkey z, evict, warm",
    "takekey x z, insertkey x, evict, delete y",
    "upsert z, insertkey z, evict, takekey x z",
    "takekey x z, takekey x w, evict, insertkey z",
)


def _names(actors: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in actors.split(","))


def model_mixes() -> Iterator[Mix]:
    """The model's own, from its four starting points; those with a warmer also from a covered one."""
    for actors in _MODEL:
        for start in STARTS:
            yield Mix(_names(actors), {"x": start})
        if "cscan" in actors:
            yield Mix(_names(actors), {"x": "hot"}, floor=True)


def wider_mixes() -> Iterator[Mix]:
    """What the model doesn't have."""
    for actors in _ONE_MORE:
        for start in ("cold", "hot", "fresh"):
            yield Mix(_names(actors), {"x": start})
    for actors in _TWO:
        for starts in (("hot", "cold"), ("hot", "hot"), ("fresh", "hot"), ("cold", "fresh")):
            yield Mix(_names(actors), dict(zip("xy", starts, strict=True)))
    for actors in _UNIQUE:
        for starts in (("hot", "cold"), ("cold", "hot"), ("hot", "hot"), ("fresh", "cold")):
            both = dict(zip("xy", starts, strict=True))
            yield Mix(_names(actors), {**both, "z": "none", "w": "none"}, unique=True)


def all_mixes() -> list[Mix]:
    """Every mix, the model's and the wider ones in turn."""
    return [*model_mixes(), *wider_mixes()]


_SMALL: Final = (
    ("read, delete", "cold"),
    ("read, evict", "hot"),
    ("update, warm", "cold"),
    ("delete, warm", "cold"),
    ("update, delete", "cold"),
    ("insert, delete", "hot"),
    ("insert, evict", "hot"),
    ("update, evict", "hot"),
    ("delete, evict", "hot"),
    ("scan, update", "cold"),
    ("insert, warm", "cold"),
)


def small_mixes() -> list[Mix]:
    """Pairs whose orders can be enumerated, the feeder's steps among them."""
    return [Mix(_names(actors), {"x": start}) for actors, start in _SMALL]
