"""The program as people call it."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import ServerSelectionTimeoutError
from typer.testing import CliRunner

from support.pki import Authority
from thermocline_cli import __main__ as program
from thermocline_cli.__main__ import app
from thermocline_cli.release import Standing
from thermocline_common.coverage import Doubt

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
    assert "bad.yaml: 3 problems" in result.output
    assert "spec.archive.uri\n      no '/' between the hosts and the '?'" in result.output
    assert "remedy: write '/?'" in result.output
    assert "spec.collections[0].maxAge '1mo'" in result.output
    assert "shop.yaml: valid" in result.output
    assert "geheim" not in result.output


def test_validate_reads_standard_input_and_writes_json() -> None:
    result = run(app, ["validate", "-", "-o", "json"], input=BAD)
    assert result.exit_code == 1
    problems = json.loads(result.output)["-"]
    assert [p["path"] for p in problems] == [
        "spec.collections[0].maxAge",
        "spec.archive.uri",
        "spec.archive.uri",
    ]
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
    assert "3 problems" in result.output
    assert "geheim" not in result.output


DOUBT = Doubt(dt.datetime(2026, 6, 1, tzinfo=dt.UTC), "find", ("missing 5",), 3)


def test_release_lists_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Standing("shop.orders", DOUBT)]
    monkeypatch.setattr(program, "standing", lambda *_: found)
    result = run(app, ["release", SHOP])
    assert result.exit_code == 0
    assert "shop.orders: its reads go to the archive" in result.output
    assert "3 documents differed (noticed by find, 2026-06-01T00:00:00+00:00)" in result.output
    assert "missing 5" in result.output
    document = json.loads(run(app, ["release", SHOP, "-o", "json"]).output)
    assert document[0]["doubt"]["since"] == "2026-06-01T00:00:00+00:00"
    found.clear()
    assert "nothing waits" in run(app, ["release", SHOP]).output


@pytest.mark.parametrize(
    ("doubts", "code", "said"),
    [
        ([DOUBT, DOUBT], 0, ["a.b: released", "a.c: released"]),
        ([DOUBT, None], 1, ["a.b: released", "a.c: nothing to release"]),
    ],
)
def test_release_says_what_was_there(
    monkeypatch: pytest.MonkeyPatch, doubts: list[Doubt | None], code: int, said: list[str]
) -> None:
    def release(_manifest: Any, _credentials: Any, namespaces: list[str]) -> list[Standing]:
        return [
            Standing(namespace, doubt, doubt is not None)
            for namespace, doubt in zip(namespaces, doubts, strict=True)
        ]

    monkeypatch.setattr(program, "release_namespaces", release)
    result = run(app, ["release", SHOP, "a.b", "a.c"])
    assert result.exit_code == code
    assert all(text in result.output for text in said)


def test_release_without_a_server_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any) -> list[Standing]:
        raise ServerSelectionTimeoutError("fast-0.fast:27017: connection refused")

    monkeypatch.setattr(program, "standing", unreachable)
    result = run(app, ["release", SHOP])
    assert result.exit_code == 2
    assert "connection refused" in result.output
    # The sample names Secrets: their files must be given.
    assert run(app, ["release", SHOP, "a.b"]).exit_code == 2


def test_version_and_help() -> None:
    assert run(app, ["--version"]).output.startswith("thermocline 0.")
    assert "validate" in run(app, ["--help"]).output


def test_uri_check_prints_the_options_in_force() -> None:
    uri = "mongodb://u:geheim@h1,h2:27018/shop?replicaSet=rs0&readPreference=nearest&readPreferenceTags=dc:a&readPreferenceTags="
    result = run(app, ["uri", "check", uri])
    assert result.exit_code == 0
    assert "geheim" not in result.output
    assert "hosts: h1:27017, h2:27018" in result.output
    rows = [line.split(maxsplit=1) for line in result.output.splitlines() if line]
    assert ["readPreferenceTags", '[{"dc": "a"}, {}]'] in [
        [part.strip() for part in row] for row in rows
    ]
    assert ["retryWrites", "true"] in [row[:1] + row[1].split()[:1] for row in rows if len(row) > 1]


def test_uri_check_puts_a_caret_under_every_mistake() -> None:
    result = run(app, ["uri", "check", "mongodb://u:geheim@h/?replicaSte=rs0&tls=yes"])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    masked = "mongodb://u:******@h/?replicaSte=rs0&tls=yes"
    assert lines[:4] == [
        masked,
        " " * masked.index("replicaSte") + "^" * len("replicaSte"),
        f"at character {masked.index('replicaSte') + 1}: no option of this name exists",
        "remedy: did you mean replicaSet?",
    ]
    assert lines[5] == " " * masked.index("yes") + "^^^"
    assert "geheim" not in result.output


@pytest.mark.parametrize(
    "uri", ["mongodb://u:geh@eim@h/", "mongodb://u:geh/eim@h/?tls=true", "mongodb://u:%zgeheim@h"]
)
def test_uri_check_shows_no_broken_password(uri: str) -> None:
    result = run(app, ["uri", "check", "-"], input=f"{uri}\n")
    assert result.exit_code == 1
    assert "eim" not in result.output
    assert "geh" not in result.output


def test_uri_check_keeps_the_caret_where_it_belongs_in_a_long_text() -> None:
    hosts = ",".join(f"server-{n:02}.example.com" for n in range(20))
    result = run(app, ["uri", "check", f"mongodb://{hosts}/?bogus=1"])
    line, caret = result.output.splitlines()[:2]
    assert len(line) < 120
    assert line[caret.index("^") : caret.rindex("^") + 1] == "bogus"


def test_uri_check_for_a_manifest_in_json() -> None:
    result = run(app, ["uri", "check", "mongodb://h/?w=1", "--place", "manifest", "-o", "json"])
    assert result.exit_code == 1
    assert [problem["start"] for problem in json.loads(result.output)["problems"]] == [11, 15]


def test_uri_check_looks_at_files_where_it_is_asked_to(tmp_path: Path) -> None:
    authority = Authority("tests")
    good, expired = authority.issue("app"), authority.issue("app", begin=-3, days=2)
    (tmp_path / "ca").write_bytes(authority.certificate)
    (tmp_path / "good").write_bytes(good.both)
    (tmp_path / "expired").write_bytes(expired.both)
    (tmp_path / "swapped").write_bytes(good.key)
    (tmp_path / "empty").write_bytes(b"")
    cases = {
        "tlsCAFile=missing": "isn't there",
        "tlsCAFile=empty": "is empty",
        "tlsCAFile=swapped": "holds a private key, but no certificate",
        "tlsCertificateKeyFile=ca": "holds a certificate, but no private key",
        "tlsCertificateKeyFile=expired": "expired on",
        "tlsCAFile=ca&tlsCertificateKeyFile=good": None,
    }
    for written, text in cases.items():
        uri = "mongodb://h/?tls=true&" + written.replace("=", f"={tmp_path}/")
        assert run(app, ["uri", "check", uri]).exit_code == 0
        result = run(app, ["uri", "check", uri, "--files"])
        assert result.exit_code == (0 if text is None else 1), result.output
        assert (text or "good: ") in result.output
        assert "PRIVATE" not in result.output
