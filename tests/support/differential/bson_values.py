"""Values of every BSON type, and ids of every kind. Pure."""

import datetime as dt
import random
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from bson import encode
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from bson.timestamp import Timestamp

EPOCH: Final = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def _deprecated() -> RawBSONDocument:
    """Undefined, a symbol and a DBPointer: types that drivers can't write any more, but data has."""
    elements = b"\x06u\0" + b"\x0es\0\x02\0\0\0y\0" + b"\x0cp\0\x04\0\0\0a.b\0" + bytes(range(12))
    return RawBSONDocument((len(elements) + 5).to_bytes(4, "little") + elements + b"\0")


def _repeated() -> RawBSONDocument:
    one = encode({"r": 1})[4:-1]
    two = encode({"r": "again"})[4:-1]
    return RawBSONDocument((len(one + two) + 5).to_bytes(4, "little") + one + two + b"\0")


def _deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"d": value} if level % 2 else [value]
    return value


DEPRECATED: Final = _deprecated()
REPEATED: Final = _repeated()
"""A field name twice. No pipeline may touch it: mongod 6.0.5 ends itself then."""


def any_value(r: random.Random) -> Any:
    """A value of a type drawn from all, nested fields included."""
    values: list[Any] = [
        None, True, 7, Int64(2**40), 1.5, -0.0, float("nan"), float("inf"), Decimal128("1.10"), Decimal128("NaN"),
        "", "ä\0b", "x" * r.randrange(300), b"bytes", Binary(b"old", 2), Binary.from_uuid(uuid.UUID(int=7)),
        Binary(b"own", 128), ObjectId(b"abcdefghijkl"), EPOCH, DatetimeMS(-(2**40)), DatetimeMS(2**60),
        Timestamp(1, 2), {"zero": Timestamp(0, 0)}, Regex("^a", "i"), Code("f()"), Code("g()", {"x": 1}),
        MinKey(), MaxKey(), DBRef("orders", 7), {}, [], [[1], {"a.b": 1}], {"a.b": 1, "$c": 2}, {"": 1},
        {"$d": {"e.f": [1]}}, _deep(60), [1, "a", None, {"n": [2]}], DEPRECATED,
    ]  # fmt: skip
    return r.choice(values)


def identifiers(partition: int, r: random.Random, count: int = 36) -> list[Any]:
    """The ids of a partition, of every type that can be an ``_id``, in an order drawn from ``r``."""
    single: Mapping[int, list[Any]] = {
        0: [None, True, MinKey(), {}, ""], 1: [False, MaxKey(), float("nan")], 2: [float("inf"), 0.1],
    }  # fmt: skip
    singles = single.get(partition, [])
    kinds: list[Callable[[int], Any]] = [
        lambda i: partition * 1_000 + i,
        lambda i: f"{partition}:{i}",
        lambda i: ObjectId(f"{partition:012x}{i:012x}"),
        lambda i: partition * 1_000 + i,
        lambda i: {"a": partition, "b": str(i)},
        lambda i: Int64(2**40 + partition * 1_000 + i),
        lambda i: Decimal128(f"{partition * 1_000 + i}.25"),
        lambda i: EPOCH + dt.timedelta(days=partition, milliseconds=i),
        lambda i: Binary.from_uuid(uuid.UUID(int=partition * 1_000 + i)),
        lambda i: Timestamp(partition + 1, i + 1),
        lambda i: Code(f"f({partition}, {i})"),
        lambda i: partition * 1_000 + i + 0.5,
        lambda i: {"n": [partition, {"deep": i}]},
        lambda i: "long " * 40 + f"{partition}:{i}",
        lambda i: DBRef("orders", f"{partition}:{i}"),
        lambda i: Binary(f"{partition}:{i}".encode(), 128),
        lambda i: {"x.y": partition, "b": i},
        lambda i: partition * 1_000 + i,
    ]  # fmt: skip
    made = [kinds[i % len(kinds)](i) for i in range(count - len(singles))] + singles
    r.shuffle(made)
    return made


def has_letters(value: Any) -> bool:
    """Whether a collation could call another value equal to it."""
    if isinstance(value, str | Code | DBRef):
        return True
    if isinstance(value, dict):
        return bool(value)
    return isinstance(value, list)
