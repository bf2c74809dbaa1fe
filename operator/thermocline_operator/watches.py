"""What happens in the cluster -> keys for the queue. kopf's watches alone, in a thread of their own.

kopf's handlers of creation, change and deletion aren't used: they write annotations, patch where
nothing has changed, and can skip a cleanup. ``on.event`` leaves nothing in objects. The thread is there
because kopf ends every task that was started after its own.
"""

import asyncio
import concurrent.futures
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import kopf

from thermocline_common import names
from thermocline_operator.plan.labels import RESOURCE_LABEL
from thermocline_operator.workqueue import Key

log = logging.getLogger(__name__)

OWNED = (
    ("", "v1", "configmaps"),
    ("", "v1", "services"),
    ("", "v1", "pods"),
    ("apps", "v1", "deployments"),
    ("policy", "v1", "poddisruptionbudgets"),
)
NETWORK_POLICIES = ("networking.k8s.io", "v1", "networkpolicies")

Hear = Callable[[Key, str, str, str], None]
"""Key of the resource; kind, name and version of the object that has changed."""


def key_of_resource(body: Any) -> Key:
    """The key of a resource."""
    return str(body["metadata"]["namespace"]), str(body["metadata"]["name"])


def key_of_owned(body: Any) -> Key | None:
    """The key of the resource that an object belongs to, by its label."""
    metadata = body["metadata"]
    name = (metadata.get("labels") or {}).get(RESOURCE_LABEL)
    return None if not name else (str(metadata["namespace"]), str(name))


def _which(body: Any) -> tuple[str, str, str]:
    metadata = body["metadata"]
    version = "" if metadata.get("deletionTimestamp") else str(metadata.get("resourceVersion"))
    return str(body.get("kind")), str(metadata["name"]), version


class _Forever:
    """Pauses between attempts, in seconds, without an end.

    After its last attempt kopf gives up all watches: one namespace, whose Role has gone because it is
    being deleted, would take the others with it, and the memory of credentials for its own drain.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0), itertools.repeat(21.0))


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _Forever()
    settings.watching.connect_timeout = 10
    # A watch that fell silent without a word is opened anew; resync is the safety net below.
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    return settings


def _registry(hear: Hear, network_policies: bool) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    def on_resource(body: Any, **_: Any) -> None:
        hear(key_of_resource(body), *_which(body))

    def on_owned(body: Any, **_: Any) -> None:
        key = key_of_owned(body)
        if key is not None:
            hear(key, *_which(body))

    async def log_in(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
        in_pod = kopf.login_with_service_account(settings=settings)
        return in_pod or kopf.login_with_kubeconfig(settings=settings)

    kopf.on.login(registry=registry, retries=10, backoff=3)(log_in)
    kopf.on.event(names.GROUP, names.VERSION, "tieredreplicasets", registry=registry)(on_resource)
    for group, version, plural in _owned(network_policies):
        kopf.on.event(group, version, plural, registry=registry)(on_owned)
    return registry


def _owned(network_policies: bool) -> Sequence[tuple[str, str, str]]:
    return [*OWNED, NETWORK_POLICIES] if network_policies else OWNED


class Watches:
    """Runs the watches until closed; ``hear`` is called in the loop that made this."""

    def __init__(
        self, hear: Hear, namespaces: Sequence[str], *, network_policies: bool = False
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._hear = hear
        self._namespaces = list(namespaces)
        self._network_policies = network_policies
        self._stop: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="watches", daemon=True)

    def start(self) -> None:
        """Begin; what is there already is heard of too."""
        self._thread.start()

    async def close(self) -> None:
        """Stop; waits a few seconds at most."""
        if not self._stop.done():
            self._stop.set_result(None)
        try:
            async with asyncio.timeout(8):
                await self.ended.wait()
        except TimeoutError:
            log.warning("the watches don't end")

    def _told(self, key: Key, kind: str, name: str, version: str) -> None:
        try:
            self._loop.call_soon_threadsafe(self._hear, key, kind, name, version)
        except RuntimeError:
            log.debug("news after the end")

    def _run(self) -> None:
        settings = _settings()
        for owned in _owned(self._network_policies):
            settings.watching.label_selectors[owned] = RESOURCE_LABEL
        # kopf's own guess asks for the user's name, and a container's user may have none.
        identity: Any = "thermocline-operator"
        try:
            asyncio.run(
                kopf.operator(
                    registry=_registry(self._told, self._network_policies),
                    settings=settings,
                    standalone=True,
                    clusterwide=not self._namespaces,
                    namespaces=self._namespaces,
                    stop_flag=self._stop,
                    identity=identity,
                )
            )
        except Exception:
            log.exception("the watches failed")
        finally:
            try:
                self._loop.call_soon_threadsafe(self.ended.set)
            except RuntimeError:
                log.debug("ended after the loop")
