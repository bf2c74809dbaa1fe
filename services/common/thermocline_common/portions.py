"""Ids (and what stands for them) cut so that a command, its reply and its transaction hold each portion. Pure.

An ``_id`` may be megabytes long, so counting isn't enough: a command's document, a statement and an
oplog entry end at 16 MB, a message at 48 MB, and an oplog entry holds a new document's ``_id`` twice.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from thermocline_common.ids import DocId

T = TypeVar("T")

MOST_IDS: Final = 1_000
"""In one portion, unless the caller says otherwise."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of ids' values in one portion, but for a single longer one. Four times this is 16 MB: a client's own
filter, and a removal record's ``_id`` twice in the oplog, find room beside it."""
MOST_ID_BYTES: Final = 1024 * 1024
"""Of one ``_id`` in the fast tier. A change event's resume token repeats the ``_id`` in hexadecimal (with
zero bytes doubled), and a reply repeats the token: from 1.8 MB on, MongoDB ends a change stream for good."""
COMMAND_BYTES: Final = 15 * 1024 * 1024
"""What a command's document may come to with what its senders add; MongoDB's own limit is 16 MB."""


def portions(
    ids: Iterable[DocId], most: int = MOST_IDS, most_bytes: int = MOST_BYTES
) -> Iterator[list[DocId]]:
    """The ids, in order, in lists of at most ``most``, and ``most_bytes`` of values (or one id)."""
    wanted = ids if isinstance(ids, list) else list(ids)
    if sum([len(doc_id.value) for doc_id in wanted]) <= most_bytes:
        # Almost always: without a look at each, which replay would feel.
        for start in range(0, len(wanted), most):
            yield wanted[start : start + most]
        return
    yield from cut(wanted, lambda doc_id: len(doc_id.value), most, most_bytes)


def cut(
    items: Iterable[T], size: Callable[[T], int], most: int = MOST_IDS, most_bytes: int = MOST_BYTES
) -> Iterator[list[T]]:
    """Like :func:`portions`, of anything; ``size``: an item's bytes."""
    portion: list[T] = []
    held = 0
    for item in items:
        length = size(item)
        if portion and (len(portion) >= most or held + length > most_bytes):
            yield portion
            portion, held = [], 0
        portion.append(item)
        held += length
    if portion:
        yield portion


def first_portion(
    ids: Sequence[DocId], most: int = MOST_IDS, most_bytes: int = MOST_BYTES
) -> list[DocId]:
    """What the first of the portions holds; empty without ids."""
    return next(portions(list(ids[:most]), most, most_bytes), [])


def room_beside(*taken: int) -> int:
    """Bytes of ids that fit into a command beside parts of these sizes; at least 1, so that one id is tried."""
    return max(1, min(MOST_BYTES, COMMAND_BYTES - sum(taken)))
