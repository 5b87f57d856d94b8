"""
Servers of C{asyncio}.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from tests.suites.differential.loops.ends import HOST, Ends, scenarios


@scenarios
async def served(ends: Ends) -> None:
    """
    The states of a server.
    """
    server, port = await ends.server(lambda: ends.recorder("server"))
    ends.say("serves", server.is_serving(), server.get_loop() is ends.loop, len(server.sockets))
    ends.say("socket", server.sockets[0].getsockname(), server.sockets[0].family)
    await ends.wait("again", server.start_serving())
    ends.call("close", server.close)
    ends.say("closed", server.is_serving(), server.sockets)
    ends.call("close again", server.close)
    await ends.wait("start", server.start_serving())
    await ends.wait("forever", server.serve_forever())
    await ends.wait("wait", server.wait_closed())
    await ends.wait("connect", ends.loop.create_connection(asyncio.Protocol, HOST, port))


@scenarios
async def startsLater(ends: Ends) -> None:
    """
    C{start_serving=False}.
    """
    made = ends.recorder("server")
    server, port = await ends.server(lambda: made, start_serving=False)
    ends.say("serves", server.is_serving(), len(server.sockets))
    await ends.wait("early", ends.loop.create_connection(asyncio.Protocol, HOST, port))
    await ends.wait("start", server.start_serving())
    ends.say("serves", server.is_serving())
    client = ends.recorder("client")
    await ends.loop.create_connection(lambda: client, HOST, port)
    ends.check(client.transport)
    client.transport.close()
    await ends.have("lost", made, client)


@scenarios
async def forever(ends: Ends) -> None:
    """
    C{serve_forever}, which is cancelled.
    """
    server, port = await ends.server(lambda: ends.recorder("server"))
    task = ends.loop.create_task(server.serve_forever())
    await asyncio.sleep(0)
    await ends.wait("twice", server.serve_forever())
    task.cancel()
    await ends.wait("cancelled", task)
    ends.say("serves", server.is_serving(), server.sockets)
    await ends.wait("connect", ends.loop.create_connection(asyncio.Protocol, HOST, port))


@scenarios
async def withServer(ends: Ends) -> None:
    """
    C{async with}.
    """
    server, port = await ends.server(lambda: ends.recorder("server"))
    async with server as it:
        ends.say("is", it is server, server.is_serving())
    ends.say("serves", server.is_serving(), server.sockets)
    await ends.wait("connect", ends.loop.create_connection(asyncio.Protocol, HOST, port))


@scenarios
async def outlived(ends: Ends) -> None:
    """
    A connection outlives its server.
    """
    made, client = ends.recorder("server"), ends.recorder("client")
    server, port = await ends.server(lambda: made)
    await ends.loop.create_connection(lambda: client, HOST, port)
    await ends.have("made", made)
    server.close()
    client.transport.write(b"still")
    await ends.until(lambda: made.data == b"still")
    client.transport.close()
    await ends.have("lost", made, client)
    await ends.wait("closed", server.wait_closed())


@scenarios
async def taken(ends: Ends) -> None:
    """
    A port that is in use, and one that is free again.
    """
    server, port = await ends.server(lambda: ends.recorder("server"))
    create = ends.loop.create_server
    await ends.wait("taken", create(asyncio.Protocol, HOST, port))
    server.close()
    await server.wait_closed()
    again = await create(asyncio.Protocol, HOST, port)
    ends.say("again", again.is_serving())
    again.close()


@scenarios
async def serverArguments(ends: Ends) -> None:
    """
    Arguments that do not fit.
    """
    create = ends.loop.create_server
    with socket.socket() as skt:
        await ends.wait("none", create(asyncio.Protocol))
        await ends.wait("both", create(asyncio.Protocol, HOST, 0, sock=skt))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as skt:
        await ends.wait("datagrams", create(asyncio.Protocol, sock=skt))
    await ends.wait("TLS", create(asyncio.Protocol, HOST, 0, ssl=True))
    await ends.wait("timeout without TLS", create(asyncio.Protocol, HOST, 0, ssl_handshake_timeout=1))
    await ends.wait("not ours", create(asyncio.Protocol, "192.0.2.1", 0))
    await ends.wait("wrong", create(asyncio.Protocol, HOST, 70000))
    await ends.wait("name", create(asyncio.Protocol, "no-such-name.invalid", 0))


@scenarios.each("bound", "listens")
async def ofSocket(ends: Ends, state: str) -> None:
    """
    A server of a socket.
    """
    skt = socket.socket()
    skt.bind((HOST, 0))
    if state == "listens":
        skt.listen(5)
    made, client = ends.recorder("server"), ends.recorder("client")
    server = await ends.loop.create_server(lambda: made, sock=skt)
    ends.closing.append(server)
    await ends.loop.create_connection(lambda: client, *skt.getsockname())
    client.transport.write(b"x")
    await ends.until(lambda: made.data)
    client.transport.close()
    await ends.have("lost", made, client)
    server.close()
    ends.say("closed", skt.fileno())


@scenarios
async def hosts(ends: Ends) -> None:
    """
    Several addresses, an empty one, and none.
    """
    for given in ([HOST, "127.0.0.2"], "", None, (HOST, HOST)):
        server: Any = await ends.wait(f"{given}", ends.loop.create_server(asyncio.Protocol, given, 0))
        if server is not None:
            ends.say("families", sorted({int(each.family) for each in server.sockets}))
            server.close()


@scenarios
async def many(ends: Ends) -> None:
    """
    Clients at once.
    """
    gone: list[int] = []

    async def handle(reader: Any, writer: Any) -> None:
        writer.write(await reader.read())
        writer.close()
        gone.append(1)

    server = await asyncio.start_server(handle, HOST, 0, backlog=100)
    ends.closing.append(server)
    port = server.sockets[0].getsockname()[1]

    async def ask(number: int) -> bool:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(bytes([number]) * 1000)
        writer.write_eof()
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
        return bool(data == bytes([number]) * 1000)

    ends.say("all", await asyncio.gather(*map(ask, range(30))), len(gone))
