"""Which documents are plain (Python's BSON code gives the same bytes back, so no name repeats in them), and
by which form each is written."""

import struct

import pytest
from bson import Decimal128, decode, encode
from bson.timestamp import Timestamp
from hypothesis import given, strategies as st

from thermocline_common.fidelity import Form, form_of, is_plain, repeats_names, zeroing
from thermocline_common.ids import wrap

ID = b"\x10_id\0\1\0\0\0"
ONE, TWO = b"\x10%s\0\1\0\0\0", b"\x10%s\0\2\0\0\0"


def scope(*fields: bytes) -> bytes:
    inner = wrap(*fields)
    return b"\x0fw\0" + struct.pack("<i", 4 + 6 + len(inner)) + b"\2\0\0\0x\0" + inner


def deep(levels: int) -> bytes:
    document = wrap(ONE % b"x")
    for _ in range(levels):
        document = wrap(b"\x03a\0" + document)
    return document


PLAIN = {
    "numbers": encode({"_id": 1, "a": 1, "b": 1.5, "c": -0.0, "d": Decimal128("1.0")}),
    "nested": encode({"_id": 1, "a": {"b": 1, "c": {"b": 1}}, "m": [{"b": 1}, {"b": 2}]}),
    "times": wrap(ID, b"\x09t\0" + struct.pack("<q", 2**60), b"\x11s\0" + b"\0" * 8),
    "nan": wrap(ID, b"\x01n\0\1\0\0\0\0\0\xf8\x7f"),
    "scope": wrap(ID, scope(ONE % b"a")),
    "odd names": wrap(ID, ONE % b"", ONE % b"a.b", ONE % b"$x"),
    "180 levels": deep(179),
}
NOT_PLAIN = {
    "repeated": wrap(ID, ONE % b"a", TWO % b"a"),
    "the same twice": wrap(ID, ONE % b"a", ONE % b"a"),
    "within": wrap(ID, b"\x03in\0" + wrap(ONE % b"a", TWO % b"a")),
    "within an array": wrap(ID, b"\x04m\0" + wrap(b"\x030\0" + wrap(ONE % b"a", TWO % b"a"))),
    "array": wrap(ID, b"\x04m\0" + wrap(ONE % b"0", TWO % b"0")),
    "odd array": wrap(ID, b"\x04m\0" + wrap(ONE % b"7", TWO % b"3")),
    "scope": wrap(ID, scope(ONE % b"a", TWO % b"a")),
    "no reference": wrap(ID, b"\x03r\0" + wrap(ONE % b"$ref", ONE % b"$id", TWO % b"$id")),
    "bad string": wrap(ID, b"\x02s\0\2\0\0\0\xff\0"),
    "symbol": wrap(ID, b"\x0es\0\2\0\0\0x\0"),
    "undefined": wrap(ID, b"\x06u\0"),
    "very deep": deep(5_000),
    "cut": wrap(ID, ONE % b"a")[:-3],
    "no BSON": b"",
}


@pytest.mark.parametrize("document", PLAIN.values(), ids=PLAIN.keys())
def test_plain(document: bytes) -> None:
    assert is_plain(document)


@pytest.mark.parametrize("document", NOT_PLAIN.values(), ids=NOT_PLAIN.keys())
def test_not_plain(document: bytes) -> None:
    assert not is_plain(document)


NAMES = st.sampled_from([b"a", b"b", b"0", b"1", b"", b"$id", b"$ref", b"$db"])
FIELDS = st.lists(st.tuples(NAMES, st.sampled_from([ONE, TWO])), max_size=4).map(
    lambda fields: [kind % name for name, kind in fields]
)
DOCUMENTS = st.recursive(
    FIELDS,
    lambda inner: st.lists(
        st.tuples(st.sampled_from([b"\x03", b"\x04"]), NAMES, inner), min_size=1, max_size=3
    ).map(lambda fields: [kind + name + b"\0" + wrap(*of) for kind, name, of in fields]),
    max_leaves=6,
)


@given(DOCUMENTS)
def test_what_repeats_a_name_is_never_plain(fields: list[bytes]) -> None:
    document = wrap(ID, *fields)
    assert not (is_plain(document) and repeats_names(document))


def test_ordinary_documents_are_plain() -> None:
    assert is_plain(
        encode({"_id": 1, "at": Timestamp(5, 1), "lines": [{"n": i} for i in range(20)]})
    )


def _field(name: bytes, value: int = 1) -> bytes:
    return b"\x10" + name + b"\0" + value.to_bytes(4, "little")


def _zero(name: bytes) -> bytes:
    return b"\x11" + name + b"\0" + b"\0" * 8


REPEATED = _field(b"r") + _field(b"r", 2)


@pytest.mark.parametrize(
    ("fields", "form", "zeros"),
    [
        (_field(b"a"), Form.REPLACEMENT, []),
        (REPEATED, Form.REPLACEMENT, []),
        (_field(b"$a"), Form.PIPELINE, []),
        (_zero(b"t"), Form.PIPELINE, [b"t"]),
        (REPEATED + _field(b"$a"), Form.INSERT, []),
        (_field(b"$a") * 2, Form.INSERT, []),
        (REPEATED + _zero(b"t"), Form.INSERT, [b"t"]),
        (_zero(b"t") + REPEATED + _zero(b"u") + _field(b"$a"), Form.INSERT, [b"t", b"u"]),
        (_zero(b"7") + REPEATED, Form.INSERT, [b"7"]),
        (_zero(b"t") * 2, Form.NONE, None),
        (_zero(b"r") + REPEATED, Form.NONE, None),
        (_zero(b"a.b") + REPEATED, Form.NONE, None),
        (_zero(b"$t") + REPEATED, Form.NONE, None),
        (_zero(b"") + REPEATED, Form.NONE, None),
        (_zero(b"\xff") + REPEATED, Form.NONE, None),
        (b"\x03in\0" + wrap(_zero(b"t"), REPEATED), Form.REPLACEMENT, []),
    ],
)
def test_forms(fields: bytes, form: Form, zeros: list[bytes] | None) -> None:
    document = wrap(_field(b"_id", 7), fields)
    assert form_of(document) is form
    if zeros is None:
        return
    statement = zeroing(document)
    if not zeros:
        assert statement is None
        return
    assert statement is not None
    assert decode(statement) == {
        "q": {"_id": 7},
        "u": {"$set": {name.decode(): Timestamp(0, 0) for name in zeros}},
    }
