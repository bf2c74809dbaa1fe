"""What may leave, from both tiers' bytes at one point."""

import uuid
from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.timestamp import Timestamp

from thermocline_common.ids import DocId
from thermocline_common.removals import Kind, Record
from thermocline_evictor.plan.mismatches import Mismatches
from thermocline_evictor.plan.verdicts import Verdict, digest, final, judge

ID = DocId.of_document(bson.encode({"_id": 1}))
TOKEN = uuid.UUID(int=1)


OLD = DatetimeMS(5)


def doc(age: Any = OLD, **fields: Any) -> bytes:
    return bson.encode({"_id": 1, "t": age, **fields})


@pytest.mark.parametrize(
    ("here", "there", "quarantined", "expired", "expected"),
    [
        pytest.param(doc(), doc(), False, False, Verdict.DELETABLE, id="equal and old"),
        pytest.param(None, doc(), False, False, Verdict.GONE, id="left already"),
        pytest.param(
            doc(DatetimeMS(9)), doc(DatetimeMS(9)), False, False, Verdict.DELETABLE, id="below"
        ),
        pytest.param(
            doc(DatetimeMS(10)), doc(DatetimeMS(10)), False, False, Verdict.NOT_DUE, id="at bound"
        ),
        pytest.param(doc(None), doc(None), False, False, Verdict.NOT_DUE, id="null"),
        pytest.param(
            doc([DatetimeMS(5)]), doc([DatetimeMS(5)]), False, False, Verdict.NOT_DUE, id="array"
        ),
        pytest.param(doc(5), doc(5), False, False, Verdict.NOT_DUE, id="number"),
        pytest.param(doc(), doc(), True, False, Verdict.QUARANTINED, id="quarantined"),
        pytest.param(doc(), None, False, False, Verdict.MISSING, id="missing"),
        pytest.param(doc(), None, False, True, Verdict.EXPIRING, id="expired by the archive"),
        pytest.param(doc(n=2), doc(n=2.0), False, False, Verdict.DIFFERING, id="2 and 2.0"),
        pytest.param(
            bson.encode({"_id": 1, "t": DatetimeMS(5), "a": 1, "b": 2}),
            bson.encode({"_id": 1, "t": DatetimeMS(5), "b": 2, "a": 1}),
            False,
            False,
            Verdict.DIFFERING,
            id="order of fields",
        ),
    ],
)
def test_judge(
    here: bytes | None, there: bytes | None, quarantined: bool, expired: bool, expected: Verdict
) -> None:
    found = judge(
        [ID],
        {ID: here} if here else {},
        {ID: there} if there else {},
        path="t",
        bound=10,
        quarantined=frozenset({ID}) if quarantined else frozenset(),
        expired=lambda document: expired,
    )
    assert found == {ID: expected}


def record(kind: Kind, token: uuid.UUID = TOKEN) -> dict[DocId, Record]:
    return {ID: Record("shop.orders", ID, kind, token)}


@pytest.mark.parametrize(
    ("verdict", "records", "content", "expected"),
    [
        (Verdict.DELETABLE, record(Kind.LEAVING), doc(), Verdict.DELETABLE),
        (Verdict.DELETABLE, {}, doc(), Verdict.RECORDED),
        (Verdict.DELETABLE, record(Kind.LEAVING, uuid.UUID(int=2)), doc(), Verdict.RECORDED),
        (Verdict.DELETABLE, record(Kind.DELETED), doc(), Verdict.RECORDED),
        (Verdict.DELETABLE, record(Kind.EVICTED), doc(), Verdict.RECORDED),
        (Verdict.DELETABLE, record(Kind.LEAVING), doc(n=1), Verdict.CHANGED),
        (Verdict.MISSING, record(Kind.LEAVING), doc(), Verdict.MISSING),
    ],
)
def test_final(
    verdict: Verdict, records: dict[DocId, Record], content: bytes, expected: Verdict
) -> None:
    announced = {ID: (TOKEN, digest(content))}
    assert final({ID: verdict}, {ID: doc()}, records, announced) == {ID: expected}


def test_a_difference_is_a_mismatch_only_if_it_stays() -> None:
    seen = Mismatches(3)
    differs, fast = {ID: Verdict.DIFFERING}, {ID: doc()}
    for number in range(3):
        assert seen.confirmed == []
        seen = seen.look(differs, fast, Timestamp(number, 0))
    assert seen.confirmed == [ID]
    assert seen.look({ID: Verdict.DELETABLE}, fast, Timestamp(9, 0)).confirmed == []
    assert seen.look({}, {}, Timestamp(9, 0)).confirmed == [ID]


def test_looks_at_one_checkpoint_count_once() -> None:
    """A large batch reaches the archive in parts, before the checkpoint."""
    seen = Mismatches(2)
    for _ in range(5):
        seen = seen.look({ID: Verdict.DIFFERING}, {ID: doc()}, Timestamp(1, 0))
    assert seen.confirmed == []


def test_a_document_that_changes_in_between_starts_anew() -> None:
    seen = Mismatches(2)
    for number in range(5):
        seen = seen.look({ID: Verdict.DIFFERING}, {ID: doc(n=number)}, Timestamp(number, 0))
    assert seen.confirmed == []
