"""The generator's processes: started once, so that they know their documents from measurement to measurement."""

import contextlib
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection as Pipe
from typing import Final

from rig.documents import Catalogue
from rig.generator import Generator, Outcome, Plan
from rig.histograms import Histogram

LEAD_SECONDS: Final = 1.0


def work(pipe: Pipe, owner: int, owners: int, catalogue: Catalogue) -> None:
    """A process's life: a plan comes, its outcome or its failure's text goes, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rig decides when it is over
    generator = Generator(owner, owners, catalogue)
    with contextlib.suppress(EOFError, OSError):
        while True:
            plan: Plan = pipe.recv()
            try:
                pipe.send(generator.run(plan))
            except Exception as error:  # noqa: BLE001 - told to the rig, which ends the run
                pipe.send(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Seen:
    """All processes' outcomes together."""

    histograms: dict[str, Histogram]
    timeline: Counter[int]
    within: Counter[str]
    written: int
    failed: Counter[str]
    wrong: list[str]
    wrong_count: int
    unanswered: int
    cpu: float


def merge(outcomes: list[Outcome]) -> Seen:
    """Add up."""
    kinds = sorted({kind for each in outcomes for kind in each.histograms})
    return Seen(
        {
            kind: Histogram.merged(
                each.histograms[kind] for each in outcomes if kind in each.histograms
            )
            for kind in kinds
        },
        sum((each.timeline for each in outcomes), Counter()),
        sum((each.within for each in outcomes), Counter()),
        sum(each.written for each in outcomes),
        sum((each.failed for each in outcomes), Counter()),
        [text for each in outcomes for text in each.wrong],
        sum(each.wrong_count for each in outcomes),
        sum(each.unanswered for each in outcomes),
        sum(each.cpu for each in outcomes),
    )


class Crew:
    """``count`` processes. A context manager."""

    def __init__(self, count: int, catalogue: Catalogue) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Pipe] = []
        self.processes = []
        for owner in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=work, args=(theirs, owner, count, catalogue), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def run(self, plan: Plan, each_second: Callable[[float], None]) -> Seen:
        """Carry out a plan; ``plan.connections`` are of all together, ``plan.begin`` is set here.

        ``each_second`` is called meanwhile with the seconds since the start. Raises ``RuntimeError``
        where a process fails.
        """
        share, more = divmod(plan.connections, len(self._pipes))
        begin = time.monotonic() + LEAD_SECONDS
        for number, pipe in enumerate(self._pipes):
            connections = max(1, share + (number < more))
            pipe.send(replace(plan, connections=connections, begin=begin))
        second = 0
        while not all(pipe.poll() for pipe in self._pipes):
            now = time.monotonic() - begin
            if now >= second:
                each_second(now)
                second = int(now) + 1
            dead = [process.pid for process in self.processes if not process.is_alive()]
            if dead:
                raise RuntimeError(f"generator processes {dead} ended")
            time.sleep(0.05)
        outcomes: list[Outcome] = []
        for pipe in self._pipes:
            answer = pipe.recv()
            if isinstance(answer, str):
                raise RuntimeError(f"a generator process failed: {answer}")
            outcomes.append(answer)
        return merge(outcomes)

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
