"""PyMongo clients of both tiers, logged in as a service's own user."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from thermocline_common import asyncio_mend, driver_sessions, driver_waits, logs
from thermocline_common.access import Access, TierAccess, TierClient
from thermocline_common.coverage import Tier
from thermocline_common.errors import ConfigError
from thermocline_common.spec.models import Manifest, TierSpec
from thermocline_common.spec.reads import read_options
from thermocline_common.tiers import Tiers
from thermocline_common.uri.check import check
from thermocline_common.uri.options import Place
from thermocline_common.uri.render import driver_options, seeds

log = logging.getLogger(__name__)

SELECTION_MS: Final = 5_000
"""How long an operation waits for a member: short enough for a work loop to beat and to say what is wrong."""
CONNECT_MS: Final = 5_000
"""Also bounds how long a monitor waits for a silent member, before its connections are given up."""

CLOSE_SECONDS: Final = 10.0

_TAKEN_OVER: Final = (
    "authSource", "authMechanism", "connectTimeoutMS", "heartbeatFrequencyMS", "serverMonitoringMode",
    "srvServiceName", "tlsInsecure", "tlsAllowInvalidCertificates", "tlsAllowInvalidHostnames",
    "tlsDisableOCSPEndpointCheck",
)  # fmt: skip
"""Options of the URI that a service's own client uses; those on reads are for the applications' reads."""


def open_client(
    tier: Tier,
    spec: TierSpec,
    access: TierAccess,
    app_name: str,
    *,
    member: str | None = None,
    most: int | None = None,
) -> AsyncMongoClient[dict[str, Any]]:
    """A client of one tier; nothing is connected yet. Raises :class:`ConfigError` for unusable files or URI.

    Reads go to the primary, writes wait for the majority, whatever the URI says: the read
    preference there is the clients'. Reads and writes are retried once by the driver: every write
    of the services is either idempotent or carries its own check, and a lease is measured from
    before its first request, so a repeated read only makes it shorter. ``member``: connect to this
    ``host:port`` alone, whatever it is. ``most``: connections to one member, at most, besides two
    that watch it.
    """
    asyncio_mend.mend()
    driver_waits.mend()
    driver_sessions.mend()
    connection = check(spec.uri, Place.MANIFEST)  # the manifest was checked: this can't fail
    options: dict[str, Any] = {
        "appname": app_name,
        "retryReads": True,
        "retryWrites": True,
        "w": "majority",
        "readPreference": "primary",
        "serverSelectionTimeoutMS": SELECTION_MS,
        "connectTimeoutMS": CONNECT_MS,
        "localThresholdMS": read_options(spec).local_threshold_ms,
        "tz_aware": True,
        "uuidRepresentation": "standard",
        **driver_options(connection, _TAKEN_OVER),
    }
    if most is not None:
        options["maxPoolSize"] = most
    if connection.tls:
        options["tls"] = True
    login = access.login
    if login is None and options.get("authMechanism") != "MONGODB-X509":
        options.pop("authMechanism", None)  # PyMongo refuses one that has nobody to log in
    if login is not None:
        options["username"], options["password"] = login.pairs[0]
    try:
        if member is None:
            return TierClient(seeds(connection), access, **options)
        options.pop("srvServiceName", None)
        options |= {"directConnection": True, "readPreference": "primaryPreferred"}
        return TierClient(f"mongodb://{member}/", access, **options)
    except (PyMongoError, OSError, ValueError) as error:
        text = logs.redact(str(error))
        raise ConfigError(f"the {tier.value} tier's connection can't be set up: {text}") from error


def member_opener(
    manifest: Manifest, access: Access, app_name: str, *, log_in: bool = True
) -> Callable[[Tier, str], AsyncMongoClient[dict[str, Any]]]:
    """A function that opens a direct connection to one member (``host:port``) of a tier.

    Without ``log_in`` it can say ``hello`` and little else. Close the client, or use it as an async
    context manager. Raises :class:`ConfigError` for an unusable URI.
    """

    def open_member(tier: Tier, address: str) -> AsyncMongoClient[dict[str, Any]]:
        spec = manifest.spec.fast_tier if tier is Tier.FAST else manifest.spec.archive
        own = access.tiers[tier]
        if not log_in:
            own = replace(own, login=None)
        return open_client(tier, spec, own, app_name, member=address)

    return open_member


def open_tiers(manifest: Manifest, access: Access, app_name: str, most: int | None = None) -> Tiers:
    """Clients of both tiers, for the service ``app_name``. Raises :class:`ConfigError`; connects nothing yet.

    A tier that is down is no error here: operations fail with PyMongo's
    ``ServerSelectionTimeoutError`` after five seconds, and work again by themselves. ``most``: as of
    :func:`open_client`.
    """
    spec = manifest.spec
    fast, archive = access.tiers[Tier.FAST], access.tiers[Tier.ARCHIVE]
    return Tiers(
        fast=open_client(Tier.FAST, spec.fast_tier, fast, app_name, most=most),
        archive=open_client(Tier.ARCHIVE, spec.archive, archive, app_name, most=most),
    )


async def close_tiers(tiers: Tiers) -> None:
    """Close both clients; one that doesn't end in time is left behind."""
    for tier, client in ((Tier.FAST, tiers.fast), (Tier.ARCHIVE, tiers.archive)):
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await client.close()
        except TimeoutError:
            log.warning("a client doesn't close", extra={"tier": tier.value})
