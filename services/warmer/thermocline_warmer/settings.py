"""What the warmer's work is measured by; not part of the resource."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds."""

    idle_seconds: float = 1.0
    """Pause between two looks at the coverage documents when nothing is to be warmed."""
    barrier_seconds: float = 30.0
    """How long to wait for the feeder before a slice is given up and tried again."""
    batch: int = 250
    """Documents copied in one go: one transaction on F of about 10 ms for documents of 1 KB."""
    parity_seconds: float = 10.0
    """Between two comparisons of users, indexes and options. Clients log in to both tiers, so a new
    user waits this long at most."""
    retry_seconds: float = 2.0
    """Pause after a tier couldn't be reached."""
    verify_rounds: int = 5
    """How often a document that isn't found after it was copied is looked for again."""
