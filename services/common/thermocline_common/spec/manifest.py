"""Plain values or text -> a checked :class:`Manifest`, with every problem collected."""

import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from thermocline_common.spec.models import Manifest, Metadata, Spec, TieredReplicaSet
from thermocline_common.spec.problems import ManifestError, Problem, join_path
from thermocline_common.spec.reading import read_text, to_json
from thermocline_common.spec.rules import check

__all__ = ["Manifest", "ManifestError", "Metadata", "Problem", "Spec", "find_problems", "parse_manifest", "parse_text"]  # fmt: skip

_SECRET_PLACES = frozenset({"uri", "credentialsSecretRef", "tls", "podTemplate", "status"})
_TYPES = {"string": "a text", "int": "a whole number", "float": "a number", "bool": "true or false"}


def parse_text(text: str) -> Manifest:
    """The manifest in a YAML or JSON text. Raises :class:`ManifestError` with every problem found."""
    return parse_manifest(read_text(text))


def parse_manifest(value: Mapping[str, Any]) -> Manifest:
    """The manifest of plain values (JSON's types). Raises :class:`ManifestError` with every problem."""
    problems, manifest = _parse(value)
    if problems or manifest is None:
        raise ManifestError(problems)
    return manifest


def find_problems(value: Mapping[str, Any]) -> list[Problem]:
    """Every problem of a resource given as plain values; none: it is valid by itself.

    What only the servers can tell is :mod:`thermocline_common.spec.admission`.
    """
    return _parse(value)[0]


def _parse(value: Mapping[str, Any]) -> tuple[list[Problem], Manifest | None]:
    manifest = None
    problems: list[Problem] = []
    try:
        # In JSON's mode, strict still turns a text into an enum; by name, a file could use our
        # attributes' names.
        manifest = TieredReplicaSet.model_validate_json(
            to_json(value), by_alias=True, by_name=False
        )
    except ValidationError as error:
        problems += [_problem(e, value) for e in error.errors(include_url=False)]
    told = {problem.path for problem in problems}
    problems += [problem for problem in check(value) if problem.path not in told]
    return problems, manifest


def _problem(error: ErrorDetails, root: Mapping[str, Any]) -> Problem:
    loc = error["loc"]
    path = join_path(loc) or "file"
    kind = error["type"]
    context: Mapping[str, Any] = error.get("ctx") or {}
    shown = _shown(root, loc, kind)
    if kind == "extra_forbidden":
        known = _fields_at(loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.6)
        remedy = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
        return Problem(path, "is not a field of the resource", remedy)
    if kind == "missing":
        return Problem(path, "is missing", "add it")
    if "remedy" in context:
        return Problem(path, str(context["reason"]), str(context["remedy"]), shown)
    if kind in ("enum", "literal_error"):
        return Problem(
            path, "is not one of the allowed values", f"use {context['expected']}", shown
        )
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = "at least" if kind == "greater_than_equal" else "at most"
        return Problem(
            path, "is out of range", f"use {bound} {context.get('ge', context.get('le'))}", shown
        )
    if kind == "too_long":
        return Problem(
            path,
            f"has {context['actual_length']} entries",
            f"use at most {context['max_length']}",
        )
    if kind in ("string_too_short", "string_too_long"):
        limit = context.get("max_length", context.get("min_length"))
        word = "short" if kind.endswith("short") else "long"
        side = "at least" if word == "short" else "at most"
        return Problem(path, f"is too {word}", f"use {side} {limit} characters")
    for name, text in _TYPES.items():
        if kind.startswith(f"{name}_"):
            return Problem(path, f"is not {text}", f"write {text}")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return Problem(path, "is not an object", "write an object with fields")
    if kind == "list_type":
        return Problem(path, "is not a list", "write a list")
    return Problem(path, error["msg"], "mend the value")


def _shown(root: Any, loc: tuple[str | int, ...], kind: str) -> str | None:
    """The value at ``loc`` as text, or None where it could be a secret."""
    if kind.endswith("_type") or _SECRET_PLACES.intersection(loc):
        return None
    for part in loc:
        try:
            root = root[part]
        except (KeyError, IndexError, TypeError):
            return None
    if isinstance(root, str):
        return None if "://" in root or "@" in root or len(root) > 300 else repr(root)
    if isinstance(root, bool | int | float):
        return repr(root)
    return None


def _fields_at(loc: tuple[str | int, ...]) -> list[str]:
    """The names of the fields that the object at ``loc`` may have."""
    current: Any = TieredReplicaSet
    for part in loc:
        if isinstance(part, int):
            current = _inner(current)
            continue
        if not (isinstance(current, type) and issubclass(current, BaseModel)):
            return []
        for name, field in current.model_fields.items():
            if (field.alias or name) == part:
                current = _unwrap(field.annotation)
                break
        else:
            return []
    if isinstance(current, type) and issubclass(current, BaseModel):
        return [field.alias or name for name, field in current.model_fields.items()]
    return []


def _unwrap(annotation: Any) -> Any:
    """The annotation without Annotated and without None."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _unwrap(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        left = [a for a in typing.get_args(annotation) if a is not types.NoneType]
        return _unwrap(left[0]) if len(left) == 1 else annotation
    return annotation


def _inner(annotation: Any) -> Any:
    arguments = typing.get_args(_unwrap(annotation))
    return _unwrap(arguments[0]) if arguments else None
