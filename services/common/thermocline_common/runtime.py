"""How every service runs: arguments, logs, signals, manifest, tiers, admin port, heartbeat.

A service is started by :func:`main` and gets a :class:`Context`. A tier that is down, missing
credentials or a failing service never end the process: the status says what is wrong, and the work
is taken up again with growing pauses.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import logging
import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from thermocline_common import __version__, admin, admission_checks, clients, logs, tier_watch
from thermocline_common.access import Access
from thermocline_common.clock import monotonic
from thermocline_common.coverage import Tier
from thermocline_common.credential_watch import CredentialWatch
from thermocline_common.errors import ConfigError
from thermocline_common.health import Heartbeat, Problems
from thermocline_common.manifest import ManifestFollower
from thermocline_common.metrics import CommonMetrics
from thermocline_common.settings import parse_arguments
from thermocline_common.spec.manifest import ManifestError, Problem
from thermocline_common.spec.reads import needs_new_connections
from thermocline_common.spec.status import ServiceStatus, TierStatus
from thermocline_common.tiers import Tiers

__all__ = ["Context", "Heartbeat", "Problems", "Service", "main"]

log = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0
"""Seconds between two attempts, at most."""


class Service(Protocol):
    """What a service implements."""

    @property
    def name(self) -> str:
        """Such as ``feeder``; its own part of the status stands under it."""
        ...

    async def run(self, context: "Context") -> None:
        """Work until ``context.stop`` is set, finish the work in hand, return.

        Returning ends the process with ``context.exit_code``. An exception is shown as a problem,
        and a new instance of the service is run after a pause.
        """
        ...

    def status(self) -> Mapping[str, Any]:
        """JSON for ``/status``; called at any time, also before :meth:`run`."""
        ...

    def ready(self) -> bool:
        """Whether the service does its work; called at any time."""
        ...


@dataclass(slots=True)
class Context:
    """What a service works with.

    ``stop`` is set by SIGTERM or SIGINT. ``tiers`` stay open until :meth:`Service.run` has ended.
    ``access``: certificates and log-ins, kept up to date with the files.
    """

    manifest: ManifestFollower
    tiers: Tiers
    stop: asyncio.Event
    heartbeat: Heartbeat
    registry: CollectorRegistry
    arguments: argparse.Namespace
    problems: Problems
    access: Access
    exit_code: int = 0

    async def stopping(self, seconds: float) -> bool:
        """Wait ``seconds``, or until ``stop`` is set; whether it is set."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)
        return self.stop.is_set()


@dataclass(slots=True)
class _Process:
    """The parts of a running service's process."""

    factory: Callable[[argparse.Namespace], Service]
    name: str
    arguments: argparse.Namespace
    manifest: ManifestFollower
    problems: Problems
    heartbeat: Heartbeat
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    tier_status: dict[str, TierStatus] = field(default_factory=dict)
    started: float = field(default_factory=monotonic)
    service: Service | None = None
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    metrics: CommonMetrics | None = None
    credentials: CredentialWatch | None = None

    def ready(self) -> bool:
        return self.service is not None and not self.stop.is_set() and self.service.ready()

    def status(self) -> Mapping[str, Any]:
        metadata = self.manifest.current.metadata
        own = dict(self.service.status()) if self.service is not None else {}
        return ServiceStatus(
            service=self.name,
            version=__version__,
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            applied_generation=self.manifest.applied_generation,
            ready=self.ready(),
            stopping=self.stop.is_set(),
            uptime_seconds=round(monotonic() - self.started, 3),
            heartbeat_age_seconds=round(self.heartbeat.age, 3),
            problems=dict(self.problems.current),
            tiers=self.tier_status,
            credentials={} if self.credentials is None else dict(self.credentials.status()),
        ).document(own)

    def fresh_registry(self) -> CollectorRegistry:
        """A registry for a new instance of the service, which registers its metrics again."""
        registry = CollectorRegistry()
        self.metrics = CommonMetrics(registry, self.name, lambda: self.heartbeat.age)
        self.registry = registry
        return registry

    async def pause(self, seconds: float) -> None:
        """Wait, at most until ``stop``; the loop counts as alive meanwhile."""
        end = monotonic() + seconds
        while not self.stop.is_set() and (left := end - monotonic()) > 0:
            self.heartbeat.beat()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), min(1.0, left))
        self.heartbeat.beat()

    @property
    def _listens(self) -> bool:
        """Whether applications connect to this service."""
        return self.name == "proxy"

    async def open_tiers(self) -> tuple[Access, Tiers] | None:
        """Both tiers, as soon as the credentials are complete; None: told to stop before."""
        while not self.stop.is_set():
            try:
                manifest = self.manifest.current
                access = Access.load(manifest, self.arguments.credentials, listener=self._listens)
                tiers = clients.open_tiers(
                    manifest,
                    access,
                    f"thermocline-{self.name}",
                    # The other services open few connections, whatever happens.
                    manifest.spec.proxy.own_connections if self._listens else None,
                )
            except ConfigError as error:
                self.problems.set("credentials", str(error))
                await self.pause(1.0)
            else:
                self.problems.clear("credentials")
                return access, tiers
        return None

    async def supervise(self) -> int:
        """Run the service again and again until it ends by itself; its exit code."""
        pause = 0.5
        while not self.stop.is_set():
            began = monotonic()
            opened = await self.open_tiers()
            if opened is None:
                break
            access, tiers = opened
            registry = self.fresh_registry()
            self.credentials = CredentialWatch(
                access,
                lambda: self.manifest.current,
                self.arguments.credentials,
                self.problems,
                registry,
                listener=self._listens,
            )
            self.service = self.factory(self.arguments)
            context = Context(
                self.manifest,
                tiers,
                self.stop,
                self.heartbeat,
                registry,
                self.arguments,
                self.problems,
                access,
            )
            watches = [
                asyncio.create_task(self._watch(tiers, access)),
                asyncio.create_task(self.credentials.run()),
            ]
            try:
                await self.service.run(context)
            except Exception as error:
                log.exception("the service failed")
                self.problems.set(
                    "service",
                    f"{self.name} failed and is tried again: {type(error).__name__}: {logs.redact(str(error))}",
                )
            else:
                return context.exit_code
            finally:
                for watch in watches:
                    watch.cancel()
                for result in await asyncio.gather(*watches, return_exceptions=True):
                    if isinstance(result, Exception):
                        log.error("watching tiers or credentials failed", exc_info=result)
                await clients.close_tiers(tiers)
            if monotonic() - began > 2 * LONGEST_PAUSE:
                pause = 0.5
            await self.pause(pause * random.uniform(0.75, 1.25))  # noqa: S311 (jitter)
            pause = min(LONGEST_PAUSE, pause * 2)
        return 0

    async def _diagnose(self, access: Access, tier: Tier) -> list[Problem]:
        open_member = clients.member_opener(
            self.manifest.current, access, f"thermocline-{self.name}", log_in=False
        )
        try:
            return await admission_checks.diagnose(tier, self.manifest.current, open_member)
        except ConfigError as error:
            log.debug("no diagnosis", extra={"reason": str(error)})
            return []

    async def _watch(self, tiers: Tiers, access: Access) -> None:
        """Keep the status of both tiers, and what the manifest asks for that needs a restart, up to date."""
        used = self.manifest.current.spec
        steady = monotonic()
        while True:
            self.tier_status |= await tier_watch.look(
                tiers, self.problems, partial(self._diagnose, access)
            )
            metrics = self.metrics
            if metrics is not None:
                for tier in tier_watch.TIERS:
                    metrics.reachable(tier, yes=self.tier_status[tier.value].reachable)
                metrics.generation.set(self.manifest.applied_generation)
                metrics.problems.set(len(self.problems.current))
            now = self.manifest.current.spec
            changed = [
                field
                for field, differs in (
                    ("spec.archive", needs_new_connections(used.archive, now.archive)),
                    ("spec.fastTier", needs_new_connections(used.fast_tier, now.fast_tier)),
                    ("spec.proxy.tls", self._listens and now.proxy.tls != used.proxy.tls),
                )
                if differs
            ]
            text = f"{' and '.join(changed)} changed; restart this service to use it"
            self.problems.put("restart", text if changed else None)
            if monotonic() - steady > LONGEST_PAUSE:
                self.problems.clear("service")
            await asyncio.sleep(2.0)


async def _run(process: _Process) -> int:
    loop = asyncio.get_running_loop()
    listener = admin.bind(process.arguments.admin)
    work = asyncio.create_task(process.supervise())

    def on_signal(number: signal.Signals) -> None:
        if not process.stop.is_set():
            log.info("stopping: work in hand is finished", extra={"signal": number.name})
            process.stop.set()
        elif number is signal.SIGINT:
            # Supervisors repeat SIGTERM out of habit; a second Ctrl-C is a person who means it.
            log.warning("interrupted again: work in hand is given up")
            work.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    app = admin.application(
        process.heartbeat, process.ready, process.status, lambda: process.registry
    )
    helpers = [
        asyncio.create_task(admin.serve(app, listener)),
        asyncio.create_task(process.manifest.follow()),
    ]
    try:
        done, _ = await asyncio.wait([work, *helpers], return_when=asyncio.FIRST_COMPLETED)
        if work not in done:
            log.error("a part of the process ended by itself")
            process.stop.set()
        return await work
    except asyncio.CancelledError:
        return 130
    finally:
        for helper in helpers:
            helper.cancel()
        for result in await asyncio.gather(*helpers, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("a part of the process failed", exc_info=result)


def main(
    service: Callable[[argparse.Namespace], Service],
    name: str,
    argv: list[str] | None = None,
    extra: Callable[[argparse.ArgumentParser], None] | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """Run service ``name`` until it ends; the exit code of the process.

    0: ended as asked. 2: arguments or manifest unusable, with every problem on standard error.
    130: a second Ctrl-C (SIGINT) gave up the work in hand. Others are the service's own.
    ``extra`` adds arguments. ``service`` makes an instance, again after each failure.
    """
    arguments = parse_arguments(name, argv, extra)
    logs.configure(arguments.log_level)
    faulthandler.enable()  # a crash of a library in C leaves a trace
    problems = Problems()

    async def start() -> int:
        manifest = ManifestFollower(
            arguments.manifest, report=lambda text: problems.put("manifest", text)
        )
        return await _run(
            _Process(service, name, arguments, manifest, problems, Heartbeat(monotonic))
        )

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(start())
    except ManifestError as error:
        for problem in error.problems:
            log.critical("manifest: %s", problem)
        return 2
    except ConfigError as error:
        log.critical("%s", error)
        return 2
