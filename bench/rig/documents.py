"""The documents: every one can be made again from its number, so that every answer can be checked."""

import datetime as dt
import random
from dataclasses import dataclass, field
from typing import Any, Final

YEAR: Final = dt.timedelta(days=365)
BLOCK_BYTES: Final = 1 << 20
CHANGED_BYTES: Final = 100  # what an update replaces, as one of YCSB's fields
_MASK: Final = (1 << 64) - 1
_SPREAD: Final = 0x9E3779B97F4A7C15  # odd, hence a bijection of 64-bit numbers

Document = dict[str, Any]


def id_of(number: int) -> str:
    """The ``_id`` of document ``number``: as YCSB's, without any order in common with the documents' age."""
    return f"user{(number * _SPREAD) & _MASK:020d}"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """``count`` documents whose dates spread evenly over the year before ``now``; a higher number is newer.

    ``size`` is the filler's length in bytes; it doesn't compress.
    """

    count: int
    size: int
    now: dt.datetime
    seed: int = 1
    block: bytes = field(default=b"", repr=False)

    @classmethod
    def make(cls, count: int, size: int, now: dt.datetime, seed: int = 1) -> "Catalogue":
        """With the random bytes that fillers are cut from."""
        block = random.Random(seed).randbytes(BLOCK_BYTES)
        return cls(count, size, now.replace(microsecond=0), seed, block)

    def age(self, number: int) -> dt.datetime:
        """The date of document ``number`` (of a loaded one)."""
        back = YEAR * ((self.count - number) / self.count)
        created = self.now - back
        return created.replace(microsecond=created.microsecond // 1000 * 1000)

    def filler(self, number: int) -> bytes:
        """The part of a document that never changes."""
        start = (number * 2_654_435_761) % (len(self.block) - self.size)
        return self.block[start : start + self.size]

    def document(self, number: int, created: dt.datetime | None = None) -> Document:
        """Document ``number`` before any update."""
        return {
            "_id": id_of(number),
            "n": number,
            "t": created or self.age(number),
            "v": 0,
            "f": self.block[:CHANGED_BYTES],
            "x": self.filler(number),
        }

    def fault(self, found: Document | None, number: int, least: int, most: int) -> str | None:
        """What is wrong with the answer to a read of ``number``, whose count of updates must be between
        ``least`` and ``most``; None where it is right."""
        if found is None:
            return f"{number}: missing"
        if found.get("_id") != id_of(number) or found.get("n") != number:
            return f"{number}: got document {found.get('n')}"
        if found.get("x") != self.filler(number):
            return f"{number}: other content"
        version = found.get("v")
        if not isinstance(version, int) or not least <= version <= most:
            return f"{number}: version {version}, must be {least} to {most}"
        return None
