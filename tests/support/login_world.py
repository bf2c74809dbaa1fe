"""One Thermocline with logins for all tests of a file: proxy and feeder, no warmer.

What F learns of users, it learns from the proxy.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from support.accounts import Login
from support.fixtures import wipe
from support.mongod import ReplicaSet
from support.services import Thermocline
from support.wire import Wire

MANAGER: Final = Login("manager", "manager-secret")
HOT: Final = 3
"""Written through the proxy at the start, so F has it; the others are in the archive alone."""
_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)


@dataclass(frozen=True)
class LoginWorld:
    """``shop.orders`` is tiered, all else is not; ``MANAGER`` reads, writes and creates users."""

    thermocline: Thermocline
    fast: ReplicaSet
    archive: ReplicaSet

    def connect(
        self, login: Login, database: str = "admin", **options: Any
    ) -> MongoClient[dict[str, Any]]:
        """A client through the proxy."""
        return MongoClient(
            "127.0.0.1",
            self.thermocline.port,
            username=login.user,
            password=login.password,
            authSource=database,
            serverSelectionTimeoutMS=20_000,
            **options,
        )

    def wire(self) -> Wire:
        """A bare connection to the proxy."""
        return Wire(self.thermocline.port, 30)

    def direct(self) -> Wire:
        """A bare connection to the archive's mongod."""
        return Wire(self.archive.members[0].port, 30)


@contextlib.contextmanager
def login_world(
    sets: tuple[ReplicaSet, ReplicaSet], spec: Mapping[str, Any] | None = None
) -> Iterator[LoginWorld]:
    """``sets``: the fast tier and the archive, with logins; emptied first. ``spec``: of the resource."""
    fast, archive = sets
    wipe(fast)
    wipe(archive)
    with archive.client() as client:
        client.shop.orders.create_index("t")
        client.shop.orders.insert_many([{"_id": n, "t": n} for n in range(20)])
        client.shop.plain.insert_many([{"_id": n, "t": n} for n in range(20)])
    policy = {"namespace": "shop.orders", "ageField": "t", "maxAge": "30d"}
    thermocline = Thermocline(fast, archive, [policy], spec=spec)
    thermocline.start(only=("proxy", "feeder"))
    try:
        with thermocline.logs_on_failure():
            thermocline.wait_state("Active")
            roles = ["userAdminAnyDatabase", "readWriteAnyDatabase"]
            with archive.client() as client:
                client.admin.command("createUser", MANAGER.user, pwd=MANAGER.password, roles=roles)
            world = LoginWorld(thermocline, fast, archive)
            with world.connect(MANAGER) as manager:
                assert manager.shop.orders.update_one({"_id": HOT}, {"$set": {"v": 0}}).raw_result
            yield world
    finally:
        thermocline.stop()


def raw_accounts(replica_set: ReplicaSet) -> dict[str, bytes]:
    """Users and roles as they are stored, but for those that belong to one tier."""
    found: dict[str, bytes] = {}
    with replica_set.client() as client:
        for name in ("system.users", "system.roles"):
            collection: Any = client.admin.get_collection(name, codec_options=_RAW)
            for document in collection.find():
                found[f"{name} {document['_id']}"] = bytes(document.raw)
    own = ("admin.admin", "admin.thermocline")
    return {name: raw for name, raw in found.items() if name.split(" ")[1] not in own}


def refusal(action: Callable[..., Any], *arguments: Any) -> Mapping[str, Any]:
    """What the server answers where it refuses; empty where it doesn't."""
    try:
        action(*arguments)
    except OperationFailure as error:
        return dict(error.details or {})
    return {}


def code_of(action: Callable[..., Any], *arguments: Any) -> int:
    """The code with which the action is refused; 0 where it isn't."""
    return int(refusal(action, *arguments).get("code", 0))
