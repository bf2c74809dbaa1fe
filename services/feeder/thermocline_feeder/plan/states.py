"""Which step a namespace takes next: section 9 of the architecture as a table."""

from dataclasses import dataclass
from enum import Enum

from thermocline_common.coverage import Coverage, State


class Step(Enum):
    """One step; after each the namespace is looked at again, so that a crash between two is no matter."""

    NONE = "nothing to do"
    LIST = "list it in the archive, before anything else"
    CREATE = "write its coverage document"
    SET_POLICY = "take over another policy before activation"
    ACTIVATE = "switch to Active"
    WITHDRAW = "switch to Passthrough"
    REVERT = "go back from an unfinished switch"
    CHANGE_POLICY = "replace the age field of an active namespace"
    CLEAN = "remove what the fast tier still holds of it"
    GRANT = "let a proxy run the command that it asked for"
    EXPIRE = "forget a proxy's request that nobody keeps alive"
    END_LOOK_BACK = "stop looking retryable writes up in the other tier"
    FORGET = "remove its coverage document"
    UNLIST = "take it off the archive's list, last of all"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the manifest asks for: the policy, and whether it is to be in force."""

    active: bool
    age_field: str | None = None
    keep_all: bool = False

    def same_policy(self, coverage: Coverage) -> bool:
        """Whether the coverage document is for this policy."""
        return (self.age_field, self.keep_all) == (coverage.age_field, coverage.keep_all)


GOES_ON = frozenset({Step.NONE, Step.REVERT, Step.END_LOOK_BACK})
"""What a pause never holds back: the end of an unfinished switch, for which writers wait."""


LEGAL: frozenset[tuple[State, State]] = frozenset(
    {
        (State.PASSTHROUGH, State.PAUSING),
        (State.PAUSING, State.ACTIVE),
        (State.PAUSING, State.PASSTHROUGH),
        (State.ACTIVE, State.PAUSING),
    }
)
"""Changes of state; no other is ever written."""


def next_step(
    coverage: Coverage | None,
    *,
    listed: bool,
    wanted: Wanted | None,
    look_back_over: bool,
    stale_requests: bool = False,
) -> Step:
    """``wanted`` None: the manifest doesn't name it. ``look_back_over``: 30 minutes since its last switch.

    ``stale_requests``: some request of a proxy wasn't kept alive. While any request stands, the
    namespace is on its way to ``Passthrough``, or stays there, whatever the manifest wants.
    """
    active = wanted is not None and wanted.active
    if coverage is None:
        if active:
            return Step.CREATE if listed else Step.LIST
        return Step.UNLIST if listed else Step.NONE
    if not listed:
        return Step.LIST
    if coverage.state is State.PAUSING:
        return Step.REVERT
    if coverage.requests:
        return _next_for_requests(coverage, stale_requests)
    if coverage.state is State.ACTIVE:
        if not active:
            return Step.WITHDRAW
        if wanted is not None and not wanted.same_policy(coverage):
            return Step.CHANGE_POLICY
        return Step.END_LOOK_BACK if coverage.look_back and look_back_over else Step.NONE
    if active:
        assert wanted is not None
        return Step.ACTIVATE if wanted.same_policy(coverage) else Step.SET_POLICY
    if coverage.fast_uuid is not None:
        return Step.CLEAN
    if coverage.look_back is not None:
        return Step.END_LOOK_BACK if look_back_over else Step.NONE
    return Step.FORGET


def _next_for_requests(coverage: Coverage, stale: bool) -> Step:
    if stale:
        return Step.EXPIRE
    if coverage.state is State.ACTIVE:
        return Step.WITHDRAW
    if coverage.fast_uuid is not None or coverage.archive_time is not None:
        # Without a collection in F there is nothing to drop, but readers have to be waited for.
        return Step.CLEAN
    if all(request.granted for request in coverage.requests):
        return Step.NONE
    return Step.GRANT


def waits_for_resume(step: Step, coverage: Coverage | None) -> bool:
    """Whether a step waits while the manifest says that services hold still.

    What a proxy asked for stands for a command that an application waits for: it goes on. The way
    back to ``Active`` after it waits.
    """
    return step not in GOES_ON and (coverage is None or not coverage.requests)


def reverted(coverage: Coverage) -> State:
    """Where an unfinished switch goes back to: the tier that had the writes before it began."""
    return State.PASSTHROUGH if coverage.target is State.ACTIVE else State.ACTIVE
