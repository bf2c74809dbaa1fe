"""Whether a namespace may become active: the shared rules on what the tiers show."""

from thermocline_common.spec.models import Manifest
from thermocline_common.tiers import Tiers


async def refusals(tiers: Tiers, manifest: Manifest, namespace: str) -> list[str]:
    """Every reason against activation; empty: none."""
    return []
