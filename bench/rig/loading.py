"""Fills the archive: in the order of age, as years would have, with an index on the date."""

import time

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, MongoClient, WriteConcern

from rig.documents import Catalogue, Document
from rig.wire import COLLECTION, DATABASE

BATCH = 2_000
ROOMY_MB = 1_024


def load(client: MongoClient[Document], catalogue: Catalogue) -> float:
    """Insert all documents and build the index; returns the seconds that it took."""
    began = time.monotonic()
    # The small cache would be the limit here; a restart brings it back.
    client.admin.command("setParameter", 1, wiredTigerEngineRuntimeConfig=f"cache_size={ROOMY_MB}M")
    orders = client.get_database(DATABASE, write_concern=WriteConcern(1))[COLLECTION]
    for start in range(0, catalogue.count, BATCH):
        stop = min(start + BATCH, catalogue.count)
        orders.insert_many(
            [
                RawBSONDocument(bson.encode(catalogue.document(number)))
                for number in range(start, stop)
            ],
            ordered=False,
        )
        if start % (100 * BATCH) == 0:
            print(f"  loaded {stop:,} of {catalogue.count:,} documents", flush=True)
    orders.create_index([("t", ASCENDING)])
    client.admin.command("fsync")
    return time.monotonic() - began
