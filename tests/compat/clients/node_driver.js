'use strict';
// An application on the Node driver.
const { MongoClient, BSON } = require('mongodb');
const { uri, collection, tell, sums, run, events } = require('./answers');

run(BSON.EJSON, async () => {
  const client = new MongoClient(uri);
  const items = client.db('clients').collection(collection);
  const projection = { at: 0 };
  const one = _id => items.findOne({ _id }, { projection });
  tell('several at once', await Promise.all(Array.from({ length: 20 }, (_, i) => one(i))));
  const all = [];
  for await (const item of items.find({}, { projection, batchSize: 6 }).sort({ _id: 1 })) all.push(item);
  tell('all', all);
  tell('count', [await items.countDocuments(), await items.estimatedDocumentCount()]);
  tell('sums', await items.aggregate(sums).toArray());
  tell('insert', (await items.insertOne({ _id: 20, n: 1, at: new Date() })).insertedId);
  for (const _id of [0, 1]) {
    await items.insertOne({ _id }).catch(error => tell('duplicate', [error.code, error.keyValue]));
  }
  for (const _id of [2, 3]) {
    const changed = await items.updateOne({ _id }, { $inc: { n: 100 } });
    tell('update', [changed.matchedCount, changed.modifiedCount, await one(_id)]);
  }
  tell('update many', (await items.updateMany({ kind: 'b' }, { $set: { many: true } })).modifiedCount);
  tell('find and modify', await items.findOneAndUpdate(
    { _id: 6 }, { $inc: { n: 1 } }, { returnDocument: 'after', projection }));
  tell('delete', [(await items.deleteOne({ _id: 8 })).deletedCount, (await items.deleteOne({ _id: 9 })).deletedCount]);
  const bulk = await items.bulkWrite([
    { insertOne: { document: { _id: 21 } } }, { updateOne: { filter: { _id: 10 }, update: { $inc: { n: 1 } } } },
    { deleteOne: { filter: { _id: 11 } } }]);
  tell('bulk', [bulk.insertedCount, bulk.modifiedCount, bulk.deletedCount]);
  await client.withSession(session => session.withTransaction(async () => {
    await items.updateOne({ _id: 12 }, { $inc: { n: -5 } }, { session });
    await items.updateOne({ _id: 13 }, { $inc: { n: 5 } }, { session });
  }));
  tell('transaction', [await one(12), await one(13)]);
  tell('stream', await events(items.watch(), async () => {
    await items.insertOne({ _id: 'seen' });
    await items.updateOne({ _id: 14 }, { $set: { seen: true } });
    await items.deleteOne({ _id: 'seen' });
  }));
  tell('all at the end', await items.find({}, { projection }).sort({ _id: 1 }).toArray());
  await client.close();
});
