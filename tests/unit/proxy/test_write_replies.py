"""Replies: read and merged."""

from typing import Any

import bson
import pytest

from thermocline_proxy.writes.replies import (
    combined,
    duplicate_of_id,
    find_and_modify_settled,
    merge,
    parse_outcome,
)


def raw(**fields: Any) -> bytes:
    return bson.encode({**fields, "ok": 1.0})


FAILED = bson.encode({"ok": 0.0, "code": 13, "errmsg": "not authorized"})


def an_error(index: int, code: int = 11000) -> dict[str, Any]:
    return {"index": index, "code": code, "errmsg": "E"}


@pytest.mark.parametrize(
    ("reply", "settled"),
    [
        (raw(n=0, nModified=0), False),
        (raw(n=1, nModified=0), True),
        (raw(n=0, retriedStmtIds=[0]), True),
        (raw(n=0, writeErrors=[an_error(0)]), True),
        (FAILED, True),
    ],
)
def test_what_settles_a_write(reply: bytes, settled: bool) -> None:
    assert parse_outcome(reply).settled is settled


@pytest.mark.parametrize(
    ("reply", "settled"),
    [
        (raw(lastErrorObject={"n": 0, "updatedExisting": False}, value=None), False),
        (raw(lastErrorObject={"n": 1, "updatedExisting": True}, value={}), True),
        (raw(lastErrorObject={"n": 0}, value=None, retriedStmtId=0), True),
        (FAILED, True),
    ],
)
def test_what_settles_a_find_and_modify(reply: bytes, settled: bool) -> None:
    assert find_and_modify_settled(reply) is settled


def test_one_part_is_passed_on_untouched() -> None:
    reply = raw(n=2, somethingNew=1)
    assert merge([((0, 1), reply)]) is reply


def test_parts_are_added_up_with_the_indexes_of_the_whole() -> None:
    first = raw(n=1, electionId=1, nModified=1, retriedStmtIds=[0], writeErrors=[an_error(1)])
    second = raw(
        n=2,
        electionId=2,
        nModified=0,
        upserted=[{"index": 1, "_id": "u"}],
        writeErrors=[an_error(0, 121)],
        retriedStmtIds=[5],
        writeConcernError={"code": 64},
    )
    assert bson.decode(merge([((0, 3), first), ((2, 5), second)])) == {
        "n": 3,
        "electionId": 2,
        "writeErrors": [an_error(2, 121), an_error(3)],
        "retriedStmtIds": [0, 5],
        "upserted": [{"index": 5, "_id": "u"}],
        "nModified": 1,
        "writeConcernError": {"code": 64},
        "ok": 1.0,
    }


def test_a_part_that_failed_as_a_whole_is_the_answer() -> None:
    assert merge([((0,), raw(n=1)), ((1,), FAILED)]) is FAILED


def test_a_statement_that_fails_half_way_counts_nothing() -> None:
    failed = raw(n=0, nModified=0, writeErrors=[an_error(0)])
    assert combined([raw(n=0, nModified=0), raw(n=5, nModified=5), failed]) is failed
    whole = bson.decode(combined([raw(n=0, nModified=0), raw(n=5, nModified=4)]))
    assert (whole["n"], whole["nModified"]) == (5, 4)


def test_duplicate_ids_are_told_from_other_duplicates() -> None:
    by_id = {**an_error(0), "keyPattern": {"_id": 1}}
    other = {**an_error(0), "keyPattern": {"k": 1}}
    assert duplicate_of_id(raw(n=0, writeErrors=[by_id]))
    assert not duplicate_of_id(raw(n=0, writeErrors=[other]))
    top = bson.encode({"ok": 0.0, "code": 11000, "keyPattern": {"_id": 1}})
    assert duplicate_of_id(top)
