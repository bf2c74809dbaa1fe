"""Whether an object still is as it was applied.

The API server adds defaults and rewrites quantities, so what was asked for can't be compared with
what is there. What can be compared is the part of the object that was asked for: as it was in the
answer to the last apply, and as it is now.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

Shape = Any
"""The desired object: only its structure counts here."""


def part(live: Any, shape: Shape) -> Any:
    """The part of ``live`` that ``shape`` speaks about; what is missing is None."""
    if isinstance(shape, Mapping):
        if not isinstance(live, Mapping):
            return live
        return {key: part(live.get(key), inner) for key, inner in shape.items()}
    if isinstance(shape, list) and isinstance(live, list):
        keys = _keys(shape)
        if keys is None:
            return live
        by_key = {_key(item): item for item in live if isinstance(item, Mapping)}
        return [part(by_key.get(key), inner) for key, inner in zip(keys, shape, strict=True)]
    return live


def _keys(shape: list[Any]) -> list[Any] | None:
    """What tells the items of a list apart that others may add to; None: the list is one value."""
    keys = [_key(item) for item in shape if isinstance(item, Mapping)]
    if len(keys) != len(shape) or None in keys or len(set(keys)) != len(keys):
        return None
    return keys


def _key(item: Mapping[str, Any]) -> Any:
    for field in ("name", "uid", "mountPath"):
        if field in item:
            return (field, item[field])
    return None


def digest(value: Any) -> str:
    """A short digest of plain values."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def changed_paths(before: Any, after: Any, path: str = "") -> list[str]:
    """Where two parts differ, as paths such as ``spec.replicas``; lists as a whole."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        found: list[str] = []
        for key in sorted(before.keys() | after.keys()):
            inner = f"{path}.{key}" if path else str(key)
            found += changed_paths(before.get(key), after.get(key), inner)
        return found
    return [] if before == after else [path]
