"""How ids are divided among find commands."""

from bson import encode

from thermocline_common.ids import DocId, in_filter, records_filter
from thermocline_feeder.fetch import CHUNK, _chunks

LIMIT = 16 * 1024 * 1024


def ids(count: int, length: int) -> list[DocId]:
    return [DocId.of_document(encode({"_id": f"{i}/" + "i" * length})) for i in range(count)]


def test_usual_ids_go_by_number() -> None:
    wanted = ids(2 * CHUNK + 1, 20)
    assert [len(chunk) for chunk in _chunks(wanted)] == [CHUNK, CHUNK, 1]


def test_long_ids_go_by_size_and_none_is_left_out() -> None:
    for count, length in ((2_000, 20_000), (5, 7_000_000), (CHUNK + 1, 3_000)):
        wanted = ids(count, length)
        chunks = list(_chunks(wanted))
        assert [i for chunk in chunks for i in chunk] == wanted
        for chunk in chunks:
            assert 0 < len(chunk) <= CHUNK
            assert len(in_filter(chunk)) < LIMIT
            assert len(records_filter("shop.orders", chunk)) < LIMIT
