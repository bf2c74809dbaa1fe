"""Brings the archive's users and roles to F when this proxy knows that they differ.

The warmer compares them every few seconds anyway. But who has just created a user, or taken a
privilege away, expects it to count at once.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from pymongo.errors import PyMongoError

from thermocline_common.accounts import Accounts

log = logging.getLogger(__name__)

CHANGES: Final = frozenset(
    {
        "createUser", "updateUser", "dropUser", "dropAllUsersFromDatabase", "grantRolesToUser",
        "revokeRolesFromUser", "createRole", "updateRole", "dropRole", "dropAllRolesFromDatabase",
        "grantPrivilegesToRole", "revokePrivilegesFromRole", "grantRolesToRole",
        "revokeRolesFromRole",
    }
)  # fmt: skip
"""Commands that change users or roles."""
PATIENCE_SECONDS: Final = 5.0
"""How long an answer waits for F; then the warmer's next comparison has to do."""
PAUSE_SECONDS: Final = 1.0
"""Between two comparisons because F refused a log-in: it may refuse it for good."""


class AccountSync:
    """``reachable``: whether F can be reached; it isn't waited for otherwise."""

    def __init__(
        self,
        accounts: Accounts,
        reachable: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accounts = accounts
        self._reachable = reachable
        self._clock = clock
        self._turn = asyncio.Lock()
        self._began = float("-inf")

    async def changed(self) -> None:
        """The archive has executed one of ``CHANGES``, or may have."""
        await self._since(self._clock())

    async def refused(self) -> None:
        """F refused the log-in of a user whom the archive knows: it may not have heard of it yet."""
        await self._since(self._clock(), PAUSE_SECONDS)

    async def _since(self, moment: float, pause: float = 0.0) -> None:
        """Return after a comparison that began at ``moment`` or later; those who wait share one."""
        if not self._reachable():
            return
        async with self._turn:
            if self._began >= moment:
                return
            await asyncio.sleep(max(0.0, self._began + pause - self._clock()))
            self._began = self._clock()
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._accounts.bring_over()
            except (PyMongoError, TimeoutError) as error:
                log.warning(
                    "users can't be brought to the fast tier now",
                    extra={"error": type(error).__name__},
                )
