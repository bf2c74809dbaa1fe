"""Rules over several fields, on plain values: they also run where some field is wrong by itself.

Whatever the CRD's CEL rules refuse is refused here too.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from thermocline_common.spec.fields import DNS_LABEL
from thermocline_common.spec.problems import Problem
from thermocline_common.spec.reads import DEFAULT_THRESHOLD_MS
from thermocline_common.uri.check import Connection, check as check_uri
from thermocline_common.uri.options import Place
from thermocline_common.uri.problems import UriError

_DEFAULTS = {"localThresholdMS": DEFAULT_THRESHOLD_MS}
_IDLE_WRITE_PERIOD_S = 10


def check(resource: Mapping[str, Any]) -> list[Problem]:
    """Every problem that concerns more than one field. Never raises, whatever stands there."""
    metadata, spec = _object(resource, "metadata"), _object(resource, "spec")
    # The models have defaults for these, for tests and tools that make resources in Python.
    missing = [
        Problem(field, "is missing", "add it")
        for field in ("apiVersion", "kind")
        if field not in resource
    ]
    return [*missing, *_names(metadata), *_tiers(spec), *_collections(spec)]


def _object(value: Any, field: str) -> Mapping[str, Any]:
    inner = value.get(field) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _names(metadata: Mapping[str, Any]) -> Iterator[Problem]:
    for field in ("name", "namespace"):
        value = metadata.get(field)
        if isinstance(value, str) and value and not re.fullmatch(DNS_LABEL, value, re.ASCII):
            yield Problem(
                f"metadata.{field}",
                "is not a DNS label, as the names of Services must be",
                "use lower-case letters, digits and '-'",
                repr(value),
            )


def _tiers(spec: Mapping[str, Any]) -> Iterator[Problem]:
    found: dict[str, Connection] = {}
    for field in ("archive", "fastTier"):
        path, tier = f"spec.{field}", _object(spec, field)
        text = tier.get("uri")
        if not isinstance(text, str) or not text:
            continue
        try:
            connection = check_uri(text, Place.MANIFEST)
        except UriError as error:
            # Never the value: it may hold a password.
            for problem in error.problems:
                reason = f"{problem.reason}, at character {problem.start + 1}"
                yield Problem(f"{path}.uri", reason, problem.remedy)
            continue
        found[field] = connection
        yield from _tier(path, tier, connection)
    if len(found) == 2:
        yield from _same_set(found["archive"], found["fastTier"])


def _tier(path: str, tier: Mapping[str, Any], connection: Connection) -> Iterator[Problem]:
    if not connection.tls:
        for field in ("caSecretRef", "certificateSecretRef"):
            if _object(_object(tier, "tls"), field):
                yield Problem(
                    f"{path}.tls.{field}",
                    "has no effect without TLS",
                    f"add tls=true to {path}.uri",
                )
    written = connection.options.written
    for field in (
        "readPreference",
        "readPreferenceTags",
        "maxStalenessSeconds",
        "localThresholdMS",
    ):
        # The API server fills defaults in, which nobody wrote.
        if field in written and tier.get(field, _DEFAULTS.get(field)) != _DEFAULTS.get(field):
            yield Problem(f"{path}.{field}", f"is given in {path}.uri too", "keep one of them")
    mode = tier.get("readPreference", connection.options.get("readPreference", "primary"))
    tags, staleness = tier.get("readPreferenceTags"), tier.get("maxStalenessSeconds")
    remedy = "set readPreference to another mode, or take it out"
    if mode == "primary":
        if tags:
            yield Problem(f"{path}.readPreferenceTags", "has no meaning with primary", remedy)
        if isinstance(staleness, int) and staleness != -1:
            yield Problem(f"{path}.maxStalenessSeconds", "has no meaning with primary", remedy)
    if isinstance(tags, Sequence) and {} in list(tags)[:-1]:
        yield Problem(
            f"{path}.readPreferenceTags",
            "has a tag set behind the empty one",
            "put the empty one last",
        )
    if isinstance(staleness, int) and staleness != -1:
        heartbeat = connection.options.get("heartbeatFrequencyMS", 10_000) / 1000
        smallest = max(90, math.ceil(heartbeat + _IDLE_WRITE_PERIOD_S))
        if staleness < smallest:
            yield Problem(
                f"{path}.maxStalenessSeconds",
                f"is below {smallest}",
                f"use at least {smallest}, or -1 for no limit",
                str(staleness),
            )


def _same_set(archive: Connection, fast: Connection) -> Iterator[Problem]:
    shared = {str(host) for host in archive.uri.hosts} & {str(host) for host in fast.uri.hosts}
    if shared:
        yield Problem(
            "spec.fastTier.uri",
            f"names the archive's own server {min(shared)}",
            "give the fast tier a replica set of its own",
        )


def _collections(spec: Mapping[str, Any]) -> Iterator[Problem]:
    entries = spec.get("collections")
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        return
    first: dict[str, int] = {}
    databases: dict[str, str] = {}
    for i, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            continue
        path = f"spec.collections[{i}]"
        yield from _policy(path, entry)
        namespace = entry.get("namespace")
        if not isinstance(namespace, str):
            continue
        if namespace in first:
            yield Problem(
                f"{path}.namespace",
                f"has a policy already, at spec.collections[{first[namespace]}]",
                "keep one policy for each collection",
                repr(namespace),
            )
        first.setdefault(namespace, i)
        database = namespace.partition(".")[0]
        other = databases.setdefault(database.lower(), database)
        if other != database:
            yield Problem(
                f"{path}.namespace",
                f"differs from database {other} in case only, which MongoDB doesn't allow",
                "write the database's name as it is",
                repr(namespace),
            )


def _policy(path: str, entry: Mapping[str, Any]) -> Iterator[Problem]:
    by_age = [field for field in ("ageField", "maxAge") if entry.get(field) is not None]
    if entry.get("keep") is not None:
        if by_age:
            yield Problem(
                path,
                f"has both keep and {' and '.join(by_age)}",
                "use either keep: All, or ageField with maxAge",
            )
    elif not by_age:
        yield Problem(
            path,
            "says neither which age nor that everything is kept",
            "add ageField with maxAge, or keep: All",
        )
    elif len(by_age) == 1:
        missing = "maxAge" if by_age == ["ageField"] else "ageField"
        yield Problem(f"{path}.{missing}", f"is missing beside {by_age[0]}", "add it")
