"""No secret that the operator reads leaves it: by objects, status, events, logs."""

import base64
import json
import logging
from typing import Any

import pytest

from support.operator_world import NAMESPACE, SPEC, World, without_servers
from support.pki import Authority
from thermocline_common.logs import JsonFormatter

PASSWORD = "a-planted-password"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    without_servers(monkeypatch)
    return World()


def put(world: World, name: str, data: dict[str, bytes]) -> None:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    world.server.put(
        "secrets", {"metadata": {"name": name, "namespace": NAMESPACE}, "data": encoded}
    )


def told(world: World, logged: list[logging.LogRecord]) -> dict[str, str]:
    """Everything that others can read."""
    found = {
        "/".join(key): json.dumps(body)
        for key, body in world.server.objects.items()
        if key[0] != "secrets"
    }
    formatter = JsonFormatter()
    return {**found, "log": "\n".join(map(formatter.format, logged))}


def needles(*secrets: bytes) -> set[str]:
    """As they are, of keys each line, and as Secrets hold them."""
    lines = {line for each in secrets for line in each.decode().splitlines() if "--" not in line}
    encoded = [base64.b64encode(each).decode() for each in secrets]
    return lines | {
        text[start : start + 24] for text in encoded for start in (0, 60) if text[start:]
    }


@pytest.mark.parametrize("wrong", ["nothing", "swapped", "cut", "another key", "encoded twice"])
async def test_planted_secrets(world: World, caplog: pytest.LogCaptureFixture, wrong: str) -> None:
    caplog.set_level(logging.DEBUG)
    authority = Authority("planted")
    pair, other = authority.issue("proxy"), authority.issue("other")
    certificate, key = pair.certificate, pair.key
    password = PASSWORD.encode()
    if wrong == "swapped":
        certificate, key = key, certificate
    elif wrong == "cut":
        key = key[:80]
    elif wrong == "another key":
        key = other.key
    elif wrong == "encoded twice":
        password = base64.b64encode(password)
    put(world, "user", {"username": b"thermocline", "password": password})
    put(world, "pair", {"tls.crt": certificate, "tls.key": key})
    spec: dict[str, Any] = {
        "archive": {**SPEC["archive"], "credentialsSecretRef": {"name": "user"}},
        "proxy": {"tls": {"certificateSecretRef": {"name": "pair"}}},
    }
    await world.bring_up(**spec)
    put(world, "user", {"username": b"thermocline", "password": password + b"-2"})
    await world.turns(5)
    world.server.delete("secrets", NAMESPACE, "user")
    await world.turns(5)
    found = told(world, caplog.records)
    assert any(place.startswith("events/") for place in found)
    assert "conditions" in found[f"tieredreplicasets/{NAMESPACE}/shop"]
    secrets = needles(password, pair.key, other.key)
    mine = json.dumps(world.server.objects["secrets", NAMESPACE, "pair"])
    assert any(secret in mine for secret in secrets)  # what is looked for would be found
    leaks = {(p, secret) for p, text in found.items() for secret in secrets if secret in text}
    assert not leaks
