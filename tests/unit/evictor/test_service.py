"""What the service remembers and shows."""

import argparse
import types
from typing import Any, cast

import bson
from pymongo.errors import ServerSelectionTimeoutError

from thermocline_common.health import Problems
from thermocline_common.ids import DocId
from thermocline_common.runtime import Context
from thermocline_evictor.service import EvictorService, mismatch_text, shown_id
from thermocline_evictor.settings import Settings
from thermocline_evictor.tools import Report


def test_ids_are_shown_as_people_write_them() -> None:
    assert shown_id(DocId.of_document(bson.encode({"_id": 7}))) == "7"
    assert shown_id(DocId.of_document(bson.encode({"_id": {"a": "b"}}))) == '{"a": "b"}'
    bad = b"\x02_id\0\x02\0\0\0\xff\0"
    text = shown_id(DocId.of_document((len(bad) + 5).to_bytes(4, "little") + bad + b"\0"))
    assert "ff" in text


def test_a_mismatch_names_ids_and_what_to_do() -> None:
    assert mismatch_text("shop.orders", Report()) is None
    report = Report(mismatches=[DocId.of_document(bson.encode({"_id": 7}))])
    text = mismatch_text("shop.orders", report) or ""
    assert "shop.orders" in text
    assert "7" in text
    assert "compare" in text


class Start:
    """A context, and the archive that isn't up at the first two passes of TTL rules."""

    def __init__(self) -> None:
        self.problems = Problems()
        self.stop = types.SimpleNamespace(is_set=lambda: len(self.pauses) == 4)
        self.pauses: list[float] = []
        self.told: list[bool] = []

    async def stopping(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.told.append("expiry" in self.problems.current)

    async def expire_all(self, context: Context) -> None:
        if len(self.pauses) < 2:
            raise ServerSelectionTimeoutError("nobody is there")


async def test_a_tier_that_is_late_is_no_problem_for_a_whole_pause_of_ttl_rules() -> None:
    service = EvictorService(argparse.Namespace(), Settings(retry_seconds=2, expiry_seconds=60))
    start = Start()
    cast("Any", service)._expire_all = start.expire_all
    await service._expire(cast("Context", start))
    assert start.told == [True, True, False, False]
    assert start.pauses[:2] == [2, 2]
    assert all(59 < pause <= 60 for pause in start.pauses[2:])
