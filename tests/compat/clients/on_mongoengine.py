"""An application on MongoEngine."""

import datetime as dt

import mongoengine as me
from answers import COLLECTION, URI, done, tell

NOW = dt.datetime.now(dt.UTC)


class Item(me.DynamicDocument):
    number = me.DynamicField(primary_key=True)
    kind = me.StringField()
    n = me.IntField(default=0)
    at = me.DateTimeField()
    meta = {"collection": COLLECTION, "indexes": ["at"]}


def seen(item):
    return [item.pk, item.kind, item.n]


client = me.connect("clients", host=URI)
tell("cold and hot", [seen(Item.objects.get(pk=number)) for number in (0, 1)])
tell("all", [seen(item) for item in Item.objects.order_by("pk").batch_size(6)])
tell("some", [item.pk for item in Item.objects(kind="b", n__gte=4).order_by("-pk")[:3]])
tell("hot ones", [item.pk for item in Item.objects(at__gt=NOW - dt.timedelta(days=20)).order_by("pk")])
tell("counts", [Item.objects.count(), Item.objects(kind="a").count(), Item.objects.sum("n")])
tell("distinct", Item.objects.distinct("kind"))
tell("pipeline", list(Item.objects.aggregate([{"$group": {"_id": "$kind", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}])))
tell("created", seen(Item(number=20, kind="d", n=1, at=NOW).save(force_insert=True)))
for number in (0, 1):
    try:
        Item(number=number).save(force_insert=True)
    except me.NotUniqueError:
        tell("not unique", number)
for number in (2, 3):
    item = Item.objects.get(pk=number)
    item.n += 100
    item.extra = ["x"]
    item.save()
    tell("saved", [*seen(item.reload()), item.extra])
tell("updated", Item.objects(kind="b").update(inc__n=1))
tell("modified", seen(Item.objects(pk=6).modify(set__kind="m", new=True)))
tell("upserted", Item.objects(pk="new").update_one(upsert=True, set__n=1, full_result=False))
Item.objects.get(pk=8).delete()
tell("deleted", [Item.objects(pk__in=[9, 10]).delete(), Item.objects.get(pk=11).pk])

items = Item._get_collection()


def transfer(session):
    items.update_one({"_id": 12}, {"$inc": {"n": -5}}, session=session)
    items.update_one({"_id": 13}, {"$inc": {"n": 5}}, session=session)


with client.start_session() as session:
    session.with_transaction(transfer)
tell("transaction", [seen(Item.objects.get(pk=number)) for number in (12, 13)])
with items.watch() as stream:
    Item(number="seen").save()
    Item.objects(pk="seen").delete()
    events = [next(stream) for _ in range(2)]
tell("stream", [[event["operationType"], event["documentKey"]] for event in events])
tell("all at the end", [seen(item) for item in Item.objects.order_by("pk")])
me.disconnect()
done()
