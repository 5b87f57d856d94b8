"""
Writing: what is taken, and what becomes of it.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import interfaces

from tests.suites.differential.reactors.ends import Ends, scenarios

MANY = bytes(range(256)) * 8_000
VALUES: tuple[Any, ...] = (b"", b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc", None, 3, [b"a"])


@scenarios
async def exchanged(ends: Ends) -> None:
    """
    An answer to a request; the client closes.
    """
    client, server = await ends.pair(server={"data": lambda it, data: it.transport.write(data.upper())})
    client.transport.write(b"request")
    await ends.until(lambda: client.data == b"REQUEST")
    client.transport.loseConnection()
    await ends.have("lost", client, server)


@scenarios
async def known(ends: Ends) -> None:
    """
    What a transport says of itself.
    """
    client, server = await ends.pair()
    for each in (client.transport, server.transport):
        for address in (each.getHost(), each.getPeer()):
            ends.say("address", type(address).__name__, address.type, address.host, address.port)
        names = ("ITransport", "ITCPTransport", "IHalfCloseableDescriptor", "IConsumer", "IPushProducer")
        for name in (*names, "ITLSTransport", "ILoggingContext", "IReadWriteDescriptor"):
            ends.say(name, getattr(interfaces, name).providedBy(each))
        ends.say("states", each.connected, each.disconnected, each.disconnecting, bool(each.producer))
        ends.say("prefix", each.logPrefix())
        ends.say("text", type(str(each)), type(repr(each)))
        for option in ("TcpNoDelay", "TcpKeepAlive"):
            ends.call(option, lambda each=each, option=option: bool(getattr(each, f"get{option}")()))
            ends.call(f"set {option}", getattr(each, f"set{option}"), True)
            ends.call(option, lambda each=each, option=option: bool(getattr(each, f"get{option}")()))
    ends.say("equal", client.transport.getHost() == server.transport.getPeer())
    ends.say("equal", client.transport.getPeer() == server.transport.getHost())
    client.transport.loseConnection()
    ends.say("states", client.transport.disconnecting, client.transport.connected)
    await ends.have("lost", client, server)
    for each in (client.transport, server.transport):
        ends.say("states", bool(each.connected), bool(each.disconnected), bool(each.disconnecting))


@scenarios.each("open", "sent", "closing", "lost")
async def kinds(ends: Ends, when: str) -> None:
    """
    What C{write} and C{writeSequence} take.  Not an iterator: Twisted's looks at its items, and sends none.
    """
    client, server = await ends.pair()
    if when == "sent":
        client.transport.write(b"first")
        await ends.until(lambda: server.data == b"first")
    elif when in ("closing", "lost"):
        client.transport.loseConnection()
    if when == "lost":
        await ends.have("lost", client, server)
    for value in VALUES:
        name = type(value).__name__
        ends.call(f"write {name}", client.transport.write, value)
    for sequence in ([], [b"x"], (b"x", b"y"), [b"x", "y"], [b"x", None], None, "ab", b"ab"):
        ends.call(f"sequence {type(sequence).__name__}", client.transport.writeSequence, sequence)
    if when not in ("closing", "lost"):
        client.transport.loseConnection()
    await ends.have("lost", client, server)


@scenarios
async def ordered(ends: Ends) -> None:
    """
    Pieces of all sizes, written in one turn and in many, arrive in order.
    """
    client, server = await ends.pair()
    sent = b""
    for number in range(60):
        piece = bytes([number]) * (number * number * 7 % 5000)
        sent += piece
        client.transport.write(piece)
        client.transport.writeSequence([piece[:3], piece[3:10]])
        sent += piece[:10]
        if number % 7 == 0:
            await ends.turn()
    await ends.until(lambda: len(server.data) >= len(sent))
    ends.say("the same", server.data == sent)
    server.log.clear()
    client.transport.loseConnection()
    await ends.have("lost", client, server)


@scenarios
async def both(ends: Ends) -> None:
    """
    Much in both directions at once.
    """
    client, server = await ends.pair()
    client.transport.write(MANY)
    server.transport.write(MANY)
    await ends.until(lambda: len(client.data) == len(server.data) == len(MANY))
    ends.say("the same", client.data == server.data == MANY)
    client.transport.loseConnection()
    await ends.have("lost", client, server)


@scenarios
async def atOnce(ends: Ends) -> None:
    """
    Both ends write when they are connected.
    """
    client, server = await ends.pair(
        {"made": lambda it: it.transport.write(b"client")}, {"made": lambda it: it.transport.write(b"server")}
    )
    await ends.until(lambda: client.data == b"server" and server.data == b"client")
    server.transport.loseConnection()
    await ends.have("lost", client, server)


@scenarios.each("loseConnection", "abortConnection")
async def greeting(ends: Ends, ending: str) -> None:
    """
    The server writes and ends when it is connected.
    """

    def made(it: Any) -> None:
        it.transport.write(b"hello")
        getattr(it.transport, ending)()

    client, server = await ends.pair(server={"made": made})
    await ends.have("lost", client, server)
    if ending == "abortConnection":
        client.log[:] = [each for each in client.log if each[0] != "data"]


@scenarios.each("client", "server")
async def raises(ends: Ends, side: str) -> None:
    """
    C{dataReceived} raises an exception.
    """

    def data(it: Any, octets: bytes) -> None:
        raise ValueError("x")

    does = {"data": data}
    client, server = await ends.pair(does if side == "client" else None, does if side == "server" else None)
    (server if side == "client" else client).transport.write(b"x")
    await ends.have("lost", client, server)


@scenarios
async def lostRaises(ends: Ends) -> None:
    """
    C{connectionLost} raises an exception.
    """

    def lost(it: Any, reason: Any) -> None:
        raise ValueError("x")

    client, server = await ends.pair({"lost": lost})
    server.transport.loseConnection()
    await ends.have("lost", client, server)
