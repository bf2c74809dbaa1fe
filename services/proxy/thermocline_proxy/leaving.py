"""How a proxy takes leave when it was told to stop, so that no application notices. Pure.

At first it goes on as before, because balancers take a moment to learn that it isn't ready. Then it
listens no more, and drivers have to hear of it: by hello, and by the error of a retryable write, which
makes a driver mark this proxy as unknown, give up its connections and send the write to another one,
under the same number. Applications that only read are told likewise a little later. What runs is
finished, and cursors and transactions are served to whoever still asks, until the drain's end.
"""

from collections.abc import Container
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from thermocline_common.errors import Code, CommandError
from thermocline_proxy.commands.catalog import Entry, Kind

IN_HAND_SECONDS: Final = 5.0
"""How long commands may run on after the drain's end; then their connections are cut."""
_READS: Final = frozenset(
    {"find", "aggregate", "distinct", "count", "listCollections", "listIndexes", "listDatabases"}
)
"""What drivers repeat at another proxy."""


class Phase(Enum):
    """Of a proxy's life."""

    SERVING = auto()
    LISTENING = auto()
    """Told to stop and not ready, but for clients it goes on as before."""
    LEAVING = auto()
    """Listens no more."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds. ``listen``: how long :attr:`Phase.LISTENING` lasts. Within :attr:`Phase.LEAVING`,
    ``reads``: after which reads are sent elsewhere; ``quiet``: after which a connection without a command
    is closed. ``total``: the drain's end, counted from its beginning."""

    listen: float
    reads: float
    quiet: float
    total: float


@dataclass(slots=True)
class Leaving:
    """Where a proxy stands; ``since``: when the phase began, in monotonic seconds."""

    phase: Phase = Phase.SERVING
    since: float = 0.0
    waits: Waits = Waits(0.0, 0.0, 0.0, 0.0)


def waits(drain_timeout: float) -> Waits:
    """For ``proxy.drainTimeout``."""
    return Waits(
        listen=min(2.0, drain_timeout / 10),
        reads=min(4.0, drain_timeout / 4),
        quiet=min(2.0, drain_timeout / 4),
        total=drain_timeout,
    )


def elsewhere(
    entry: Entry, fields: Container[bytes], *, writes: bool, left: float, waits: Waits
) -> CommandError | None:
    """The error that sends a command to another proxy, ``left`` seconds after this one began to leave.

    ``fields``: the command's. ``writes``: an aggregation that writes its result. None: it is served.
    Drivers repeat an operation once only, and only some.
    """
    if b"autocommit" in fields:
        return None
    if entry.kind is Kind.WRITE and b"txnNumber" in fields:
        return CommandError(
            Code.ShutdownInProgress, "this proxy is being stopped", labels=("RetryableWriteError",)
        )
    if entry.name in _READS and not writes and left >= waits.reads:
        return CommandError(Code.ShutdownInProgress, "this proxy is being stopped")
    return None
