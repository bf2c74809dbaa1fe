'use strict';
// What every script here does with its answers: collect them, and print them as one line of extended JSON.
const told = [];
exports.uri = process.env.CLIENT_URI;
// In the database `clients`: {_id: 0..19, kind: "a" | "b" | "c", n, at}; those with an even _id are cold.
exports.collection = process.env.CLIENT_COLLECTION;
exports.tell = (step, answer) => told.push([step, answer === undefined ? null : answer]);
exports.sums = [{ $group: { _id: '$kind', n: { $sum: '$n' } } }, { $sort: { _id: 1 } }];
exports.run = async (EJSON, work) => {
  try {
    await work();
    console.log(EJSON.stringify(told, { relaxed: false }));
  } catch (error) {
    console.error(error);
    process.exitCode = 1;
  }
};
// Events of three writes, from a stream that is open before the first.
exports.events = async (stream, write) => {
  await stream.tryNext();
  await write();
  const events = [];
  while (events.length < 3) events.push(await stream.next());
  await stream.close();
  return events.map(event => [event.operationType, event.documentKey, event.updateDescription || null]);
};
