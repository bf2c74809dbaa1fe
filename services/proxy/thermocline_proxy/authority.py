"""Before the proxy refuses a statement for a reason of its own: may this user make it at all?

MongoDB decides that first. Whoever has no business with a collection isn't told how it is tiered.
"""

from typing import Final

from thermocline_common.coverage import Tier
from thermocline_common.errors import Code, CommandError
from thermocline_proxy.commands.catalog import Entry, Kind
from thermocline_proxy.commands.command import Command
from thermocline_proxy.commands.touched import inner_command
from thermocline_proxy.ports import Exchange, Request
from thermocline_proxy.transactions.inside import bare

REFUSALS: Final = frozenset(
    {
        Code.IllegalOperation,
        Code.InvalidOptions,
        Code.OperationFailed,
        Code.CommandNotSupported,
        Code.CommandNotSupportedOnView,
        Code.OperationNotSupportedInTransaction,
    }
)
"""Codes with which the proxy refuses what MongoDB would do."""
_KINDS: Final = (Kind.READ, Kind.WRITE)
_SCHEMA: Final = ("drop", "renameCollection")
"""Take a collection's UUID, too: with one that no collection has, they do nothing."""
_NO_SUCH_COLLECTION: Final = b"\x05collectionUUID\0\x10\0\0\0\x04" + b"\0" * 16


def question(command: Command) -> Command | None:
    """A command that nothing executes and whose refusal tells what the user may not do; None: there is none."""
    asked = inner_command(command) if command.name == "explain" else command
    return None if asked is None else bare(asked).changed({"collectionUUID": _NO_SUCH_COLLECTION})


async def require_right(exchange: Exchange, request: Request, entry: Entry) -> None:
    """Raise ``CommandError`` 13 where the archive says that this user may not do this."""
    if request.identity is None or not (entry.kind in _KINDS or entry.name in _SCHEMA):
        return
    asked = question(request.command)
    if asked is None:
        return
    reply = (await exchange.run(Tier.ARCHIVE, request.identity, asked)).decode()
    if reply.get("code") == Code.Unauthorized:
        raise CommandError(Code.Unauthorized, str(reply["errmsg"]))
