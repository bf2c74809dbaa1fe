"""A relay between the operator and a real API server, which breaks what it is told to break."""

import asyncio
import base64
import contextlib
import json
import random
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web


@dataclass
class Faults:
    """What goes wrong now. ``share`` of the calls that aren't watches get ``status`` as an answer, or are
    ``slow`` by so many seconds; watches end after ``watch_seconds``, or ``silent`` ones carry nothing."""

    share: float = 0.0
    status: int = 500
    after: bool = False
    """The call is carried out first."""
    slow: float = 0.0
    watch_seconds: float | None = None
    silent: bool = False
    gone: bool = False
    """Watches begin with 410."""


@dataclass
class Relay:
    """``writes``: method and path of every call that wasn't a read, as the API server saw it."""

    kubeconfig: Path
    faults: Faults = field(default_factory=Faults)
    writes: list[str] = field(default_factory=list)
    port: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(7))
    _session: aiohttp.ClientSession | None = None
    _runner: web.AppRunner | None = None
    _server: str = ""

    async def start(self) -> None:
        """Listen on a free port of this machine."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = cluster["server"]
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=_context(cluster, user), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=10_000_000)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """End it, with every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def write_kubeconfig(self, path: Path) -> None:
        """For a client that goes through this relay."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "relay",
            "clusters": [{"name": "relay", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "relay", "user": {"token": "none"}}],
            "contexts": [{"name": "relay", "context": {"cluster": "relay", "user": "relay"}}],
        }
        path.write_text(yaml.safe_dump(config))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        watch = request.query.get("watch") == "true"
        unlucky = not watch and self._random.random() < self.faults.share
        if unlucky and self.faults.slow:
            await asyncio.sleep(self.faults.slow)
        if unlucky and not self.faults.slow and not self.faults.after:
            return _status(self.faults.status)
        if watch and self.faults.gone:
            return _status(410)
        body = await request.read()
        assert self._session is not None
        headers = {
            k: v
            for k, v in request.headers.items()
            if k.lower() not in ("host", "authorization", "connection", "transfer-encoding")
        }
        if request.method != "GET":
            self.writes.append(f"{request.method} {request.path}")
        async with self._session.request(
            request.method, self._server + request.path_qs, data=body or None, headers=headers
        ) as response:
            if unlucky and not self.faults.slow:
                await response.read()
                return _status(self.faults.status)
            answer = web.StreamResponse(status=response.status)
            for name in ("Content-Type", "Content-Encoding"):
                if name in response.headers:
                    answer.headers[name] = response.headers[name]
            try:
                await answer.prepare(request)
                async with asyncio.timeout(self.faults.watch_seconds if watch else None):
                    async for chunk in response.content.iter_any():
                        if not (watch and self.faults.silent):
                            await answer.write(chunk)
            except TimeoutError:
                pass
            except (ConnectionError, aiohttp.ClientError):
                return answer
            with contextlib.suppress(ConnectionError, aiohttp.ClientError):
                await answer.write_eof()
            return answer


def _status(status: int) -> web.Response:
    reason = {409: "Conflict", 410: "Expired", 422: "Invalid", 429: "TooManyRequests"}
    body: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "a fault of the test",
        "reason": reason.get(status, "InternalError"),
        "code": status,
    }
    headers = {"Retry-After": "1"} if status == 429 else {}
    return web.Response(
        status=status, text=json.dumps(body), content_type="application/json", headers=headers
    )


def _context(cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    def text(key: str, of: dict[str, Any]) -> bytes:
        if f"{key}-data" in of:
            return base64.b64decode(of[f"{key}-data"])
        return Path(of[key]).read_bytes()

    context = ssl.create_default_context(cadata=text("certificate-authority", cluster).decode())
    with tempfile.NamedTemporaryFile() as pem:
        pem.write(text("client-certificate", user) + b"\n" + text("client-key", user))
        pem.flush()
        context.load_cert_chain(pem.name)
    return context


Look = Callable[[], Awaitable[bool]]


async def until(what: str, look: Look, seconds: float) -> None:
    """Look until it is so."""
    end = asyncio.get_running_loop().time() + seconds
    while not await look():
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"{what}: not so after {seconds:.0f} s")
        await asyncio.sleep(0.3)
