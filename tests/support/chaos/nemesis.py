"""Breaks things as planned, and mends them again."""

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymongo.errors import PyMongoError

from support.chaos.cluster import Cluster
from support.chaos.rules import Effect, Rule
from support.chaos.schedule import Fault, Planned
from support.mongod import Mongod
from support.processes import Process

_EFFECTS = {
    "requests lost": Effect.NO_REQUESTS,
    "replies lost": Effect.NO_REPLIES,
    "slow": Effect.SLOW,
}


@dataclass(slots=True)
class Happened:
    """A fault that was done. Times: seconds of the run. ``who``: whom it met."""

    planned: Planned
    began: float
    who: str = ""
    ended: float | None = None
    elected: float | None = None
    """When the tier had a primary again, where it had lost one."""

    @property
    def name(self) -> str:
        """What kind of fault it was, and of what kind of part."""
        return f"{self.planned.fault}: {self.planned.target}"

    def __str__(self) -> str:
        until = "" if self.ended is None else f"{self.ended:.1f}"
        election = "" if self.elected is None else f", primary again at {self.elected:.1f}"
        planned = self.planned
        words = " ".join(
            w
            for w in (
                self.who or planned.target,
                planned.other and f"-> {planned.other}",
                planned.detail,
            )
            if w
        )
        return f"{self.began:.1f}..{until} {planned.fault}: {words}{election}"


@dataclass(slots=True)
class Disturbance:
    """A fault under way: ``mend`` ends it, or says False if it can't yet."""

    happened: Happened
    due: float
    mend: Callable[[], bool]


class Nemesis:
    """:meth:`run` works through a plan in the thread that calls it (processes live as long as it does)."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        change_policies: Callable[[str], Sequence[Mapping[str, Any]]],
        order_ddl: Callable[[str], bool],
    ) -> None:
        self.cluster = cluster
        self.clock = clock
        self.happened: list[Happened] = []
        self._change_policies = change_policies
        self._order_ddl = order_ddl
        self._active: list[Disturbance] = []

    def run(self, plan: Sequence[Planned], seconds: float, stop: Callable[[], bool]) -> None:
        """Do what is planned, until ``seconds`` of the run or until told to stop."""
        waiting = list(plan)
        while self.clock() < seconds and not stop():
            now = self.clock()
            for disturbance in [d for d in self._active if d.due <= now]:
                self._end(disturbance)
            if waiting and waiting[0].at <= now:
                self._begin(waiting.pop(0))
            time.sleep(0.05)
        for disturbance in list(self._active):
            self._end(disturbance)

    def _end(self, disturbance: Disturbance) -> None:
        if disturbance.mend():
            disturbance.happened.ended = self.clock()
            self._active.remove(disturbance)

    def _begin(self, planned: Planned) -> None:
        happened = Happened(planned, self.clock())
        mend = self._break(planned, happened)
        if mend is None:
            return
        self.happened.append(happened)
        self._active.append(Disturbance(happened, happened.began + planned.seconds, mend))

    def _break(self, planned: Planned, happened: Happened) -> Callable[[], bool] | None:
        """Do it; None: there is nothing to break just now."""
        match planned.fault:
            case Fault.KILL_SERVICE | Fault.FREEZE_SERVICE | Fault.RESTART_SERVICE:
                return self._break_service(planned)
            case Fault.SECOND_COPY:
                return self._double(planned)
            case Fault.CUT_SERVICE | Fault.DEAF_LINK | Fault.SLOW_LINK:
                return self._break_link(planned, happened)
            case Fault.FULL_DISK:
                return self._fill_disk(happened)
            case Fault.POLICY | Fault.MODE | Fault.DDL:
                return self._change(planned)
            case _:
                return self._break_member(planned, happened)

    def _break_service(self, planned: Planned) -> Callable[[], bool] | None:
        label = planned.target
        process = self.cluster.services[label].process
        if not process.running:
            return None

        def again() -> bool:
            if process.running:
                return False
            self.cluster.start_service(label)
            return True

        if planned.fault is Fault.KILL_SERVICE:
            process.kill()
            return again
        if planned.fault is Fault.RESTART_SERVICE:
            process.signal(signal.SIGTERM)
            return again
        process.pause()
        return _thawing(process)

    def _double(self, planned: Planned) -> Callable[[], bool]:
        label = f"{planned.target}-2"
        if label not in self.cluster.services:
            self.cluster.make_service(planned.target, label)
        self.cluster.start_service(label)
        process = self.cluster.services[label].process

        def gone() -> bool:
            process.kill()
            return True

        return gone

    def _resolve(self, target: str) -> Mongod | None:
        """Who is meant by ``tier role`` now."""
        name, _, role = target.partition(" ")
        tier = self.cluster.tiers[name]
        primary = tier.primary()
        if role == "primary":
            return primary
        others = [m for m in tier.members if m is not primary and m.process.running]
        return others[int(self.clock()) % len(others)] if others else None

    def _break_member(self, planned: Planned, happened: Happened) -> Callable[[], bool] | None:
        member = self._resolve(planned.target)
        if member is None:
            return None
        tier = self.cluster.tiers[planned.target.partition(" ")[0]]
        name = happened.who = tier.name_of(member)
        if planned.target.endswith("primary"):
            self._watch_election(member, happened)
        match planned.fault:
            case Fault.KILL_MEMBER:
                member.kill()
                return self._starting(member)
            case Fault.RESTART_MEMBER:
                member.process.signal(signal.SIGTERM)
                return self._starting(member)
            case Fault.FREEZE_MEMBER:
                member.pause()
                return _thawing(member.process)
            case Fault.STEP_DOWN:
                threading.Thread(target=self._step_down, args=(member,), daemon=True).start()
                return lambda: True
            case _:
                if planned.detail == "from everyone":
                    rules = [Rule(None, name, Effect.CUT), Rule(name, None, Effect.CUT)]
                else:
                    peers = [tier.name_of(m) for m in tier.members if m is not member]
                    rules = [Rule(name, peer, Effect.CUT) for peer in peers]
                    rules += [Rule(peer, name, Effect.CUT) for peer in peers]
                return self._ruled(rules)

    def _starting(self, member: Mongod) -> Callable[[], bool]:
        def again() -> bool:
            if member.process.running:
                return False
            member.process.start()
            self.cluster.introduce()
            return True

        return again

    def _step_down(self, member: Mongod) -> None:
        tier = next(t for t in self.cluster.tiers.values() if member in t.members)
        try:
            with tier.member_client(member, timeout_ms=2_000) as client:
                client.admin.command("replSetStepDown", 8, secondaryCatchUpPeriodSecs=2, force=True)
        except PyMongoError:
            return  # it was none any more

    def _watch_election(self, member: Mongod, happened: Happened) -> None:
        """Notice when another member, or the same one again, is primary."""
        tier = next(t for t in self.cluster.tiers.values() if member in t.members)
        others = [m for m in tier.members if m is not member]

        def watch() -> None:
            while self.clock() < happened.began + 40:
                time.sleep(0.1)
                for other in others:
                    try:
                        with other.direct_client(timeout_ms=300) as client:
                            if client.admin.command("hello").get("isWritablePrimary"):
                                happened.elected = self.clock()
                                return
                    except PyMongoError:
                        continue

        threading.Thread(target=watch, daemon=True).start()

    def _ruled(self, rules: Sequence[Rule]) -> Callable[[], bool]:
        numbers = [self.cluster.links.add(rule) for rule in rules]

        def healed() -> bool:
            for number in numbers:
                self.cluster.links.remove(number)
            return True

        return healed

    def _break_link(self, planned: Planned, happened: Happened) -> Callable[[], bool] | None:
        effect = _EFFECTS.get(planned.detail, Effect.CUT)
        source, other = planned.target, planned.other
        if planned.fault is Fault.CUT_SERVICE:
            tier = self.cluster.tiers[other]
            names = [tier.name_of(member) for member in tier.members]
            return self._ruled([Rule(source, name, effect) for name in names])
        target = other
        if " " in other:
            member = self._resolve(other)
            if member is None:
                return None
            target = self.cluster.tiers[other.partition(" ")[0]].name_of(member)
        happened.who = f"{source} ({target})"
        return self._ruled([Rule(source, target, effect)])

    def _fill_disk(self, happened: Happened) -> Callable[[], bool] | None:
        disk = self.cluster.disk
        if disk is None:
            return None
        member = self.cluster.archive.members[-1]
        happened.who = self.cluster.archive.name_of(member)
        disk.fill()

        def emptied() -> bool:
            disk.empty()
            if not member.process.running:
                member.process.start()
                self.cluster.introduce()
            return True

        return emptied

    def _change(self, planned: Planned) -> Callable[[], bool] | None:
        manifest = self.cluster.thermocline.manifest
        if planned.fault is Fault.DDL:
            return (lambda: True) if self._order_ddl(planned.detail) else None
        before = {"mode": "Active", "collections": manifest.spec["collections"]}
        if planned.fault is Fault.MODE:
            manifest.change(mode="Passthrough")
        else:
            manifest.change(collections=list(self._change_policies(planned.detail)))

        def back() -> bool:
            manifest.change(**before)
            return True

        return back


def _thawing(process: Process) -> Callable[[], bool]:
    def thaw() -> bool:
        process.resume()
        return True

    return thaw
