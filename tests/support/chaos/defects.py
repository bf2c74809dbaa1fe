"""Services that are broken on purpose: the machine has to notice each.

``python -m support.chaos.defects DEFECT [the service's own arguments]`` runs the service with one of
its functions replaced. Nothing in the services knows of it.
"""

import dataclasses
import importlib
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from support.schedules import mutants
from thermocline_common import barrier, copy_in
from thermocline_evictor import announcing, deleter
from thermocline_evictor.plan import verdicts
from thermocline_feeder import fetch, replay

Patch = pytest.MonkeyPatch


def wrong_cut_off(patch: Patch) -> None:
    """The evictor takes whatever has a date in the past, whatever the floor."""
    patch.setattr(announcing, "bound_of", lambda coverage, horizon: int(time.time() * 1_000))


def no_comparison(patch: Patch) -> None:
    """The evictor neither waits for the feeder nor looks at the archive's copy."""

    def blind(ids: Any, fast: Any, archive: Any, **rest: Any) -> dict[Any, verdicts.Verdict]:
        return verdicts.judge(ids, fast, fast, **rest)

    async def at_once(*_: Any, **__: Any) -> None:
        return None

    patch.setattr(announcing, "judge", blind)
    patch.setattr(barrier, "wait_for_checkpoint", at_once)
    patch.setattr(deleter, "final", lambda decided, *_: dict(decided))
    mutants.no_position_check(patch)


def stale_copy(patch: Patch) -> None:
    """The warmer writes each document as it first read it, whatever the fast tier holds by now."""
    read_archive, plan_copy = copy_in._read_archive, copy_in.plan_copy
    first: dict[Any, Any] = {}

    async def remembered(work: Any, *arguments: Any) -> Any:
        documents = await read_archive(work, *arguments)
        namespace = work.coverage.namespace
        return {i: first.setdefault((namespace, i), d) for i, d in documents.items()}

    def plan(ids: Any, existing: Any, found: Any, before: Any, documents: Any) -> copy_in.CopyPlan:
        held = {i: documents[i] for i in existing if i in documents}
        planned = plan_copy(ids, existing, found, before, documents)
        return dataclasses.replace(planned, write=(*planned.write, *held.values()))

    patch.setattr(copy_in, "_read_archive", remembered)
    patch.setattr(copy_in, "plan_copy", plan)


def skipped_id(patch: Patch) -> None:
    """The feeder forgets one in ten documents."""
    dice = random.Random(1)

    async def forgetful(*arguments: Any, **rest: Any) -> fetch.State:
        state = await fetch.fetch_state(*arguments, **rest)
        for found in (state.documents, state.records):
            for doc_id in [i for i in found if dice.random() < 0.1]:
                del found[doc_id]
        return state

    patch.setattr(replay, "fetch_state", forgetful)


@dataclass(frozen=True, slots=True)
class Defect:
    """A service, and what is broken in it."""

    service: str
    apply: Callable[[Patch], None]


DEFECTS: Final[Mapping[str, Defect]] = {
    "wrong-cut-off": Defect("evictor", wrong_cut_off),
    "no-comparison": Defect("evictor", no_comparison),
    "stale-copy": Defect("warmer", stale_copy),
    "skipped-id": Defect("feeder", skipped_id),
    "no-barrier": Defect("proxy", mutants.no_barrier),
}


def modules(name: str) -> dict[str, Sequence[str]]:
    """What ``python -m`` runs in place of the service that this defect is in."""
    return {DEFECTS[name].service: ("support.chaos.defects", name)}


def main() -> int:
    """Run the service with the defect."""
    name, *arguments = sys.argv[1:]
    defect = DEFECTS[name]
    defect.apply(pytest.MonkeyPatch())
    service = importlib.import_module(f"thermocline_{defect.service}.__main__")
    sys.argv[1:] = arguments
    code: int = service.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
