"""Views resolved to the collections that they read."""

from collections.abc import Iterable, Mapping
from typing import Any

from thermocline_common.ids import wrap
from thermocline_proxy.commands.touched import foreign


def direct_sources(database: str, view_on: str, pipeline: Iterable[bytes]) -> frozenset[str]:
    """What a view names itself: its source and every join in its raw pipeline stages, at any depth."""
    stages = wrap(*(b"\x03%d\0" % number + stage for number, stage in enumerate(pipeline)))
    return frozenset((f"{database}.{view_on}",)) | foreign(stages, database)


def resolve(direct: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """View -> the collections under it, through views on views. A cycle ends where it began."""
    resolved: dict[str, frozenset[str]] = {}
    for view in direct:
        found: set[str] = set()
        seen = {view}
        waiting = [view]
        while waiting:
            for source in direct[waiting.pop()]:
                if source not in direct:
                    found.add(source)
                elif source not in seen:
                    seen.add(source)
                    waiting.append(source)
        resolved[view] = frozenset(found)
    return resolved


def sources_of(
    database: str, descriptions: Iterable[Mapping[str, Any]]
) -> dict[str, frozenset[str]]:
    """From the views' descriptions in a listCollections reply, nested documents raw."""
    direct = {}
    for description in descriptions:
        options = description["options"]
        stages = [bytes(stage.raw) for stage in options.get("pipeline", ())]
        name = f"{database}.{description['name']}"
        direct[name] = direct_sources(database, str(options["viewOn"]), stages)
    return resolve(direct)
