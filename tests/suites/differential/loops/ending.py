"""
How connections end, and what is called then.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from typing import Any

from tests.suites.differential.loops.ends import Buffered, Ends, scenarios


def _raise(*_: Any) -> None:
    raise ZeroDivisionError


@scenarios
async def halfClosed(ends: Ends) -> None:
    """
    C{write_eof}: the peer keeps its direction, and closes later.
    """
    client, server = await ends.pair(server={"eof": lambda it: True})
    client.transport.write(b"last")
    ends.call("eof", client.transport.write_eof)
    ends.call("again", client.transport.write_eof)
    ends.call("write", client.transport.write, b"x")
    ends.call("write nothing", client.transport.write, b"")
    ends.lines("lines", client.transport, [b"x"])
    await ends.have("eof", server)
    ends.say("server", server.transport.is_closing(), server.transport.is_reading())
    ends.say("client", client.transport.is_closing(), client.transport.is_reading())
    server.transport.write(b"answer")
    await ends.until(lambda: client.data == b"answer")
    server.transport.close()
    await ends.have("lost", client, server)


@scenarios.each(True, False, None, 1, "")
async def eofReturns(ends: Ends, value: Any) -> None:
    """
    What C{eof_received} returns.
    """
    client, server = await ends.pair(server={"eof": lambda it: value})
    client.transport.write_eof()
    await ends.have("eof", server)
    ends.say("closing", server.transport.is_closing())
    server.transport.close()
    await ends.have("lost", client, server)


@scenarios.each("close", "abort")
async def over(ends: Ends, how: str) -> None:
    """
    Calls behind the end.
    """
    client, server = await ends.pair()
    transport = client.transport
    for when in ("at once", "later"):
        ends.call(how, getattr(transport, how))
        ends.say(when, transport.is_closing(), transport.is_reading(), transport.get_write_buffer_size())
        for name in ("pause_reading", "resume_reading", "write_eof", "close", "abort", "get_protocol"):
            ends.call(name, getattr(transport, name))
        ends.call("write", transport.write, b"x")
        ends.lines("lines", transport, [b"x"])
        ends.call("limits", transport.set_write_buffer_limits, 10)
        ends.call("protocol", transport.set_protocol, client)
        ends.say("peer", transport.get_extra_info("peername"))
        await ends.have("lost", client, server)


@scenarios.each(*(f"{how} {name}" for how in ("close", "abort", "raise") for name in ("made", "data", "eof")))
async def within(ends: Ends, what: str) -> None:
    """
    C{close}, C{abort} or an error within a call.
    """
    how, name = what.split()
    action = _raise if how == "raise" else lambda it, *_: getattr(it.transport, how)()
    client = ends.recorder("client")
    server = ends.recorder("server", {name: action})
    _, port = await ends.server(lambda: server)
    await ends.loop.create_connection(lambda: client, "127.0.0.1", port)
    if name != "made":
        client.transport.write(b"data")
        client.transport.write_eof()
    if what == "raise made":
        await ends.have("made", server)
        client.transport.close()
        await ends.have("lost", client)
    else:
        await ends.have("lost", client, server)


@scenarios.each("lost", "pause", "resume")
async def raised(ends: Ends, name: str) -> None:
    """
    Errors within the other calls.
    """
    client, server = await ends.pair({name: _raise})
    client.transport.set_write_buffer_limits(10)
    server.transport.pause_reading()
    client.transport.write(bytes(20_000_000))
    server.transport.resume_reading()
    await ends.until(lambda: len(server.data) == 20_000_000)
    client.transport.close()
    await ends.have("lost", server, client)


@scenarios
async def aborted(ends: Ends) -> None:
    """
    C{abort} of the peer: what a client sees that writes on.
    """
    client, server = await ends.pair()
    server.transport.abort()
    await ends.have("lost", client)
    for _ in range(3):
        ends.call("write", client.transport.write, b"x")
    ends.call("eof", client.transport.write_eof)


@scenarios.each("close", "abort", "write", "write_eof")
async def unread(ends: Ends, what: str) -> None:
    """
    C{close} with octets that nobody has read is a reset, behind what was written and an end asked for before.
    """
    client, server = await ends.pair()
    server.transport.pause_reading()
    client.transport.write(b"unread")
    # By another connection the octets are there.
    other, answer = await ends.pair()
    other.transport.write(b"x")
    await ends.until(lambda: answer.data)
    if what.startswith("write"):
        getattr(server.transport, what)(*([b"last"] if what == "write" else []))
    getattr(server.transport, "abort" if what == "abort" else "close")()
    await ends.have("lost", client, server)


@scenarios
async def writtenToClosed(ends: Ends) -> None:
    """
    The peer has closed; the client, which keeps its direction, writes.
    """
    client, server = await ends.pair({"eof": lambda it: True})
    server.transport.close()
    await ends.have("eof", client)
    await ends.have("lost", server)
    deadline = ends.loop.time() + 10
    while not client.has("lost") and ends.loop.time() < deadline:
        client.transport.write(b"x")
        await asyncio.sleep(1e-3)


@scenarios.each(socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR)
async def shut(ends: Ends, how: int) -> None:
    """
    C{shutdown} of the transport's socket.
    """
    client, server = await ends.pair(server={"eof": lambda it: True})
    ends.call("shutdown", client.transport.get_extra_info("socket").shutdown, how)
    if how == socket.SHUT_WR:
        await ends.have("eof", server)
        server.transport.write(b"still")
        await ends.until(lambda: client.data == b"still")
        client.transport.write(b"x")
    await ends.have("lost", client)
    await ends.have("eof", server)


@scenarios
async def paused(ends: Ends) -> None:
    """
    C{pause_reading}: nothing comes until C{resume_reading}, and then all, with the end.
    """
    client, server = await ends.pair()
    for name in ("pause_reading", "pause_reading"):
        ends.call(name, getattr(server.transport, name))
        ends.say("reading", server.transport.is_reading())
    client.transport.write(b"one")
    client.transport.close()
    await ends.have("lost", client)
    ends.say("none", server.data, server.has("eof"))
    for name in ("resume_reading", "resume_reading"):
        ends.call(name, getattr(server.transport, name))
        ends.say("reading", server.transport.is_reading())
    await ends.have("lost", server)


@scenarios
async def pausedWithin(ends: Ends) -> None:
    """
    C{pause_reading} within C{data_received}.
    """
    client, server = await ends.pair(server={"data": lambda it, _: it.transport.pause_reading()})
    client.transport.write(b"one")
    await ends.until(lambda: server.data == b"one")
    client.transport.write(b"two")
    client.transport.write_eof()
    ends.say("reading", server.transport.is_reading())
    server.transport.resume_reading()
    await ends.until(lambda: server.data == b"onetwo")
    server.transport.resume_reading()
    await ends.have("lost", server, client)


@scenarios.each("Recorder", "Buffered")
async def otherProtocol(ends: Ends, kind: str) -> None:
    """
    C{set_protocol}.
    """
    client, server = await ends.pair()
    made = ends.recorder("other", None, Buffered) if kind == "Buffered" else ends.recorder("other")
    made.transport = server.transport
    client.transport.write(b"first")
    await ends.until(lambda: server.data == b"first")
    ends.call("set", server.transport.set_protocol, made)
    ends.say("is", server.transport.get_protocol() is made)
    client.transport.write(b"second, which is longer")
    await ends.until(lambda: made.data == b"second, which is longer")
    client.transport.close()
    await ends.have("lost", made, client)


@scenarios.each("dropped", "closed", "one", "two", "of one")
async def duplicated(ends: Ends, how: str) -> None:
    """
    The connection of a transport that is closed goes on as long as one of two duplicates of its socket.
    """
    client, server = await ends.pair()
    own = client.transport.get_extra_info("socket")
    one = own.dup()
    two = one.dup() if how == "of one" else own.dup()
    client.transport.close()
    await ends.have("lost", client)
    if how in ("dropped", "closed"):
        if how == "closed":
            one.close()
            two.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del one, two
            gc.collect()
        await ends.have("lost", server)
        return
    kept, other = (one, two) if how == "one" else (two, one)
    other.close()
    ends.say("open", kept.fileno() >= 0, other.fileno())
    second = ends.recorder("second")
    await ends.loop.create_connection(lambda: second, sock=kept)
    second.transport.write(b"x")
    await ends.until(lambda: server.data)
    server.transport.write(b"y")
    await ends.until(lambda: second.data)
    ends.call("closed", own.dup)
    second.transport.close()
    await ends.have("lost", second, server)


@scenarios.each("close", "shutdown")
async def duplicateBeside(ends: Ends, how: str) -> None:
    """
    A duplicate that is closed leaves the connection to the transport; one that is shut down ends it.
    """
    client, server = await ends.pair(server={"eof": lambda it: how == "shutdown"})
    own = client.transport.get_extra_info("socket").dup()
    if how == "close":
        own.close()
        client.transport.write(b"x")
        await ends.until(lambda: server.data)
        client.transport.close()
    else:
        ends.call("shutdown", own.shutdown, socket.SHUT_WR)
        await ends.have("eof", server)
        server.transport.write(b"still")
        await ends.until(lambda: client.data == b"still")
        server.transport.close()
        await ends.have("lost", client)
        own.close()
    await ends.have("lost", client, server)


@scenarios
async def duplicateOfEnded(ends: Ends) -> None:
    """
    The transport of a duplicate is told of an end that the first one was told, when it reads.
    """
    client, server = await ends.pair({"eof": lambda it: True})
    server.transport.write_eof()
    await ends.have("eof", client)
    own = client.transport.get_extra_info("socket").dup()
    client.transport.close()
    await ends.have("lost", client)
    second = ends.recorder("second", {"made": lambda it: it.transport.pause_reading()})
    await ends.loop.create_connection(lambda: second, sock=own)
    second.transport.write(b"x")
    await ends.until(lambda: server.data)
    ends.say("paused", second.has("eof"))
    second.transport.resume_reading()
    await ends.have("lost", second, server)


@scenarios.each(1, 20_000)
async def abortedBehindData(ends: Ends, size: int) -> None:
    """
    C{abort} in the turn of a write: the medium has what it had room for, as the kernel has.
    """
    client, server = await ends.pair()
    client.transport.write(bytes(size))
    client.transport.write(b"last")
    client.transport.abort()
    await ends.have("lost", client, server)


@scenarios.each("abort", "raise")
async def abortedWithin(ends: Ends, what: str) -> None:
    """
    The same within C{data_received}, as a server does that answers an error.
    """

    def answer(it: Any, _: bytes) -> None:
        it.transport.write(b"wrong")
        if what == "raise":
            raise ZeroDivisionError
        it.transport.abort()

    client, server = await ends.pair(server={"data": answer})
    client.transport.write(b"x")
    await ends.have("lost", client, server)


@scenarios
async def shutPaused(ends: Ends) -> None:
    """
    The end of a socket that nobody reads from is seen once it is read.
    """
    client, server = await ends.pair()
    client.transport.pause_reading()
    client.transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    await ends.have("lost", server)
    ends.say("told", client.has("eof"), client.has("lost"))
    client.transport.resume_reading()
    await ends.have("lost", client)


@scenarios
async def writtenToClosedPaused(ends: Ends) -> None:
    """
    A peer that closes, and resets what comes then, while nobody reads: its end is what is read.
    """
    client, server = await ends.pair()
    client.transport.pause_reading()
    server.transport.close()
    await ends.have("lost", server)
    client.transport.write(b"x")
    for _ in range(50):
        await asyncio.sleep(0)
    client.transport.resume_reading()
    await ends.have("lost", client)


@scenarios.each("close", "abort")
async def closedLater(ends: Ends, how: str) -> None:
    """
    The socket is closed behind C{connection_lost}, and not in the turn of C{close}.
    """

    def lost(it: Any, _: Any) -> None:
        ends.say("within", it.transport.get_extra_info("socket").fileno() >= 0)

    client, server = await ends.pair({"lost": lost})
    skt = client.transport.get_extra_info("socket")
    getattr(client.transport, how)()
    ends.say("at once", skt.fileno() >= 0, skt.getpeername()[0])
    # Nobody reads it any more.
    server.transport.write(b"too late")
    await ends.have("lost", client, server)
    ends.say("later", skt.fileno())


@scenarios
async def socketOfEnded(ends: Ends) -> None:
    """
    The calls of a transport's socket: both directions have ended, and it is closed.
    """
    client, server = await ends.pair({"eof": lambda it: True})
    skt = client.transport.get_extra_info("socket")
    for when in ("ended", "closed"):
        client.transport.write_eof()
        await ends.have("lost" if when == "closed" else "eof", client)
        await ends.have("lost", server)
        for name in ("getsockname", "getpeername"):
            ends.call(f"{when} {name}", lambda name=name: getattr(skt, name)()[0])
        ends.call("get", skt.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
        ends.call("set", skt.setsockopt, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for how in (socket.SHUT_RD, socket.SHUT_WR, 7):
            ends.call(f"shutdown {how}", skt.shutdown, how)
        client.transport.close()


@scenarios
async def raisedUnread(ends: Ends) -> None:
    """
    C{get_buffer} raises: what has arrived is unread, and the connection is reset.
    """
    client, server = await ends.pair(server={"get_buffer": _raise}, kinds=(None, Buffered))
    client.transport.write(b"unread")
    await ends.have("lost", client, server)
