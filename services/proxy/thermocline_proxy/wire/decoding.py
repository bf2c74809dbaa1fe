"""Documents from tiers and clients as dictionaries, whatever they hold. Pure.

MongoDB stores and repeats strings that aren't UTF-8 and dates beyond the year 9999, in errors and in
``$currentOp`` too: PyMongo's own settings refuse both.
"""

from typing import Any, Final

import bson
from bson.codec_options import CodecOptions, DatetimeConversion

_LENIENT: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    document_class=dict,
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    unicode_decode_error_handler="surrogateescape",
)


def decoded(raw: bytes) -> dict[str, Any]:
    """A raw document with all that it holds; dates are ``DatetimeMS``. Raises ``InvalidBSON``."""
    return bson.decode(raw, _LENIENT)
