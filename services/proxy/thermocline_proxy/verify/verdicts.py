"""What a document is, seen in both tiers at one and the same point. Pure."""

import datetime as dt
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import bson
from bson import json_util
from bson.errors import BSONError

from thermocline_common.ages import scalar_date, to_milliseconds
from thermocline_common.coverage import Coverage, State
from thermocline_common.ids import DocId
from thermocline_common.removals import Kind, Record
from thermocline_common.ttl import Rule, may_have_expired

MAX_NAMED: Final = 10
"""So many documents are named in logs, status and the coverage document."""
_LONGEST_ID: Final = 120


class Difference(StrEnum):
    """In which way the tiers differ in a document."""

    CHANGED = "changed"
    MISSING = "missing"
    """The archive has it, and the fast tier should."""
    EXTRA = "extra"
    """The fast tier has it, and the archive lacks it."""
    DELETED = "deleted"
    """It was deleted in the fast tier, and the archive still has it."""


def judge(
    here: bytes | None,
    there: bytes | None,
    record: Record | None,
    coverage: Coverage,
    *,
    rules: Iterable[Rule] = (),
    now: dt.datetime | None = None,
) -> Difference | None:
    """The tiers' difference in one document; None: there is none, or it is as it should be.

    ``here``, ``record`` and ``coverage``: F's at exactly the feeder's checkpoint; ``there``: the archive's
    in the snapshot that holds this checkpoint. ``rules``: the archive's TTL rules, ``now`` its clock.
    """
    if here is not None and there is not None:
        return None if here == there else Difference.CHANGED
    if here is not None:
        expired = now is not None and may_have_expired(rules, here, now)
        return None if expired else Difference.EXTRA
    if there is None or (record is not None and record.kind is Kind.EXPIRED):
        return None  # an expired one is the archive's TTL monitor's to remove
    if record is not None and record.kind is Kind.DELETED:
        return Difference.DELETED
    return Difference.MISSING if is_promised(coverage, there) else None


def is_promised(coverage: Coverage, document: bytes) -> bool:
    """Whether the coverage document says that F holds such a document."""
    if coverage.state is not State.ACTIVE or coverage.published_at is None:
        return False
    if coverage.keep_all:
        return coverage.complete
    if coverage.floor is None or coverage.age_field is None:
        return False
    age = scalar_date(document, coverage.age_field)
    return age is None or age >= to_milliseconds(coverage.floor)


def describe(doc_id: DocId, difference: Difference) -> str:
    """Such as ``changed {"$oid": "..."}``; long ids are cut."""
    try:
        text = json_util.dumps(bson.decode(doc_id.document())["_id"])
    except (BSONError, ValueError, TypeError, OverflowError):
        text = f"BSON {doc_id.element().hex()}"
    if len(text) > _LONGEST_ID:
        text = text[:_LONGEST_ID] + "..."
    return f"{difference.value} {text}"
