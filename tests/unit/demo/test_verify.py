"""The demo's verdict finds what is wrong: else its PASS would say nothing."""

import datetime as dt
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument

ROOT = Path(__file__).parents[3]
NOW = dt.datetime(2026, 6, 1)  # noqa: DTZ001  (documents hold UTC without a zone)
Order = dict[str, Any]


@pytest.fixture(autouse=True)
def _demo_importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(ROOT))
    yield
    for name in [name for name in sys.modules if name == "demo" or name.startswith("demo.")]:
        del sys.modules[name]


class Stored:
    """What a client of one server shows: one database with one collection."""

    def __init__(self, orders: list[Order], databases: tuple[str, ...] = ("shop",)) -> None:
        self.orders, self.databases = orders, databases

    def __getitem__(self, name: str) -> "Stored":
        return self

    def get_collection(self, name: str, **options: Any) -> "Stored":
        return self

    def find(self) -> Iterator[RawBSONDocument]:
        return (RawBSONDocument(bson.encode(order)) for order in self.orders)

    def list_database_names(self) -> list[str]:
        return list(self.databases)


class Expected:
    """The ledger of an application that made these orders."""

    def __init__(self, orders: list[Order]) -> None:
        self.orders = orders

    def expected(self) -> list[Order]:
        return self.orders


def order(number: int, days: int, status: str = "new") -> Order:
    return {"_id": number, "createdAt": NOW - dt.timedelta(days=days), "status": status}


ORDERS = [order(1, 1), order(2, 20), order(3, 200), order(4, 300)]


def verification() -> Any:
    module = importlib.import_module("demo.verify")
    return module.Verification("shop.orders", Expected(ORDERS))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda orders: orders, None),
        (lambda orders: orders[1:], "1 missing"),
        (lambda orders: [*orders, order(5, 3)], "5 not supposed to exist"),
        (lambda orders: [*orders, orders[0]], "1 twice"),
        (lambda orders: [order(1, 1, "paid"), *orders[1:]], "1 different bytes"),
        (lambda orders: [dict(reversed(orders[0].items())), *orders[1:]], "1 different bytes"),
    ],
)
def test_the_archive_byte_for_byte(
    change: Callable[[list[Order]], list[Order]], problem: str | None
) -> None:
    found = verification()
    found.archive(Stored(change(ORDERS)))
    if problem is None:
        assert found.problems == []
        assert found.documents == len(ORDERS)
    else:
        assert len(found.problems) == 1
        assert problem in found.problems[0]


@pytest.mark.parametrize(
    ("orders", "databases", "problem"),
    [
        (ORDERS[:3], ("shop", "admin", "thermocline"), None),
        (ORDERS, ("shop",), "4 is older than the age and nobody touched it"),
        ([order(1, 1, "paid")], ("shop",), "1 different bytes"),
        ([order(9, 1)], ("shop",), "9 different bytes"),
        (ORDERS[:1], ("shop", "stray"), "database stray"),
    ],
)
def test_what_belongs_in_the_fast_tier(
    orders: list[Order], databases: tuple[str, ...], problem: str | None
) -> None:
    found = verification()
    horizon = (NOW - dt.timedelta(days=30)).replace(tzinfo=dt.UTC)
    held, older = found.fast(Stored(orders, databases), horizon, touched={3})
    assert held == len(orders)
    assert older == sum(o["_id"] in (3, 4) for o in orders)
    if problem is None:
        assert found.problems == []
    else:
        assert len(found.problems) == 1
        assert problem in found.problems[0]
