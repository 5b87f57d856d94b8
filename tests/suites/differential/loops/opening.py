"""
C{loop.create_connection}.
"""

from __future__ import annotations

import asyncio
import socket
from contextvars import ContextVar
from typing import Any

from tests.suites.differential.loops.ends import HOST, Ends, scenarios
from tests.suites.differential.sockets.tls import contexts

_variable: ContextVar[int] = ContextVar("variable", default=0)


def _nobody() -> int:
    with socket.socket() as skt:
        skt.bind((HOST, 0))
        return int(skt.getsockname()[1])


@scenarios
async def refused(ends: Ends) -> None:
    """
    Nobody listens.
    """
    port = _nobody()
    await ends.wait("connect", ends.loop.create_connection(asyncio.Protocol, HOST, port))
    await ends.wait("streams", asyncio.open_connection(HOST, port))
    await ends.wait("wrong", ends.loop.create_connection(asyncio.Protocol, HOST, 70000))
    await ends.wait("zero", ends.loop.create_connection(asyncio.Protocol, HOST, 0))
    await ends.wait("text", ends.loop.create_connection(asyncio.Protocol, HOST, "no such service"))
    await ends.wait("name", ends.loop.create_connection(asyncio.Protocol, "", port))


@scenarios
async def arguments(ends: Ends) -> None:
    """
    Arguments that do not fit.
    """
    connect, port = ends.loop.create_connection, _nobody()
    with socket.socket() as skt:
        await ends.wait("none", connect(asyncio.Protocol))
        await ends.wait("both", connect(asyncio.Protocol, HOST, port, sock=skt))
        await ends.wait("not connected", connect(asyncio.Protocol, sock=skt))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as skt:
        await ends.wait("datagrams", connect(asyncio.Protocol, sock=skt))
    await ends.wait("name without TLS", connect(asyncio.Protocol, HOST, port, server_hostname="x"))
    await ends.wait("timeout without TLS", connect(asyncio.Protocol, HOST, port, ssl_handshake_timeout=1))
    await ends.wait("family", connect(asyncio.Protocol, HOST, port, family=socket.AF_INET6))
    await ends.wait("local", connect(asyncio.Protocol, HOST, port, local_addr=("192.0.2.1", 0)))


@scenarios
async def bound(ends: Ends) -> None:
    """
    A client with a port of its own.
    """
    server = ends.recorder("server")
    _, port = await ends.server(lambda: server)
    own = _nobody()
    client = ends.recorder("client")
    await ends.loop.create_connection(lambda: client, HOST, port, local_addr=(HOST, own))
    ends.check(client.transport)
    await ends.have("made", server)
    ends.say("own", client.transport.get_extra_info("sockname")[1] == own)
    ends.say("seen", server.transport.get_extra_info("peername")[1] == own)
    client.transport.write(b"x")
    await ends.until(lambda: server.data)


@scenarios.each(0.0, 0.25)
async def eyeballs(ends: Ends, delay: float) -> None:
    """
    Several addresses (RFC 8305).
    """
    server = ends.recorder("server")
    _, port = await ends.server(lambda: server)
    client = ends.recorder("client")
    await ends.loop.create_connection(
        lambda: client, "localhost", port, happy_eyeballs_delay=delay, interleave=1
    )
    ends.check(client.transport)
    client.transport.close()
    await ends.have("lost", client, server)


@scenarios.each("client", "server")
async def factoryRaises(ends: Ends, side: str) -> None:
    """
    The factory raises.
    """

    def factory() -> Any:
        raise ZeroDivisionError

    other = ends.recorder("other")
    _, port = await ends.server(factory if side == "server" else lambda: other)
    made = factory if side == "client" else lambda: other
    await ends.wait("connect", ends.loop.create_connection(made, HOST, port))
    await ends.have("lost", other)


@scenarios
async def cancelled(ends: Ends) -> None:
    """
    A connect that is cancelled before it begins; the next one works.
    """
    server = ends.recorder("server")
    _, port = await ends.server(lambda: server)
    task = ends.loop.create_task(ends.loop.create_connection(asyncio.Protocol, HOST, port))
    task.cancel()
    await ends.wait("cancelled", task)
    client = ends.recorder("client")
    await ends.loop.create_connection(lambda: client, HOST, port)
    client.transport.close()
    await ends.have("lost", client, server)


@scenarios
async def context(ends: Ends) -> None:
    """
    The context in which protocols are called.
    """
    _variable.set(1)

    def see(it: Any, *_: Any) -> None:
        it.log.append(["context", _variable.get()])

    does = {"made": see, "data": see, "eof": see, "lost": see}
    server = ends.recorder("server", does)
    client = ends.recorder("client", does)
    _, port = await ends.server(lambda: server)
    _variable.set(2)
    await ends.loop.create_connection(lambda: client, HOST, port)
    await ends.have("made", server)
    _variable.set(3)
    server.transport.write(b"x")
    client.transport.write(b"x")
    await ends.until(lambda: client.data and server.data)
    client.transport.close()
    await ends.have("lost", client, server)


@scenarios.each("connect", "start_tls")
async def secured(ends: Ends, how: str) -> None:
    """
    TLS from the start, and from later on.
    """
    theirs, ours = contexts()
    server, client = ends.recorder("server"), ends.recorder("client")
    if how == "connect":
        _, port = await ends.server(lambda: server, ssl=theirs)
        await ends.loop.create_connection(lambda: client, HOST, port, ssl=ours, server_hostname="localhost")
        await ends.have("made", server)
        transport = client.transport
    else:
        client, server = await ends.pair()
        client.transport.write(b"plain")
        await ends.until(lambda: server.data)
        upgrade = ends.loop.start_tls
        both = asyncio.gather(
            upgrade(client.transport, client, ours, server_hostname="localhost"),
            upgrade(server.transport, server, theirs, server_side=True),
        )
        transport, server.transport = await both
        client.transport = transport
    for name in ("cipher", "compression"):
        ends.say(name, transport.get_extra_info(name))
    ends.say("certificate", bool(transport.get_extra_info("peercert")), transport.can_write_eof())
    ends.call("eof", transport.write_eof)
    ends.say("states", transport.is_reading(), transport.is_closing(), transport.get_write_buffer_limits())
    transport.write(b"secret" * 50_000)
    await ends.until(lambda: len(server.data) >= 300_000)
    await ends.wait("file", ends.loop.sendfile(transport, ends.file(b"file")))
    await ends.wait("no fallback", ends.loop.sendfile(transport, ends.file(b"file"), fallback=False))
    server.transport.pause_reading()
    server.transport.resume_reading()
    transport.close()
    await ends.have("lost", client, server)


@scenarios.each("stranger", "garbage", "abort", "plain", "late")
async def handshakes(ends: Ends, how: str) -> None:
    """
    Handshakes that fail.
    """
    theirs, ours = contexts()
    client = ends.recorder("client")

    def hello(it: Any, _: bytes) -> None:
        # Each ClientHello is another.
        it.log[-1] = ["hello"]
        if how == "plain":
            it.transport.write(b"this is no TLS, and never was")

    server = ends.recorder("server", {"data": hello} if how in ("plain", "late") else None)
    if how == "late":
        _, port = await ends.server(lambda: server)
        connect = ends.loop.create_connection(
            lambda: client, HOST, port, ssl=ours, server_hostname="localhost", ssl_handshake_timeout=0.05
        )
        await ends.wait("connect", connect)
    elif how == "stranger":
        _, port = await ends.server(lambda: server, ssl=theirs)
        connect = ends.loop.create_connection(lambda: client, HOST, port, ssl=ours, server_hostname="other")
        await ends.wait("connect", connect)
    elif how == "plain":
        _, port = await ends.server(lambda: server)
        connect = ends.loop.create_connection(lambda: client, HOST, port, ssl=ours, server_hostname="other")
        await ends.wait("connect", connect)
        await ends.have("lost", server)
    else:
        _, port = await ends.server(lambda: server, ssl=theirs)
        await ends.loop.create_connection(lambda: client, HOST, port)
        if how == "abort":
            client.transport.abort()
        else:
            client.transport.write(b"this is no TLS, and never was")
        await ends.have("lost", client)


@scenarios
async def upgradeArguments(ends: Ends) -> None:
    """
    What C{start_tls} refuses.
    """
    _, ours = contexts()
    client, _ = await ends.pair()
    await ends.wait("no context", ends.loop.start_tls(client.transport, client, None))
    await ends.wait("no transport", ends.loop.start_tls(None, client, ours))
    await ends.wait("text", ends.loop.start_tls(client.transport, client, "ssl"))
    wrong = ends.loop.start_tls(client.transport, client, ours, ssl_handshake_timeout=-1)
    await ends.wait("negative", wrong)
