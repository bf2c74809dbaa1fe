"""What a generator process knows of its own documents."""

import pytest

from rig.ledger import Ledger


@pytest.mark.parametrize(
    ("owner", "number", "own"),
    [(0, 10, 9), (1, 10, 10), (2, 10, 8), (0, 0, 0), (2, 0, 2), (2, 1, 2)],
)
def test_own_documents_have_the_owner_s_remainder(owner: int, number: int, own: int) -> None:
    assert Ledger(owner, 3, 100).own(number) == own


def test_a_read_may_find_what_was_sent_and_must_find_what_was_acknowledged() -> None:
    ledger = Ledger(0, 2, 100)
    assert (ledger.least(4), ledger.most(4)) == (0, 0)
    ledger.update_sent(4)
    assert (ledger.least(4), ledger.most(4)) == (0, 1)
    ledger.update_sent(4)
    ledger.update_acknowledged(4)
    assert (ledger.least(4), ledger.most(4)) == (1, 2)


@pytest.mark.parametrize(("owner", "first"), [(0, 102), (1, 100), (2, 101)])
def test_inserts_follow_the_loaded_documents_without_sharing_a_number(
    owner: int, first: int
) -> None:
    ledger = Ledger(owner, 3, 100)
    assert [ledger.next_insert() for _ in range(3)] == [first, first + 3, first + 6]
    assert ledger.own(first + 3) == first + 3


def test_inserted_documents_are_read_once_all_before_them_are_there() -> None:
    ledger = Ledger(1, 3, 100)
    numbers = [ledger.next_insert() for _ in range(3)]
    assert ledger.top == 100
    ledger.insert_acknowledged(numbers[1])
    assert ledger.top == 100
    ledger.insert_acknowledged(numbers[0])
    assert ledger.top == numbers[1] + 1
    ledger.insert_acknowledged(numbers[2])
    assert ledger.top == numbers[2] + 1
    assert ledger.own(ledger.top - 1) == numbers[2]
