"""What the tiers and the proxies hold at the end, byte for byte."""

from collections.abc import Mapping
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.read_concern import ReadConcern

from support.chaos import checks
from support.chaos.clients import DATABASE
from support.chaos.cluster import Cluster
from support.chaos.ddl import SCRATCH
from support.chaos.histories import Violation
from support.chaos.shop import AGED


def read_archive(cluster: Cluster) -> dict[str, dict[bytes, bytes]]:
    """Every collection's documents by their ids."""
    with cluster.archive.client() as client:
        return {name: _raw(client, name) for name in (*AGED, *SCRATCH)}


def judge_tiers(cluster: Cluster, archive: Mapping[str, Mapping[bytes, bytes]]) -> list[Violation]:
    """F holds nothing that the archive doesn't, and the proxies show what the archive holds."""
    violations = []
    options: dict[str, Any] = {"serverSelectionTimeoutMS": 30_000}
    with (
        cluster.fast.client() as fast,
        MongoClient[dict[str, Any]](cluster.uri(), **options) as proxies,
    ):
        for name, held in archive.items():
            violations += checks.judge_tiers(name, _raw(fast, name), held)
            violations += checks.judge_contents(name, "the proxies", _raw(proxies, name), held)
    return violations


def decoded(document: bytes) -> dict[str, Any]:
    """As clients see it."""
    return bson.decode(document, CodecOptions(tz_aware=True))


def _raw(client: MongoClient[dict[str, Any]], name: str) -> dict[bytes, bytes]:
    options: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
    collection: Collection[Any] = client[DATABASE].get_collection(
        name, codec_options=options, read_concern=ReadConcern("majority")
    )
    return {repr(d["_id"]).encode(): bytes(d.raw) for d in collection.find({})}
