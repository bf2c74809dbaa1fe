"""The table of section 3: what one copying transaction does with one id."""

import uuid

import bson
import pytest
from bson.raw_bson import RawBSONDocument

from thermocline_common.copy_in import Kept, plan_copy
from thermocline_common.ids import DocId
from thermocline_common.removals import Kind, Record

DOCUMENT = RawBSONDocument(bson.encode({"_id": 1, "v": 1}))
ID = DocId.of_document(bytes(DOCUMENT.raw))
OLD, NEW = uuid.uuid4(), uuid.uuid4()


def record(kind: Kind, token: uuid.UUID = OLD) -> dict[DocId, Record]:
    return {ID: Record("a.b", ID, kind, token)}


ONE = frozenset({ID})


@pytest.mark.parametrize(
    ("existing", "now", "before", "in_archive", "outcome", "writes", "stays", "again"),
    [
        pytest.param(True, {}, {}, True, Kept(present=ONE), 0, 0, 0, id="already there"),
        pytest.param(True, record(Kind.LEAVING), {}, True, Kept(present=ONE), 0, 1, 0, id="leaving: asked to stay"),
        pytest.param(True, record(Kind.DELETED), {}, False, Kept(present=ONE), 0, 0, 0, id="F's copy wins over a record"),
        pytest.param(False, record(Kind.DELETED), record(Kind.DELETED), True, Kept(hidden=ONE), 0, 0, 0, id="deleted"),
        pytest.param(False, record(Kind.EXPIRED), {}, True, Kept(hidden=ONE), 0, 0, 0, id="expired since"),
        pytest.param(False, record(Kind.EVICTED, NEW), record(Kind.EVICTED), True, Kept(), 0, 0, 1, id="evicted meanwhile: A's copy may be older"),
        pytest.param(False, {}, record(Kind.EVICTED), True, Kept(), 0, 0, 1, id="record removed meanwhile"),
        pytest.param(False, {}, {}, True, Kept(present=ONE, copied=ONE), 1, 0, 0, id="cold"),
        pytest.param(False, record(Kind.EVICTED), record(Kind.EVICTED), True, Kept(present=ONE, copied=ONE), 1, 0, 0, id="evicted before"),
        pytest.param(False, {}, {}, False, Kept(absent=ONE), 0, 0, 0, id="nowhere"),
    ],
)  # fmt: skip
def test_one_id(
    existing: bool,
    now: dict[DocId, Record],
    before: dict[DocId, Record],
    in_archive: bool,
    outcome: Kept,
    writes: int,
    stays: int,
    again: int,
) -> None:
    plan = plan_copy(
        [ID], ONE if existing else (), now, before, {ID: DOCUMENT} if in_archive else {}
    )
    assert plan.outcome == outcome
    assert (len(plan.write), len(plan.stay), len(plan.again)) == (writes, stays, again)
