"""A whole run, from empty directories to the judgement."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.chaos.cluster import SERVICES, Cluster
from support.chaos.defects import modules
from support.chaos.histories import Violation
from support.chaos.machine import Machine, Result, Size
from support.chaos.recovery import GAP, plan_singly
from support.chaos.schedule import CALM, Fault, Planned, Scene, plan
from support.chaos.shop import policies

BUILD = Path(__file__).parents[3] / "build"
SHORT = 100.0
"""Runs of fewer seconds have no time for long freezes, nor for 30 s of calm."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to run. ``members``: of each tier. ``defect``: a service that is broken on purpose.
    ``rounds``: of faults one at a time, to measure recovery, in place of the seed's plan. ``script``:
    these faults in its place. ``max_age``: seconds, of the policies."""

    seed: int
    seconds: float
    members: int = 3
    logins: bool = True
    defect: str | None = None
    kinds: frozenset[Fault] = frozenset(Fault)
    size: Size = field(default_factory=Size)
    rounds: int = 0
    script: tuple[Planned, ...] = ()
    max_age: int = 8

    @property
    def long_freezes(self) -> bool:
        """Whether processes freeze for up to 20 s, which takes long announcements; the other runs see
        more evictions."""
        return self.seconds >= SHORT and self.seed % 2 == 1

    @property
    def announce(self) -> float:
        """Seconds from announcement to eviction: longer than any freeze by a third."""
        return 28.0 if self.long_freezes else 12.0

    @property
    def calm(self) -> float:
        """Seconds without faults at the end."""
        return CALM if self.seconds >= SHORT else CALM / 4

    def faults(self, *, full_disk: bool) -> tuple[Planned, ...]:
        """What is to be broken when."""
        if self.rounds:
            return plan_singly(SERVICES, self.rounds)
        if self.script:
            return self.script
        return plan(self.seed, self.seconds, self.scene(full_disk=full_disk), self.calm)

    def scene(self, *, full_disk: bool) -> Scene:
        """What there is to break."""
        return Scene(
            SERVICES,
            members=self.members > 1,
            full_disk=full_disk,
            freeze=(5.0, 20.0) if self.long_freezes else (5.0, 9.0),
            kinds=self.kinds,
        )


def run(options: Options, say: Callable[[str], None] = print) -> Result:
    """Run it. What ends the run early, or keeps it from coming to rest, is a violation too."""
    cluster = Cluster(
        policies(max_age=options.max_age),
        members=options.members,
        logins=options.logins,
        announce=options.announce,
        full_disk=Fault.FULL_DISK in options.kinds,
        modules=modules(options.defect) if options.defect else None,
    )
    began = time.monotonic()
    with cluster.up():
        if cluster.disk is None and options.members > 1 and Fault.FULL_DISK in options.kinds:
            say("NOT RUN on this machine: full disk (mounting a small tmpfs needs root)")
        machine = Machine(cluster, options.seed, options.size, options.max_age)
        machine.load()
        cluster.start_services()
        cluster.thermocline.wait_state("Active", timeout=240)
        say(f"seed {options.seed}: up after {time.monotonic() - began:.0f} s")
        faults = options.faults(full_disk=cluster.disk is not None)
        seconds = faults[-1].at + GAP if options.rounds else options.seconds
        try:
            machine.run(faults, seconds)
            machine.come_to_rest()
            result = machine.judge()
        except Exception as error:  # noqa: BLE001 - whatever it is, the run failed, and says with what
            trace = tuple(f"{type(error).__name__}: {error}".splitlines())
            result = machine.unfinished(Violation("the run ends", "machine", trace))
        if result.violations:
            logs = keep_logs(cluster, options.seed)
            machine.write_evidence(logs, result)
            say(f"logs: {logs}")
    say(f"seed {options.seed}: {time.monotonic() - began:.0f} s in all")
    return result


def keep_logs(cluster: Cluster, seed: int) -> Path:
    """The services' and servers' logs of a run that went wrong, below ``build/``."""
    target = BUILD / f"chaos-{seed}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for log in cluster.directory.rglob("*.log"):
        shutil.copyfile(log, target / "-".join(log.relative_to(cluster.directory).parts))
    return target


SAMPLE = Options(
    seed=107,
    seconds=90,
    kinds=frozenset(
        {
            Fault.KILL_SERVICE, Fault.FREEZE_SERVICE, Fault.SECOND_COPY, Fault.KILL_MEMBER,
            Fault.STEP_DOWN, Fault.DEAF_LINK, Fault.POLICY,
        }
    ),
    size=Size(pause=0.06),
)  # fmt: skip
"""What runs in ``make test``: its plan kills every kind of service, has two feeders and two evictors, and
takes a primary away."""
