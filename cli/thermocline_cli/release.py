"""Ends what a self-check began: a namespace's reads may go to the fast tier again."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thermocline_common import doubts
from thermocline_common.access import Access
from thermocline_common.clients import close_tiers, open_tiers
from thermocline_common.coverage import Doubt
from thermocline_common.coverage_store import read_all
from thermocline_common.spec.models import Manifest

APP_NAME = "thermocline-cli"


@dataclass(frozen=True, slots=True)
class Standing:
    """One namespace. ``doubt``: what the self-check said; None: nothing stands there."""

    namespace: str
    doubt: Doubt | None
    released: bool = False


def standing(manifest: Manifest, credentials: Path | None) -> list[Standing]:
    """Every namespace whose reads go to the archive. Raises ``ConfigError`` and PyMongo's errors."""
    return asyncio.run(_standing(manifest, credentials))


async def _standing(manifest: Manifest, credentials: Path | None) -> list[Standing]:
    tiers = open_tiers(manifest, Access.load(manifest, credentials), APP_NAME)
    try:
        coverages = await read_all(tiers)
    finally:
        await close_tiers(tiers)
    return [
        Standing(namespace, coverage.doubt)
        for namespace, coverage in sorted(coverages.items())
        if coverage.doubt is not None
    ]


def release(
    manifest: Manifest, credentials: Path | None, namespaces: Sequence[str]
) -> list[Standing]:
    """Release these namespaces; what stood there. Raises ``ConfigError`` and PyMongo's errors."""
    return asyncio.run(_release(manifest, credentials, namespaces))


async def _release(
    manifest: Manifest, credentials: Path | None, namespaces: Sequence[str]
) -> list[Standing]:
    tiers = open_tiers(manifest, Access.load(manifest, credentials), APP_NAME)
    try:
        found = []
        for namespace in namespaces:
            doubt = await doubts.release(tiers.fast, namespace)
            found.append(Standing(namespace, doubt, released=doubt is not None))
    finally:
        await close_tiers(tiers)
    return found
