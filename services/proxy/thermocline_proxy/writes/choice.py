"""Which document a write of one document is about, where its filter names no ``_id``."""

from typing import Any

from bson.raw_bson import RawBSONDocument

from thermocline_common.coverage import Coverage
from thermocline_common.errors import Code, CommandError
from thermocline_common.ids import DocId
from thermocline_proxy.ports import Tier
from thermocline_proxy.writes import filters
from thermocline_proxy.writes.covered import covers_filter
from thermocline_proxy.writes.refusal import Refused
from thermocline_proxy.writes.run import ATTEMPTS, Run
from thermocline_proxy.writes.targets import Target


async def choose(run: Run, coverage: Coverage, target: Target, *, fast_first: bool) -> DocId | None:
    """One document that matches (with a sort: the first one) at this time, wherever it is.

    ``fast_first``: a match in F is as good as any (unless there is an order), so look there before the archive. Runs the
    client's filter as the proxy's user: only after F has accepted the command.
    """
    fields: dict[str, Any] = target.lookup()
    if target.sort is not None:
        fields["sort"] = RawBSONDocument(target.sort)
    coverage = await run.on_same_footing(coverage)
    if covers_filter(coverage, target.query):
        found, in_time = await run.fast_matches(target.query, fields, limit=1)
        if in_time or (found and target.sort is None):
            run.gateway.count("write-chosen-covered", Tier.FAST.value)
            return found[0] if found else None
    elif fast_first and not target.ordered:
        found, _ = await run.fast_matches(target.query, fields, limit=1)
        if found:
            run.gateway.count("write-chosen-any", Tier.FAST.value)
            return found[0]
    time = await run.behind_barrier()
    run.gateway.count("write-chosen-archive", Tier.ARCHIVE.value)
    matches = await run.archive_matches(coverage, target.query, fields, limit=1, after=time)
    return matches[0] if matches else None


def narrow(target: Target, ids: list[DocId]) -> bytes:
    """The target's filter for these ids alone. Raises ``CommandError`` where a collation forbids it."""
    try:
        return filters.narrow(target.query, ids, collated=target.collated)
    except filters.CannotNarrow as error:
        raise Refused(
            f"a write with a collation can't be limited to the documents it matches: {error}"
        ) from error


def lost(run: Run) -> CommandError:
    """The document chosen was changed by others each time."""
    return CommandError(
        Code.ExceededTimeLimit,
        f"{run.namespace}: the document chosen for this write was changed by others "
        f"{ATTEMPTS} times in a row",
    )
