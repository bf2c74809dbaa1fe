"""The members that a command's read preference would choose, as ``thermocline explain --members`` names them."""

import json
from pathlib import Path
from typing import Any

import bson
import pytest
from typer.testing import CliRunner

from support.topologies import described, member
from thermocline_cli import __main__ as program
from thermocline_cli.commands import parse_command
from thermocline_cli.members import chosen, preference_of
from thermocline_common.coverage import Tier
from thermocline_common.spec.manifest import parse_manifest
from thermocline_common.spec.models import Manifest
from thermocline_proxy.choosing import Zone

SHOP = str(Path(__file__).parents[3] / "docs" / "samples" / "shop.yaml")
SET = described(
    member("p", "primary", 150, dc="west"),
    member("s", "secondary", 1.25, dc="east"),
    member("x", "arbiter", 1),
)


def manifest(archive: str = "", **fast: Any) -> Manifest:
    return parse_manifest(
        {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": {"name": "x"},
            "spec": {
                "archive": {"uri": f"mongodb://a/?replicaSet=a{archive}"},
                "fastTier": {"uri": "mongodb://f/?replicaSet=f", **fast},
            },
        }
    )


def of(command: dict[str, Any], tier: Tier, resource: Manifest) -> dict[str, Any] | None:
    raw = preference_of(parse_command(json.dumps(command), "shop", []), tier, resource)
    return None if raw is None else dict(bson.decode(raw))


def test_the_commands_preference_goes_before_the_tiers_own() -> None:
    resource = manifest(
        "&readPreference=nearest&readPreferenceTags=dc:a&readPreferenceTags=",
        readPreference="secondary",
        maxStalenessSeconds=120,
    )
    find: dict[str, Any] = {"find": "c"}
    assert of(find, Tier.ARCHIVE, resource) == {"mode": "nearest", "tags": [{"dc": "a"}, {}]}
    assert of(find, Tier.FAST, resource) == {"mode": "secondary", "maxStalenessSeconds": 120}
    own = {"mode": "primaryPreferred"}
    for tier in Tier:
        assert of({**find, "$readPreference": own}, tier, resource) == own
        assert of({"insert": "c", "documents": [], "$readPreference": own}, tier, resource) is None
        assert of(find, tier, manifest()) is None


def test_members_are_named_with_reason_and_distance() -> None:
    found = chosen(Tier.ARCHIVE, SET, bson.encode({"mode": "secondaryPreferred"}), None)
    assert [(m.address, m.reason, m.milliseconds) for m in found.members] == [
        ("s:1", "latency", 1.2)
    ]
    assert (found.tier, found.satisfiable, found.text) == ("archive", True, None)
    west = chosen(Tier.FAST, SET, bson.encode({"mode": "nearest"}), Zone("dc", "west"))
    assert [(m.address, m.reason) for m in west.members] == [("p:1", "own-zone")]
    assert [m.address for m in chosen(Tier.FAST, SET, None, None).members] == ["p:1"]


def test_tag_sets_that_nobody_matches_are_not_satisfiable() -> None:
    raw = bson.encode({"mode": "secondary", "tags": [{"dc": "north"}]})
    found = chosen(Tier.ARCHIVE, SET, raw, None)
    assert found.members == ()
    assert not found.satisfiable
    assert found.text == (
        'no member matches the tag set { dc: "north" }; there are p:1 { dc: "west" }, s:1 { dc: "east" }'
    )
    # The primary falls in, but the condition says it all the same.
    fallback = chosen(
        Tier.ARCHIVE,
        SET,
        bson.encode({"mode": "secondaryPreferred", "tags": [{"dc": "north"}]}),
        None,
    )
    assert [(m.address, m.reason) for m in fallback.members] == [("p:1", "fallback")]
    assert not fallback.satisfiable


def test_a_member_that_fits_but_not_now() -> None:
    found = chosen(
        Tier.FAST, SET, bson.encode({"mode": "secondary", "tags": [{"dc": "west"}]}), None
    )
    assert (found.members, found.satisfiable) == ((), True)
    assert "no member fits now; there are p:1 RSPrimary" in (found.text or "")


def test_the_program_prints_them_and_fails_where_nobody_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = bson.encode({"mode": "secondary", "tags": [{"dc": "north"}]})
    found = [chosen(Tier.FAST, SET, None, None), chosen(Tier.ARCHIVE, SET, raw, None)]
    asked: list[Any] = []

    def choose_members(*arguments: Any) -> Any:
        asked.append(arguments)
        return found

    monkeypatch.setattr(program, "choose_members", choose_members)
    arguments = ["explain", SHOP, "-c", '{"find": "orders"}', "--members", "--zone", "east"]
    result = CliRunner().invoke(program.app, arguments)
    assert result.exit_code == 1
    assert asked[0][3] == "east"
    assert (
        '  fast tier, read preference { mode: "primary" }:\n    p:1 (primary, 150.0 ms)'
        in result.output
    )
    assert "nobody: no member matches the tag set" in result.output
    assert "TopologySatisfiable is False" in result.output
    result = CliRunner().invoke(program.app, [*arguments, "-o", "json"])
    assert json.loads(result.output)["members"][1]["satisfiable"] is False
