"""What a client is told where no member of a tier fits its read preference."""

from typing import Any

import bson
import pymongo.helpers_shared
import pytest

from thermocline_common.coverage import Tier
from thermocline_proxy.members import none_fits

RETRIED = pymongo.helpers_shared._RETRYABLE_ERROR_CODES
"""The codes that drivers retry, as their specification lists them."""


@pytest.mark.parametrize(
    ("preference", "shown"),
    [
        ({"mode": "secondary"}, '{ mode: "secondary" }'),
        (
            {"mode": "nearest", "tags": [{"dc": "x", "n": "1"}, {}]},
            '{ mode: "nearest", tags: [ { dc: "x", n: "1" }, {} ] }',
        ),
        (
            {"mode": "secondary", "maxStalenessSeconds": 90},
            '{ mode: "secondary", maxStalenessSeconds: 90 }',
        ),
    ],
)
def test_a_preference_that_no_member_fits_is_answered_as_by_mongos(
    preference: dict[str, Any], shown: str
) -> None:
    error = none_fits(bson.encode(preference), Tier.FAST, "rs0", reachable=True)
    assert error.code == 133
    assert error.code_name == "FailedToSatisfyReadPreference"
    assert error.message == f"Could not find host matching read preference {shown} for set rs0"


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize("preference", [None, {"mode": "primary"}, {"mode": "secondary"}])
def test_what_passes_is_answered_with_a_code_that_drivers_retry(
    preference: dict[str, Any] | None, reachable: bool
) -> None:
    if reachable and preference == {"mode": "secondary"}:
        return
    raw = None if preference is None else bson.encode(preference)
    error = none_fits(raw, Tier.ARCHIVE, None, reachable)
    assert error.code in RETRIED
    assert error.message.endswith("of the archive tier can be reached")
