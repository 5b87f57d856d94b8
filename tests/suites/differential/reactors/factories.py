"""
Factories, and what a connector lets its user do.
"""

from __future__ import annotations

from typing import Any

from tests.suites.differential.reactors.ends import HOST, Ends, scenarios
from tests.suites.differential.reactors.opening import nobody


@scenarios
async def calls(ends: Ends) -> None:
    """
    The calls of both factories, from the first connection to the end of the port.
    """
    client, server = ends.recorder("client"), ends.recorder("server")
    one, two = ends.factory("one", client), ends.factory("two", server)
    port, number = ends.listen(two)
    connector = ends.reactor.connectTCP(HOST, number, one)
    ends.say("state", connector.state)
    await ends.have("made", client, server)
    ends.say("state", connector.state)
    where = connector.getDestination()
    ends.say("destination", type(where).__name__, where.type, where.host, where.port)
    ends.call("connect", connector.connect)
    await ends.wait("stop", port.stopListening)
    ends.say("kept", client.has("lost"), server.has("lost"))
    connector.disconnect()
    await ends.have("lost", client, server, one)
    ends.say("state", connector.state)


@scenarios
async def failed(ends: Ends) -> None:
    """
    The calls of a client's factory when nobody listens.
    """
    factory = ends.factory("one")
    connector = ends.reactor.connectTCP(HOST, nobody(), factory)
    await ends.have("failed", factory)
    ends.say("state", connector.state)
    ends.call("disconnect", connector.disconnect)
    ends.call("stopConnecting", connector.stopConnecting)
    await ends.turn()


@scenarios
async def again(ends: Ends) -> None:
    """
    A connector connects again when the connection was lost, and when it failed.
    """
    kept = [ends.recorder(f"server {number}") for number in range(3)]
    servers = ends.factory("two", *kept)
    clients = [ends.recorder(f"client {number}") for number in range(3)]
    one = ends.factory("one", *clients)
    _, number = ends.listen(servers)
    left = [1, 1]

    def once(it: Any, reason: Any) -> None:
        if left:
            left.pop()
            it.connector.connect()

    one.does = {"lost": once, "failed": once}
    ends.reactor.connectTCP(HOST, number, one)
    for client in clients:
        await ends.have("made", client)
        client.transport.loseConnection()
        await ends.have("lost", client)
    await ends.until(lambda: [each[0] for each in one.log].count("lost") == 3)
    await ends.have("lost", *kept)
    ends.noting.remove(servers)


@scenarios.each("client", "server")
async def none(ends: Ends, side: str) -> None:
    """
    C{buildProtocol} returns L{None}.
    """
    other = ends.recorder("other")
    one = ends.factory("one", None if side == "client" else other)
    two = ends.factory("two", None if side == "server" else other)
    _, number = ends.listen(two)
    ends.reactor.connectTCP(HOST, number, one)
    await ends.until(lambda: one.has("lost") or one.has("failed"))
    await ends.until(lambda: not other.has("made") or other.has("lost"))


@scenarios
async def stopConnecting(ends: Ends) -> None:
    """
    The attempt is stopped in the turn in which it began.
    """
    one, two = ends.factory("one"), ends.factory("two")
    _, number = ends.listen(two)
    connector = ends.reactor.connectTCP(HOST, number, one)
    ends.call("stop", connector.stopConnecting)
    ends.say("state", connector.state)
    ends.call("again", connector.stopConnecting)
    await ends.have("failed", one)
    two.log.clear()


@scenarios.each("disconnect", "stopConnecting")
async def inStarted(ends: Ends, what: str) -> None:
    """
    The attempt is stopped in C{startedConnecting}.
    """
    one, two = ends.factory("one"), ends.factory("two")
    _, number = ends.listen(two)
    one.does = {"connecting": lambda it: ends.reactor.callLater(0, getattr(it.connector, what))}
    ends.reactor.connectTCP(HOST, number, one)
    await ends.until(lambda: one.has("failed") or one.has("lost"))
    two.log.clear()
    ends.noting[:] = [each for each in ends.noting if each in (one, two)]
    one.log[:] = [each for each in one.log if each[0] != "build"]


@scenarios
async def disconnectIn(ends: Ends) -> None:
    """
    The connector disconnects in C{dataReceived}.
    """
    client, server = ends.recorder("client"), ends.recorder("server")
    client.does = {"data": lambda it, data: one.connector.disconnect()}
    server.does = {"made": lambda it: it.transport.write(b"hello")}
    one, two = ends.factory("one", client), ends.factory("two", server)
    _, number = ends.listen(two)
    ends.reactor.connectTCP(HOST, number, one)
    await ends.have("lost", client, server, one)
