"""Runs the steps, arm after arm and round after round, and turns what was seen into results."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from rig.crew import Crew, Seen
from rig.generator import Plan
from rig.histograms import Histogram
from rig.place import Place
from rig.results import Latency, Moment, Result
from rig.steps import FIXED_SHARE, NAMES, ORDER, SLOW_RATE, Arm, Pace, Step
from rig.watch import Sample, Watch

Say = Callable[[str], None]
GENERATOR: Final = "generator"


class WrongAnswers(Exception):
    """An answer was wrong: nothing else that this run says counts."""


@dataclass(slots=True)
class Experiment:
    """``spec``: more fields of the resource, such as ``{"proxy": {"workers": 2}}``."""

    place: Place
    crew: Crew
    steps: Sequence[Step]
    spec: dict[str, Any]
    seed: int
    say: Say
    results: list[Result] = field(default_factory=list)

    def run(self, rounds: int) -> None:
        """All rounds. Raises :class:`WrongAnswers`."""
        for number in range(1, rounds + 1):
            for arm in ORDER:
                steps = [step for step in self.steps if step.arm is arm]
                if steps:
                    self._prepare(arm)
                    for step in steps:
                        self._measure(step, number)
                    self._finish(arm)
            if number < rounds:
                self.place.end_round()

    def _prepare(self, arm: Arm) -> None:
        if arm is Arm.HAPROXY:
            self.place.start_haproxy()
        if arm in (Arm.EMPTY, Arm.WARM) and self.place.thermocline is None:
            self.say("starting the fast tier and Thermocline")
            self.place.start_thermocline(self.spec)
        if arm is Arm.WARM:
            self.say("warming")
            began = time.monotonic()
            self.place.warm_whole()
            self.say(f"warm after {time.monotonic() - began:.0f} s")

    def _finish(self, arm: Arm) -> None:
        if arm is Arm.HAPROXY:
            self.place.stop_haproxy()

    def _port(self, arm: Arm) -> int:
        if arm is Arm.ARCHIVE:
            return self.place.archive.members[0].port
        if arm is Arm.HAPROXY:
            return self.place.haproxy_port
        assert self.place.thermocline is not None
        return self.place.thermocline.port

    def _rate(self, step: Step, number: int) -> float | None:
        """What the archive alone just manages. A run without that arm has no fixed rate."""
        if step.pace is Pace.CLOSED:
            return None
        if step.pace is Pace.SLOW:
            return SLOW_RATE
        for result in self.results:
            same = result.title == step.workload.name and result.round == number
            if result.arm is Arm.ARCHIVE and same:
                return max(1.0, result.operations * FIXED_SHARE)
        raise ValueError("a fixed rate needs the archive alone to be measured before")

    def _measure(self, step: Step, number: int) -> None:
        rate = self._rate(step, number)
        self.say(
            f"round {number}, {NAMES[step.arm]}, {step.title}"
            + (f" ({rate:,.0f} op/s)" if rate else "")
        )
        plan = Plan(
            self._port(step.arm),
            step.workload.name,
            self.place.scale.connections,
            rate,
            0.0,
            step.settle,
            step.seconds,
            self.seed + len(self.results),
        )
        watch = Watch(self.place, step.settle)
        if step.arm is Arm.EMPTY:
            self.place.warm()
        try:
            seen = self.crew.run(plan, watch.take)
        finally:
            self.place.throttle(on=True)
        result = summarise(step, number, rate, seen, watch.samples)
        self.results.append(result)
        self.say("  " + in_short(result))
        self.place.catch_up()
        if seen.wrong_count:
            raise WrongAnswers(f"{seen.wrong_count} wrong answers: {'; '.join(seen.wrong)}")


def summarise(
    step: Step, number: int, rate: float | None, seen: Seen, samples: Sequence[Sample]
) -> Result:
    """From counts and samples to figures a second and an operation."""
    first = next((each for each in samples if each.at >= step.settle), samples[0])
    last = next(
        (each for each in samples if each.at >= step.settle + step.seconds - 1), samples[-1]
    )
    span = max(1e-9, last.at - first.at)
    total = sum(seen.within.values())
    used = {name: last.cpu[name] - first.cpu[name] for name in last.cpu if name in first.cpu}
    done = max(1.0, total / step.seconds * span)
    # The generator's processor time is known for the whole step only.
    generator = seen.cpu / max(1e-9, step.settle + step.seconds)
    others = (last.busy - first.busy - sum(used.values())) / span - generator
    return Result(
        arm=step.arm,
        title=step.title,
        round=number,
        wanted=rate,
        settle=step.settle,
        seconds=step.seconds,
        operations=total / step.seconds,
        latency={kind: latency(of) for kind, of in seen.histograms.items()},
        failed=dict(seen.failed),
        wrong=seen.wrong,
        wrong_count=seen.wrong_count,
        unanswered=seen.unanswered,
        disk_reads=(last.disk_reads - first.disk_reads) / span,
        warmed=last.copied - samples[0].copied,
        lag_most=max(each.lag for each in samples),
        replayed=samples[-1].replayed - samples[0].replayed,
        written=seen.written,
        load=os.getloadavg()[0],
        others=max(0.0, others),
        cpu_us={
            **{name: seconds / done * 1e6 for name, seconds in used.items()},
            GENERATOR: generator * step.seconds / max(1, total) * 1e6,
        },
        timeline=timeline(seen, samples),
    )


def latency(of: Histogram) -> Latency:
    """A histogram in a few numbers."""
    return Latency(of.count, of.at(50), of.at(95), of.at(99), of.at(99.9), of.at(100), of.curve())


def timeline(seen: Seen, samples: Sequence[Sample]) -> list[Moment]:
    """Second by second; disk reads as of between two samples."""
    return [
        Moment(
            before.at,
            seen.timeline.get(int(before.at), 0),
            (after.disk_reads - before.disk_reads) / max(1e-9, after.at - before.at),
            before.warm_percent,
        )
        for before, after in pairwise(samples)
    ]


def in_short(result: Result) -> str:
    """One line for whoever waits."""
    parts = [f"{result.operations:,.0f} op/s"]
    parts += [
        f"{kind} p50 {of.p50:.1f} p95 {of.p95:.1f} p99 {of.p99:.1f} ms"
        for kind, of in result.latency.items()
    ]
    parts.append(f"{result.disk_reads:.0f} disk reads/s")
    parts.append(f"load {result.load:.1f}, others {result.others:.2f} processors")
    if result.failed:
        parts.append(f"FAILED {result.failed}")
    if result.wrong_count:
        parts.append(f"WRONG {result.wrong_count}")
    if result.unanswered:
        parts.append(f"{result.unanswered} unanswered at the end")
    return "; ".join(parts)
