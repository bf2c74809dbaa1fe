"""Whether a service works, and what is wrong: values that the admin port shows."""

import logging
from collections.abc import Callable, Mapping

from thermocline_common.logs import redact

log = logging.getLogger(__name__)


class Heartbeat:
    """The pulse of a service's work loop; liveness is its age.

    ``clock`` gives monotonic seconds. A service that never beat is as old as its start.
    """

    def __init__(self, clock: Callable[[], float], *, limit: float = 60.0) -> None:
        """``limit``: seconds after which the loop counts as stuck."""
        self._clock = clock
        self._last = clock()
        self.limit = limit

    def beat(self) -> None:
        """Called at each turn of the work loop."""
        self._last = self._clock()

    @property
    def age(self) -> float:
        """Seconds since the last beat."""
        return max(0.0, self._clock() - self._last)

    @property
    def alive(self) -> bool:
        """Whether the loop turned recently."""
        return self.age <= self.limit


class Problems:
    """What is wrong now, by key; each change is logged once.

    A text names the thing, the reason and what to do.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def set(self, key: str, text: str) -> None:
        """``text`` is wrong now under ``key``; secrets in it, of a library's error perhaps, are taken out."""
        text = redact(text)
        if self._texts.get(key) != text:
            self._texts[key] = text
            log.warning("problem: %s", text, extra={"problem": key})

    def clear(self, key: str) -> None:
        """Nothing is wrong under ``key`` any more; also where nothing was."""
        if self._texts.pop(key, None) is not None:
            log.info("problem solved", extra={"problem": key})

    def put(self, key: str, text: str | None) -> None:
        """:meth:`set`, or :meth:`clear` for None."""
        if text is None:
            self.clear(key)
        else:
            self.set(key, text)

    @property
    def current(self) -> Mapping[str, str]:
        """A copy of what is wrong now, by key."""
        return dict(self._texts)
