"""The program as people call it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from thermocline_cli.__main__ import app

ROOT = Path(__file__).parents[3]
SAMPLES = sorted((ROOT / "docs" / "samples").glob("*.yaml"))
SHOP = str(ROOT / "docs" / "samples" / "shop.yaml")
BAD = """
apiVersion: thermocline.io/v1alpha1
kind: TieredReplicaSet
metadata: {name: shop}
spec:
  archive: {uri: "mongodb://root:geheim@a?replicaSet=r"}
  fastTier: {uri: "mongodb://f/?replicaSet=r"}
  collections:
    - {namespace: shop.orders, ageField: createdAt, maxAge: 1mo}
"""
run = CliRunner().invoke


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_samples_are_valid(sample: Path) -> None:
    result = run(app, ["validate", str(sample)])
    assert result.exit_code == 0
    assert result.output == f"{sample}: valid\n"


def test_there_are_samples() -> None:
    assert {"demo.yaml", "minimal.yaml"} <= {path.name for path in SAMPLES}


def test_validate_prints_every_problem_and_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    result = run(app, ["validate", str(file), SHOP])
    assert result.exit_code == 1
    assert "bad.yaml: 2 problems" in result.output
    assert "spec.archive.uri\n      no '/' between the hosts and the '?'" in result.output
    assert "remedy: write '/?'" in result.output
    assert "spec.collections[0].maxAge '1mo'" in result.output
    assert "shop.yaml: valid" in result.output
    assert "geheim" not in result.output


def test_validate_reads_standard_input_and_writes_json() -> None:
    result = run(app, ["validate", "-", "-o", "json"], input=BAD)
    assert result.exit_code == 1
    problems = json.loads(result.output)["-"]
    assert [p["path"] for p in problems] == ["spec.collections[0].maxAge", "spec.archive.uri"]
    assert all(p["reason"] and p["remedy"] for p in problems)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("none.yaml", None, "can't be read"), ("x.yaml", "a: [", "is not YAML"), ("e.yaml", "", "is empty")],
)  # fmt: skip
def test_validate_tells_files_that_are_no_manifest(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    result = run(app, ["validate", str(file)])
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_explain_prints_tier_and_reason() -> None:
    result = run(app, ["explain", SHOP, "--command", '{"find": "orders", "filter": {"_id": 1}}'])
    assert result.exit_code == 0
    assert "shop.orders: fast tier" in result.output
    assert "reason: point-id" in result.output


def test_explain_takes_a_floor_as_age_or_date() -> None:
    command = (
        '{"find": "orders", "filter": {"createdAt": {"$gte": {"$date": "2020-01-01T00:00:00Z"}}}}'
    )
    for floor, tier in (("2019-12-31", "fast tier"), ("36500d", "fast tier"), ("1d", "archive")):
        result = run(app, ["explain", SHOP, "-c", command, "--floor", floor, "-o", "json"])
        assert json.loads(result.output)["tier"] == tier


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", "find orders"], "not extended JSON"),
        (["-c", '{"find": "x"}', "--floor", "1mo"], "no fixed length"),
        (["-c", '{"find": "x"}', "--floor", "2026-13-01"], "is no date"),
    ],
)
def test_explain_tells_bad_arguments(arguments: list[str], message: str) -> None:
    result = run(app, ["explain", SHOP, *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_explain_of_a_bad_manifest_prints_its_problems(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    result = run(app, ["explain", str(file), "-c", '{"find": "x"}'])
    assert result.exit_code == 1
    assert "2 problems" in result.output
    assert "geheim" not in result.output


def test_version_and_help() -> None:
    assert run(app, ["--version"]).output.startswith("thermocline 0.")
    assert "validate" in run(app, ["--help"]).output
