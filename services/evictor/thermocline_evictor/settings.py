"""What the evictor's work is measured by; not part of the resource."""

from dataclasses import dataclass

from thermocline_common.timing import ANNOUNCE_SECONDS
from thermocline_evictor.plan.steps import SPAN_SECONDS


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds."""

    announce_seconds: float = ANNOUNCE_SECONDS
    """From a ``leaving`` record to the eviction. Proxies rely on what they kept for a sixth of it;
    both are shortened together by THERMOCLINE_TEST_ANNOUNCE_SECONDS, in tests only."""
    busy_seconds: float = 0.2
    """Pause between two turns while a namespace waits or works; also between two looks at cursors."""
    idle_seconds: float = 1.0
    """Pause between two turns when there is nothing to do."""
    retry_seconds: float = 2.0
    """Pause after a tier couldn't be reached."""
    cursor_span: float = SPAN_SECONDS
    """The looks after which cursors count as gone span so long."""
    cursor_limit: float = 600.0
    """A cursor that holds up eviction for so long is killed; MongoDB itself ends idle ones then."""
    page: int = 100
    """Candidates confirmed and announced in one go."""
    turn_seconds: float = 1.0
    """A namespace's turn ends after this, so that others get theirs."""
    catch_up_seconds: float = 5.0
    """How long one batch waits for the feeder before the turn ends."""
    scan_pause: float = 5.0
    """Between the end of one pass over the candidates and the next pass."""
    dry_run_pause: float = 60.0
    """The same for passes that only count."""
    mismatch_looks: int = 3
    """A difference that stays for so many looks, the feeder having moved on between them, is a mismatch."""
    mismatch_pause: float = 2.0
    """Between two looks at documents that differ."""
    oldest_pause: float = 10.0
    """Between two looks for the oldest resident."""
    expiry_seconds: float = 60.0
    """Between two passes of TTL rules, as in MongoDB."""
