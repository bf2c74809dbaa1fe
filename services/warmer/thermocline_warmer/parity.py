"""Keeps F's users, roles, indexes and collection options equal to the archive's."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bson.binary import Binary
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure

from thermocline_common import names
from thermocline_common.coverage import Coverage
from thermocline_common.errors import Code
from thermocline_common.indexes import list_indexes
from thermocline_common.raw_reads import find_raw, run_raw
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_common.write_replies import require_written
from thermocline_warmer.plan.parity import (
    AccountPlan,
    IndexPlan,
    OptionsPlan,
    is_own_role,
    is_own_user,
    plan_accounts,
    plan_indexes,
    plan_options,
)

MAJORITY = {"w": "majority", "wtimeout": 10_000}
LEDGER_ID = "parity"
"""Document in F's ``markers`` that names the users and roles that were brought to F."""
READ_MS = 5_000


@dataclass(slots=True)
class AccountReport:
    """Ids of users or roles; ``foreign``: F has its own that differs, and keeps it."""

    count: int = 0
    written: int = 0
    removed: int = 0
    foreign: tuple[str, ...] = ()


@dataclass(slots=True)
class Accounts:
    """Users and roles."""

    tiers: Tiers
    users: AccountReport = field(default_factory=AccountReport)
    roles: AccountReport = field(default_factory=AccountReport)

    async def bring_over(self) -> None:
        """Make F's users and roles those of the archive. Raises PyMongo's errors.

        Roles come before the users that hold them, and go after them.
        """
        own = await _own_users(self.tiers)
        ledger = await _read_ledger(self.tiers)
        users_there = await _read_accounts(self.tiers.archive, "system.users")
        users_here = await _read_accounts(self.tiers.fast, "system.users")
        roles_there = await _read_accounts(self.tiers.archive, "system.roles")
        roles_here = await _read_accounts(self.tiers.fast, "system.roles")
        both_users = {**users_there, **users_here}
        both_roles = {**roles_there, **roles_here}
        users = plan_accounts(
            _bytes(users_there),
            _bytes(users_here),
            ledger.get("users", ()),
            own | {n for n, user in both_users.items() if is_own_user(user, own)},
        )
        roles = plan_accounts(
            _bytes(roles_there),
            _bytes(roles_here),
            ledger.get("roles", ()),
            {n for n, role in both_roles.items() if is_own_role(role)},
        )
        # What is about to be copied is named first: a copy that nobody remembers would stay for good.
        await _write_ledger(self.tiers, ledger, users, roles)
        await _write_accounts(self.tiers, "system.roles", roles.write, roles_there)
        await _write_accounts(self.tiers, "system.users", users.write, users_there)
        await _remove_accounts(self.tiers, "system.users", users.remove)
        await _remove_accounts(self.tiers, "system.roles", roles.remove)
        _report(self.users, users)
        _report(self.roles, roles)


def _bytes(documents: Mapping[str, RawBSONDocument]) -> dict[str, bytes]:
    return {name: bytes(document.raw) for name, document in documents.items()}


def _report(report: AccountReport, plan: AccountPlan) -> None:
    report.count = len(plan.copied)
    report.written += len(plan.write)
    report.removed += len(plan.remove)
    report.foreign = plan.foreign


async def _own_users(tiers: Tiers) -> set[str]:
    """Ids of the users that we are logged in as, on either tier."""
    found = set()
    for client in (tiers.archive, tiers.fast):
        status = await client.admin.command("connectionStatus", codec_options=PLAIN)
        for user in status["authInfo"]["authenticatedUsers"]:
            found.add(f"{user['db']}.{user['user']}")
    return found


async def _read_accounts(client: Any, collection: str) -> dict[str, RawBSONDocument]:
    # linearizable: a primary that was cut off would bring back a privilege that was taken away.
    command = {
        "find": collection,
        "readConcern": {"level": "linearizable"},
        "maxTimeMS": READ_MS,
        "batchSize": 1_000,
    }
    return {document["_id"]: document async for document in find_raw(client, "admin", command)}


async def _read_ledger(tiers: Tiers) -> dict[str, Any]:
    markers = tiers.fast.get_database(names.DATABASE, codec_options=PLAIN)[names.MARKERS]
    return await markers.find_one({"_id": LEDGER_ID}) or {}


async def _write_ledger(
    tiers: Tiers, ledger: Mapping[str, Any], users: AccountPlan, roles: AccountPlan
) -> None:
    now = {
        "users": sorted(users.copied | set(users.remove)),
        "roles": sorted(roles.copied | set(roles.remove)),
    }
    if all(ledger.get(name, []) == value for name, value in now.items()):
        return
    update = {"q": {"_id": LEDGER_ID}, "u": {"$set": now}, "upsert": True}
    command = {"update": names.MARKERS, "updates": [update], "writeConcern": MAJORITY}
    require_written(await run_raw(tiers.fast, names.DATABASE, command))


async def _write_accounts(
    tiers: Tiers, collection: str, ids: Iterable[str], source: Mapping[str, RawBSONDocument]
) -> None:
    for name in ids:
        update = {
            "q": {"_id": name},
            "u": [{"$replaceWith": {"$literal": source[name]}}],
            "upsert": True,
        }
        command = {"update": collection, "updates": [update], "writeConcern": MAJORITY}
        require_written(await run_raw(tiers.fast, "admin", command))


async def _remove_accounts(tiers: Tiers, collection: str, ids: Iterable[str]) -> None:
    for name in ids:
        delete = {"q": {"_id": name}, "limit": 1}
        command = {"delete": collection, "deletes": [delete], "writeConcern": MAJORITY}
        require_written(await run_raw(tiers.fast, "admin", command))


@dataclass(slots=True)
class CollectionReport:
    """What differs of one namespace, by name; empty where the tiers are equal."""

    indexes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    error: str | None = None


@dataclass(slots=True)
class Collections:
    """Indexes and options of active namespaces.

    A difference is mended when two looks in a row found the same one: the proxy changes the archive
    first and F a moment later, and must not be overtaken.
    """

    tiers: Tiers
    reports: dict[str, CollectionReport] = field(default_factory=dict)
    _seen: dict[str, tuple[IndexPlan, OptionsPlan]] = field(default_factory=dict)

    async def compare(self, coverage: Coverage) -> None:
        """Look at an active namespace, and mend what was already different last time.

        Raises PyMongo's errors where a tier can't be reached; what F refuses is in the report.
        """
        namespace = coverage.namespace
        indexes = plan_indexes(
            await list_indexes(self.tiers.archive, namespace),
            await list_indexes(self.tiers.fast, namespace),
        )
        there = await _read_options(self.tiers.archive, namespace)
        here = await _read_options(self.tiers.fast, namespace)
        if there is None or here is None:
            # Made or dropped just now: the feeder's business.
            self._seen.pop(namespace, None)
            return
        options = plan_options(there, here)
        report = CollectionReport(indexes.names, options.names)
        if self._seen.get(namespace) == (indexes, options):
            try:
                await self._mend(coverage, indexes, options)
            except OperationFailure as error:
                report.error = f"{error.code}: {(error.details or {}).get('errmsg', error)}"
            else:
                report = CollectionReport(options=options.differ)
        self._seen[namespace] = (indexes, options)
        self.reports[namespace] = report

    def forget(self, namespaces: Iterable[str]) -> None:
        """Drop what is known of every namespace but these."""
        kept = set(namespaces)
        for known in (self.reports, self._seen):
            for namespace in set(known) - kept:
                del known[namespace]

    async def _mend(self, coverage: Coverage, indexes: IndexPlan, options: OptionsPlan) -> None:
        database, collection = coverage.namespace.split(".", 1)
        if coverage.fast_uuid is None:
            return
        extra = {
            "collectionUUID": Binary.from_uuid(coverage.fast_uuid),
            "writeConcern": MAJORITY,
        }
        commands: list[dict[str, Any]] = []
        if options.coll_mod:
            commands.append({"collMod": collection, **options.coll_mod})
        if indexes.drop:
            commands.append({"dropIndexes": collection, "index": list(indexes.drop)})
        if indexes.create:
            commands.append({"createIndexes": collection, "indexes": list(indexes.create)})
        for command in commands:
            try:
                require_written(await run_raw(self.tiers.fast, database, {**command, **extra}))
            except OperationFailure as error:
                if error.code not in (Code.IndexNotFound, Code.CollectionUUIDMismatch):
                    raise


async def _read_options(client: Any, namespace: str) -> dict[str, Any] | None:
    database, collection = namespace.split(".", 1)
    command = {"listCollections": 1, "filter": {"name": collection, "type": "collection"}}
    reply = await client.get_database(database).command(command, codec_options=PLAIN)
    for found in reply["cursor"]["firstBatch"]:
        return dict(found.get("options", {}))
    return None
