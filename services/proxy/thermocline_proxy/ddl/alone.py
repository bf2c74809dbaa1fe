"""Runs one command on the archive alone: asks for ``Passthrough``, waits, runs it, gives it back."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

import bson
from bson.binary import Binary
from pymongo.errors import PyMongoError

from thermocline_common import schema_requests
from thermocline_common.coverage import Coverage, Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.tiers import PLAIN
from thermocline_proxy.commands.command import Command, element
from thermocline_proxy.commands.readconcern import timeless
from thermocline_proxy.ddl.plan import concerned, is_tiered
from thermocline_proxy.exchange import LeaseLapsed, error_code
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.ports import Reply, Request
from thermocline_proxy.routing.snapshot import Snapshot
from thermocline_proxy.wire.decoding import decoded
from thermocline_proxy.writes.statements import truth

log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 180.0
"""For a client without ``maxTimeMS``: two pauses of 75 s, and what comes before and between."""
BEAT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.2
_NOBODY: Final = uuid.UUID(int=0)
"""No collection has this UUID: a command that names it is checked, and does nothing."""


class Alone:
    """One command. Not used again."""

    def __init__(self, proxy: Proxy, request: Request, touched: frozenset[str]) -> None:
        self._proxy = proxy
        self._tiers = proxy.gateway.tiers
        self._request = request
        self._command = request.command
        self._touched = touched
        self._token = uuid.uuid4()
        self._asked: set[str] = set()
        self._deadline = request.deadline or time.monotonic() + WAIT_SECONDS

    async def run(self) -> bytes:
        """The archive's reply. Raises ``CommandError``: 50 or 262 where it takes too long."""
        refused = await self._in_advance()
        if refused is not None:
            return refused
        if self._command.name == "drop" and await self._nowhere():
            raise CommandError(Code.NamespaceNotFound, "ns not found")
        beating: asyncio.Task[None] | None = None
        with self._shown() as shown:
            try:
                await self._passthrough()
                beating = asyncio.create_task(self._beat())
                shown["phase"] = "running on the archive"
                return await self._run()
            finally:
                if beating is not None:
                    beating.cancel()
                await asyncio.shield(self._give_back())

    # Before anything is asked for

    async def _in_advance(self) -> bytes | None:
        """What the archive refuses this client at once, without touching anything; None: nothing."""
        if self._command.name == "dropDatabase":
            await self._may_drop_database()
            return None
        nobody = {"collectionUUID": element("collectionUUID", Binary.from_uuid(_NOBODY))}
        reply = await self._exchange(self._command.changed(nobody))
        if error_code(reply.raw) == Code.APIStrictError and b"collectionUUID" in reply.raw:
            # That field is ours, and not in the client's API version.
            reply = await self._exchange(self._command.changed({**nobody, "apiStrict": None}))
        return None if error_code(reply.raw) == Code.CollectionUUIDMismatch else reply.raw

    async def _may_drop_database(self) -> None:
        """Its privilege is looked up: the command itself can't be sent to nowhere."""
        if self._request.identity is None:
            return
        question = bson.encode({"connectionStatus": 1, "showPrivileges": True, "$db": "admin"})
        reply = decoded((await self._exchange(Command(question))).raw)
        for privilege in reply.get("authInfo", {}).get("authenticatedUserPrivileges", ()):
            resource = privilege["resource"]
            everywhere = bool(resource.get("anyResource"))
            database = resource.get("db") in ("", self._command.database)
            if "dropDatabase" in privilege["actions"] and (
                everywhere or (database and resource.get("collection") == "")
            ):
                return
        name = self._command.database
        raise CommandError(
            Code.Unauthorized,
            f'not authorized on {name} to execute command {{ dropDatabase: 1, $db: "{name}" }}',
        )

    async def _nowhere(self) -> bool:
        """Whether neither tier has the collection: F first, where an insert would make it."""
        for client in (self._tiers.fast, self._tiers.archive):
            if await _collection_uuid(client, self._command.namespace, any_kind=True) is not None:
                return False
        return True

    # Passthrough

    async def _passthrough(self) -> None:
        """Ask, and wait until every namespace concerned is the archive's alone, also for this proxy."""
        leases = self._proxy.leases
        beaten = time.monotonic()
        while True:
            snapshot = await leases.current(self._deadline)
            wanted = concerned(self._command, self._touched, snapshot)
            documents = await schema_requests.read_namespaces(self._tiers, wanted)
            waiting = {
                namespace
                for namespace in wanted
                if not self._granted(namespace, documents.get(namespace))
            }
            if not waiting and not any(is_tiered(namespace, snapshot) for namespace in wanted):
                return
            unasked = [ns for ns in waiting if not self._stands(documents.get(ns))]
            if unasked:
                self._asked |= set(unasked)
                await schema_requests.ask(self._tiers, unasked, self._token, self._command.name)
            if time.monotonic() - beaten > BEAT_SECONDS:
                beaten = time.monotonic()
                await schema_requests.beat(self._tiers, sorted(self._asked), self._token)
            self._in_time(waiting)
            await asyncio.sleep(_POLL_SECONDS)

    def _granted(self, namespace: str, document: Coverage | None) -> bool:
        """Also where no document is left: the snapshot tells whether that means untiered."""
        if document is None:
            return True
        return any(r.token == self._token and r.granted for r in document.requests)

    def _stands(self, document: Coverage | None) -> bool:
        return document is not None and any(r.token == self._token for r in document.requests)

    def _in_time(self, waiting: set[str]) -> None:
        if time.monotonic() < self._deadline:
            return
        if self._request.deadline is not None:
            raise CommandError(Code.MaxTimeMSExpired, "operation exceeded time limit")
        raise CommandError(
            Code.ExceededTimeLimit,
            f"{self._command.name} needs {', '.join(sorted(waiting))} in Passthrough, which took longer than "
            f"{WAIT_SECONDS:.0f} s; the feeder's status says what it waits for. Nothing was changed",
        )

    # The command itself

    async def _run(self) -> bytes:
        leases = self._proxy.leases
        while True:
            command = await self._aimed()
            held = await leases.current(self._deadline)
            wanted = concerned(self._command, self._touched, held)
            if any(is_tiered(namespace, held) for namespace in wanted):
                await self._passthrough()  # nobody heard from us for minutes
                continue
            try:
                reply = await self._exchange(command, held)
            except LeaseLapsed:
                self._in_time(set(wanted))
                continue
            mismatch = error_code(reply.raw) == Code.CollectionUUIDMismatch
            if mismatch and "collectionUUID" not in self._command.fields:
                self._in_time(set(wanted))
                continue  # dropped or re-created by somebody else just now
            return reply.raw

    async def _aimed(self) -> Command:
        """At the very collection that the archive has now: a late command must not hit another.

        Where a client insists on its API version, which knows no such field, the lease alone sees to that.
        """
        command = self._command
        strict = truth(command.fields.get("apiStrict"))
        if strict or command.name == "dropDatabase" or "collectionUUID" in command.fields:
            return command
        namespace = command.namespace
        if command.name == "renameCollection":
            namespace = command.collection or ""
        found = await _collection_uuid(self._tiers.archive, namespace)
        if found is None:
            return command  # the archive's own words for it
        return command.changed(
            {"collectionUUID": element("collectionUUID", Binary.from_uuid(found))}
        )

    async def _exchange(self, command: Command, held: Snapshot | None = None) -> Reply:
        if self._request.deadline is not None:
            left = int((self._request.deadline - time.monotonic()) * 1000)
            if left <= 0:
                raise CommandError(Code.MaxTimeMSExpired, "operation exceeded time limit")
            command = command.changed({"maxTimeMS": element("maxTimeMS", left)})
        leases = self._proxy.leases
        return await self._proxy.exchange.run(
            Tier.ARCHIVE,
            self._request.identity,
            timeless(command),
            deadline=self._request.deadline,
            may_send=None if held is None else lambda: leases.alive(held),
        )

    # Keeping the request, and giving it back

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            with contextlib.suppress(PyMongoError):  # it counts for minutes
                await schema_requests.beat(self._tiers, sorted(self._asked), self._token)

    async def _give_back(self) -> None:
        if not self._asked:
            return
        try:
            await schema_requests.take_back(self._tiers, sorted(self._asked), self._token)
        except PyMongoError as error:
            log.warning(
                "a request couldn't be taken back; it expires by itself",
                extra={"command": self._command.name, "error": str(error)[:200]},
            )

    @contextlib.contextmanager
    def _shown(self) -> Iterator[dict[str, Any]]:
        """In ``/status``, as long as it lasts."""
        shown: dict[str, Any] = {
            "command": self._command.name,
            "namespaces": self._asked,
            "phase": "waiting for Passthrough",
            "since": time.monotonic(),
        }
        working = self._proxy.observer.schema_changes
        working[self._token] = shown
        try:
            yield shown
        finally:
            del working[self._token]


async def _collection_uuid(
    client: Any, namespace: str, *, any_kind: bool = False
) -> uuid.UUID | None:
    """The UUID of a collection; of a view, where any kind counts, nobody's. None: there is nothing."""
    database, _, name = namespace.partition(".")
    reply: Mapping[str, Any] = await client.get_database(database, codec_options=PLAIN).command(
        {"listCollections": 1, "filter": {"name": name}}, codec_options=PLAIN
    )
    for found in reply["cursor"]["firstBatch"]:
        known: uuid.UUID | None = found.get("info", {}).get("uuid")
        return known or (_NOBODY if any_kind else None)
    return None
