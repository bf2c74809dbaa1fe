"""A drain that needs no pod, and the proof that nothing is left to drain, on real servers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.feeders import Feeder, following, write_manifest
from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import Manifest
from thermocline_common.coverage import State
from thermocline_common.tiers import Tiers
from thermocline_operator.drain import Drain
from thermocline_operator.plan.deletion import Outcome
from thermocline_operator.proof import prove

pytestmark = pytest.mark.integration
NS = "shop.orders"
NOWHERE = "mongodb://127.0.0.1:9/?replicaSet=nowhere"


@pytest.fixture
async def tiers(fast: ReplicaSet, archive: ReplicaSet) -> AsyncIterator[Tiers]:
    async with fast.async_client() as f, archive.async_client() as a:
        await a["shop"]["orders"].create_index("t")
        yield Tiers(f, a)


async def ended(drain: Drain, seconds: float) -> Outcome:
    """How a drain ends."""
    for _ in range(round(seconds / 0.1)):
        if (outcome := drain.outcome) is not None:
            return outcome
        await asyncio.sleep(0.1)
    raise AssertionError(f"no end after {seconds} s: {drain.last_words}")


async def test_drains_what_a_dead_feeder_left_and_proves_it_by_either_tier(
    tiers: Tiers,
    fast: ReplicaSet,
    archive: ReplicaSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in HASTE.items():
        monkeypatch.setenv(name, value)
    manifest = write_manifest(tmp_path, fast, archive, [{"namespace": NS, "ageField": "t", "maxAge": "30d"}])  # fmt: skip
    text = manifest.path.read_text()
    # Nothing there at all proves nothing: it may be another server than the one that was meant.
    assert await prove(text, {}, manifest.uid) is None
    async with following(manifest) as follower:
        feeder = Feeder(tiers, follower)
        feeder.start()
        await feeder.reaches(NS, State.ACTIVE)
        await feeder.crash()
    await tiers.fast["shop"]["orders"].insert_one({"_id": "unsent"})
    assert await prove(text, {}, manifest.uid) is None
    drain = Drain(text, {"archive/unused": b"x"})
    await drain.start()
    try:
        assert await ended(drain, 120) is Outcome.DRAINED
    finally:
        await drain.close()
    assert await tiers.archive["shop"]["orders"].count_documents({"_id": "unsent"}) == 1
    manifest.change(archive={"uri": NOWHERE})
    by_fast = manifest.path.read_text()
    manifest.change(archive={"uri": archive.uri}, fastTier={"uri": NOWHERE})
    by_archive = manifest.path.read_text()
    assert "left the fast tier" in str(await prove(by_fast, {}, manifest.uid))
    await _unlisted(tiers)
    assert "lists no tiered namespace" in str(await prove(by_archive, {}, manifest.uid))
    other = Manifest(tmp_path / "other.yaml", manifest.spec, number=2)
    assert await prove(by_archive, {}, other.uid) is None


async def _unlisted(tiers: Tiers) -> None:
    """As half an hour later, when retryable writes aren't looked up any more."""
    await tiers.archive["thermocline"]["tiered"].delete_many({})


async def test_a_drain_leaves_no_files_and_says_what_is_wrong(tmp_path: Path) -> None:
    drain = Drain("spec: nonsense\n", {"archive/password": b"secret"})
    await drain.start()
    try:
        directory = drain._directory
        assert directory is not None
        assert (directory / "credentials/archive/password").stat().st_mode & 0o077 == 0
        assert await ended(drain, 120) is Outcome.FAILED
        await asyncio.sleep(0.1)
        assert "manifest: " in drain.last_words
    finally:
        await drain.close()
    assert not directory.exists()
