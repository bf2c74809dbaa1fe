"""What is asked before a refusal of the proxy's own, and what of the answer is told."""

from collections.abc import Mapping

import bson
import pytest
from bson.int64 import Int64

from thermocline_common.coverage import Tier
from thermocline_common.errors import CommandError
from thermocline_proxy.authority import question, require_right
from thermocline_proxy.commands.catalog import CATALOG
from thermocline_proxy.commands.command import Command
from thermocline_proxy.ports import Identity, Reply, Request
from thermocline_proxy.wire.replies import shortened, without_command

ANNA = Identity("admin", "anna", "SCRAM-SHA-256", b"", b"")
FIND = {"find": "orders", "filter": {"a": 1}, "$db": "shop"}
INSIDE = {"lsid": {"id": 1}, "txnNumber": Int64(1), "autocommit": False, "startTransaction": True}


def command(fields: Mapping[str, object]) -> Command:
    return Command(bson.encode(fields))


@pytest.mark.parametrize("fields", [FIND, {**FIND, **INSIDE}, {"explain": FIND, "$db": "shop"}])
def test_the_question_is_the_command_on_a_collection_that_is_not_there(
    fields: dict[str, object],
) -> None:
    asked = question(command(fields))
    assert asked is not None
    document = bson.decode(asked.body)
    assert document.pop("collectionUUID") == bson.Binary(bytes(16), 4)
    assert document == FIND


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'not authorized on shop to execute command { find: "orders", filter: { a: 1 } }',
            'not authorized on shop to execute command { find: "orders" }',
        ),
        (
            'not authorized on shop to execute command { insert: "orders" }',
            'not authorized on shop to execute command { insert: "orders" }',
        ),
        ("something else", "something else"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert shortened(text) == expected


def test_a_refusal_shows_nothing_of_what_was_sent() -> None:
    text = 'not authorized on shop to execute command { find: "c", $clusterTime: { hash: 1 } }'
    refused = {"ok": 0.0, "errmsg": text, "code": 13, "codeName": "Unauthorized", "more": 1}
    assert bson.decode(without_command(bson.encode(refused))) == {
        **refused,
        "errmsg": 'not authorized on shop to execute command { find: "c" }',
    }


def test_other_replies_stay_as_they_are() -> None:
    documents = [{"errmsg": "not authorized on you"}, {"_id": 1}]
    for reply in ({"cursor": {"firstBatch": documents}, "ok": 1.0}, {"ok": 0.0, "errmsg": "no"}):
        assert without_command(bson.encode(reply)) == bson.encode(reply)
    odd = bson.encode({"a": "not authorized on { x: 1, y: 2 }", "ok": 1.0})
    assert without_command(odd) is odd


class Archive:
    """Answers one reply; remembers who asked."""

    def __init__(self, reply: dict[str, object]) -> None:
        self.reply = reply
        self.asked: list[tuple[Tier, Identity | None]] = []

    async def run(self, tier: Tier, identity: Identity | None, command: Command) -> Reply:
        self.asked.append((tier, identity))
        return Reply(bson.encode(self.reply), tier, "")


@pytest.mark.parametrize(("code", "refused"), [(13, True), (361, False), (40415, False)])
async def test_only_a_lack_of_rights_is_told(code: int, refused: bool) -> None:
    archive = Archive({"ok": 0.0, "code": code, "errmsg": "not authorized"})
    request = Request(command(FIND), ANNA, 1)
    if refused:
        with pytest.raises(CommandError) as caught:
            await require_right(archive, request, CATALOG["find"])  # type: ignore[arg-type]
        assert caught.value.code == 13
    else:
        await require_right(archive, request, CATALOG["find"])  # type: ignore[arg-type]
    assert archive.asked == [(Tier.ARCHIVE, ANNA)]


async def test_without_logins_nothing_is_asked() -> None:
    archive = Archive({"ok": 1.0})
    await require_right(archive, Request(command(FIND), None, 1), CATALOG["find"])  # type: ignore[arg-type]
    assert not archive.asked
