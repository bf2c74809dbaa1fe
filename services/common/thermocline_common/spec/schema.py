"""The models' JSON schema, turned into what a CRD takes: structural, without references."""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from thermocline_common.durations import format_duration
from thermocline_common.spec.cel import CEL_RULES

_DROPPED: Final = frozenset({"title", "additionalProperties", "$defs", "discriminator"})
_WITH_DEFAULT: Final = frozenset({"spec.proxy", "spec.feeder", "spec.evictor", "spec.warmer"})
"""Objects with a default ``{}``, so that the defaults of their fields show in the stored resource."""
_LIST_KEYS: Final = {
    "spec.collections": "namespace",
    "status.collections": "namespace",
    "status.conditions": "type",
    "status.components": "name",
}


class _Schema(GenerateJsonSchema):
    """Writes durations as the resource does; pydantic's own form would be ISO 8601."""

    def encode_default(self, dft: Any) -> Any:
        return (
            format_duration(dft) if isinstance(dft, dt.timedelta) else super().encode_default(dft)
        )


def structural(model: type[BaseModel], path: str) -> dict[str, Any]:
    """The schema of ``model`` as it stands at ``path`` of the resource, with rules and list types."""
    root = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Schema)
    return _convert(root, root.get("$defs", {}), path)


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> dict[str, Any]:
    node = _resolve(node, definitions)
    out: dict[str, Any] = {k: v for k, v in node.items() if k not in _DROPPED}
    if "const" in out:
        out["enum"] = [out.pop("const")]
    if isinstance(node.get("additionalProperties"), Mapping):
        out["additionalProperties"] = _convert(
            node["additionalProperties"], definitions, f"{path}{{}}"
        )
    if "properties" in node:
        out["properties"] = {
            name: _convert(inner, definitions, f"{path}.{name}".lstrip("."))
            for name, inner in node["properties"].items()
        }
    if "items" in node:
        out["items"] = _convert(node["items"], definitions, f"{path}[]")
        key = _LIST_KEYS.get(path)
        if key is not None:
            out |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
        else:
            out["x-kubernetes-list-type"] = "atomic"
    if out.get("type") == "integer":
        out["format"] = "int64" if abs(out.get("maximum", 2**40)) > 2**31 else "int32"
    if path in _WITH_DEFAULT:
        out["default"] = {}
    elif out.get("default", "") is None or isinstance(out.get("default"), dict | list):
        del out["default"]
    if path in CEL_RULES:
        out["x-kubernetes-validations"] = validations(path)
    return out


def validations(path: str) -> list[dict[str, str]]:
    """The CEL rules at ``path`` as a CRD has them."""
    return [{"rule": rule.rule, "message": rule.message} for rule in CEL_RULES[path]]


def _resolve(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """``node`` without references and without ``| None``; a field's own texts win over its type's."""
    out = dict(node)
    choices = out.get("anyOf")
    if choices is not None and not out.get("x-kubernetes-int-or-string"):
        left = [choice for choice in choices if choice.get("type") != "null"]
        if len(left) != 1:
            raise ValueError(f"a CRD can't have a choice of types: {choices}")
        del out["anyOf"]
        out = {**_resolve(left[0], definitions), **out}
    reference = out.pop("$ref", None)
    if reference is not None:
        out = {**_resolve(definitions[reference.rpartition("/")[2]], definitions), **out}
    if out.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
    return out
