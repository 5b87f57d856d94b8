"""
The end of a connection.
"""

from __future__ import annotations

from typing import Any

from tests.suites.differential.reactors.ends import Ends, Half, Recorder, scenarios
from tests.suites.differential.reactors.writing import MANY

KINDS = {"whole": Recorder, "half": Half}


@scenarios.each("loseConnection", "abortConnection", "loseWriteConnection")
async def twice(ends: Ends, ending: str) -> None:
    """
    Each end once more, and the other ends behind it.
    """
    client, server = await ends.pair()
    ends.call("first", getattr(client.transport, ending))
    ends.call("second", getattr(client.transport, ending))
    for other in ("loseConnection", "loseWriteConnection", "abortConnection"):
        ends.call(other, getattr(client.transport, other))
    await ends.have("lost", client, server)
    # Twisted's loseWriteConnection() is an error of epoll(2) then.
    for other in ("loseConnection", "abortConnection"):
        ends.call(f"{other} after the end", getattr(client.transport, other))
    for other in ("pauseProducing", "resumeProducing", "stopProducing"):
        ends.call(f"{other} after the end", getattr(client.transport, other))


@scenarios.each("client", "server")
async def lose(ends: Ends, side: str) -> None:
    """
    C{loseConnection} with much that is not sent yet: all arrives.
    """
    client, server = await ends.pair()
    for name, it in (("client", client), ("server", server)):
        if side == name:
            it.transport.write(MANY)
            it.transport.loseConnection()
            it.transport.write(b"too late")
    await ends.have("lost", client, server)
    for it in (client, server):
        ends.say("all", len(it.data), it.data == MANY)


@scenarios.each("client", "server")
async def abort(ends: Ends, side: str) -> None:
    """
    C{abortConnection} with much that is not sent yet.
    """
    client, server = await ends.pair()
    it, other = (client, server) if side == "client" else (server, client)
    it.transport.write(MANY)
    it.transport.abortConnection()
    it.transport.write(b"too late")
    await ends.have("lost", client, server)
    other.log[:] = [each for each in other.log if each[0] != "data"]


@scenarios.each("loseConnection", "abortConnection")
async def lostIn(ends: Ends, ending: str) -> None:
    """
    The end in C{dataReceived}, with more behind it.
    """

    def data(it: Any, octets: bytes) -> None:
        it.transport.write(b"answer")
        getattr(it.transport, ending)()

    client, server = await ends.pair(server={"data": data})
    client.transport.write(b"one")
    await ends.have("lost", client, server)
    if ending == "abortConnection":
        client.log[:] = [each for each in client.log if each[0] != "data"]


@scenarios.each("whole-whole", "whole-half", "half-whole", "half-half")
async def ended(ends: Ends, kinds: str) -> None:
    """
    C{loseWriteConnection}: who hears of it goes on, who does not is closed.
    """
    one, two = (KINDS[each] for each in kinds.split("-"))
    client, server = await ends.pair(kinds=(one, two))
    client.transport.write(b"request")
    client.transport.loseWriteConnection()
    ends.call("write", client.transport.write, b"too late")
    if two is Half:
        await ends.have("readLost", server)
        ends.say("open", server.has("lost"), client.has("lost"))
        server.transport.write(b"answer")
        await ends.until(lambda: client.data == b"answer")
        server.transport.loseWriteConnection()
        await ends.have("writeLost", server)
        server.transport.loseConnection()
        await ends.have("lost", server)
    if one is Half:
        await ends.have("readLost", client)
        client.transport.loseConnection()
    await ends.have("lost", client, server)


@scenarios
async def endedFull(ends: Ends) -> None:
    """
    C{loseWriteConnection} with much that is not sent yet: all arrives before it.
    """
    client, server = await ends.pair(kinds=(Half, Half))
    client.transport.write(MANY)
    client.transport.loseWriteConnection()
    await ends.have("readLost", server)
    ends.say("all", server.data == MANY)
    server.transport.loseConnection()
    await ends.have("readLost", client)
    client.transport.loseConnection()
    await ends.have("lost", client, server)


@scenarios.each("readLost", "writeLost")
async def halfRaises(ends: Ends, what: str) -> None:
    """
    A half's call raises an exception.
    """

    def raises(it: Any) -> None:
        raise ValueError("x")

    client, server = await ends.pair({what: raises}, {what: raises}, (Half, Half))
    client.transport.loseWriteConnection()
    await ends.have("readLost", server)
    if what == "writeLost":
        server.transport.loseConnection()
    await ends.until(lambda: client.has("lost") or client.has("readLost"))
    client.transport.loseConnection()
    await ends.have("lost", client, server)


@scenarios.each("loseConnection", "abortConnection", "loseWriteConnection")
async def paused(ends: Ends, ending: str) -> None:
    """
    The peer ends while this side does not read, and it reads again later.
    """
    client, server = await ends.pair()
    server.transport.pauseProducing()
    client.transport.write(b"last words")
    await ends.turn()
    getattr(client.transport, ending)()
    if ending != "loseWriteConnection":
        await ends.have("lost", client)
    for _ in range(5):
        await ends.turn()
    ends.say("heard", server.has("data"), server.has("lost"))
    server.transport.resumeProducing()
    await ends.have("lost", server)
    if ending == "abortConnection":
        server.log[:] = [each for each in server.log if each[0] != "data"]


@scenarios.each("loseConnection", "abortConnection")
async def unread(ends: Ends, ending: str) -> None:
    """
    This side ends with octets that it has not read.
    """
    client, server = await ends.pair()
    server.transport.pauseProducing()
    client.transport.write(b"not read")
    for _ in range(5):
        await ends.turn()
    getattr(server.transport, ending)()
    await ends.have("lost", server)
    await ends.until(lambda: client.has("lost") or client.transport.write(b"x"))
    ends.say("more", server.data)


@scenarios
async def resumedBehindEnd(ends: Ends) -> None:
    """
    A half that reads again behind its peer's end hears of that again; ending its direction twice is an error.
    """
    client, server = await ends.pair(kinds=(Half, Half))
    server.transport.loseWriteConnection()
    await ends.have("readLost", client)
    for _ in range(2):
        client.log.clear()
        client.transport.resumeProducing()
        await ends.have("readLost", client)
    await ends.have("writeLost", server)
    server.transport.loseWriteConnection()
    await ends.have("lost", server)


@scenarios.each("paused", "reading")
async def resetBehindEnd(ends: Ends, how: str) -> None:
    """
    A half that has heard of its peer's end, or is to, draws a reset: it hears of that when it writes again.
    """
    client, server = await ends.pair(kinds=(Half, Recorder))
    if how == "paused":
        client.transport.pauseProducing()
    server.transport.loseConnection()
    await ends.have("lost", server)
    if how == "reading":
        await ends.have("readLost", client)
    client.transport.write(b"x")
    for _ in range(20):
        await ends.turn()
    ends.say("heard", client.has("lost"))
    if how == "paused":
        client.transport.resumeProducing()
        await ends.have("readLost", client)
        for _ in range(20):
            await ends.turn()
        ends.say("heard", client.has("lost"))
    client.transport.write(b"y")
    await ends.have("lost", client)
