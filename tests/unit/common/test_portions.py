"""How ids are divided among commands: whatever their length, none is too large and none is left out."""

import itertools
import random

import pytest
from bson import encode

from thermocline_common.ids import DocId, in_filter, records_filter
from thermocline_common.portions import (
    COMMAND_BYTES,
    MOST_BYTES,
    MOST_IDS,
    cut,
    first_portion,
    portions,
    room_beside,
)

LIMIT = 16 * 1024 * 1024
LONGEST_NAME = "d" * 63 + "." + "c" * 191


def ids(count: int, length: int) -> list[DocId]:
    return [DocId.of_document(encode({"_id": f"{i}/" + "i" * length})) for i in range(count)]


def test_usual_ids_go_by_number() -> None:
    wanted = ids(2 * MOST_IDS + 1, 20)
    assert [len(portion) for portion in portions(wanted)] == [MOST_IDS, MOST_IDS, 1]
    assert [len(portion) for portion in portions(wanted, 1_500)] == [1_500, 501]
    assert list(portions([])) == []


@pytest.mark.parametrize(
    ("count", "length"),
    [(2_000, 20_000), (1_000, 10_000), (5, 8 * 1024 * 1024), (MOST_IDS + 1, 5_000), (3, 4_194_290)],
)
@pytest.mark.parametrize("most_bytes", [MOST_BYTES, 2 * MOST_BYTES])
def test_long_ids_go_by_size_and_none_is_left_out(count: int, length: int, most_bytes: int) -> None:
    wanted = ids(count, length)
    made = list(portions(wanted, most_bytes=most_bytes))
    assert [i for portion in made for i in portion] == wanted
    for portion in made:
        assert 0 < len(portion) <= MOST_IDS
        assert len(portion) == 1 or sum(len(i.value) for i in portion) <= most_bytes
        assert len(in_filter(portion)) < LIMIT
        assert len(records_filter(LONGEST_NAME, portion)) < LIMIT
    assert first_portion(wanted, most_bytes=most_bytes) == made[0]


def test_one_long_id_among_short_ones_parts_them_only_where_it_must() -> None:
    short, long = ids(4, 10), ids(1, 8 * 1024 * 1024)
    assert list(portions([*short[:2], *long, *short[2:]])) == [short[:2], long, short[2:]]


def test_anything_is_cut_likewise() -> None:
    chance = random.Random(7)
    for _ in range(200):
        items = [
            chance.randbytes(chance.choice((0, 1, 5, 30))) for _ in range(chance.randrange(30))
        ]
        made = list(cut(items, len, 4, 20))
        assert [item for portion in made for item in portion] == items
        assert all(len(p) == 1 or (len(p) <= 4 and sum(map(len, p)) <= 20) for p in made)
        # Greedy: the next item would not have fitted.
        for portion, following in itertools.pairwise(made):
            full = len(portion) == 4 or sum(map(len, portion)) + len(following[0]) > 20
            assert full


def test_room_beside_what_a_statement_holds_already() -> None:
    assert room_beside(100) == MOST_BYTES
    assert room_beside(COMMAND_BYTES - 1_000, 500) == 500
    assert room_beside(LIMIT) == 1, "one id is tried: the server says what is too large"
