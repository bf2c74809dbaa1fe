"""What a tier answered to a question of the proxy's reaches the client with MongoDB's code and name."""

from typing import Any

import pytest
from pymongo.errors import OperationFailure

from thermocline_proxy.answered import as_answered


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        (
            201,
            {"errmsg": "e", "codeName": "CannotBuildIndexKeys"},
            (201, "CannotBuildIndexKeys", "for: e"),
        ),
        (2, {"errmsg": "e", "codeName": "BadValue"}, (2, "BadValue", "for: e")),
        (2, {"errmsg": "e"}, (2, "BadValue", "for: e")),
        (51_024, {"errmsg": "e", "codeName": "Location51024"}, (51_024, "Location51024", "for: e")),
        (None, None, (96, "OperationFailed", "for: text")),
    ],
)
def test_codes_names_and_texts(
    code: int | None, details: dict[str, Any] | None, expected: tuple[int, str, str]
) -> None:
    made = as_answered(OperationFailure("text", code, details), "for: ")
    assert (made.code, made.code_name, made.message) == expected
