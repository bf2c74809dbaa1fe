"""Names of databases and collections: MongoDB's rules, and which of them can be tiered."""

from dataclasses import dataclass
from typing import Final

from thermocline_common.names import DATABASE, SET_ASIDE_DATABASE

MAX_NAMESPACE_BYTES: Final = 255
MAX_DATABASE_BYTES: Final = 63
SYSTEM_DATABASES: Final = frozenset({"admin", "local", "config", DATABASE, SET_ASIDE_DATABASE})
"""Databases that never hold tiered collections: MongoDB's own, and Thermocline's."""

_NOT_IN_DATABASES = frozenset('/\\. "$*<>:|?\0')


class NamespaceError(ValueError):
    """The text is not the name of a collection that can be tiered. ``reason`` and ``remedy`` are for people."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Namespace:
    """``database`` and ``collection`` of one namespace."""

    database: str
    collection: str

    def __str__(self) -> str:
        return f"{self.database}.{self.collection}"


def split_namespace(text: str) -> Namespace:
    """Split at the first dot, as MongoDB does. Raises ``ValueError`` where there is none."""
    database, dot, collection = text.partition(".")
    if not dot:
        raise ValueError(f"{text!r} has no dot between database and collection")
    return Namespace(database, collection)


def parse_tiered_namespace(text: str) -> Namespace:
    """The namespace of a policy. Raises :class:`NamespaceError` for what MongoDB or tiering refuses."""
    example = "write database.collection, such as shop.orders"
    database, dot, collection = text.partition(".")
    if not dot or not database or not collection:
        raise NamespaceError("is not of the form database.collection", example)
    if any(part != part.strip() for part in (database, collection)):
        raise NamespaceError("has white space around a name", f"{example}, without spaces")
    bad = sorted(_NOT_IN_DATABASES.intersection(database))
    if bad:
        raise NamespaceError(
            f"has {bad[0]!r} in the database's name, which MongoDB forbids", example
        )
    if database.lower() in SYSTEM_DATABASES:
        raise NamespaceError(
            f"is in database {database}, which is never tiered",
            "name a collection of an application's database",
        )
    if collection.startswith("system."):
        raise NamespaceError(
            "is one of MongoDB's own collections", "name a collection of the application"
        )
    if "$" in collection or "\0" in collection or collection.startswith("."):
        raise NamespaceError("has a collection name that MongoDB forbids", example)
    if len(database.encode()) > MAX_DATABASE_BYTES:
        raise NamespaceError(
            f"has a database name of more than {MAX_DATABASE_BYTES} bytes", "use its real name"
        )
    if len(text.encode()) > MAX_NAMESPACE_BYTES:
        raise NamespaceError(f"is longer than {MAX_NAMESPACE_BYTES} bytes", "use its real name")
    return Namespace(database, collection)


def check_age_field(text: str) -> str:
    """A policy's age field, a dotted path. Raises :class:`NamespaceError` where it can't be one."""
    example = "name a field that holds a date, such as createdAt or meta.createdAt"
    parts = text.split(".")
    if text == "_id":
        raise NamespaceError("is the document's id, which tells no age", example)
    if not all(parts):
        raise NamespaceError("has an empty part", example)
    if "\0" in text or any(part.startswith("$") for part in parts):
        raise NamespaceError("has a part that starts with '$' or holds a NUL", example)
    if any(part.isdigit() for part in parts):
        raise NamespaceError("points into an array, and an array has no single age", example)
    if text != text.strip():
        raise NamespaceError("has white space around it", example)
    if len(text) > MAX_NAMESPACE_BYTES:
        raise NamespaceError(f"is longer than {MAX_NAMESPACE_BYTES} characters", example)
    return text
