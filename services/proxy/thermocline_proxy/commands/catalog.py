"""Every command of MongoDB 6.0, and what the proxy does with it.

What isn't here is answered with ``CommandNotFound`` and never forwarded: a command that nobody
thought about could go round the tiering.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from thermocline_common import names

CLOSED_DATABASES = frozenset({names.DATABASE, names.SET_ASIDE_DATABASE})
"""No client reaches these, on either tier."""


class Kind(StrEnum):
    """How a command is served."""

    LOCAL = "local"
    """The proxy answers by itself."""
    LOGIN = "login"
    """A step of a log-in."""
    READ = "read"
    """Reads one collection, or a database where it names none."""
    WRITE = "write"
    """Writes documents of one collection."""
    CURSOR = "cursor"
    """Belongs to the member on which its cursor is open."""
    SESSION = "session"
    """Ends or refreshes sessions: goes to both tiers."""
    TRANSACTION = "transaction"
    """Ends a transaction: goes where its statements went."""
    DDL = "ddl"
    """Changes collections or indexes."""
    ADMIN = "admin"
    """Concerns no collection's content: the archive answers."""
    REFUSED = "refused"
    """Can't work through a proxy in front of two replica sets, or could go round the tiering."""


class Place(StrEnum):
    """Where a command names the collection that it is about."""

    NONE = "none"
    FIRST = "first"
    """The first field's value, within ``$db``."""
    FIRST_FULL = "firstFull"
    """The first field's value is a whole namespace."""
    COLLECTION = "collection"
    """Field ``collection``."""
    NESTED = "nested"
    """In the command that the first field holds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One command. ``any_member``: a read preference may send it to a secondary.

    ``before_login``: mongod answers it to clients that aren't logged in. ``filter``: the field with
    its filter. ``relayed``: names at most the one collection in its first field, so that an
    untiered one can be decided by that alone.
    """

    name: str
    kind: Kind
    place: Place = Place.NONE
    any_member: bool = False
    before_login: bool = False
    filter: str | None = None
    relayed: bool = False


def _entries() -> Iterator[Entry]:
    for name in ("hello", "isMaster", "ismaster", "ping", "whatsmyuri"):
        yield Entry(name, Kind.LOCAL, before_login=True)
    yield Entry("logout", Kind.LOCAL)
    for name in ("saslStart", "saslContinue", "authenticate"):
        yield Entry(name, Kind.LOGIN, before_login=True)
    for name in (
        "buildInfo",
        "buildinfo",
        "connectionStatus",
        "getnonce",
        "listCommands",
        "getLastError",
    ):
        yield Entry(name, Kind.ADMIN, before_login=True)

    for name, field in (("find", "filter"), ("count", "query"), ("distinct", "query")):
        yield Entry(name, Kind.READ, Place.FIRST, any_member=True, filter=field, relayed=True)
    yield Entry("aggregate", Kind.READ, Place.FIRST, any_member=True)
    yield Entry("explain", Kind.READ, Place.NESTED, any_member=True)
    for name in (
        "collStats", "collstats", "validate", "dbHash", "dbhash", "listIndexes", "planCacheClear",
        "planCacheClearFilters", "planCacheListFilters", "planCacheSetFilter", "filemd5",
    ):  # fmt: skip
        yield Entry(name, Kind.READ, Place.FIRST, any_member=True)
    for name in ("dataSize", "datasize"):
        yield Entry(name, Kind.READ, Place.FIRST_FULL, any_member=True)
    for name in ("dbStats", "dbstats", "listCollections", "listDatabases"):
        yield Entry(name, Kind.ADMIN, any_member=True)

    for name, where in (("insert", None), ("update", None), ("delete", None), ("findAndModify", "query"), ("findandmodify", "query")):  # fmt: skip
        yield Entry(name, Kind.WRITE, Place.FIRST, filter=where, relayed=True)

    yield Entry("getMore", Kind.CURSOR, Place.COLLECTION)
    yield Entry("killCursors", Kind.CURSOR, Place.FIRST)
    for name in ("endSessions", "refreshSessions", "killSessions", "killAllSessions", "killAllSessionsByPattern"):  # fmt: skip
        yield Entry(name, Kind.SESSION)
    yield Entry("startSession", Kind.ADMIN)
    for name in ("commitTransaction", "abortTransaction"):
        yield Entry(name, Kind.TRANSACTION)

    for name in (
        "create", "createIndexes", "dropIndexes", "deleteIndexes", "collMod", "drop", "reIndex",
        "convertToCapped", "cloneCollectionAsCapped", "compact", "setIndexCommitQuorum",
        "compactStructuredEncryptionData",
    ):  # fmt: skip
        yield Entry(name, Kind.DDL, Place.FIRST)
    yield Entry("dropDatabase", Kind.DDL)
    yield Entry("renameCollection", Kind.DDL, Place.FIRST_FULL)
    yield Entry("mapReduce", Kind.READ, Place.FIRST, any_member=True)
    yield Entry("mapreduce", Kind.READ, Place.FIRST, any_member=True)

    for name in (
        # users and roles
        "createRole", "createUser", "dropAllRolesFromDatabase", "dropAllUsersFromDatabase",
        "dropRole", "dropUser", "grantPrivilegesToRole", "grantRolesToRole", "grantRolesToUser",
        "invalidateUserCache", "revokePrivilegesFromRole", "revokeRolesFromRole",
        "revokeRolesFromUser", "rolesInfo", "updateRole", "updateUser", "usersInfo",
        # server and operations
        "appendOplogNote", "availableQueryOptions", "connPoolStats", "connPoolSync", "currentOp",
        "driverOIDTest", "dropConnections", "features", "fsync", "fsyncUnlock",
        "getClusterParameter", "getCmdLineOpts", "getDatabaseVersion", "getDefaultRWConcern",
        "getDiagnosticData", "getFreeMonitoringStatus", "getLog", "getParameter", "getShardMap",
        "getShardVersion", "hostInfo", "killOp", "lockInfo", "logRotate", "profile",
        "replSetGetConfig", "replSetGetStatus", "rotateCertificates", "serverStatus",
        "setClusterParameter", "setDefaultRWConcern", "setFeatureCompatibilityVersion",
        "setFreeMonitoring", "setParameter", "setProfilingFilterGlobally", "setUserWriteBlockMode",
        "shardingState", "top", "validateDBMetadata", "_isSelf", "waitForFailPoint",
        "_getUserCacheGeneration", "dbCheck",
        # only where test commands are enabled; mongod refuses them otherwise
        "configureFailPoint", "replSetStepDown", "replSetFreeze", "replSetStepUp", "sleep",
        "replSetTest",
    ):  # fmt: skip
        yield Entry(name, Kind.ADMIN, before_login=name == "waitForFailPoint")

    for name in (
        "applyOps", "flushRouterConfig", "replSetAbortPrimaryCatchUp", "replSetGetRBID",
        "replSetHeartbeat", "replSetInitiate", "replSetMaintenance", "replSetReconfig",
        "replSetRequestVotes", "replSetResizeOplog", "replSetSyncFrom", "replSetUpdatePosition",
        "shutdown", "splitVector", "autoSplitVector", "checkShardingIndex", "setShardVersion",
        "splitChunk", "mergeChunks", "cleanupOrphaned", "internalRenameIfOptionsAndIndexesMatch",
        "prepareTransaction", "coordinateCommitTransaction", "startRecordingTraffic",
        "stopRecordingTraffic", "donorAbortMigration", "donorForgetMigration",
        "donorStartMigration", "recipientForgetMigration", "recipientSyncData",
        "recipientVoteImportedFiles", "abortShardSplit", "commitShardSplit", "forgetShardSplit",
        "clusterAbortTransaction", "clusterAggregate", "clusterCommitTransaction",
        "clusterDelete", "clusterFind", "clusterGetMore", "clusterInsert", "clusterUpdate",
        "_mergeAuthzCollections", "_killOperations",
    ):  # fmt: skip
        yield Entry(name, Kind.REFUSED)


CATALOG: dict[str, Entry] = {entry.name: entry for entry in _entries()}

RELAYED: dict[bytes, Entry] = {
    name.encode(): entry for name, entry in CATALOG.items() if entry.relayed
}
"""The commands that go through on the short path where their collection is untiered."""


def lookup(name: str) -> Entry | None:
    """The entry of a command; None where MongoDB 6.0 has no such command (or only among servers)."""
    return CATALOG.get(name)


def ends_with_client(frame: bytes) -> bool:
    """Whether the work on an OP_MSG stops when its client is gone: nobody misses what it would do."""
    entry = CATALOG.get(frame[26 : frame.find(b"\0", 26)].decode("utf-8", "replace"))
    return entry is None or entry.kind in (Kind.READ, Kind.CURSOR, Kind.LOCAL, Kind.LOGIN)
