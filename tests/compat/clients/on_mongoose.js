'use strict';
// An application on Mongoose.
const mongoose = require('mongoose');
const { uri, collection, tell, sums, run, events } = require('./answers');

run(mongoose.mongo.BSON.EJSON, async () => {
  const schema = new mongoose.Schema({
    _id: mongoose.Schema.Types.Mixed, kind: { type: String, index: true }, n: { type: Number, default: 0 },
    at: { type: Date, index: true }, tags: [String]
  }, { collection, versionKey: '__v' });
  await mongoose.connect(uri, { dbName: 'clients' });
  const Item = mongoose.model('Item', schema);
  await Item.init();
  const seen = item => item && [item._id, item.kind, item.n, item.tags];
  tell('indexes', (await Item.listIndexes()).map(index => index.key));
  tell('several at once', (await Promise.all(Array.from({ length: 20 }, (_, i) => Item.findById(i)))).map(seen));
  tell('lean', (await Item.find({ kind: 'b' }).select('-at').sort('-_id').limit(3).lean()));
  const all = [];
  for await (const item of Item.find().sort('_id').batchSize(6).cursor()) all.push(seen(item));
  tell('all', all);
  tell('counts', [await Item.countDocuments(), await Item.exists({ _id: 99 }), (await Item.distinct('kind')).sort()]);
  tell('sums', await Item.aggregate(sums));
  tell('create', seen(await Item.create({ _id: 20, kind: 'd', n: 1, at: new Date() })));
  for (const _id of [0, 1]) {
    await Item.create({ _id }).catch(error => tell('duplicate', [error.code, error.keyValue]));
  }
  for (const _id of [2, 3]) {
    const item = await Item.findById(_id);
    item.n += 100;
    item.tags.push('x');
    await item.save();
    tell('saved', seen(await Item.findById(_id)));
  }
  tell('find and modify', seen(await Item.findOneAndUpdate({ _id: 6 }, { $inc: { n: 1 } }, { returnDocument: 'after' })));
  tell('delete', [(await Item.deleteOne({ _id: 8 })).deletedCount, seen(await Item.findByIdAndDelete(9))]);
  tell('insert many', (await Item.insertMany([{ _id: 21 }, { _id: 22 }])).map(seen));
  await mongoose.connection.transaction(async session => {
    await Item.updateOne({ _id: 12 }, { $inc: { n: -5 } }).session(session);
    await Item.updateOne({ _id: 13 }, { $inc: { n: 5 } }).session(session);
  });
  tell('transaction', [seen(await Item.findById(12)), seen(await Item.findById(13))]);
  tell('stream', await events(Item.collection.watch(), async () => {
    await Item.create({ _id: 'seen' });
    await Item.updateOne({ _id: 14 }, { kind: 'seen' });
    await Item.deleteOne({ _id: 'seen' });
  }));
  tell('all at the end', (await Item.find().sort('_id')).map(seen));
  await mongoose.disconnect();
});
