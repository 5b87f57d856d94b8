"""
Writing: what is taken, the limits, and a protocol that is to pause.
"""

from __future__ import annotations

import array
from typing import Any

from tests.suites.differential.loops.ends import Ends, scenarios

MANY = bytes(range(256)) * 80_000


@scenarios
async def exchanged(ends: Ends) -> None:
    """
    An answer to a request; the client closes.
    """
    client, server = await ends.pair(server={"data": lambda it, data: it.transport.write(data.upper())})
    client.transport.write(b"request")
    await ends.until(lambda: client.data == b"REQUEST")
    client.transport.close()
    await ends.have("lost", client, server)


@scenarios
async def extras(ends: Ends) -> None:
    """
    What C{get_extra_info} knows.
    """
    client, server = await ends.pair()
    for each in (client.transport, server.transport):
        for name in ("peername", "sockname", "cipher", "sslcontext", "pipe"):
            ends.say(name, each.get_extra_info(name, "nothing"))
        skt = each.get_extra_info("socket")
        ends.say("socket", skt.family, skt.type, skt.getsockname(), skt.getpeername(), skt.gettimeout() == 0)
        ends.say("no delay", bool(skt.getsockopt(6, 1)))
        ends.say("states", each.is_reading(), each.is_closing(), each.can_write_eof())
        ends.say("limits", each.get_write_buffer_limits(), each.get_write_buffer_size())
        ends.call("listen", skt.setblocking, False)


VALUES: tuple[Any, ...] = (b"", b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc", None, 3, [1])
MORE: tuple[Any, ...] = (array.array("i", [1, 2]), memoryview(array.array("i", [1, 2])))


@scenarios.each("write", "sent", "closed", "ended")
async def kinds(ends: Ends, when: str) -> None:
    """
    What C{write} and C{writelines} take.
    """
    client, server = await ends.pair(server={"eof": lambda it: True})
    if when == "closed":
        client.transport.close()
    elif when == "ended":
        client.transport.write_eof()
    elif when == "sent":
        client.transport.write(b"first")
        await ends.until(lambda: server.data == b"first")
    for value in VALUES + MORE:
        ends.call(f"write {type(value).__name__}", client.transport.write, value)
        if when == "write":
            ends.lines(f"lines {type(value).__name__}", client.transport, [b"x", value])
    ends.lines("lines of none", client.transport, [])
    ends.lines("lines of int", client.transport, 3)
    client.transport.close()
    await ends.have("lost", client)
    await ends.until(lambda: server.has("eof"))


@scenarios
async def limits(ends: Ends) -> None:
    """
    The marks of the buffer.
    """
    client, _ = await ends.pair()
    pairs: tuple[Any, ...] = ((None, None), (0, None), (1000, None), (None, 1000), (5, 10), (10, 5), (10, 10))
    for high, low in (*pairs, (-1, None), (None, -1), (None, 0), ("x", None)):
        ends.call(f"{high} {low}", client.transport.set_write_buffer_limits, high, low)
        ends.say("are", client.transport.get_write_buffer_limits())


@scenarios.each(0, 1000, 65536)
async def flow(ends: Ends, high: int) -> None:
    """
    More than goes into the medium: the protocol is paused, and resumed when the peer reads.
    """
    client, server = await ends.pair()
    client.transport.set_write_buffer_limits(high)
    server.transport.pause_reading()
    client.transport.write(MANY)
    ends.say("waits", client.transport.get_write_buffer_size() > high, client.has("pause"))
    client.transport.write(b"more")
    server.transport.resume_reading()
    await ends.have("resume", client)
    ends.say("left", client.transport.get_write_buffer_size() <= high)
    await ends.until(lambda: len(server.data) == len(MANY) + 4)
    ends.say("empty", client.transport.get_write_buffer_size())


@scenarios
async def closedFull(ends: Ends) -> None:
    """
    C{close} with a full buffer: all arrives.
    """
    client, server = await ends.pair()
    server.transport.pause_reading()
    client.transport.write(MANY)
    client.transport.close()
    ends.say("closing", client.transport.is_closing(), client.transport.get_write_buffer_size() > 0)
    server.transport.resume_reading()
    await ends.have("lost", client, server)
    ends.say("all", server.data == MANY)


@scenarios
async def endedFull(ends: Ends) -> None:
    """
    C{write_eof} with a full buffer: all arrives.
    """
    client, server = await ends.pair(server={"eof": lambda it: it.transport.write(b"answer")})
    server.transport.pause_reading()
    client.transport.write(MANY)
    client.transport.write_eof()
    server.transport.resume_reading()
    await ends.have("lost", client, server)


@scenarios
async def writtenWhenMade(ends: Ends) -> None:
    """
    C{connection_made} writes.
    """

    def write(it: Any) -> None:
        it.transport.write(it.name.encode())

    client, server = await ends.pair({"made": write}, {"made": write})
    await ends.until(lambda: client.data == b"server" and server.data == b"client")


FILES: dict[str, tuple[int, int | None]] = {
    "whole": (0, None), "offset": (3, None), "count": (0, 4), "both": (2, 5), "behind": (50, None),
    "much": (5, 100), "none": (0, 0), "negative": (-1, None), "countNegative": (0, -1),
}  # fmt: skip


@scenarios.each(*FILES)
async def sendfile(ends: Ends, name: str) -> None:
    """
    C{loop.sendfile}, and where the file stands then.
    """
    client, server = await ends.pair()
    for at in (0, 10):
        file = ends.file(b"0123456789")
        file.seek(at)
        await ends.wait(f"from {at}", ends.loop.sendfile(client.transport, file, *FILES[name]))
        ends.say("stands", file.tell())
    client.transport.write(b"end")
    await ends.until(lambda: server.data.endswith(b"end"))


@scenarios
async def sendfileOfOthers(ends: Ends) -> None:
    """
    C{loop.sendfile} of what is no such file, and by what is no such transport.
    """
    import io

    client, server = await ends.pair()
    transport = client.transport
    await ends.wait("text", ends.loop.sendfile(transport, io.StringIO("abc")))
    await ends.wait("octets", ends.loop.sendfile(transport, io.BytesIO(b"abc"), 1))
    await ends.wait("no fallback", ends.loop.sendfile(transport, io.BytesIO(b"abc"), fallback=False))
    await ends.wait("empty", ends.loop.sendfile(transport, ends.file(b"")))
    await ends.wait("kinds", ends.loop.sendfile(transport, ends.file(b"abc"), "x"))
    ends.say("reading", transport.is_reading(), transport.get_protocol() is client)
    transport.close()
    await ends.wait("closing", ends.loop.sendfile(transport, ends.file(b"abc")))
    await ends.have("lost", server)


@scenarios
async def sendfileLong(ends: Ends) -> None:
    """
    A long file between two writes.
    """
    client, server = await ends.pair()
    client.transport.write(b"before")
    await ends.wait("sent", ends.loop.sendfile(client.transport, ends.file(MANY)))
    client.transport.write(b"behind")
    client.transport.close()
    await ends.have("lost", server)
