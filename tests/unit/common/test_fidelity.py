"""Which documents are plain: Python's BSON code gives the same bytes back, so no name repeats in them."""

import struct

import pytest
from bson import Decimal128, encode
from bson.timestamp import Timestamp
from hypothesis import given, strategies as st

from thermocline_common.fidelity import is_plain, repeats_names
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
