"""What only the servers can tell: whether two tiers, and a collection, can be tiered. Pure rules over observations.

The feeder asks before a namespace becomes active; :mod:`thermocline_common.admission_checks` observes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from thermocline_common.coverage import Tier
from thermocline_common.namespace import split_namespace
from thermocline_common.spec.models import CollectionPolicy
from thermocline_common.spec.problems import Problem

FIELDS: Final[Mapping[Tier, str]] = {Tier.ARCHIVE: "spec.archive", Tier.FAST: "spec.fastTier"}
OLDEST_VERSION: Final = (6, 0)
LONGEST_TRANSACTION_S: Final = 60


@dataclass(frozen=True, slots=True)
class SeedObservation:
    """One host of a tier's URI, asked directly, without logging in.

    ``reached`` False: it didn't answer ``hello``. ``set_name`` None: no member of a replica set.
    """

    address: str
    reached: bool
    set_name: str | None = None
    is_mongos: bool = False


@dataclass(frozen=True, slots=True)
class MemberObservation:
    """One data-bearing member. ``transaction_lifetime_s``: transactionLifetimeLimitSeconds, None unknown."""

    address: str
    version: tuple[int, ...]
    transaction_lifetime_s: int | None = None


@dataclass(frozen=True, slots=True)
class TierObservation:
    """One tier, as its primary and members say.

    ``set_id``: ``settings.replicaSetId`` as text, None where there is no replica set.
    ``feature_version``: featureCompatibilityVersion, such as "6.0"; None where it isn't readable.
    ``majority_journaled``: ``writeConcernMajorityJournalDefault``.
    """

    tier: Tier
    set_name: str | None
    set_id: str | None
    is_mongos: bool
    feature_version: str | None
    members: tuple[MemberObservation, ...]
    majority_journaled: bool = True


@dataclass(frozen=True, slots=True)
class IndexObservation:
    """One index of a collection; ``key`` in order, directions as they are (1, -1, "hashed", ...)."""

    name: str
    key: tuple[tuple[str, Any], ...]
    sparse: bool = False
    partial: bool = False
    hidden: bool = False
    simple_collation: bool = True
    building: bool = False


@dataclass(frozen=True, slots=True)
class CollectionObservation:
    """One namespace on the archive. ``kind``: "collection", "view", "timeseries", or None where there is none."""

    namespace: str
    kind: str | None
    capped: bool = False
    clustered: bool = False
    encrypted: bool = False
    simple_collation: bool = True
    indexes: tuple[IndexObservation, ...] = field(default_factory=tuple)


def check_seeds(
    tier: Tier, wanted_set: str | None, seeds: Sequence[SeedObservation]
) -> list[Problem]:
    """Why a driver finds no replica set behind a tier's URI, where the servers themselves tell.

    Empty where every host is silent, or where at least one is a member of ``wanted_set``: then
    the set has no primary, or can't be reached, which passes.
    """
    answers = [seed for seed in seeds if seed.reached]
    if any(seed.set_name is not None and seed.set_name == wanted_set for seed in answers):
        return []
    path = f"{FIELDS[tier]}.uri"
    problems = []
    for seed in answers:
        if seed.is_mongos:
            problems.append(
                Problem(
                    path,
                    f"{seed.address} is a mongos, and a sharded cluster can't be a tier",
                    "name the members of a replica set",
                )
            )
        elif seed.set_name is None:
            problems.append(
                Problem(
                    path,
                    f"{seed.address} is a standalone server",
                    "start it with --replSet and run rs.initiate(), or name another",
                )
            )
        elif wanted_set is not None:
            problems.append(
                Problem(
                    path,
                    f"{seed.address} is a member of replica set {seed.set_name}, not of {wanted_set}",
                    f"write replicaSet={seed.set_name}, or name other hosts",
                )
            )
    return problems


def check_tiers(fast: TierObservation, archive: TierObservation) -> list[Problem]:
    """Why these two can't be the tiers of one resource; empty: they can."""
    problems = [*_check_tier(archive), *_check_tier(fast)]
    if archive.set_id is not None and archive.set_id == fast.set_id:
        problems.append(
            Problem(
                "spec.fastTier.uri",
                f"is the archive's own replica set {archive.set_name} (id {archive.set_id})",
                "give the fast tier a replica set of its own",
            )
        )
        return problems
    problems += _check_versions(fast, archive)
    return problems


def _check_tier(tier: TierObservation) -> Iterator[Problem]:
    path = FIELDS[tier.tier]
    if tier.is_mongos:
        yield Problem(
            f"{path}.uri", "is a sharded cluster (mongos)", "name the members of a replica set"
        )
        return
    if tier.set_id is None:
        yield Problem(
            f"{path}.uri",
            "is a standalone server",
            "start it with --replSet and run rs.initiate(), or name another",
        )
        return
    if not tier.majority_journaled:
        yield Problem(
            path,
            "acknowledges majority writes before they are durable (writeConcernMajorityJournalDefault "
            "is false), so a crash could lose them",
            "set writeConcernMajorityJournalDefault to true with rs.reconfig()",
        )
    for member in tier.members:
        if member.version[:2] < OLDEST_VERSION:
            yield Problem(
                path,
                f"runs MongoDB {_text(member.version)} on {member.address}",
                f"upgrade it to {_text(OLDEST_VERSION)} or later",
            )
        lifetime = member.transaction_lifetime_s
        if lifetime is not None and lifetime > LONGEST_TRANSACTION_S:
            yield Problem(
                path,
                f"has transactionLifetimeLimitSeconds {lifetime} on {member.address}, and Thermocline "
                f"waits for transactions of at most {LONGEST_TRANSACTION_S} seconds",
                "run there: db.adminCommand({setParameter: 1, transactionLifetimeLimitSeconds: "
                f"{LONGEST_TRANSACTION_S}}}), and set it at start too",
            )


def _check_versions(fast: TierObservation, archive: TierObservation) -> Iterator[Problem]:
    versions = {tier.tier: {m.version[:2] for m in tier.members} for tier in (fast, archive)}
    remedy = "upgrade both tiers to the same version"
    if all(versions.values()) and versions[Tier.FAST] != versions[Tier.ARCHIVE]:
        texts = {t: ", ".join(_text(v) for v in sorted(found)) for t, found in versions.items()}
        yield Problem(
            "spec.fastTier",
            f"runs MongoDB {texts[Tier.FAST]}, and the archive {texts[Tier.ARCHIVE]}",
            remedy,
        )
    elif (
        fast.feature_version
        and archive.feature_version
        and fast.feature_version != archive.feature_version
    ):
        yield Problem(
            "spec.fastTier",
            f"has featureCompatibilityVersion {fast.feature_version}, and the archive "
            f"{archive.feature_version}",
            "run setFeatureCompatibilityVersion on the one that is behind",
        )


def _text(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def check_collection(
    path: str, policy: CollectionPolicy, found: CollectionObservation
) -> list[Problem]:
    """Why a collection of the archive can't be tiered under ``policy``; empty: it can.

    ``path``: of the policy, such as ``spec.collections[0]``.
    """
    problems = list(_check_kind(f"{path}.namespace", found))
    if problems or found.kind not in (None, "collection"):
        return problems
    if policy.age_field is not None:
        problems += _check_age_index(f"{path}.ageField", policy.age_field, found)
    return problems


def _check_kind(path: str, found: CollectionObservation) -> Iterator[Problem]:
    taken_out = "take the policy out"
    if found.kind == "view":
        yield Problem(
            path, "is a view", "name the collection that it reads: the view follows by itself"
        )
    elif found.kind == "timeseries":
        yield Problem(
            path,
            "is a time-series collection, whose changes MongoDB doesn't report",
            f"{taken_out}: it is served from the archive",
        )
    if found.capped:
        yield Problem(
            path,
            "is capped, and MongoDB itself deletes documents from it",
            f"{taken_out}, or copy it into an ordinary collection",
        )
    if found.clustered:
        yield Problem(
            path, "is a clustered collection", f"{taken_out}, or copy it into an ordinary one"
        )
    if found.encrypted:
        yield Problem(path, "has encrypted fields (queryable encryption)", taken_out)
    if not found.simple_collation:
        yield Problem(
            path,
            "has a default collation, under which different ids can be equal",
            f"{taken_out}, or copy it into a collection without one",
        )


def _check_age_index(path: str, age_field: str, found: CollectionObservation) -> Iterator[Problem]:
    usable = _candidates(age_field, found.indexes)
    if any(_obstacle(index) is None for index in usable):
        return
    reasons = [f"index {json.dumps(i.name)} {_obstacle(i)}" for i in usable]
    hidden = next((i for i in usable if _obstacle(i) == "is hidden"), None)
    building = next((i for i in usable if _obstacle(i) == "is still being built"), None)
    if hidden is not None:
        remedy = (
            f"run on the archive: {_shell(found.namespace)}.unhideIndex({json.dumps(hidden.name)})"
        )
    elif building is not None:
        remedy = "wait until it is built"
    else:
        remedy = (
            f"run on the archive: {create_index_command(found.namespace, age_field, found.indexes)}"
        )
    detail = f" ({'; '.join(reasons)})" if reasons else ""
    yield Problem(
        path, f"the archive has no full index that starts with it{detail}", remedy, repr(age_field)
    )


def _candidates(age_field: str, indexes: Iterable[IndexObservation]) -> list[IndexObservation]:
    """The indexes whose key starts with the age field, in a direction (not hashed, text, 2dsphere, ...)."""
    return [
        index
        for index in indexes
        if index.key
        and index.key[0][0] == age_field
        and (index.key[0][1] == "hashed" or not isinstance(index.key[0][1], str))
    ]


def _obstacle(index: IndexObservation) -> str | None:
    """Why an index that starts with the age field doesn't show every document; None: it does.

    A multikey index is fine: it holds an entry for every document, arrays under each element.
    """
    if index.key[0][1] == "hashed":
        return "is hashed"
    if any(isinstance(direction, str) or "$**" in path for path, direction in index.key):
        # Text, geo and wildcard parts make an index sparse by themselves.
        return "has a part that isn't ascending or descending"
    if index.sparse:
        return "is sparse: it hides documents without the field"
    if index.partial:
        return "is partial: it hides documents"
    if not index.simple_collation:
        return "has a collation"
    if index.hidden:
        return "is hidden"
    if index.building:
        return "is still being built"
    return None


def create_index_command(
    namespace: str, age_field: str, existing: Iterable[IndexObservation] = ()
) -> str:
    """The command, for mongosh, that makes the index that ``ageField`` needs."""
    taken = {index.name for index in existing}
    key = json.dumps({age_field: 1}, ensure_ascii=False)
    options = ""
    if f"{age_field}_1" in taken:
        name = next(
            candidate
            for n in range(1, 100)
            if (candidate := f"{age_field}_1_full" + (str(n) if n > 1 else "")) not in taken
        )
        options = f", {json.dumps({'name': name}, ensure_ascii=False)}"
    return f"{_shell(namespace)}.createIndex({key}{options})"


def _shell(namespace: str) -> str:
    """The collection in mongosh, whatever its name."""
    split = split_namespace(namespace)
    database = json.dumps(split.database, ensure_ascii=False)
    collection = json.dumps(split.collection, ensure_ascii=False)
    return f"db.getSiblingDB({database}).getCollection({collection})"
