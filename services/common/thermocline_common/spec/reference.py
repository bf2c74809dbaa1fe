"""The reference page of the resource, from the same schema as the CRD."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_HEAD = """<!-- Generated from thermocline_common.spec by `make crds`; don't edit. -->

# TieredReplicaSet

`thermocline.io/v1alpha1`, short name `trs`. `thermocline validate FILE` checks a manifest and says what is
wrong, where, and what to do. Durations are whole numbers with `s`, `m`, `h`, `d` (24 hours) or `w`; leases and
time-outs also take `ms`. A field that isn't listed here is refused.

`metadata.name` is a DNS label of at most 40 characters.
"""


def reference_page(spec: Mapping[str, Any]) -> str:
    """Markdown for the structural schema of ``spec``."""
    sections = [_HEAD]
    for path, node in _objects("spec", spec):
        sections.append(_section(path, node))
    return "\n".join(sections)


def _objects(path: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object with fields, outermost first."""
    if "properties" in node:
        yield path, node
        for name, inner in node["properties"].items():
            yield from _objects(f"{path}.{name}", inner)
    elif "items" in node:
        yield from _objects(f"{path}[]", node["items"])


def _section(path: str, node: Mapping[str, Any]) -> str:
    required = node.get("required", ())
    lines = [f"## `{path}`", ""]
    if node.get("description"):
        lines += [str(node["description"]), ""]
    lines += ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, inner in node["properties"].items():
        default = f"`{_text(inner['default'])}`" if "default" in inner else ""
        if name in required:
            default = "required"
        meaning = " ".join([str(inner.get("description", "")), *_bounds(inner)]).replace("|", "\\|")
        lines.append(f"| `{name}` | {_type(inner)} | {default} | {meaning.strip()} |")
    rules = [rule["message"] for rule in node.get("x-kubernetes-validations", ())]
    for name, inner in node["properties"].items():
        of_field = (
            inner.get("items", inner) if "properties" not in inner.get("items", {}) else inner
        )
        rules += [
            f"`{name}`: {rule['message']}" for rule in of_field.get("x-kubernetes-validations", ())
        ]
    if rules:
        lines += ["", "Refused by the API server already, with these messages:", ""]
        lines += [f"- {message}" for message in rules]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _type(node: Mapping[str, Any]) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "enum" in node:
        return " or ".join(f"`{value}`" for value in node["enum"])
    if "items" in node:
        return f"list of {_type(node['items'])}"
    if isinstance(node.get("additionalProperties"), Mapping):
        return f"map of {_type(node['additionalProperties'])}"
    return str(node.get("type", "object"))


def _bounds(node: Mapping[str, Any]) -> list[str]:
    """Ranges in words."""
    low, high = node.get("minimum"), node.get("maximum")
    found = []
    if low is not None and high is not None and "x-kubernetes-validations" not in node:
        found.append(f"{low} to {high}.")
    if "maxItems" in node:
        found.append(f"At most {node['maxItems']}.")
    return found
