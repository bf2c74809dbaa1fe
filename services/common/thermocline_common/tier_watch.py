"""Whether both tiers' primaries answer, looked at now and then, for the status of every service."""

import asyncio
import datetime as dt
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from pymongo import AsyncMongoClient
from pymongo.errors import (
    ConfigurationError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from thermocline_common import logs
from thermocline_common.coverage import Tier
from thermocline_common.health import Problems
from thermocline_common.spec.status import TierStatus
from thermocline_common.tiers import Tiers

TIERS: Final = (Tier.ARCHIVE, Tier.FAST)
_NAMES: Final = {Tier.ARCHIVE: "the archive", Tier.FAST: "the fast tier"}
_SETTINGS: Final = re.compile(r":?\s*\(configured timeouts: [^)]*\)")
CLOCK_TOLERANCE: Final = dt.timedelta(minutes=1)
"""A clock that is further off is reported."""


Diagnose = Callable[[Tier], Awaitable[Sequence[object]]]
"""What the servers of a tier that can't be used say themselves (texts for people), or nothing."""


async def look(tiers: Tiers, problems: Problems, diagnose: Diagnose) -> dict[str, TierStatus]:
    """The state of both tiers, by tier; what is wrong goes to ``problems`` under the tier's name, and
    under ``clock`` what this host's clock differs by.

    Takes as long as selecting a server may take, twice where one can't be used.
    """
    found = await asyncio.gather(
        _look(Tier.ARCHIVE, tiers.archive, diagnose), _look(Tier.FAST, tiers.fast, diagnose)
    )
    problems.put(
        "clock", describe_clocks({t: ahead for t, (_, ahead) in zip(TIERS, found, strict=True)})
    )
    for tier, (status, _) in zip(TIERS, found, strict=True):
        problems.put(
            tier.value,
            None if status.reachable else f"{_NAMES[tier]} can't be used: {status.error}",
        )
    return {tier.value: status for tier, (status, _) in zip(TIERS, found, strict=True)}


async def _look(
    tier: Tier, client: AsyncMongoClient[dict[str, Any]], diagnose: Diagnose
) -> tuple[TierStatus, dt.timedelta | None]:
    """And how far this host's clock is ahead of the primary's; None: nobody said."""
    try:
        hello = await client.admin.command("hello", maxTimeMS=5_000)
        build = await client.admin.command("buildInfo", maxTimeMS=5_000)
    except ServerSelectionTimeoutError as error:
        # A standalone server, a mongos or another set: the driver drops it and says only that it found nothing.
        told = "; ".join(map(str, await diagnose(tier)))
        tls = client.options.pool_options._ssl_context is not None  # noqa: SLF001  # no public way
        return TierStatus(reachable=False, error=told or hinted(_reason(error), tls=tls)), None
    except PyMongoError as error:
        return TierStatus(reachable=False, error=_reason(error)), None
    status = TierStatus(
        reachable=True,
        primary=hello.get("primary") or hello.get("me"),
        set_name=hello.get("setName"),
        version=build.get("version"),
    )
    return status, _ahead(hello.get("localTime"))


def _ahead(server: object) -> dt.timedelta | None:
    if not isinstance(server, dt.datetime):
        return None
    aware = server if server.tzinfo is not None else server.replace(tzinfo=dt.UTC)
    return dt.datetime.now(dt.UTC) - aware


def describe_clocks(ahead: Mapping[Tier, dt.timedelta | None]) -> str | None:
    """What is said of this host's clock, which is so far ahead of each tier's; None: nothing. Pure."""
    found = [
        f"{_span(abs(by))} {'ahead of' if by > dt.timedelta() else 'behind'} {_NAMES[tier]}'s"
        for tier, by in ahead.items()
        if by is not None and abs(by) >= CLOCK_TOLERANCE
    ]
    if not found:
        return None
    return (
        f"this host's clock is {' and '.join(found)}: correct it. Answers and writes stay right; which "
        "documents are warmed and evicted follows the clock"
    )


def _span(by: dt.timedelta) -> str:
    """In steps that don't change with every look."""
    minutes = round(by / dt.timedelta(minutes=1))
    return f"{minutes} minutes" if minutes < 120 else f"{round(minutes / 60)} hours"


def _reason(error: PyMongoError) -> str:
    if isinstance(error, OperationFailure) and error.code == 18:
        return "the log-in was refused; check username and password"
    if isinstance(error, ConfigurationError):
        return logs.redact(str(error))
    # PyMongo adds its whole topology description, which changes with every attempt.
    text = str(error).split(", Timeout:")[0].split(", full error:")[0]
    return logs.redact(_SETTINGS.sub("", text))


def hinted(text: str, *, tls: bool) -> str:
    """What a driver says of a tier that can't be used, with what is behind it where only one side has
    ``tls``, or the server turns the client's certificate down. Pure."""
    closed = any(sign in text for sign in ("connection closed", "already closed", "reset by peer"))
    if not tls and closed:
        return f"{text}: if it wants TLS, add tls=true to the URI"
    if tls and closed:
        return f"{text}: it may not take this service's certificate, or want one (certificateSecretRef)"
    if tls and "SSL handshake failed" in text and "CERTIFICATE" not in text:
        return f"{text}: if it doesn't speak TLS, take tls=true out of the URI"
    if tls and "certificate verify failed" in text:
        return f"{text}: it isn't signed by the authorities in ca.crt, or is for another host (caSecretRef)"
    return text
