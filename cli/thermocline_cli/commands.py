"""Commands that people type, as text -> a command of the wire."""

from collections.abc import Sequence
from typing import Any

import bson
from bson import json_util
from bson.errors import BSONError

from thermocline_common.namespace import split_namespace
from thermocline_proxy.commands.command import Command


class CommandTextError(ValueError):
    """The text is no command; the message says what to write."""


def parse_command(text: str, database: str | None, policies: Sequence[str]) -> Command:
    """A command from MongoDB's extended JSON, such as ``{"find": "orders", "filter": {...}}``.

    The database: ``database``, else the command's ``$db``, else the one that all ``policies``
    (namespaces) share. Raises :class:`CommandTextError`.
    """
    try:
        value: Any = json_util.loads(text)
    except (ValueError, TypeError, BSONError) as error:
        raise CommandTextError(
            f"not extended JSON: {error}; write such as "
            '{"find": "orders", "filter": {"createdAt": {"$gte": {"$date": "2026-01-01T00:00:00Z"}}}}'
        ) from error
    if not isinstance(value, dict) or not value:
        raise CommandTextError('a command is an object, such as {"find": "orders"}')
    found = database or value.get("$db")
    if found is None:
        shared = {split_namespace(namespace).database for namespace in policies}
        if len(shared) != 1:
            raise CommandTextError("say in which database: --database NAME, or $db in the command")
        (found,) = shared
    if not isinstance(found, str):
        raise CommandTextError("$db is the name of a database")
    try:
        return Command(bytes(bson.encode({**value, "$db": found})))
    except (BSONError, ValueError, TypeError, OverflowError) as error:
        raise CommandTextError(f"can't be sent to MongoDB: {error}") from error
