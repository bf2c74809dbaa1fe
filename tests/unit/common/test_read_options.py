"""A tier's defaults for reads, from its fields and its URI; and which changes need new connections."""

from typing import Any

import pytest

from thermocline_common.spec.manifest import find_problems
from thermocline_common.spec.models import ReadPreferenceMode, SecretRef, TierSpec, TierTls
from thermocline_common.spec.reads import ReadOptions, needs_new_connections, read_options

URI = "mongodb://h/?replicaSet=r"
NEAREST = ReadPreferenceMode.NEAREST


def tier(options: str = "", **fields: Any) -> TierSpec:
    return TierSpec(uri=URI + options, **fields)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (tier(), ReadOptions()),
        (tier("&readPreference=primary"), ReadOptions()),
        (
            tier("&readPreference=secondary&readPreferenceTags=a:b&readPreferenceTags="
                 "&maxStalenessSeconds=90&localThresholdMS=3"),
            ReadOptions("secondary", ({"a": "b"}, {}), 90, 3),
        ),
        (
            tier(read_preference=NEAREST, read_preference_tags=[{"a": "b"}], max_staleness_seconds=120, localThresholdMS=30),
            ReadOptions("nearest", ({"a": "b"},), 120, 30),
        ),
        # Mode in one place, tags in the other.
        (tier("&readPreference=nearest", read_preference_tags=[{"a": "b"}]), ReadOptions("nearest", ({"a": "b"},))),
        # The API server has filled in the default.
        (tier("&localThresholdMS=0", localThresholdMS=15), ReadOptions(local_threshold_ms=0)),
    ],
)  # fmt: skip
def test_what_holds(spec: TierSpec, expected: ReadOptions) -> None:
    assert read_options(spec) == expected


@pytest.mark.parametrize(
    ("options", "preference"),
    [
        (ReadOptions(), None),
        (ReadOptions("nearest"), {"mode": "nearest"}),
        (
            ReadOptions("secondary", ({"a": "b"}, {}), 90),
            {"mode": "secondary", "tags": [{"a": "b"}, {}], "maxStalenessSeconds": 90},
        ),
    ],
)
def test_as_a_read_preference(options: ReadOptions, preference: dict[str, Any] | None) -> None:
    assert options.preference == preference


@pytest.mark.parametrize(
    ("options", "fields", "path"),
    [
        ("&readPreference=nearest", {"readPreference": "nearest"}, "readPreference"),
        ("&readPreference=nearest&readPreferenceTags=a:b", {"readPreferenceTags": [{}]}, "readPreferenceTags"),
        ("&readPreference=nearest&maxStalenessSeconds=90", {"maxStalenessSeconds": 90}, "maxStalenessSeconds"),
        ("&localThresholdMS=3", {"localThresholdMS": 4}, "localThresholdMS"),
        ("&localThresholdMS=3", {"localThresholdMS": 15}, None),
        ("&readPreference=nearest&heartbeatFrequencyMS=90000", {"maxStalenessSeconds": 95}, "maxStalenessSeconds"),
        ("&readPreference=nearest&heartbeatFrequencyMS=90000", {"maxStalenessSeconds": 100}, None),
    ],
)  # fmt: skip
def test_what_contradicts_itself(options: str, fields: dict[str, Any], path: str | None) -> None:
    found = find_problems(
        {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": {"name": "x"},
            "spec": {
                "archive": {"uri": URI + options, **fields},
                "fastTier": {"uri": "mongodb://f/?replicaSet=f"},
            },
        }
    )
    assert [problem.path for problem in found] == ([] if path is None else [f"spec.archive.{path}"])


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (tier(), False),
        (tier("&readPreference=nearest&readPreferenceTags=a:b&maxStalenessSeconds=90"), False),
        (tier(read_preference=NEAREST), False),
        (tier("&localThresholdMS=3"), True),
        (tier("&tls=true"), True),
        (TierSpec(uri="mongodb://h:27018/?replicaSet=r"), True),
        (tier(credentials_secret_ref=SecretRef(name="x")), True),
        (tier(tls=TierTls(ca_secret_ref=SecretRef(name="x"))), True),
    ],
)
def test_preferences_alone_need_no_new_connections(new: TierSpec, expected: bool) -> None:
    assert needs_new_connections(tier(), new) is expected
