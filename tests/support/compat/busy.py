"""An application of our own beside the suites: a collection tiered by age on which evictor and warmer work."""

import datetime as dt
import threading
from types import TracebackType
from typing import Any, Final, Self

from pymongo import MongoClient
from pymongo.errors import PyMongoError

DATABASE: Final = "thermocline_busy"
COLLECTION: Final = "events"
NAMESPACE: Final = f"{DATABASE}.{COLLECTION}"
POLICY: Final[dict[str, Any]] = {"namespace": NAMESPACE, "ageField": "at", "maxAge": "1h"}
DOCUMENTS: Final = 2_000
_UPDATED: Final = 50
_PAUSE_SECONDS: Final = 0.2


def _at(number: int) -> dt.datetime:
    """Half of the documents are hot, half are cold."""
    age = dt.timedelta(minutes=5) if number % 2 else dt.timedelta(days=number % 30 + 1)
    return dt.datetime.now(dt.UTC) - age


def seed(archive: MongoClient[dict[str, Any]]) -> None:
    """The collection as it was before Thermocline, with its index."""
    events = archive[DATABASE][COLLECTION]
    events.create_index("at")
    events.insert_many({"_id": n, "at": _at(n), "n": 0} for n in range(DOCUMENTS))


class Busy:
    """Updates cold documents (they are promoted, and evicted again), and checks that nothing is missing.

    ``rounds``: how many were done; ``wrong``: what it found, empty if all is well.
    """

    def __init__(self, uri: str) -> None:
        self.rounds = 0
        self.wrong: list[str] = []
        self._uri = uri
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="busy")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        with MongoClient[dict[str, Any]](self._uri, appname="busy") as client:
            events = client[DATABASE][COLLECTION]
            done: dict[int, int] = {}
            while not self._stop.wait(_PAUSE_SECONDS):
                number = self.rounds % _UPDATED * 2
                try:
                    result = events.update_one({"_id": number}, {"$inc": {"n": 1}})
                    found = events.find_one({"_id": number}) or {}
                    count = events.count_documents({}) if self.rounds % 20 == 0 else DOCUMENTS
                except PyMongoError:
                    done.pop(number, None)  # the update may have been executed
                    continue
                finally:
                    self.rounds += 1
                if (result.matched_count, count) != (1, DOCUMENTS):
                    self.wrong.append(f"{number}: {result.raw_result}; {count} documents")
                if number in done and found.get("n") != done[number] + 1:
                    self.wrong.append(f"{number}: {found} after {done[number]}")
                done[number] = int(found.get("n", -1))
