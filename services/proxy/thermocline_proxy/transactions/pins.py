"""Which transaction runs where: what a statement says of its transaction, and the table of pins. Pure."""

import contextlib
from collections import OrderedDict
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from typing import Final

from bson.timestamp import Timestamp

from thermocline_common.coverage import Coverage, State, Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DOCUMENT, elements, wrap
from thermocline_proxy.commands.command import Command, raw_element
from thermocline_proxy.commands.readconcern import MAJORITY, NONE, SNAPSHOT, read_concern
from thermocline_proxy.commands.touched import Touched
from thermocline_proxy.owners import Began, Key, trim
from thermocline_proxy.ports import Request
from thermocline_proxy.routing.snapshot import Snapshot
from thermocline_proxy.writes.statements import number

MAX_PINS: Final = 50_000
API_FIELDS: Final = ("apiVersion", "apiStrict", "apiDeprecationErrors")
"""Every command of a transaction must carry those that its first one had."""
_ENDS: Final = ("commitTransaction", "abortTransaction")
_LEVELS: Final = (None, "local", MAJORITY, SNAPSHOT)
_INT64, _BOOL, _BINARY = 0x12, 0x08, 0x05
_NO_CONCERN: Final = (DOCUMENT, wrap())


@dataclass(frozen=True, slots=True)
class Stated:
    """What a command says of its transaction. ``session``: the raw value of ``lsid.id``."""

    session: bytes
    number: int
    starts: bool


def stated(command: Command) -> Stated:
    """Read the transaction's fields. Raises ``CommandError`` where a server would refuse them."""
    fields = command.fields
    if "txnNumber" not in fields:
        raise CommandError(
            Code.InvalidOptions, "'autocommit' field requires a transaction number to be specified"
        )
    kind, raw = fields.get("lsid", (0, b""))
    session = b""
    if kind == DOCUMENT:
        for name, inner, _, start, end in elements(raw):
            if name == b"id" and inner == _BINARY:
                session = raw[start:end]
    if not session:
        raise CommandError(
            Code.InvalidOptions, "Transaction number requires a session ID to also be specified"
        )
    if fields["txnNumber"][0] != _INT64:
        raise CommandError(
            Code.TypeMismatch, "BSON field 'txnNumber' is the wrong type, expected type 'long'"
        )
    if fields.get("autocommit") != (_BOOL, b"\0"):
        raise CommandError(Code.InvalidOptions, "Specifying autocommit=true is not allowed.")
    start_field = fields.get("startTransaction")
    if start_field is not None and start_field != (_BOOL, b"\1"):
        raise CommandError(Code.InvalidOptions, "Specifying startTransaction=false is not allowed.")
    starts = start_field is not None
    if command.name not in _ENDS:
        _check_concerns(command, starts)
    return Stated(session, number(fields["txnNumber"]), starts)


def _check_concerns(command: Command, starts: bool) -> None:
    """Only the first statement may have a readConcern, and none a writeConcern. F would say so, but it gets
    the proxy's own concern in place of the client's."""
    if command.fields.get("writeConcern", _NO_CONCERN) != _NO_CONCERN:
        raise CommandError(
            Code.InvalidOptions,
            "writeConcern is not allowed within a multi-statement transaction",
        )
    concern = read_concern(command)
    if not concern.valid:
        raise CommandError(Code.FailedToParse, "the readConcern can't be read")
    if not starts and concern != NONE:
        raise CommandError(
            Code.InvalidOptions,
            "Only the first command in a transaction may specify a readConcern",
        )
    if concern.level not in _LEVELS:
        raise CommandError(
            Code.InvalidOptions,
            f"The readConcern level must be either 'local' (default), 'majority' or 'snapshot', not '{concern.level}'",
        )
    if concern.at is not None:
        raise CommandError(
            Code.InvalidOptions,
            "a transaction can't be given an atClusterTime: Thermocline chooses its time",
        )


@dataclass(slots=True, eq=False)
class Pin:
    """One transaction. ``at``: the time of F at which it reads; ``archive_at``: a time of A before that.

    ``snapshot``: the coverage that it rests on. ``touched``: the namespaces that it has used, which a
    change of state waits for. ``started``: something of it was sent. ``over``: the proxy ended it.
    """

    key: Key
    number: int
    tier: Tier
    at: Timestamp | None = None
    archive_at: Timestamp | None = None
    snapshot: Snapshot | None = None
    touched: set[str] = field(default_factory=set)
    api: tuple[bytes, ...] = ()
    started: bool = False
    over: bool = False


def api_elements(command: Command) -> tuple[bytes, ...]:
    """The raw API parameters of a command."""
    return tuple(raw_element(n, *command.fields[n]) for n in API_FIELDS if n in command.fields)


class Pins:
    """The transactions that this proxy knows: of each session the newest. The oldest are forgotten first;
    such a transaction is looked for."""

    def __init__(self, most: int = MAX_PINS) -> None:
        self._pins: OrderedDict[Key, Pin] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._pins)

    def newest(self, key: Key) -> Pin | None:
        """The newest transaction of a session."""
        return self._pins.get(key)

    def find(self, key: Key, number: int) -> Pin | None:
        """This very transaction."""
        pin = self._pins.get(key)
        return pin if pin is not None and pin.number == number else None

    def put(self, pin: Pin) -> None:
        """Know a transaction from now on."""
        self._pins[pin.key] = pin
        self._pins.move_to_end(pin.key)
        while len(self._pins) > self._most:
            self._pins.popitem(last=False)


def hold(pins: Pins, request: Request, held: MutableMapping[Key, Began]) -> None:
    """Put the statement's transaction among those that its application has begun."""
    with contextlib.suppress(CommandError):
        said = stated(request.command)
        key = (request.identity, said.session)
        pin = pins.find(key, said.number)
        if pin is not None:
            held[key] = pin
            trim(held)


def let_go(request: Request, held: MutableMapping[Key, Began]) -> None:
    """The application ends its transaction itself."""
    with contextlib.suppress(CommandError):
        held.pop((request.identity, stated(request.command).session), None)


def sources_of(touches: Touched, snapshot: Snapshot) -> frozenset[str]:
    """The collections that a statement uses."""
    return frozenset(source for name in touches.all for source in snapshot.sources(name))


def state_of(namespace: str, snapshot: Snapshot) -> State | None:
    """``Active``, or ``Passthrough`` (also: untiered); None: on the way, or not known yet."""
    found = snapshot.tierings.get(namespace)
    if found is None:
        return None if namespace in snapshot.listed else State.PASSTHROUGH
    return None if found.coverage.state is State.PAUSING else found.coverage.state


def as_of(snapshot: Snapshot, at: Timestamp) -> Snapshot:
    """The snapshot for reads at a time of F: what was published later isn't proven for then."""
    tierings = {
        namespace: replace(tiering, coverage=_published(tiering.coverage, at))
        for namespace, tiering in snapshot.tierings.items()
    }
    return replace(snapshot, tierings=tierings)


def _published(coverage: Coverage, at: Timestamp) -> Coverage:
    if coverage.published_at is not None and coverage.published_at <= at:
        return coverage
    return replace(coverage, floor=None, complete=False)


def same_activation(namespace: str, live: Snapshot, then: Snapshot) -> bool:
    """Whether the namespace was active, in the same activation, when the transaction began."""
    old = then.tierings.get(namespace)
    return old is not None and _footing(old.coverage) == _footing(live.tierings[namespace].coverage)


def _footing(coverage: Coverage) -> tuple[object, ...]:
    return (coverage.state, coverage.epoch, coverage.fast_uuid, coverage.archive_uuid)
