"""The feeder's part of ``/status``."""

import statistics
from collections.abc import Mapping
from typing import Any

from thermocline_common.coverage import Coverage, State
from thermocline_feeder.assembly import Parts
from thermocline_feeder.measures import Measures
from thermocline_feeder.plan.states import Wanted


def report(parts: Parts, targets: Mapping[str, Wanted], measures: Measures) -> dict[str, Any]:
    """JSON."""
    replay = parts.replay
    figures, time = replay.figures, replay.time
    quarantine = list(parts.applier.quarantine.values())
    lost_from = parts.opening.lost_from
    lag = round(replay.lag, 3)

    def of_namespace(namespace: str, coverage: Coverage | None) -> dict[str, Any]:
        target = targets.get(namespace)
        wanted = State.ACTIVE if target is not None and target.active else State.PASSTHROUGH
        return {
            "state": (State.PASSTHROUGH if coverage is None else coverage.state).value,
            "target": wanted.value,
            "requests": [] if coverage is None else [r.command for r in coverage.requests],
            "blockedOn": parts.states.blocked.get(namespace),
            "lagSeconds": lag if namespace in parts.registry.pairs else 0.0,
            "foreignWrites": parts.foreign.counts.get(namespace, 0),
            "quarantined": sum(1 for q in quarantine if q.namespace == namespace),
        }

    coverages = parts.states.coverages
    return {
        "checkpoint": None if time is None else time.as_datetime().isoformat(),
        "checkpointTime": None if time is None else {"time": time.time, "increment": time.inc},
        "lagSeconds": lag,
        "lagP99Seconds": _p99(figures.lags),
        "caughtUp": replay.caught_up,
        "drained": time is not None and parts.states.emptied and parts.states.settled is not None,
        "settledGeneration": parts.states.settled,
        "backlog": replay.backlog,
        "appliedTotal": figures.documents,
        "appliedPerSecond": round(measures.rate, 1),
        "eventsTotal": figures.events,
        "oplogWindowSeconds": measures.reach,
        "oplogWindowUsed": None if measures.window is None else round(measures.window.used, 4),
        "quarantined": len(quarantine),
        "quarantine": [
            {
                "namespace": q.namespace,
                "id": q.id.document().hex(),
                "code": q.code,
                "reason": q.reason,
            }
            for q in quarantine[:100]
        ],
        "foreignWrites": dict(parts.foreign.counts),
        "deletedByHand": figures.unexplained,
        "removalRecords": parts.collector.records,
        "resyncs": figures.resyncs,
        "setAside": [*parts.opening.aside, *parts.moves.switch.aside],
        "lostFrom": None if lost_from is None else lost_from.isoformat(),
        "namespaces": {
            ns: of_namespace(ns, coverages.get(ns))
            for ns in sorted(coverages.keys() | targets.keys())
        },
    }


def _p99(lags: list[float]) -> float | None:
    if len(lags) < 2:
        return round(lags[0], 4) if lags else None
    return round(statistics.quantiles(lags, n=100, method="inclusive")[98], 4)
