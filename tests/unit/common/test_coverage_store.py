"""Writes of coverage documents count only once a majority has them."""

from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from thermocline_common import coverage_store
from thermocline_common.coverage import Coverage, State
from thermocline_common.tiers import Tiers

SEEN = Coverage("a.b", State.ACTIVE, State.ACTIVE, age_field="t")
UNCONFIRMED = {"code": 64, "errmsg": "waiting for replication timed out"}


class Server:
    """Answers every command with one reply."""

    def __init__(self, reply: dict[str, Any]) -> None:
        self.reply = reply

    def __getitem__(self, _name: str) -> "Server":
        return self

    async def command(self, _command: dict[str, Any]) -> dict[str, Any]:
        return self.reply


def tiers(**reply: Any) -> Tiers:
    server: Any = Server({"ok": 1.0, **reply})
    return Tiers(server, server)


@pytest.mark.parametrize(("changed", "won"), [(1, True), (0, False)])
async def test_whether_the_change_was_first(changed: int, won: bool) -> None:
    assert await coverage_store.raise_floor(tiers(n=changed), SEEN, None) is won


async def test_a_raise_that_no_majority_confirmed_is_an_error() -> None:
    with pytest.raises(OperationFailure, match="timed out"):
        await coverage_store.raise_floor(tiers(n=1, writeConcernError=UNCONFIRMED), SEEN, None)


async def test_an_archive_time_that_no_majority_confirmed_is_an_error() -> None:
    server = tiers(n=1, writeConcernError=UNCONFIRMED)
    with pytest.raises(OperationFailure, match="timed out"):
        await coverage_store.raise_archive_time(server, ["a.b"], Timestamp(5, 1), {})
