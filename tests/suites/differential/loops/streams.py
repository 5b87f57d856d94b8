"""
C{asyncio.StreamReader} and C{asyncio.StreamWriter}.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.suites.differential.loops.ends import HOST, Ends, scenarios
from tests.suites.differential.sockets.tls import contexts


async def _streams(ends: Ends, limit: int = 65536) -> tuple[Any, Any, Any, Any]:
    # The client's reader and writer, and the server's.
    accepted: asyncio.Future[Any] = ends.loop.create_future()
    server = await asyncio.start_server(lambda r, w: accepted.set_result((r, w)), HOST, 0, limit=limit)
    port = server.sockets[0].getsockname()[1]
    one = await asyncio.open_connection(HOST, port, limit=limit)
    other = await accepted
    server.close()
    ends.check(one[1].transport)
    for _, writer in (one, other):
        ends.closing.append(writer)
    return (*one, *other)


@scenarios
async def read(ends: Ends) -> None:
    """
    All kinds of reads.
    """
    reader, _, _, writer = await _streams(ends)
    writer.write(b"line\nuntil;exact12345rest")
    writer.write_eof()
    await ends.wait("line", reader.readline())
    await ends.wait("until", reader.readuntil(b";"))
    await ends.wait("exactly", reader.readexactly(10))
    await ends.wait("nothing", reader.read(0))
    await ends.wait("negative", reader.readexactly(-1))
    await ends.wait("separator", reader.readuntil(b""))
    await ends.wait("some", reader.read(2))
    ends.say("end", reader.at_eof())
    await ends.wait("short", reader.readexactly(10))
    ends.say("end", reader.at_eof())
    for call in (reader.read, reader.readline, reader.readuntil):
        await ends.wait("behind", call())


@scenarios
async def overrun(ends: Ends) -> None:
    """
    Lines that are too long, and the reader's own flow control.
    """
    reader, _, _, writer = await _streams(ends, 10)
    writer.write(b"x" * 1000 + b"\n")
    await ends.wait("line", reader.readline())
    writer.write(b"y" * 1000 + b"\nshort\n")
    writer.close()
    found = await reader.read()
    ends.say("ends", found[-7:])


@scenarios
async def iterated(ends: Ends) -> None:
    """
    C{async for}.
    """
    reader, _, _, writer = await _streams(ends)
    writer.writelines([b"one\n", b"two\n", b"three"])
    writer.close()
    async for line in reader:
        ends.say("line", line)
    await ends.wait("closed", writer.wait_closed())


@scenarios
async def resetStreams(ends: Ends) -> None:
    """
    The peer aborts.
    """
    reader, writer, _, other = await _streams(ends)
    other.transport.abort()
    await ends.wait("read", reader.read())
    ends.say("error", reader.exception(), writer.is_closing())
    writer.write(b"x")
    await ends.wait("drain", writer.drain())
    writer.close()
    await ends.wait("closed", writer.wait_closed())
    await ends.wait("theirs", other.wait_closed())


@scenarios
async def drained(ends: Ends) -> None:
    """
    C{drain} waits for a peer that does not read.
    """
    reader, writer, theirs, other = await _streams(ends)
    writer.write(bytes(20_000_000))
    task = ends.loop.create_task(writer.drain())
    for _ in range(20):
        await asyncio.sleep(0)
    ends.say("waits", not task.done())
    data = await theirs.readexactly(20_000_000)
    await ends.wait("drained", task)
    ends.say("octets", len(data))
    other.write(b"answer")
    await ends.wait("answer", reader.readexactly(6))
    writer.close()
    await ends.wait("closed", writer.wait_closed())
    await ends.wait("drain", writer.drain())


@scenarios
async def closedWhileDraining(ends: Ends) -> None:
    """
    The peer aborts while C{drain} waits.
    """
    _, writer, _, other = await _streams(ends)
    writer.write(bytes(20_000_000))
    task = ends.loop.create_task(writer.drain())
    await asyncio.sleep(0)
    other.transport.abort()
    await ends.wait("drain", task)


@scenarios
async def upgraded(ends: Ends) -> None:
    """
    C{StreamWriter.start_tls}.
    """
    reader, writer, theirs, other = await _streams(ends)
    server, client = contexts()
    if not hasattr(writer, "start_tls"):
        return
    writer.write(b"plain\n")
    await ends.wait("plain", theirs.readline())
    # Only the client's is StreamWriter's here: whose side a server is it knows by its own callback.
    await asyncio.gather(writer.start_tls(client, server_hostname="localhost"), other.start_tls(server))
    writer.write(b"secret\n")
    await ends.wait("secret", theirs.readline())
    other.write(b"answer\n")
    await ends.wait("answer", reader.readline())
    ends.say("cipher", writer.get_extra_info("cipher"), writer.can_write_eof())
    writer.close()
    await ends.wait("end", theirs.read())
    await ends.wait("closed", writer.wait_closed())


@scenarios
async def callbackRaises(ends: Ends) -> None:
    """
    A server's callback raises.
    """

    async def handle(reader: Any, writer: Any) -> None:
        raise ZeroDivisionError

    server = await asyncio.start_server(handle, HOST, 0)
    ends.closing.append(server)
    _reader, writer = await asyncio.open_connection(HOST, server.sockets[0].getsockname()[1])
    await ends.until(lambda: ends.record.parts[""])
    writer.close()
    await ends.wait("closed", writer.wait_closed())
