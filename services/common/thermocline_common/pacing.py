"""How fast background work may go: a number of documents a second, or whatever leaves room. Pure."""

from dataclasses import dataclass, replace
from typing import Final, Self

AUTO: Final = "Auto"

RECENT_WEIGHT: Final = 0.2
"""Share of the newest measurement in the recent latency."""
FORGET: Final = 1.005
"""The usual latency drifts up by this factor a measurement, so that a lucky one is forgotten."""
TOLERATED: Final = 2.0
"""Up to this multiple of the usual latency, nobody is disturbed."""
FLOOR_SECONDS: Final = 0.005
"""Latencies below this are all the same: noise of the event loop, not load."""
LONGEST_REST: Final = 4.0
"""Rest at most this multiple of the time that the work took: slow, but never at a standstill."""


@dataclass(frozen=True, slots=True)
class Latency:
    """What a server's answers took, in seconds: as a rule, and of late."""

    usual: float = 0.0
    recent: float = 0.0

    def observe(self, seconds: float) -> "Latency":
        """With one more measurement."""
        if not self.recent:
            return Latency(seconds, seconds)
        recent = self.recent + RECENT_WEIGHT * (seconds - self.recent)
        return Latency(min(self.usual * FORGET, recent), recent)

    @property
    def strain(self) -> float:
        """How many times the usual latency the recent one is; 1.0 where nothing is known."""
        if not self.recent:
            return 1.0
        return max(self.recent, FLOOR_SECONDS) / max(self.usual, FLOOR_SECONDS)


def rest_seconds(pace: str | int, documents: int, took: float, latency: Latency) -> float:
    """How long to rest after work on ``documents`` that took ``took`` seconds.

    ``pace``: documents a second, or ``"Auto"``, which rests the longer the more the server's
    answers are slowed down.
    """
    if isinstance(pace, int):
        return max(0.0, documents / pace - took)
    excess = latency.strain - TOLERATED
    return took * min(LONGEST_REST, excess) if excess > 0 else 0.0


PROBE_SECONDS: Final = 0.2
"""Between two probes, on average: few enough to be no load themselves."""

# The archive: what work costs those who read there at the same time.

SLOW: Final = 2.0
"""A read that takes this multiple of the usual time was held up."""
VERY_SLOW: Final = 5.0
"""Where one read in ten takes twice the usual time by itself, three in a hundred more show in no such count;
those that a disk makes wait for its next allowance take far longer than any does by itself."""
HELD_UP_SHARE: Final = 0.001
"""Of the archive's reads, so many more may be held up while one of our services works: readers' 99th
percentile is what they notice, and an average shows nothing of a disk that lets hundreds of reads pass
and one wait for its next allowance."""
COST_FLOOR_SECONDS: Final = 0.002
"""Below this a read comes from memory, and all are the same. Servers count whole milliseconds."""
USUAL_WEIGHT: Final = 0.1
CHANCE_WEIGHT: Final = 0.02
CHANCE_AGAIN: Final = 1.2
"""Where reads are slow by chance, and by nothing of ours, chance must not close the throttle for long."""
LEAST_REST: Final = 0.25
HELD_UP: Final = 3.0
HELD_UP_FLOOR: Final = 0.02
"""A piece of work that takes this multiple of the usual time, and so many seconds, was held up."""
CALM_SECONDS: Final = 30.0
"""In so many seconds without a piece that is held up, rests shrink by as much as one lets them grow."""
LONGEST_CALM: Final = 1.0
"""Calm counts while there is work."""
MOST_PIECES_REST: Final = 8.0
"""Pieces that are held up even so aren't held up by our own work."""
MOST_REST: Final = 30.0
"""Background work goes on for a thirtieth of the time, whatever it costs: warming must end some day."""
CLOSE: Final = 1.4
FIRST_REST: Final = 16.0
"""Where nothing is known yet: half a minute later it is known that an archive in memory minds nothing, while
one at its disk's limit has readers who would notice a full start for as long as that takes."""
FIRST_OPEN: Final = 0.97
FIRST_CLOSE: Final = 3.0
"""At the first read that was held up: it may have taken a dozen probes to meet one, and all that time the
throttle went on opening."""
LONGEST_PAUSE: Final = 5.0
LEAST_PIECE: Final = 10
REPLAY_BACKLOG: Final = 200
"""Documents of a batch from which on replay has a backlog; smaller ones are what was just written."""
REPLAY_REST: Final = 1.0
"""Replay rests no longer than it works: readers wait for it, too, at the barrier."""
REPLAY_WINDOW: Final = 0.1
"""It doesn't rest at all once so much of F's oplog is behind."""
YIELDING_LAG: Final = 1.0
"""Seconds that replay may be behind before warming and eviction make way for it."""
LONGEST_LAG_REST: Final = 10.0


@dataclass(frozen=True, slots=True)
class Usual:
    """What the archive's reads are like without us: ``seconds`` that one takes, ``chance`` of a slow one,
    which takes more than ``slow`` times as long."""

    seconds: float = 0.0
    chance: float = 0.0
    slow: float = SLOW

    def saw(self, seconds: float) -> "Usual":
        """With one more read that our work didn't touch."""
        if not self.seconds:
            return replace(self, seconds=max(seconds, 1e-6))
        chance = self.chance + CHANCE_WEIGHT * (self.is_slow(seconds) - self.chance)
        # A read that was held up for long is one slow read, and no new average.
        bounded = min(seconds, 2 * SLOW * max(self.seconds, COST_FLOOR_SECONDS))
        usual = self.seconds + USUAL_WEIGHT * (bounded - self.seconds)
        return replace(self, seconds=usual, chance=chance)

    def is_slow(self, seconds: float) -> bool:
        """Whether a read took much longer; False as long as nothing is known."""
        return bool(self.seconds) and seconds > self.slow * max(self.seconds, COST_FLOOR_SECONDS)


@dataclass(frozen=True, slots=True)
class Pieces:
    """What our own pieces of work take: ``each`` is the usual number of seconds a document.

    A disk that makes us wait for its next allowance makes everybody wait who comes meanwhile, and
    there are ten times as many pieces to tell it as there are probes.
    """

    each: float = 0.0

    def saw(self, documents: int, seconds: float) -> "Pieces":
        """With one more piece."""
        if not documents:
            return self
        each = seconds / documents
        if not self.each:
            return Pieces(max(each, 1e-6))
        bounded = min(each, 2 * HELD_UP * self.each)
        return Pieces(self.each + USUAL_WEIGHT * (bounded - self.each))

    def is_held_up(self, documents: int, seconds: float) -> bool:
        """Whether a piece took much longer than such pieces do; False as long as nothing is known."""
        return bool(self.each) and seconds > max(HELD_UP_FLOOR, HELD_UP * self.each * documents)


@dataclass(frozen=True, slots=True)
class Throttle:
    """How long background work rests, as a multiple of the time that it works."""

    rest: float = 0.0
    met: bool = True
    """Whether work has ever held a read up. As long as it hasn't, the throttle opens fast."""
    known: float = 0.0
    """Down to here it opens fast: where it stood before work was idle."""

    def adjusted(self, usual: Usual, *, slow: bool) -> "Throttle":
        """After one more read at any moment while we work now and then: more rest where it was ``slow``.

        It opens by so little a read that both are even where the share of slow ones is what it may be:
        those that would have been slow anyway, and a few by our work.
        """
        if slow:
            close = CLOSE if self.met else FIRST_CLOSE
            return Throttle(min(MOST_REST, max(LEAST_REST, self.rest * close)))
        if not self.met:
            return self._opened_fast(FIRST_OPEN)
        return self._opened(HELD_UP_SHARE + CHANCE_AGAIN * usual.chance)

    def after_piece(self, calm: float, *, held_up: bool) -> "Throttle":
        """After one more piece of work, ``calm`` seconds after the one before it."""
        if held_up:
            close = CLOSE if self.met else FIRST_CLOSE
            most = max(MOST_PIECES_REST, self.rest)
            return Throttle(min(most, max(LEAST_REST, self.rest * close)))
        if not self.met:
            return self._opened_fast(FIRST_OPEN ** (calm / PROBE_SECONDS))
        return self._opened(calm / CALM_SECONDS)

    def _opened_fast(self, by: float) -> "Throttle":
        rest = self.rest * by
        if rest <= self.known:
            return Throttle(self.known)
        return replace(self, rest=rest) if rest >= LEAST_REST else Throttle()

    def _opened(self, share: float) -> "Throttle":
        rest = self.rest * CLOSE**-share
        return Throttle(rest if rest >= LEAST_REST / 2 else 0.0)

    def after_idling(self) -> "Throttle":
        """To go on with after a while without work: what was learned may be of another load."""
        known = self.rest if self.met else self.known
        return Throttle(max(self.rest, FIRST_REST), met=False, known=known)

    def piece(self, most: int) -> int:
        """Documents to take at once. They shrink faster than rests grow: what a disk allows at once
        holds up nobody, so many small pieces cost others less than a few large ones."""
        return max(min(most, LEAST_PIECE), int(most / (1 + self.rest) ** 2))

    def seconds(self, took: float) -> float:
        """How long to rest after work that took so long."""
        return min(LONGEST_PAUSE, self.rest * took)


CAREFUL: Final = Throttle(FIRST_REST, met=False)
"""To begin with."""


@dataclass(frozen=True, slots=True)
class Courtesy:
    """What reads of the archive teach: one throttle by those held up, one by those held up badly, and
    ``own`` by our own pieces of work."""

    learned: tuple[tuple[Usual, Throttle], ...]
    own: Throttle
    pieces: Pieces = Pieces()
    worked: float | None = None
    """When the last piece ended."""

    @classmethod
    def beginning(cls, throttle: Throttle = CAREFUL) -> Self:
        """Where nothing is known yet."""
        return cls(tuple((Usual(slow=slow), throttle) for slow in (SLOW, VERY_SLOW)), throttle)

    @property
    def throttle(self) -> Throttle:
        """The one that counts: where most rest is needed."""
        return max(self.own, *(one for _, one in self.learned), key=lambda one: one.rest)

    def saw_alone(self, seconds: float) -> "Courtesy":
        """With one more read that our work didn't touch."""
        learned = tuple((usual.saw(seconds), throttle) for usual, throttle in self.learned)
        return replace(self, learned=learned)

    def saw_beside(self, seconds: float) -> "Courtesy":
        """With one more read at any moment while we work now and then."""
        learned = tuple(
            (usual, throttle.adjusted(usual, slow=usual.is_slow(seconds)))
            for usual, throttle in self.learned
        )
        return replace(self, learned=learned)

    def saw_piece(self, documents: int, seconds: float, now: float) -> "Courtesy":
        """With one more piece of work that ended ``now`` (seconds of any clock)."""
        calm = 0.0 if self.worked is None else min(LONGEST_CALM, now - self.worked)
        held_up = self.pieces.is_held_up(documents, seconds)
        return replace(
            self,
            own=self.own.after_piece(calm, held_up=held_up),
            pieces=self.pieces.saw(documents, seconds),
            worked=now,
        )

    def after_idling(self) -> "Courtesy":
        """To go on with after a while without work."""
        learned = tuple((usual, one.after_idling()) for usual, one in self.learned)
        return replace(self, learned=learned, own=self.own.after_idling())


def lag_rest(lag: float) -> float:
    """How long warming and eviction rest for a feeder that is ``lag`` seconds behind."""
    return min(LONGEST_LAG_REST, lag) if lag > YIELDING_LAG else 0.0


def replay_rest(
    pace: str | int, documents: int, took: float, throttle: Throttle, window_used: float | None
) -> float:
    """How long replay rests after a batch.

    ``"Auto"``: for the archive's readers, where there is a backlog. ``window_used``: the share of F's
    oplog that is behind (None: not known yet); with too much of it, replay rests no more, whatever
    the pace.
    """
    if (window_used or 0.0) >= REPLAY_WINDOW:
        return 0.0
    if isinstance(pace, int):
        return max(0.0, documents / pace - took)
    return took * min(REPLAY_REST, throttle.rest) if documents >= REPLAY_BACKLOG else 0.0
