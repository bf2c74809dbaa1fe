"""Steps of ``findAndModify``, and writes with options that are seldom used."""

from typing import Any

from support.differential.bson_values import has_letters
from support.differential.layout import Collection, Document
from support.differential.step import Limit, Step
from support.differential.values import LOOSE
from support.differential.writes import Writes

COLLATED = Limit.COLLATION


class Modifying(Writes):
    """Makers of ``findAndModify`` and of special updates and deletes."""

    def find_and_modify(self, collection: Collection) -> Step:
        """Update one: by ``_id``, or the first in some order."""
        index = self.pick_index()
        command: Document = {"findAndModify": collection.name}
        touched: tuple[Any, ...] = ()
        if self.chance(0.5):
            statement = self.one_update(collection, upsert=self.chance(0.3))
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
        command["new"] = self.chance(0.5)
        if self.chance(0.3):
            command["fields"] = {"qty": 1, "tag": 1}
        command |= self.write_options()
        kind = "findAndModify"
        return self.writing(kind, collection, command, **self.retryable(), touched=touched)

    def find_and_remove(self, collection: Collection) -> Step:
        """Remove one: by ``_id``, or the first in some order."""
        command: Document = {"findAndModify": collection.name, "remove": True}
        touched: tuple[Any, ...] = ()
        if self.chance(0.5):
            command["query"] = {"_id": self.pick_id(self.pick_index())}
            touched = (command["query"]["_id"],)
        else:
            command.update(query=self.a_filter(collection), sort=self.a_sort(collection))
        if self.chance(0.2):
            command["fields"] = {"lines": 0}
        kind = "findAndModify remove"
        return self.writing(kind, collection, command, **self.retryable(), touched=touched)

    def special_find_and_modify(self, collection: Collection) -> Step:
        """Array filters, positions, pipelines, ``let``, hints, collations, by the unique key."""
        index = self.pick_index()
        by_id: Document = {"_id": self.pick_id(index)}
        mine: Document = {"p": self.partition}
        sort = self.a_sort(collection)
        wanted = self.random.choice("abcd")
        choices: list[Document] = [
            {"query": by_id, "update": {"$set": {"lines.$[e].q": 9}}, "arrayFilters": [{"e.n": 1}]},
            {"query": {**by_id, "lines.n": 1}, "update": {"$inc": {"lines.$.q": 1}}, "new": True},
            {"query": by_id, "update": [{"$set": {"twice": {"$multiply": ["$qty", 2]}}}], "new": True},
            {"query": {**mine, "$expr": {"$eq": ["$tag", "$$wanted"]}}, "sort": sort, "let": {"wanted": wanted},
             "update": [{"$set": {"mark": "$$wanted"}}]},
            {"query": {**mine, "tag": wanted}, "sort": sort, "remove": True, "fields": {"serial": 1}},
            {"query": by_id, "update": {"$inc": {"qty": 1}}, "hint": {"_id": 1}},
            {"query": by_id, "update": {"$inc": {"qty": 1}}, "hint": "no such index"},
            {"query": {"ref": f"{self.partition}-{index}"}, "update": {"$inc": {"qty": 1}}, "new": True,
             "fields": {"lines": {"$slice": 1}}},
            {"query": {"sku": self.a_sku(), "p": self.partition}, "sort": {"serial": 1}, "update": {"$set": {"sku": self.a_sku()}}},
            {"query": mine, "sort": sort, "update": self.a_replacement(collection, index)},
        ]  # fmt: skip
        limit = None
        command = dict(self.random.choice(choices))
        if self.chance(0.1) and not isinstance(command.get("update"), list):
            command["collation"] = LOOSE
            limit = COLLATED
        update = command.get("update")
        if isinstance(update, dict) and "p" in update:  # a replacement of whichever comes first
            update = {name: value for name, value in update.items() if name not in ("_id", "ref")}
            command["update"] = {**update, "ref": f"{self.partition}-new"}
        command = {"findAndModify": collection.name, **command}
        kind = "special findAndModify"
        return self.writing(kind, collection, command, **self.retryable(), limit=limit)

    def special_update(self, collection: Collection) -> Step:
        """Positional operators, array filters, collations, hints, ``let``."""
        index = self.pick_index()
        by_id: Document = {"_id": self.pick_id(index)}
        choices: list[Document] = [
            {"q": {**by_id, "lines.n": 1}, "u": {"$set": {"lines.$.q": 8}}},
            {"q": by_id, "u": {"$set": {"lines.$[e].q": 9}}, "arrayFilters": [{"e.n": 1}]},
            {"q": by_id, "u": {"$inc": {"qty": 1}}, "hint": {"_id": 1}},
            {"q": by_id, "u": {"$inc": {"qty": 1}}, "hint": "no such index"},
            {"q": by_id, "u": [{"$set": {"c": "$$c"}}], "c": {"c": self.serial}},
            {"q": {**by_id, "$expr": {"$lt": ["$qty", 5]}}, "u": [{"$set": {"qty": {"$add": ["$qty", 1]}}}]},
            {"q": {"ref": {"$in": [f"{self.partition}-{index}"]}, "p": self.partition}, "u": {"$unset": {"tag": 1}}},
            {"q": by_id, "u": {"$inc": {"qty": 1}}, "collation": LOOSE},
            {"q": {**by_id, "tag": "A"}, "u": {"$inc": {"qty": 1}}, "collation": LOOSE},
        ]  # fmt: skip
        statement = self.random.choice(choices)
        # A stream's own collections can have a unique index over what is incremented.
        uncertain = has_letters(self.ids[index]) or collection.own
        limit = COLLATED if "collation" in statement and uncertain else None
        command = {"update": collection.name, "updates": [statement]}
        touched = (self.ids[index],)
        kind = "special update"
        return self.writing(
            kind, collection, command, **self.retryable(), touched=touched, limit=limit
        )

    def special_delete(self, collection: Collection) -> Step:
        """Collations, hints, conditions beside the ``_id``."""
        index = self.pick_index()
        by_id: Document = {"_id": self.pick_id(index)}
        choices: list[Document] = [
            {"q": {**by_id, "tag": "A"}, "limit": 1, "collation": LOOSE},
            {"q": by_id, "limit": 1, "hint": "no such index"},
            {"q": {**by_id, "qty": {"$lt": 5}}, "limit": 1},
            {"q": {"p": self.partition, "sku": self.a_sku()}, "limit": 0},
            {"q": {"p": self.partition, "tag": "Z"}, "limit": 0, "collation": LOOSE},
        ]
        delete = self.random.choice(choices)
        command = {"delete": collection.name, "deletes": [delete]}
        fields = self.retryable() if delete["limit"] else {"multi": True}
        limit = COLLATED if "collation" in delete else None
        return self.writing("special delete", collection, command, **fields, limit=limit)
