"""The operator's process: lease, watches, queue, admin port, and how they end."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import CollectorRegistry

from thermocline_common import __version__, admin
from thermocline_common.clock import monotonic
from thermocline_common.health import Heartbeat, Problems
from thermocline_operator.announcing import Announcer
from thermocline_operator.api import Api, ApiError, open_client
from thermocline_operator.lease import LeaderLease, LeaseLost
from thermocline_operator.metrics import Metrics
from thermocline_operator.options import Options
from thermocline_operator.plan import served
from thermocline_operator.plan.settings import PodSettings
from thermocline_operator.reconcile import Reconciler
from thermocline_operator.reports import Reporter
from thermocline_operator.watches import Watches
from thermocline_operator.workqueue import Key, WorkQueue

log = logging.getLogger(__name__)

LOST_LEASE: Final = 3
FAILED: Final = 1
STUCK_SECONDS: Final = 120.0
"""A turn that takes longer counts as stuck: every call in it has a time limit."""
WATCH_PAUSE: Final = 5.0
SCHEMA_PAUSE: Final = 10.0


@dataclass(slots=True)
class Process:
    """One run of the operator."""

    options: Options
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    heartbeat: Heartbeat = field(default_factory=lambda: Heartbeat(monotonic))
    problems: Problems = field(default_factory=Problems)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    role: str = "starting"
    started: float = field(default_factory=monotonic)
    queue: WorkQueue | None = None

    def status(self) -> Mapping[str, Any]:
        """For ``/status``."""
        return {
            "service": "operator",
            "version": __version__,
            "role": self.role,
            "ready": self.ready(),
            "uptimeSeconds": round(monotonic() - self.started, 3),
            "heartbeatAgeSeconds": round(self.heartbeat.age, 3),
            "problems": dict(self.problems.current),
            "resources": [] if self.queue is None else ["/".join(k) for k in self.queue.keys],
            "failing": []
            if self.queue is None
            else ["/".join(k) for k in self.queue.keys if self.queue.failures(k)],
        }

    def ready(self) -> bool:
        """Works, or stands by for the holder of the lease."""
        return self.role in ("working", "standby") and not self.stop.is_set()

    async def run(self) -> int:
        """Until told to stop, or the lease is lost; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
        listener = admin.bind(self.options.admin)
        app = admin.application(self.heartbeat, self.ready, self.status, lambda: self.registry)
        metrics = Metrics(self.registry)
        api = Api(await open_client(), on_call=metrics.called)
        helpers = [
            asyncio.create_task(admin.serve(app, listener)),
            asyncio.create_task(self._beat()),
        ]
        work = asyncio.create_task(self._work(api, metrics))
        stop = asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait({work, stop, *helpers}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.stop.set()
                work.cancel()
            (result,) = await asyncio.gather(work, return_exceptions=True)
            if isinstance(result, LeaseLost):
                log.error("%s; this process ends", result)
                return LOST_LEASE
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                log.error("the operator failed", exc_info=result)
                return FAILED
            return 0 if self.stop.is_set() else FAILED
        finally:
            for task in (stop, *helpers):
                task.cancel()
            await asyncio.gather(stop, *helpers, return_exceptions=True)
            await api.close()

    async def _beat(self) -> None:
        """The heart beats while the loop turns and no turn is stuck."""
        while True:
            if self.queue is None or self.queue.longest_turn < STUCK_SECONDS:
                self.heartbeat.beat()
            await asyncio.sleep(1)

    async def _work(self, api: Api, metrics: Metrics) -> None:
        identity = f"{os.environ.get('HOSTNAME') or socket.gethostname()}_{uuid.uuid4().hex[:12]}"
        await self._wait_for_schema(api)
        lease = LeaderLease(api, self.options.lease_namespace, self.options.lease_name, identity)
        self.role = "standby"
        await lease.acquire()
        keeping = asyncio.create_task(lease.keep())
        working = asyncio.create_task(self._reconcile(api, metrics, identity))
        try:
            done, _ = await asyncio.wait({keeping, working}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.role = "ending"
            for task in (working, keeping):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await asyncio.shield(lease.release())

    async def _wait_for_schema(self, api: Api) -> None:
        """Until the CustomResourceDefinition is there, and knows every field that we do."""
        while True:
            text = await _schema_problem(api)
            self.problems.put("crd", text)
            if text is None:
                return
            await asyncio.sleep(SCHEMA_PAUSE)

    async def _reconcile(self, api: Api, metrics: Metrics, identity: str) -> None:
        options = self.options
        settings = PodSettings(
            image=options.service_image,
            pull_policy=options.image_pull_policy,
            pull_secrets=options.image_pull_secrets,
            network_policies=options.network_policies,
            egress_cidrs=options.egress_cidrs,
        )
        reporter = Reporter()
        reconciler = Reconciler(api, settings, reporter, Announcer(api, identity))
        queue = self.queue = WorkQueue(metrics.timed(reconciler.turn))
        metrics.queue = queue

        def hear(key: Key, kind: str, name: str, version: str) -> None:
            if not reconciler.knows(key, kind, name, version):
                queue.add(key)

        watches = Watches(hear, options.watch_namespaces, network_policies=options.network_policies)
        self.role = "working"
        try:
            while True:
                watches.start()
                await watches.ended.wait()
                # What is remembered must outlive them: it may be the last copy of credentials.
                log.error("the watches ended by themselves; they are begun anew")
                await asyncio.sleep(WATCH_PAUSE)
                watches = Watches(
                    hear, options.watch_namespaces, network_policies=options.network_policies
                )
        finally:
            await watches.close()
            await queue.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(20):
                    await reconciler.close()
            await reporter.close()


async def _schema_problem(api: Api) -> str | None:
    """Why the operator can't work with what the API server serves; None: it can."""
    try:
        document = await api.read(served.PATH)
    except ApiError as error:
        if error.status == 404:
            return "the CustomResourceDefinition of TieredReplicaSet isn't there; install it"
        return f"the API server can't be asked for the resource's schema: {error}"
    schema = served.served_schema(document)
    if schema is None:
        return "the CustomResourceDefinition of TieredReplicaSet isn't there; install it"
    missing = served.missing_fields(schema)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        return (
            "the CustomResourceDefinition is older than this operator, it lacks "
            f"{', '.join(missing[:5])}{more}; apply the newer one"
        )
    return None
