"""An application on PyMongo."""

import datetime as dt

from answers import COLLECTION, URI, done, tell
from pymongo import DeleteOne, InsertOne, MongoClient, ReturnDocument, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError

NOW = dt.datetime.now(dt.UTC)
SUMS = [{"$group": {"_id": "$kind", "n": {"$sum": "$n"}}}, {"$sort": {"_id": 1}}]

with MongoClient(URI) as client:
    items = client["clients"][COLLECTION]

    def found(number):
        return items.find_one({"_id": number}, {"at": 0})

    tell("cold", found(0))
    tell("hot", found(1))
    tell("all", list(items.find({}, {"at": 0}).sort("_id").batch_size(6)))
    tell("hot ones", [d["_id"] for d in items.find({"at": {"$gt": NOW - dt.timedelta(days=20)}}).sort("_id")])
    tell("count", [items.count_documents({}), items.estimated_document_count()])
    tell("distinct", items.distinct("kind"))
    tell("sums", list(items.aggregate(SUMS)))
    tell("insert", items.insert_one({"_id": 20, "kind": "d", "n": 1, "at": NOW}).inserted_id)
    for number in (0, 1):
        try:
            items.insert_one({"_id": number})
        except DuplicateKeyError as error:
            tell("duplicate", [error.code, error.details["keyValue"]])
    for number in (2, 3):
        changed = items.update_one({"_id": number}, {"$inc": {"n": 100}})
        tell("update", [changed.matched_count, changed.modified_count, found(number)])
    changed = items.update_many({"kind": "b"}, {"$set": {"many": True}})
    tell("update many", [changed.matched_count, changed.modified_count])
    tell("replace", items.replace_one({"_id": 4}, {"kind": "e", "n": 4}).modified_count)
    tell("find and modify", items.find_one_and_update(
        {"_id": 6}, {"$inc": {"n": 1}}, {"at": 0}, return_document=ReturnDocument.AFTER))
    tell("upsert", items.update_one({"_id": "new"}, {"$set": {"n": 1}}, upsert=True).upserted_id)
    tell("delete", [items.delete_one({"_id": number}).deleted_count for number in (8, 9, 99)])
    try:
        items.bulk_write([
            InsertOne({"_id": 21, "n": 21}), UpdateOne({"_id": 10}, {"$inc": {"n": 1}}),
            DeleteOne({"_id": 11}), InsertOne({"_id": 10}), InsertOne({"_id": 22}),
        ])
    except BulkWriteError as error:
        details = error.details
        tell("bulk", [details["nInserted"], details["nModified"], details["nRemoved"],
                      [(e["index"], e["code"]) for e in details["writeErrors"]]])

    def transfer(session):
        items.update_one({"_id": 12}, {"$inc": {"n": -5}}, session=session)
        items.update_one({"_id": 13}, {"$inc": {"n": 5}}, session=session)
        return [d["n"] for d in items.find({"_id": {"$in": [12, 13]}}, session=session).sort("_id")]

    with client.start_session() as session:
        tell("transaction", session.with_transaction(transfer))
        session.start_transaction()
        items.delete_one({"_id": 13}, session=session)
        session.abort_transaction()
    tell("after it", [found(12), found(13)])

    with items.watch(full_document="updateLookup") as stream:
        items.insert_one({"_id": "seen", "n": 1})
        items.update_one({"_id": 14}, {"$set": {"seen": True}})
        items.delete_one({"_id": "seen"})
        events = [next(stream) for _ in range(3)]
    tell("stream", [[e["operationType"], e["documentKey"], e.get("updateDescription")] for e in events])
    tell("sums at the end", list(items.aggregate(SUMS)))
    tell("all at the end", list(items.find({}, {"at": 0}).sort("_id").batch_size(6)))
done()
