"""Whether the archive has everything, asked of the tiers themselves.

Needed where no feeder can say so: a feeder needs both tiers, a caught-up resource is deleted even
when one of them is gone.
"""

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pymongo.errors import PyMongoError

from thermocline_common import clients, names
from thermocline_common.access import Access
from thermocline_common.coverage import State
from thermocline_common.coverage_store import read_all, read_linearizable
from thermocline_common.errors import ThermoclineError
from thermocline_common.spec.manifest import parse_text
from thermocline_common.tiers import Tiers

log = logging.getLogger(__name__)


async def prove(manifest: str, credentials: Mapping[str, bytes], uid: str) -> str | None:
    """Why everything is in the archive, as a sentence; None: that can't be told. Never raises.

    Either tier suffices: the archive lists every tiered namespace before it pauses and until it is
    out again; the fast tier says of each namespace that everything was replayed before it left.
    Coordination data of somebody else, or none at all, proves nothing.
    """
    with tempfile.TemporaryDirectory(prefix="thermocline-proof-") as directory:
        files = Path(directory)
        for path, content in credentials.items():
            target = files / path
            target.parent.mkdir(mode=0o700, exist_ok=True)
            target.touch(mode=0o600)
            target.write_bytes(content)
        try:
            parsed = parse_text(manifest)
            access = Access.load(parsed, files)
            tiers = clients.open_tiers(parsed, access, "thermocline-operator")
        except ThermoclineError as error:
            log.info("the tiers can't be asked: %s", error)
            return None
        try:
            return await _by_archive(tiers, uid) or await _by_fast_tier(tiers, uid)
        finally:
            await clients.close_tiers(tiers)


async def _by_archive(tiers: Tiers, uid: str) -> str | None:
    try:
        checkpoints, _ = await read_linearizable(
            tiers.archive, names.CHECKPOINT, {"_id": names.CHECKPOINT_ID}
        )
        listed, _ = await read_linearizable(tiers.archive, names.TIERED, {})
    except (PyMongoError, ThermoclineError, KeyError, ValueError) as error:
        log.info("the archive can't be asked: %s", type(error).__name__)
        return None
    if listed or not checkpoints or not _is_ours(checkpoints[0], uid):
        return None
    return "the archive lists no tiered namespace"


async def _by_fast_tier(tiers: Tiers, uid: str) -> str | None:
    try:
        documents, _ = await read_linearizable(tiers.fast, names.COVERAGE, {})
        coverages = await read_all(tiers)
    except (PyMongoError, ThermoclineError, KeyError, ValueError) as error:
        log.info("the fast tier can't be asked: %s", type(error).__name__)
        return None
    if not documents or not all(_is_ours(document, uid) for document in documents):
        return None
    if any(c.state is not State.PASSTHROUGH for c in coverages.values()):
        return None
    return "every namespace left the fast tier after its last write was replayed"


def _is_ours(document: Mapping[str, Any], uid: str) -> bool:
    owner = document.get("owner")
    return isinstance(owner, Mapping) and owner.get("uid") == uid
