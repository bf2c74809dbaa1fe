"""What hello answers: the limits of the tiers that are there, and compressors."""

import datetime as dt
from typing import Any

import bson
import pytest

from thermocline_common.errors import CommandError
from thermocline_proxy.commands.command import Command
from thermocline_proxy.hello import Limits, common_limits, compression, hello_reply

ONE = Limits(6, 17, 30, 16_777_216, 48_000_000, 100_000)
OTHER = Limits(0, 21, 20, 17_000_000, 47_000_000, 90_000)


def test_limits_are_what_every_member_can_do() -> None:
    assert common_limits([]) is None
    assert common_limits([ONE]) == ONE
    assert common_limits([ONE, OTHER]) == Limits(6, 17, 20, 16_777_216, 47_000_000, 90_000)
    without = Limits(0, 17, None, 16_777_216, 48_000_000, 100_000)
    found = common_limits([ONE, without])
    assert found is not None
    assert found.session_minutes is None


def test_the_reply_tells_the_limits_it_is_given() -> None:
    reply = bson.decode(
        hello_reply(
            OTHER, legacy=False, hello_ok=False, connection_id=1, now=dt.datetime.now(dt.UTC)
        )
    )
    assert reply["maxBsonObjectSize"] == 17_000_000
    assert reply["maxMessageSizeBytes"] == 47_000_000
    assert reply["maxWriteBatchSize"] == 90_000
    assert (reply["minWireVersion"], reply["maxWireVersion"]) == (0, 21)
    assert "topologyVersion" not in reply


def hello(**fields: Any) -> Command:
    return Command(bson.encode({"hello": 1, **fields, "$db": "admin"}))


def test_compressors_stay_until_another_list_comes() -> None:
    assert compression(hello(compression=["zlib", "x", "zstd"]), ()) == ("zlib", "zstd")
    assert compression(hello(), ("zlib",)) == ("zlib",)
    assert compression(hello(compression=[]), ("zlib",)) == ()


@pytest.mark.parametrize("wanted", ["zlib", 5, None, [5], ["zlib", None]])
def test_a_list_that_is_none_is_refused(wanted: Any) -> None:
    with pytest.raises(CommandError) as caught:
        compression(hello(compression=wanted), ())
    assert caught.value.code == 14
