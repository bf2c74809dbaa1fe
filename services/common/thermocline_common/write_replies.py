"""What a write command reports inside an ``ok: 1`` reply, which PyMongo's ``command`` doesn't raise.

A write that was refused in part, or that no majority confirmed in time, has ``ok: 1``: whoever goes on
without looking counts on what may not be there.
"""

from collections.abc import Container, Mapping
from typing import Any

from pymongo.errors import OperationFailure

from thermocline_common.errors import Code


def first_write_error(
    reply: Mapping[str, Any], *, expected: Container[int] = ()
) -> Mapping[str, Any] | None:
    """The first of ``writeErrors`` (``index``, ``code``, ``errmsg``) whose code isn't ``expected``."""
    for error in reply.get("writeErrors") or ():
        if int(error["code"]) not in expected:
            found: Mapping[str, Any] = error
            return found
    return None


def require_written(reply: Mapping[str, Any], *, expected: Container[int] = ()) -> None:
    """Raise ``OperationFailure`` for a write error or a ``writeConcernError`` of a reply.

    ``expected``: codes of write errors that are no failure here, such as 11000 where somebody else
    may be first. A write concern is checked whatever was expected.
    """
    error = first_write_error(reply, expected=expected) or reply.get("writeConcernError")
    if error:
        code = int(error.get("code", Code.WriteConcernFailed))
        raise OperationFailure(str(error.get("errmsg")), code, dict(error))
