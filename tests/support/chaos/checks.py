"""What must hold at the end of a run, as functions of what was written down. Pure."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from support.chaos.histories import Attempt, Operation, Outcome, Violation
from support.chaos.linearizability import Judgement, judge, minimal

ERRORS_END: Final = 30.0
"""Seconds after a fault by which errors must have ended."""
SHOWN: Final = 12
"""At most so many lines or violations of one kind are reported."""


@dataclass(frozen=True, slots=True)
class Span:
    """When a fault was there, in the run's seconds."""

    began: float
    ended: float


def patience(load: float, cores: int) -> float:
    """By how much longer things may take on a machine with this load: the run itself makes about two
    processes a core wait, and what others make wait is not the fault of what is tested."""
    return max(1.0, load / (2 * cores))


def judge_errors(
    attempts: Sequence[Attempt], faults: Sequence[Span], patience: float = 1.0
) -> list[Violation]:
    """Errors are of kinds that drivers retry, and met only while something is, or just was, broken."""
    violations = []
    errors_end = ERRORS_END * patience
    wrong = defaultdict(list)
    late = []
    for attempt in attempts:
        if attempt.outcome is Outcome.WRONG:
            wrong[attempt.what, attempt.error].append(attempt)
        elif attempt.outcome is Outcome.RETRYABLE and not any(
            span.began <= attempt.ended <= span.ended + errors_end for span in faults
        ):
            late.append(attempt)
    for (what, error), met in wrong.items():
        trace = [f"{len(met)} times", *(_told(a) for a in met[:3])]
        violations.append(Violation("errors are retryable", f"{what}: {error}", tuple(trace)))
    if late:
        trace = [f"{len(late)} errors", *(_told(a) for a in late[:SHOWN])]
        violations.append(Violation("errors end 30 s after the fault", "clients", tuple(trace)))
    last = max((span.ended for span in faults), default=0.0)
    hung = [a for a in attempts if a.began < last and a.ended > last + errors_end]
    if hung:
        lines = tuple(_told(a) for a in hung[:SHOWN])
        violations.append(Violation("nothing hangs for 30 s after the fault", "clients", lines))
    return violations


def _told(attempt: Attempt) -> str:
    return (
        f"{attempt.began:9.3f} {attempt.ended:9.3f}  {attempt.client:<12} {attempt.what}:"
        f" {attempt.error or 'no error'}"
    )


def judge_registers(
    operations: Iterable[Operation], initial: Mapping[Hashable, Any]
) -> tuple[list[Violation], int, list[Hashable]]:
    """Every key's history is linearizable. Also: how many keys there were, and the undecided ones."""
    histories: dict[Hashable, list[Operation]] = defaultdict(list)
    for operation in operations:
        histories[operation.key].append(operation)
    violations, undecided = [], []
    for key, history in histories.items():
        start = initial.get(key)
        judgement = judge(history, start)
        if judgement is Judgement.NOT:
            trace = (f"it began as {start!r}", *map(str, minimal(history, start)))
            violations.append(Violation("registers are linearizable", f"key {key!r}", trace, key))
        elif judgement is Judgement.UNDECIDED:
            undecided.append(key)
    return violations, len(histories), undecided


def judge_counters(
    documents: Mapping[int, Mapping[str, Any]],
    acknowledged: Mapping[str, Mapping[int, int]],
    doubtful: Mapping[str, Mapping[int, int]],
    returned: Iterable[tuple[int, int]],
) -> list[Violation]:
    """Each client's share is what it was told, up to its doubts; the total is the sum of the shares;
    no total was returned twice. ``acknowledged``, ``doubtful``: by the share's field, then by document."""
    wrong = []
    for key, document in sorted(documents.items()):
        shares = {name: int(document.get(name, 0)) for name in acknowledged}
        if sum(shares.values()) != document["n"]:
            wrong.append(f"counter {key}: {document['n']} isn't the sum of {shares}")
        for name, share in shares.items():
            least = acknowledged[name].get(key, 0)
            most = least + doubtful[name].get(key, 0)
            if not least <= share <= most:
                wrong.append(
                    f"counter {key}, {name}: {share}, acknowledged {least}, at most {most}"
                )
    twice = [pair for pair, times in Counter(returned).items() if times > 1]
    wrong += [f"counter {key}: {total} returned twice" for key, total in twice]
    return [Violation("counters are exact", "", tuple(wrong[:SHOWN]))] if wrong else []


def judge_money(
    accounts: Mapping[int, int],
    transfers: Mapping[int, Mapping[str, Any]],
    acknowledged: AbstractSet[int],
    balance: int,
) -> list[Violation]:
    """Every acknowledged transfer is there, and every account is what the transfers made of ``balance``."""
    wrong = [f"transfer {number} is lost" for number in sorted(acknowledged - transfers.keys())]
    expected = dict.fromkeys(accounts, balance)
    for transfer in transfers.values():
        expected[transfer["from"]] -= transfer["amount"]
        expected[transfer["to"]] += transfer["amount"]
    wrong += [
        f"account {key}: {value}, its transfers say {expected[key]}"
        for key, value in sorted(accounts.items())
        if expected[key] != value
    ]
    return [Violation("sums are conserved", "bank", tuple(wrong[:SHOWN]))] if wrong else []


def judge_unique(
    namespace: str, field: str, documents: Iterable[Mapping[str, Any]]
) -> list[Violation]:
    """No value of a unique field is there twice."""
    holders: dict[Any, list[Any]] = defaultdict(list)
    for document in documents:
        holders[document.get(field)].append(document["_id"])
    twice = [f"{value!r}: held by {ids}" for value, ids in holders.items() if len(ids) > 1]
    return [Violation("unique keys are unique", namespace, tuple(twice))] if twice else []


def judge_tiers(
    namespace: str, fast: Mapping[bytes, bytes], archive: Mapping[bytes, bytes]
) -> list[Violation]:
    """After draining, the archive holds every document of F, byte for byte. By raw ``_id``."""
    wrong = []
    for key, document in fast.items():
        if key not in archive:
            wrong.append(f"only in F: {key.hex()}")
        elif archive[key] != document:
            wrong.append(f"differs: {key.hex()}: F {document.hex()}, A {archive[key].hex()}")
    found = tuple(wrong[:SHOWN])
    return [Violation("the archive equals the truth", namespace, found)] if wrong else []


def judge_contents(
    namespace: str, place: str, seen: Mapping[bytes, bytes], archive: Mapping[bytes, bytes]
) -> list[Violation]:
    """What the proxies show is what the archive holds."""
    wrong = [f"only in the archive: {k.hex()}" for k in archive if k not in seen]
    wrong += [f"only through {place}: {k.hex()}" for k in seen if k not in archive]
    wrong += [f"differs: {k.hex()}" for k in seen if k in archive and archive[k] != seen[k]]
    found = tuple(wrong[:SHOWN])
    return (
        [Violation("the archive equals the truth", f"{namespace} {place}", found)] if wrong else []
    )
