"""Change streams that the archive serves: of untiered collections, of whole databases and clusters."""

from collections.abc import Awaitable, Callable

from bson.timestamp import Timestamp

from thermocline_common.coverage import Coverage
from thermocline_proxy.commands import change_streams
from thermocline_proxy.commands.catalog import CLOSED_DATABASES
from thermocline_proxy.commands.command import Command


async def on_archive(
    command: Command,
    coverage: Coverage | None,
    archive_time: Callable[[], Awaitable[Timestamp | None]],
) -> Command:
    """The command for A, where it is a change stream; any other as it is.

    ``coverage``: of its namespace, if it has one. ``archive_time``: A's present time. Raises
    ``CommandError`` where A can't begin at that point.
    """
    watch = change_streams.watch_of(command)
    if watch is None:
        return command
    change_streams.check_on_archive(watch, coverage)
    if watch.token is not None:
        now = await archive_time()
        if now is not None and change_streams.ahead(watch, now):
            raise change_streams.history_lost(
                "the resume token is of a time that the archive hasn't reached: it is of another server"
            )
    return change_streams.for_archive(command, CLOSED_DATABASES)
