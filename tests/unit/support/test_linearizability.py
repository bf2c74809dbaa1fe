"""The checker finds what is wrong, and only that: it is tried on all small histories by brute force."""

import itertools
import random
from typing import Any

import pytest

from support.chaos.histories import Kind, Operation
from support.chaos.linearizability import Judgement, judge, minimal, step

K = Kind


def op(
    kind: Kind,
    argument: Any,
    result: Any,
    invoked: float,
    returned: float | None,
    client: str = "c",
) -> Operation:
    return Operation(client, kind, 1, argument, result, invoked, returned)


@pytest.mark.parametrize(
    ("name", "initial", "history", "right"),
    [
        ("nothing happened", None, [], True),
        ("reads its own write", None, [op(K.PUT, 1, False, 0, 1), op(K.READ, None, 1, 2, 3)], True),
        ("stale read", 0, [op(K.PUT, 1, True, 0, 1), op(K.READ, None, 0, 2, 3)], False),
        (
            "read during the write: old",
            0,
            [op(K.PUT, 1, True, 0, 5), op(K.READ, None, 0, 2, 3)],
            True,
        ),
        (
            "read during the write: new",
            0,
            [op(K.PUT, 1, True, 0, 5), op(K.READ, None, 1, 2, 3)],
            True,
        ),
        (
            "new, then old again",
            0,
            [op(K.PUT, 1, True, 0, 9), op(K.READ, None, 1, 1, 2), op(K.READ, None, 0, 3, 4)],
            False,
        ),
        ("lost write", 0, [op(K.SET, 1, True, 0, 1), op(K.SWAP, 2, 0, 2, 3)], False),
        (
            "deleted comes back",
            0,
            [op(K.DELETE, None, True, 0, 1), op(K.READ, None, 0, 2, 3)],
            False,
        ),
        (
            "deleted twice",
            0,
            [op(K.DELETE, None, True, 0, 1), op(K.DELETE, None, True, 0, 1)],
            False,
        ),
        (
            "one of two deletes",
            0,
            [op(K.DELETE, None, True, 0, 1), op(K.DELETE, None, False, 0, 1)],
            True,
        ),
        ("inserted twice", None, [op(K.INSERT, 1, True, 0, 1), op(K.INSERT, 2, True, 0, 1)], False),
        ("duplicate of nothing", None, [op(K.INSERT, 1, False, 0, 1)], False),
        ("update of nothing counted", None, [op(K.SET, 1, True, 0, 1)], False),
        ("missed what was there", 0, [op(K.SET, 1, False, 0, 1)], False),
        ("upsert over a document", 0, [op(K.PUT, 1, False, 0, 1)], False),
        (
            "both compare-and-sets win",
            0,
            [op(K.COMPARE, (0, 1), True, 0, 1), op(K.COMPARE, (0, 2), True, 0, 1)],
            False,
        ),
        ("unknown, never", 0, [op(K.SET, 1, None, 0, None), op(K.READ, None, 0, 5, 6)], True),
        ("unknown, late", 0, [op(K.SET, 1, None, 0, None), op(K.READ, None, 1, 5, 6)], True),
        (
            "unknown, then undone",
            0,
            [op(K.SET, 1, None, 0, None), op(K.READ, None, 1, 5, 6), op(K.READ, None, 0, 7, 8)],
            False,
        ),
        (
            "unknown, not yet begun",
            0,
            [op(K.SET, 1, None, 9, None), op(K.READ, None, 1, 5, 6)],
            False,
        ),
        ("removed another's", 5, [op(K.REMOVE, 6, True, 0, 1)], False),
        ("removed its own", 5, [op(K.REMOVE, 5, True, 0, 1), op(K.INSERT, 6, True, 2, 3)], True),
        ("taken while held", 5, [op(K.INSERT, 6, True, 2, 3)], False),
    ],
)
def test_table(name: str, initial: Any, history: list[Operation], right: bool) -> None:
    expected = Judgement.LINEARIZABLE if right else Judgement.NOT
    assert judge(history, initial) is expected, name


def by_brute_force(history: list[Operation], initial: Any) -> bool:
    """Every order of every choice of the unknown ones."""
    known = [o for o in history if o.returned is not None]
    unknown = [o for o in history if o.returned is None]
    for size in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, size):
            if any(fits(order, initial) for order in itertools.permutations([*known, *chosen])):
                return True
    return False


def fits(order: tuple[Operation, ...], initial: Any) -> bool:
    state = initial
    for i, operation in enumerate(order):
        if any(o.returned is not None and o.returned < operation.invoked for o in order[i + 1 :]):
            return False
        right, state = step(state, operation)
        if not right:
            return False
    return True


def random_history(dice: random.Random) -> list[Operation]:
    """A few operations with results that are often right."""
    history = []
    for number in range(dice.randrange(2, 7)):
        kind = dice.choice(list(Kind))
        invoked = float(dice.randrange(8))
        returned = None if dice.random() < 0.15 else invoked + 0.5 + dice.randrange(4)
        value = dice.choice([None, 0, 1, 2])
        argument: Any = number % 3
        result: Any = dice.random() < 0.6
        if kind in (Kind.READ, Kind.SWAP):
            result = value
        if kind is Kind.COMPARE:
            argument = (dice.randrange(3), number % 3)
        history.append(op(kind, argument, result if returned else None, invoked, returned))
    return history


def test_agrees_with_brute_force() -> None:
    dice = random.Random(3)
    verdicts = []
    for _ in range(1_500):
        history = random_history(dice)
        initial = dice.choice([None, 0])
        right = by_brute_force(history, initial)
        verdicts.append(right)
        assert (judge(history, initial) is Judgement.LINEARIZABLE) == right, "\n".join(
            map(str, history)
        )
    assert 150 < sum(verdicts) < 1_350, "both kinds of histories were tried"


def simulated(seed: int, operations: int, unknown: float) -> list[Operation]:
    """A long history of five clients on a real register: linearizable by construction."""
    dice = random.Random(seed)
    state: Any = None
    free = {f"c{i}": 0.0 for i in range(5)}
    history = []
    clock = 0.0
    for number in range(operations):
        clock += 1.0  # the moment at which this one takes effect
        client = dice.choice([c for c, since in free.items() if since < clock])
        kind = dice.choice(list(Kind))
        argument: Any = (state, number) if kind is Kind.COMPARE else number
        answers = [None, True, False, state]
        done = op(kind, argument, None, 0, 1)
        result = next(r for r in answers if step(state, op(kind, argument, r, 0, 1))[0])
        state = step(state, done)[1]
        invoked = dice.uniform(max(free[client], clock - 4), clock)
        returned = clock + dice.uniform(0, 0.9)
        free[client] = returned
        lost = dice.random() < unknown
        history.append(
            op(
                kind,
                argument,
                None if lost else result,
                invoked,
                None if lost else returned,
                client,
            )
        )
    return history


@pytest.mark.parametrize("seed", range(8))
def test_long_histories_are_judged_fast(seed: int) -> None:
    history = simulated(seed, 300, 0.015)
    assert judge(history) is Judgement.LINEARIZABLE


@pytest.mark.parametrize("seed", range(8))
def test_one_wrong_read_in_a_long_history_is_found_and_cut_out(seed: int) -> None:
    history = simulated(seed, 200, 0.0)
    wrong = op(Kind.READ, None, -1, history[150].invoked, history[150].returned, "liar")
    history.append(wrong)
    assert judge(history) is Judgement.NOT
    short = minimal(history)
    assert wrong in short
    assert max(o.invoked for o in short) <= (wrong.returned or 0)
    assert judge(short) is Judgement.NOT


def test_gives_up_rather_than_running_for_ever() -> None:
    history = [op(Kind.PUT, i, True, 0, 100, f"c{i}") for i in range(14)]
    history += [op(Kind.READ, None, -1, 0, 100)]
    assert judge(history, 0, limit=1_000) is Judgement.UNDECIDED
