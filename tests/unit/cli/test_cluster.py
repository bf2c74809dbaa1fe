"""Commands on a resource in a cluster, against a ``kubectl`` that is played."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from thermocline_cli import cluster, kubectl
from thermocline_cli.__main__ import app
from thermocline_cli.bundle import HIDDEN, cleaned, secret_names
from thermocline_cli.kubectl import KubectlError
from thermocline_cli.standing import progress_line

SHOP: dict[str, Any] = {
    "kind": "TieredReplicaSet",
    "metadata": {"name": "shop", "namespace": "shops", "generation": 4},
    "spec": {
        "archive": {"credentialsSecretRef": {"name": "archive-user"}},
        "fastTier": {"tls": {"caSecretRef": {"name": "ca"}}},
        "proxy": {"tls": {"clientCASecretRef": {"name": "ca"}}},
    },
    "status": {
        "observedGeneration": 4,
        "phase": "Warming",
        "proxy": {"replicas": 2, "readyReplicas": 2},
        "warm": "40%",
        "lag": "<1s",
        "coverage": "0/1",
        "blockedOn": [{"kind": "Secret", "name": "archive-user", "reason": "it isn't there"}],
        "collections": [
            {"namespace": "shop.orders", "state": "Active", "warmPercent": 40, "timeLeft": "2m",
             "fastReadPercent": 71, "archiveReason": "no-bound"}
        ],
        "components": [{"name": "proxy", "version": "1.0", "appliedGeneration": 4}],
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Serving", "message": "2 ready proxies"},
            {"type": "Degraded", "status": "False", "reason": "NothingWrong", "message": "fine"},
        ],
    },
}  # fmt: skip

Play = Callable[..., list[tuple[str, ...]]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Let ``kubectl`` answer by the first words that fit; the calls that were made."""

    def begin(**answers: Any) -> list[tuple[str, ...]]:
        calls: list[tuple[str, ...]] = []

        def run(self: kubectl.Kubectl, *words: str) -> str:
            calls.append((*words, *self.words))
            text = " ".join(words)
            for start, answer in answers.items():
                if text.startswith(start.replace("_", " ")):
                    return answer if isinstance(answer, str) else json.dumps(answer)
            raise KubectlError(f"no answer for {text}")

        monkeypatch.setattr(kubectl.Kubectl, "run", run)
        return calls

    return begin


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def with_status(**change: Any) -> dict[str, Any]:
    return {**SHOP, "status": {**SHOP["status"], **change}}


def test_status_says_what_people_look_for(play: Play) -> None:
    calls = play(get_tiered=SHOP)
    done = call("status", "shop", "-n", "shops", "--context=there")
    assert done.exit_code == 0
    for text in (
        "shops/shop  Warming  Ready=True  proxies 2/2  warm 40%",
        "waits for Secret archive-user: it isn't there",
        "shop.orders",
        "no-bound",
        "NothingWrong",
    ):
        assert text in done.output
    assert "the operator has seen" not in done.output
    assert calls == [
        ("get", kubectl.KIND, "shop", "--output=json", "--namespace=shops", "--context=there")
    ]


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_status_for_programs(play: Play, form: str, read: Callable[[str], Any]) -> None:
    play(get_tiered=SHOP)
    assert read(call("status", "shop", "-o", form).output) == SHOP["status"]


def test_a_status_that_the_operator_never_wrote(play: Play) -> None:
    play(get_tiered={**SHOP, "status": None})
    assert "the operator has seen generation none of 4" in call("status", "shop").output


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([], "there is no TieredReplicaSet"),
        ([SHOP, {"metadata": {"name": "other"}}], "say which: shop, other"),
    ],
)
def test_without_a_name_there_must_be_one(play: Play, found: list[Any], text: str) -> None:
    play(get_tiered={"items": found})
    done = call("status")
    assert done.exit_code == 1
    assert text in done.output


def test_the_only_one_needs_no_name(play: Play) -> None:
    play(get_tiered={"items": [SHOP]})
    assert "shops/shop" in call("status").output


def test_what_kubectl_says_is_passed_on_without_passwords(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho 'error: mongodb://me:geheim@h/ is forbidden' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = call("status", "shop")
    assert done.exit_code == 1
    assert "is forbidden" in done.output
    assert "geheim" not in done.output


def test_without_kubectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = call("status")
    assert done.exit_code == 1
    assert "kubectl isn't on the PATH" in done.output


def test_approves_what_waits(play: Play) -> None:
    calls = play(
        get_tiered=with_status(pendingRollout="0123abcd: a:1 -> a:2 (proxy)"), patch="patched"
    )
    done = call("approve", "shop")
    assert (done.exit_code, done.output) == (0, "approved 0123abcd: a:1 -> a:2 (proxy)\n")
    patch = json.loads(calls[-1][-1].partition("=")[2])
    assert patch == {"metadata": {"annotations": {"thermocline.io/approved-rollout": "0123abcd"}}}


def test_approves_nothing_where_nothing_waits(play: Play) -> None:
    calls = play(get_tiered=SHOP)
    assert call("approve", "shop").exit_code == 1
    assert [words[0] for words in calls] == ["get"]


@pytest.mark.parametrize(
    ("command", "paused", "patch"),
    [
        ("pause", None, {"spec": {"paused": True}}),
        ("pause", True, None),
        ("resume", True, {"spec": {"paused": False}}),
        ("resume", False, None),
    ],
)
def test_pauses_and_resumes(play: Play, command: str, paused: bool | None, patch: Any) -> None:
    spec = {**SHOP["spec"], **({} if paused is None else {"paused": paused})}
    calls = play(get_tiered={**SHOP, "spec": spec}, patch="patched")
    assert call(command, "shop").exit_code == 0
    found = [json.loads(c[-1].partition("=")[2]) for c in calls if c[0] == "patch"]
    assert found == ([] if patch is None else [patch])


def test_a_report_has_what_helps_and_no_secret(play: Play, tmp_path: Path) -> None:
    pods = {
        "items": [
            {
                "kind": "Pod",
                "metadata": {"name": "shop-proxy-1", "managedFields": [1]},
                "spec": {"containers": [{"env": [{"name": "TOKEN", "value": "geheim"}]}]},
                "status": {"containerStatuses": [{"restartCount": 1}]},
            }
        ]
    }
    calls = play(
        get_tiered=SHOP,
        get_pods=pods,
        get_secret="password\nusername\n",
        logs="mongodb://me:geheim@h/ was refused",
        get_events={"items": []},
        **{"get_--raw": "{}"},
    )
    file = tmp_path / "report.tar.gz"
    done = call("report", "shop", "-f", str(file))
    assert done.exit_code == 0, done.output
    found: dict[str, str] = {}
    with tarfile.open(file) as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            assert content is not None
            found[entry.name.partition("/")[2]] = content.read().decode()
    assert not [name for name, text in found.items() if "geheim" in text]
    assert HIDDEN in found["pods.yaml"]
    assert "managedFields" not in found["pods.yaml"]
    assert found["secrets/archive-user.txt"] == "password\nusername\n"
    assert "was refused" in found["pods/shop-proxy-1/log-before.txt"]
    assert "pods/shop-proxy-1/status.json" in found
    assert "crd.yaml" in found["errors.txt"]
    assert not [c for c in calls if c[:2] == ("get", "secret") and "--output=json" in c]


def test_nothing_that_may_be_secret_is_kept() -> None:
    secret = {"kind": "Secret", "data": {"password": "Z2VoZWlt"}, "stringData": {"a": "geheim"}}
    applied = {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "geheim"}}
    found = cleaned({"items": [{**secret, "metadata": applied}]})
    assert found["items"] == [
        {
            "kind": "Secret",
            "metadata": {"annotations": {}},
            "data": {"password": HIDDEN},
            "stringData": {"a": HIDDEN},
        }
    ]
    assert secret["data"] == {"password": "Z2VoZWlt"}, "the original stays"


def test_every_secret_that_a_spec_names() -> None:
    assert secret_names(SHOP["spec"]) == ["archive-user", "ca"]


def test_progress_is_one_line() -> None:
    assert progress_line(SHOP) == (
        "phase Warming, ready True, warm 40%, lag <1s, coverage 0/1, shop.orders 40%, 2m left, "
        "waits for Secret archive-user: it isn't there"
    )


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("text", ["phase Warming", "waits for Secret", "phase Active"]),
        ("json", ['"phase": "Warming"', '"phase": "Warming"', '"phase": "Active"']),
        ("yaml", ["phase: Warming", "phase: Warming", "phase: Active"]),
    ],
)
def test_watching_shows_each_change_once(
    monkeypatch: pytest.MonkeyPatch, form: str, expected: list[str]
) -> None:
    answers = [
        with_status(blockedOn=[]),
        with_status(blockedOn=[]),
        SHOP,
        SHOP,
        with_status(phase="Active"),
    ]
    left = iter(answers)
    waited: list[float] = []

    def run(self: kubectl.Kubectl, *words: str) -> str:
        found = next(left, None)
        if found is None:
            raise KubectlError("the server is away")
        return json.dumps(found)

    monkeypatch.setattr(kubectl.Kubectl, "run", run)
    monkeypatch.setattr("thermocline_cli.cluster.time.sleep", waited.append)
    done = call("status", "shop", "--watch", "-o", form)
    parts = {
        "text": done.stdout.splitlines(),
        "json": done.stdout.splitlines(),
        "yaml": done.stdout.split("---\n")[1:],
    }[form]
    assert len(parts) == len(expected)
    for part, text in zip(parts, expected, strict=True):
        assert text in part
    assert waited == [cluster.WATCH_SECONDS] * len(answers)
    assert done.exit_code == 1
    assert "the server is away" in done.output


def test_watching_ends_with_the_keyboard(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    play(get_tiered=SHOP)
    monkeypatch.setattr("thermocline_cli.cluster.time.sleep", interrupted)
    done = call("status", "shop", "--watch")
    assert done.exit_code == 0
    assert "phase Warming" in done.stdout
