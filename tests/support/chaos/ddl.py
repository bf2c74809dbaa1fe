"""DDL by an application, while everything else goes on: what it leaves must be what was asked for."""

import queue
import threading
from collections.abc import Mapping
from typing import Any, Final

from pymongo import MongoClient, WriteConcern
from pymongo.collection import Collection
from pymongo.errors import CollectionInvalid, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from support.chaos.clients import DATABASE
from support.chaos.orders import ORDERS
from support.chaos.record import SCHEMA, Record, is_duplicate

SCRATCH: Final = ("scratch", "scratch2")
LOOSE: Final = "loose"
"""A collection without a policy."""
INTERRUPTED: Final = frozenset({12586, 12587, 276, 117})
"""An index build or drop that met another one, or an election: DDL isn't retried by drivers."""


class Ddl:
    """A client of its own thread that runs one statement after the other, as ordered."""

    def __init__(self, record: Record, uri: str, options: Mapping[str, Any]) -> None:
        self.done = 0
        self.failed = 0
        self._record = record
        self._uri = uri
        self._options = options
        self._orders: queue.Queue[str | None] = queue.Queue()
        self._busy = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Begin to take orders."""
        self._thread.start()

    def order(self, statement: str) -> bool:
        """Whether it was taken: not while another one is under way."""
        if self._busy.is_set():
            return False
        self._busy.set()
        self._orders.put(statement)
        return True

    def stop(self, timeout: float) -> None:
        """Let the statement under way end."""
        self._orders.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._record.violate("clients end", "DDL", [f"not within {timeout} s"])

    def _work(self) -> None:
        client: MongoClient[dict[str, Any]] = MongoClient(self._uri, tz_aware=True, **self._options)
        with client:
            while (statement := self._orders.get()) is not None:
                began = self._record.now()
                try:
                    self._run(client, statement)
                    self.done += 1
                except PyMongoError as error:
                    self.failed += 1
                    if not (isinstance(error, OperationFailure) and error.code in INTERRUPTED):
                        self._record.note(SCHEMA, statement, began, error)
                except AssertionError as error:
                    self._record.violate("DDL does what it says", statement, [error])
                self._busy.clear()

    def _run(self, client: MongoClient[dict[str, Any]], statement: str) -> None:
        database = client.get_database(
            DATABASE, write_concern=WriteConcern("majority"), read_concern=ReadConcern("majority")
        )
        with client.start_session() as session:
            first, second = (database[name] for name in SCRATCH)
            match statement:
                case "index":
                    name = database[ORDERS].create_index("v", session=session)
                    assert name in database[ORDERS].index_information(session=session)
                    database[ORDERS].drop_index(name, session=session)
                case "unique index":
                    self._unique(first, session)
                case "drop":
                    _fill(first, session)
                    first.drop(session=session)
                    left = first.count_documents({}, session=session)
                    assert left == 0, f"{left} documents after the drop"
                case "rename":
                    _fill(first, session)
                    second.drop(session=session)
                    first.rename(SCRATCH[1], session=session)
                    left, moved = (c.count_documents({}, session=session) for c in (first, second))
                    assert (left, moved) == (0, 5), f"{left} left, {moved} moved"
                case "collMod":
                    _fill(first, session)
                    self._validate(database, first, session)
                case _:
                    loose = database[LOOSE]
                    loose.drop(session=session)
                    try:
                        database.create_collection(LOOSE, session=session)
                    except CollectionInvalid as error:
                        raise AssertionError(error) from error
                    _fill(loose, session)
                    assert loose.count_documents({}, session=session) == 5

    def _unique(self, scratch: Collection[dict[str, Any]], session: Any) -> None:
        _fill(scratch, session)
        name = scratch.create_index("u", unique=True, session=session)
        try:
            scratch.insert_one({"_id": "twin", "u": 1}, session=session)
        except PyMongoError as error:
            if not is_duplicate(error):
                raise
        else:
            raise AssertionError("a duplicate got past a unique index")
        scratch.drop_index(name, session=session)
        scratch.insert_one({"_id": "twin", "u": 1}, session=session)
        scratch.delete_one({"_id": "twin"}, session=session)

    def _validate(self, database: Any, scratch: Collection[dict[str, Any]], session: Any) -> None:
        rule = {"u": {"$exists": True}}
        database.command("collMod", scratch.name, validator=rule, session=session)
        try:
            scratch.insert_one({"_id": "bare"}, session=session)
        except OperationFailure as error:
            if error.code != 121:
                raise
        else:
            raise AssertionError("a document got past the validator")
        database.command("collMod", scratch.name, validator={}, session=session)
        scratch.delete_many({}, session=session)


def _fill(collection: Collection[dict[str, Any]], session: Any) -> None:
    """Exactly five documents, whatever a statement before left, without indexes or rules."""
    collection.drop(session=session)
    collection.insert_many([{"_id": i, "u": i} for i in range(5)], session=session)
