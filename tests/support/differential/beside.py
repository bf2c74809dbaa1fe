"""Steps on what can't be tiered and reads or stands beside what is: views, ``$out`` and ``$merge``, capped
and time series collections, listings."""

import datetime as dt

from support.differential.layout import SHARED, SHOP, Collection, Document, beside
from support.differential.step import Compared, Limit, Step
from support.differential.values import Values


class Beside(Values):
    """Makers of steps that end in several commands at times: lists of steps."""

    def view(self, collection: Collection) -> list[Step]:
        """Reads of a view on ``orders``, or of one on that; writes, which views refuse."""
        name = beside(self.partition)[self.random.choice(["view", "view of view"])]
        query = self.a_filter(SHARED[0])
        choices: list[tuple[str, Document, Compared]] = [
            ("view find", {"find": name, "filter": query, "sort": {"serial": 1}, "batchSize": 5}, Compared.ALL),
            ("view count", {"count": name, "query": query}, Compared.ALL),
            ("view distinct", {"distinct": name, "key": "tag", "query": query}, Compared.SET),
            ("view aggregate", {"aggregate": name, "pipeline": [
                {"$match": query}, {"$group": {"_id": "$tag", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], "cursor": {}}, Compared.ALL),
            ("view write", {"insert": name, "documents": [{"p": self.partition}]}, Compared.ALL),
            ("view join", {"aggregate": "notes", "pipeline": [
                {"$match": {"p": self.partition}}, {"$sort": {"serial": 1}}, {"$limit": 3},
                {"$lookup": {"from": name, "localField": "ref", "foreignField": "ref", "as": "found"}},
                {"$project": {"n": {"$size": "$found"}}}], "cursor": {}}, Compared.ALL),
        ]  # fmt: skip
        kind, command, compared = self.random.choice(choices)
        return [Step(kind, command, ordered=True, compared=compared)]

    def output(self, collection: Collection) -> list[Step]:
        """``$out`` and ``$merge`` to untiered collections, and what they wrote; to tiered ones: refused."""
        names = beside(self.partition)
        match: Document = {"$match": {"p": self.partition, **self.a_filter(collection)}}
        if self.chance(0.2):
            # Nothing matches: in Passthrough it is served.
            nothing: list[Document] = [
                {"$match": {"_id": {"$in": []}}},
                {"$merge": {"into": "orders"}},
            ]
            tiered = {"aggregate": "notes", "pipeline": nothing, "cursor": {}}
            return [Step("output to tiered", tiered, limit=Limit.WRITES_TIERED)]
        if self.chance(0.5):
            target = names["merged"]
            stages: list[Document] = [
                {"$merge": {"into": {"db": SHOP, "coll": target}}},
                {"$merge": {"into": {"db": SHOP, "coll": target}, "whenMatched": "replace", "whenNotMatched": "discard"}},
                {"$merge": {"into": {"db": SHOP, "coll": target}, "whenMatched": [{"$set": {"again": 1}}]}},
            ]  # fmt: skip
            stage = self.random.choice(stages)
        else:
            target = names["written"]
            stage = {"$out": {"db": SHOP, "coll": target}}
        command = {"aggregate": collection.name, "pipeline": [match, stage], "cursor": {}}
        look = {"find": target, "filter": {}}
        return [Step("output", command, database=collection.database), Step("output read", look)]

    def capped(self, collection: Collection) -> list[Step]:
        """A capped collection: inserted into, read in its order."""
        name = beside(self.partition)["capped"]
        self.serial += 1
        document = {
            "_id": self.serial,
            "p": self.partition,
            "text": "x" * self.random.randrange(200),
        }
        insert = {"insert": name, "documents": [document]}
        look = {"find": name, "filter": {}, "sort": {"$natural": self.random.choice([1, -1])}}
        return [Step("capped insert", insert), Step("capped read", look, ordered=True)]

    def series(self, collection: Collection) -> list[Step]:
        """A time series."""
        name = beside(self.partition)["series"]
        self.serial += 1
        now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=self.serial % 10_000)
        document = {
            "_id": self.serial,
            "t": now,
            "m": self.partition,
            "v": self.random.randrange(9),
        }
        insert = {"insert": name, "documents": [document]}
        match = {"$match": {"t": {"$gte": now - dt.timedelta(seconds=60)}}}
        group = {"$group": {"_id": "$m", "n": {"$sum": 1}, "v": {"$sum": "$v"}}}
        look = {"aggregate": name, "pipeline": [match, group], "cursor": {}}
        return [Step("series insert", insert), Step("series read", look)]

    def untierable(self, collection: Collection) -> list[Step]:
        """What a tiered collection can't become."""
        # These exist: whoever doesn't refuse it for the tiers says that.
        choices: list[Document] = [
            {"create": "events", "capped": True, "size": 4096},
            {"create": "events", "timeseries": {"timeField": "t"}},
            {"create": "orders", "collation": {"locale": "en"}},
            {"create": "products", "viewOn": "notes", "pipeline": []},
            {"create": "orders", "clusteredIndex": {"key": {"_id": 1}, "unique": True}},
        ]
        limit = Limit.UNTIERABLE
        return [Step("create untierable", self.random.choice(choices), limit=limit)]

    def listing(self, collection: Collection) -> list[Step]:
        """``listIndexes``, ``listCollections`` of the stream's own database."""
        database = f"own{self.partition}"
        if self.chance(0.5):
            name = self.random.choice(["things", "others", "whole", "loose", "nowhere"])
            listed = Step(
                "list indexes", {"listIndexes": name}, database=database, compared=Compared.CATALOG
            )
        else:
            command = {"listCollections": 1, "filter": {}}
            listed = Step("list collections", command, database=database, compared=Compared.CATALOG)
        return [listed]
