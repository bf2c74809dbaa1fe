"""The manifests of ``tests/cases/manifests.json``: good ones, and bad ones with what each reader says to them.

``problems`` are the validator's (path, part of the reason, part of the remedy). ``tests/cases/admission.json`` has, by
name, parts of what kubectl prints, or null where the API server takes the manifest: only the validator sees what is wrong.
"""

import copy
import json
import re
from typing import Any, Final

from support.helm import ROOT

CASES: Final[dict[str, Any]] = json.loads((ROOT / "tests/cases/manifests.json").read_text("utf-8"))
ADMISSION: Final[dict[str, list[str] | None]] = json.loads(
    (ROOT / "tests/cases/admission.json").read_text("utf-8")
)


def patched(patch: list[list[Any]]) -> dict[str, Any]:
    """The base with values put at paths; null takes the field out."""
    value: Any = copy.deepcopy(CASES["base"])
    for path, new in patch:
        parts = [int(p) if p.isdigit() else p for p in re.findall(r"[^.\[\]]+", path)]
        inner = value
        for part in parts[:-1]:
            inner = inner[part]
        if new is None:
            del inner[parts[-1]]
        else:
            inner[parts[-1]] = new
    return dict(value)
