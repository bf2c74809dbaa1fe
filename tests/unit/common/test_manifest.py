"""Following a manifest's file: replaced, swapped, edited in place, half-written, gone."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from thermocline_common.manifest import ManifestFollower, load_manifest
from thermocline_common.spec.manifest import ManifestError

INTERVAL = 0.02
BASE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "cases" / "manifests.json").read_text("utf-8")
)["base"]


def text(generation: int = 1, collections: int = 2, name: str = "shop", **spec: Any) -> str:
    value = json.loads(json.dumps(BASE))
    value["metadata"] |= {"generation": generation, "name": name}
    value["spec"]["collections"] = value["spec"]["collections"][:collections]
    value["spec"] |= spec
    return json.dumps(value, indent=1)


class Followed:
    """A follower that runs, and what it reported."""

    def __init__(self, path: Path, interval: float = INTERVAL) -> None:
        self.reports: list[str | None] = []
        self.collections: list[int] = []
        self.follower = ManifestFollower(path, interval=interval, report=self.reports.append)
        self.task = asyncio.create_task(self.work())

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.follower.follow())
            group.create_task(self.note())

    async def note(self) -> None:
        version = 0
        while True:
            manifest = await self.follower.wait_for_change(version)
            version = self.follower.version
            self.collections.append(len(manifest.spec.collections))

    def applied(self, generation: int) -> bool:
        return self.follower.applied_generation == generation

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 (no event tells of what it waits for)
                await asyncio.sleep(INTERVAL / 2)

    async def settled(self) -> None:
        await asyncio.sleep(INTERVAL * 6)


@pytest.fixture
async def followed(tmp_path: Path) -> AsyncIterator[Followed]:
    path = tmp_path / "manifest.yaml"
    path.write_text(text())
    found = Followed(path)
    yield found
    found.task.cancel()
    await asyncio.gather(found.task, return_exceptions=True)


def test_loading_tells_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    with pytest.raises(ManifestError, match="can't be read: No such file"):
        load_manifest(path)
    with pytest.raises(ManifestError, match="can't be read: Is a directory"):
        load_manifest(tmp_path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError, match="is not UTF-8"):
        load_manifest(path)
    path.write_text("\ufeff" + text(), "utf-8")
    assert load_manifest(path).metadata.name == "shop"


async def test_an_atomic_replacement_is_taken(followed: Followed, tmp_path: Path) -> None:
    scratch = tmp_path / "new"
    scratch.write_text(text(2, collections=1))
    scratch.replace(tmp_path / "manifest.yaml")
    await followed.until(lambda: followed.follower.applied_generation == 2)
    assert len(followed.follower.current.spec.collections) == 1


async def test_an_edit_in_place_is_taken(followed: Followed, tmp_path: Path) -> None:
    (tmp_path / "manifest.yaml").write_text(text(2))
    await followed.until(lambda: followed.follower.applied_generation == 2)


async def test_a_swapped_symlink_of_a_projected_volume_is_taken(tmp_path: Path) -> None:
    # As the kubelet does it: manifest.yaml -> ..data/manifest.yaml, ..data -> a directory by time.
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "manifest.yaml").write_text(text(number))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "manifest.yaml").symlink_to("..data/manifest.yaml")
    followed = Followed(tmp_path / "manifest.yaml")
    try:
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        await followed.until(lambda: followed.follower.applied_generation == 2)
    finally:
        followed.task.cancel()


async def test_a_file_that_is_being_written_is_not_taken_half(tmp_path: Path) -> None:
    """Each state on the way is a valid manifest; taking one would drain a collection."""
    path = tmp_path / "manifest.yaml"
    path.write_text(text(1))
    followed = Followed(path, interval=0.1)
    for generation in range(2, 12):
        for count in (0, 1):
            path.write_text(text(generation, collections=count))
            await asyncio.sleep(0.03)
        path.write_text(text(generation))
        await followed.until(partial(followed.applied, generation))
    followed.task.cancel()
    assert followed.collections == [2] * 10


@pytest.mark.parametrize(
    ("content", "report"),
    [
        (text(2, mode="activ"), "the new manifest is not used: spec.mode ('activ')"),
        ("", "is empty"),
        ("a: [", "is not YAML"),
        (text(2, name="other"), "describes shop/other, another resource than shop/shop"),
        (None, "can't be read"),
    ],
    ids=["bad", "empty", "broken", "another", "gone"],
)
async def test_what_cannot_be_used_is_reported_and_the_old_one_stays(
    followed: Followed, tmp_path: Path, content: str | None, report: str
) -> None:
    path = tmp_path / "manifest.yaml"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    await followed.until(lambda: any(report in (r or "") for r in followed.reports))
    await followed.settled()
    assert followed.follower.applied_generation == 1
    path.write_text(text(4))
    await followed.until(lambda: followed.follower.applied_generation == 4)
    assert followed.reports[-1] is None


async def test_a_return_to_the_old_text_ends_the_report(followed: Followed, tmp_path: Path) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_text("a: [")
    await followed.until(lambda: any(followed.reports))
    path.write_text(text())
    await followed.until(lambda: bool(followed.reports) and followed.reports[-1] is None)
    assert followed.follower.version == 0


async def test_another_layout_of_the_same_manifest_is_no_change(
    followed: Followed, tmp_path: Path
) -> None:
    (tmp_path / "manifest.yaml").write_text("# a comment\n" + text())
    await followed.settled()
    assert followed.follower.version == 0


async def test_waiting_by_version_misses_nothing(followed: Followed, tmp_path: Path) -> None:
    seen = followed.follower.version
    (tmp_path / "manifest.yaml").write_text(text(2))
    await followed.until(lambda: followed.follower.applied_generation == 2)
    async with asyncio.timeout(1):  # the change came before the wait began
        assert (await followed.follower.wait_for_change(seen)).metadata.generation == 2
    waiting = asyncio.create_task(followed.follower.wait_for_change())
    await followed.settled()
    assert not waiting.done()
    (tmp_path / "manifest.yaml").write_text(text(3))
    async with asyncio.timeout(5):
        assert (await waiting).metadata.generation == 3


async def test_changes_yields_the_first_and_always_the_newest(
    followed: Followed, tmp_path: Path
) -> None:
    generations = []
    async with asyncio.timeout(10):
        async for manifest in followed.follower.changes():
            generations.append(manifest.metadata.generation)
            if generations[-1] == 5:
                break
            for generation in (generations[-1] + 1, 5):
                (tmp_path / "manifest.yaml").write_text(text(generation))
                await followed.until(partial(followed.applied, generation))
    assert generations == [1, 5]
