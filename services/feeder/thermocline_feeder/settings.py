"""The feeder's waits and sizes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

TEST_PREFIX = "THERMOCLINE_TEST_FEEDER_"
"""``THERMOCLINE_TEST_FEEDER_RECORD_AGE=2``: for tests only. In operation these values are part of
the protocol: other components rely on them, so they are no configuration."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All in seconds unless they say otherwise."""

    heartbeat_interval: float = 2.0
    """How often the owner's heartbeat moves at the least."""
    takeover_after: float = 10.0
    """A heartbeat that stood still for so long, on the stand-by's own clock, is a dead owner's."""
    standby_poll: float = 0.5
    marker_interval: float = 10.0
    """How often F's counter is raised: how much of F's time going back may stay unseen by leases."""
    batch_changes: int = 6_000
    """Most changes taken at once; a bigger batch costs latency and the archive's cache."""
    backlog_changes: int = 40_000
    """Changes read ahead; beyond it the stream isn't read."""
    await_data: float = 1.0
    """How long the server keeps an idle getMore."""
    quarantine_retry: float = 60.0
    quarantine_limit: int = 1_000
    """More refused documents than this are no exception but a wrong set-up: replay stops."""
    record_age: float = 300.0
    """A removal record is kept so long after it was first seen: longer than anything that may rest on it."""
    record_scan: float = 30.0
    marker_age: float = 86_400.0
    """Barrier markers untouched for so long are removed."""
    pause_limit: float = 75.0
    """A namespace that couldn't be switched within this goes back."""
    look_back: float = 1_800.0
    """How long retryable writes are looked up in the tier that was left."""
    move_retry: float = 15.0
    """After a switch that didn't work."""
    state_poll: float = 2.0
    request_age: float = 300.0
    """A proxy's request for a command on the archive alone counts for so long after its last beat."""
    request_rest: float = 5.0
    """After the last such command: a drop is often followed by others, and each switch takes a while."""
    request_retry: float = 2.0
    """Like ``move_retry``, where a client waits for the switch."""
    request_cursor_wait: float = 5.0
    """Like ``cursor_wait``, where a client waits; a drop or rename ends cursors in MongoDB too."""
    cursor_wait: float = 600.0
    """How long cursors on F may keep a namespace's data after it went to Passthrough."""
    caught_up_lag: float = 5.0
    """Replay counts as caught up below this lag."""
    back_off_first: float = 0.1
    back_off_most: float = 5.0

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """The values above, but for the test-only overrides. Raises ``ValueError`` on a bad one."""
        settings = cls()
        for field in fields(cls):
            given = environment.get(TEST_PREFIX + field.name.upper())
            if given is not None:
                kind = type(getattr(settings, field.name))
                settings = replace(settings, **{field.name: kind(given)})
        return settings
