"""A feeder inside the test's own event loop, on real tiers and a real manifest file."""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from prometheus_client import CollectorRegistry

from support.mongod import ReplicaSet
from support.services import Manifest
from thermocline_common.access import Access
from thermocline_common.clock import monotonic
from thermocline_common.coverage import Coverage, State
from thermocline_common.coverage_store import read_one
from thermocline_common.credentials import AllCredentials
from thermocline_common.health import Heartbeat, Problems
from thermocline_common.manifest import ManifestFollower
from thermocline_common.runtime import Context
from thermocline_common.tiers import Tiers
from thermocline_feeder.assembly import Parts
from thermocline_feeder.service import FeederService
from thermocline_feeder.settings import Settings

Pause = Callable[[str], Awaitable[None]]

QUICK = Settings(
    heartbeat_interval=0.5,
    takeover_after=3.0,
    standby_poll=0.1,
    marker_interval=1.0,
    await_data=0.5,
    quarantine_retry=1.0,
    record_age=1.0,
    record_scan=0.3,
    pause_limit=10.0,
    look_back=1.0,
    move_retry=0.5,
    state_poll=0.2,
    cursor_wait=3.0,
)


async def nothing_against_it(namespace: str) -> list[str]:
    """Admission for tests that are about something else."""
    return []


@dataclass
class Feeder:
    """One feeder; :meth:`start` and :meth:`stop` as a context (``async with``)."""

    tiers: Tiers
    follower: ManifestFollower
    settings: Settings = QUICK
    pause: Pause | None = None
    drain: bool = False
    task: asyncio.Task[None] | None = None
    context: Context = field(init=False)
    service: FeederService = field(init=False)

    def __post_init__(self) -> None:
        arguments = argparse.Namespace(drain_and_exit=self.drain)
        self.context = Context(
            self.follower,
            self.tiers,
            asyncio.Event(),
            Heartbeat(monotonic),
            CollectorRegistry(),
            arguments,
            Problems(),
            Access(AllCredentials({}), {}),
        )
        self.service = FeederService(
            arguments, settings=self.settings, admission=nothing_against_it, pause=self.pause
        )

    def start(self) -> None:
        """Begin, without waiting."""
        self.task = asyncio.create_task(self.service.run(self.context))

    async def stop(self) -> None:
        """End it cleanly."""
        self.context.stop.set()
        assert self.task is not None
        await self.task

    async def crash(self) -> None:
        """End it as kill -9 would, as far as the tiers can tell: nothing is given up, nothing finished."""
        assert self.task is not None
        self.service.releases = False
        if self.service.parts is not None:
            self.service.parts.moves.switch.tidy = False
        self.context.stop.set()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def parts(self) -> Parts:
        """The parts at work."""
        assert self.service.parts is not None
        return self.service.parts

    async def __aenter__(self) -> "Feeder":
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.task is not None
        if self.task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
        else:
            await self.stop()

    async def until(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        """Wait for a condition (a coroutine function too); shows the status if it never holds."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    if self.task is not None and self.task.done():
                        self.task.result()
                        raise AssertionError("the feeder ended")
                    value = condition()
                    if asyncio.iscoroutine(value):
                        value = await value
                    if value:
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            text = f"{self.service.status()} {self.context.problems.current}"
            raise AssertionError(f"never: {condition}; {text}") from None

    async def replayed(self, seconds: float = 20.0) -> None:
        """Everything written to F so far is in A."""
        await self.until(lambda: self.service.parts is not None and self.parts.replay.time, seconds)
        async with asyncio.timeout(seconds):
            await self.parts.replay.past_now()

    async def reaches(self, namespace: str, state: State, seconds: float = 60.0) -> Coverage:
        """Wait until the coverage document says so; it."""
        found: list[Coverage] = []

        async def there() -> bool:
            coverage = await read_one(self.tiers, namespace)
            if coverage is None or coverage.state is not state:
                return False
            found.append(coverage)
            return True

        await self.until(there, seconds)
        return found[-1]


def write_manifest(
    directory: Path,
    fast: ReplicaSet,
    archive: ReplicaSet,
    collections: Sequence[Mapping[str, Any]] = (),
    **spec: Any,
) -> Manifest:
    """A manifest file for these tiers, with a short lease."""
    body = {
        "archive": {"uri": archive.uri},
        "fastTier": {"uri": fast.uri},
        "collections": list(collections),
        "proxy": {"lease": "200ms"},
        **spec,
    }
    return Manifest(directory / "manifest.yaml", body)


@contextlib.asynccontextmanager
async def following(manifest: Manifest) -> AsyncIterator[ManifestFollower]:
    """A follower at work."""
    follower = ManifestFollower(manifest.path, interval=0.05)
    task = asyncio.create_task(follower.follow())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


_RAW = CodecOptions(document_class=RawBSONDocument)


async def raw_documents(client: Any, namespace: str) -> dict[bytes, bytes]:
    """Every document's bytes, by its raw ``_id`` document."""
    from thermocline_common.ids import DocId

    database, name = namespace.split(".", 1)
    collection = client[database].get_collection(name, codec_options=_RAW)
    return {
        DocId.of_document(bytes(d.raw)).document(): bytes(d.raw) async for d in collection.find({})
    }
