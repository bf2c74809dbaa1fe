"""One command of a stream, and what may differ in its answer."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from support.differential.layout import SHOP, Document


class Limit(Enum):
    """What Thermocline may refuse where one MongoDB doesn't: the code, and the reason. ``docs/limits.md``
    says the same to users. Nothing may have happened then."""

    COLLATION = (
        115,
        "what is equal under a collation can't be told apart by removal records, nor unique keys pinned",
    )
    UNTIERABLE = (115, "capped, time series, clustered collections and views can't be tiered")
    WRITES_TIERED = (20, "$out and $merge would write into the archive behind the fast tier's back")
    TRANSACTION = (263, "what a transaction reads must be in the fast tier at one moment")

    @property
    def code(self) -> int:
        """The error code."""
        return int(self.value[0])


class Compared(Enum):
    """How much of two answers must be equal."""

    ALL = "all"
    CODES = "ok and codes: counts of shared indexes depend on the other streams"
    SET = "all, and values of distinct in any order"
    MATCH = "the one document found is one of those that match"
    CATALOG = "all but UUIDs, in any order"


class Concern(Enum):
    """A read concern that the sides fill in themselves."""

    NONE = "none"
    CAUSAL = "after the side's own last operation"


@dataclass(frozen=True, slots=True)
class Step:
    """One command. ``kind`` names it in reports; ``ordered``: the order of the answer's documents
    counts; ``txn``: it is sent with a new transaction number; ``repeats``: how often it is sent again
    with the same one, as a driver does that lost the reply, ``pause`` seconds later; ``on_plain``: what the plain
    server is asked instead."""

    kind: str
    command: Document
    ordered: bool = False
    txn: bool = False
    repeats: int = 0
    pause: float = 0.0
    touched: tuple[Any, ...] = field(default=())
    database: str = SHOP
    compared: Compared = Compared.ALL
    limit: Limit | None = None
    concern: Concern = Concern.NONE
    on_plain: Document | None = None
    multi: bool = False

    @property
    def name(self) -> str:
        """The command's name."""
        return str(next(iter(self.command)))

    @property
    def collection(self) -> str:
        """The collection that it is about."""
        return str(next(iter(self.command.values())))

    @property
    def namespace(self) -> str:
        """``db.collection``."""
        return f"{self.database}.{self.collection}"
