"""Answers every command that the short path left: each kind of the catalog has its own way."""

import contextlib
import dataclasses
import datetime as dt
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument

from thermocline_common.coverage import Tier
from thermocline_common.errors import NOT_PRIMARY, Code, CommandError
from thermocline_proxy import reads, writes
from thermocline_proxy.account_sync import CHANGES
from thermocline_proxy.archive_commands import ArchiveCommands, is_listed
from thermocline_proxy.authority import REFUSALS, require_right
from thermocline_proxy.commands.catalog import CLOSED_DATABASES, Entry, Kind, lookup
from thermocline_proxy.commands.command import Command, element
from thermocline_proxy.commands.touched import Touched, touched
from thermocline_proxy.cursor_commands import CursorCommands
from thermocline_proxy.ddl.handler import SchemaCommands
from thermocline_proxy.exchange import (
    SELECTION_SECONDS,
    LeaseLapsed,
    failure_labels,
)
from thermocline_proxy.failing import Failing
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.hello import application_name, compression, hello_reply
from thermocline_proxy.leased import leased
from thermocline_proxy.leaving import elsewhere
from thermocline_proxy.log_in import LogInRefused
from thermocline_proxy.operations import Operations, asks_for_operations
from thermocline_proxy.ports import Reply, Request
from thermocline_proxy.reads.replies import name_tier
from thermocline_proxy.routing.snapshot import Snapshot
from thermocline_proxy.self_report import SelfReport
from thermocline_proxy.session_commands import SessionCommands
from thermocline_proxy.sessions import ClientSession, refuse_reserved
from thermocline_proxy.transactions import Transactions
from thermocline_proxy.transactions.pins import hold, let_go
from thermocline_proxy.wire.decoding import decoded
from thermocline_proxy.wire.header import ProtocolViolation
from thermocline_proxy.wire.opmsg import Message
from thermocline_proxy.wire.opquery import HELLO_NAMES
from thermocline_proxy.wire.replies import OK

_HELLO_WAIT_SECONDS = 10.0
_PASSING = NOT_PRIMARY | {Code.ExceededTimeLimit, Code.HostUnreachable, Code.NetworkTimeout}


class Dispatcher:
    """Answers commands; stateless but for the proxy that it works with."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._cursors = CursorCommands(proxy)
        self._archive = ArchiveCommands(proxy)
        self._schema = SchemaCommands(
            proxy,
            lambda request, snapshot: self._handed(writes, request, snapshot),
            self._archive.plain,
        )
        self._transactions = Transactions(proxy, self._decided, self._archive.statement)
        self._operations = Operations(proxy)
        self._sessions = SessionCommands(proxy)
        self._failing = Failing(proxy, self._archive)
        report = SelfReport(proxy, self._archive)
        self._own: Mapping[str, Callable[[Request], Awaitable[bytes]]] = {
            "currentOp": self._operations.current,
            "killOp": self._operations.kill,
            "serverStatus": report.status,
            "listCommands": report.commands,
            "configureFailPoint": self._failing.configure,
        }
        self._ways: Mapping[Kind, Callable[[Request, Entry, ClientSession], Awaitable[bytes]]] = {
            Kind.LOCAL: self._local,
            Kind.LOGIN: self._login,
            Kind.READ: self._data,
            Kind.WRITE: self._data,
            Kind.CURSOR: self._cursor,
            Kind.SESSION: self._session,
            Kind.TRANSACTION: self._ended,
            Kind.DDL: self._ddl,
            Kind.ADMIN: self._admin,
            Kind.REFUSED: self._refused,
        }

    async def answer(self, message: Message, session: ClientSession) -> bytes:
        """The raw reply document, without times. Raises :class:`CommandError` to be answered."""
        kind = message.spans.get(b"$db", (0,))[0]
        if kind == 0:
            raise CommandError(40571, "OP_MSG requests require a $db argument")
        if kind != 0x02:
            raise CommandError(13111, "wrong type for field ($db): it must be a string")
        command = Command(message.body, message.sequences)
        entry = lookup(command.name)
        if entry is None:
            raise CommandError(Code.CommandNotFound, f"no such command: '{command.name}'")
        deadline = _deadline(command)
        if (
            not entry.before_login
            and session.identity is None
            and await self._proxy.logins.required(deadline)
        ):
            raise CommandError(Code.Unauthorized, f"command {command.name} requires authentication")
        if command.database in CLOSED_DATABASES and not entry.before_login:
            raise CommandError(
                Code.Unauthorized,
                f"not authorized on {command.database} to execute command {command.name}: "
                "the database belongs to Thermocline",
            )
        lsid = message.spans.get(b"lsid")
        if lsid is not None:
            refuse_reserved(message.body[lsid[2] : lsid[3]])
        request = Request(command, session.identity, session.id, deadline, lambda: session.gone)
        if self._proxy.draining:
            self._send_elsewhere(command, entry, message)
        if not self._proxy.fail_point.on or command.name in HELLO_NAMES:
            return await self._served(request, entry, session, message)
        await self._failing.before(command, session, deadline)
        raw = await self._served(request, entry, session, message)
        return self._failing.after(raw, command, entry, session)

    async def _served(
        self, request: Request, entry: Entry, session: ClientSession, message: Message
    ) -> bytes:
        in_transaction = b"autocommit" in message.spans or b"startTransaction" in message.spans
        try:
            if in_transaction and entry.kind is not Kind.TRANSACTION:
                _refuse_closed(touched(request.command, entry))
                try:
                    return await self._transactions.statement(request, entry)
                finally:
                    hold(self._transactions.pins, request, session.owner.transactions)
            if entry.name in self._own:
                return await self._own[entry.name](request)
            return await self._ways[entry.kind](request, entry, session)
        except LogInRefused as error:
            if error.tier != Tier.ARCHIVE.value:
                raise
            # As whom the client logged in, it can't any more. Drivers log in anew on a new connection.
            raise ProtocolViolation(error.message) from error
        except CommandError as error:
            if error.code in REFUSALS:
                await require_right(self._proxy.exchange, request, entry)
            raise _retryable(error, message) from error

    def _send_elsewhere(self, command: Command, entry: Entry, message: Message) -> None:
        """Raise what makes a driver go to another proxy, where it can be, because this one is leaving."""
        leaving = self._proxy.leaving
        error = elsewhere(
            entry,
            message.spans,
            writes=bool(touched(command, entry).written),
            left=time.monotonic() - leaving.since,
            waits=leaving.waits,
        )
        if error is not None:
            raise error

    # What the proxy answers itself.

    async def _local(self, request: Request, entry: Entry, session: ClientSession) -> bytes:
        if entry.name == "whatsmyuri":
            return bson.encode({"you": session.peer, "ok": 1.0})
        if entry.name == "logout":
            self._proxy.logins.log_out(session, request.command.database)
            return OK
        if entry.name in HELLO_NAMES:
            return await self.hello(request.command, session)
        return OK

    async def hello(self, command: Command, session: ClientSession) -> bytes:
        """The answer to hello or isMaster, also to a legacy one."""
        if self._proxy.draining:
            raise CommandError(Code.ShutdownInProgress, "this proxy is being stopped")
        if "client" in command.fields:
            if session.greeted:
                raise CommandError(
                    186,
                    "The client metadata document may only be sent in the first hello",
                    code_name="ClientMetadataCannotBeMutated",
                )
            session.greeted = True
            session.application = application_name(command)
            session.owner = self._proxy.owners.move(
                session.owner,
                session.host,
                command.fields["client"][1],
                alone=bool(command.get("loadBalanced")),
            )
        await self._failing.before(command, session)
        deadline = time.monotonic() + _HELLO_WAIT_SECONDS
        members = self._proxy.upstreams.members
        if not members[Tier.ARCHIVE].known:
            await members[Tier.ARCHIVE].wait(None, deadline)
        limits = self._proxy.limits
        if limits is None:
            raise CommandError(Code.HostUnreachable, "no member of the archive can be reached")
        extra: dict[str, Any] = {}
        session.compression = compression(command, session.compression)
        if session.compression:
            extra["compression"] = session.compression
        logins = self._proxy.logins
        if "saslSupportedMechs" in command.fields:
            with _archive_down():  # without the answer, a driver takes its default
                if mechanisms := await logins.mechanisms(command.get("saslSupportedMechs")):
                    extra["saslSupportedMechs"] = mechanisms
        if (speculative := command.get("speculativeAuthenticate")) is not None:
            begun = await logins.speculate(session, speculative)
            if begun is not None:
                extra["speculativeAuthenticate"] = begun
        return hello_reply(
            limits,
            legacy=command.name != "hello",
            hello_ok=bool(command.get("helloOk")),
            connection_id=session.id,
            now=dt.datetime.now(dt.UTC),
            service_id=self._proxy.service_id.value if command.get("loadBalanced") else None,
            extra=extra,
        )

    async def _login(self, request: Request, entry: Entry, session: ClientSession) -> bytes:
        command = request.command
        if entry.name == "saslStart":
            reply = await self._proxy.logins.start(session, command.database, command.document)
        elif entry.name == "saslContinue":
            reply = await self._proxy.logins.proceed(session, command.document)
        else:
            await self._proxy.logins.refuse(command.document)
        return bson.encode({**reply, "ok": 1.0})

    async def _refused(self, request: Request, entry: Entry, session: ClientSession) -> bytes:
        raise CommandError(
            Code.CommandNotSupported,
            f"{entry.name} is not served through the proxy: connect to the replica set that it is about",
        )

    # What goes to one or both tiers.

    async def _data(self, request: Request, entry: Entry, session: ClientSession) -> bytes:
        touches = touched(request.command, entry)
        _refuse_closed(touches)
        if not touches.all and asks_for_operations(request.command):
            return await self._operations.aggregate(request)
        end = time.monotonic() + SELECTION_SECONDS
        while True:
            try:
                return await self._decide(request, entry, touches)
            except LeaseLapsed:
                # Nothing was sent; an election can outlast a lease.
                if time.monotonic() >= end:
                    raise

    async def _decide(self, request: Request, entry: Entry, touches: Touched) -> bytes:
        snapshot = await self._decided(touches.all, request.deadline)
        if not snapshot.touches_tiered(touches.all):
            if entry.kind is Kind.WRITE and _was_left(touches.target, snapshot):
                return await self._written(request, snapshot)
            raw = await self._archive.statement(request, entry, snapshot)
            return name_tier(raw, Tier.ARCHIVE) if entry.name == "explain" else raw
        if snapshot.touches_tiered(touches.written):
            raise CommandError(
                Code.IllegalOperation,
                f"{entry.name} can't write its results into a tiered collection: read them and "
                "insert them, or write them into an untiered collection",
            )
        if entry.kind is Kind.WRITE:
            if touches.target in snapshot.views:
                return await self._archive.statement(request, entry, snapshot)
            return await self._written(request, snapshot)
        return await self._handed(reads, request, snapshot)

    async def _written(self, request: Request, snapshot: Snapshot) -> bytes:
        """A tiered write, as soon as replay leaves room for it. One without acknowledgement is
        acknowledged here: what to do next depends on how many documents F found."""
        await self._proxy.admit(request)
        concern = request.command.get("writeConcern")
        # With j, a server acknowledges all the same.
        if not isinstance(concern, RawBSONDocument) or concern.get("w") != 0 or concern.get("j"):
            return await self._handed(writes, request, snapshot)
        command = request.command.changed({"writeConcern": element("writeConcern", {"w": 1})})
        await self._handed(writes, dataclasses.replace(request, command=command), snapshot)
        return bson.encode({"n": 0, "ok": 1.0})

    async def _handed(self, package: Any, request: Request, snapshot: Snapshot) -> bytes:
        gateway = leased(self._proxy.gateway, snapshot, request.deadline)
        try:
            reply: Reply = await package.handle(request, gateway, snapshot)
        except LeaseLapsed as error:
            if package is reads:
                raise
            # Parts of the write may have been sent: only its driver knows whether to repeat it.
            raise CommandError(error.code, error.message, labels=error.labels) from error
        return reply.raw

    async def _decided(self, namespaces: Iterable[str], deadline: float | None) -> Snapshot:
        """A live snapshot under which these namespaces can be told tiered or untiered."""
        leases = self._proxy.leases
        snapshot = await leases.untiered(deadline)
        if any(is_listed(namespace, snapshot) for namespace in namespaces):
            snapshot = await leases.current(deadline)
        return snapshot

    async def _ended(self, request: Request, entry: Entry, session: ClientSession) -> bytes:
        if not {"autocommit", "txnNumber", "lsid"} <= request.command.fields.keys():
            return await self._archive.plain(request)  # refused, in the server's words
        let_go(request, session.owner.transactions)
        return await self._transactions.end(request)

    async def _admin(self, request: Request, entry: Entry, session: ClientSession) -> bytes:
        if entry.name not in CHANGES:
            return await self._archive.admin(request, entry)
        raw = b""
        try:
            raw = await self._archive.admin(request, entry)
        finally:
            if not raw or decoded(raw)["ok"]:  # without an answer, it may have been executed
                await self._proxy.logins.accounts_changed()
        return raw

    async def _cursor(self, request: Request, entry: Entry, session: ClientSession) -> bytes:
        if entry.name == "getMore":
            return await self._cursors.get_more(request)
        return await self._cursors.kill(request)

    async def _session(self, request: Request, entry: Entry, session: ClientSession) -> bytes:
        return await self._sessions.answer(request, entry)

    async def _ddl(self, request: Request, entry: Entry, session: ClientSession) -> bytes:
        command = request.command
        touches = touched(command, entry)
        _refuse_closed(touches)
        names_sources = "viewOn" in command.fields or "pipeline" in command.fields
        changes_view = names_sources and entry.name in ("create", "collMod")
        end = time.monotonic() + SELECTION_SECONDS
        while True:
            snapshot = await self._decided(touches.all, request.deadline)
            answered = await self._schema.answer(request, touches.all, snapshot)
            if answered is not None:
                return answered
            try:
                raw = await self._archive.statement(request, entry, snapshot)
            except LeaseLapsed:
                # Nothing was sent. No driver repeats these commands, so an error would reach people.
                if time.monotonic() >= end:
                    raise
                continue
            if changes_view and self._proxy.leases.anything_tiered:
                # Until then another proxy may take the new view for an untiered collection.
                await self._proxy.leases.outlive_others()
            return raw


@contextlib.contextmanager
def _archive_down() -> Iterator[None]:
    """Goes on where the archive can't be asked."""
    try:
        yield
    except CommandError as error:
        if error.code != Code.HostUnreachable:
            raise


def _was_left(namespace: str | None, snapshot: Snapshot) -> bool:
    """Whether the namespace changed tiers a short while ago: the other one may have executed a write."""
    found = None if namespace is None else snapshot.tierings.get(namespace)
    return found is not None and found.coverage.look_back is not None


def _deadline(command: Command) -> float | None:
    kind, _ = command.fields.get("maxTimeMS", (0, b""))
    if kind not in (0x01, 0x10, 0x12) or command.name == "getMore":
        return None
    milliseconds = command.get("maxTimeMS")
    return time.monotonic() + float(milliseconds) / 1000 if milliseconds > 0 else None


def _refuse_closed(touches: Touched) -> None:
    for namespace in touches.all:
        if namespace.partition(".")[0] in CLOSED_DATABASES:
            raise CommandError(
                Code.Unauthorized, f"not authorized on {namespace}: it belongs to Thermocline"
            )


def _retryable(error: CommandError, message: Message) -> CommandError:
    """A failure of our own, labelled so that a driver repeats what is safe to repeat."""
    name = message.body[5 : message.body.index(b"\0", 5)].decode("utf-8", "replace")
    labels = error.labels
    if error.code == Code.ExceededTimeLimit and not labels:
        labels = failure_labels(message.spans, name)
    if name in ("aggregate", "getMore") and error.code in _PASSING and not labels:
        labels = (reads.RESUMABLE,)  # means nothing to a driver but for change streams
    return CommandError(error.code, error.message, code_name=error.code_name, labels=labels)
