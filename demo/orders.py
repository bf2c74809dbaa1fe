"""The demo's documents, and the ledger of what they must be in the end."""

import datetime as dt
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SPAN = dt.timedelta(days=365)
STATUSES = ("new", "paid", "packed", "shipped", "delivered", "returned")
FILLER = (
    "Leave the parcel with the neighbour on the second floor if nobody opens; the bell is broken. "
    "The customer asked for a call before delivery and for the invoice to go to the office. "
) * 8

Order = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Makes the initial orders: ``count`` of about 1 KB, spread evenly over the year before ``now``."""

    count: int
    now: dt.datetime
    seed: int = 1

    def age(self, number: int) -> dt.datetime:
        """When order ``number`` was created; a higher number is newer."""
        back = SPAN * ((self.count - number) / self.count)
        created = self.now - back
        return created.replace(microsecond=created.microsecond // 1000 * 1000)

    def order(self, number: int, created: dt.datetime | None = None) -> Order:
        """Order ``number``, the same at every call."""
        dice = random.Random(self.seed * 1_000_003 + number)  # noqa: S311
        items: list[dict[str, Any]] = [
            {
                "sku": f"sku-{dice.randrange(5_000):05d}",
                "quantity": dice.randrange(1, 5),
                "price": dice.randrange(100, 20_000) / 100,
            }
            for _ in range(dice.randrange(1, 5))
        ]
        start = dice.randrange(300)
        return {
            "_id": number,
            "customer": f"customer-{dice.randrange(20_000):05d}",
            "createdAt": created or self.age(number),
            "status": dice.choice(STATUSES),
            "total": round(sum(i["quantity"] * i["price"] for i in items), 2),
            "version": 1,
            "items": items,
            "note": FILLER[start : start + 640],
        }


@dataclass(slots=True)
class Ledger:
    """What every order must be: the catalogue, overlaid by what the application did.

    Each id is changed by one worker alone, which knows its order exactly.
    """

    catalogue: Catalogue
    changed: dict[int, Order | None] = field(default_factory=dict)
    _inserted: dict[int, int] = field(default_factory=dict)
    _next: int = 0

    def __post_init__(self) -> None:
        self._next = self.catalogue.count

    def order(self, number: int) -> Order | None:
        """The order as it must be now; None: deleted, or never there."""
        if number in self.changed:
            return self.changed[number]
        return self.catalogue.order(number) if number < self.catalogue.count else None

    def set(self, number: int, order: Order | None) -> None:
        """Record an acknowledged write (None: a delete)."""
        self.changed[number] = order

    def new_number(self, owner: int, owners: int) -> int:
        """The owner's next number that no order has: its remainder modulo ``owners`` is ``owner``."""
        first = self.catalogue.count + (owner - self.catalogue.count) % owners
        turn = self._inserted.get(owner, 0)
        self._inserted[owner] = turn + 1
        number = first + turn * owners
        self._next = max(self._next, number + 1)
        return number

    @property
    def highest(self) -> int:
        """One above the highest number in use."""
        return self._next

    def expected(self) -> Iterator[Order]:
        """Every order that must exist, by number."""
        for number in range(self._next):
            order = self.order(number)
            if order is not None:
                yield order
