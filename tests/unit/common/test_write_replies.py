"""Errors inside ``ok: 1`` replies are raised, whichever of the two kinds they are."""

from typing import Any

import pytest
from bson import encode
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure

from thermocline_common.errors import Code
from thermocline_common.write_replies import first_write_error, require_written

DUPLICATE = {"index": 2, "code": 11000, "errmsg": "E11000 duplicate key"}
REFUSED = {"index": 3, "code": 361, "errmsg": "Collection UUID does not match"}
CONCERN = {"code": 64, "errmsg": "waiting for replication timed out"}


def raw(reply: dict[str, Any]) -> RawBSONDocument:
    return RawBSONDocument(encode(reply))


@pytest.mark.parametrize("shape", [dict, raw], ids=["decoded", "raw"])
@pytest.mark.parametrize(
    ("reply", "expected", "code"),
    [
        ({"ok": 1.0, "n": 1}, (), None),
        ({"ok": 1.0, "n": 0, "writeErrors": []}, (), None),
        ({"ok": 1.0, "n": 0, "writeErrors": [DUPLICATE]}, (), 11000),
        ({"ok": 1.0, "n": 0, "writeErrors": [DUPLICATE]}, (Code.DuplicateKey,), None),
        ({"ok": 1.0, "n": 0, "writeErrors": [DUPLICATE, REFUSED]}, (Code.DuplicateKey,), 361),
        ({"ok": 1.0, "n": 0, "writeErrors": [REFUSED, DUPLICATE]}, (), 361),
        ({"ok": 1.0, "n": 1, "writeConcernError": CONCERN}, (), 64),
        ({"ok": 1.0, "n": 1, "writeConcernError": {"errmsg": "no code"}}, (), 64),
        (
            {"ok": 1.0, "n": 0, "writeErrors": [DUPLICATE], "writeConcernError": CONCERN},
            (Code.DuplicateKey,),
            64,
        ),
        (
            {"ok": 1.0, "n": 0, "writeErrors": [REFUSED], "writeConcernError": CONCERN},
            (),
            361,
        ),
    ],
)
def test_require_written(shape: Any, reply: Any, expected: Any, code: int | None) -> None:
    if code is None:
        require_written(shape(reply), expected=expected)
        return
    with pytest.raises(OperationFailure) as caught:
        require_written(shape(reply), expected=expected)
    assert caught.value.code == code
    assert caught.value.details is not None


def test_the_details_are_those_of_the_error() -> None:
    with pytest.raises(OperationFailure) as caught:
        require_written(raw({"ok": 1.0, "writeErrors": [REFUSED]}))
    assert caught.value.details == REFUSED
    assert str(caught.value).startswith("Collection UUID")


def test_the_first_error_names_its_statement() -> None:
    reply = raw({"ok": 1.0, "writeErrors": [DUPLICATE, REFUSED]})
    first = first_write_error(reply)
    assert first is not None
    assert first["index"] == 2
    second = first_write_error(reply, expected={11000})
    assert second is not None
    assert second["index"] == 3
    assert first_write_error(raw({"ok": 1.0})) is None
