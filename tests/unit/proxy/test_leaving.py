"""What a proxy that is being stopped sends elsewhere, and when."""

import pytest

from thermocline_proxy.commands.catalog import CATALOG
from thermocline_proxy.leaving import elsewhere, waits

WAITS = waits(30)


@pytest.mark.parametrize("seconds", [1, 5, 30, 600])
def test_the_waits_fit_into_the_whole(seconds: float) -> None:
    found = waits(seconds)
    assert 0 < found.listen <= 2
    assert found.listen + found.reads < found.total == seconds
    assert found.listen + found.quiet < found.total


@pytest.mark.parametrize(
    ("name", "fields", "left", "code"),
    [
        ("insert", {b"txnNumber", b"lsid"}, 0.0, 91),
        ("findAndModify", {b"txnNumber"}, 0.0, 91),
        ("update", {b"lsid"}, 25.0, None),  # no driver repeats it
        ("insert", {b"txnNumber", b"autocommit"}, 25.0, None),
        ("commitTransaction", {b"txnNumber", b"autocommit"}, 25.0, None),
        ("find", {b"lsid"}, 0.0, None),
        ("find", {b"lsid"}, 25.0, 91),
        ("find", {b"lsid", b"autocommit"}, 25.0, None),
        ("aggregate", set(), 25.0, 91),
        ("getMore", {b"lsid"}, 25.0, None),
        ("killCursors", set(), 25.0, None),
        ("ping", set(), 25.0, None),
        ("createIndexes", set(), 25.0, None),
    ],
)
def test_only_what_drivers_repeat_is_sent_elsewhere(
    name: str, fields: set[bytes], left: float, code: int | None
) -> None:
    error = elsewhere(CATALOG[name], fields, writes=False, left=left, waits=WAITS)
    assert (None if error is None else error.code) == code
    if error is not None:
        assert error.labels == (("RetryableWriteError",) if b"txnNumber" in fields else ())


def test_an_aggregation_that_writes_is_served() -> None:
    assert elsewhere(CATALOG["aggregate"], set(), writes=True, left=25.0, waits=WAITS) is None
