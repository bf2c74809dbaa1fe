"""The two tiers as a service sees them: PyMongo clients logged in as that service's own user."""

from dataclasses import dataclass
from typing import Any

from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase

RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument,
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
)
"""Documents pass through as bytes; PyMongo's default decoding changes or refuses some that MongoDB stores."""

PLAIN: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    unicode_decode_error_handler="replace",
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
"""For coordination documents. Ids of documents among them may be anything: never an error, but not exact."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """Clients of the fast tier and of the archive. Each keeps its own tier's ``$clusterTime``."""

    fast: AsyncMongoClient[dict[str, Any]]
    archive: AsyncMongoClient[dict[str, Any]]


def raw_database(
    client: AsyncMongoClient[dict[str, Any]], name: str
) -> AsyncDatabase[RawBSONDocument]:
    """A database whose replies and documents stay raw."""
    return client.get_database(name, codec_options=RAW)  # type: ignore[return-value]
