"""Chooses the way of a command on tiered namespaces, and goes it."""

from collections.abc import Awaitable, Callable

from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from thermocline_common.coverage import Tier
from thermocline_common.errors import Code, CommandError
from thermocline_common.indexes import list_indexes
from thermocline_proxy.answered import as_answered
from thermocline_proxy.commands.indexes import Listed
from thermocline_proxy.commands.readconcern import timeless
from thermocline_proxy.ddl.alone import Alone
from thermocline_proxy.ddl.plan import DEPENDS_ON_INDEXES, Way, concerned, is_tiered, refusal, way
from thermocline_proxy.gateway import Proxy
from thermocline_proxy.ports import Request
from thermocline_proxy.routing.snapshot import Snapshot

ToBoth = Callable[[Request, Snapshot], Awaitable[bytes]]
"""Runs a command as a tiered write."""
ToArchive = Callable[[Request], Awaitable[bytes]]


class SchemaCommands:
    """What changes collections or indexes that are tiered."""

    def __init__(self, proxy: Proxy, to_both: ToBoth, to_archive: ToArchive) -> None:
        self._proxy = proxy
        self._to_both = to_both
        self._to_archive = to_archive

    async def answer(
        self, request: Request, touched: frozenset[str], snapshot: Snapshot
    ) -> bytes | None:
        """The raw reply; None: nothing that the command is about is tiered now, and it names everything.

        Raises ``CommandError``, as it is to be answered.
        """
        command = request.command
        if concerned(command, touched, snapshot):
            snapshot = await self._proxy.leases.current(request.deadline)
        under_policy = concerned(command, touched, snapshot)
        if not any(is_tiered(namespace, snapshot) for namespace in under_policy):
            if command.name == "dropDatabase" and under_policy:
                return await self._drop_untiered(request, snapshot)
            return None
        refused = refusal(command, touched, snapshot)
        if refused is not None:
            raise CommandError(Code.CommandNotSupported, refused)
        try:
            chosen = way(command, await self._indexes(request))
            if chosen is Way.BOTH:
                return await self._to_both(request, snapshot)
            if chosen is Way.ALONE:
                return await Alone(self._proxy, request, touched).run()
        except PyMongoError as error:
            raise _translated(error) from error
        if chosen is Way.ARCHIVE:
            return await self._to_archive(request)
        raise CommandError(
            Code.CommandNotSupported,
            f"{command.name} isn't supported on a tiered collection: take its policy out of the resource, "
            "run the command, and put the policy back",
        )

    async def _drop_untiered(self, request: Request, snapshot: Snapshot) -> bytes:
        """A database whose namespaces are all in ``Passthrough``: under the lease that says so."""
        leases = self._proxy.leases
        reply = await self._proxy.exchange.run(
            Tier.ARCHIVE,
            request.identity,
            timeless(request.command),
            deadline=request.deadline,
            may_send=lambda: leases.alive(snapshot),
        )
        return reply.raw

    async def _indexes(self, request: Request) -> Listed:
        if request.command.name not in DEPENDS_ON_INDEXES:
            return ()
        return await list_indexes(self._proxy.gateway.tiers.archive, request.command.namespace)


def _translated(error: PyMongoError) -> CommandError:
    """What a look-up of the proxy's own ran into."""
    if isinstance(error, OperationFailure) and error.code is not None:
        return as_answered(error)
    what = "can't be reached" if isinstance(error, ConnectionFailure) else "didn't answer"
    return CommandError(Code.HostUnreachable, f"a tier {what}: {error}")
