"""The runtime of all services, seen from outside: a tiny service as a process of its own."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import accounts
from support.mongod import Mongod, ReplicaSet
from support.processes import Process, free_port, wait_until
from support.services import Manifest, ServiceProcess

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).with_name("ticking_service.py")
POLICY = {"namespace": "shop.orders", "ageField": "createdAt", "maxAge": "30d"}


class Ticking(ServiceProcess):
    """The ticking service; everything else as for the real ones."""

    def __init__(
        self, manifest: Path, directory: Path, credentials: Path | None, arguments: list[str]
    ) -> None:
        super().__init__("ticking", manifest, directory, credentials=credentials)
        command = [sys.executable, str(PROGRAM), *self.process.command[3:], *arguments]
        self.process = Process(command, directory / "ticking.log")

    def lines(self) -> list[dict[str, Any]]:
        """The log's JSON lines."""
        text = self.process.log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


Start = Callable[..., Ticking]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Ticking] = []

    def begin(
        manifest: Path, *arguments: str, credentials: Path | None = None, wait: bool = True
    ) -> Ticking:
        service = Ticking(manifest, tmp_path, credentials, list(arguments))
        running.append(service)
        service.start()
        if wait:
            service.wait_ready()
        return service

    yield begin
    for service in running:
        service.kill()


def spec(fast: str, archive: str, **more: Any) -> dict[str, Any]:
    return {
        "archive": {"uri": archive},
        "fastTier": {"uri": fast},
        "collections": [POLICY],
        **more,
    }


def dead_uri(name: str) -> str:
    return f"mongodb://127.0.0.1:{free_port()}/?replicaSet={name}"


def own(service: Ticking) -> dict[str, Any]:
    return dict(service.status().get("ticking", {}))


def test_serves_health_status_and_metrics(
    fast: ReplicaSet, archive: ReplicaSet, tmp_path: Path, start: Start
) -> None:
    with archive.client() as client:
        client["shop"]["orders"].insert_many([{} for _ in range(3)])
    manifest = Manifest(tmp_path / "manifest.yaml", spec(fast.uri, archive.uri))
    service = start(manifest.path)
    wait_until("tiers seen", lambda: len(service.status()["tiers"]) == 2, 20, 0.1)
    wait_until("documents counted", lambda: own(service)["documents"] == 3, 20, 0.1)
    status = service.status()
    assert service.get("/healthz")[0] == 200
    assert (status["service"], status["name"], status["namespace"]) == ("ticking", "shop", "tests")
    assert status["appliedGeneration"] == 1
    assert status["problems"] == {}
    assert status["tiers"]["archive"] == {
        "reachable": True,
        "primary": archive.members[0].address,
        "setName": "archive",
        "version": "6.0.5",
    }
    metrics = service.metrics()
    assert 'thermocline_tier_reachable{tier="fast"} 1.0' in metrics
    assert "ticking_turns_total" in metrics
    assert "thermocline_heartbeat_age_seconds" in metrics


def test_sigterm_finishes_work_in_hand(
    fast: ReplicaSet, archive: ReplicaSet, tmp_path: Path, start: Start
) -> None:
    manifest = Manifest(tmp_path / "manifest.yaml", spec(fast.uri, archive.uri))
    service = start(manifest.path, "--linger", "1", "--exit-code", "3")
    service.process.signal(signal.SIGTERM)
    wait_until("not ready", lambda: service.get("/readyz")[0] == 503, 5, 0.02)
    assert service.status()["stopping"] is True
    assert service.terminate(10) == 3
    assert "finished work in hand" in service.process.log.read_text()


def test_second_interrupt_gives_up(
    fast: ReplicaSet, archive: ReplicaSet, tmp_path: Path, start: Start
) -> None:
    manifest = Manifest(tmp_path / "manifest.yaml", spec(fast.uri, archive.uri))
    service = start(manifest.path, "--linger", "60")
    service.process.signal(signal.SIGINT)
    wait_until("not ready", lambda: service.get("/readyz")[0] == 503, 5, 0.02)
    service.process.signal(signal.SIGINT)
    wait_until("end", lambda: not service.process.running, 10, 0.02)
    assert service.process.returncode == 130
    assert "finished work in hand" not in service.process.log.read_text()


def test_follows_the_manifest_and_keeps_the_old_one_over_a_bad_one(
    fast: ReplicaSet, archive: ReplicaSet, tmp_path: Path, start: Start
) -> None:
    manifest = Manifest(tmp_path / "manifest.yaml", spec(fast.uri, archive.uri))
    service = start(manifest.path)
    manifest.change(collections=[POLICY, {"namespace": "shop.products", "keep": "All"}])
    wait_until("new manifest", lambda: own(service)["collections"] == 2, 10, 0.05)
    assert service.status()["appliedGeneration"] == 2
    manifest.change(collections=[{**POLICY, "maxAge": "1mo"}])
    wait_until("problem", lambda: "manifest" in service.status()["problems"], 10, 0.05)
    assert "spec.collections[0].maxAge ('1mo')" in service.status()["problems"]["manifest"]
    assert service.status()["appliedGeneration"] == 2
    assert own(service)["collections"] == 2
    manifest.path.unlink()
    wait_until(
        "gone", lambda: "can't be read" in service.status()["problems"]["manifest"], 10, 0.05
    )
    manifest.change(collections=[])
    wait_until("good again", lambda: own(service)["collections"] == 0, 10, 0.05)
    assert "manifest" not in service.status()["problems"]
    manifest.name = "other"
    manifest.change(collections=[POLICY])
    wait_until("another resource", lambda: "manifest" in service.status()["problems"], 10, 0.05)
    assert own(service)["collections"] == 0
    manifest.name = "shop"
    manifest.change(archive={"uri": archive.uri + "&tls=false"})
    wait_until("restart needed", lambda: "restart" in service.status()["problems"], 10, 0.05)


def test_a_tier_that_is_down_at_the_start_and_later(
    fast: ReplicaSet, make_replica_set: Callable[..., ReplicaSet], tmp_path: Path, start: Start
) -> None:
    archive = make_replica_set("late")
    archive.members[0].stop()
    manifest = Manifest(tmp_path / "manifest.yaml", spec(fast.uri, archive.uri))
    service = start(manifest.path, wait=False)

    def problem() -> str:
        return str(service.status().get("problems", {}).get("archive", ""))

    for _ in range(2):
        wait_until("archive missed", lambda: "the archive can't be used" in problem(), 30, 0.1)
        assert service.get("/healthz")[0] == 200
        assert archive.members[0].address in problem()
        assert service.status()["tiers"]["fast"]["reachable"] is True
        archive.members[0].start()
        wait_until("recovered", lambda: own(service)["documents"] == 0 and not problem(), 40, 0.1)
        archive.members[0].kill()
    assert service.process.running
    # One line for each change, not one for each attempt.
    said = [line for line in service.lines() if line.get("problem") == "archive"]
    assert len(said) <= 8


def test_tells_a_standalone_server_and_another_set_from_silence(
    archive: ReplicaSet, tmp_path: Path, start: Start
) -> None:
    alone = Mongod(tmp_path / "alone", None)
    alone.start()
    try:
        manifest = Manifest(
            tmp_path / "manifest.yaml",
            spec(
                f"mongodb://{alone.address}/?replicaSet=fast",
                archive.uri.replace("replicaSet=archive", "replicaSet=archve"),
            ),
        )
        service = start(manifest.path)

        def problem(key: str) -> str:
            return str(service.status().get("problems", {}).get(key, ""))

        wait_until("told", lambda: problem("fast") and problem("archive"), 30, 0.1)
        assert f"spec.fastTier.uri: {alone.address} is a standalone server" in problem("fast")
        assert "is a member of replica set archive, not of archve" in problem("archive")
        assert "write replicaSet=archive" in problem("archive")
    finally:
        alone.kill()


def test_logs_in_with_credentials_that_come_late_and_tells_wrong_ones(
    secure_fast: ReplicaSet, secure_archive: ReplicaSet, tmp_path: Path, start: Start
) -> None:
    accounts.create_service_users(secure_fast, secure_archive, ["shop"])
    manifest = Manifest(
        tmp_path / "manifest.yaml",
        {
            "archive": {"uri": secure_archive.uri, "credentialsSecretRef": {"name": "a"}},
            "fastTier": {"uri": secure_fast.uri, "credentialsSecretRef": {"name": "f"}},
        },
    )
    directory = tmp_path / "credentials"
    service = start(manifest.path, credentials=directory, wait=False)

    def problem(key: str) -> str:
        return str(service.status().get("problems", {}).get(key, ""))

    wait_until("missing", lambda: "(key username of Secret" in problem("credentials"), 15, 0.1)
    assert "credentialsSecretRef" in problem("credentials")
    assert service.get("/healthz")[0] == 200
    assert service.get("/readyz")[0] == 503
    accounts.write_credentials(directory)
    service.wait_ready(20)
    wait_until("documents counted", lambda: own(service)["documents"] == 0, 20, 0.1)
    assert not service.status()["problems"]
    service.terminate()
    (directory / "archive" / "password").write_text("not-the-password\n")
    service = start(manifest.path, credentials=directory)
    wait_until("refused", lambda: "log-in was refused" in problem("archive"), 20, 0.1)
    assert "not-the-password" not in service.process.log.read_text()
    assert "not-the-password" not in json.dumps(service.status())


def test_a_failing_service_is_run_again_without_showing_secrets(
    fast: ReplicaSet, archive: ReplicaSet, tmp_path: Path, start: Start
) -> None:
    manifest = Manifest(tmp_path / "manifest.yaml", spec(fast.uri, archive.uri), "fail-once")
    service = start(manifest.path, wait=False)
    wait_until("problem", lambda: "as asked" in str(service.status().get("problems")), 15, 0.02)
    service.wait_ready(10)
    service.terminate()
    text = service.process.log.read_text()
    assert "finished work in hand after 2 runs" in text
    assert "Traceback" in text
    assert "user:secret" not in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"collections": [{**POLICY, "maxAge": "0d"}, POLICY]},
            ["is zero", "has a policy already"],
        ),
        ({"archive": {}}, ["spec.archive.uri: is missing"]),
    ],
)
def test_refuses_to_start_with_a_bad_manifest(
    tmp_path: Path, start: Start, change: dict[str, Any], expected: list[str]
) -> None:
    good = spec(dead_uri("fast"), dead_uri("archive"))
    manifest = Manifest(tmp_path / "manifest.yaml", {**good, **change})
    service = start(manifest.path, wait=False)
    wait_until("end", lambda: not service.process.running, 20, 0.05)
    assert service.process.returncode == 2
    text = service.process.log.read_text()
    assert all(part in text for part in expected)


def test_refuses_an_admin_port_that_is_taken(tmp_path: Path, start: Start) -> None:
    manifest = Manifest(tmp_path / "m.yaml", spec(dead_uri("fast"), dead_uri("archive")))
    first = start(manifest.path)
    second = Process(first.process.command, tmp_path / "second.log")
    second.start()
    wait_until("end", lambda: not second.running, 20, 0.05)
    assert second.returncode == 2
    assert "can't listen on" in second.log.read_text()
