"""The values that a stream draws from: ids, dates, documents, filters, updates.

Pure but for the clock that is passed in.
"""

import datetime as dt
import random
from typing import Any

from bson.decimal128 import Decimal128
from bson.int64 import Int64

from support.differential.bson_values import any_value, identifiers
from support.differential.layout import Clock, Collection, Document

LOOSE: Document = {"locale": "en", "strength": 2}


class Values:
    """Draws values for one partition, from one seed."""

    def __init__(self, seed: int, partition: int, clock: Clock) -> None:
        self.random = random.Random(f"{seed}/{partition}")
        self.partition = partition
        self.clock = clock
        self.ids = identifiers(partition, random.Random(f"{seed}/{partition}/ids"))
        self.serial = 0

    def chance(self, share: float) -> bool:
        """True in that share of all draws."""
        return self.random.random() < share

    def pick_index(self) -> int:
        """Which id: half of all draws fall on a sixth of them, so that operations meet."""
        size = len(self.ids)
        return self.random.randrange(size // 6 if self.chance(0.5) else size)

    def pick_id(self, index: int) -> Any:
        """The id, where it is a number in one of the types that MongoDB calls equal."""
        value = self.ids[index]
        if isinstance(value, int) and not isinstance(value, bool):
            equals = [value, value, value, Int64(value), float(value), Decimal128(str(value))]
            return self.random.choice(equals)
        return value

    def pick_ids(self, least: int, most: int) -> list[Any]:
        """Several ids, the same one twice at times."""
        return [self.pick_id(self.pick_index()) for _ in range(self.random.randrange(least, most))]

    def a_date(self, collection: Collection) -> dt.datetime:
        """A date within the collection's span, or two seconds ahead."""
        age = self.random.uniform(-2, collection.span)
        return self.clock() - dt.timedelta(milliseconds=int(age * 1000))

    def an_age(self, collection: Collection) -> Any:
        """Mostly a date; sometimes nothing that has one age."""
        odd: list[Any] = [
            None, "yesterday", 17, [self.a_date(collection)], [], self.clock() + dt.timedelta(days=400),
            [self.a_date(collection), self.a_date(collection)], dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
            any_value(self.random),
        ]  # fmt: skip
        return self.random.choice(odd) if self.chance(0.12) else self.a_date(collection)

    def a_sku(self) -> str:
        """A unique key that others have, too."""
        return f"{self.partition}-{self.random.randrange(60)}"

    def document(self, collection: Collection, index: int) -> Document:
        """A new document; its ``serial`` names it."""
        self.serial += 1
        document: Document = {
            "_id": self.pick_id(index), "p": self.partition, "ref": f"{self.partition}-{index}",
            "serial": self.serial, "qty": self.random.randrange(9), "tag": self.random.choice("abcd"),
            "lines": [{"n": n, "q": self.random.randrange(3)} for n in range(self.random.randrange(3))],
        }  # fmt: skip
        if collection.unique or collection.own:
            document["sku"] = self.a_sku()
        if self.chance(0.3):
            document["any"] = any_value(self.random)
        if collection.also and self.chance(0.9):
            document[collection.also] = self.an_age(collection)
        if collection.age and self.chance(0.97):
            head, _, tail = collection.age.partition(".")
            value = self.an_age(collection)
            document[head] = {tail: value, "by": "x"} if tail else value
        return document

    def a_filter(self, collection: Collection) -> Document:
        """A filter that stays inside the partition."""
        r = self.random
        conditions: list[Document] = [
            {"tag": r.choice("abcd")}, {"qty": {"$gt": r.randrange(9)}}, {"lines.n": 1},
            {"serial": {"$mod": [3, r.randrange(3)]}}, {"missing": None}, {"any": {"$eq": any_value(r)}},
            {"any": {"$type": r.randrange(1, 20)}}, {"any": {"$gte": any_value(r)}},
        ]  # fmt: skip
        for age in filter(None, (collection.age, collection.also)):
            date = self.a_date(collection)
            other = date + dt.timedelta(seconds=r.uniform(0, collection.span / 2))
            other = other.replace(microsecond=other.microsecond // 1000 * 1000)
            recent = self.clock() - dt.timedelta(seconds=r.randrange(4))
            conditions += [
                {age: {"$gte": recent}}, {age: {"$gte": date}}, {age: {"$gt": date, "$lt": other}},
                {age: {"$lt": date}}, {age: {"$lte": recent}}, {age: None}, {age: {"$exists": False}},
                {age: {"$ne": date}}, {age: {"$not": {"$lt": date}}}, {age: {"$type": "date"}},
                {age: {"$in": [date, None]}}, {"$expr": {"$gte": [f"${age}", date]}},
                {"$or": [{age: {"$gte": recent}}, {age: {"$gte": date}, "tag": "a"}]},
                {"$or": [{age: {"$gte": recent}}, {"tag": "b"}]}, {"$nor": [{age: {"$gte": date}}]},
                {"$and": [{age: {"$gte": date}}, {"qty": {"$lt": 5}}]}, {age: "yesterday"},
                {age: {"$elemMatch": {"$gte": date}}}, {age: {"$eq": any_value(r)}},
            ]  # fmt: skip
        return {"p": self.partition, **r.choice(conditions)}

    def an_update(self, collection: Collection, index: int) -> Any:
        """An update that may fail, by one of MongoDB's own rules."""
        r = self.random
        self.serial += 1
        choices: list[Any] = [
            {"$set": {"serial": self.serial}}, {"$inc": {"qty": 1}}, {"$inc": {"qty": 1}, "$set": {"x.y": self.serial}},
            {"$push": {"lines": {"n": self.serial, "q": 1}}}, {"$pop": {"lines": 1}}, {"$unset": {"tag": 1}},
            {"$set": {"tag": r.choice("abcd")}}, {"$rename": {"x": "z"}}, {"$max": {"qty": 5}},
            {"$set": {"qty": r.randrange(9)}}, {"$set": {"ref": f"{self.partition}-{index}"}},
            {"$inc": {"tag": 1}}, {"$set": {"lines.0.q": 7}}, {"$set": {"any": any_value(r)}},
            {"$mul": {"qty": 2}}, {"$bit": {"qty": {"and": 7}}}, {"$addToSet": {"set": {"$each": [1, r.randrange(3)]}}},
            {"$pull": {"lines": {"q": 1}}}, {"$push": {"lines": {"$each": [{"n": 0, "q": 0}], "$sort": {"n": -1}, "$slice": 4}}},
            {"$setOnInsert": {"fresh": 1}}, {"$unset": {"any": 1}},
            [{"$set": {"double": {"$multiply": ["$qty", 2]}}}], [{"$unset": "any"}],
            [{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"merged": self.serial}]}}],
        ]  # fmt: skip
        for age in filter(None, (collection.age, collection.also)):
            choices += [{"$set": {age: self.an_age(collection)}}] * 3
            choices.append({"$unset": {age: 1}})
        if collection.unique or collection.own:
            choices += [{"$set": {"sku": self.a_sku()}}] * 2
            rest = {"$mod": [{"$ifNull": ["$serial", 0]}, 60]}
            sku = {"$concat": [f"{self.partition}-", {"$toString": rest}]}
            choices.append([{"$set": {"sku": sku}}])
        if collection.own:  # one document without a key; elsewhere another stream may have it
            choices.append({"$unset": {"sku": 1}})
        return r.choice(choices)

    def a_safe_update(self) -> Any:
        """An update that can't fail on any document of a stream."""
        return self.random.choice(
            [
                {"$set": {"mark": self.serial}},
                {"$push": {"log": {"n": 1}}},
                {"$unset": {"any": 1}},
                {"$addToSet": {"set2": self.serial % 3}},
                [{"$set": {"mark": {"$add": [1, {"$ifNull": ["$serial", 0]}]}}}],
            ]
        )

    def a_replacement(self, collection: Collection, index: int) -> Document:
        """A whole document, with or without its ``_id``."""
        document = self.document(collection, index)
        if self.chance(0.5):
            del document["_id"]
        return document

    def a_sort(self, collection: Collection) -> Document:
        """An order in which no two documents are equal."""
        sorts: list[Document] = [
            {"serial": -1},
            {"qty": 1, "_id": 1},
            {"tag": 1, "serial": 1},
            {"any": 1, "_id": 1},
        ]
        if collection.age:
            sorts += [{collection.age: 1, "_id": 1}, {collection.age: -1, "_id": -1}] * 2
        return self.random.choice(sorts)
