"""How F is asked for what a TTL rule of the archive's expires."""

import datetime as dt
from typing import Any

from bson.datetime_ms import DatetimeMS

from thermocline_common.ages import LOWEST_DATE, to_milliseconds
from thermocline_common.ttl import Rule


def due_filter(rule: Rule, now: dt.datetime) -> dict[str, Any]:
    """What the rule expires at ``now`` (the archive's own clock): a date, or any date of an array."""
    limit = DatetimeMS(to_milliseconds(now) - int(rule.seconds * 1_000))
    due: dict[str, Any] = {rule.path: {"$gte": LOWEST_DATE, "$lte": limit}}
    return {"$and": [due, dict(rule.partial)]} if rule.partial else due
