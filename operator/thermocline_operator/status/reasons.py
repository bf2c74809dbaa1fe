"""Every condition, reason and event: the closed lists that also make the reference page."""

from enum import StrEnum


class Described(StrEnum):
    """An enum whose members carry a description for people."""

    description: str

    def __new__(cls, value: str, description: str = "") -> "Described":
        """``value`` is what stands in the API; ``description`` is for the reference page."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = description
        return member


class Phase(Described):
    """``status.phase``: one word for people."""

    PENDING = "Pending", "it doesn't serve yet; `blockedOn` says what it waits for"
    PASSTHROUGH = "Passthrough", "everything is served from the archive, as wanted"
    WARMING = "Warming", "serves; the fast tier doesn't hold all that the policies ask for yet"
    ACTIVE = "Active", "serves from both tiers, and the fast tier is warm"
    DEGRADED = "Degraded", "something needs attention: conditions `Ready` and `Degraded` say what"
    PAUSED = "Paused", "`spec.paused`: the proxies serve, nothing else moves"
    DRAINING = "Draining", "it is being deleted: what the archive lacks is brought there first"
    FAILED = "Failed", "it can't be carried out without a person: condition `Stalled` says why"


class ConditionType(Described):
    """``status.conditions[].type``."""

    READY = "Ready", "applications are served in the wanted mode"
    RECONCILING = "Reconciling", "a change is being carried out"
    STALLED = "Stalled", "a change can't be carried out without a person"
    DEGRADED = "Degraded", "something needs attention though traffic is served"
    CONFIG_VALID = "ConfigValid", "the resource makes sense"
    CREDENTIALS_VALID = "CredentialsValid", "the named Secrets are there and the tiers accept them"
    TLS_VALID = "TLSValid", "the named certificates are there and not near their end"
    TOPOLOGY_SATISFIABLE = "TopologySatisfiable", "tag sets match a member of their tier"
    ARCHIVE_REACHABLE = "ArchiveReachable", "a proxy reaches the archive's primary"
    FAST_TIER_REACHABLE = "FastTierReachable", "a proxy reaches the fast tier's primary"
    FEEDER_CAUGHT_UP = "FeederCaughtUp", "the archive is at most 30 s behind the fast tier"
    WARMUP_COMPLETE = "WarmupComplete", "the fast tier holds all that the policies ask for"
    EVICTION_SAFE = (
        "EvictionSafe",
        "what was evicted was confirmed in the archive, and nothing differed",
    )


class Reason(Described):
    """``status.conditions[].reason``."""

    # Good.
    SERVING = "Serving", "a ready proxy serves the wanted mode"
    UP_TO_DATE = "UpToDate", "every service works with this generation of the spec"
    NOTHING_STALLED = "NothingStalled", "nothing waits for a person"
    NOTHING_WRONG = "NothingWrong", "nothing needs attention"
    VALID = "Valid", "checked and found good"
    NOT_NEEDED = "NotNeeded", "the resource names nothing of this kind"
    REACHABLE = "Reachable", "its primary answers"
    CAUGHT_UP = "CaughtUp", "the archive follows"
    WARM = "Warm", "every policy is covered"
    CONFIRMED = "Confirmed", "what was evicted was found equal in the archive before"
    WAITS_FOR_PERSON = "WaitsForPerson", "condition `Stalled` says what for"
    # On the way.
    APPLYING = "Applying", "objects are being created or changed"
    ROLLING_OUT = "RollingOut", "pods are being replaced or started"
    SERVICES_FOLLOW = "ServicesFollow", "a service doesn't work with this generation yet"
    SWITCHING = "Switching", "collections change their state"
    DRAINING = "Draining", "what the archive lacks is brought there before deletion"
    WARMING = "Warming", "documents are copied into the fast tier"
    # Not known.
    NOT_HEARD = "NotHeard", "no service told about it in the last 30 s"
    # Wrong.
    INVALID_SPEC = "InvalidSpec", "the spec has problems, each named with path and remedy"
    NAME_CONFLICT = "NameConflict", "an object of a needed name belongs to somebody else"
    API_REFUSED = "ApiRefused", "the API server refuses an object that is needed"
    SECRET_MISSING = "SecretMissing", "a named Secret isn't there"
    SECRET_INCOMPLETE = "SecretIncomplete", "a named Secret lacks a key"
    LOG_IN_REFUSED = "LogInRefused", "a tier refuses the services' user"
    CERTIFICATE_EXPIRES = "CertificateExpires", "a certificate ends within 14 days, or has ended"
    TAGS_UNMATCHED = "TagsUnmatched", "no member has the tags that the spec asks for"
    ARCHIVE_UNREACHABLE = "ArchiveUnreachable", "no proxy reaches the archive's primary"
    FAST_TIER_UNREACHABLE = "FastTierUnreachable", "no proxy reaches the fast tier's primary"
    NO_PROXY_READY = "NoProxyReady", "no proxy is ready"
    NO_PROXY_WANTED = "NoProxyWanted", "`spec.proxy.replicas` is 0"
    NOT_SERVING = "NotServing", "no proxy can read what is tiered, and so none serves"
    COLLECTION_REFUSED = "CollectionRefused", "a collection can't become active as it is"
    POD_FAILS = "PodFails", "a pod can't be scheduled or doesn't start"
    APPROVAL_NEEDED = "ApprovalNeeded", "a rollout waits for approval"
    DRAIN_BLOCKED = "DrainBlocked", "not everything can be brought to the archive"
    LAGGING = "Lagging", "the archive is more than 30 s behind"
    NOT_REPLAYING = "NotReplaying", "no feeder replays"
    WRITES_SLOWED = "WritesSlowed", "proxies slow writers down, as replay is behind"
    QUARANTINE = "Quarantine", "the archive refuses documents"
    MISMATCH = "Mismatch", "the tiers hold other bytes of a document: its eviction has stopped"
    UNCONFIRMED = "Unconfirmed", "more was evicted than was confirmed"
    FOREIGN_WRITES = "ForeignWrites", "somebody writes to the archive without the proxy"
    ANSWERS_DIFFER = "AnswersDiffer", "the self-check found documents that differ"
    SERVICE_PAUSED = "ServicePaused", "a service's `mode` is `Paused`"
    SERVICE_PROBLEM = "ServiceProblem", "a service reports a problem"


class EventReason(Described):
    """Reasons of events."""

    CREATED = "Created", "these objects were created"
    DRIFT_REPAIRED = "DriftRepaired", "somebody changed an object of ours, and it was set right"
    DELETED = "Deleted", "an object that isn't needed any more was deleted"
    SPEC_APPLIED = "SpecApplied", "every service works with this generation of the spec"
    SPEC_REFUSED = "SpecRefused", "the spec has problems; services go on with the last good one"
    NAME_CONFLICT = "NameConflict", "an object of a needed name belongs to somebody else"
    API_REFUSED = "ApiRefused", "the API server refuses an object that is needed"
    READY = "Ready", "applications are served in the wanted mode"
    NOT_READY = "NotReady", "applications aren't served in the wanted mode"
    DEGRADED = "Degraded", "something needs attention"
    RECOVERED = "Recovered", "nothing needs attention any more"
    STALLED = "Stalled", "a person is needed"
    COLLECTION_STATE = "CollectionState", "a collection changed its state"
    COLLECTION_REFUSED = "CollectionRefused", "a collection can't become active as it is"
    WARMUP_COMPLETE = "WarmupComplete", "the fast tier holds all that the policies ask for"
    TIER_UNREACHABLE = "TierUnreachable", "no proxy reaches a tier's primary"
    TIER_REACHABLE = "TierReachable", "a tier's primary answers again"
    FEEDER_BEHIND = "FeederBehind", "the archive is more than 30 s behind"
    EVICTION_STOPPED = "EvictionStopped", "a document differs between the tiers"
    FILES_CHANGED = "FilesChanged", "a named Secret has changed: pods take it over"
    ROLLOUT_WAITS = "RolloutWaits", "a rollout waits for approval"
    PAUSED = "Paused", "the resource holds still"
    RESUMED = "Resumed", "the resource moves again"
    DRAIN_STARTED = "DrainStarted", "deletion waits until the archive has everything"
    DRAIN_BLOCKED = "DrainBlocked", "not everything can be brought to the archive"
    DRAINED = "Drained", "the archive has everything; the resource is released"
    RELEASED_UNSENT = (
        "ReleasedUnsent",
        "the resource was released though the archive may lack writes",
    )


WARNINGS = frozenset(
    {
        EventReason.DRIFT_REPAIRED,
        EventReason.SPEC_REFUSED,
        EventReason.NAME_CONFLICT,
        EventReason.API_REFUSED,
        EventReason.NOT_READY,
        EventReason.DEGRADED,
        EventReason.STALLED,
        EventReason.COLLECTION_REFUSED,
        EventReason.TIER_UNREACHABLE,
        EventReason.FEEDER_BEHIND,
        EventReason.EVICTION_STOPPED,
        EventReason.DRAIN_BLOCKED,
        EventReason.RELEASED_UNSENT,
    }
)
"""All others are Normal."""
