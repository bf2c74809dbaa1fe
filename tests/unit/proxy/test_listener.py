"""The proxy's port with TLS: who is let in, who is turned away, and what is logged of it."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson
import pytest
import uvloop

from support.pki import Authority, put
from thermocline_common.admin import Address
from thermocline_common.credentials import read_listener
from thermocline_common.errors import ConfigError
from thermocline_common.spec.models import ProxySpec
from thermocline_common.tls import RenewableContext, server_context
from thermocline_proxy import listener as listeners
from thermocline_proxy.listener import Complaints, Listener, explain
from thermocline_proxy.wire.opmsg import encode

CA = Authority("tests")
HELLO = encode(1, 0, bytes(bson.encode({"hello": 1, "$db": "admin"})))


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class World:
    """A port with TLS, and what it complained of."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 0.0
        self.complaints = Complaints(lambda: self.now)
        CA.issue("proxy").write(directory / "proxy")
        self.context = RenewableContext(self.server())
        self.listener = Listener(Address("127.0.0.1", 0), Echo, self.context, self.complaints)

    def server(self) -> ssl.SSLContext:
        return server_context(read_listener(ProxySpec(), self.directory))

    def trust_clients_of(self, authority: Authority) -> None:
        put(self.directory / "proxy" / "ca.crt", authority.certificate)
        self.context.renew(self.server())

    @property
    def port(self) -> int:
        return int(self.listener._sockets[0].getsockname()[1])

    async def connect(
        self, context: ssl.SSLContext | None, name: str = "localhost"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = None if context is None else name
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname=host
        )

    async def talk(
        self, context: ssl.SSLContext | None, data: bytes = b"x", name: str = "localhost"
    ) -> bytes:
        """What comes back until the port closes, or as much as was sent."""
        reader, writer = await self.connect(context, name)
        try:
            writer.write(data)
            async with asyncio.timeout(10):
                found = b""
                while len(found) < len(data) and (part := await reader.read(len(data))):
                    found += part
                return found
        finally:
            writer.transport.abort()

    async def complained(self, count: int) -> None:
        for _ in range(1_000):
            if self.complaints.count >= count:
                return
            await asyncio.sleep(0.01)
        raise TimeoutError


def trusting(pair: bytes | None = None, directory: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=CA.certificate.decode())
    if pair is not None and directory is not None:
        path = directory / "client.pem"
        path.write_bytes(pair)
        context.load_cert_chain(path)
    return context


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Callable[[World], Any]], None]:
    """Runs a test on both event loops: services use the second."""

    def runs(test: Callable[[World], Any]) -> None:
        async def main() -> None:
            world = World(tmp_path)
            await world.listener.open()
            try:
                await test(world)
            finally:
                world.listener.close()
                await asyncio.sleep(0)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return runs


Run = Callable[[Callable[[World], Any]], None]


def test_clients_with_tls_are_served_whatever_name_they_ask_for(run: Run) -> None:
    async def test(world: World) -> None:
        payload = bytes(range(256)) * 1_000
        assert await world.talk(trusting(), payload) == payload
        assert await world.talk(trusting(), name="127.0.0.1") == b"x"  # without SNI
        elsewhere = trusting()
        elsewhere.check_hostname = False
        assert await world.talk(elsewhere, name="proxy.example") == b"x"
        assert world.complaints.count == 0

    run(test)


def test_a_plain_client_is_closed_cleanly_and_named_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        with caplog.at_level(logging.WARNING):
            for count in range(3):
                answer = await world.talk(None, HELLO)
                assert not answer.startswith(HELLO[:4])
                await world.complained(count + 1)
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert [line.getMessage() for line in lines] == [
            "a client is turned away: it doesn't speak TLS, which this port wants: it needs tls=true"
        ]
        assert lines[0].client == "127.0.0.1"  # type: ignore[attr-defined]
        world.now += 60
        await world.talk(None, HELLO)
        await world.complained(4)
        assert len(caplog.records) == len(lines) + 1
        assert await world.talk(trusting()) == b"x"

    run(test)


def test_a_probe_that_only_connects_is_no_complaint(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        for _ in range(3):
            _, writer = await world.connect(None)
            writer.close()
            await writer.wait_closed()
        with socket.create_connection(("127.0.0.1", world.port)) as probe:
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
            )  # ends with RST
        assert await world.talk(trusting()) == b"x"
        assert world.complaints.count == 0
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

    run(test)


def test_a_silent_client_holds_up_nobody_and_is_closed(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        monkeypatch.setattr(listeners, "HANDSHAKE_SECONDS", 0.3)
        reader, writer = await world.connect(None)
        for _ in range(1_000):
            if world.listener._greeting:
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        monkeypatch.setattr(listeners, "HANDSHAKE_SECONDS", 30)
        assert await world.talk(trusting()) == b"x"
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()

    run(test)


def test_clients_have_to_show_a_certificate_where_an_authority_is_given(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        world.trust_clients_of(CA)
        assert await world.talk(trusting(CA.issue("app").both, world.directory)) == b"x"
        strangers = Authority("strangers").issue("app").both
        for context, count in ((trusting(), 1), (trusting(strangers, world.directory), 2)):
            with contextlib.suppress(
                OSError
            ):  # of TLS 1.3, a client may be told only when it reads
                assert await world.talk(context) == b""
            await world.complained(count)
        told = [record.getMessage() for record in caplog.records]
        assert any("it shows no certificate" in line for line in told)
        assert any("isn't signed by the client authority" in line for line in told)

    run(test)


def test_a_new_certificate_counts_for_new_connections_and_old_ones_stay(run: Run) -> None:
    async def test(world: World) -> None:
        reader, writer = await world.connect(trusting())
        before = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        CA.issue("proxy").write(world.directory / "proxy")
        world.context.renew(world.server())
        _, other = await world.connect(trusting())
        assert other.get_extra_info("ssl_object").getpeercert(binary_form=True) != before
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        for one in (writer, other):
            one.transport.abort()

    run(test)


async def test_an_address_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        for context in (None, RenewableContext(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))):
            with pytest.raises(ConfigError, match="can't be listened on"):
                await Listener(address, Echo, context, Complaints(lambda: 0.0)).open()


@pytest.mark.parametrize("tls", [False, True])
async def test_processes_that_share_a_port_each_get_connections(tls: bool) -> None:
    with socket.socket() as held:  # a free port that stays ours, and takes no connection
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", held.getsockname()[1])
        context = RenewableContext(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) if tls else None
        complaints = [Complaints(lambda: 0.0) for _ in range(2)]
        accepted = [0, 0]

        def count(number: int) -> Callable[[], asyncio.Protocol]:
            def factory() -> asyncio.Protocol:
                accepted[number] += 1
                return Echo()

            return factory

        both = [Listener(address, count(n), context, complaints[n], shared=True) for n in range(2)]
        for listener in both:
            await listener.open()
        try:
            for _ in range(500):
                _, writer = await asyncio.open_connection(address.host, address.port)
                writer.transport.abort()
                await asyncio.sleep(0)
                if all(accepted):
                    break
            else:
                pytest.fail(f"connections went to one alone: {accepted}")
        finally:
            for listener in both:
                listener.close()


def failed(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] something")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (failed("WRONG_VERSION_NUMBER"), "doesn't speak TLS"),
        (failed("HTTP_REQUEST"), "doesn't speak TLS"),
        (failed("UNSUPPORTED_PROTOCOL"), "older than 1.2"),
        (failed("TLSV1_ALERT_UNKNOWN_CA"), "doesn't trust"),
        (failed("SOMETHING_NEW"), "failed: SOMETHING_NEW"),
        (
            ConnectionAbortedError("SSL handshake is taking longer than 10 seconds"),
            "no TLS handshake within",
        ),
        (ssl.SSLEOFError(8, "EOF"), None),
        (ConnectionResetError(), None),
    ],
)
def test_handshakes_that_fail_are_explained(error: Exception, text: str | None) -> None:
    found = explain(error)
    assert (found is None) if text is None else (text in (found or ""))


def test_tls_on_a_port_without_it_is_named(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(lambda: 0.0)
    complaints.unreadable("10.0.0.1", b"\x16\x03\x01\x02\x00\x01")
    complaints.unreadable("10.0.0.1", b"GET / HTTP/1.1\r\n")
    assert complaints.count == 1
    assert "it speaks TLS, which this port doesn't have" in caplog.records[0].getMessage()
