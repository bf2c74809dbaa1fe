"""The coverage document: what F holds of one namespace, and in which state the namespace is.

Stored in ``thermocline.coverage`` of the fast tier, one per namespace under a policy. Only values
here; reading and writing it is ``coverage_store``.
"""

import datetime as dt
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from bson.timestamp import Timestamp


class State(StrEnum):
    """Where a namespace is; the feeder alone moves it."""

    PASSTHROUGH = "Passthrough"
    PAUSING = "Pausing"
    ACTIVE = "Active"


class Tier(StrEnum):
    """One of the two replica sets."""

    FAST = "fast"
    ARCHIVE = "archive"


KEEP_ALL = "All"


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index besides ``_id``'s: its name, key paths, and whether it is *plain*.

    Plain: not sparse, not partial, simple collation, and plain ascending/descending keys. Only a
    plain one lets a lookup by its key be answered.
    """

    name: str
    paths: tuple[str, ...]
    plain: bool


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A proxy's wish to run a command on A alone: the namespace is in ``Passthrough`` while it stands.

    ``command``: its name. ``beats`` is raised by a proxy that still works on it. ``granted``: F is
    emptied, and no proxy reads it any more.
    """

    token: uuid.UUID
    command: str
    beats: int = 0
    granted: bool = False


@dataclass(frozen=True, slots=True)
class Doubt:
    """A proxy's self-check found the tiers to differ: reads go to the archive until a person releases it.

    ``documents``: some of them as text, such as ``missing {"_id": 5}`` (the fast tier lacks it); ``count``:
    how many were found. ``command``: the name of the read that noticed.
    """

    since: dt.datetime | None = None
    command: str = ""
    documents: tuple[str, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class Coverage:
    """A coverage document, parsed. Field meanings: section 2 of the architecture.

    ``floor`` and ``claim``: UTC datetimes (timezone-aware); None = nothing covered / no claim
    (absent counts as later than every date). ``archive_time`` is a cluster time of the archive,
    ``archive_cluster_time`` the archive's own signed ``$clusterTime`` document that goes with it.
    ``published_at``: a cluster time of F at which ``floor`` (or ``complete``) was verified.
    ``raised`` counts raises of the floor, changes of age field and of state. ``look_back`` names the
    tier that was left by the last switch, for 30 minutes after it. ``activated_at``: a cluster time of F
    at which the activation had emptied F, and nobody had written yet: no change stream begins before.
    ``requests``: commands that wait for the namespace to be A's alone, or run there now.
    ``doubt``: stands while reads of the namespace go to the archive alone.
    """

    namespace: str
    state: State
    target: State
    age_field: str | None = None
    keep_all: bool = False
    fast_uuid: uuid.UUID | None = None
    archive_uuid: uuid.UUID | None = None
    archive_time: Timestamp | None = None
    archive_cluster_time: Mapping[str, Any] | None = None
    floor: dt.datetime | None = None
    complete: bool = False
    published_at: Timestamp | None = None
    claim: dt.datetime | None = None
    raised: int = 0
    epoch: uuid.UUID | None = None
    look_back: Tier | None = None
    activated_at: Timestamp | None = None
    unique: tuple[UniqueIndex, ...] = ()
    requests: tuple[SchemaRequest, ...] = ()
    doubt: Doubt | None = None
    unknown_fields: Mapping[str, Any] = field(default_factory=dict)


def parse_coverage(document: Mapping[str, Any]) -> Coverage:
    """From a decoded document (``tz_aware=True``, ``uuidRepresentation=standard``).

    Raises ``KeyError`` or ``ValueError`` where a required field is missing or wrong.
    """
    uuids = document.get("uuids") or {}
    look_back = document.get("lookBack")
    known = {
        "_id", "formatVersion", "owner", "state", "target", "ageField", "keep", "uuids", "archiveTime",
        "archiveClusterTime", "floor", "complete", "publishedAt", "claim", "raised", "epoch", "lookBack", "unique",
        "activatedAt", "requests", "archiveOnly",
    }  # fmt: skip
    return Coverage(
        namespace=document["_id"],
        state=State(document["state"]),
        target=State(document["target"]),
        age_field=document.get("ageField"),
        keep_all=document.get("keep") == KEEP_ALL,
        fast_uuid=uuids.get("fast"),
        archive_uuid=uuids.get("archive"),
        archive_time=document.get("archiveTime"),
        archive_cluster_time=document.get("archiveClusterTime"),
        floor=document.get("floor"),
        complete=bool(document.get("complete", False)),
        published_at=document.get("publishedAt"),
        claim=document.get("claim"),
        raised=int(document.get("raised", 0)),
        epoch=document.get("epoch"),
        look_back=Tier(look_back) if look_back else None,
        activated_at=document.get("activatedAt"),
        unique=tuple(
            UniqueIndex(u["name"], tuple(u["paths"]), bool(u["plain"]))
            for u in document.get("unique", ())
        ),
        requests=tuple(
            SchemaRequest(
                r["token"], str(r["command"]), int(r.get("beats", 0)), bool(r.get("granted", False))
            )
            for r in document.get("requests", ())
        ),
        doubt=_parse_doubt(document.get("archiveOnly")),
        unknown_fields={k: v for k, v in document.items() if k not in known},
    )


def _parse_doubt(found: Mapping[str, Any] | None) -> Doubt | None:
    """Whatever stands there counts: a doubt that can't be read is one all the same."""
    if found is None:
        return None
    if not isinstance(found, Mapping):
        return Doubt()
    documents = found.get("documents")
    since = found.get("since")
    count = found.get("count")
    return Doubt(
        since if isinstance(since, dt.datetime) else None,
        str(found.get("command", "")),
        tuple(str(one) for one in documents) if isinstance(documents, list) else (),
        int(count) if isinstance(count, int) else 0,
    )


def trusted(coverage: Coverage) -> Coverage:
    """What a proxy may rest on: in doubt nothing counts as covered, so writes look their matches up in A too."""
    return coverage if coverage.doubt is None else replace(coverage, floor=None, complete=False)


def covers(coverage: Coverage, lower_bound: dt.datetime) -> bool:
    """Whether F surely holds every live document with an age at or above ``lower_bound``."""
    if coverage.state is not State.ACTIVE:
        return False
    if coverage.keep_all:
        return coverage.complete
    return coverage.floor is not None and lower_bound >= coverage.floor
