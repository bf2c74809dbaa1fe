"""Whatever MongoDB stores or repeats can be decoded."""

import bson
import pytest
from bson.datetime_ms import DatetimeMS

from thermocline_proxy.reads.replies import error_code
from thermocline_proxy.wire.decoding import decoded

ODD = bson.encode({"ok": 0.0, "errmsg": "odd!", "code": 2}).replace(b"odd!", b"\xff\xfe\xff!")
FAR = bson.encode({"ok": 0.0, "keyValue": {"at": DatetimeMS(2**62)}, "code": 11000})


@pytest.mark.parametrize(("raw", "code"), [(ODD, 2), (FAR, 11000)])
def test_strings_that_are_no_text_and_far_dates(raw: bytes, code: int) -> None:
    assert decoded(raw)["code"] == code
    assert error_code(raw) == code
