"""Puts the feeder's parts together for one term of ownership."""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from bson.timestamp import Timestamp

from thermocline_common import names
from thermocline_common.admission_checks import refusals
from thermocline_common.clients import member_opener
from thermocline_common.clock import Clock
from thermocline_common.coverage import Coverage, State
from thermocline_common.coverage_store import read_all, read_linearizable
from thermocline_common.runtime import Context
from thermocline_common.spec.models import WorkMode
from thermocline_feeder.ahead import ReadAhead
from thermocline_feeder.applier import Applier
from thermocline_feeder.checkpoint import Fenced, Owner
from thermocline_feeder.collector import Collector
from thermocline_feeder.foreign import ForeignWrites
from thermocline_feeder.moves import Moves
from thermocline_feeder.opening import Opening
from thermocline_feeder.registry import Pair, Registry
from thermocline_feeder.replay import Replay
from thermocline_feeder.resync import Resync
from thermocline_feeder.settings import Settings
from thermocline_feeder.states import Admission, States, held_still, wanted
from thermocline_feeder.switch import Switch

Pause = Callable[[str], Awaitable[None]]


@dataclass(slots=True)
class Parts:
    """What works together while this process owns replay."""

    registry: Registry
    applier: Applier
    replay: Replay
    opening: Opening
    moves: Moves
    states: States
    collector: Collector
    foreign: ForeignWrites
    resync: Resync


def assemble(
    context: Context,
    owner: Owner,
    me: uuid.UUID,
    settings: Settings,
    clock: Clock,
    admission: Admission,
    pause: Pause | None,
    *,
    drain: bool,
) -> Parts:
    """The parts of one term of ownership, wired to each other."""
    tiers = context.tiers
    registry = Registry()
    applier = Applier(tiers.archive, me, settings.quarantine_limit)

    def report_resync(text: str) -> None:
        context.problems.set("resync", text)

    resync = Resync(tiers, me, registry, applier, report_resync)

    async def run_resync() -> Timestamp:
        replay.figures.resyncs += 1
        time = await resync.run()
        context.problems.clear("resync")
        return time

    async def reload() -> None:
        if registry.loaded:
            return
        coverages = await read_all(tiers)
        documents, _ = await read_linearizable(tiers.archive, names.TIERED, {})
        listed = {d["_id"] for d in documents}
        registry.reset(coverages.keys() | listed, replayed_pairs(coverages))

    def forget() -> None:
        registry.clear()
        applier.reset(())

    opening = Opening(tiers, me, owner, context.problems, run_resync, forget, reload)

    async def resolve(namespace: str) -> Pair | None:
        return await moves.resolve(namespace)

    async def adopt(namespace: str) -> bool:
        return await moves.adopt(namespace, run_resync)

    replay = Replay(
        tiers,
        me,
        settings,
        registry,
        applier,
        context.problems,
        clock,
        resolve,
        opening,
        adopt,
        lambda: opening.position,
        lambda: not drain and context.manifest.current.spec.feeder.mode is WorkMode.PAUSED,
        pause,
    )

    replay.ahead = ReadAhead(tiers.archive, clock)

    def epoch() -> uuid.UUID:
        if opening.position is None:
            raise Fenced("replay hasn't begun")
        return opening.position.epoch

    switch = Switch(
        tiers,
        owner,
        settings,
        registry,
        replay,
        applier,
        context.problems,
        epoch,
        pause,
    )
    moves = Moves(switch)
    states = States(
        tiers,
        moves,
        settings,
        context.problems,
        clock,
        lambda: wanted(context.manifest.current, drain=drain),
        admission,
        lambda: held_still(context.manifest.current, drain=drain),
    )
    collector = Collector(tiers, settings, registry, replay, clock)
    return Parts(
        registry,
        applier,
        replay,
        opening,
        moves,
        states,
        collector,
        ForeignWrites(tiers.archive, registry, applier.known.forget),
        resync,
    )


def real_admission(context: Context) -> Admission:
    """The shared rules on what both tiers show."""

    async def check(namespace: str) -> list[str]:
        manifest = context.manifest.current
        open_member = member_opener(manifest, context.access, "thermocline-feeder")
        found = await refusals(context.tiers, manifest, namespace, open_member)
        return [str(problem) for problem in found]

    return check


def replayed_pairs(coverages: Mapping[str, Coverage]) -> dict[str, Pair]:
    """The namespaces whose writes are F's: active ones, and those that pause on their way out."""
    return {
        ns: Pair(c.fast_uuid, c.archive_uuid, c.archive_time)
        for ns, c in coverages.items()
        if c.state is State.ACTIVE or (c.state is State.PAUSING and c.target is State.PASSTHROUGH)
    }
