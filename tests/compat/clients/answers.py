"""What every script here does with its answers: collect them, and print them as one line of extended JSON."""

import os
from typing import Any

from bson import json_util

URI = os.environ["CLIENT_URI"]
COLLECTION = os.environ["CLIENT_COLLECTION"]
"""In the database ``clients``: ``{_id: 0..19, kind: "a" | "b" | "c", n, at}``; those with an even ``_id`` are cold."""

_told: list[list[Any]] = []


def tell(step: str, answer: Any) -> None:
    """Remember the answer of a step."""
    _told.append([step, answer])


def done() -> None:
    """Print all answers."""
    print(json_util.dumps(_told, json_options=json_util.CANONICAL_JSON_OPTIONS))
