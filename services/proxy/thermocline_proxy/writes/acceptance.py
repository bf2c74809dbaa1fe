"""What F has let users do of late: a look-up on behalf of one who may not must tell that user nothing. Pure."""

from typing import Final

from thermocline_proxy.ports import Identity

ACCEPTED_SECONDS: Final = 30.0
"""How long F's acceptance of a user's inserts or deletes is remembered, as mongos remembers users."""


class Acceptance:
    """What F has let users do of late, so that look-ups for them need no question each time."""

    def __init__(self) -> None:
        self._until: dict[tuple[Identity | None, str, str], float] = {}

    def holds(self, identity: Identity | None, namespace: str, action: str, now: float) -> bool:
        """Whether F accepted this user's ``action`` on the namespace lately."""
        return identity is None or self._until.get((identity, namespace, action), 0.0) > now

    def note(self, identity: Identity | None, namespace: str, action: str, now: float) -> None:
        """F has accepted it just now."""
        if identity is None:
            return
        if len(self._until) > 10_000:
            self._until = {k: until for k, until in self._until.items() if until > now}
        self._until[identity, namespace, action] = now + ACCEPTED_SECONDS
