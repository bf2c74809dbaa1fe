"""Change streams of tiered collections that this proxy opened: what their next batches need to know."""

from dataclasses import dataclass

from thermocline_proxy.commands.command import Command

MAX_STREAMS = 50_000


@dataclass(frozen=True, slots=True)
class OpenStream:
    """``looks_up``: updates come with the document as it is when the event is read. ``hides``: the
    answers don't show whether it was found. ``opened``: the client's command. ``token``: where it
    stands. ``ready_until``: monotonic seconds; until then every document to be looked up is in F."""

    namespace: str
    looks_up: bool
    hides: bool
    opened: Command
    token: str
    ready_until: float


class OpenStreams:
    """Cursor id -> stream. The oldest go when there are too many; such a one is like another proxy's."""

    def __init__(self) -> None:
        self._streams: dict[int, OpenStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def find(self, cursor_id: int) -> OpenStream | None:
        """The stream; None where another proxy opened it."""
        return self._streams.get(cursor_id)

    def remember(self, cursor_id: int, stream: OpenStream) -> None:
        """One was opened, or went on."""
        if cursor_id not in self._streams and len(self._streams) >= MAX_STREAMS:
            del self._streams[next(iter(self._streams))]
        self._streams[cursor_id] = stream

    def forget(self, cursor_id: int) -> None:
        """It is closed, or unknown to its server."""
        self._streams.pop(cursor_id, None)
