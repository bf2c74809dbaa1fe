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
        (50, {"errmsg": "e", "codeName": "MaxTimeMSExpired"}, (262, "ExceededTimeLimit", None)),
        (None, None, (96, "OperationFailed", "for: text")),
    ],
)
def test_codes_names_and_texts(
    code: int | None, details: dict[str, Any] | None, expected: tuple[int, str, str | None]
) -> None:
    made = as_answered(OperationFailure("text", code, details), "for: ")
    assert (made.code, made.code_name) == expected[:2]
    if expected[2] is None:
        assert made.message.startswith("for: ")
    else:
        assert made.message == expected[2]


def test_a_limit_that_the_client_gave_is_told_as_such() -> None:
    error = OperationFailure("text", 50, {"errmsg": "e", "codeName": "MaxTimeMSExpired"})
    assert as_answered(error, limited=True).code == 50
