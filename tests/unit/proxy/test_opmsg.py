"""OP_MSG: what mongod 6.0.5 takes and what it answers to what it doesn't."""

import contextlib
import struct
from typing import Any

import bson
import pytest
from hypothesis import given, strategies as st

from thermocline_proxy.wire import opmsg
from thermocline_proxy.wire.checksum import crc32c
from thermocline_proxy.wire.header import ProtocolViolation, WireError
from thermocline_proxy.wire.replies import error_document
from thermocline_proxy.wire.scan import scan


def message(*sections: bytes, flags: int = 0, end: bytes = b"") -> bytes:
    payload = struct.pack("<I", flags) + b"".join(sections) + end
    return struct.pack("<iiii", 16 + len(payload), 7, 0, 2013) + payload


def body(document: dict[str, Any]) -> bytes:
    return b"\0" + bson.encode(document)


def sequence(name: str, *documents: dict[str, Any], size: int | None = None) -> bytes:
    raw = name.encode() + b"\0" + b"".join(bson.encode(d) for d in documents)
    return b"\1" + struct.pack("<i", 4 + len(raw) if size is None else size) + raw


INSERT = {"insert": "c", "$db": "t"}


@pytest.mark.parametrize(
    ("sections", "code"),
    [
        pytest.param((body(INSERT), body(INSERT)), 40430, id="two bodies"),
        pytest.param((body(INSERT), sequence("d", {}), sequence("d", {})), 40431, id="same name"),
        pytest.param((body(INSERT), b"x"), 40432, id="unknown kind"),
        pytest.param((body({**INSERT, "d": 1}), sequence("d", {})), 40433, id="body and sequence"),
        pytest.param((sequence("d", {}),), 40587, id="no body"),
        pytest.param((), 40587, id="flags only"),
        pytest.param((b"\2" + bson.encode(INSERT),), 13, id="security token"),
        pytest.param((body(INSERT), sequence("d", {}, size=500)), 15, id="sequence too long"),
        pytest.param((body(INSERT), sequence("d", {}, size=-5)), 15, id="negative sequence"),
        pytest.param((body(INSERT), sequence("d", {}, size=2)), 15, id="sequence too short"),
        pytest.param((b"\0" + struct.pack("<i", 5000) + b"x\0",), 22, id="body too long"),
        pytest.param((b"\0" + struct.pack("<i", -5) + b"x\0",), 22, id="negative body"),
        pytest.param((b"\0" + bson.encode(INSERT)[:-1] + b"x",), 22, id="no end"),
        pytest.param((b"\0" + b"\x0c\0\0\0" + b"\x55a\0xxxx" + b"\0",), 22, id="unknown type"),
    ],
)
def test_malformed_messages_get_an_error(sections: tuple[bytes, ...], code: int) -> None:
    with pytest.raises(WireError) as caught:
        opmsg.parse(message(*sections))
    assert caught.value.code == code


def test_sections_may_come_in_any_order() -> None:
    parsed = opmsg.parse(message(sequence("documents", {"_id": 1}, {"_id": 2}), body(INSERT)))
    assert bson.decode(parsed.body) == INSERT
    assert [bson.decode(d) for d in parsed.sequences["documents"]] == [{"_id": 1}, {"_id": 2}]
    assert parsed.request_id == 7


def test_a_repeated_field_is_refused() -> None:
    fields = (
        bson.encode({"find": "c", "$db": "a"})[4:-1] + bson.encode({"$db": "thermocline"})[4:-1]
    )
    raw = struct.pack("<i", len(fields) + 5) + fields + b"\0"
    with pytest.raises(WireError) as caught:
        opmsg.parse(message(b"\0" + raw))
    assert caught.value.code == 40413
    assert "$db" in caught.value.message


@pytest.mark.parametrize("flags", [1 << 2, 1 << 5, 1 << 15])
def test_unknown_required_flags_end_the_connection(flags: int) -> None:
    with pytest.raises(ProtocolViolation):
        opmsg.parse(message(body(INSERT), flags=flags))


def test_unknown_optional_flags_are_ignored() -> None:
    assert opmsg.parse(message(body(INSERT), flags=1 << 20)).flags == 1 << 20


def test_checksums() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    good = message(body(INSERT), flags=1, end=b"\0\0\0\0")
    good = good[:-4] + struct.pack("<I", crc32c(good[:-4]))
    assert bson.decode(opmsg.parse(good).body) == INSERT
    with pytest.raises(ProtocolViolation):
        opmsg.parse(good[:-1] + bytes([good[-1] ^ 1]))
    made = opmsg.encode(7, 0, bson.encode(INSERT), {"documents": [bson.encode({})]}, flags=1)
    assert opmsg.parse(made).flags == 1
    assert bson.decode(opmsg.parse(made).body) == INSERT


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (bson.encode({"find": "c", "filter": {"a": {"b": 1}}}), None),
        (bson.encode({"find": "c", "filter": {"ab": 1}}).replace(b"\x10ab\0", b"\x55ab\0"), 22),
        (bson.encode({"find": "~~~"}).replace(b"~~~", b"\xff\xfe~"), 22),
    ],
)
def test_damage_is_looked_for_where_an_answer_failed(raw: bytes, code: int | None) -> None:
    for made in (message(b"\0" + raw), message(sequence("d"), b"\0" + raw)):
        found = opmsg.damage(made)
        assert (None if found is None else found.code) == code


def test_an_error_may_quote_any_text() -> None:
    quoted = b"no such mechanism: \xff\xfe".decode("utf-8", "surrogateescape")
    errmsg = bson.decode(error_document(59, quoted, "CommandNotFound"))["errmsg"]
    assert errmsg == "no such mechanism: \ufffd\ufffd"


@given(st.binary(max_size=200))
def test_garbage_never_escapes_as_another_exception(garbage: bytes) -> None:
    raw = struct.pack("<iiii", 16 + len(garbage), 7, 0, 2013) + garbage
    with contextlib.suppress(WireError, ProtocolViolation):
        opmsg.parse(raw)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=8),
        st.binary(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["a", "$db", "filter", "lsid", "x.y"]), VALUES))
def test_scanning_finds_what_decoding_finds(document: dict[str, Any]) -> None:
    raw = bson.encode(document)
    spans = scan(b"pad" + raw + b"behind", 3)
    assert [name.decode() for name in spans] == list(document)
    for name, (_, begin, _, end) in spans.items():
        element = (b"pad" + raw)[begin:end]
        one = struct.pack("<i", len(element) + 5) + element + b"\0"
        assert bson.encode({name.decode(): document[name.decode()]}) == one


@given(st.binary(max_size=40))
def test_encoding_is_the_inverse_of_parsing(payload: bytes) -> None:
    raw = bson.encode({"insert": "c", "p": payload})
    documents = [bson.encode({"_id": 1}), bson.encode({"p": payload})]
    parsed = opmsg.parse(opmsg.encode(5, 0, raw, {"documents": documents}))
    assert parsed.body == raw
    assert list(parsed.sequences["documents"]) == documents
