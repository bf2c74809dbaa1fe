"""Durations as the resource writes them: ``30d``, ``5s``, ``250ms``.

Whole numbers with one unit. A day is always 24 hours: ages are spans of absolute time, so neither
time zones nor daylight saving can move a horizon.
"""

import datetime as dt
import re
from typing import Final

PATTERN: Final = r"^[1-9][0-9]{0,8}[smhdw]$"
"""What the resource accepts for ages; the same text stands in the CRD."""

SHORT_PATTERN: Final = r"^[1-9][0-9]{0,8}(ms|[smhdw])$"
"""What it accepts for leases and time-outs, which may be shorter than a second."""

LONGEST: Final = dt.timedelta(days=36_500)
"""Beyond this the arithmetic on dates would leave the years that Python and BSON share."""

_MILLISECONDS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}  # fmt: skip
_PARTS = re.compile(r"(-?)([0-9]+)\s*([A-Za-z]*)")


class DurationError(ValueError):
    """The text is not a duration. ``reason`` says why, ``remedy`` what to write instead."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


def _units(short: bool) -> str:
    return "ms, s, m, h, d or w" if short else "s, m, h, d or w"


def parse_duration(text: str, *, short: bool = False) -> dt.timedelta:
    """The span that ``text`` names. ``short`` also allows milliseconds. Raises :class:`DurationError`."""
    usual = f"write a whole number and one of {_units(short)}, such as {'5s' if short else '30d'}"
    if re.fullmatch(SHORT_PATTERN if short else PATTERN, text, re.ASCII):
        unit = text.lstrip("0123456789")
        milliseconds = int(text[: -len(unit)]) * _MILLISECONDS[unit]
        if milliseconds > LONGEST // dt.timedelta(milliseconds=1):
            raise DurationError("is longer than 100 years", "use at most 36500d")
        return dt.timedelta(milliseconds=milliseconds)
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise DurationError("is not a duration", usual)
    sign, digits, unit = parts.groups()
    if sign:
        raise DurationError("is negative", usual)
    if not int(digits):
        raise DurationError("is zero", usual)
    if not unit:
        raise DurationError("has no unit", usual)
    if unit.lower() in ("mo", "mon", "month", "months", "y", "yr", "year", "years"):
        raise DurationError(
            f"months and years have no fixed length, so {unit!r} is not a unit",
            "write days, such as 30d or 365d",
        )
    if unit == "ms" and not short:
        raise DurationError("is given in milliseconds, which is too fine here", usual)
    if unit not in _MILLISECONDS:
        raise DurationError(f"{unit!r} is not a unit", usual)
    if text != f"{digits}{unit}":
        raise DurationError("has a space in it", f"write {digits}{unit}")
    if digits.startswith("0"):
        raise DurationError("has leading zeros", f"write {digits.lstrip('0')}{unit}")
    raise DurationError("has more than nine digits", "use a larger unit")


def format_duration(span: dt.timedelta) -> str:
    """The shortest text that :func:`parse_duration` reads back as ``span`` (of at least a millisecond)."""
    milliseconds = span // dt.timedelta(milliseconds=1)
    for unit in ("w", "d", "h", "m", "s"):
        if milliseconds and milliseconds % _MILLISECONDS[unit] == 0:
            # 30d and not 4w2d; but 7d reads better than 1w.
            if unit == "w" and milliseconds < 2 * _MILLISECONDS["w"]:
                continue
            return f"{milliseconds // _MILLISECONDS[unit]}{unit}"
    return f"{milliseconds}ms"
