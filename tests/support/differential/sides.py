"""The two servers as one application thread sees them."""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.client_session import ClientSession

from support.differential.answers import TRANSIENT, Answer, essence
from support.differential.layout import SHOP
from support.differential.step import Concern, Step

RAW: Final[CodecOptions[RawBSONDocument]] = CodecOptions(
    document_class=RawBSONDocument,
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
)
Client = MongoClient[dict[str, Any]]
TRY_SECONDS: Final = 60
_READS = frozenset({"find", "count", "distinct", "aggregate", "listIndexes", "listCollections"})


@dataclass(slots=True)
class Tally:
    """What a run did. ``waits``: transient errors that were tried again, by code."""

    steps: Counter[str] = field(default_factory=Counter)
    errors: Counter[int] = field(default_factory=Counter)
    waits: Counter[int] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    slowest: tuple[float, str] = (0.0, "")

    def took(self, seconds: float, kind: str) -> None:
        """Remember how long Thermocline's answers took, and the slowest."""
        self.seconds[kind] += seconds
        self.slowest = max(self.slowest, (round(seconds, 2), kind))

    def __str__(self) -> str:
        """A line for each of its parts."""
        longest = sorted(self.seconds.items(), key=lambda item: -item[1])[:8]
        parts: list[tuple[str, object]] = [
            ("commands", self.steps.total()), ("by kind", dict(self.steps.most_common())), ("errors", dict(self.errors)),
            ("tried again", dict(self.waits)), ("refused", dict(self.refused)), ("changes", dict(self.changes)),
            ("change streams", dict(self.events)), ("slowest", self.slowest),
            ("seconds", {kind: round(seconds, 1) for kind, seconds in longest}),
        ]  # fmt: skip
        return "\n".join(f"  {name}: {value}" for name, value in parts)


class Side:
    """One of the two servers."""

    def __init__(self, client: Client, tally: Tally | None) -> None:
        self.client = client
        self.session: ClientSession = client.start_session(causal_consistency=False)
        self.tally = tally
        self.last_error = ""

    def send(self, command: Mapping[str, Any], *, database: str = SHOP) -> RawBSONDocument:
        """One command, tried again on transient errors where a driver would."""
        deadline = time.monotonic() + TRY_SECONDS
        while True:
            reply: RawBSONDocument = self.client[database].command(
                dict(command),
                check=False,
                codec_options=RAW,
                session=self.session,
            )
            code = reply.get("code")
            if not reply.get("ok"):
                self.last_error = str(reply.get("errmsg"))
            name = next(iter(command))
            if "autocommit" in command:
                safe = name == "commitTransaction"
            else:
                safe = "txnNumber" in command or name in _READS
            if reply.get("ok") or code not in TRANSIENT or not safe or time.monotonic() > deadline:
                return reply
            if self.tally is not None:
                self.tally.waits[code] += 1
            time.sleep(0.05)

    def answer(
        self, step: Step, command: Mapping[str, Any], transaction: Mapping[str, Any] | None = None
    ) -> Answer:
        """Send the step's command, as given, and read its cursor to the end."""
        if step.concern is Concern.CAUSAL and self.session.operation_time is not None:
            concern = {
                **command.get("readConcern", {}),
                "afterClusterTime": self.session.operation_time,
            }
            command = {**command, "readConcern": concern}
        reply = self.send(command, database=step.database)
        batches: list[int] = []
        documents: list[bytes] = []
        cursor = reply.get("cursor") if reply.get("ok") else None
        more: dict[str, Any] = dict(transaction or {})
        if "batchSize" in command:
            more["batchSize"] = command["batchSize"]
        key = "firstBatch"
        while cursor is not None:
            batches.append(len(cursor[key]))
            documents += [document.raw for document in cursor[key]]
            if not cursor["id"]:
                break
            if step.kind == "first page":
                killed = self.send(
                    {"killCursors": step.collection, "cursors": [Int64(cursor["id"])]},
                    database=step.database,
                )
                counts = {n: len(killed[n]) for n in ("cursorsKilled", "cursorsNotFound")}
                return {**essence(reply), **counts}, batches, documents
            collection = cursor["ns"].partition(".")[2]
            following = {"getMore": Int64(cursor["id"]), "collection": collection, **more}
            page = self.send(following, database=step.database)
            if not page.get("ok"):
                return essence(page), batches, documents
            cursor, key = page["cursor"], "nextBatch"
        return essence(reply), batches, documents
