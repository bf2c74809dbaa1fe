"""Packed messages: what comes out is what went in, and lies about sizes cost nothing."""

import contextlib
import struct
import tracemalloc
import zlib

import bson
import cramjam
import pytest
from hypothesis import given, strategies as st

from thermocline_proxy.wire.compression import Compressor, agreed, announced, pack, unpack
from thermocline_proxy.wire.header import MAX_MESSAGE_SIZE, ProtocolViolation
from thermocline_proxy.wire.opmsg import encode

PING = encode(7, 3, bson.encode({"ping": 1, "$db": "admin"}))


def packed(data: bytes, size: int, compressor: int = Compressor.ZLIB, opcode: int = 2013) -> bytes:
    payload = struct.pack("<iiB", opcode, size, compressor) + data
    return struct.pack("<iiii", 16 + len(payload), 7, 3, 2012) + payload


def compressed(data: bytes, compressor: Compressor) -> bytes:
    """By other code than the proxy's own."""
    if compressor is Compressor.ZLIB:
        return zlib.compress(data, 9)
    if compressor is Compressor.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    return bytes(cramjam.zstd.compress(data, 9))


@given(st.binary(max_size=3_000), st.sampled_from(Compressor))
def test_packing_and_unpacking(payload: bytes, compressor: Compressor) -> None:
    frame = encode(5, 9, bson.encode({"p": payload}))
    there = pack(frame, compressor)
    assert struct.unpack_from("<i", there)[0] == len(there)
    assert announced(there) == len(frame)
    assert unpack(there, MAX_MESSAGE_SIZE) == (frame, compressor)


@pytest.mark.parametrize("compressor", Compressor)
def test_the_announced_size_is_the_size(compressor: Compressor) -> None:
    data = compressed(PING[16:], compressor)
    size = len(PING) - 16
    assert unpack(packed(data, size, compressor), 48_000_000)[0] == PING
    tracemalloc.start()
    try:
        for other in (size + 1, size - 1, 1, 0, -1, -(2**31), 47_999_984, 47_999_985, 2**31 - 1):
            with pytest.raises(ProtocolViolation):
                unpack(packed(data, other, compressor), 48_000_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compressor", Compressor)
def test_a_bomb_costs_no_more_than_it_announces(compressor: Compressor) -> None:
    bomb = compressed(bytes(200_000_000), compressor)
    if compressor is not Compressor.SNAPPY:  # which packs 20 to 1 at best
        assert len(bomb) < 250_000
    frames = [packed(bomb, size, compressor) for size in (100, 100_000)]
    tracemalloc.start()
    try:
        for frame in frames:
            with pytest.raises(ProtocolViolation):
                unpack(frame, 48_000_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compressor", Compressor)
@pytest.mark.parametrize("damage", ["empty", "garbage", "cut"])
def test_what_cannot_be_read_ends_the_connection(compressor: Compressor, damage: str) -> None:
    data = {"empty": b"", "garbage": b"\xff" * 40, "cut": compressed(PING[16:], compressor)[:-3]}
    with pytest.raises(ProtocolViolation):
        unpack(packed(data[damage], len(PING) - 16, compressor), 48_000_000)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(packed(PING[16:], len(PING) - 16, 0), id="not compressed"),
        pytest.param(packed(PING[16:], len(PING) - 16, 9), id="unknown compressor"),
        pytest.param(packed(zlib.compress(PING[16:]), len(PING) - 16, opcode=9999), id="opcode"),
        pytest.param(
            packed(zlib.compress(pack(PING, Compressor.ZLIB)[16:]), 900, opcode=2012), id="nested"
        ),
        pytest.param(packed(b"", 5)[:24], id="no compressor"),
        pytest.param(packed(b"", 5)[:16], id="header only"),
    ],
)
def test_other_contents_end_the_connection(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        unpack(frame, 48_000_000)


@given(st.binary(max_size=300), st.sampled_from([1, 2, 3]), st.integers(-5, 5_000))
def test_garbage_never_escapes_as_another_exception(
    data: bytes, compressor: int, size: int
) -> None:
    with contextlib.suppress(ProtocolViolation):
        unpack(packed(data, size, compressor), 48_000_000)


def test_names_are_agreed_on_in_the_clients_order() -> None:
    assert agreed(["zstd", "lz4", "snappy", "noop", "zlib"]) == ("zstd", "snappy", "zlib")
    assert agreed([]) == ()
