"""Resume tokens as mongod 6.0.5 makes them."""

import uuid

import pytest
from hypothesis import given, strategies as st

from thermocline_proxy.commands.resume_tokens import Token, marked, parse_token, unmarked

UUID = uuid.UUID("e2c91ef0-9e4b-445c-964f-51c044215f7d")
OTHER = uuid.UUID("617f7e8c-232f-44e9-aa01-cbfbccc792bf")
TIME = 0x6B0DA39300000012
HIGH_WATER = "826B0DA393000000122B0229296E04"
INSERT = (
    "826B0DA393000000122B022C0100296E5A1004E2C91EF09E4B445C964F51C044215F7D461E5F6964002B020004"
)
SECOND_OF_TRANSACTION = (
    "826B0DA393000000122B022C01002B026E5A1004E2C91EF09E4B445C964F51C044215F7D461E5F6964002B060004"
)
LATE_IN_TRANSACTION = (
    "826B0DA393000000122B022C01002C03E86E5A1004E2C91EF09E4B445C964F51C044215F7D461E5F6964002B060004"
)
INVALIDATE = "826B0DA393000000122B022C0100296F5A1004E2C91EF09E4B445C964F51C044215F7D04"


@pytest.mark.parametrize(
    ("data", "token"),
    [
        (HIGH_WATER, Token(TIME, None, event=False)),
        (HIGH_WATER.lower(), Token(TIME, None, event=False)),
        (HIGH_WATER + UUID.hex, Token(TIME, UUID.bytes, event=False)),
        (HIGH_WATER + "00", Token(TIME, None, event=False)),
        (INSERT, Token(TIME, UUID.bytes, event=True)),
        (SECOND_OF_TRANSACTION, Token(TIME, UUID.bytes, event=True)),
        (LATE_IN_TRANSACTION, Token(TIME, UUID.bytes, event=True)),
        (INVALIDATE, Token(TIME, UUID.bytes, event=True)),
        # An event of no collection, such as dropDatabase.
        ("826B0DA393000000122B022C0100296E1404", Token(TIME, None, event=True)),
        ("", None),
        ("82", None),
        ("zz", None),
        ("8200", None),
        ("826B0DA39300000012", None),
        ("826B0DA393000000122B0229", None),
        ("836B0DA393000000122B0229296E04", None),
        ("826B0DA393000000122B0229296E", None),
        (HIGH_WATER + " ", None),
        (HIGH_WATER + "0", None),
    ],
)
def test_parsed(data: str, token: Token | None) -> None:
    assert parse_token(data) == token


def test_only_a_high_water_mark_is_marked_and_only_once() -> None:
    own = marked(HIGH_WATER, UUID.bytes)
    assert own == HIGH_WATER + UUID.hex.upper()
    assert unmarked(own) == HIGH_WATER
    assert marked(own, OTHER.bytes) == own
    for data in (INSERT, INVALIDATE, "", "zz", HIGH_WATER[:-2]):
        assert marked(data, UUID.bytes) == data
        assert unmarked(data) == data
    assert unmarked(HIGH_WATER) == HIGH_WATER


@given(st.text(alphabet="0123456789abcdefABCDEF \0zé", max_size=80))
def test_nothing_raises(data: str) -> None:
    parse_token(data)
    assert unmarked(marked(data, UUID.bytes)) in (data, unmarked(data))


@given(st.integers(0, len(INSERT)), st.integers(0, 255))
def test_cut_and_changed_tokens_raise_nothing(at: int, byte: int) -> None:
    parse_token(INSERT[:at])
    parse_token(INSERT[: at & ~1] + f"{byte:02X}" + INSERT[(at & ~1) + 2 :])
