"""The admin application, without a server; and addresses."""

import socket
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from thermocline_common.admin import Address, application, bind
from thermocline_common.coverage import Tier
from thermocline_common.errors import ConfigError
from thermocline_common.health import Heartbeat
from thermocline_common.metrics import CommonMetrics
from thermocline_common.spec.status import ServiceStatus, TierStatus


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        ("localhost:0", Address("localhost", 0)),
        (":9090", Address("0.0.0.0", 9090)),
        ("[::1]:1", Address("::1", 1)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address


@pytest.mark.parametrize("text", ["", "8080", "h:", "h:x", "h:65536", "::1:80", "h:-1", "h:٣"])
def test_texts_that_are_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|IPv6"):
        Address.parse(text)


def test_an_address_in_use_is_told() -> None:
    with bind(Address("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"can't listen on 127.0.0.1:{port}: Address"):
            bind(Address("127.0.0.1", port))
    with pytest.raises(ConfigError, match=r"can't listen on no\.such\.host\.invalid"):
        bind(Address("no.such.host.invalid", 1))
    assert isinstance(listener, socket.socket)


class World:
    """What the application shows."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_ready = False
        self.heart = Heartbeat(lambda: self.now, limit=10)
        self.registry = CollectorRegistry()
        self.metrics = CommonMetrics(self.registry, "feeder", lambda: self.heart.age)

    def status(self) -> Mapping[str, Any]:
        return ServiceStatus(
            service="feeder",
            version="1",
            namespace="n",
            name="shop",
            uid="",
            applied_generation=3,
            ready=self.is_ready,
            stopping=False,
            uptime_seconds=1,
            heartbeat_age_seconds=self.heart.age,
            problems={"archive": "down"},
            tiers={"archive": TierStatus(reachable=False, error="down")},
        ).document({"lag": 5})


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> httpx.AsyncClient:
    app = application(world.heart, lambda: world.is_ready, world.status, lambda: world.registry)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin")


async def test_liveness_is_the_age_of_the_heartbeat(
    world: World, client: httpx.AsyncClient
) -> None:
    assert (await client.get("/healthz")).status_code == 200
    world.now = 11
    answer = await client.get("/healthz")
    assert (answer.status_code, answer.json()["heartbeatAgeSeconds"]) == (503, 11)
    world.heart.beat()
    assert (await client.get("/healthz")).status_code == 200


async def test_readiness_is_the_services_own(world: World, client: httpx.AsyncClient) -> None:
    assert (await client.get("/readyz")).status_code == 503
    world.is_ready = True
    assert (await client.get("/readyz")).status_code == 200


async def test_status_has_one_shape_and_the_services_own_part(client: httpx.AsyncClient) -> None:
    found = (await client.get("/status")).json()
    assert found["feeder"] == {"lag": 5}
    assert found["appliedGeneration"] == 3
    assert found["problems"] == {"archive": "down"}
    assert found["tiers"] == {"archive": {"reachable": False, "error": "down"}}
    assert ServiceStatus.model_validate(found).applied_generation == 3


async def test_metrics(world: World, client: httpx.AsyncClient) -> None:
    world.metrics.reachable(Tier.FAST, yes=True)
    world.metrics.problems.set(2)
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'thermocline_tier_reachable{tier="fast"} 1.0' in answer.text
    assert "thermocline_problems 2.0" in answer.text
    assert 'thermocline_service_info{service="feeder"' in answer.text


async def test_nothing_else_is_served(client: httpx.AsyncClient) -> None:
    for path in ("/", "/docs", "/openapi.json"):
        assert (await client.get(path)).status_code == 404
