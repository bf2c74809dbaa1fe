"""Every step of a namespace, by name: the small ones here, the switches in modules of their own."""

import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bson.binary import Binary
from bson.int64 import Int64

from thermocline_common import names, schema_requests
from thermocline_common.coverage import KEEP_ALL, Coverage, State
from thermocline_common.coverage_store import MAJORITY
from thermocline_common.errors import Code
from thermocline_common.write_replies import require_written
from thermocline_feeder.activation import Activation
from thermocline_feeder.counterparts import Counterparts, Resynchronise
from thermocline_feeder.plan.states import Wanted
from thermocline_feeder.registry import Pair
from thermocline_feeder.switch import Overtaken, Switch
from thermocline_feeder.withdrawal import Withdrawal

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Moves:
    """What :mod:`states` calls; each method is safe to repeat."""

    switch: Switch

    async def activate(self, coverage: Coverage) -> None:
        """To ``Active``. Raises :class:`Blocked`, :class:`Overtaken`, or PyMongo's errors."""
        await Activation(self.switch).activate(coverage)

    async def withdraw(self, coverage: Coverage) -> None:
        """To ``Passthrough``. Raises as :meth:`activate`."""
        await Withdrawal(self.switch).withdraw(coverage)

    async def clean(self, coverage: Coverage) -> None:
        """Remove what F still holds after :meth:`withdraw`."""
        await Withdrawal(self.switch).clean(coverage)

    async def grant(self, coverage: Coverage) -> None:
        """F is emptied: whoever asked may run its command on A."""
        await self.switch.hold("grant")
        if not await schema_requests.grant(self.switch.tiers, coverage):
            raise Overtaken(f"{coverage.namespace}: its coverage document was changed meanwhile")

    async def expire(self, coverage: Coverage, tokens: Iterable[uuid.UUID]) -> None:
        """Forget requests that nobody keeps alive: their proxy is gone, whatever it still did on A."""
        for token in tokens:
            log.warning(
                "a proxy's request was given up by it", extra={"namespace": coverage.namespace}
            )
            await schema_requests.take_back(self.switch.tiers, [coverage.namespace], token)

    async def revert(self, coverage: Coverage) -> None:
        """Give an unfinished switch up."""
        await self.switch.revert(coverage)

    async def resolve(self, namespace: str) -> Pair | None:
        """F's collection isn't the known one: find out which it is, and publish the pair."""
        return await Counterparts(self.switch).resolve(namespace)

    async def adopt(self, namespace: str, resync: Resynchronise) -> bool:
        """A's collection isn't the known one: go on with what stands there; False: nothing does."""
        return await Counterparts(self.switch).adopt(namespace, resync)

    async def list_in_archive(self, namespace: str) -> None:
        """``tiered`` in A: from now on nobody takes the namespace for an untiered one."""
        reply = await self.switch.tiers.archive[names.DATABASE].command(
            {
                "update": names.TIERED,
                "updates": [
                    {
                        "q": {"_id": namespace},
                        "u": {
                            "$set": {
                                "owner": self.switch.owner.document(),
                                "formatVersion": names.FORMAT_VERSION,
                            }
                        },
                        "upsert": True,
                    }
                ],
                "writeConcern": MAJORITY,
            }
        )
        require_written(reply)

    async def unlist(self, namespace: str) -> None:
        """Take it off the list: the last trace of the namespace."""
        reply = await self.switch.tiers.archive[names.DATABASE].command(
            {
                "delete": names.TIERED,
                "deletes": [{"q": {"_id": namespace}, "limit": 1}],
                "writeConcern": MAJORITY,
            }
        )
        require_written(reply)
        self.switch.registry.forget(namespace)

    async def create(self, namespace: str, wanted: Wanted) -> None:
        """The coverage document, in ``Passthrough``."""
        document: dict[str, Any] = {
            "_id": namespace,
            "formatVersion": names.FORMAT_VERSION,
            "owner": self.switch.owner.document(),
            "epoch": Binary.from_uuid(self.switch.epoch()),
            "state": State.PASSTHROUGH.value,
            "target": State.PASSTHROUGH.value,
            "raised": Int64(0),
            **_policy(wanted),
        }
        reply = await self.switch.tiers.fast[names.DATABASE].command(
            {"insert": names.COVERAGE, "documents": [document], "writeConcern": MAJORITY}
        )
        require_written(reply, expected=(Code.DuplicateKey,))  # it is there: as wanted

    async def forget(self, coverage: Coverage) -> None:
        """Remove the coverage document of a namespace that is in ``Passthrough`` for good."""
        reply = await self.switch.tiers.fast[names.DATABASE].command(
            {
                "delete": names.COVERAGE,
                "deletes": [
                    {
                        "q": {
                            "_id": coverage.namespace,
                            "state": State.PASSTHROUGH.value,
                            "raised": Int64(coverage.raised),
                        },
                        "limit": 1,
                    }
                ],
                "writeConcern": MAJORITY,
            }
        )
        require_written(reply)

    async def set_policy(self, coverage: Coverage, wanted: Wanted) -> None:
        """Another policy for a namespace that isn't active: nothing rests on it."""
        fields = _policy(wanted)
        gone = tuple(k for k in ("ageField", "keep") if k not in fields)
        await self.switch.change(
            coverage, fields, (*gone, "floor", "claim", "complete", "publishedAt")
        )

    async def change_policy(self, coverage: Coverage, wanted: Wanted) -> None:
        """Of an active namespace: what F covers counts for the old policy alone, so it goes first."""
        await self.switch.change(coverage, {}, ("floor", "claim", "complete", "publishedAt"))
        await self.switch.wait_lease()
        bare = await self.switch.read(coverage.namespace)
        if bare.floor is not None or bare.complete:
            raise Overtaken(f"{coverage.namespace}: coverage was published meanwhile")
        fields = _policy(wanted)
        gone = tuple(k for k in ("ageField", "keep") if k not in fields)
        await self.switch.change(bare, fields, (*gone, "floor", "claim", "complete", "publishedAt"))

    async def end_look_back(self, coverage: Coverage) -> None:
        """Retryable writes of before the switch can't come any more."""
        await self.switch.change(coverage, {}, ("lookBack",), raise_by=0)


def _policy(wanted: Wanted) -> dict[str, Any]:
    if wanted.keep_all:
        return {"keep": KEEP_ALL}
    return {"ageField": wanted.age_field}
