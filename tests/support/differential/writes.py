"""Steps that insert, update and delete."""

from typing import Any

from support.differential.layout import Collection, Document
from support.differential.step import Step
from support.differential.values import Values


class Writes(Values):
    """Makers of the ordinary writes."""

    def retryable(self) -> dict[str, Any]:
        """Whether a step has a transaction number, and how often its reply is lost."""
        txn = self.chance(0.7)
        repeats = self.random.choice([0, 0, 0, 1, 2]) if txn else 0
        # Long enough for a collection to be switched between the two.
        pause = 1.0 if repeats and self.chance(0.05) else 0.0
        return {"txn": txn, "repeats": repeats, "pause": pause}

    def write_options(self) -> Document:
        """Fields that any write may have and that must change nothing."""
        options: list[Document] = [
            {"writeConcern": {"w": "majority", "wtimeout": 60_000}}, {"writeConcern": {"w": 1}},
            {"comment": {"from": "stream"}}, {"bypassDocumentValidation": True}, {"maxTimeMS": 120_000},
        ]  # fmt: skip
        return self.random.choice(options) if self.chance(0.15) else {}

    def writing(self, kind: str, collection: Collection, command: Document, **fields: Any) -> Step:
        """A step of a write on the collection."""
        return Step(kind, command, database=collection.database, **fields)

    def insert(self, collection: Collection) -> Step:
        """One document, often with an id that exists."""
        document = self.document(collection, self.pick_index())
        command = {"insert": collection.name, "documents": [document], **self.write_options()}
        touched = (document["_id"],)
        return self.writing("insert", collection, command, **self.retryable(), touched=touched)

    def insert_many(self, collection: Collection) -> Step:
        """A batch, ordered or not."""
        documents = [
            self.document(collection, self.pick_index()) for _ in range(self.random.randrange(2, 8))
        ]
        command = {
            "insert": collection.name,
            "documents": documents,
            "ordered": self.chance(0.5),
            **self.write_options(),
        }
        touched = tuple(document["_id"] for document in documents)
        kind = "insert batch"
        return self.writing(kind, collection, command, **self.retryable(), touched=touched)

    def one_update(self, collection: Collection, *, upsert: bool = False) -> Document:
        """One statement by ``_id``: operators, a pipeline or a replacement."""
        index = self.pick_index()
        query: Document = {"_id": self.pick_id(index)}
        if self.chance(0.2):
            query["tag"] = self.random.choice("abcd")
        elif collection.age and self.chance(0.1):
            query[collection.age] = {"$gte": self.a_date(collection)}
        update = (
            self.a_replacement(collection, index)
            if self.chance(0.2)
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
                own = update.get("$setOnInsert", {})
                statement["u"] = {**update, "$setOnInsert": {**fresh, **own}}
            statement["upsert"] = True
        return statement

    def update_by_id(self, collection: Collection) -> Step:
        """By ``_id``, with operators, a pipeline or a replacement."""
        statement = self.one_update(collection)
        command = {"update": collection.name, "updates": [statement], **self.write_options()}
        touched = (statement["q"]["_id"],)
        return self.writing(
            "update by _id", collection, command, **self.retryable(), touched=touched
        )

    def update_by_ref(self, collection: Collection) -> Step:
        """By a field that names one document but isn't indexed."""
        index = self.pick_index()
        update = self.an_update(collection, index)
        statement: Document = {"q": {"ref": f"{self.partition}-{index}"}, "u": update}
        command = {"update": collection.name, "updates": [statement]}
        touched = (self.ids[index],)
        return self.writing(
            "update by ref", collection, command, **self.retryable(), touched=touched
        )

    def update_many(self, collection: Collection) -> Step:
        """``multi: true`` on a filter that spans the floor.

        The updates can't fail: which documents come before a failing one is the server's choice.
        """
        self.serial += 1
        statement: Document = {"q": self.a_filter(collection), "multi": True}
        statement["u"] = self.a_safe_update()
        match self.random.randrange(8):
            case 0:
                statement |= {"u": {"$set": {"lines.$[e].q": 4}}, "arrayFilters": [{"e.n": 1}]}
                statement["q"]["lines"] = {"$type": "array"}
            case 1:
                statement |= {"hint": {"_id": 1}}
            case 2:
                self._with_let(statement)
        statements = [statement]
        if self.chance(0.15):  # several of them, and one that isn't multi, in one command
            again = {"q": self.a_filter(collection), "u": self.a_safe_update(), "multi": True}
            statements += [self.one_update(collection), again]
        command = {"update": collection.name, "updates": statements, **self.write_options()}
        if "let" in statement:
            command["let"] = statement.pop("let")
        return self.writing("updateMany", collection, command, multi=True)

    def _with_let(self, statement: Document) -> None:
        statement["q"] = {"p": self.partition, "$expr": {"$eq": ["$tag", "$$wanted"]}}
        statement["u"] = [{"$set": {"mark": "$$wanted"}}]
        statement["let"] = {"wanted": self.random.choice("abcd")}

    def upsert(self, collection: Collection) -> Step:
        """An update by ``_id`` that may insert."""
        statement = self.one_update(collection, upsert=True)
        command = {"update": collection.name, "updates": [statement], **self.write_options()}
        touched = (statement["q"]["_id"],)
        return self.writing("upsert", collection, command, **self.retryable(), touched=touched)

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
        touched = (self.ids[index],)
        return self.writing(
            "upsert by ref", collection, command, **self.retryable(), touched=touched
        )

    def update_batch(self, collection: Collection) -> Step:
        """Several statements in one command, upserts among them."""
        statements = [
            self.one_update(collection, upsert=self.chance(0.3))
            for _ in range(self.random.randrange(2, 6))
        ]
        command = {
            "update": collection.name,
            "updates": statements,
            "ordered": self.chance(0.5),
            **self.write_options(),
        }
        touched = tuple(statement["q"]["_id"] for statement in statements)
        return self.writing(
            "update batch", collection, command, **self.retryable(), touched=touched
        )

    def delete_by_id(self, collection: Collection) -> Step:
        """One, by ``_id``."""
        index = self.pick_index()
        delete: Document = {
            "q": {"_id": self.pick_id(index)},
            "limit": self.random.choice([1, 1, 0]),
        }
        if self.chance(0.1):
            delete["hint"] = {"_id": 1}
        command = {"delete": collection.name, "deletes": [delete], **self.write_options()}
        fields = self.retryable() if delete["limit"] else {}
        touched = (self.ids[index],)
        return self.writing("delete by _id", collection, command, **fields, touched=touched)

    def delete_by_ref(self, collection: Collection) -> Step:
        """One, by a field that isn't indexed."""
        index = self.pick_index()
        query: Document = {"ref": f"{self.partition}-{index}"}
        command: Document = {"delete": collection.name, "deletes": [{"q": query, "limit": 1}]}
        if self.chance(0.2):
            query["$expr"] = {"$eq": ["$p", "$$mine"]}
            command["let"] = {"mine": self.partition}
        touched = (self.ids[index],)
        return self.writing(
            "delete by ref", collection, command, **self.retryable(), touched=touched
        )

    def delete_many(self, collection: Collection) -> Step:
        """All that match, on a filter that spans the floor; few, or nothing would be left."""
        query = {**self.a_filter(collection), "qty": self.random.randrange(9)}
        command = {"delete": collection.name, "deletes": [{"q": query, "limit": 0}]}
        return self.writing("deleteMany", collection, command, multi=True)

    def delete_batch(self, collection: Collection) -> Step:
        """Several deletes in one command."""
        ids = self.pick_ids(2, 5)
        deletes: list[Document] = [{"q": {"_id": value}, "limit": 1} for value in ids]
        command = {"delete": collection.name, "deletes": deletes, "ordered": self.chance(0.5)}
        if self.chance(0.1):
            deletes.append(
                {"q": {"p": self.partition, "qty": self.random.randrange(9)}, "limit": 0}
            )
            return self.writing("delete batch", collection, command, touched=tuple(ids), multi=True)
        kind = "delete batch"
        return self.writing(kind, collection, command, **self.retryable(), touched=tuple(ids))
