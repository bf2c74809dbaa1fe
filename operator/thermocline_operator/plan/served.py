"""Whether the CustomResourceDefinition that the API server serves is new enough for this operator."""

from collections.abc import Mapping
from typing import Any, Final

from thermocline_common import names
from thermocline_common.spec.crd import custom_resource_definition

PATH: Final = f"/openapi/v3/apis/{names.API_VERSION}"


def served_schema(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The resource's schema in an OpenAPI document of its group; None: it isn't there."""
    schemas = (document.get("components") or {}).get("schemas") or {}
    for schema in schemas.values():
        for kind in schema.get("x-kubernetes-group-version-kind") or []:
            if kind.get("kind") == names.KIND and kind.get("group") == names.GROUP:
                return dict(schema)
    return None


def missing_fields(served: Mapping[str, Any]) -> list[str]:
    """Fields of this operator's schema that the served one lacks; the API server would drop them."""
    version = custom_resource_definition()["spec"]["versions"][0]
    own = version["schema"]["openAPIV3Schema"]
    found: list[str] = []
    for part in ("spec", "status"):
        found += _missing(own["properties"][part], (served.get("properties") or {}).get(part), part)
    return found


def _missing(own: Mapping[str, Any], served: Any, path: str) -> list[str]:
    if not isinstance(served, Mapping):
        return [path]
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return []
    found: list[str] = []
    for name, inner in (own.get("properties") or {}).items():
        found += _missing(inner, (served.get("properties") or {}).get(name), f"{path}.{name}")
    items = own.get("items")
    if isinstance(items, Mapping):
        found += _missing(items, served.get("items"), f"{path}[]")
    return found
