"""The documents before a run, and whether they are the same everywhere behind it."""

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from bson import decode, encode

from support.differential.layout import SHARED, SHOP, Collection, beside, own_collections
from support.differential.report import Mismatch, Places
from support.differential.sides import RAW, Client
from support.differential.streams import Stream
from support.mongod import ReplicaSet
from support.processes import wait_until
from support.services import Thermocline


def collections(streams: int) -> list[Collection]:
    """All that streams write to."""
    return [*SHARED, *(c for partition in range(streams) for c in own_collections(partition))]


def prepare(replica_sets: Iterable[ReplicaSet], seed: int, streams: int, now: dt.datetime) -> None:
    """The same documents, cold and warm, in each of the sets."""
    filled: list[tuple[Collection, list[dict[str, Any]]]] = []
    for partition in range(streams):
        maker = Stream(seed, 100 + partition, lambda: now)
        stream = Stream(seed, partition, lambda: now)
        for collection in (*SHARED, *own_collections(partition)):
            # More than the streams touch, so that warming has something to do.
            chosen = [(stream, index) for index in range(0, len(stream.ids), 2)]
            if not collection.own:
                chosen += [(maker, index) for index in range(len(maker.ids))]
            documents = []
            for source, index in chosen:
                document = source.document(collection, index)
                document["_id"] = source.ids[index]
                if "sku" in document:
                    document["sku"] = f"{source.partition}-{index}"
                documents.append(document)
            filled.append((collection, documents))
    for replica_set in replica_sets:
        with replica_set.client() as client:
            _create(client, streams)
            for collection, documents in filled:
                client[collection.database][collection.name].insert_many(documents)


def _create(client: Client, streams: int) -> None:
    for database in {collection.database for collection in collections(streams)}:
        client.drop_database(database)
    for collection in collections(streams):
        images: Any = {"enabled": collection.name == "events"}
        made = client[collection.database].create_collection(
            collection.name, changeStreamPreAndPostImages=images
        )
        for path in filter(None, (collection.age, collection.also)):
            made.create_index([(path, 1)])
        if collection.unique:
            made.create_index([("sku", 1)], unique=True)
    shop = client[SHOP]
    for partition in range(streams):
        names = beside(partition)
        mine = [{"$match": {"p": partition}}, {"$project": {"lines": 0}}]
        shop.create_collection(names["view"], viewOn="orders", pipeline=mine)
        upper = [{"$match": {"qty": {"$gt": 2}}}]
        shop.create_collection(names["view of view"], viewOn=names["view"], pipeline=upper)
        shop.create_collection(names["capped"], capped=True, size=4096)
        series = {"timeField": "t", "metaField": "m"}
        shop.create_collection(names["series"], timeseries=series)


def verify(oracle: ReplicaSet, thermocline: Thermocline, streams: int, places: Places) -> int:
    """At rest: the archive byte for byte, the answers through the proxy, and F within A.

    Returns the number of documents. Raises :class:`Mismatch`.
    """
    total = 0
    with (
        oracle.client() as plain,
        thermocline.fast.client() as fast,
        thermocline.archive.client() as archive,
        thermocline.client() as proxied,
    ):
        for collection in collections(streams):
            truth = _contents(plain, collection)
            total += len(truth)
            _wait_for_rest(thermocline, fast, collection)
            held = _contents(archive, collection)
            part = _contents(fast, collection)
            _same(places, "the archive", collection, truth, held)
            _same(places, "the proxy", collection, truth, _contents(proxied, collection))
            _same(places, "the fast tier", collection, {k: held.get(k) for k in part}, part)
    return total


def _wait_for_rest(thermocline: Thermocline, fast: Client, collection: Collection) -> None:
    """What a namespace that left has in F, nobody reads; the feeder drops it a moment later."""

    def rests() -> bool:
        state = (thermocline.coverage(collection.namespace) or {}).get("state")
        return state == "Active" or not _contents(fast, collection)

    wait_until(f"{collection.namespace} is active, or its copies are dropped", rests, 60, 0.2)


def _same(
    places: Places,
    what: str,
    collection: Collection,
    left: Mapping[Any, Any],
    right: Mapping[Any, Any],
) -> None:
    wrong = [key for key in {*left, *right} if left.get(key) != right.get(key)]
    if wrong:
        where = "\n".join(
            places.where(collection.namespace, decode(key)["_id"]) for key in wrong[:5]
        )
        raise Mismatch(
            f"at rest {what} differs in {len(wrong)} documents of {collection.namespace}:\n{where}\n"
            f"{places.standing(collection.namespace)}"
        )


def _contents(client: Client, collection: Collection) -> dict[bytes, bytes]:
    source: Any = client[collection.database].get_collection(collection.name, codec_options=RAW)
    return {encode({"_id": document["_id"]}): bytes(document.raw) for document in source.find({})}
