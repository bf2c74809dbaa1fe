"""How a statement of a transaction ends, whatever its own look-ups and promotions run into."""

from typing import Any, cast

import bson
import pytest
from pymongo.errors import AutoReconnect, ExecutionTimeout, OperationFailure

from thermocline_common.coverage import Tier
from thermocline_common.errors import CommandError
from thermocline_common.ids import DocId
from thermocline_proxy.commands.command import Command
from thermocline_proxy.ports import Identity, Reply, Request
from thermocline_proxy.transactions.handler import Transactions
from thermocline_proxy.transactions.inside import LookUpFailed
from thermocline_proxy.transactions.pins import Pin
from thermocline_proxy.transactions.refusals import TRANSIENT
from thermocline_proxy.transactions.statement import Cold
from thermocline_proxy.writes.run import Moved

NOBODY = Identity("admin", "somebody", "none", b"", b"")
COLD = Cold("shop.orders", (DocId.of_document(bson.encode({"_id": 1})),))


class Broken(Transactions):
    """Promotions fail as told; aborts do nothing, and are counted."""

    def __init__(self, promoting: Exception | None) -> None:
        super().__init__(cast("Any", None), cast("Any", None), cast("Any", None))
        self.promoting = promoting
        self.aborted = 0

    async def _promote(self, *_: object) -> None:
        if self.promoting is not None:
            raise self.promoting

    async def _abort(self, *_: object) -> None:
        self.aborted += 1


@pytest.mark.parametrize(
    ("statement", "promoting", "code"),
    [
        (COLD, None, 112),
        (COLD, ExecutionTimeout("operation exceeded time limit", 50), 262),
        (COLD, AutoReconnect("connection closed"), 6),
        (COLD, OperationFailure("no primary", 10107), 10107),
        (COLD, CommandError(262, "the lists can't be read; try again"), 262),
        (AutoReconnect("connection closed"), None, 6),
        (ExecutionTimeout("operation exceeded time limit", 50), None, 262),
        (Moved(), None, 112),
        (CommandError(262, "try again"), None, 262),
    ],
)
async def test_whatever_passes_can_be_repeated(
    statement: Exception, promoting: Exception | None, code: int
) -> None:
    async def work() -> bytes:
        raise statement

    transactions = Broken(promoting)
    request = Request(Command(bson.encode({"update": "orders", "$db": "shop"})), NOBODY, 1)
    with pytest.raises(CommandError) as caught:
        await transactions._ending(cast("Pin", None), request, work())
    assert (caught.value.code, caught.value.labels) == (code, TRANSIENT)
    assert transactions.aborted


@pytest.mark.parametrize(
    ("fields", "of_statement"),
    [
        ({"code": 2}, True),  # BadValue: the filter
        ({"code": 291}, True),  # NoQueryExecutionPlans: the hint
        ({"code": 50}, False),  # maxTimeMS ends the whole batch
        ({"code": 11601}, False),
        ({"code": 13}, False),
        ({"code": 112, "errorLabels": ["TransientTransactionError"]}, False),
    ],
)
def test_whose_error_a_look_up_met(fields: dict[str, Any], of_statement: bool) -> None:
    raw = bson.encode({"ok": 0.0, "errmsg": "x", **fields})
    assert LookUpFailed(Reply(raw, Tier.FAST, "h:1")).of_statement is of_statement
