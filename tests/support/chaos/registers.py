"""Workloads whose histories are judged key by key: registers, and unique keys as locks."""

import datetime as dt
import random
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Final

from pymongo import ReturnDocument
from pymongo.errors import PyMongoError

from support.chaos.clients import Call, Desk, Script
from support.chaos.histories import Kind
from support.chaos.record import Record, Register

REGISTERS: Final = "registers"
LOCKS: Final = "locks"
AT_WORK: Final = 22
"""Keys in use at a time."""
DOUBTS: Final = 3
"""A key with so many operations of unknown outcome is replaced: each doubles what may have happened."""


def age(dice: random.Random, span: float) -> Any:
    """A date of up to ``span`` seconds ago, seldom something that isn't a date."""
    if dice.random() < 0.04:
        return dice.choice([None, "unknown", 5])
    now = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=dice.uniform(0, span))
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


class Keys:
    """Keys that all clients share. The first few are busy, the others rest long enough to be evicted."""

    def __init__(self, total: int) -> None:
        self._lock = threading.Lock()
        self._fresh = list(range(AT_WORK, total))
        self._used = list(range(min(AT_WORK, total)))
        self._doubts: Counter[int] = Counter()
        self.initial: dict[Hashable, Any] = {}

    def pick(self, dice: random.Random) -> int:
        """Any key, a busy one more often."""
        with self._lock:
            busy = dice.random() < 0.6
            return dice.choice(self._used[:6] if busy else self._used)

    def doubt(self, key: int) -> None:
        """One more operation on it has an unknown outcome."""
        with self._lock:
            self._doubts[key] += 1
            if self._doubts[key] >= DOUBTS and key in self._used and self._fresh:
                self._used[self._used.index(key)] = self._fresh.pop(0)


class Registers:
    """One client of documents that all of them write and read."""

    def __init__(self, record: Record, keys: Keys, number: int, seed: int, span: float) -> None:
        self.name = f"registers-{number}"
        self._record = record
        self._keys = keys
        self._dice = random.Random(f"{seed}/{self.name}/steps")
        self._span = span
        self._actions: list[tuple[Kind, int]] = [
            (Kind.READ, 8), (Kind.PUT, 4), (Kind.SET, 5), (Kind.INSERT, 4), (Kind.DELETE, 4),
            (Kind.COMPARE, 3), (Kind.SWAP, 3),
        ]  # fmt: skip
        self._seen: dict[int, Any] = {}

    def document(self, key: int, value: int) -> dict[str, Any]:
        """A register as it is stored."""
        at = age(self._dice, self._span)
        return {"_id": key, "v": value, "at": at, "at2": at, "pad": "x" * 120}

    def step(self, desk: Desk) -> Script:
        """One operation on one key."""
        kinds, weights = zip(*self._actions, strict=True)
        kind = self._dice.choices(kinds, weights)[0]
        key, value = self._keys.pick(self._dice), next(self._record.values)
        argument: Any = value
        if kind is Kind.READ or kind is Kind.DELETE:
            argument = None
        elif kind is Kind.COMPARE:
            argument = (self._seen.get(key) or 0, value)
        call, read_result = self._call(desk, kind, key, argument)
        register = Register(self._record, desk, self.name, kind, key, argument)
        try:
            answer = yield Call(f"register {kind}", call)
        except PyMongoError as error:
            register.fail(error)
            if (register.unknown or register.haunted) and kind is not Kind.READ:
                self._keys.doubt(key)
            return
        result = read_result(answer)
        register.end(result)
        if register.haunted:
            self._keys.doubt(key)
        if kind is Kind.READ:
            self._seen[key] = result

    def _call(
        self, desk: Desk, kind: Kind, key: int, argument: Any
    ) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        registers = desk.collection(REGISTERS, "linearizable" if kind is Kind.READ else "majority")
        one = {"_id": key}
        match kind:
            case Kind.READ:
                return lambda: registers.find_one(one), _value
            case Kind.PUT:
                document = self.document(key, argument)
                return (
                    lambda: registers.replace_one(one, document, upsert=True),
                    lambda r: r.upserted_id is None,
                )
            case Kind.SET:
                change: dict[str, Any] = {"v": argument}
                if self._dice.random() < 0.3:
                    change["at"] = change["at2"] = age(self._dice, self._span)
                return (
                    lambda: registers.update_one(one, {"$set": change}),
                    lambda r: r.matched_count == 1,
                )
            case Kind.INSERT:
                document = self.document(key, argument)
                return lambda: registers.insert_one(document), lambda r: True
            case Kind.DELETE:
                return lambda: registers.delete_one(one), lambda r: r.deleted_count == 1
            case Kind.COMPARE:
                expected, value = argument
                return (
                    lambda: registers.update_one({**one, "v": expected}, {"$set": {"v": value}}),
                    lambda r: r.matched_count == 1,
                )
            case _:
                return (
                    lambda: registers.find_one_and_update(
                        one, {"$set": {"v": argument}}, return_document=ReturnDocument.BEFORE
                    ),
                    _value,
                )


def _value(document: Any) -> Any:
    return None if document is None else document["v"]


class Locks:
    """One client of a unique key: who inserted a document with it holds it until the document is gone."""

    def __init__(self, record: Record, keys: Keys, number: int, seed: int, span: float) -> None:
        self.name = f"locks-{number}"
        self._record = record
        self._keys = keys
        self._dice = random.Random(f"{seed}/{self.name}/steps")
        self._span = span
        self._held: dict[int, int] = {}

    def document(self, key: int, owner: int) -> dict[str, Any]:
        """A lock as it is stored."""
        at = age(self._dice, self._span)
        return {"_id": owner, "k": key, "at": at, "at2": at}

    def step(self, desk: Desk) -> Script:
        """Take a key, give one back, hand one over to another key, or look who holds one."""
        action = self._dice.choices(["take", "release", "move", "look"], [5, 3, 2, 4])[0]
        if action == "release" and self._held:
            yield from self._release(desk, self._dice.choice(list(self._held)))
        elif action == "move" and self._held:
            yield from self._move(desk, self._dice.choice(list(self._held)))
        elif action == "look":
            yield from self._look(desk, self._keys.pick(self._dice))
        else:
            yield from self._take(desk, self._keys.pick(self._dice))

    def _take(self, desk: Desk, key: int) -> Script:
        owner = next(self._record.values)
        locks, document = desk.collection(LOCKS), self.document(key, owner)
        register = Register(self._record, desk, self.name, Kind.INSERT, ("lock", key), owner)
        try:
            yield Call("lock insert", lambda: locks.insert_one(document))
        except PyMongoError as error:
            register.fail(error)
            if register.unknown or register.haunted:
                self._keys.doubt(key)
        else:
            register.end(True)
            self._held[key] = owner

    def _release(self, desk: Desk, key: int) -> Script:
        owner = self._held.pop(key)
        locks = desk.collection(LOCKS)
        register = Register(self._record, desk, self.name, Kind.REMOVE, ("lock", key), owner)
        try:
            result = yield Call("lock delete", lambda: locks.delete_one({"_id": owner}))
        except PyMongoError as error:
            register.fail(error)
            self._keys.doubt(key)
        else:
            register.end(result.deleted_count == 1)
            if register.haunted:
                self._keys.doubt(key)

    def _move(self, desk: Desk, key: int) -> Script:
        owner, other = self._held[key], self._keys.pick(self._dice)
        if other == key:
            return
        locks = desk.collection(LOCKS)
        leave = Register(self._record, desk, self.name, Kind.REMOVE, ("lock", key), owner)
        enter = Register(self._record, desk, self.name, Kind.INSERT, ("lock", other), owner)
        try:
            result = yield Call(
                "lock update",
                lambda: locks.update_one({"_id": owner}, {"$set": {"k": other}}),
            )
        except PyMongoError as error:
            enter.fail(error)
            if enter.unknown:
                leave.fail(error)
                self._held.pop(key)
                self._keys.doubt(key)
                self._keys.doubt(other)
            elif enter.haunted:
                self._haunt_move(leave, key, other)
            return
        leave.end(result.matched_count == 1)
        if leave.haunted:
            enter.haunt()
            self._haunt_move(None, key, other)
        if result.matched_count == 1:
            enter.end(True)
            self._held[other] = self._held.pop(key)

    def _haunt_move(self, leave: Register | None, key: int, other: int) -> None:
        """The move had no effect, and an earlier attempt may still have."""
        if leave is not None:
            leave.haunt()
        self._keys.doubt(key)
        self._keys.doubt(other)

    def _look(self, desk: Desk, key: int) -> Script:
        locks = desk.collection(LOCKS, "linearizable")
        register = Register(self._record, desk, self.name, Kind.READ, ("lock", key))
        try:
            found = yield Call("lock find", lambda: locks.find_one({"k": key}))
        except PyMongoError as error:
            register.fail(error)
        else:
            register.end(None if found is None else found["_id"])
