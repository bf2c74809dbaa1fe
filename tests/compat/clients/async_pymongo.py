"""An application on PyMongo's asyncio client."""

import asyncio
import datetime as dt

from answers import COLLECTION, URI, done, tell
from pymongo import AsyncMongoClient, ReturnDocument
from pymongo.errors import DuplicateKeyError

NOW = dt.datetime.now(dt.UTC)
SUMS = [{"$group": {"_id": "$kind", "n": {"$sum": "$n"}}}, {"$sort": {"_id": 1}}]


async def work(client):
    items = client["clients"][COLLECTION]
    tell("several at once", await asyncio.gather(
        *(items.find_one({"_id": number}, {"at": 0}) for number in range(20))))
    tell("all", [d async for d in items.find({}, {"at": 0}).sort("_id").batch_size(6)])
    tell("count", await items.count_documents({}))
    tell("sums", await (await items.aggregate(SUMS)).to_list())
    tell("insert", (await items.insert_one({"_id": 20, "n": 1, "at": NOW})).inserted_id)
    for number in (0, 1):
        try:
            await items.insert_one({"_id": number})
        except DuplicateKeyError as error:
            tell("duplicate", [error.code, error.details["keyValue"]])
    for number in (2, 3):
        changed = await items.update_one({"_id": number}, {"$inc": {"n": 100}})
        tell("update", [changed.matched_count, changed.modified_count])
    tell("find and modify", await items.find_one_and_update(
        {"_id": 6}, {"$inc": {"n": 1}}, {"at": 0}, return_document=ReturnDocument.AFTER))
    tell("delete", [(await items.delete_one({"_id": number})).deleted_count for number in (8, 9)])

    async def transfer(session):
        await items.update_one({"_id": 12}, {"$inc": {"n": -5}}, session=session)
        await items.update_one({"_id": 13}, {"$inc": {"n": 5}}, session=session)
        return await items.find_one({"_id": 12}, {"at": 0}, session=session)

    async with client.start_session() as session:
        tell("transaction", await session.with_transaction(transfer))

    async with await items.watch() as stream:
        await items.insert_one({"_id": "seen"})
        await items.update_one({"_id": 14}, {"$set": {"seen": True}})
        await items.delete_one({"_id": "seen"})
        events = [await stream.next() for _ in range(3)]
    tell("stream", [[event["operationType"], event["documentKey"]] for event in events])
    tell("all at the end", await items.find({}, {"at": 0}).sort("_id").to_list())


async def main():
    async with AsyncMongoClient(URI) as client:
        await work(client)
    done()


asyncio.run(main())
