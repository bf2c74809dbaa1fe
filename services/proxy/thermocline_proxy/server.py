"""The proxy as a service: opens its parts, listens, drains when it is told to stop."""

import argparse
import asyncio
import itertools
import random
import socket
import ssl
import uuid
from collections.abc import Mapping
from typing import Any

from bson.timestamp import Timestamp
from pymongo.uri_parser import parse_uri

from thermocline_common.barrier import checkpoint_reached
from thermocline_common.clients import read_credentials
from thermocline_common.clock import monotonic
from thermocline_common.coverage import Tier
from thermocline_common.errors import ConfigError
from thermocline_common.oplog import OplogMeter
from thermocline_common.runtime import Context
from thermocline_common.spec.models import TierSpec
from thermocline_proxy.back_pressure import BackPressure
from thermocline_proxy.barrier import SharedBarrier
from thermocline_proxy.client_protocol import ClientProtocol
from thermocline_proxy.cursors import Cursors
from thermocline_proxy.dispatch import Dispatcher
from thermocline_proxy.drain import Drain
from thermocline_proxy.exchange import TierExchange, Upstreams
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.leaving import Phase
from thermocline_proxy.leftovers import Leftovers
from thermocline_proxy.logins import Logins
from thermocline_proxy.members import Members
from thermocline_proxy.observe import Observer
from thermocline_proxy.owners import Owners
from thermocline_proxy.pools import Pools
from thermocline_proxy.ports import Gateway
from thermocline_proxy.settings import Settings, settings_of
from thermocline_proxy.state import LeaseKeeper
from thermocline_proxy.times import TierClock
from thermocline_proxy.upstream import Endpoint
from thermocline_proxy.verify.checker import Checker
from thermocline_proxy.verify.verifier import Verifier

_TURN_SECONDS = 0.5
_BACKLOG = 1_024


def tls_context(tier: Tier, spec: TierSpec, arguments: argparse.Namespace) -> ssl.SSLContext | None:
    """The context for connections to a tier; None where its URI doesn't switch TLS on.

    Raises :class:`ConfigError` where a file can't be used.
    """
    options = parse_uri(spec.uri)["options"]
    if not options.get("tls"):
        return None
    credentials = read_credentials(tier, spec, arguments.credentials)
    try:
        context = ssl.create_default_context(
            cafile=str(credentials.ca_file) if credentials.ca_file else options.get("tlsCAFile")
        )
        if options.get("tlsAllowInvalidHostnames") or options.get("tlsInsecure"):
            context.check_hostname = False
        if options.get("tlsAllowInvalidCertificates") or options.get("tlsInsecure"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if credentials.certificate is not None:
            context.load_cert_chain(credentials.certificate, credentials.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"certificates of the {tier.value} tier can't be used: {error}"
        ) from error
    return context


def listener_context(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    """TLS for the proxy's own port, where its credentials hold a certificate. Raises :class:`ConfigError`."""
    if arguments.credentials is None:
        return None
    certificate, key = (arguments.credentials / "proxy" / name for name in ("tls.crt", "tls.key"))
    if not certificate.exists():
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the proxy's certificate can't be used: {error}") from error
    return context


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
                    tls_context(tier, tier_spec, self._arguments),
                    latency=observer.latency[tier],
                )
                for tier, tier_spec in ((Tier.FAST, spec.fast_tier), (Tier.ARCHIVE, spec.archive))
            }
        )
        upstreams = Upstreams(members, pools, clocks)
        cursors = Cursors()
        exchange = TierExchange(
            upstreams, cursors, lambda tier, seconds: observer.latency[tier].add(seconds)
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
        loop = asyncio.get_running_loop()
        address = self._arguments.listen
        try:
            server = await loop.create_server(
                lambda: ClientProtocol(proxy, dispatcher, self._connections, next(self._numbers)),
                address.host,
                address.port,
                ssl=listener_context(self._arguments),
                backlog=_BACKLOG,
                reuse_address=True,
            )
        except OSError as error:
            raise ConfigError(
                f"{address.host}:{address.port} can't be listened on: {error}"
            ) from error
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
                context.problems.put("barrier", barrier.problem)
                verifier.share = settings().verify
                verifier.report(context.problems)
                for task in background:
                    if task.done():
                        await task  # ended by itself: with an exception
                reachable = {tier: one.reachable for tier, one in members.items()}
                pools.cut_lost(reachable, monotonic())
                await context.stopping(_TURN_SECONDS)
            await Drain(proxy, self._connections, server.close, context.heartbeat.beat).run()
        finally:
            self._listening = False
            server.close()
            for connection in list(self._connections):
                connection.abort()
            await asyncio.sleep(0)  # their ends are noted
            await leftovers.close()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await barrier.close()
            pools.close()


def _upstream_counts(pools: Pools) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for (tier, member, _), pool in pools.pools.items():
        key = (tier.value, member)
        counts[key] = counts.get(key, 0) + len(pool.open)
    return counts
