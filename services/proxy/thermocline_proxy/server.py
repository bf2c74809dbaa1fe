"""The proxy as a service: opens its parts, listens, drains when it is told to stop."""

import argparse
import asyncio
import itertools
import random
import socket
import uuid
from collections.abc import Mapping
from typing import Any

from bson.timestamp import Timestamp

from thermocline_common.barrier import checkpoint_reached
from thermocline_common.clock import monotonic
from thermocline_common.coverage import Tier
from thermocline_common.health import Problems
from thermocline_common.names import ZONE_VARIABLE
from thermocline_common.oplog import OplogMeter
from thermocline_common.runtime import Context
from thermocline_common.spec.models import TierSpec
from thermocline_common.uri.check import check
from thermocline_common.uri.options import Place
from thermocline_proxy.back_pressure import BackPressure
from thermocline_proxy.barrier import SharedBarrier
from thermocline_proxy.choosing import Zone
from thermocline_proxy.client_protocol import ClientProtocol
from thermocline_proxy.cursors import Cursors
from thermocline_proxy.dispatch import Dispatcher
from thermocline_proxy.drain import Drain
from thermocline_proxy.exchange import TierExchange, Upstreams
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.leaving import Phase
from thermocline_proxy.leftovers import Leftovers
from thermocline_proxy.listener import Listener
from thermocline_proxy.logins import Logins
from thermocline_proxy.members import Members
from thermocline_proxy.observe import Observer
from thermocline_proxy.owners import Owners
from thermocline_proxy.pools import Pools
from thermocline_proxy.ports import Gateway
from thermocline_proxy.settings import Settings, settings_of
from thermocline_proxy.state import LeaseKeeper
from thermocline_proxy.times import TierClock
from thermocline_proxy.upstream import CONNECT_SECONDS, Endpoint
from thermocline_proxy.verify.checker import Checker
from thermocline_proxy.verify.verifier import Verifier

_TURN_SECONDS = 0.5


def _connect_seconds(spec: TierSpec) -> float:
    """How long connecting to a member may take: as the tier's URI says."""
    milliseconds = check(spec.uri, Place.MANIFEST).options.get("connectTimeoutMS")
    return CONNECT_SECONDS if milliseconds is None else int(milliseconds) / 1_000


class ProxyService:
    """:class:`~thermocline_common.runtime.Service` of the proxy."""

    name = "proxy"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._proxy: Proxy | None = None
        self._connections: set[ClientProtocol] = set()
        self._numbers = itertools.count(1)
        self._listening = False
        self._verifier: Verifier | None = None

    def status(self) -> Mapping[str, Any]:
        """Connections, routes, latencies, the lease, and the members that the proxy works with."""
        proxy = self._proxy
        if proxy is None:
            return {}
        snapshot = proxy.leases.snapshot
        now = monotonic()
        return {
            **proxy.observer.status(),
            "leaseAlive": now < snapshot.expires,
            "untieredLeaseAlive": now < snapshot.untiered_expires,
            "listed": len(snapshot.listed),
            "cursors": len(proxy.cursors),
            "verify": None if self._verifier is None else self._verifier.status(),
            "members": {
                tier.value: {"primary": members.primary, "known": members.addresses}
                for tier, members in proxy.upstreams.members.items()
            },
        }

    def ready(self) -> bool:
        """Listens, and both tiers were seen once (an outage later doesn't take the endpoint away)."""
        proxy = self._proxy
        return self._listening and proxy is not None and proxy.leaving.phase is Phase.SERVING

    async def run(self, context: Context) -> None:
        """Serve until ``context.stop``, then drain."""
        spec = context.manifest.current.spec
        observer = Observer(context.registry)
        clocks = {tier: TierClock() for tier in Tier}
        members = {
            Tier.FAST: Members(Tier.FAST, context.tiers.fast),
            Tier.ARCHIVE: Members(Tier.ARCHIVE, context.tiers.archive),
        }
        limit = spec.proxy.client_connections
        pools = Pools(
            {
                tier: Endpoint(
                    tier,
                    clocks[tier],
                    limit,
                    context.access.tiers[tier].context,
                    _connect_seconds(tier_spec),
                    latency=observer.latency[tier],
                )
                for tier, tier_spec in ((Tier.FAST, spec.fast_tier), (Tier.ARCHIVE, spec.archive))
            }
        )
        upstreams = Upstreams(members, pools, clocks)
        cursors = Cursors()
        exchange = TierExchange(
            upstreams,
            cursors,
            lambda tier, seconds: observer.latency[tier].add(seconds),
            lambda tier, choice, seconds: observer.read(tier, choice).add(seconds),
        )

        cached: list[tuple[Any, Settings]] = []

        def settings() -> Settings:
            manifest = context.manifest.current
            if not cached or cached[0][0] is not manifest:
                cached[:] = [(manifest, settings_of(manifest))]
            return cached[0][1]

        owners = Owners(cursors)
        leases = LeaseKeeper(context.tiers, clocks, settings, context.problems, monotonic)
        observer.lease_age = lambda: leases.age
        observer.active = lambda: sum(
            connection.resting is None for connection in self._connections
        )
        observer.upstream = lambda: _upstream_counts(pools)
        proxy_id = uuid.uuid4()
        barrier = SharedBarrier(context.tiers, proxy_id, monotonic, settings().barrier_timeout)
        gateway = Gateway(
            exchange=exchange,
            leases=leases,
            barrier=barrier,
            tiers=context.tiers,
            clock=monotonic,
            proxy_id=proxy_id,
            count=observer.count,
            answered=observer.answered,
            preference=lambda tier: settings().preference(tier),
        )
        verifier = Verifier(
            Checker(gateway),
            context.tiers,
            lambda: leases.snapshot,
            random.Random().random,  # noqa: S311  # which answers are checked is no secret
            context.registry,
        )
        verifier.share = settings().verify
        gateway.sampler = self._verifier = verifier
        meter = OplogMeter(context.tiers.fast)

        async def checkpoint() -> Timestamp | None:
            return (await checkpoint_reached(context.tiers)).time

        pressure = BackPressure(
            look=meter.look,
            window=meter.window,
            checkpoint=checkpoint,
            wanted=lambda: leases.anything_tiered,
            problems=context.problems,
            clock=monotonic,
        )
        observer.pressure = pressure.status
        proxy = Proxy(
            upstreams=upstreams,
            exchange=exchange,
            cursors=cursors,
            leases=leases,
            logins=Logins(context.tiers, upstreams),
            observer=observer,
            gateway=gateway,
            settings=settings,
            proxy_id=proxy_id,
            pressure=pressure,
            owners=owners,
            address=f"{socket.gethostname()}:{self._arguments.listen.port}",
        )
        self._proxy = proxy
        dispatcher = Dispatcher(proxy)
        leftovers = Leftovers(proxy)
        listener = Listener(
            self._arguments.listen,
            lambda: ClientProtocol(proxy, dispatcher, self._connections, next(self._numbers)),
            context.access.listener,
            proxy.complaints,
            shared=self._arguments.share_port,
        )
        await listener.open()
        background = [
            asyncio.create_task(leases.run()),
            asyncio.create_task(pools.reap()),
            asyncio.create_task(pressure.run()),
            asyncio.create_task(verifier.run()),
            asyncio.create_task(leftovers.run()),
            *(asyncio.create_task(one.start()) for one in members.values()),
        ]
        self._listening = True
        try:
            while not context.stop.is_set():
                context.heartbeat.beat()
                barrier.timeout = settings().barrier_timeout
                self._prefer_own_zone(members, settings(), context.problems)
                context.problems.put("topology", _unmatched(members, settings()))
                context.problems.put("barrier", barrier.problem)
                verifier.share = settings().verify
                verifier.report(context.problems)
                for task in background:
                    if task.done():
                        await task  # ended by itself: with an exception
                reachable = {tier: one.reachable for tier, one in members.items()}
                pools.cut_lost(reachable, monotonic())
                await context.stopping(_TURN_SECONDS)
            await Drain(proxy, self._connections, listener.close, context.heartbeat.beat).run()
        finally:
            self._listening = False
            listener.close()
            for connection in list(self._connections):
                connection.abort()
            await asyncio.sleep(0)  # their ends are noted
            await leftovers.close()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await barrier.close()
            pools.close()

    def _prefer_own_zone(
        self, members: Mapping[Tier, Members], settings: Settings, problems: Problems
    ) -> None:
        """As ``spec.proxy.locality`` says now."""
        tag, zone = settings.zone_tag, self._arguments.zone
        for one in members.values():
            one.zone = Zone(tag, zone) if tag and zone else None
        problems.put("locality", _NO_ZONE if tag and not zone else None)


_NO_ZONE = (
    "spec.proxy.locality has no effect: this proxy doesn't know its zone; give it with --zone or in "
    f"{ZONE_VARIABLE}"
)


def _unmatched(members: Mapping[Tier, Members], settings: Settings) -> str | None:
    """Tag sets of the resource that no member of their tier matches (``TopologySatisfiable``)."""
    fields = {Tier.ARCHIVE: "spec.archive", Tier.FAST: "spec.fastTier"}
    found = [
        f"{fields[tier]}.readPreferenceTags: {reason}"
        for tier, one in members.items()
        if (reason := one.unmatched(settings.tag_sets.get(tier, ()))) is not None
    ]
    return "; ".join(found) or None


def _upstream_counts(pools: Pools) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for (tier, member, _), pool in pools.pools.items():
        key = (tier.value, member)
        counts[key] = counts.get(key, 0) + len(pool.open)
    return counts
