// What people type into mongosh. `shape` is of what two servers can't answer alike.
/* global db, show, print, EJSON, process */
const told = [];
const tell = (step, answer) => told.push([step, answer === undefined ? null : answer]);
const shape = document => Object.keys(document).filter(key => !['$clusterTime', 'operationTime'].includes(key)).sort();
const attempt = (step, work) => {
  try {
    tell(step, work());
  } catch (error) {
    tell(step, [error.name, error.code || error.message]);
  }
};
db = db.getSiblingDB('clients');
const items = db.getCollection(process.env.CLIENT_COLLECTION);

tell('cold and hot', items.find({ _id: { $in: [0, 1] } }, { at: 0 }).sort({ _id: 1 }).toArray());
tell('all', items.find({}, { at: 0 }).sort({ _id: 1 }).batchSize(6).toArray());
tell('count', [items.countDocuments(), items.estimatedDocumentCount()]);
tell('sums', items.aggregate([{ $group: { _id: '$kind', n: { $sum: '$n' } } }, { $sort: { _id: 1 } }]).toArray());
tell('insert', items.insertOne({ _id: 20, n: 1, at: new Date() }).insertedId);
attempt('duplicate', () => items.insertOne({ _id: 0 }));
tell('updates', [2, 3].map(_id => items.updateOne({ _id }, { $inc: { n: 100 } }).modifiedCount));
tell('find and modify', items.findOneAndUpdate({ _id: 6 }, { $inc: { n: 1 } }, { projection: { at: 0 } }));
tell('deletes', [8, 9].map(_id => items.deleteOne({ _id }).deletedCount));
tell('index', [items.createIndex({ kind: 1 }), items.getIndexes().map(index => index.name)]);

const session = db.getMongo().startSession();
session.withTransaction(() => {
  const inside = session.getDatabase('clients').getCollection(items.getName());
  inside.updateOne({ _id: 12 }, { $inc: { n: -5 } });
  inside.updateOne({ _id: 13 }, { $inc: { n: 5 } });
});
session.endSession();
tell('transaction', items.find({ _id: { $in: [12, 13] } }, { at: 0 }).sort({ _id: 1 }).toArray());

const stream = items.watch();
stream.tryNext();
items.insertOne({ _id: 'seen' });
items.deleteOne({ _id: 'seen' });
const events = [];
while (events.length < 2) {
  const event = stream.tryNext();
  if (event) events.push([event.operationType, event.documentKey]);
}
stream.close();
tell('stream', events);

tell('all at the end', items.find({}, { at: 0 }).sort({ _id: 1 }).toArray());
tell('show dbs', db.getMongo().getDBNames().filter(name => name === 'clients'));
tell('show collections', db.getCollectionNames().filter(name => name === items.getName()));
tell('db.stats()', [shape(db.stats()), db.stats().db]);
tell('collection.stats()', [items.stats().count, items.stats().nindexes]);
tell('validate', items.validate().valid);
tell('version', db.version());
tell('db.serverStatus()', ['version', 'uptime', 'connections', 'opcounters', 'mem', 'network'].filter(key => key in db.serverStatus()));
tell('db.serverBuildInfo()', shape(db.serverBuildInfo()));
tell('db.hostInfo()', shape(db.hostInfo()));
tell('db.currentOp()', [Array.isArray(db.currentOp().inprog), db.currentOp().ok]);
tell('$currentOp', db.getSiblingDB('admin').aggregate([{ $currentOp: {} }]).toArray().length > 0);
tell('connectionStatus', db.runCommand({ connectionStatus: 1 }).authInfo);
attempt('rs.status()', () => rs.status().members.map(member => member.stateStr));
attempt('explain', () => 'queryPlanner' in items.find({ _id: 1 }).explain());
attempt('getLog', () => db.adminCommand({ getLog: 'startupWarnings' }).ok);
attempt('getCmdLineOpts', () => db.adminCommand({ getCmdLineOpts: 1 }).ok);
attempt('no such command', () => db.runCommand({ nothing: 1 }));
print(EJSON.stringify(told, { relaxed: false }));
