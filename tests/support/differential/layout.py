"""The collections of a run: shared ones, and per stream a database of its own whose schema changes."""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

Document = dict[str, Any]
Clock = Callable[[], dt.datetime]

SHOP: Final = "shop"
CLOSED_PARTITION: Final = 900
"""Documents of this partition and above belong to no stream."""


@dataclass(frozen=True, slots=True)
class Collection:
    """What a stream knows of a collection. ``age``: path of its age field, or None; ``also``: another
    field with dates, indexed too; ``unique``: whether ``sku`` has a unique index at the start;
    ``span``: ages reach back this many seconds; ``own``: one stream alone uses it."""

    name: str
    age: str | None
    unique: bool
    span: float = 40.0
    also: str | None = None
    database: str = SHOP
    own: bool = False

    @property
    def namespace(self) -> str:
        """``db.collection``."""
        return f"{self.database}.{self.name}"


ORDERS: Final = Collection("orders", "at", unique=True, also="seen")
EVENTS: Final = Collection("events", "meta.at", unique=False, span=25.0)
PRODUCTS: Final = Collection("products", "at", unique=True)
NOTES: Final = Collection("notes", "at", unique=False)
SHARED: Final = (ORDERS, EVENTS, PRODUCTS, NOTES)
POLICIES: Final[tuple[Document, ...]] = (
    {"namespace": ORDERS.namespace, "ageField": "at", "maxAge": "10s"},
    {"namespace": EVENTS.namespace, "ageField": "meta.at", "maxAge": "5s"},
    {"namespace": PRODUCTS.namespace, "keep": "All"},
)
"""``notes`` is untiered at the start."""


def own_collections(partition: int) -> tuple[Collection, ...]:
    """The collections of one stream alone: created, indexed, renamed, dropped while it runs."""
    database = f"own{partition}"
    return (
        Collection("things", "at", unique=False, span=20.0, database=database, own=True),
        Collection("others", "at", unique=False, span=20.0, database=database, own=True),
        Collection("whole", "at", unique=False, database=database, own=True),
        Collection("loose", "at", unique=False, database=database, own=True),
    )


def own_policies(partition: int) -> tuple[Document, ...]:
    """Policies of all of them but ``loose``."""
    things, others, whole, _ = own_collections(partition)
    return (
        {"namespace": things.namespace, "ageField": "at", "maxAge": "6s"},
        {"namespace": others.namespace, "ageField": "at", "maxAge": "6s"},
        {"namespace": whole.namespace, "keep": "All"},
    )


def beside(partition: int) -> dict[str, str]:
    """Names in ``shop`` of what can't be tiered, per stream: views, targets of ``$out``, capped, time series."""
    kinds = ("view", "view of view", "merged", "written", "capped", "series")
    return {kind: f"{kind.replace(' ', '_')}_{partition}" for kind in kinds}
