"""A service's manifest on disk: loaded once, then followed without a restart."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from thermocline_common.spec.manifest import Manifest, ManifestError, Problem, parse_text
from thermocline_common.spec.reading import MAX_BYTES

log = logging.getLogger(__name__)


def _read(path: Path) -> str:
    """The file's text, whole. Raises :class:`ManifestError` where it can't be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(
            [Problem(str(path), f"can't be read: {error.strerror}", "give the path of a manifest")]
        ) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ManifestError([Problem(str(path), "is not UTF-8", "save it as UTF-8")]) from None


def load_manifest(path: Path) -> Manifest:
    """Read and check a manifest. Raises :class:`ManifestError` with every problem found."""
    return parse_text(_read(path))


class ManifestFollower:
    """The manifest in force, and news of it.

    The file is read again and again (it is small): so an atomic replacement, a swapped symlink of
    a projected volume and an edit in place are all noticed, on any file system. A new text counts
    only once it was read twice in a row: a file that is just being written could read as a valid
    manifest with fewer collections, and a removed collection is drained. A text that is bad, or
    that describes another resource, is handed to ``report``, and the old manifest stays in force.
    """

    def __init__(
        self,
        path: Path,
        *,
        interval: float = 0.5,
        report: Callable[[str | None], None] = lambda problem: None,
    ) -> None:
        """Load ``path``; ``interval`` in seconds. Raises :class:`ManifestError`."""
        self._path = path
        self._interval = interval
        self._report = report
        self._text = _read(path)
        self._current = parse_text(self._text)
        self._version = 0
        self._changed = asyncio.Condition()

    @property
    def current(self) -> Manifest:
        """The manifest in force."""
        return self._current

    @property
    def applied_generation(self) -> int:
        """``metadata.generation`` of the manifest in force."""
        return self._current.metadata.generation

    @property
    def version(self) -> int:
        """Counts the manifests that came into force; give it to :meth:`wait_for_change`."""
        return self._version

    async def wait_for_change(self, version: int | None = None) -> Manifest:
        """Wait until another manifest than number ``version`` (None: the one in force now) is in force."""
        seen = self._version if version is None else version
        async with self._changed:
            await self._changed.wait_for(lambda: self._version != seen)
        return self._current

    async def changes(self) -> AsyncIterator[Manifest]:
        """The manifest in force, then each newer one; never misses the newest, whatever the caller does."""
        while True:
            version = self._version
            yield self._current
            await self.wait_for_change(version)

    async def follow(self) -> None:
        """Follow the file until cancelled."""
        candidate: str | None = None
        while True:
            await asyncio.sleep(self._interval)
            try:
                text = await asyncio.to_thread(_read, self._path)
            except ManifestError as error:
                candidate = None
                self._report(str(error))
                continue
            if text != candidate:
                candidate = text
                continue
            if text == self._text:
                self._report(None)
                continue
            await self._take(text)

    async def _take(self, text: str) -> None:
        try:
            manifest = parse_text(text)
        except ManifestError as error:
            self._report(f"the new manifest is not used: {error}")
            return
        old, new = self._current.metadata, manifest.metadata
        if (old.namespace, old.name, old.uid) != (new.namespace, new.name, new.uid):
            self._report(
                f"the file now describes {new.namespace}/{new.name}, another resource than "
                f"{old.namespace}/{old.name}; restart the service if that is meant"
            )
            return
        self._text = text
        self._report(None)
        if manifest == self._current:
            return
        async with self._changed:
            self._current = manifest
            self._version += 1
            self._changed.notify_all()
        log.info("manifest in force", extra={"generation": new.generation})
