"""Calls of the API server: plain values in, plain values out, every call with a time limit."""

import asyncio
import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from thermocline_common import names
from thermocline_operator.plan.labels import MANAGER
from thermocline_operator.plan.objects import KINDS, Kind

log = logging.getLogger(__name__)

TIMEOUT: Final = 10.0
"""Seconds that one call may take."""

ATTEMPTS: Final = 4
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 2.0
"""Between attempts of one call; longer waits are for the queue, where they hold nobody up."""

PODS: Final = Kind("Pod", "v1", "pods")
NAMESPACES: Final = Kind("Namespace", "v1", "namespaces")
EVENTS: Final = Kind("Event", "v1", "events")
LEASES: Final = Kind("Lease", "coordination.k8s.io/v1", "leases")
RESOURCES: Final = Kind(names.KIND, names.API_VERSION, "tieredreplicasets")


class ApiError(Exception):
    """The API server refused a call, or didn't answer (``status`` 0: whether it was carried out is open).

    ``retry_after``: seconds that it asks to wait, or None.
    """

    def __init__(
        self, status: int, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Call:
    """One call, in the words of a Role. ``resource`` has its subresource behind a slash."""

    verb: str
    group: str
    resource: str
    namespace: str


async def open_client() -> ApiClient:
    """A client with the pod's service account, or outside a cluster with ``KUBECONFIG``."""
    configuration = Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=configuration)
    configuration.retries = None  # every caller knows best what to do about an error
    return ApiClient(configuration)


class Api:
    """``on_call`` hears of every call before it is made."""

    def __init__(
        self,
        client: ApiClient,
        *,
        timeout: float = TIMEOUT,
        on_call: Callable[[Call], None] = lambda call: None,
    ) -> None:
        self._client = client
        self._timeout = timeout
        self._on_call = on_call

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any] | None:
        """One object; None: there is none."""
        try:
            return await self._call("get", kind, namespace, name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list_labelled(
        self, kind: Kind, namespace: str, selector: str = ""
    ) -> list[dict[str, Any]]:
        """The objects of a kind, each with its ``kind`` and ``apiVersion``."""
        query = {"labelSelector": selector} if selector else {}
        found = await self._call("list", kind, namespace, query=query)
        head = {"apiVersion": kind.group_version, "kind": kind.name}
        return [{**head, **item} for item in found.get("items") or []]

    async def apply(self, kind: Kind, body: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply: what ``body`` names is ours from now on, the rest stays as it is."""
        metadata = body["metadata"]
        return await self._call(
            "patch",
            kind,
            metadata["namespace"],
            metadata["name"],
            body=body,
            content="application/apply-patch+yaml",
            query={"fieldManager": MANAGER, "force": "true"},
        )

    async def merge(
        self, kind: Kind, namespace: str, name: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A merge patch."""
        return await self._call(
            "patch",
            kind,
            namespace,
            name,
            body=body,
            content="application/merge-patch+json",
            query={"fieldManager": MANAGER},
        )

    async def create(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A new object; 409 where there is one."""
        return await self._call("create", kind, namespace, body=body)

    async def replace(
        self, kind: Kind, namespace: str, name: str, body: Mapping[str, Any], part: str = ""
    ) -> dict[str, Any]:
        """Replace an object, or its subresource ``part``; 409 where it has changed since it was read."""
        return await self._call("update", kind, namespace, name, part=part, body=body)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete that very object; it may be gone already."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._call("delete", kind, namespace, name, body=body)
        except ApiError as error:
            if error.status != 404:
                raise

    async def read(self, path: str) -> dict[str, Any]:
        """What every account may read: discovery and served schemas."""
        return await self._request("GET", path)

    async def _call(
        self,
        verb: str,
        kind: Kind,
        namespace: str | None,
        name: str = "",
        *,
        part: str = "",
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> dict[str, Any]:
        resource = f"{kind.plural}/{part}" if part else kind.plural
        group = kind.group_version.rpartition("/")[0]
        self._on_call(Call(verb, group, resource, namespace or name))
        place = f"/namespaces/{namespace}" if namespace else ""
        path = "/".join(filter(None, (f"{kind.prefix}{place}/{kind.plural}", name, part)))
        return await self._request(_METHODS[verb], path, query, body, content)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> dict[str, Any]:
        """One call, again where that is safe: a turn makes many, and would hardly ever get through else."""
        for attempt in range(ATTEMPTS):
            try:
                return await self._once(method, path, query, body, content)
            except ApiError as error:
                if attempt == ATTEMPTS - 1 or not _may_repeat(method, error):
                    raise
                asked = 0.0 if error.retry_after is None else error.retry_after
                wait = max(FIRST_PAUSE * 2**attempt, min(asked, LONGEST_PAUSE))
                await asyncio.sleep(wait * random.uniform(0.75, 1.25))  # noqa: S311 (jitter)
        raise AssertionError("the last attempt returns or raises")

    async def _once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content: str,
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._timeout):
                parameters = await self._client.param_serialize(
                    method,
                    path,
                    query_params=list((query or {}).items()),
                    header_params={"Accept": "application/json", "Content-Type": content},
                    body=body,
                    auth_settings=["BearerToken"],
                )
                response = await self._client.call_api(
                    *parameters, _request_timeout=aiohttp.ClientTimeout(total=self._timeout)
                )
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text = str(error) or type(error).__name__
            raise ApiError(0, "NoAnswer", f"{method} {path}: {text}") from error
        return _answer(response.status, raw, response.getheaders(), f"{method} {path}")


_METHODS: Final = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}


def _may_repeat(method: str, error: ApiError) -> bool:
    """429: it wasn't carried out. A read changes nothing, whatever became of it."""
    return error.status == 429 or (method == "GET" and error.status in (500, 502, 503, 504))


def _answer(
    status: int, raw: bytes | None, headers: Mapping[str, str] | None, what: str
) -> dict[str, Any]:
    try:
        body = json.loads(raw or b"{}")
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    if 200 <= status < 300:
        return body
    wait = (headers or {}).get("Retry-After")
    seconds = float(wait) if wait and wait.isdigit() else None
    reason = str(body.get("reason") or "Error")
    raise ApiError(status, reason, f"{what}: {body.get('message') or 'no text'}", seconds)


def kind_of(body: Mapping[str, Any]) -> Kind:
    """The kind of an owned object."""
    return KINDS[str(body["kind"])]
