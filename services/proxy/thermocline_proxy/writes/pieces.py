"""A batch cut into pieces, each carried out by one send to F or one statement's own procedure. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from thermocline_common.coverage import Coverage
from thermocline_common.ids import DocId
from thermocline_common.portions import MOST_BYTES, MOST_ID_BYTES, MOST_IDS
from thermocline_proxy.writes.changes import touches_unique
from thermocline_proxy.writes.filters import storable
from thermocline_proxy.writes.statements import Batch, Kind
from thermocline_proxy.writes.targets import StatementTarget


class How(Enum):
    """How a piece is carried out."""

    INSERT = "insert"
    UPDATE_BY_ID = "update by id"
    """Several updates by ``_id``: their documents are kept in F, then they go as they are."""
    DELETE_BY_ID = "delete by id"
    ONE = "one"
    MANY = "many"
    REFUSED = "refused"
    """An insert under an ``_id`` that no tiered collection takes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive statements: their indexes in the client's command."""

    how: How
    indexes: tuple[int, ...]


def cut(
    batch: Batch, coverage: Coverage, ids: Sequence[DocId | None], start: int = 0
) -> Iterator[Piece]:
    """The batch's pieces from statement ``start`` on, in order.

    ``ids``: each statement's ``_id``, where it is about one.
    """
    group: list[int] = []
    group_how: How | None = None
    held = 0
    for index in range(start, len(ids)):
        doc_id = ids[index]
        how = _how(batch, coverage, index, doc_id)
        size = len(doc_id.value) if doc_id is not None else 0
        full = len(group) >= MOST_IDS or held + size > MOST_BYTES
        alone = how in (How.ONE, How.MANY, How.REFUSED)
        if group and (how is not group_how or full or alone):
            yield _piece(group_how, group)
            group, held = [], 0
        if alone:
            yield Piece(how, (index,))
            continue
        group.append(index)
        group_how = how
        held += size
    if group:
        yield _piece(group_how, group)


def _piece(how: How | None, group: list[int]) -> Piece:
    assert how is not None
    if how is How.UPDATE_BY_ID and len(group) == 1:
        how = How.ONE
    return Piece(how, tuple(group))


def _how(batch: Batch, coverage: Coverage, index: int, doc_id: DocId | None) -> How:
    if batch.kind is Kind.INSERT:
        assert doc_id is not None
        return How.REFUSED if len(doc_id.value) > MOST_ID_BYTES else How.INSERT
    target = StatementTarget(batch, index)
    by_id = doc_id is not None and storable(doc_id)
    if batch.kind is Kind.DELETE:
        if by_id:
            return How.DELETE_BY_ID
        return How.MANY if target.statement.multi else How.ONE
    if (
        by_id
        and not touches_unique(coverage, target.update)
        and not (target.upsert and coverage.unique)
    ):
        return How.UPDATE_BY_ID
    return How.MANY if target.statement.multi else How.ONE
