"""Takes samples, has them checked a few at a time, and switches a namespace whose tiers differ."""

import asyncio
import datetime as dt
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pymongo.errors import PyMongoError

from thermocline_common import doubts
from thermocline_common.coverage import Coverage, Doubt
from thermocline_common.health import Problems
from thermocline_common.ids import DocId
from thermocline_common.tiers import Tiers
from thermocline_proxy.commands.command import Command
from thermocline_proxy.ports import Identity, Reply, Request
from thermocline_proxy.routing.snapshot import Snapshot
from thermocline_proxy.times import take_times
from thermocline_proxy.verify.checker import Checker, Outcome, Sample
from thermocline_proxy.verify.points import Found
from thermocline_proxy.verify.sampling import MAX_SAMPLE_BYTES, chosen, suits
from thermocline_proxy.verify.verdicts import MAX_NAMED, describe
from thermocline_proxy.wire import opmsg

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
MAX_WAITING: Final = 32
"""Few: an answer that waited for long is compared with what the archive says much later."""
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
MARK_ATTEMPTS: Final = 60
MARK_RETRY_SECONDS: Final = 1.0
_REPLY_BODY: Final = 21


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A sample that nobody has looked at yet. ``size``: bytes that it holds."""

    size: int
    open: Callable[[], Sample]


def _read_frames(frame: bytes, reply: bytes, identity: Identity | None) -> Sample:
    message = opmsg.parse(frame)
    body, _, _ = take_times(reply[_REPLY_BODY:])
    return Sample(Command(message.body, message.sequences), identity, body)


class Verifier(Collector):
    """:class:`~thermocline_proxy.ports.Sampler`. ``share``: of answers that are checked, 0 to 1.

    What is sampled waits in a bounded queue; what doesn't fit is counted and forgotten. ``draw`` gives
    random numbers, at least 0 and below 1.
    """

    def __init__(
        self,
        checker: Checker,
        tiers: Tiers,
        snapshot: Callable[[], Snapshot],
        draw: Callable[[], float],
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.share = 0.0
        self.outcomes = dict.fromkeys(Outcome, 0)
        self._checker = checker
        self._tiers = tiers
        self._snapshot = snapshot
        self._draw = draw
        self._waiting: deque[_Waiting] = deque()
        self._held = 0
        self._checking = 0
        self._wake = asyncio.Event()
        self._shown: set[str] = set()
        if registry is not None:
            registry.register(self)

    # What answers are offered to: nothing here waits.

    def answered(self, request: Request, reply: Reply) -> None:
        """F answered a request of the long path."""
        if not self.share or not chosen(self.share, self._draw()):
            return
        command = request.command
        sequences = sum(len(one) for many in command.sequences.values() for one in many)
        size = len(command.body) + sequences + len(reply.raw)
        sample = Sample(command, request.identity, reply.raw)
        self._take(_Waiting(size, lambda: sample))

    def relayed(self, frame: bytes, reply: bytes, identity: Identity | None) -> None:
        """F answered on the short path; both are whole frames."""
        if chosen(self.share, self._draw()):
            self._take(
                _Waiting(len(frame) + len(reply), lambda: _read_frames(frame, reply, identity))
            )

    def _take(self, sample: "_Waiting") -> None:
        if sample.size > MAX_SAMPLE_BYTES:
            self.outcomes[Outcome.UNSUITED] += 1
            return
        if len(self._waiting) >= MAX_WAITING or self._held + sample.size > MAX_WAITING_BYTES:
            self.outcomes[Outcome.DROPPED] += 1
            return
        self._waiting.append(sample)
        self._held += sample.size
        self._wake.set()

    # The work.

    async def run(self) -> None:
        """Check samples until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            waiting = self._waiting.popleft()
            self._checking += 1
            try:
                await self._check(waiting.open())
            except Exception:
                self.outcomes[Outcome.UNDECIDED] += 1
                log.exception("a sample could not be checked")
            finally:
                self._checking -= 1
                self._held -= waiting.size

    async def _check(self, sample: Sample) -> None:
        if not suits(sample.command) or self._in_doubt(sample.command.namespace):
            self.outcomes[Outcome.UNSUITED] += 1  # in doubt: it was answered before the switch
            return
        result = await self._checker.check(sample)
        self.outcomes[result.outcome] += 1
        if result.outcome is Outcome.UNEXPLAINED:
            log.warning(
                "answers of the tiers differ, but no document does",
                extra={"namespace": sample.command.namespace, "command": sample.command.name},
            )
        for coverage, documents in result.differences.values():
            await self._switch(sample.command.name, coverage, documents)

    def _in_doubt(self, namespace: str) -> bool:
        tiering = self._snapshot().tiering(namespace)
        return tiering is not None and tiering.coverage.doubt is not None

    async def _switch(
        self, command: str, coverage: Coverage, documents: Mapping[DocId, Found]
    ) -> None:
        named = tuple(describe(i, found.difference) for i, found in documents.items())[:MAX_NAMED]
        doubt = Doubt(dt.datetime.now(dt.UTC), command, named, len(documents))
        log.error(
            "the tiers differ: reads go to the archive until a person releases the namespace",
            extra={
                "namespace": coverage.namespace,
                "documents": list(named),
                "count": len(documents),
                "command": command,
            },
        )
        for _ in range(MARK_ATTEMPTS):
            try:
                await doubts.mark(self._tiers, coverage, doubt)
                return
            except PyMongoError as error:
                log.warning("the switch can't be written yet", extra={"error": str(error)[:200]})
                await asyncio.sleep(MARK_RETRY_SECONDS)

    # What people see.

    def report(self, problems: Problems) -> None:
        """Show each namespace in doubt as a problem, whichever proxy found it."""
        standing = self._doubts()
        for namespace in self._shown - standing.keys():
            problems.clear(f"verify {namespace}")
        for namespace, doubt in standing.items():
            problems.set(f"verify {namespace}", sentence(namespace, doubt))
        self._shown = set(standing)

    def _doubts(self) -> dict[str, Doubt]:
        return {
            namespace: tiering.coverage.doubt
            for namespace, tiering in sorted(self._snapshot().tierings.items())
            if tiering.coverage.doubt is not None
        }

    def status(self) -> dict[str, Any]:
        """For ``/status``."""
        return {
            "share": self.share,
            "outcomes": {outcome.value: count for outcome, count in self.outcomes.items()},
            "waiting": len(self._waiting) + self._checking,
            "archiveOnly": {
                namespace: {
                    "since": None if doubt.since is None else doubt.since.isoformat(),
                    "command": doubt.command,
                    "documents": list(doubt.documents),
                    "count": doubt.count,
                }
                for namespace, doubt in self._doubts().items()
            },
        }

    def collect(self) -> Iterator[Metric]:
        """Prometheus' callback."""
        outcomes = CounterMetricFamily(
            "thermocline_proxy_verified",
            "Answers of the fast tier that were compared with the archive's.",
            labels=["outcome"],
        )
        for outcome, count in self.outcomes.items():
            outcomes.add_metric([outcome.value], count)
        yield outcomes
        doubtful = GaugeMetricFamily(
            "thermocline_proxy_archive_only",
            "1 for a namespace whose reads go to the archive because its tiers differ.",
            labels=["namespace"],
        )
        for namespace in self._doubts():
            doubtful.add_metric([namespace], 1)
        yield doubtful


def sentence(namespace: str, doubt: Doubt) -> str:
    """What is wrong, and what to do."""
    found = ", ".join(doubt.documents) or "not named"
    more = doubt.count - len(doubt.documents)
    if more > 0:
        found += f" and {more} more"
    return (
        f"the fast tier and the archive differ in documents of {namespace} ({found}); its reads go to the "
        f"archive until a person has looked at them and ends it: thermocline release FILE {namespace}"
    )
