"""Cutting a stream into messages, however it arrives."""

import struct

import pytest
from hypothesis import given, strategies as st

from thermocline_proxy.wire.frames import FrameBuffer
from thermocline_proxy.wire.header import MAX_MESSAGE_SIZE, ProtocolViolation


def frame(payload: bytes) -> bytes:
    return struct.pack("<iiii", 16 + len(payload), 1, 0, 2013) + payload


@given(
    st.lists(st.binary(max_size=60), max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=40),
)
def test_any_cuts_give_the_same_messages(payloads: list[bytes], cuts: list[int]) -> None:
    frames = [frame(payload) for payload in payloads]
    stream = b"".join(frames)
    buffer = FrameBuffer()
    found: list[bytes] = []
    at = number = 0
    while at < len(stream):
        size = cuts[number % len(cuts)]
        found += buffer.feed(stream[at : at + size])
        at += size
        number += 1
    assert found == frames
    assert len(buffer) == 0


def test_three_messages_in_one_segment_and_a_beginning() -> None:
    buffer = FrameBuffer()
    frames = [frame(b"a"), frame(b""), frame(b"ccc")]
    assert buffer.feed(b"".join(frames) + frames[0][:5]) == frames
    assert buffer.feed(frames[0][5:]) == [frames[0]]


@pytest.mark.parametrize("length", [0, -1, 15, MAX_MESSAGE_SIZE + 1, 0x7FFFFFFF])
def test_an_impossible_length_ends_the_stream_at_once(length: int) -> None:
    with pytest.raises(ProtocolViolation):
        FrameBuffer().feed(struct.pack("<i", length))


@pytest.mark.parametrize(
    "start",
    [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x4a\x51\x33\x02\x90"],
)
def test_other_protocols_are_refused(start: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        FrameBuffer().feed(start)


def test_the_longest_message_is_waited_for() -> None:
    assert FrameBuffer().feed(struct.pack("<iiii", MAX_MESSAGE_SIZE, 1, 0, 2013)) == []
