"""What commands say of their transactions, which transactions a proxy knows, and coverage as of a time."""

import datetime as dt
from typing import Any

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from thermocline_common.coverage import Coverage, State, Tier
from thermocline_common.errors import Code, CommandError
from thermocline_proxy.commands.command import Command
from thermocline_proxy.routing.snapshot import Snapshot, Tiering
from thermocline_proxy.transactions.inside import bare
from thermocline_proxy.transactions.pins import Pin, Pins, api_elements, as_of, stated
from thermocline_proxy.transactions.refusals import conflict, labelled, needs_archive

LSID = {"id": Binary(b"s" * 16, 4)}
GOOD = {"lsid": LSID, "txnNumber": Int64(7), "autocommit": False}


FIRST = {**GOOD, "startTransaction": True}


def command(**fields: Any) -> Command:
    return Command(bson.encode({"find": "orders", "filter": {"_id": 1}, "$db": "shop", **fields}))


@pytest.mark.parametrize(
    ("extra", "starts"),
    [
        ({}, False),
        ({"readConcern": {}, "writeConcern": {}}, False),
        ({"startTransaction": True}, True),
        ({"startTransaction": True, "readConcern": {"level": "snapshot"}}, True),
        ({"startTransaction": True, "readConcern": {"afterClusterTime": Timestamp(1, 1)}}, True),
    ],
)
def test_reads_session_number_and_start(extra: dict[str, Any], starts: bool) -> None:
    said = stated(command(**GOOD, **extra))
    assert (said.session[5:], said.number, said.starts) == (b"s" * 16, 7, starts)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"autocommit": False}, Code.InvalidOptions),
        ({"lsid": LSID, "autocommit": False}, Code.InvalidOptions),
        ({"txnNumber": Int64(1), "autocommit": False}, Code.InvalidOptions),
        ({**GOOD, "lsid": {}}, Code.InvalidOptions),
        ({**GOOD, "lsid": 1}, Code.InvalidOptions),
        ({**GOOD, "txnNumber": 1}, Code.TypeMismatch),
        ({**GOOD, "autocommit": True}, Code.InvalidOptions),
        ({**GOOD, "autocommit": 0}, Code.InvalidOptions),
        ({**GOOD, "startTransaction": False}, Code.InvalidOptions),
        ({"lsid": LSID, "txnNumber": Int64(1), "startTransaction": True}, Code.InvalidOptions),
        ({**GOOD, "readConcern": {"level": "local"}}, Code.InvalidOptions),
        ({**GOOD, "readConcern": {"afterClusterTime": Timestamp(1, 1)}}, Code.InvalidOptions),
        ({**GOOD, "writeConcern": {"w": 1}}, Code.InvalidOptions),
        ({**FIRST, "writeConcern": {"w": 1}}, Code.InvalidOptions),
        ({**FIRST, "readConcern": {"level": "available"}}, Code.InvalidOptions),
        ({**FIRST, "readConcern": {"level": "linearizable"}}, Code.InvalidOptions),
        ({**FIRST, "readConcern": {"level": "nope"}}, Code.FailedToParse),
        (
            {**FIRST, "readConcern": {"level": "snapshot", "atClusterTime": Timestamp(1, 1)}},
            Code.InvalidOptions,
        ),
    ],
)
def test_refuses_what_a_server_would_not_run(fields: dict[str, Any], code: Code) -> None:
    with pytest.raises(CommandError) as failed:
        stated(command(**fields))
    assert failed.value.code == code


def test_a_bare_command_belongs_to_no_transaction() -> None:
    sent = command(**GOOD, startTransaction=True, readConcern={"level": "local"}, apiVersion="1")
    assert bson.decode(bare(sent).body) == {
        "find": "orders",
        "filter": {"_id": 1},
        "$db": "shop",
        "apiVersion": "1",
    }
    assert len(api_elements(sent)) == 1


def test_each_session_has_its_newest_transaction_and_the_oldest_are_forgotten() -> None:
    pins = Pins(most=2)
    for session, number in ((b"a", 1), (b"b", 1), (b"a", 2), (b"c", 1)):
        pins.put(Pin((None, session), number, Tier.FAST))
    assert pins.find((None, b"a"), 1) is None
    assert pins.find((None, b"a"), 2) is not None
    assert pins.find((None, b"b"), 1) is None
    assert len(pins) == 2


def test_coverage_counts_only_if_it_was_published_by_then() -> None:
    floor = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    fields: dict[str, Any] = {"floor": floor, "age_field": "t", "published_at": Timestamp(100, 2)}
    whole: dict[str, Any] = {"keep_all": True, "complete": True, "published_at": Timestamp(90, 1)}
    active = State.ACTIVE
    snapshot = Snapshot(
        1.0,
        1.0,
        {
            "a": Tiering(Coverage("a", active, active, **fields)),
            "b": Tiering(Coverage("b", active, active, **whole)),
            "c": Tiering(Coverage("c", active, active, keep_all=True, complete=True)),
        },
    )
    later = as_of(snapshot, Timestamp(100, 2)).tierings
    assert later["a"].coverage.floor == floor
    assert later["b"].coverage.complete
    assert not later["c"].coverage.complete
    earlier = as_of(snapshot, Timestamp(100, 1)).tierings
    assert earlier["a"].coverage.floor is None
    assert earlier["b"].coverage.complete


def test_labels_say_whether_a_repetition_may_help() -> None:
    assert conflict("x").labels == ("TransientTransactionError",)
    assert labelled(CommandError(Code.HostUnreachable, "x")).labels == (
        "TransientTransactionError",
    )
    assert labelled(CommandError(Code.ExceededTimeLimit, "x")).labels
    refused = needs_archive("shop.orders", "no-bound")
    assert labelled(refused) is refused
    assert refused.code == 263
    assert "keep: All" in refused.message
