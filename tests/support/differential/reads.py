"""Steps that read."""

import datetime as dt

from support.differential.layout import Collection, Document
from support.differential.step import Compared, Concern, Step
from support.differential.values import LOOSE, Values

TYPED = "any"


class Reads(Values):
    """Makers of reads of one collection."""

    def reading(
        self, kind: str, collection: Collection, command: Document, **fields: object
    ) -> Step:
        """A step of a read; sometimes with a read concern, a preference, a time limit or a comment."""
        concern = Concern.NONE
        if self.chance(0.12):
            concern = Concern.CAUSAL if self.chance(0.5) else Concern.NONE
            level = self.random.choice(["local", "majority", "available", "linearizable"])
            if concern is Concern.CAUSAL:
                level = self.random.choice(["local", "majority"])
            command = {**command, "readConcern": {"level": level}}
            if level == "linearizable":
                command["maxTimeMS"] = 60_000
        elif self.chance(0.1):
            options: list[Document] = [
                {"comment": "stream"}, {"maxTimeMS": 120_000}, {"$readPreference": {"mode": "secondaryPreferred"}},
                {"$readPreference": {"mode": "nearest"}},
            ]  # fmt: skip
            command = {**command, **self.random.choice(options)}
        made: dict[str, object] = {"database": collection.database, "concern": concern, **fields}
        return Step(kind, command, **made)  # type: ignore[arg-type]

    def find_by_id(self, collection: Collection) -> Step:
        """A point read, sometimes with a condition that another version may meet."""
        query: Document = {"_id": self.pick_id(self.pick_index())}
        if self.chance(0.3):
            query["tag"] = self.random.choice("abcd")
        command: Document = {"find": collection.name, "filter": query}
        if self.chance(0.5):
            command["limit"] = 1
        return self.reading("find by _id", collection, command, touched=(query["_id"],))

    def find_in(self, collection: Collection) -> Step:
        """Several ids at once."""
        ids = self.pick_ids(1, 6)
        command = {"find": collection.name, "filter": {"_id": {"$in": ids}}, "sort": {"serial": 1}}
        return self.reading("find $in", collection, command, ordered=True, touched=tuple(ids))

    def find_range(self, collection: Collection) -> Step:
        """Any filter; with and without sort, limit, skip, projection, small batches."""
        command: Document = {"find": collection.name, "filter": self.a_filter(collection)}
        ordered = self.chance(0.6)
        if ordered:
            command["sort"] = self.a_sort(collection)
            if self.chance(0.5):
                command["limit"] = self.random.randrange(1, 9)
            if self.chance(0.2):
                command["skip"] = self.random.randrange(4)
        if self.chance(0.3):
            command["projection"] = {"qty": 1, "serial": 1}
        if self.chance(0.4):
            command["batchSize"] = self.random.randrange(1, 5)
        return self.reading("find", collection, command, ordered=ordered)

    def find_any(self, collection: Collection) -> Step:
        """``limit: 1`` without an order: any match will do."""
        query = self.a_filter(collection)
        command: Document = {"find": collection.name, "filter": query}
        return self.reading(
            "find any",
            collection,
            {**command, "limit": 1, "singleBatch": True},
            on_plain=command,
            compared=Compared.MATCH,
        )

    def find_newest(self, collection: Collection) -> Step:
        """The page that most applications show first."""
        age = collection.age or "at"
        command: Document = {
            "find": collection.name,
            "filter": {"p": self.partition},
            "sort": {age: -1, "_id": 1},
            "limit": self.random.randrange(1, 12),
        }
        if self.chance(0.3):
            command["filter"]["tag"] = self.random.choice("abcd")
        return self.reading("find newest", collection, command, ordered=True)

    def find_by_key(self, collection: Collection) -> Step:
        """By the unique key, where there is one."""
        query = (
            {"sku": self.a_sku()}
            if collection.unique or collection.own
            else {"ref": f"{self.partition}-{self.pick_index()}"}
        )
        command = {"find": collection.name, "filter": query}
        return self.reading("find by key", collection, command)

    def special_find(self, collection: Collection) -> Step:
        """Collations, hints, ``min``, ``let``, ``$elemMatch``, computed projections, regular expressions."""
        mine: Document = {"p": self.partition}
        index = self.pick_index()
        age = collection.age or "at"
        date = self.a_date(collection)
        low = self.partition * 1_000
        choices: list[Document] = [
            {"filter": {**mine, "tag": "A"}, "collation": LOOSE},
            {"filter": {"_id": self.pick_id(index)}, "collation": LOOSE},
            {"filter": mine, "hint": {"_id": 1}},
            {"filter": mine, "hint": "no such index"},
            {"filter": {**mine, age: {"$gte": date}}, "hint": {age: 1}},
            {"filter": mine, "min": {age: date}, "hint": {age: 1}},
            {"filter": {**mine, "lines": {"$elemMatch": {"n": 1, "q": {"$gte": 1}}}}},
            {"filter": {**mine, "$expr": {"$eq": ["$tag", "$$wanted"]}}, "let": {"wanted": "b"}},
            {"filter": {**mine, "tag": {"$regex": "^[AB]", "$options": "i"}}},
            {"filter": mine, "projection": {"double": {"$multiply": ["$qty", 2]}, "tag": 1}},
            {"filter": {**mine, "ref": {"$gte": f"{self.partition}-2"}}, "projection": {"lines": {"$slice": 1}}},
            {"filter": {"_id": {"$gte": low, "$lt": low + 20}}},
            {"filter": {"_id": {"$in": []}}},
            {"filter": {"_id": self.pick_id(index), "$or": [{"tag": "a"}, {"qty": {"$gt": 3}}]}},
            {"filter": {**mine, "$jsonSchema": {"required": ["any"]}}},
            {"filter": {**mine, age: {"$gte": date}}, "returnKey": True, "hint": {age: 1}},
            {"filter": {**mine, "lines.n": 1}, "projection": {"lines.$": 1}},
            {"filter": {**mine, "$comment": "x", "$where": "this.qty > 4"}},
            {"filter": mine, "allowDiskUse": True, "noCursorTimeout": False},
        ]  # fmt: skip
        command = {"find": collection.name, **self.random.choice(choices)}
        return self.reading("special find", collection, command)

    def find_snapshot(self, collection: Collection) -> Step:
        """``readConcern: snapshot`` outside a transaction, not before this stream's own last write."""
        query = self.a_filter(collection)
        command = {"find": collection.name, "filter": query, "readConcern": {"level": "snapshot"}}
        fields = {"database": collection.database, "concern": Concern.CAUSAL}
        return Step("find snapshot", command, **fields)  # type: ignore[arg-type]

    def first_page(self, collection: Collection) -> Step:
        """A cursor that is opened and closed after its first batch."""
        command: Document = {
            "find": collection.name,
            "filter": self.a_filter(collection),
            "sort": {"serial": 1},
            "batchSize": self.random.randrange(0, 3),
        }
        return Step("first page", command, database=collection.database, ordered=True)

    def count(self, collection: Collection) -> Step:
        """The count command, sometimes limited."""
        command: Document = {"count": collection.name, "query": self.a_filter(collection)}
        if self.chance(0.3):
            command["limit"] = self.random.randrange(1, 5)
        if self.chance(0.2):
            command["skip"] = self.random.randrange(1, 3)
        if self.chance(0.1):
            command["hint"] = {"_id": 1}
        return self.reading("count", collection, command)

    def distinct(self, collection: Collection) -> Step:
        """Values of a field."""
        key = self.random.choice(["tag", "qty", "lines.n", "sku"])
        command = {"distinct": collection.name, "key": key, "query": self.a_filter(collection)}
        return self.reading("distinct", collection, command, compared=Compared.SET)

    def aggregate(self, collection: Collection) -> Step:
        """Groups, top lists, counts, joins."""
        match: Document = {"$match": self.a_filter(collection)}
        command: Document = {
            "aggregate": collection.name,
            "pipeline": [match, *self._tail(collection)],
            "cursor": {"batchSize": self.random.randrange(1, 4)} if self.chance(0.2) else {},
        }
        if self.chance(0.1):
            command["let"] = {"unused": 1}
        if self.chance(0.1):
            command["hint"] = {"_id": 1}
        return self.reading("aggregate", collection, command, ordered=True)

    def _tail(self, collection: Collection) -> list[Document]:
        joined: list[Document] = [
            {"$match": {"p": self.partition}},
            {"$sort": {"serial": 1}},
            {"$limit": 3},
            {"$project": {"serial": 1}},
        ]
        age = collection.age or "at"
        first: list[Document] = [{"$sort": {"serial": 1}}, {"$limit": 4}]
        tails: list[list[Document]] = [
            [{"$group": {"_id": "$tag", "n": {"$sum": 1}, "q": {"$sum": "$qty"}}}, {"$sort": {"_id": 1}}],
            [{"$sort": self.a_sort(collection)}, {"$limit": 5}, {"$project": {"qty": 1}}],
            [{"$count": "n"}],
            [{"$unwind": "$lines"}, {"$sort": {"serial": 1, "lines.n": 1, "lines.q": 1}}, {"$project": {"lines": 1}}],
            [*first, {"$lookup": {"from": "products", "pipeline": joined, "as": "products"}}],
            [*first, {"$lookup": {"from": collection.name, "localField": "ref", "foreignField": "ref", "as": "same"}},
             {"$project": {"n": {"$size": "$same"}}}],
            [{"$unionWith": {"coll": "products", "pipeline": joined}}, {"$sort": {"serial": 1}}, {"$project": {"serial": 1}}],
            [{"$facet": {"n": [{"$count": "n"}], "top": [{"$sort": {"serial": -1}}, {"$limit": 2}]}}],
            [{"$bucket": {"groupBy": "$qty", "boundaries": [0, 3, 6], "default": "more"}}],
            [{"$sortByCount": "$tag"}, {"$sort": {"count": -1, "_id": 1}}],
            [{"$setWindowFields": {"sortBy": {"serial": 1}, "output": {"sum": {"$sum": "$qty", "window": {"documents": ["unbounded", "current"]}}}}},
             {"$sort": {"serial": 1}}, {"$project": {"sum": 1}}],
            [{"$group": {"_id": None, "oldest": {"$min": f"${age}"}, "n": {"$sum": 1}}}],
            [{"$match": {"qty": {"$gt": 2}}}, {"$sort": {"serial": -1}}, {"$skip": 1}, {"$limit": 3}, {"$unset": ["any", "lines"]}],
        ]  # fmt: skip
        return self.random.choice(tails)

    def wrong(self, collection: Collection) -> Step:
        """A command that MongoDB refuses: code and name must be the same."""
        name = collection.name
        first, second = self.ids[0], self.ids[1]
        now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        bad: list[Document] = [
            {"find": name, "filter": {"tag": {"$nope": 1}}},
            {"update": name, "updates": [{"q": {"_id": first}, "u": {"$nope": {"a": 1}}}]},
            {"update": name, "updates": [{"q": {"p": self.partition}, "u": {"a": 1}, "multi": True}]},
            {"find": name, "filter": {}, "limit": -3, "batchSize": -1},
            {"aggregate": name, "pipeline": [{"$nope": {}}], "cursor": {}},
            {"aggregate": name, "pipeline": []},
            {"aggregate": name, "pipeline": [{"$match": {"p": self.partition}}, {"$match": {"$bad": 1}}], "cursor": {}},
            {"insert": name, "documents": []},
            {"insert": name, "documents": [{"_id": [1], "p": self.partition}]},
            {"insert": name, "documents": [{"_id": {"$x": 1}, "p": self.partition}]},
            {"insert": name, "documents": [{"_id": first}], "nope": 1},
            {"delete": name, "deletes": [{"q": {"_id": first, "a": {"$bad": 1}}, "limit": 1}]},
            {"delete": name, "deletes": [{"q": {"_id": first}, "limit": 2}]},
            {"delete": name, "deletes": []},
            {"findAndModify": name, "query": {"_id": first}, "remove": True, "new": True},
            {"findAndModify": name, "query": {"_id": first}},
            {"findAndModify": name, "query": {"_id": first}, "remove": True, "upsert": True},
            {"findAndModify": name, "query": {"_id": first}, "update": {"$set": {"_id": {"other": 1}}}},
            {"distinct": name, "key": 7},
            {"count": name, "query": {"$where": 7}},
            {"count": name, "query": {"p": self.partition}, "nope": 1},
            {"update": name, "updates": [{"q": {"_id": second}, "u": {"$set": {"_id": {"other": 1}}}}]},
            {"update": name, "updates": [{"q": {"_id": second}, "u": {"$set": {"a.b": 1}, "$unset": {"a": 1}}}]},
            {"update": name, "updates": [{"q": {"_id": second}, "u": {"$set": {"$x": 1}}}]},
            {"update": name, "updates": [{"q": {"_id": second}, "u": {"$set": {"z": now}}, "arrayFilters": [{"e": 1}]}]},
            {"update": name, "updates": [{"q": {"_id": second}, "u": [{"$nope": 1}]}]},
            {"update": name, "updates": [{"q": {"_id": second}, "u": {"p": self.partition, "_id": {"other": 1}}}]},
            {"update": name, "updates": [{"q": {"_id": second}, "u": {"$inc": {"qty": "x"}}, "upsert": True}]},
            {"update": name, "updates": [{"q": {"_id": second}, "u": {"$set": {"qty": 1}}}] * 2, "ordered": "yes"},
            {"find": name, "sort": {"a": 7}},
            {"find": name, "filter": {"p": self.partition}, "projection": {"a": 1, "b": 0}},
            {"find": name, "filter": {"p": self.partition}, "readConcern": {"level": "nope"}},
            {"find": name, "filter": {"p": self.partition}, "collation": {"locale": "nowhere"}},
            {"find": name, "filter": {"p": self.partition}, "hint": {"nope": 1}},
            {"noSuchCommand": name},
        ]  # fmt: skip
        return Step("wrong", self.random.choice(bad), database=collection.database)
