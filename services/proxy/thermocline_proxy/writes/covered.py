"""Whether F alone holds everything that a filter can match. Pure."""

import datetime as dt

from thermocline_common.coverage import Coverage, State
from thermocline_proxy.commands.predicates import lower_bound, understood

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def covers_filter(coverage: Coverage, query: bytes) -> bool:
    """Whether every live document that ``query`` can match is in F, as long as the lease runs."""
    if coverage.state is not State.ACTIVE:
        return False
    if coverage.keep_all:
        return coverage.complete and understood(query)
    if coverage.floor is None or coverage.age_field is None:
        return False
    bound = lower_bound(query, coverage.age_field)
    return bound is not None and bound >= (coverage.floor - _EPOCH) // dt.timedelta(milliseconds=1)
