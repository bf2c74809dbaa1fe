"""Read concerns and read preferences, merged with what each tier needs."""

from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from thermocline_proxy.commands.command import Command
from thermocline_proxy.commands.readconcern import (
    for_archive,
    for_fast,
    on_primary,
    read_concern,
    untiered_concern,
)

EARLY, LATE = Timestamp(10, 1), Timestamp(20, 1)


def command(concern: Any = None, **fields: Any) -> Command:
    given = {} if concern is None else {"readConcern": concern}
    return Command(bson.encode({"find": "c", **given, **fields, "$db": "d"}))


def concern_of(found: Command) -> Any:
    return bson.decode(found.body).get("readConcern")


@pytest.mark.parametrize(
    ("given", "published", "sent", "after"),
    [
        (None, None, None, None),
        (None, EARLY, {"afterClusterTime": EARLY}, EARLY),
        ({"level": "local"}, EARLY, {"level": "local", "afterClusterTime": EARLY}, EARLY),
        ({"level": "majority"}, EARLY, {"level": "majority", "afterClusterTime": EARLY}, EARLY),
        ({"level": "available"}, EARLY, {"level": "local", "afterClusterTime": EARLY}, EARLY),
        ({"level": "snapshot"}, EARLY, {"level": "snapshot", "afterClusterTime": EARLY}, EARLY),
        ({"level": "linearizable"}, EARLY, {"level": "linearizable"}, None),
        ({"afterClusterTime": LATE}, EARLY, {"afterClusterTime": LATE}, LATE),
        ({"afterClusterTime": EARLY}, LATE, {"afterClusterTime": LATE}, LATE),
        ({"level": "snapshot", "atClusterTime": LATE}, EARLY, {"level": "snapshot", "atClusterTime": LATE}, None),
        ({"level": "x"}, EARLY, {"level": "x"}, None),
    ],
)  # fmt: skip
def test_for_fast(given: Any, published: Timestamp | None, sent: Any, after: Any) -> None:
    found, time = for_fast(command(given), published)
    assert (concern_of(found), time) == (sent, after)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (None, {"level": "majority", "afterClusterTime": LATE}),
        ({"level": "local"}, {"level": "majority", "afterClusterTime": LATE}),
        ({"level": "available"}, {"level": "majority", "afterClusterTime": LATE}),
        ({"afterClusterTime": EARLY}, {"level": "majority", "afterClusterTime": LATE}),
        ({"level": "linearizable"}, {"level": "linearizable"}),
        ({"level": "x"}, {"level": "x"}),
        (5, 5),
    ],
)
def test_for_archive(given: Any, sent: Any) -> None:
    assert concern_of(for_archive(command(given), LATE)) == sent


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (None, None),
        ({"level": "local"}, {"level": "local"}),
        ({"afterClusterTime": EARLY}, {"afterClusterTime": LATE}),
        ({"level": "majority", "afterClusterTime": EARLY}, {"level": "majority", "afterClusterTime": LATE}),
        ({"level": "linearizable", "afterClusterTime": EARLY}, {"level": "linearizable"}),
    ],
)  # fmt: skip
def test_untiered(given: Any, sent: Any) -> None:
    assert concern_of(untiered_concern(command(given), LATE)) == sent


@pytest.mark.parametrize(
    ("preference", "concern", "primary"),
    [
        (None, None, True),
        ({"mode": "primary"}, None, True),
        ({"mode": "secondary"}, None, False),
        ({"mode": "nearest", "tags": [{}]}, None, False),
        ({"mode": "primaryPreferred"}, None, False),
        ({"mode": "secondary"}, {"level": "linearizable"}, True),
        ({"mode": "hologram"}, None, True),
        (5, None, True),
    ],
)
def test_on_primary(preference: Any, concern: Any, primary: bool) -> None:
    fields = {} if preference is None else {"$readPreference": preference}
    assert on_primary(command(concern, **fields)) is primary


@pytest.mark.parametrize(
    "given", [5, {"level": 5}, {"new": 1}, {"level": []}, {"afterClusterTime": 5}]
)
def test_what_is_not_understood(given: Any) -> None:
    assert not read_concern(command(given)).valid
