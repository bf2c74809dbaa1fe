"""Seeded streams of commands for the differential test.

A stream works on its own *partition* of each collection (field ``p``, ids, unique keys), so that
several run side by side and the answer to each command still has one right value. Within a partition
ids and unique keys are few, so that operations collide.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bson.objectid import ObjectId

from support.stream_values import Clock, Collection, Document, Values


@dataclass(frozen=True, slots=True)
class Step:
    """One command. ``kind`` names it in reports; ``ordered``: the order of the answer's documents
    counts; ``txn``: it is sent with a new transaction number; ``repeats``: how often it is sent again
    with the same one, as a driver does that lost the reply."""

    kind: str
    command: Document
    ordered: bool = False
    txn: bool = False
    repeats: int = 0
    touched: tuple[Any, ...] = field(default=())


class Stream(Values):
    """An endless stream of steps on some collections, for one partition; ``without``: kinds left out."""

    def __init__(
        self,
        seed: int,
        partition: int,
        collections: Sequence[Collection],
        clock: Clock,
        without: Sequence[str] = (),
    ) -> None:
        super().__init__(seed, partition, clock)
        self.collections = list(collections)
        self.without = without

    def __iter__(self) -> Iterator[Step]:
        weights = [weight for weight, _ in self._kinds()]
        makers = [maker for _, maker in self._kinds()]
        while True:
            collection = self.random.choice(self.collections)
            step = self.random.choices(makers, weights)[0](collection)
            if step.kind not in self.without:
                yield step

    def _kinds(self) -> list[tuple[int, Callable[[Collection], Step]]]:
        return [
            (10, self.insert), (6, self.insert_many), (14, self.update_by_id), (6, self.update_by_ref),
            (4, self.update_many), (8, self.upsert), (7, self.delete_by_id), (3, self.delete_by_ref),
            (2, self.delete_many), (8, self.find_and_modify), (5, self.find_and_remove),
            (5, self.update_batch), (3, self.delete_batch), (10, self.find_by_id), (4, self.find_in),
            (12, self.find_range), (8, self.find_newest), (3, self.find_by_key), (4, self.count),
            (3, self.distinct), (8, self.aggregate), (2, self.wrong), (5, self.special_update), (4, self.special_find), (2, self.upsert_by_ref),
        ]  # fmt: skip

    def _retryable(self) -> dict[str, Any]:
        txn = self.random.random() < 0.7
        return {"txn": txn, "repeats": self.random.choice([0, 0, 0, 1, 2]) if txn else 0}

    # --- writes

    def insert(self, collection: Collection) -> Step:
        """One document, often with an id that exists."""
        document = self.document(collection, self.pick_index())
        command = {"insert": collection.name, "documents": [document]}
        return Step("insert", command, **self._retryable(), touched=(document["_id"],))

    def insert_many(self, collection: Collection) -> Step:
        """A batch, ordered or not."""
        documents = [
            self.document(collection, self.pick_index()) for _ in range(self.random.randrange(2, 8))
        ]
        command = {
            "insert": collection.name,
            "documents": documents,
            "ordered": self.random.random() < 0.5,
        }
        touched = tuple(document["_id"] for document in documents)
        return Step("insert batch", command, **self._retryable(), touched=touched)

    def _one_update(self, collection: Collection, *, upsert: bool = False) -> Document:
        index = self.pick_index()
        query: Document = {"_id": self.pick_id(index)}
        if self.random.random() < 0.2:
            query["tag"] = self.random.choice("abcd")
        elif collection.age and self.random.random() < 0.1:
            query[collection.age] = {"$gte": self.a_date(collection)}
        update = (
            self.a_replacement(collection, index)
            if self.random.random() < 0.2
            else self.an_update(collection, index)
        )
        if isinstance(update, dict) and "_id" in update:
            update["_id"] = query["_id"]
        statement: Document = {"q": query, "u": update}
        if upsert:
            if isinstance(update, list) or not any(key.startswith("$") for key in update):
                statement["u"] = self.a_replacement(collection, index)
                statement["u"]["_id"] = query["_id"]
            else:
                fresh = self.document(collection, index)
                taken = {path.split(".")[0] for change in update.values() for path in change}
                taken |= {str(path) for path in update.get("$rename", {}).values()} | set(query)
                fresh = {key: value for key, value in fresh.items() if key not in taken}
                statement["u"] = {**update, "$setOnInsert": fresh}
            statement["upsert"] = True
        return statement

    def update_by_id(self, collection: Collection) -> Step:
        """By ``_id``, with operators, a pipeline or a replacement."""
        statement = self._one_update(collection)
        command = {"update": collection.name, "updates": [statement]}
        return Step("update by _id", command, **self._retryable(), touched=(statement["q"]["_id"],))

    def update_by_ref(self, collection: Collection) -> Step:
        """By a field that names one document but isn't indexed."""
        index = self.pick_index()
        statement: Document = {
            "q": {"ref": f"{self.partition}-{index}"},
            "u": self.an_update(collection, index),
        }
        command = {"update": collection.name, "updates": [statement]}
        return Step("update by ref", command, **self._retryable(), touched=(self.ids[index],))

    def update_many(self, collection: Collection) -> Step:
        """``multi: true`` on a filter that spans the floor.

        The updates can't fail: which documents come before a failing one is the server's choice.
        """
        update = self.random.choice(
            [{"$inc": {"qty": 1}}, {"$set": {"mark": self.serial}}, {"$push": {"log": {"n": 1}}}]
        )
        statement = {"q": self.a_filter(collection), "u": update, "multi": True}
        return Step("updateMany", {"update": collection.name, "updates": [statement]})

    def upsert(self, collection: Collection) -> Step:
        """An update by ``_id`` that may insert."""
        statement = self._one_update(collection, upsert=True)
        command = {"update": collection.name, "updates": [statement]}
        return Step("upsert", command, **self._retryable(), touched=(statement["q"]["_id"],))

    def upsert_by_ref(self, collection: Collection) -> Step:
        """An upsert whose filter says nothing of the ``_id``; the update does."""
        index = self.pick_index()
        document = self.document(collection, index)
        for name in ("ref", "qty"):
            del document[name]
        query = {"ref": f"{self.partition}-{index}"}
        update = {"$inc": {"qty": 1}, "$setOnInsert": document}
        statement = {"q": query, "u": update, "upsert": True}
        command = {"update": collection.name, "updates": [statement]}
        return Step("upsert by ref", command, **self._retryable(), touched=(self.ids[index],))

    def special_update(self, collection: Collection) -> Step:
        """Positional operators, array filters, collations, hints, ``let``."""
        index = self.pick_index()
        by_id: Document = {"_id": self.pick_id(index)}
        loose = {"locale": "en", "strength": 2}
        choices: list[Document] = [
            {"q": {**by_id, "lines.n": 1}, "u": {"$set": {"lines.$.q": 8}}},
            {"q": by_id, "u": {"$set": {"lines.$[e].q": 9}}, "arrayFilters": [{"e.n": 1}]},
            {"q": by_id, "u": {"$inc": {"qty": 1}}, "hint": {"_id": 1}},
            {"q": by_id, "u": {"$inc": {"qty": 1}}, "hint": "no such index"},
            {"q": {**by_id, "$expr": {"$lt": ["$qty", 5]}}, "u": [{"$set": {"qty": {"$add": ["$qty", 1]}}}]},
            {"q": {"ref": {"$in": [f"{self.partition}-{index}"]}, "p": self.partition}, "u": {"$unset": {"tag": 1}}},
        ]  # fmt: skip
        # Ids in which no letters are: others have equals under a collation, and may be refused.
        if isinstance(self.ids[index], int | ObjectId):
            choices += [
                {"q": by_id, "u": {"$inc": {"qty": 1}}, "collation": loose},
                {"q": {**by_id, "tag": "A"}, "u": {"$inc": {"qty": 1}}, "collation": loose},
            ]
        statement = self.random.choice(choices)
        command = {"update": collection.name, "updates": [statement]}
        return Step("special update", command, **self._retryable(), touched=(self.ids[index],))

    def special_find(self, collection: Collection) -> Step:
        """Collations, hints, ``min``, ``let``, ``$elemMatch``, computed projections, regular expressions."""
        mine: Document = {"p": self.partition}
        index = self.pick_index()
        choices: list[Document] = [
            {"filter": {**mine, "tag": "A"}, "collation": {"locale": "en", "strength": 2}},
            {"filter": {"_id": self.pick_id(index)}, "collation": {"locale": "en", "strength": 2}},
            {"filter": mine, "hint": {"_id": 1}},
            {"filter": mine, "hint": "no such index"},
            {"filter": {**mine, "lines": {"$elemMatch": {"n": 1, "q": {"$gte": 1}}}}},
            {"filter": {**mine, "$expr": {"$eq": ["$tag", "$$wanted"]}}, "let": {"wanted": "b"}},
            {"filter": {**mine, "tag": {"$regex": "^[AB]", "$options": "i"}}},
            {"filter": mine, "projection": {"double": {"$multiply": ["$qty", 2]}, "tag": 1}},
            {"filter": {**mine, "ref": {"$gte": f"{self.partition}-2"}}, "projection": {"lines": {"$slice": 1}}},
            {"filter": {"_id": {"$gte": self.partition * 1_000, "$lt": self.partition * 1_000 + 20}}},
            {"filter": {"_id": {"$in": []}}},
            {"filter": {"_id": self.pick_id(index), "$or": [{"tag": "a"}, {"qty": {"$gt": 3}}]}},
        ]  # fmt: skip
        return Step("special find", {"find": collection.name, **self.random.choice(choices)})

    def update_batch(self, collection: Collection) -> Step:
        """Several statements in one command, upserts among them."""
        statements = [
            self._one_update(collection, upsert=self.random.random() < 0.3)
            for _ in range(self.random.randrange(2, 6))
        ]
        command = {
            "update": collection.name,
            "updates": statements,
            "ordered": self.random.random() < 0.5,
        }
        touched = tuple(statement["q"]["_id"] for statement in statements)
        return Step("update batch", command, **self._retryable(), touched=touched)

    def delete_by_id(self, collection: Collection) -> Step:
        """One, by ``_id``."""
        index = self.pick_index()
        command = {
            "delete": collection.name,
            "deletes": [{"q": {"_id": self.pick_id(index)}, "limit": 1}],
        }
        return Step("delete by _id", command, **self._retryable(), touched=(self.ids[index],))

    def delete_by_ref(self, collection: Collection) -> Step:
        """One, by a field that isn't indexed."""
        index = self.pick_index()
        query = {"ref": f"{self.partition}-{index}"}
        command = {"delete": collection.name, "deletes": [{"q": query, "limit": 1}]}
        return Step("delete by ref", command, **self._retryable(), touched=(self.ids[index],))

    def delete_many(self, collection: Collection) -> Step:
        """All that match, on a filter that spans the floor; few, or nothing would be left."""
        query = {**self.a_filter(collection), "qty": self.random.randrange(9)}
        return Step(
            "deleteMany", {"delete": collection.name, "deletes": [{"q": query, "limit": 0}]}
        )

    def delete_batch(self, collection: Collection) -> Step:
        """Several deletes in one command."""
        ids = [self.pick_id(self.pick_index()) for _ in range(self.random.randrange(2, 5))]
        deletes = [{"q": {"_id": value}, "limit": 1} for value in ids]
        command = {
            "delete": collection.name,
            "deletes": deletes,
            "ordered": self.random.random() < 0.5,
        }
        return Step("delete batch", command, **self._retryable(), touched=tuple(ids))

    def find_and_modify(self, collection: Collection) -> Step:
        """Update one: by ``_id``, or the first in some order."""
        index = self.pick_index()
        command: Document = {"findAndModify": collection.name}
        touched: tuple[Any, ...] = ()
        if self.random.random() < 0.5:
            statement = self._one_update(collection, upsert=self.random.random() < 0.3)
            command.update(query=statement["q"], update=statement["u"])
            touched = (statement["q"]["_id"],)
            if "upsert" in statement:
                command["upsert"] = True
        else:
            command.update(query=self.a_filter(collection), sort=self.a_sort(collection))
            command["update"] = self.random.choice(
                [{"$inc": {"qty": 1}}, {"$set": {"tag": "z"}}, self.an_update(collection, index)]
            )
            # A reference must go on naming one document.
            if "ref" in str(command["update"]):
                command["update"] = {"$inc": {"qty": 2}}
        command["new"] = self.random.random() < 0.5
        if self.random.random() < 0.3:
            command["fields"] = {"qty": 1, "tag": 1}
        return Step("findAndModify", command, **self._retryable(), touched=touched)

    def find_and_remove(self, collection: Collection) -> Step:
        """Remove one: by ``_id``, or the first in some order."""
        command: Document = {"findAndModify": collection.name, "remove": True}
        touched: tuple[Any, ...] = ()
        if self.random.random() < 0.5:
            command["query"] = {"_id": self.pick_id(self.pick_index())}
            touched = (command["query"]["_id"],)
        else:
            command.update(query=self.a_filter(collection), sort=self.a_sort(collection))
        return Step("findAndModify remove", command, **self._retryable(), touched=touched)

    # --- reads

    def find_by_id(self, collection: Collection) -> Step:
        """A point read, sometimes with a condition that another version may meet."""
        query: Document = {"_id": self.pick_id(self.pick_index())}
        if self.random.random() < 0.3:
            query["tag"] = self.random.choice("abcd")
        command: Document = {"find": collection.name, "filter": query}
        if self.random.random() < 0.5:
            command["limit"] = 1
        return Step("find by _id", command, touched=(query["_id"],))

    def find_in(self, collection: Collection) -> Step:
        """Several ids at once."""
        ids = [self.pick_id(self.pick_index()) for _ in range(self.random.randrange(1, 6))]
        command = {"find": collection.name, "filter": {"_id": {"$in": ids}}, "sort": {"serial": 1}}
        return Step("find $in", command, ordered=True, touched=tuple(ids))

    def find_range(self, collection: Collection) -> Step:
        """Any filter; with and without sort, limit, skip, projection, small batches."""
        command: Document = {"find": collection.name, "filter": self.a_filter(collection)}
        ordered = self.random.random() < 0.6
        if ordered:
            command["sort"] = self.a_sort(collection)
            if self.random.random() < 0.5:
                command["limit"] = self.random.randrange(1, 9)
            if self.random.random() < 0.2:
                command["skip"] = self.random.randrange(4)
        if self.random.random() < 0.3:
            command["projection"] = {"qty": 1, "serial": 1}
        if self.random.random() < 0.4:
            command["batchSize"] = self.random.randrange(1, 5)
        return Step("find", command, ordered=ordered)

    def find_newest(self, collection: Collection) -> Step:
        """The page that most applications show first."""
        if collection.age is None:
            return self.find_range(collection)
        command: Document = {
            "find": collection.name,
            "filter": {"p": self.partition},
            "sort": {collection.age: -1, "_id": 1},
            "limit": self.random.randrange(1, 12),
        }
        if self.random.random() < 0.3:
            command["filter"]["tag"] = self.random.choice("abcd")
        return Step("find newest", command, ordered=True)

    def find_by_key(self, collection: Collection) -> Step:
        """By the unique key, where there is one."""
        query = (
            {"sku": self.a_sku()}
            if collection.unique
            else {"ref": f"{self.partition}-{self.pick_index()}"}
        )
        return Step("find by key", {"find": collection.name, "filter": query})

    def count(self, collection: Collection) -> Step:
        """The count command, sometimes limited."""
        command: Document = {"count": collection.name, "query": self.a_filter(collection)}
        if self.random.random() < 0.3:
            command["limit"] = self.random.randrange(1, 5)
        return Step("count", command)

    def distinct(self, collection: Collection) -> Step:
        """Values of a field."""
        key = self.random.choice(["tag", "qty", "lines.n"])
        command = {"distinct": collection.name, "key": key, "query": self.a_filter(collection)}
        return Step("distinct", command)

    def aggregate(self, collection: Collection) -> Step:
        """Groups, top lists, counts, joins."""
        match: Document = {"$match": self.a_filter(collection)}
        tail: list[Document]
        match self.random.randrange(6):
            case 0:
                tail = [
                    {"$group": {"_id": "$tag", "n": {"$sum": 1}, "q": {"$sum": "$qty"}}},
                    {"$sort": {"_id": 1}},
                ]
            case 1:
                tail = [{"$sort": self.a_sort(collection)}, {"$limit": 5}, {"$project": {"qty": 1}}]
            case 2:
                tail = [{"$count": "n"}]
            case 3:
                tail = [{"$unwind": "$lines"}, {"$sort": {"_id": 1, "lines.n": 1, "lines.q": 1}}]
            case 4:
                joined: list[Document] = [
                    {"$match": {"p": self.partition}},
                    {"$sort": {"serial": 1}},
                    {"$limit": 3},
                    {"$project": {"serial": 1}},
                ]
                tail = [
                    {"$sort": {"serial": 1}},
                    {"$limit": 4},
                    {"$lookup": {"from": "products", "pipeline": joined, "as": "products"}},
                ]
            case _:
                tail = [
                    {
                        "$facet": {
                            "n": [{"$count": "n"}],
                            "top": [{"$sort": {"serial": -1}}, {"$limit": 2}],
                        }
                    }
                ]
        command: Document = {"aggregate": collection.name, "pipeline": [match, *tail], "cursor": {}}
        return Step("aggregate", command, ordered=True)

    def wrong(self, collection: Collection) -> Step:
        """A command that MongoDB refuses: the code must be the same."""
        name = collection.name
        bad: list[Document] = [
            {"find": name, "filter": {"tag": {"$nope": 1}}},
            {"update": name, "updates": [{"q": {"_id": self.ids[0]}, "u": {"$nope": {"a": 1}}}]},
            {"update": name, "updates": [{"q": {"p": self.partition}, "u": {"a": 1}, "multi": True}]},
            {"find": name, "filter": {}, "limit": -3, "batchSize": -1},
            {"aggregate": name, "pipeline": [{"$nope": {}}], "cursor": {}},
            {"aggregate": name, "pipeline": []},
            {"insert": name, "documents": []},
            {"insert": name, "documents": [{"_id": [1], "p": self.partition}]},
            {"delete": name, "deletes": [{"q": {"_id": self.ids[0], "a": {"$bad": 1}}, "limit": 1}]},
            {"findAndModify": name, "query": {"_id": self.ids[0]}, "remove": True, "new": True},
            {"findAndModify": name, "query": {"_id": self.ids[0]}},
            {"distinct": name, "key": 7},
            {"count": name, "query": {"$where": 7}},
            {"update": name, "updates": [{"q": {"_id": self.ids[1]}, "u": {"$set": {"_id": 99}}}]},
        ]  # fmt: skip
        return Step("wrong", self.random.choice(bad))
