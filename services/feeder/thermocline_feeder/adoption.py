"""A resource that was deleted and made anew takes over what is left of the earlier one of its name.

Only where nothing is tiered any more: then what is left is history (retryable writes are looked up by it
for half an hour), and no write can be missed. Everything else stays the earlier one's, and is refused.
"""

import logging
from collections.abc import Mapping
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64

from thermocline_common import names
from thermocline_common.coverage import State, parse_coverage
from thermocline_common.coverage_store import MAJORITY, read_linearizable
from thermocline_common.tiers import Tiers
from thermocline_common.write_replies import require_written
from thermocline_feeder.checkpoint import Checkpoint, Owner

log = logging.getLogger(__name__)


def may_succeed(owner: Owner, theirs: Mapping[str, Any] | None) -> bool:
    """Whether ``theirs`` is an earlier resource of the same name, on the same two replica sets. Pure."""
    if theirs is None:
        return False
    here = owner.document()
    same = all(here[k] == theirs.get(k) for k in here if k != "uid")
    return same and bool(owner.uid) and bool(theirs.get("uid")) and owner.uid != theirs.get("uid")


async def adopt(tiers: Tiers, owner: Owner, found: Checkpoint) -> bool:
    """Make ``owner`` the one whose data this is; False: something is tiered still, or somebody was first.

    ``found`` must be a checkpoint that nobody owns or beats. Safe to repeat after a crash. Raises
    PyMongo's errors.
    """
    documents, _ = await read_linearizable(tiers.fast, names.COVERAGE, {})
    listed, _ = await read_linearizable(tiers.archive, names.TIERED, {})
    left = {document["_id"] for document in documents if _is_left(document)}
    # Listed, but unknown to the fast tier: that tier may not be the one that it was.
    if len(left) != len(documents) or {d["_id"] for d in listed} - left or found.quarantine:
        return False
    theirs = (found.owner or {}).get("uid")
    for client, collection in ((tiers.fast, names.COVERAGE), (tiers.archive, names.TIERED)):
        reply = await client[names.DATABASE].command(
            {
                "update": collection,
                "updates": [
                    {
                        "q": {"owner.uid": theirs},
                        "u": {"$set": {"owner": owner.document()}},
                        "multi": True,
                    }
                ],
                "writeConcern": MAJORITY,
            }
        )
        require_written(reply)
    feeder = {"$exists": False} if found.feeder is None else Binary.from_uuid(found.feeder)
    reply = await tiers.archive[names.DATABASE].command(
        {
            "update": names.CHECKPOINT,
            "updates": [
                {
                    "q": {
                        "_id": names.CHECKPOINT_ID,
                        "heartbeat": Int64(found.heartbeat),
                        "feeder": feeder,
                        "owner.uid": theirs,
                    },
                    "u": {
                        "$set": {"owner": owner.document()},
                        "$unset": {"feeder": 1},
                        "$inc": {"heartbeat": Int64(1)},
                    },
                }
            ],
            "writeConcern": MAJORITY,
        }
    )
    require_written(reply)
    log.info("took over what an earlier resource of this name left", extra={"uid": str(theirs)})
    return bool(reply["n"] == 1)


def _is_left(document: Mapping[str, Any]) -> bool:
    coverage = parse_coverage(document)
    return (
        coverage.state is State.PASSTHROUGH and coverage.fast_uuid is None and not coverage.requests
    )
