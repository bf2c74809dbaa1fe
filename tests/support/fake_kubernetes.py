"""A small API server in memory: enough of it for the operator's turns, with faults on request.

What only a real one does (defaults, admission, field ownership) is tested against a real one.
"""

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any, cast

from thermocline_operator.api import Api, ApiError, Call
from thermocline_operator.reports import Reporter

Path = tuple[str, str, str]
"""Plural, namespace, name."""


def merged(old: Any, new: Any) -> Any:
    """As a merge patch; lists as a whole."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return copy.deepcopy(new)
    found = {**old}
    for key, value in new.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(old.get(key), value)
    return found


class FakeKubernetes:
    """``objects`` by plural, namespace, name. ``fault`` may raise before a call, ``late`` after it was
    carried out. ``writes`` counts what was not read."""

    def __init__(self) -> None:
        self.objects: dict[Path, dict[str, Any]] = {}
        self.fault: Callable[[str, str], None] = lambda method, path: None
        self.late: Callable[[str, str], None] = lambda method, path: None
        self.writes: list[str] = []
        self._numbers = itertools.count(1)

    def put(self, plural: str, body: dict[str, Any]) -> dict[str, Any]:
        """As somebody else would: create it or replace it."""
        metadata = body["metadata"]
        path = (plural, metadata["namespace"], metadata["name"])
        metadata.setdefault("uid", f"uid-{next(self._numbers)}")
        metadata["resourceVersion"] = str(next(self._numbers))
        metadata.setdefault("generation", 1)
        self.objects[path] = body
        return body

    def edit(self, plural: str, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """As a person with kubectl would."""
        old = self.objects[plural, namespace, name]
        self._store((plural, namespace, name), merged(old, patch))

    def delete(self, plural: str, namespace: str, name: str) -> None:
        """Delete it; with a finalizer it only says so."""
        path = (plural, namespace, name)
        body = self.objects[path]
        if body["metadata"].get("finalizers"):
            if "deletionTimestamp" not in body["metadata"]:
                body["metadata"]["deletionTimestamp"] = "2026-06-01T00:00:00Z"
                body["metadata"]["generation"] += 1
            self._touch(body)
        else:
            del self.objects[path]

    def names(self, plural: str) -> list[str]:
        """The names of a kind."""
        return sorted(name for kind, _, name in self.objects if kind == plural)

    def handle(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content: str,
    ) -> dict[str, Any]:
        """One request."""
        self.fault(method, path)
        answer = self._handle(method, path, query or {}, body, content)
        if method != "GET":
            self.writes.append(f"{method} {path}")
        self.late(method, path)
        return copy.deepcopy(answer)

    def _handle(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content: str
    ) -> dict[str, Any]:
        parts = path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name, part = (*parts, "", "")[:3]
        key = (plural, namespace, name)
        if method == "GET" and not name:
            return {"items": self._list(plural, namespace, query.get("labelSelector", ""))}
        if method == "POST":
            key = (plural, namespace, body["metadata"]["name"])
            if key in self.objects:
                raise ApiError(409, "AlreadyExists", path)
            return self.put(plural, copy.deepcopy(body))
        old = self.objects.get(key)
        if method == "PATCH" and content.startswith("application/apply"):
            return self._store(key, merged(old or {}, body))
        if old is None:
            # As a real one does where the body names the version that was read.
            gone = method == "PUT" and body["metadata"].get("uid")
            raise ApiError(409, "Conflict", path) if gone else ApiError(404, "NotFound", path)
        if method == "GET":
            return old
        version = (body.get("metadata") or {}).get("resourceVersion")
        if method != "DELETE" and version not in (None, old["metadata"]["resourceVersion"]):
            raise ApiError(409, "Conflict", path)
        if method == "PUT":
            if part == "status":
                new = {**copy.deepcopy(old), "status": copy.deepcopy(body["status"])}
                return self._store(key, new)
            return self._store(key, copy.deepcopy(dict(body)))
        if method == "PATCH":
            return self._store(key, merged(old, body))
        self.delete(*key)
        return {}

    def _store(self, key: Path, new: dict[str, Any]) -> dict[str, Any]:
        old = self.objects.get(key)
        metadata = new["metadata"]
        if old is None:
            return self.put(key[0], new)
        if new == old:
            return old
        if new.get("spec") != old.get("spec"):
            metadata["generation"] = old["metadata"].get("generation", 1) + 1
        self._touch(new)
        self.objects[key] = new
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            del self.objects[key]
        return new

    def _touch(self, body: dict[str, Any]) -> None:
        body["metadata"]["resourceVersion"] = str(next(self._numbers))

    def _list(self, plural: str, namespace: str, selector: str) -> list[dict[str, Any]]:
        wanted = dict(pair.split("=", 1) for pair in selector.split(",") if pair)
        return [
            body
            for (kind, place, _), body in sorted(self.objects.items())
            if kind == plural
            and place == namespace
            and wanted.items() <= (body["metadata"].get("labels") or {}).items()
        ]


class FakeApi(Api):
    """The operator's own calls, answered from memory."""

    def __init__(
        self, server: FakeKubernetes, on_call: Callable[[Call], None] = lambda call: None
    ) -> None:
        super().__init__(cast("Any", None), on_call=on_call)
        self._server = server

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> dict[str, Any]:
        return self._server.handle(method, path, query, body, content)


class FakeReporter(Reporter):
    """``answers``: what the pod at an address says; who isn't there doesn't answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, dict[str, Any]] = {}

    async def _fetch(self, address: str, port: int) -> dict[str, Any]:
        if address not in self.answers:
            raise TimeoutError
        return copy.deepcopy(self.answers[address])
