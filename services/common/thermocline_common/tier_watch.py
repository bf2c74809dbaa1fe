"""Whether both tiers' primaries answer, looked at now and then, for the status of every service."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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


Diagnose = Callable[[Tier], Awaitable[Sequence[object]]]
"""What the servers of a tier that can't be used say themselves (texts for people), or nothing."""


async def look(tiers: Tiers, problems: Problems, diagnose: Diagnose) -> dict[str, TierStatus]:
    """The state of both tiers, by tier; what is wrong goes to ``problems`` under the tier's name.

    Takes as long as selecting a server may take, twice where one can't be used.
    """
    found = await asyncio.gather(
        _look(Tier.ARCHIVE, tiers.archive, diagnose), _look(Tier.FAST, tiers.fast, diagnose)
    )
    for tier, status in zip(TIERS, found, strict=True):
        problems.put(
            tier.value,
            None if status.reachable else f"{_NAMES[tier]} can't be used: {status.error}",
        )
    return {tier.value: status for tier, status in zip(TIERS, found, strict=True)}


async def _look(
    tier: Tier, client: AsyncMongoClient[dict[str, Any]], diagnose: Diagnose
) -> TierStatus:
    try:
        hello = await client.admin.command("hello", maxTimeMS=5_000)
        build = await client.admin.command("buildInfo", maxTimeMS=5_000)
    except ServerSelectionTimeoutError as error:
        # A standalone server, a mongos or another set: the driver drops it and says only that it found nothing.
        told = "; ".join(map(str, await diagnose(tier)))
        return TierStatus(reachable=False, error=told or _reason(error))
    except PyMongoError as error:
        return TierStatus(reachable=False, error=_reason(error))
    return TierStatus(
        reachable=True,
        primary=hello.get("primary") or hello.get("me"),
        set_name=hello.get("setName"),
        version=build.get("version"),
    )


def _reason(error: PyMongoError) -> str:
    if isinstance(error, OperationFailure) and error.code == 18:
        return "the log-in was refused; check username and password"
    if isinstance(error, ConfigurationError):
        return logs.redact(str(error))
    # PyMongo adds its whole topology description, which changes with every attempt.
    return logs.redact(str(error).split(", Timeout:")[0].split(", full error:")[0])
