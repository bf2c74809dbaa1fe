"""Steps that change collections and indexes, all in the stream's own database but for plain indexes."""

from support.differential.layout import SHOP, Collection, Document, own_collections
from support.differential.step import Compared, Step
from support.differential.writes import Writes

FAR_EXPIRY = 10_000_000
"""Of a field that no document has: two servers expire at moments of their own."""


class Schema(Writes):
    """Makers of DDL: lists of steps, because a drop is seldom the last thing an application does."""

    @property
    def own(self) -> tuple[Collection, ...]:
        """The collections of this stream alone."""
        return own_collections(self.partition)

    def _ddl(self, kind: str, command: Document) -> Step:
        return Step(kind, command, database=f"own{self.partition}")

    def light(self, collection: Collection) -> list[Step]:
        """What both tiers do at once: plain indexes, ``collMod``, ``create`` of what exists."""
        if not collection.own:
            return [self.shared_index(collection)]
        name = collection.name
        indexes: list[list[Document]] = [
            [{"key": {"tag": 1}, "name": "tag_1"}],
            [{"key": {"tag": 1, "qty": -1}, "name": "by tag"}, {"key": {"lines.n": 1}, "name": "lines"}],
            [{"key": {"qty": 1}, "name": "qty_1", "sparse": True}],
            [{"key": {"qty": 1}, "name": "qty_1"}],
            [{"key": {"qty": 1}, "name": "other name"}],
            [{"key": {"until": 1}, "name": "at_1", "expireAfterSeconds": FAR_EXPIRY}],
            [{"key": {"until": 1}, "name": "ttl", "expireAfterSeconds": FAR_EXPIRY}],
            [{"key": {"tag": "hashed"}, "name": "hashed"}],
            [{"key": {"tag": "text"}, "name": "text"}],
            [{"key": {"x.$**": 1}, "name": "wild"}],
            [{"key": {"ref": 1}, "name": "partial", "partialFilterExpression": {"qty": {"$gt": 3}}}],
            [{"key": {"ref": -1}, "name": "collated", "collation": {"locale": "en", "strength": 2}}],
            [{"key": {"ref": 1, "tag": 1}, "name": "hidden", "hidden": True}],
            [{"key": {"tag": "nope"}, "name": "nope"}],
            [{"key": {}, "name": "empty"}],
            [{"key": {"tag": 1}, "name": "*"}],
            [{"key": {"_id": 1}, "name": "_id_"}],
            [{"key": {"at": 1}, "name": "at_1"}],
        ]  # fmt: skip
        dropped = [
            "tag_1",
            "by tag",
            "qty_1",
            {"qty": 1},
            "ttl",
            ["lines", "hidden"],
            "none",
            "_id_",
            {"nope": 1},
            "wild",
            "text",
        ]
        changes: list[Document] = [
            {"index": {"name": "qty_1", "hidden": True}}, {"index": {"name": "qty_1", "hidden": False}},
            {"index": {"keyPattern": {"tag": 1}, "hidden": True}}, {"index": {"name": "ttl", "expireAfterSeconds": FAR_EXPIRY + 1}},
            {"index": {"name": "none", "hidden": True}}, {"validator": {"qty": {"$gte": 0}}}, {"validator": {}},
            {"validator": {"tag": {"$in": list("abcdz")}}, "validationAction": "error", "validationLevel": "moderate"},
            {"validationAction": "warn"}, {"changeStreamPreAndPostImages": {"enabled": self.chance(0.5)}}, {"nope": 1},
            {"validator": {"$nope": 1}},
        ]  # fmt: skip
        match self.random.randrange(8):
            case 0 | 1 | 2:
                return [
                    self._ddl(
                        "createIndexes",
                        {"createIndexes": name, "indexes": self.random.choice(indexes)},
                    )
                ]
            case 3 | 4:
                return [
                    self._ddl(
                        "dropIndexes", {"dropIndexes": name, "index": self.random.choice(dropped)}
                    )
                ]
            case 5 | 6:
                return [self._ddl("collMod", {"collMod": name, **self.random.choice(changes)})]
            case _:
                return [self._ddl("create", {"create": name})]

    def shared_index(self, collection: Collection) -> Step:
        """A plain index of this stream on a collection that others use too; now made, now dropped."""
        name = f"of {self.partition}"
        key = {"tag": 1, f"p{self.partition}": 1}
        command: Document = self.random.choice(
            [
                {"createIndexes": collection.name, "indexes": [{"key": key, "name": name}]},
                {"dropIndexes": collection.name, "index": name},
                {"collMod": collection.name, "index": {"name": name, "hidden": self.chance(0.5)}},
            ]
        )
        return Step("shared index", command, database=SHOP, compared=Compared.CODES)

    def again(self, collection: Collection, *, full: bool) -> list[Step]:
        """The collection made again: in one of the ways in which applications do it."""
        index = {"key": {"at": 1}, "name": "at_1"}
        steps: list[Step] = []
        match self.random.randrange(4):
            case 0:
                options: list[Document] = [
                    {},
                    {"validator": {"qty": {"$gte": 0}}},
                    {"changeStreamPreAndPostImages": {"enabled": True}},
                ]
                steps.append(
                    self._ddl("create", {"create": collection.name, **self.random.choice(options)})
                )
            case 1:
                steps.append(self.insert_many(collection))
            case 2:
                steps += [self.insert(collection), self.upsert(collection)]
            case _:
                pass  # the index makes it
        if full:
            steps.append(
                self._ddl("createIndexes", {"createIndexes": collection.name, "indexes": [index]})
            )
        steps += [self.insert_many(collection) for _ in range(4)]
        return steps

    def alone(self, collection: Collection) -> list[Step]:
        """What runs on the archive alone: drops, renames, whatever makes or drops a unique index."""
        collection = self.random.choice(self.own[:3])
        name = collection.name
        unique: list[list[Document]] = [
            [{"key": {"sku": 1}, "name": "sku_1", "unique": True}],
            [{"key": {"serial": 1}, "name": "serial_1", "unique": True}],
            [{"key": {"serial": 1, "qty": 1}, "name": "both", "unique": True}, {"key": {"tag": 1}, "name": "tag_1"}],
            [{"key": {"qty": 1}, "name": "unique qty", "unique": True}],
            [{"key": {"sku": -1}, "name": "partial sku", "unique": True, "partialFilterExpression": {"sku": {"$gt": ""}}}],
            [{"key": {"ref": 1}, "name": "ref_1", "unique": True, "sparse": True}],
        ]  # fmt: skip
        match self.random.randrange(12):
            case 0 | 1 | 2:
                command: Document = {"createIndexes": name, "indexes": self.random.choice(unique)}
                return [self._ddl("createIndexes unique", command)]
            case 3:
                index = self.random.choice(["sku_1", "serial_1", "ref_1", "*"])
                steps = [self._ddl("dropIndexes unique", {"dropIndexes": name, "index": index})]
                if index == "*":
                    steps += self.again(collection, full=True)
                return steps
            case 4:
                prepare = {"collMod": name, "index": {"name": "tag_1", "prepareUnique": True}}
                make = {"collMod": name, "index": {"name": "tag_1", "unique": True}}
                undo = {"collMod": name, "index": {"name": "tag_1", "prepareUnique": False}}
                return [self._ddl("collMod unique", command) for command in (prepare, make, undo)]
            case 5 | 6 | 7:
                dropped = self._ddl("drop", {"drop": name})
                full = self.chance(0.85)
                return [dropped, *self.again(collection, full=full)]
            case 8:
                return [self._ddl("drop", {"drop": "nowhere"})]
            case 9 | 10:
                return self._rename()
            case _:
                database = self._ddl("dropDatabase", {"dropDatabase": 1})
                made = [step for each in self.own for step in self.again(each, full=True)]
                return [database, *made]

    def _rename(self) -> list[Step]:
        database = f"own{self.partition}"
        things, others = self.own[:2]
        pair = (things, others) if self.chance(0.6) else (others, things)
        source, target = (f"{database}.{each.name}" for each in pair)
        command: Document = {"renameCollection": source, "to": target}
        if self.chance(0.7):
            command["dropTarget"] = True
        again = self.again(pair[0], full=True) if "dropTarget" in command else []
        return [Step("renameCollection", command, database="admin"), *again]

    def large(self, collection: Collection) -> list[Step]:
        """A document of megabytes: inserted, changed, read, deleted; three of 5 MB in a command at times."""
        collection = self.own[2]
        sizes = [100_000, 1_000_000, 4_000_000, 15_900_000]
        index = self.pick_index()
        value = {"large": self.ids[index]}
        size = self.random.choice(sizes)
        document: Document = {"_id": value, "p": self.partition, "serial": 0, "text": "x" * size}
        documents = [document]
        if self.chance(0.15):  # a command of 15 MB, which is as much as one without sequences holds
            third = {**document, "text": "x" * 5_000_000}
            documents = [
                {**third, "_id": {"large": i}, "sku": str(i), "serial": -i} for i in range(3)
            ]
        name = collection.name
        query = {"_id": documents[0]["_id"]}
        made: list[tuple[str, Document]] = [
            ("insert large", {"insert": name, "documents": documents}),
            ("update large", {"update": name, "updates": [{"q": query, "u": {"$set": {"small": 1}}}]}),
            ("update large", {"update": name, "updates": [{"q": query, "u": {"$push": {"more": "y" * 400_000}}}]}),
            ("find large", {"find": name, "filter": query}),
            ("count large", {"count": name, "query": {"text": {"$exists": True}}}),
            ("delete large", {"delete": name, "deletes": [{"q": {"text": {"$exists": True}}, "limit": 0}]}),
        ]  # fmt: skip
        return [self._ddl(kind, command) for kind, command in made]
