"""Commands to the tiers as a client's user: choose a member, get a connection, send once.

A command that was sent is never sent again here: whoever gets the error decides.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import bson
from bson.timestamp import Timestamp

from thermocline_common.coverage import Tier
from thermocline_common.errors import NOT_PRIMARY, Code, CommandError
from thermocline_common.ids import DOCUMENT
from thermocline_proxy.choosing import Choice
from thermocline_proxy.commands.catalog import CATALOG, Kind
from thermocline_proxy.commands.command import Command
from thermocline_proxy.commands.snapshots import mark_reply
from thermocline_proxy.cursors import Cursors, reply_cursor
from thermocline_proxy.log_in import LogInRefused
from thermocline_proxy.members import Members
from thermocline_proxy.pools import Pools
from thermocline_proxy.ports import Identity, Reply
from thermocline_proxy.times import TierClock, number, replace_cluster_time, take_times, timestamp
from thermocline_proxy.upstream import WAIT_SECONDS, Broken, Pool, Upstream, next_request_id
from thermocline_proxy.wire.header import INT32
from thermocline_proxy.wire.opmsg import encode
from thermocline_proxy.wire.replies import without_command
from thermocline_proxy.wire.scan import Spans, scan

SELECTION_SECONDS = 15.0
"""How long to wait for a member before the client is told."""
SILENCE_SECONDS = 5.0
"""How long after its time an answer may come: the member itself says that the time is up."""
_RETRY_PAUSE = 0.05
_LOGGED_OUT = b" requires authentication\0"
_PING = bson.encode({"ping": 1, "$db": "admin"})


class Upstreams:
    """Members, pools and clocks of both tiers, and the way to a free connection."""

    def __init__(
        self, members: Mapping[Tier, Members], pools: Pools, clocks: Mapping[Tier, TierClock]
    ) -> None:
        self.members = members
        self.pools = pools
        self.clocks = clocks
        self.mend_fast: Callable[[], Awaitable[None]] | None = None
        """Brings the archive's users to F, which has refused one."""

    async def acquire(
        self,
        tier: Tier,
        identity: Identity | None,
        *,
        preference: bytes | None = None,
        member: str | None = None,
        deadline: float | None = None,
    ) -> Upstream:
        """A connection to the primary (or by preference, or to a named member).

        Nothing was sent yet, so a member that can't be reached is tried again until the deadline.
        Raises :class:`CommandError`.
        """
        now = time.monotonic()
        selection = (
            now + SELECTION_SECONDS if deadline is None else min(deadline, now + SELECTION_SECONDS)
        )
        waiting = now + WAIT_SECONDS if deadline is None else min(deadline, now + WAIT_SECONDS)
        mend = self.mend_fast if tier is Tier.FAST else None
        while True:
            address = member or await self.members[tier].wait(preference, selection)
            pool = self.pools.pool(tier, address, identity)
            try:
                return await pool.acquire(waiting)
            except LogInRefused:
                if mend is None:
                    raise
                await mend()
                mend = None
            except (OSError, Broken, TimeoutError) as error:
                if time.monotonic() + _RETRY_PAUSE >= selection or member is not None:
                    raise CommandError(
                        Code.HostUnreachable,
                        f"{address} of the {tier.value} tier can't be reached: {error}",
                    ) from error
                if preference is None:
                    self.members[tier].suspect(address)
                await asyncio.sleep(_RETRY_PAUSE)


def failure_labels(spans: Spans, name: str) -> tuple[str, ...]:
    """The labels with which a driver does the right thing after a connection broke.

    A statement in a transaction: the transaction is repeated; a retryable write and the end of a
    transaction: sent again with the same ``txnNumber``.
    """
    if name in ("commitTransaction", "abortTransaction"):
        return ("RetryableWriteError",)
    if b"autocommit" in spans:
        return ("TransientTransactionError",)
    if b"txnNumber" in spans:
        return ("RetryableWriteError",)
    return ()


def broken_error(connection_address: str, tier: Tier, labels: tuple[str, ...]) -> CommandError:
    """What a client gets when a connection broke behind its command."""
    return CommandError(
        Code.HostUnreachable,
        f"the connection to {connection_address} of the {tier.value} tier broke before the answer came",
        labels=labels,
    )


def in_time(error: CommandError, deadline: float | None) -> CommandError:
    """The error, or 50 where what ran out is the time that the client gave the operation."""
    out = deadline is not None and time.monotonic() >= deadline
    if not out or error.code not in (Code.HostUnreachable, 133, 202):
        return error
    return CommandError(Code.MaxTimeMSExpired, f"operation exceeded time limit: {error.message}")


def silent_error(connection_address: str, tier: Tier, labels: tuple[str, ...]) -> CommandError:
    """What a client gets when a member doesn't answer, not even that the time is up."""
    return CommandError(
        Code.NetworkTimeout,
        f"{connection_address} of the {tier.value} tier didn't answer within the operation's time",
        labels=labels,
    )


def _silence(deadline: float | None) -> float | None:
    """How many seconds an answer may take; None: any time."""
    return None if deadline is None else max(0.0, deadline - time.monotonic()) + SILENCE_SECONDS


def labelled(error: CommandError, labels: tuple[str, ...]) -> CommandError:
    """The same error with labels, where it is one that a driver may retry."""
    if not labels or error.code not in (Code.HostUnreachable, 202, *NOT_PRIMARY):
        return error
    return CommandError(
        error.code, error.message, code_name=error.code_name,
        labels=tuple(dict.fromkeys((*error.labels, *labels))),
    )  # fmt: skip


class LeaseLapsed(CommandError):
    """The lease ended while the command waited for a connection; it was not sent."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        super().__init__(
            Code.ExceededTimeLimit,
            "what is known of the tiers' coverage became too old before the command could be sent; "
            "try again",
            labels=labels,
        )


class TierExchange:
    """:class:`~thermocline_proxy.ports.Exchange` over the pools."""

    def __init__(
        self,
        upstreams: Upstreams,
        cursors: Cursors,
        observed: Callable[[Tier, float], None] = lambda tier, seconds: None,
        read_by: Callable[[Tier, Choice, float], None] = lambda tier, choice, seconds: None,
    ) -> None:
        """``observed`` is told how many seconds an answer of a tier took; ``read_by`` of reads, who gave it."""
        self._upstreams = upstreams
        self._cursors = cursors
        self._observed = observed
        self._read_by = read_by

    async def run(
        self,
        tier: Tier,
        identity: Identity | None,
        command: Command,
        *,
        to_primary: bool = True,
        member: str | None = None,
        after: Timestamp | None = None,
        preference: bytes | None = None,
        deadline: float | None = None,
        may_send: Callable[[], bool] | None = None,
    ) -> Reply:
        """See :class:`~thermocline_proxy.ports.Exchange`.

        ``preference``: a raw ``$readPreference`` in place of the command's. ``may_send`` is asked
        right before sending, because waiting for a connection takes time: False is answered 262.
        """
        spans = scan(command.body, 0)
        labels = failure_labels(spans, command.name)
        if preference is None and not to_primary:
            preference = read_preference(command)
        clock = self._upstreams.clocks[tier]
        if after is not None and number(after) > clock.time:
            await self.refresh(tier, identity, deadline)
        try:
            connection = await self._upstreams.acquire(
                tier, identity, preference=preference, member=member, deadline=deadline
            )
        except CommandError as error:
            raise labelled(in_time(error, deadline), labels) from error
        pool = connection.pool
        if may_send is not None and not may_send():
            pool.release(connection)
            raise LeaseLapsed(labels)
        body = replace_cluster_time(command.body, clock.element)
        frame = encode(next_request_id(), 0, body, command.sequences)
        started = time.monotonic()
        try:
            async with asyncio.timeout(_silence(deadline)):
                reply = await connection.exchange(frame)
        except Broken as error:
            raise broken_error(pool.address, tier, labels) from error
        except TimeoutError as error:
            raise silent_error(pool.address, tier, labels) from error
        took = time.monotonic() - started
        self._observed(tier, took)
        if member is None and (entry := CATALOG.get(command.name)) and entry.kind is Kind.READ:
            chosen = self._upstreams.members[tier].choice(preference, pool.address)
            self._read_by(tier, chosen, took)
        if logged_out(pool, reply):
            connection.discard()
        else:
            pool.release(connection)
        return self.received(pool, reply)

    async def refresh(self, tier: Tier, identity: Identity | None, deadline: float | None) -> None:
        """Learn the tier's primary's current times."""
        connection = await self._upstreams.acquire(tier, identity, deadline=deadline)
        try:
            reply = await connection.run(_PING)
        except Broken as error:
            raise broken_error(connection.pool.address, tier, ()) from error
        connection.pool.release(connection)
        _, element, operation = take_times(reply)
        self._upstreams.clocks[tier].learn(element, operation)

    def received(self, pool: Pool, frame: bytes) -> Reply:
        """A reply frame as a :class:`Reply`: times learned and taken out, its cursor remembered."""
        body, element, operation = take_times(frame[21:])
        body = without_command(body)
        if pool.tier is Tier.ARCHIVE:
            # Who knows better says so: no time of the archive leaves without a mark.
            body = mark_reply(body, whole=False)
        self._upstreams.clocks[pool.tier].learn(element, operation)
        cursor_id = reply_cursor(frame)
        if cursor_id:
            self._cursors.remember(cursor_id, pool.tier, pool.address)
        reply = Reply(body, pool.tier, pool.address, timestamp(operation) if operation else None)
        self.notice(pool, body)
        return reply

    def notice(self, pool: Pool, body: bytes) -> None:
        """Look for the primary again where a reply says that this member isn't it."""
        code = error_code(body)
        if code in NOT_PRIMARY:
            self._upstreams.members[pool.tier].suspect(pool.address)


def logged_out(pool: Pool, frame: bytes) -> bool:
    """Whether the member has forgotten who the connection belongs to: the user was dropped there.

    The connection is of no use any more, not even if a user of that name comes back.
    """
    return (
        pool.identity is not None
        and frame.find(_LOGGED_OUT, 21, 400) > 0
        and error_code(frame[21:]) == Code.Unauthorized
    )


def error_code(body: bytes) -> int:
    """The code of a failed reply document (or of its write concern error); 0 where there is none."""
    spans = scan(body, 0)
    found = spans.get(b"code")
    if found is not None and found[0] == 0x10:
        return int(INT32.unpack_from(body, found[2])[0])
    concern = spans.get(b"writeConcernError")
    if concern is not None and concern[0] == DOCUMENT:
        return error_code(body[concern[2] : concern[3]])
    return 0


def read_preference(command: Command) -> bytes | None:
    """The command's raw ``$readPreference``; None where it has none."""
    kind, raw = command.fields.get("$readPreference", (0, b""))
    return raw if kind == DOCUMENT else None
