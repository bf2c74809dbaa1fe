"""Is a register's history linearizable? Wing and Gong's search with Lowe's memory. Pure.

A history is linearizable if its operations can be put in an order that respects real time (what
returned before another was invoked comes first) and in which each result is what a single document
would have answered. Operations of unknown outcome may take effect at any time after their invocation,
or never. Keys are independent of each other, so each key's history is searched on its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from support.chaos.histories import Kind, Operation

LIMIT: Final = 400_000
"""States looked at before the search gives up."""


class Judgement(StrEnum):
    """What the search found."""

    LINEARIZABLE = "linearizable"
    NOT = "not linearizable"
    UNDECIDED = "undecided"


def step(state: Any, operation: Operation) -> tuple[bool, Any]:
    """Whether a register in this state (None: absent) may answer so, and its state afterwards."""
    known = operation.returned is not None
    result, argument = operation.result, operation.argument
    there = state is not None
    match operation.kind:
        case Kind.READ:
            return (not known or result == state), state
        case Kind.PUT:
            return (not known or result == there), argument
        case Kind.SET:
            return (not known or result == there), (argument if there else None)
        case Kind.INSERT:
            return (not known or result == (not there)), (state if there else argument)
        case Kind.DELETE:
            return (not known or result == there), None
        case Kind.COMPARE:
            matches = there and state == argument[0]
            return (not known or result == matches), (argument[1] if matches else state)
        case Kind.SWAP:
            return (not known or result == state), (argument if there else None)
        case Kind.REMOVE:
            matches = there and state == argument
            return (not known or result == matches), (None if matches else state)


def judge(
    history: Sequence[Operation],
    initial: Any = None,
    *,
    limit: int = LIMIT,
    model: Callable[[Any, Operation], tuple[bool, Any]] = step,
) -> Judgement:
    """Judge one key's history that began in the state ``initial``."""
    # An unknown outcome of a read tells nothing.
    kept = [o for o in history if o.returned is not None or o.kind is not Kind.READ]
    operations = sorted(kept, key=lambda o: o.invoked)
    ends = [float("inf") if o.returned is None else o.returned for o in operations]
    everything = sum(1 << i for i, o in enumerate(operations) if o.returned is not None)
    seen: set[tuple[int, Any]] = set()
    stack: list[tuple[int, int, Any]] = [(0, 0, initial)]
    while stack:
        first, done, state = stack.pop()
        while (done >> first) & 1:
            first += 1
        if done & everything == everything:
            return Judgement.LINEARIZABLE
        if (done, state) in seen:
            continue
        seen.add((done, state))
        if len(seen) > limit:
            return Judgement.UNDECIDED
        stack += [
            (first, done | 1 << i, after)
            for i, after in _choices(operations, ends, first, done, state, model)
        ]
    return Judgement.NOT


def _choices(
    operations: Sequence[Operation],
    ends: Sequence[float],
    first: int,
    done: int,
    state: Any,
    model: Callable[[Any, Operation], tuple[bool, Any]],
) -> list[tuple[int, Any]]:
    """Which operations may come next, the likeliest last."""
    possible: list[tuple[int, Any]] = []
    earliest = float("inf")
    for i in range(first, len(operations)):
        if (done >> i) & 1:
            continue
        if operations[i].invoked > earliest:
            break
        earliest = min(earliest, ends[i])
    for i in range(first, len(operations)):
        if operations[i].invoked > earliest:
            break
        if (done >> i) & 1:
            continue
        fits, after = model(state, operations[i])
        if not fits:
            continue
        if _only_looks(operations[i]):
            # Wherever it stands it changes nothing, so it can come first without loss.
            return [(i, after)]
        if after == state and operations[i].returned is None:
            continue  # it would have no effect now; it may have one later
        possible.append((i, after))
    possible.sort(key=lambda choice: -ends[choice[0]])
    return possible


def _only_looks(operation: Operation) -> bool:
    """Whether, by its result, it changes nothing in any state."""
    if operation.returned is None:
        return False
    if operation.kind is Kind.PUT:
        return False
    return operation.kind is Kind.READ or operation.result is None or operation.result is False


def minimal(history: Sequence[Operation], initial: Any = None) -> list[Operation]:
    """The shortest beginning of a history that isn't linearizable, without reads that don't matter."""
    ordered = sorted(history, key=lambda o: float("inf") if o.returned is None else o.returned)
    ends = [o.returned for o in ordered if o.returned is not None]
    low, high = 0, len(ends)  # the beginning with `high` results is wrong, that with `low` isn't
    while high - low > 1:
        middle = (low + high) // 2
        if judge(_until(ordered, ends[middle - 1]), initial) is Judgement.NOT:
            high = middle
        else:
            low = middle
    short = _until(ordered, ends[high - 1]) if ends else list(ordered)
    for operation in [o for o in short if o.kind is Kind.READ]:
        without = [o for o in short if o is not operation]
        if judge(without, initial) is Judgement.NOT:
            short = without
    return sorted(short, key=lambda o: o.invoked)


def _until(history: Sequence[Operation], end: float) -> list[Operation]:
    """What had been invoked by then; what hadn't returned is of unknown outcome."""
    short = []
    for operation in history:
        if operation.invoked > end:
            continue
        if operation.returned is not None and operation.returned > end:
            operation = replace(operation, result=None, returned=None)
        short.append(operation)
    return short
