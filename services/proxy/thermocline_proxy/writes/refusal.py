"""Writes that the two tiers can't decide together, refused with what to do instead."""

from collections.abc import Iterable

from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DocId
from thermocline_common.portions import MOST_ID_BYTES


class Refused(CommandError):
    """This statement isn't supported on a tiered collection; nothing of it was executed."""

    def __init__(self, message: str, code: Code = Code.CommandNotSupported) -> None:
        super().__init__(code, message)


def refuse_long(ids: Iterable[DocId]) -> None:
    """Raise :class:`Refused` if one of these can't be the ``_id`` of a new document on a tiered collection."""
    for doc_id in ids:
        if len(doc_id.value) > MOST_ID_BYTES:
            raise Refused(
                f"the _id of a document in a tiered collection may have {MOST_ID_BYTES} bytes, not "
                f"{len(doc_id.value)}: MongoDB's change streams end at longer ones",
                Code.BSONObjectTooLarge,
            )
