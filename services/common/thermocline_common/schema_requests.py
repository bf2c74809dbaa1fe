"""Requests of proxies to have namespaces in ``Passthrough`` for one command; in the coverage documents.

The proxy that asks adds, keeps alive and takes back its request; the feeder grants it, and removes one
that nobody keeps alive. Everything commits with ``w: majority``.
"""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64

from thermocline_common import names
from thermocline_common.coverage import Coverage, parse_coverage
from thermocline_common.coverage_store import MAJORITY, read_linearizable
from thermocline_common.tiers import Tiers
from thermocline_common.write_replies import require_written


async def ask(tiers: Tiers, namespaces: Sequence[str], token: uuid.UUID, command: str) -> None:
    """Add the request where it isn't yet. Safe to repeat. Namespaces without a document are passed over."""
    request = {"token": _binary(token), "command": command, "beats": Int64(0)}
    missing = {"requests.token": {"$ne": _binary(token)}}
    await _update(tiers, namespaces, {"$push": {"requests": request}}, missing)


async def beat(tiers: Tiers, namespaces: Sequence[str], token: uuid.UUID) -> None:
    """Say that somebody still works on it."""
    await _update(
        tiers,
        namespaces,
        {"$inc": {"requests.$.beats": Int64(1)}},
        {"requests.token": _binary(token)},
    )


async def take_back(tiers: Tiers, namespaces: Sequence[str], token: uuid.UUID) -> None:
    """Remove it: done, or given up. Nothing happens where it isn't."""
    await _update(
        tiers,
        namespaces,
        {"$pull": {"requests": {"token": _binary(token)}}},
        {"requests.token": _binary(token)},
    )


async def grant(tiers: Tiers, coverage: Coverage) -> bool:
    """Grant what stands in ``coverage``, if the namespace is still as it was seen there."""
    tokens = [_binary(request.token) for request in coverage.requests]
    reply = await tiers.fast[names.DATABASE].command(
        {
            "update": names.COVERAGE,
            "updates": [
                {
                    "q": {
                        "_id": coverage.namespace,
                        "state": coverage.state.value,
                        "raised": Int64(coverage.raised),
                    },
                    "u": {"$set": {"requests.$[asked].granted": True}},
                    "arrayFilters": [{"asked.token": {"$in": tokens}}],
                }
            ],
            "writeConcern": MAJORITY,
        }
    )
    require_written(reply)
    return bool(reply["n"] == 1)


async def read_namespaces(tiers: Tiers, namespaces: Iterable[str]) -> dict[str, Coverage]:
    """The coverage documents of these namespaces, by namespace. Raises PyMongo's errors."""
    documents, _ = await read_linearizable(
        tiers.fast, names.COVERAGE, {"_id": {"$in": sorted(namespaces)}}
    )
    return {document["_id"]: parse_coverage(document) for document in documents}


async def _update(
    tiers: Tiers, namespaces: Sequence[str], update: dict[str, Any], also: dict[str, Any]
) -> None:
    reply = await tiers.fast[names.DATABASE].command(
        {
            "update": names.COVERAGE,
            "updates": [
                {"q": {"_id": namespace, **also}, "u": update} for namespace in sorted(namespaces)
            ],
            "writeConcern": MAJORITY,
        }
    )
    require_written(reply)


def _binary(token: uuid.UUID) -> Binary:
    return Binary.from_uuid(token)
