"""Gives F the archive's users and roles, byte for byte: clients log in to both tiers as themselves."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from thermocline_common import names
from thermocline_common.account_plan import (
    AccountPlan,
    is_own_role,
    is_own_user,
    plan_accounts,
)
from thermocline_common.raw_reads import find_raw, run_raw
from thermocline_common.tiers import PLAIN, Tiers
from thermocline_common.write_replies import require_written

MAJORITY: Final = {"w": "majority", "wtimeout": 10_000}
LEDGER_ID: Final = "parity"
"""Document in F's ``markers`` that names the users and roles that were brought to F."""
READ_MS: Final = 5_000
ROUNDS: Final = 4


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
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def bring_over(self) -> None:
        """Make F's users and roles those of the archive. Raises PyMongo's errors.

        Several processes may do so at the same time, and what one has read may be old by the time it
        writes: so whoever has changed something looks again. The last one finds all as it should be.
        """
        async with self._lock:
            for _ in range(ROUNDS):
                if not await self._round():
                    return

    async def _round(self) -> bool:
        """Whether F was changed. Roles come before the users that hold them, and go after them."""
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
        plans = {"users": users, "roles": roles}
        await _change_ledger(
            self.tiers,
            "$addToSet",
            {k: {"$each": sorted(p.copied - set(ledger.get(k, ())))} for k, p in plans.items()},
        )
        await _write_accounts(self.tiers, "system.roles", roles.write, roles_there)
        await _write_accounts(self.tiers, "system.users", users.write, users_there)
        await _remove_accounts(self.tiers, "system.users", users.remove)
        await _remove_accounts(self.tiers, "system.roles", roles.remove)
        await _change_ledger(
            self.tiers,
            "$pull",
            {k: {"$in": sorted(set(ledger.get(k, ())) - p.copied)} for k, p in plans.items()},
        )
        _report(self.users, users)
        _report(self.roles, roles)
        return users.changes or roles.changes


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


async def _change_ledger(
    tiers: Tiers, operator: str, fields: Mapping[str, Mapping[str, list[str]]]
) -> None:
    """Name by name: others change the document, too."""
    wanted = {name: change for name, change in fields.items() if any(change.values())}
    if not wanted:
        return
    update = {"q": {"_id": LEDGER_ID}, "u": {operator: wanted}, "upsert": True}
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
