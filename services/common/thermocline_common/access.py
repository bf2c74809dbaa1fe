"""How a process reaches the tiers and shows itself to clients: certificates, authorities and log-ins that can be renewed.

New connections use what is newest. Those of PyMongo's clients that are open finish what they do, and nothing
else begins on them: their user may be dropped soon.
"""

import logging
import ssl
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pymongo import AsyncMongoClient
from pymongo.asynchronous import auth
from pymongo.auth_shared import MongoCredential
from pymongo.errors import OperationFailure

from thermocline_common.clock import monotonic
from thermocline_common.coverage import Tier
from thermocline_common.credentials import AllCredentials, Credentials, read_all
from thermocline_common.errors import Code, ConfigError
from thermocline_common.spec.models import Manifest, TierSpec
from thermocline_common.tls import RenewableContext, client_context, server_context
from thermocline_common.uri.check import check
from thermocline_common.uri.options import Place

log = logging.getLogger(__name__)

OVERLAP_SECONDS: Final = 60.0
"""How long the credentials before stay a second choice after the new ones were taken: other members may
not know them yet."""
_MECHANISM: Final = "THERMOCLINE"
"""PyMongo's name for a log-in of ours; no server ever sees it."""


class Login:
    """The users and passwords to try at a tier, the newest first; those before until the change is through."""

    def __init__(
        self, username: str, password: str, clock: Callable[[], float] = monotonic
    ) -> None:
        self._clock = clock
        self._pairs = [(username, password)]
        self._through: float | None = None

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """User and password, in the order to try them."""
        if self._through is not None and self._clock() >= self._through:
            del self._pairs[1:]
            self._through = None
        return tuple(self._pairs)

    def renew(self, username: str, password: str) -> None:
        """These from now on; what was tried first before is tried second."""
        pair = (username, password)
        if pair != self._pairs[0]:
            self._pairs = [pair, *(old for old in self._pairs if old != pair)][:2]
            self._through = None

    def accepted(self, pair: tuple[str, str]) -> None:
        """A member took these."""
        if len(self._pairs) > 1 and pair == self._pairs[0] and self._through is None:
            self._through = self._clock() + OVERLAP_SECONDS


@dataclass(slots=True)
class TierAccess:
    """``context``: None where the tier's URI doesn't switch TLS on. ``login``: None without one."""

    context: RenewableContext | None = None
    login: Login | None = None
    clients: "weakref.WeakSet[TierClient]" = field(default_factory=weakref.WeakSet, compare=False)
    """That connect with it."""

    @classmethod
    def of(cls, spec: TierSpec, credentials: Credentials) -> "TierAccess":
        """From what lies in the tier's directory. Raises :class:`ConfigError`."""
        connection = check(spec.uri, Place.MANIFEST)
        context = (
            RenewableContext(client_context(credentials, connection)) if connection.tls else None
        )
        login = None
        if credentials.username is not None and credentials.password is not None:
            login = Login(credentials.username, credentials.password)
        return cls(context, login)


class _LoginKeys:
    """What PyMongo derives from each password, which takes a while: kept by user and password."""

    def __init__(self, kind: Callable[[], Any]) -> None:
        self._kind = kind
        self._found: dict[tuple[str, str], Any] = {}

    def of(self, pair: tuple[str, str]) -> Any:
        """PyMongo's cache for this pair."""
        if pair not in self._found:
            if len(self._found) > 3:
                self._found.clear()
            self._found[pair] = self._kind()
        return self._found[pair]


async def _authenticate(credentials: Any, connection: Any) -> None:
    """PyMongo's log-in of one connection: with each pair in turn."""
    login, mechanism = credentials.mechanism_properties
    refused: OperationFailure | None = None
    for pair in login.pairs:
        username, password = pair
        one = MongoCredential(
            mechanism, credentials.source, username, password, None, credentials.cache.of(pair)
        )
        try:
            await auth.authenticate(one, connection)
        except OperationFailure as error:
            if error.code != Code.AuthenticationFailed:
                raise
            refused = refused or error
        else:
            login.accepted(pair)
            return
    if refused is not None:
        raise refused


def install(client: AsyncMongoClient[dict[str, Any]], access: TierAccess) -> None:
    """Let a client, of which nothing is connected yet, use ``access`` for every connection.

    PyMongo reads certificates and password once, when it is made; there is no public way in. Raises
    ``RuntimeError`` where PyMongo keeps them elsewhere than it did.
    """
    options = client.options.pool_options
    if access.context is not None:
        _replace(options, "ssl_context", access.context)
    given = _held(options, "credentials")
    if access.login is not None and given is not None:
        # In PyMongo's table of mechanisms stands what logs in one connection.
        vars(auth)["_AUTH_MAP"][_MECHANISM] = _authenticate
        own = given._replace(
            mechanism=_MECHANISM,
            password=None,
            mechanism_properties=(access.login, given.mechanism),
            cache=_LoginKeys(type(given.cache)),
        )
        _replace(options, "credentials", own)


def _held(options: Any, name: str) -> Any:
    attribute = f"_PoolOptions__{name}"
    if not hasattr(options, attribute):
        raise RuntimeError(f"this PyMongo keeps {name} in another place")
    return getattr(options, attribute)


def _replace(options: Any, name: str, value: Any) -> None:
    _held(options, name)
    setattr(options, f"_PoolOptions__{name}", value)


class TierClient(AsyncMongoClient[dict[str, Any]]):
    """A client whose certificates and log-in can be renewed: as ``access`` says for each connection."""

    def __init__(self, host: str, access: TierAccess, **options: Any) -> None:
        """As of PyMongo, without user and password in ``options`` unless ``access`` has a log-in."""
        self._access_of_tier = access
        super().__init__(host, **options)
        install(self, access)
        access.clients.add(self)

    async def renew_connections(self) -> None:
        """Begin nothing more on the connections that are open now; those in use finish what they do."""
        # No public way in either: a pool closes what is older than its generation when it is given back.
        topology: Any = self._topology  # None until DNS has answered
        servers = {} if topology is None else vars(topology)["_servers"]
        for server in list(servers.values()):
            await server.pool.reset_without_pause()

    async def _resolve_srv(self) -> None:
        # The names in DNS may bring options along: PyMongo makes all of them anew.
        await super()._resolve_srv()
        install(self, self._access_of_tier)


@dataclass(slots=True)
class Access:
    """Everything of a process. ``listener``: None where the proxy's port has no TLS."""

    credentials: AllCredentials
    tiers: Mapping[Tier, TierAccess]
    listener: RenewableContext | None = None
    generation: int = field(default=1)
    """Counts what came into force."""

    @classmethod
    def load(
        cls, manifest: Manifest, directory: Path | None, *, listener: bool = False
    ) -> "Access":
        """Read the directory. Raises :class:`ConfigError` for what is missing or unusable."""
        found = read_all(manifest, directory, listener=listener)
        spec = manifest.spec
        tiers = {
            tier: TierAccess.of(tier_spec, found.tiers[tier])
            for tier, tier_spec in ((Tier.ARCHIVE, spec.archive), (Tier.FAST, spec.fast_tier))
        }
        own = (
            RenewableContext(server_context(found.listener)) if found.listener.certificate else None
        )
        return cls(found, tiers, own)

    def renew(self, manifest: Manifest, found: AllCredentials) -> None:
        """Let ``found`` come into force as a whole. Raises :class:`ConfigError`, and nothing has changed."""
        spec = manifest.spec
        made: list[tuple[RenewableContext, ssl.SSLContext]] = []
        for tier, tier_spec in ((Tier.ARCHIVE, spec.archive), (Tier.FAST, spec.fast_tier)):
            access, new = self.tiers[tier], found.tiers[tier]
            if (new.username is None) != (access.login is None):
                raise ConfigError(
                    f"the {tier.value} tier's username and password {_came(new.username)}: "
                    "restart this service to use that"
                )
            if access.context is not None:
                context = client_context(new, check(tier_spec.uri, Place.MANIFEST))
                made.append((access.context, context))
        if (found.listener.certificate is None) != (self.listener is None):
            raise ConfigError(
                f"the certificate of the proxy's port {_came(found.listener.certificate)}: restart the "
                "proxy to use that"
            )
        if self.listener is not None:
            made.append((self.listener, server_context(found.listener)))
        for renewable, context in made:
            renewable.renew(context)
        for tier, access in self.tiers.items():
            new = found.tiers[tier]
            if access.login is not None and new.username is not None and new.password is not None:
                access.login.renew(new.username, new.password)
        self.credentials = found
        self.generation += 1
        log.info("credentials in force", extra={"credentials_generation": self.generation})

    async def renew_connections(self, before: AllCredentials) -> None:
        """After :meth:`renew`: nothing begins any more on connections that were opened as ``before`` says.

        Those of a tier for which nothing has changed stay: its server may know a new password already
        that has yet to come here.
        """
        for tier, access in self.tiers.items():
            if before.tiers[tier] != self.credentials.tiers[tier]:
                for client in list(access.clients):
                    await client.renew_connections()


def _came(new: object) -> str:
    return "are gone" if new is None else "have appeared"
