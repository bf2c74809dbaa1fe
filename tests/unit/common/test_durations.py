import datetime as dt
import re

import pytest
from hypothesis import given, strategies as st

from thermocline_common import durations
from thermocline_common.durations import DurationError, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1s", 1), ("90m", 5400), ("24h", 86_400), ("30d", 30 * 86_400), ("2w", 14 * 86_400)],
)
def test_reads_whole_numbers_with_a_unit(text: str, seconds: int) -> None:
    assert parse_duration(text) == dt.timedelta(seconds=seconds)


def test_reads_milliseconds_only_where_they_make_sense() -> None:
    assert parse_duration("250ms", short=True) == dt.timedelta(milliseconds=250)
    with pytest.raises(DurationError, match="milliseconds"):
        parse_duration("250ms")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1mo", "months and years have no fixed length"),
        ("1M", "'M' is not a unit"),
        ("2y", "no fixed length"),
        ("0d", "is zero"),
        ("0", "is zero"),
        ("-5d", "is negative"),
        ("30", "has no unit"),
        ("", "is not a duration"),
        ("d", "is not a duration"),
        ("1.5d", "is not a duration"),
        ("1e3s", "is not a duration"),
        ("30 d", "has a space"),
        ("030d", "leading zeros"),
        ("+3d", "is not a duration"),
        ("30D", "'D' is not a unit"),
        ("30d\n", "is not a duration"),
        ("P30D", "is not a duration"),
        ("٣d", "is not a duration"),
        ("1234567890s", "more than nine digits"),
        ("36501d", "longer than 100 years"),
        ("999999999w", "longer than 100 years"),
        ("1h30m", "is not a duration"),
    ],
)
def test_refuses_everything_else_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(DurationError) as caught:
        parse_duration(text)
    assert reason in caught.value.reason
    assert caught.value.remedy


@given(st.integers(1, 10**9), st.sampled_from(["ms", "s", "m", "h", "d", "w"]))
def test_what_is_written_reads_back(number: int, unit: str) -> None:
    try:
        span = parse_duration(f"{number}{unit}", short=True)
    except DurationError:
        return
    text = format_duration(span)
    assert parse_duration(text, short=True) == span
    assert re.fullmatch(durations.SHORT_PATTERN, text)


@pytest.mark.parametrize("text", ["30d", "7d", "5s", "250ms", "90m", "2w", "1500ms"])
def test_usual_texts_stay_as_they_are(text: str) -> None:
    assert format_duration(parse_duration(text, short=True)) == text
