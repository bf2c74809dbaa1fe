"""The admin port: health, readiness, status and metrics over HTTP."""

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from thermocline_common.errors import ConfigError
from thermocline_common.health import Heartbeat

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: a host name or IP address, and a port (0: any free one)."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """``HOST:PORT``, ``[IPv6]:PORT``, or ``:PORT`` for every interface. Raises ``ValueError``."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{text!r}: write an IPv6 address in brackets")
        return cls(host or "0.0.0.0", int(port))  # noqa: S104 (what an empty host asks for)


def bind(address: Address) -> socket.socket:
    """A listening socket. Raises :class:`ConfigError` where the address can't be used."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, name = found[0]
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(name)
            listener.listen(128)
            listener.setblocking(False)
            undo.pop_all()
    except OSError as error:
        raise ConfigError(
            f"can't listen on {address.host}:{address.port}: {error.strerror or error}"
        ) from error
    return listener


def application(
    heartbeat: Heartbeat,
    ready: Callable[[], bool],
    status: Callable[[], Mapping[str, Any]],
    registry: Callable[[], CollectorRegistry],
) -> FastAPI:
    """The HTTP application of every service."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        body = {"heartbeatAgeSeconds": round(heartbeat.age, 3), "limitSeconds": heartbeat.limit}
        return JSONResponse(body, 200 if heartbeat.alive else 503)

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        yes = ready()
        return JSONResponse({"ready": yes}, 200 if yes else 503)

    @app.get("/status")
    async def get_status() -> JSONResponse:
        return JSONResponse(dict(status()))

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry()), media_type=CONTENT_TYPE_LATEST)

    return app


class _Server(uvicorn.Server):
    """Uvicorn inside a service, which handles signals itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until cancelled."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        ws="none",
    )
    server = _Server(config)
    host, port = listener.getsockname()[:2]
    log.info("admin port open", extra={"host": host, "port": port})
    await server.serve(sockets=[listener])
