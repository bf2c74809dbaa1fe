"""Serves the statements of client transactions and their ends, on the tier where each belongs."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

import bson
from pymongo.errors import OperationFailure, PyMongoError

from thermocline_common import copy_in
from thermocline_common.coverage import State, Tier
from thermocline_common.coverage_store import read_one
from thermocline_common.errors import Code, CommandError
from thermocline_proxy.answered import as_answered
from thermocline_proxy.commands.catalog import Entry, Kind
from thermocline_proxy.commands.command import Command, build, element, raw_element
from thermocline_proxy.commands.readconcern import read_concern
from thermocline_proxy.commands.touched import Touched, touched
from thermocline_proxy.exchange import LeaseLapsed, error_code
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.owners import Key
from thermocline_proxy.ports import Reply, Request
from thermocline_proxy.routing.snapshot import Snapshot
from thermocline_proxy.transactions.finding import find_open
from thermocline_proxy.transactions.inside import Failed, Inside, bare
from thermocline_proxy.transactions.patience import Patience
from thermocline_proxy.transactions.pins import (
    Pin,
    Pins,
    Stated,
    api_elements,
    as_of,
    same_activation,
    sources_of,
    state_of,
    stated,
)
from thermocline_proxy.transactions.reading import read
from thermocline_proxy.transactions.refusals import (
    TRANSIENT,
    MustRepeat,
    conflict,
    labelled,
    no_such_transaction,
    not_inside,
    on_the_way,
    refused,
    started_already,
    tiered_inside,
    too_old,
    untiered_inside,
)
from thermocline_proxy.transactions.statement import Cold, Statement
from thermocline_proxy.transactions.writing import write
from thermocline_proxy.writes.run import Moved, Run

ATTEMPTS: Final = 10
LINGER_SECONDS: Final = 1.0
"""How long an answer waits for a namespace that is being switched: drivers repeat at once."""
ABORT_SECONDS: Final = 5.0
_ABORT_TRIES: Final = 3
_PING: Final = Command(bson.encode({"ping": 1, "$db": "admin"}))
_SERVED: Final = frozenset(
    {"find", "aggregate", "distinct", "insert", "update", "delete", "findAndModify", "findandmodify",
     "getMore", "killCursors", "create", "createIndexes"}
)  # fmt: skip
_ELSEWHERE: Final = frozenset({Code.NoSuchTransaction, Code.TransactionTooOld})

Decided: TypeAlias = Callable[[Iterable[str], float | None], Awaitable[Snapshot]]
Untiered: TypeAlias = Callable[[Request, Entry, Snapshot], Awaitable[bytes]]


class Transactions:
    """All client transactions that come through this proxy.

    ``decided``: a live snapshot under which namespaces can be told tiered or untiered; ``untiered``:
    serves a statement on the archive.
    """

    def __init__(self, proxy: Proxy, decided: Decided, untiered: Untiered) -> None:
        self._proxy = proxy
        self._decided = decided
        self._untiered = untiered
        self.pins = Pins()
        self._patience = Patience()

    async def statement(self, request: Request, entry: Entry) -> bytes:
        """Answer one statement of a transaction. Raises ``CommandError``."""
        said = stated(request.command)
        if entry.name not in _SERVED:
            raise not_inside(entry.name)
        key = (request.identity, said.session)
        if said.starts:
            return await self._first(request, entry, key, said)
        pin = self.pins.find(key, said.number) or await self._find(key, said.number, request)
        if pin.over:
            raise no_such_transaction(pin.number)
        if entry.kind is Kind.CURSOR:
            return (await self._forward(pin.tier, request)).raw
        touches = touched(request.command, entry)
        if pin.tier is Tier.ARCHIVE:
            return await self._on_archive(request, entry, pin, touches)
        return await self._ending(pin, request, self._on_fast(request, entry, pin, touches))

    async def end(self, request: Request) -> bytes:
        """commitTransaction and abortTransaction: on the tier where the transaction ran, as sent."""
        said = stated(request.command)
        pin = self.pins.find((request.identity, said.session), said.number)
        if pin is None:
            return await self._end_somewhere(request)
        if pin.over:
            raise no_such_transaction(pin.number)
        return (await self._forward(pin.tier, request)).raw

    # The first statement.

    async def _first(self, request: Request, entry: Entry, key: Key, said: Stated) -> bytes:
        known = self.pins.newest(key)
        if known is not None and said.number < known.number:
            raise too_old(said.number, known.number)
        if known is not None and said.number == known.number:
            raise started_already(said.number)
        touches = touched(request.command, entry)
        api = api_elements(request.command)
        snapshot = await self._settled(request, touches)
        if not snapshot.touches_tiered(touches.all):
            pin = Pin(key, said.number, Tier.ARCHIVE, api=api, started=True)
            pin.touched |= sources_of(touches, snapshot)
            self.pins.put(pin)
            self._proxy.observer.count("transaction", Tier.ARCHIVE.value)
            return await self._untiered(request, entry, snapshot)
        try:
            # Here alone, before it holds anything that others wait for.
            await self._proxy.admit(request)
        except CommandError as error:
            raise labelled(error) from error
        self._proxy.observer.count("transaction", Tier.FAST.value)
        pin = Pin(key, said.number, Tier.FAST, api=api)
        self.pins.put(pin)
        return await self._ending(pin, request, self._begin(request, entry, pin, touches))

    async def _begin(self, request: Request, entry: Entry, pin: Pin, touches: Touched) -> bytes:
        for _ in range(ATTEMPTS):
            snapshot = await self._settled(request, touches)
            if not snapshot.touches_tiered(touches.all):
                raise MustRepeat("a namespace was switched just now")
            await self._refuse(entry, touches, snapshot, sources_of(touches, snapshot))
            await self._choose_time(request, pin, snapshot)
            if not self._proxy.leases.alive(snapshot):
                continue
            pin.touched = set(sources_of(touches, snapshot))
            with contextlib.suppress(LeaseLapsed):
                return await self._serve(request, entry, pin, touches, snapshot)
        raise conflict("what is known of the tiers' coverage became too old again and again")

    async def _choose_time(self, request: Request, pin: Pin, snapshot: Snapshot) -> None:
        """F's primary's time now: not before any write that anybody was told of, nor any coverage seen.

        The archive's time is one that was known *before*: it holds no write behind F's time.
        """
        exchange, clocks = self._proxy.exchange, self._proxy.upstreams.clocks
        pin.archive_at = clocks[Tier.ARCHIVE].operation_time
        reply = await exchange.run(Tier.FAST, request.identity, _PING, deadline=request.deadline)
        after = read_concern(request.command).after
        times = [t for t in (reply.operation_time, after) if t is not None]
        if not times:
            raise CommandError(Code.HostUnreachable, "the fast tier told no time", labels=TRANSIENT)
        pin.at = max(times)
        pin.snapshot = as_of(snapshot, pin.at)

    async def _settled(self, request: Request, touches: Touched) -> Snapshot:
        """A live snapshot under which none of the namespaces is being switched. Raises 112 in the end."""
        snapshot = await self._decided(touches.all, request.deadline)
        while any(state_of(n, snapshot) is None for n in sources_of(touches, snapshot)):
            try:
                snapshot = await self._proxy.leases.wait_for_change(snapshot, request.deadline)
            except CommandError as error:
                raise labelled(error) from error
        return snapshot

    # Further statements.

    async def _on_archive(
        self, request: Request, entry: Entry, pin: Pin, touches: Touched
    ) -> bytes:
        snapshot = await self._decided(touches.all, request.deadline)
        fresh = sources_of(touches, snapshot) - pin.touched
        if snapshot.touches_tiered(frozenset(fresh)):
            await self._abort(pin, request)
            tiered = {n for n in fresh if snapshot.touches_tiered(frozenset({n}))}
            moving = any(state_of(n, snapshot) is None for n in fresh)
            if moving or self._soon(pin.touched, tiered):
                await self._linger(snapshot)
                raise conflict("a namespace is being switched between the tiers")
            raise tiered_inside(", ".join(sorted(touches.all)))
        pin.touched |= fresh
        return await self._untiered(request, entry, snapshot)

    async def _on_fast(self, request: Request, entry: Entry, pin: Pin, touches: Touched) -> bytes:
        assert pin.snapshot is not None
        fresh = sources_of(touches, pin.snapshot) - pin.touched
        if fresh:
            live = await self._decided(touches.all, request.deadline)
            fresh = sources_of(touches, live) - pin.touched
            for namespace in sorted(fresh):
                state = state_of(namespace, live)
                if state is None:
                    await self._abort(pin, request)
                    await self._linger(live)
                    raise conflict(f"{namespace} is being switched between the tiers")
                if state is State.ACTIVE and not same_activation(namespace, live, pin.snapshot):
                    raise conflict(f"{namespace} was switched after the transaction began")
            await self._refuse(entry, touches, live, sources_of(touches, live) | pin.touched)
            pin.touched |= fresh
        return await self._serve(request, entry, pin, touches, pin.snapshot)

    def _soon(self, untiered: Iterable[str], tiered: Iterable[str]) -> bool:
        """Whether all of these are expected to be on one tier soon: a repetition may find them there."""
        moving = on_the_way(untiered, tiered, self._proxy.settings().wanted)
        return bool(moving) and self._patience.lasts(moving, self._proxy.gateway.clock())

    async def _refuse(
        self, entry: Entry, touches: Touched, snapshot: Snapshot, used: frozenset[str]
    ) -> None:
        """Raise for what a transaction on F that uses these namespaces can't do."""
        here = sorted(sources_of(touches, snapshot))
        untiered = [n for n in here if state_of(n, snapshot) is State.PASSTHROUGH]
        if untiered and self._soon(untiered, used - {*untiered}):
            await self._linger(snapshot)
            raise MustRepeat(f"{untiered[0]} isn't yet where the manifest wants it")
        if untiered:
            raise untiered_inside(untiered[0])
        if entry.kind is Kind.DDL:
            raise refused(
                f"{entry.name} on a tiered collection can't run in a transaction: run it before"
            )
        if touches.written:
            raise refused("$out and $merge can't be used in a transaction")
        if entry.kind is Kind.WRITE and touches.target in snapshot.views:
            raise CommandError(
                Code.CommandNotSupportedOnView,
                f"Namespace {touches.target} is a view, not a collection",
            )

    async def _serve(
        self, request: Request, entry: Entry, pin: Pin, touches: Touched, live: Snapshot
    ) -> bytes:
        proxy = self._proxy
        command = bare(request.command)
        inside = Inside(proxy.exchange, request, pin, lambda: proxy.leases.alive(live))
        own = dataclasses.replace(request, command=command)
        assert pin.snapshot is not None
        run = Run(own, proxy.gateway, pin.snapshot)
        if touches.target not in pin.snapshot.tierings:
            # A view, or a database: the decision says why the archive would have to answer.
            raise refused(
                f"{touches.target} can't be read in a transaction that touches tiered collections: "
                "read the collections themselves"
            )
        statement = Statement(command, pin, inside, run, proxy.gateway.tiers)
        reply = await (write if entry.kind is Kind.WRITE else read)(statement)
        return reply.raw

    # How statements on F end.

    async def _ending(self, pin: Pin, request: Request, work: Awaitable[bytes]) -> bytes:
        """Every error ends the transaction, as in MongoDB: the real one on F is aborted."""
        try:
            return await self._or_promoted(pin, request, work)
        except Failed as failed:
            return failed.reply.raw
        except (MustRepeat, Moved) as error:
            await self._abort(pin, request)
            raise conflict(str(error) or "the namespace was switched") from error
        except CommandError as error:
            await self._abort(pin, request)
            raise labelled(error) from error
        except PyMongoError as error:
            await self._abort(pin, request)
            raise _of_lookup(error) from error

    async def _or_promoted(self, pin: Pin, request: Request, work: Awaitable[bytes]) -> bytes:
        try:
            return await work
        except Cold as cold:
            await self._abort(pin, request)
            await self._promote(cold, request, pin)
            raise conflict(
                f"documents of {cold.namespace} had to be brought in from the archive"
            ) from cold

    async def _promote(self, cold: Cold, request: Request, pin: Pin) -> None:
        """Bring the documents in, outside. What can't be done now is tried again with the repetition."""
        tiers = self._proxy.gateway.tiers
        snapshot = await self._decided((cold.namespace,), request.deadline)
        coverage = await read_one(tiers, cold.namespace)
        if coverage is None or coverage.state is not State.ACTIVE:
            await self._linger(snapshot)
            return
        try:
            await copy_in.keep(tiers, coverage, cold.ids)
        except (copy_in.StillChanging, copy_in.CollectionChanged):
            await self._linger(snapshot)
        except copy_in.CannotCopy as error:
            raise CommandError(Code.OperationFailed, str(error)) from error
        self._proxy.observer.count("write-promoted", Tier.FAST.value)

    async def _abort(self, pin: Pin, request: Request) -> None:
        """End the real transaction now: what holds locks there must not wait for its lifetime to end."""
        if pin.over:
            return
        pin.over = True
        if not pin.started:
            return
        fields = request.command.fields
        session = [raw_element(n, *fields[n]) for n in ("lsid", "txnNumber")]
        parts = [*session, element("autocommit", False), element("$db", "admin"), *pin.api]
        command = build({"abortTransaction": 1}, parts)
        loop = asyncio.get_running_loop()
        for _ in range(_ABORT_TRIES):
            with contextlib.suppress(CommandError):
                await self._proxy.exchange.run(
                    pin.tier, request.identity, command, deadline=loop.time() + ABORT_SECONDS
                )
                return

    async def _linger(self, snapshot: Snapshot) -> None:
        deadline = self._proxy.gateway.clock() + LINGER_SECONDS
        with contextlib.suppress(CommandError):
            await self._proxy.leases.wait_for_change(snapshot, deadline)

    # Transactions that this proxy doesn't know.

    async def _find(self, key: Key, number: int, request: Request) -> Pin:
        newest = self.pins.newest(key)
        if newest is not None and newest.number > number:
            raise no_such_transaction(number)
        try:
            if not await self._anything_tiered(request):
                return Pin(key, number, Tier.ARCHIVE, started=True)  # the archive knows
            pin = await find_open(self._proxy.gateway.tiers, key, number)
        except PyMongoError as error:
            raise _of_lookup(error) from error
        if pin is None or (pin.tier is Tier.FAST and pin.at is None):
            raise no_such_transaction(number)
        pin.api = api_elements(request.command)
        if pin.tier is Tier.FAST:
            assert pin.at is not None
            try:
                snapshot = await self._proxy.leases.current(request.deadline)
            except CommandError as error:
                raise labelled(error) from error
            pin.snapshot = as_of(snapshot, pin.at)
        self.pins.put(pin)
        return pin

    async def _anything_tiered(self, request: Request) -> bool:
        """Whether a transaction may have run on F; asked under a live lease (a proxy that has just started
        knows of no tiered namespace yet)."""
        snapshot = await self._proxy.leases.untiered(request.deadline)
        return bool(snapshot.listed or snapshot.tierings)

    async def _end_somewhere(self, request: Request) -> bytes:
        """Only the tier where it ran knows the outcome; the other one says that it knows of none."""
        first: CommandError | None = None
        answer: Reply | None = None
        tiers = [Tier.ARCHIVE, *([Tier.FAST] if await self._anything_tiered(request) else [])]
        for tier in tiers:
            try:
                reply = await self._forward(tier, request)
            except CommandError as error:
                first = first or error
                continue
            if error_code(reply.raw) not in _ELSEWHERE:
                return reply.raw
            answer = answer or reply
        if first is not None:
            raise first  # it may have been committed on the tier that couldn't be asked
        assert answer is not None
        return answer.raw

    async def _forward(self, tier: Tier, request: Request) -> Reply:
        return await self._proxy.exchange.run(
            tier, request.identity, request.command, deadline=request.deadline
        )


def _of_lookup(error: PyMongoError) -> CommandError:
    """What a look-up of the proxy's own ran into: the transaction may be repeated, in most cases."""
    if isinstance(error, OperationFailure) and error.code is not None:
        return labelled(as_answered(error, "a look-up for this transaction failed: "))
    return CommandError(
        Code.HostUnreachable, f"a look-up for this transaction failed: {error}", labels=TRANSIENT
    )
