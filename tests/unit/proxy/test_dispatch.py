"""Commands whose lease ends before they are sent."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import bson
import pytest

from thermocline_common.errors import CommandError
from thermocline_proxy.commands.catalog import CATALOG
from thermocline_proxy.commands.command import Command
from thermocline_proxy.dispatch import Dispatcher
from thermocline_proxy.exchange import LeaseLapsed

CREATE: Any = SimpleNamespace(
    command=Command(bson.encode({"create": "notes", "$db": "shop"})), deadline=None
)


def dispatcher(*outcomes: bytes | Exception) -> Any:
    """One whose statements on the archive end so, one after the other; nothing is tiered."""
    made: Any = object.__new__(Dispatcher)
    made._decided = AsyncMock()
    made._schema = SimpleNamespace(answer=AsyncMock(return_value=None))
    made._archive = SimpleNamespace(statement=AsyncMock(side_effect=outcomes))
    return made


async def test_a_create_that_was_not_sent_is_decided_anew() -> None:
    made = dispatcher(LeaseLapsed(()), LeaseLapsed(()), b"created")
    assert await made._ddl(CREATE, CATALOG["create"], None) == b"created"
    assert made._decided.await_count == 3


async def test_other_failures_of_a_create_are_told_at_once() -> None:
    made = dispatcher(CommandError(48, "exists"), b"created")
    with pytest.raises(CommandError, match="exists"):
        await made._ddl(CREATE, CATALOG["create"], None)
