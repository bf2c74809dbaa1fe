"""Damaged certificates and keys: refused in words, whatever is damaged, and never quoted."""

import datetime as dt

import pytest
from hypothesis import given, settings, strategies as st

from support.pki import Authority
from thermocline_common.certificates import Unusable, check_key, read_certificates

PAIR = Authority("tests").issue("server")
CHAIN = read_certificates(PAIR.certificate)
NOW = dt.datetime.now(dt.UTC)


def damaged(pem: bytes, at: int, byte: int, cut: int) -> bytes:
    changed = bytearray(pem)
    changed[at % len(pem)] = byte
    return bytes(changed[: len(changed) - cut % len(pem)])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2_000), st.integers(0, 255), st.integers(0, 2_000))
def test_damage_is_told_and_nothing_is_quoted(at: int, byte: int, cut: int) -> None:
    told = ""
    try:
        check_key(damaged(PAIR.key, at, byte, cut), CHAIN)
    except Unusable as error:
        told = str(error)
    assert not any(line in told for line in PAIR.key.decode().splitlines()[1:-1])
    try:
        found = read_certificates(damaged(PAIR.certificate, at, byte, cut))
    except Unusable:
        return
    assert found


def test_a_key_may_stand_before_or_behind_its_certificate() -> None:
    for pem in (PAIR.certificate + PAIR.key, PAIR.key + PAIR.certificate):
        check_key(pem, read_certificates(pem))


@pytest.mark.parametrize(
    ("begin", "days", "text"), [(-1, 30, None), (-3, 2, "expired on"), (1, 2, "isn't valid before")]
)
def test_time(begin: float, days: float, text: str | None) -> None:
    made = Authority("x").issue("y", begin=begin, days=days).certificate
    found = read_certificates(made)[0].untimely(NOW)
    assert (found is None) if text is None else (found or "").startswith(text)
