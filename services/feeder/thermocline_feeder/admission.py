"""Whether a namespace may become active: the shared rules on what the tiers show."""

from thermocline_common import admission_checks
from thermocline_common.admission_checks import OpenMember
from thermocline_common.spec.models import Manifest
from thermocline_common.tiers import Tiers


async def refusals(
    tiers: Tiers, manifest: Manifest, namespace: str, open_member: OpenMember | None = None
) -> list[str]:
    """Every reason against activation, with its remedy; empty: none. ``open_member``: to ask every member."""
    problems = await admission_checks.refusals(tiers, manifest, namespace, open_member)
    return [str(problem) for problem in problems]
