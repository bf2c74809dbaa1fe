"""Rules over several fields, on plain values: they also run where some field is wrong by itself.

Whatever the CRD's CEL rules refuse is refused here too.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from thermocline_common.spec.fields import DNS_LABEL
from thermocline_common.spec.problems import Problem


def check(resource: Mapping[str, Any]) -> list[Problem]:
    """Every problem that concerns more than one field. Never raises, whatever stands there."""
    metadata, spec = _object(resource, "metadata"), _object(resource, "spec")
    return [*_names(metadata), *_collections(spec)]


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
