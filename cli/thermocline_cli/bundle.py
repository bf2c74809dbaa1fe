"""What goes into a report for support, and what never does. Pure, but for :func:`write`."""

import copy
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from thermocline_common.logs import redact

HIDDEN: Final = "(left out)"
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def cleaned(body: Mapping[str, Any]) -> dict[str, Any]:
    """An object, or a list of them, without what may be secret: values of environment variables, data of Secrets."""
    found = copy.deepcopy(dict(body))
    for one in found.get("items", [found]):
        _clean(one)
    return found


def _clean(body: dict[str, Any]) -> None:
    metadata = body.get("metadata") or {}
    metadata.pop("managedFields", None)
    (metadata.get("annotations") or {}).pop(_APPLIED, None)
    if body.get("kind") == "Secret":
        for part in ("data", "stringData"):
            if body.get(part):
                body[part] = dict.fromkeys(body[part], HIDDEN)
    _hide_environment(body)


def _hide_environment(value: Any) -> None:
    if isinstance(value, dict):
        for variable in value.get("env") or []:
            if isinstance(variable, dict) and "value" in variable:
                variable["value"] = HIDDEN
        for inner in value.values():
            _hide_environment(inner)
    elif isinstance(value, list):
        for inner in value:
            _hide_environment(inner)


def secret_names(spec: Mapping[str, Any]) -> list[str]:
    """Every Secret that a spec names."""
    found: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if key.endswith("SecretRef") and isinstance(inner, Mapping) and "name" in inner:
                    found.add(str(inner["name"]))
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(spec)
    return sorted(found)


def write(path: Path, folder: str, files: Mapping[str, str]) -> None:
    """A ``.tar.gz`` with these texts; passwords in connection strings and the like are taken out of each."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in sorted(files.items()):
            raw = redact(text).encode(errors="replace")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
