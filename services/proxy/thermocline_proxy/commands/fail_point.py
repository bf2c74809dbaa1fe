"""The fail point ``failCommand`` as a mongos has one: what the next commands of clients meet. Pure.

Drivers' test suites switch it on through whatever they are connected to, and count on their own next
commands to meet it. A tier's own would be met by the services' reads, too, and by neither or both tiers'
parts of one command. Who may switch it on, and whether anybody may, is the archive's to say: it refuses
where test commands aren't enabled, as everywhere outside of tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import bson

from thermocline_common.errors import NOT_PRIMARY, Code
from thermocline_proxy.commands.catalog import Entry, Kind
from thermocline_proxy.commands.command import Command, element

NAME: Final = "failCommand"
TEXT: Final = "Failing command via 'failCommand' failpoint"
RETRYABLE: Final[frozenset[int]] = NOT_PRIMARY | {
    Code.HostUnreachable,
    Code.HostNotFound,
    Code.NetworkTimeout,
    Code.ExceededTimeLimit,
    Code.SocketException,
}
_TRANSIENT: Final[frozenset[int]] = RETRYABLE | {
    Code.LockTimeout,
    Code.WriteConflict,
    Code.SnapshotUnavailable,
    Code.NoSuchTransaction,
}
_DATA: Final = frozenset(
    {
        "failCommands", "appName", "namespace", "closeConnection", "blockConnection", "blockTimeMS",
        "errorCode", "errorLabels", "writeConcernError",
    }
)  # fmt: skip
_CONCERNED: Final = frozenset({Kind.WRITE, Kind.DDL, Kind.TRANSACTION})
"""Commands that wait for a write concern."""


@dataclass(frozen=True, slots=True)
class Failure:
    """``commands``: in lower case. ``application``, ``namespace``: None for any. A command's connection is
    closed, or it waits for ``block`` seconds, then fails with ``code``; one that wrote gets ``concern``
    as its write concern error. ``labels``: in place of the error's usual ones."""

    commands: frozenset[str]
    application: str | None = None
    namespace: str | None = None
    close: bool = False
    block: float = 0.0
    code: int | None = None
    labels: tuple[str, ...] | None = None
    concern: Mapping[str, Any] | None = None

    def hits(self, command: Command, application: str) -> bool:
        """Whether the command is one of those."""
        return (
            command.name.lower() in self.commands
            and self.application in (None, application)
            and self.namespace in (None, command.namespace)
        )


@dataclass(frozen=True, slots=True)
class Switch:
    """``failure``: None switches off. ``times``: None for always. ``skip``: how many pass before."""

    failure: Failure | None = None
    times: int | None = None
    skip: int = 0


def parse(document: Mapping[str, Any]) -> Switch | None:
    """Of a ``configureFailPoint``; None: not one that is handled here."""
    if document.get("configureFailPoint") != NAME:
        return None
    mode, data = document.get("mode"), document.get("data", {})
    if mode == "off":
        return Switch()
    failure = _failure(data) if isinstance(data, Mapping) else None
    if failure is None:
        return None
    if mode == "alwaysOn":
        return Switch(failure)
    if isinstance(mode, Mapping) and len(mode) == 1:
        ((kind, number),) = mode.items()
        if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
            if kind == "times":
                return Switch(failure, times=number) if number else Switch()
            if kind == "skip":
                return Switch(failure, skip=number)
    return None


def _failure(data: Mapping[str, Any]) -> Failure | None:
    names = data.get("failCommands")
    block, wait = data.get("blockConnection", False), data.get("blockTimeMS", 0)
    labels, concern = data.get("errorLabels"), data.get("writeConcernError")
    code = data.get("errorCode")
    if not (
        data.keys() <= _DATA
        and isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and all(isinstance(data.get(name, ""), str) for name in ("appName", "namespace"))
        and isinstance(data.get("closeConnection", False), bool)
        and isinstance(block, bool)
        and isinstance(wait, int)
        and (not block or "blockTimeMS" in data)
        and isinstance(code, int | None)
        and isinstance(concern, Mapping | None)
        and isinstance(labels, list | None)
    ):
        return None
    return Failure(
        commands=frozenset(name.lower() for name in names),
        application=data.get("appName"),
        namespace=data.get("namespace"),
        close=data.get("closeConnection", False),
        block=max(0, wait) / 1000 if block else 0.0,
        code=code,
        labels=None if labels is None else tuple(str(label) for label in labels),
        concern=concern,
    )


class FailPoint:
    """The one of this proxy, and how often it was met."""

    def __init__(self) -> None:
        self._failure: Failure | None = None
        self._left: int | None = None
        self._skip = 0
        self.met = 0

    @property
    def on(self) -> bool:
        """Whether some command may still meet it."""
        return self._failure is not None

    def switch(self, to: Switch) -> None:
        """Begin anew."""
        self._failure, self._left, self._skip = to.failure, to.times, to.skip

    def before(self, command: Command, application: str) -> Failure | None:
        """What a command meets before it is executed."""
        failure = self._failure
        if failure is None or not (failure.close or failure.block or failure.code is not None):
            return None
        return self._meet(failure, command, application)

    def after(self, command: Command, entry: Entry, application: str) -> Failure | None:
        """What a command meets that has been executed."""
        failure = self._failure
        if failure is None or failure.concern is None or entry.kind not in _CONCERNED:
            return None
        return self._meet(failure, command, application)

    def _meet(self, failure: Failure, command: Command, application: str) -> Failure | None:
        if not failure.hits(command, application):
            return None
        if self._skip:
            self._skip -= 1
            return None
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self._failure = None
        self.met += 1
        return failure


def labels(failure: Failure, command: Command, code: int) -> tuple[str, ...]:
    """The labels of an error, as a server chooses them where the failure names none."""
    if failure.labels is not None:
        return failure.labels
    if command.name in ("commitTransaction", "abortTransaction"):
        if code == Code.NoSuchTransaction:
            return ("TransientTransactionError",)
        return ("RetryableWriteError",) if code in RETRYABLE else ()
    if "autocommit" in command.fields:
        return ("TransientTransactionError",) if code in _TRANSIENT else ()
    if "txnNumber" in command.fields:
        return ("RetryableWriteError",) if code in RETRYABLE else ()
    if command.name in ("aggregate", "getMore") and code in RETRYABLE:
        return ("ResumableChangeStreamError",)  # means nothing to a driver but for change streams
    return ()


def with_concern_error(raw: bytes, failure: Failure, command: Command) -> bytes:
    """A reply with the failure's write concern error."""
    concern = failure.concern or {}
    reply = Command(raw).changed({"writeConcernError": element("writeConcernError", concern)})
    code = concern.get("code")
    found = labels(failure, command, code if isinstance(code, int) else 0)
    if found:
        reply = reply.changed({"errorLabels": element("errorLabels", list(found))})
    return reply.body


def switched_off(command: Command) -> Command:
    """The same ``configureFailPoint`` as one that switches off, for the archive to admit or refuse."""
    return command.changed({"mode": element("mode", "off"), "data": None})


def answer(met: int) -> bytes:
    """The reply to ``configureFailPoint``: how often it was met before."""
    return bson.encode({"count": met, "ok": 1.0})
