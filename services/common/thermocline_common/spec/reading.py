"""Text of a manifest -> plain values: YAML or JSON, strictly, with every oddity reported."""

import json
import math
from collections.abc import Hashable, Iterator
from typing import Any

import yaml

from thermocline_common.spec.problems import ManifestError, Problem, join_path

MAX_BYTES = 1_500_000
"""etcd takes no larger object; a larger file is no manifest."""
MAX_NODES = 200_000
"""Aliases can make a small file enormous."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses repeated keys, of which PyYAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise ManifestError(
                        [
                            Problem(
                                f"line {key.start_mark.line + 1}",
                                f"the field {key.value!r} stands there twice",
                                "keep one of them",
                            )
                        ]
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_text(text: str) -> dict[str, Any]:
    """The one object in ``text``, made of JSON's types only. Raises :class:`ManifestError`.

    What stands in the text is never quoted: it may hold a secret in a wrong place.
    """
    if len(text) > MAX_BYTES:
        raise ManifestError(
            [Problem("file", "is larger than 1.5 MB", "give the file of one resource")]
        )
    try:
        documents = [d for d in yaml.load_all(text, Loader=_Loader) if d is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        raise ManifestError(
            [Problem(where, f"is not YAML: {error.problem or error.context}", "mend the syntax")]
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ManifestError(
            [Problem("file", f"is not YAML ({type(error).__name__})", "mend the syntax")]
        ) from None
    if not documents:
        raise ManifestError([Problem("file", "is empty", "write a TieredReplicaSet into it")])
    if len(documents) > 1:
        raise ManifestError(
            [
                Problem(
                    "file", f"holds {len(documents)} documents", "give each resource its own file"
                )
            ]
        )
    value = documents[0]
    if not isinstance(value, dict):
        raise ManifestError(
            [Problem("file", "is not an object", "write a TieredReplicaSet into it")]
        )
    problems: list[Problem] = []
    for count, problem in enumerate(_oddities(value, ())):
        if problem is not None:
            problems.append(problem)
        if count > MAX_NODES or len(problems) > 100:
            problems.append(Problem("file", "is too large", "give the file of one resource"))
            break
    if problems:
        raise ManifestError(problems)
    return value


def _oddities(value: Any, loc: tuple[str | int, ...]) -> Iterator[Problem | None]:
    """One item for each node of the tree: what is wrong with it, or None."""
    path = join_path(loc) or "file"
    if len(loc) > 60:
        yield Problem(path, "is nested too deeply", "mend the structure")
    elif isinstance(value, dict):
        yield None
        for key, inner in value.items():
            if isinstance(key, str):
                yield from _oddities(inner, (*loc, key))
            else:
                yield Problem(
                    path,
                    f"has a field name that YAML reads as {type(key).__name__}",
                    "put the name in quotes",
                )
    elif isinstance(value, list):
        yield None
        for i, inner in enumerate(value):
            yield from _oddities(inner, (*loc, i))
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, "is not a finite number", "write a number")
    elif value is None or isinstance(value, str | bool | int | float):
        yield None
    else:
        yield Problem(path, f"is read by YAML as {type(value).__name__}", "put the value in quotes")


def to_json(value: Any) -> str:
    """The value as JSON text, in which the models read it."""
    return json.dumps(value)
