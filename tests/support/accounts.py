"""The users of a Thermocline installation where logins are on.

The role that the services need is ``docs/accounts.md`` as code; tests run with it, so a missing
privilege shows as a failing test, not as a surprise in an installation.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from support.mongod import ReplicaSet
from thermocline_common.coverage import Tier

ROLE: Final = "thermocline"

_COORDINATION = ("find", "insert", "update", "remove", "createCollection", "listCollections")
_ASIDE = ("find", "insert", "createIndex", "listCollections")
_TIERED = (
    "find", "insert", "update", "remove", "bypassDocumentValidation", "createCollection",
    "createIndex", "listCollections", "listIndexes",
)  # fmt: skip
_TIERED_ON_FAST = ("collMod", "dropCollection", "dropIndex", "killAnyCursor")
_CLUSTER = ("inprog", "replSetGetConfig", "replSetGetStatus", "getParameter")
_FOLLOW_EVERYTHING: Mapping[str, Any] = {
    "resource": {"db": "", "collection": ""},
    "actions": ["changeStream", "find"],
}


def privileges(tier: Tier, databases: Sequence[str]) -> list[dict[str, Any]]:
    """The privileges of the services' role on a tier, for these databases with tiered collections."""

    def on(database: str, collection: str, actions: Sequence[str]) -> dict[str, Any]:
        return {"resource": {"db": database, "collection": collection}, "actions": list(actions)}

    fast = tier is Tier.FAST
    users = ("find", "insert", "update", "remove") if fast else ("find",)
    granted = [
        {"resource": {"cluster": True}, "actions": list(_CLUSTER)},
        dict(_FOLLOW_EVERYTHING),
        on("thermocline", "", _COORDINATION),
        on("config", "transactions", ("find",)),
        on("local", "oplog.rs", ("find", "collStats") if fast else ("find",)),
        on("admin", "system.users", users),
        on("admin", "system.roles", users),
    ]
    if fast:
        granted.append(on("thermocline_aside", "", _ASIDE))
    tiered = (*_TIERED, *_TIERED_ON_FAST) if fast else _TIERED
    return granted + [on(database, "", tiered) for database in databases]


@dataclass(frozen=True, slots=True)
class Login:
    """A user's name and password."""

    user: str
    password: str


SERVICES: Final = {
    Tier.FAST: Login("thermocline", "fast-services-secret"),
    Tier.ARCHIVE: Login("thermocline", "archive-services-secret"),
}
APPLICATION: Final = Login("application", "application-secret")


def create_service_users(fast: ReplicaSet, archive: ReplicaSet, databases: Sequence[str]) -> None:
    """The services' role and user on both tiers (other passwords on each)."""
    for tier, replica_set in ((Tier.FAST, fast), (Tier.ARCHIVE, archive)):
        login = SERVICES[tier]
        granted = privileges(tier, databases)
        with replica_set.client() as client:
            known = client.admin.command("rolesInfo", ROLE)["roles"]
            verb = "updateRole" if known else "createRole"
            client.admin.command(verb, ROLE, privileges=granted, roles=[])
            if not client.admin.command("usersInfo", login.user)["users"]:
                client.admin.command("createUser", login.user, pwd=login.password, roles=[ROLE])


def create_application_user(
    fast: ReplicaSet,
    archive: ReplicaSet,
    login: Login = APPLICATION,
    roles: Sequence[Any] = ("readWriteAnyDatabase",),
    *,
    database: str = "admin",
) -> None:
    """A user as applications have them: made on the archive, with the same credentials on F.

    The warmer keeps the users of the tiers equal; this does it at once, for tests that don't want
    to wait for it.
    """
    with archive.client() as client:
        client[database].command("createUser", login.user, pwd=login.password, roles=list(roles))
    copy_users(fast, archive)


def copy_users(fast: ReplicaSet, archive: ReplicaSet) -> None:
    """Give F the archive's users, bytes as they are, but for the root user and the services' user."""
    own = [login.user for login in SERVICES.values()] + ["admin"]
    raw = CodecOptions(document_class=RawBSONDocument)
    with archive.client() as source, fast.client() as target:
        users = source.admin.get_collection("system.users", codec_options=raw)
        copies = target.admin.get_collection("system.users", codec_options=raw)
        for user in users.find({"user": {"$nin": own}}):
            copies.replace_one({"_id": user["_id"]}, user, upsert=True)


def drop_users(replica_set: ReplicaSet) -> None:
    """Drop every user but the root user, and the services' role."""
    with replica_set.client() as client:
        for user in client.admin.command("usersInfo", {"forAllDBs": True})["users"]:
            if user["user"] != "admin":
                client[user["db"]].command("dropUser", user["user"])
        client.admin.command("dropAllRolesFromDatabase")


def write_credentials(directory: Path) -> Path:
    """The services' credentials as projected Secrets look like; returns ``directory``."""
    for tier, folder in ((Tier.FAST, "fast-tier"), (Tier.ARCHIVE, "archive")):
        (directory / folder).mkdir(parents=True, exist_ok=True)
        (directory / folder / "username").write_text(SERVICES[tier].user)
        (directory / folder / "password").write_text(SERVICES[tier].password)
    return directory


if __name__ == "__main__":
    print(json.dumps(privileges(Tier(sys.argv[1]), sys.argv[2:]), indent=2))
