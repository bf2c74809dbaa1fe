"""What the proxy knows of one client's connection, and which sessions a client may use."""

from dataclasses import dataclass, field
from typing import Any

from bson.objectid import ObjectId

from thermocline_common.errors import Code, CommandError
from thermocline_common.sessions import PREFIX
from thermocline_proxy.owners import Owner
from thermocline_proxy.ports import Identity


@dataclass(slots=True)
class ClientSession:
    """One client connection. ``conversation``: the log-in that is under way.

    ``peer``: ``host:port`` of the client. ``greeted``: it sent its metadata already. ``compression``:
    what its last hello agreed on. ``application``: the name that it gave itself. ``gone``: the connection has ended. ``owner``: of the cursors and transactions that it opens.
    """

    id: int
    peer: str
    identity: Identity | None = None
    conversation: Any = None
    greeted: bool = False
    compression: tuple[str, ...] = ()
    application: str = ""
    gone: bool = False
    owner: Owner = field(default_factory=lambda: Owner(None))

    @property
    def host(self) -> str:
        """The client's host."""
        return self.peer.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class ServiceId:
    """Constant per process, so that load-balanced drivers know a restart."""

    value: ObjectId = field(default_factory=ObjectId)


def refuse_reserved(lsid: bytes) -> None:
    """Raise where the raw ``lsid`` document lies in the range of Thermocline's own sessions."""
    if PREFIX in lsid:
        raise CommandError(Code.InvalidOptions, "this range of session ids is reserved")
