"""
Ports, connects and endpoints.
"""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet.endpoints import (
    HostnameEndpoint,
    TCP4ClientEndpoint,
    TCP4ServerEndpoint,
    clientFromString,
    connectProtocol,
    serverFromString,
)
from twisted.internet.protocol import Factory, Protocol

from tests.suites.differential.reactors.ends import HOST, Ends, scenarios


def nobody() -> int:
    """
    @return: A number at which nobody listens.
    """
    with socket.socket() as skt:
        skt.bind((HOST, 0))
        return int(skt.getsockname()[1])


def _quiet(protocol: Any = Protocol) -> Any:
    factory = Factory.forProtocol(protocol)
    factory.noisy = False
    return factory


@scenarios
async def arguments(ends: Ends) -> None:
    """
    Arguments that do not fit.
    """
    for number in ("no such service", -1, 65536, None, 1.5):
        ends.call(f"listen {number}", ends.reactor.listenTCP, number, _quiet(), interface=HOST)
    ends.call("connect", ends.reactor.connectTCP, HOST, "no such service", ends.factory("client"))
    ends.call("interface", ends.reactor.listenTCP, 0, _quiet(), interface="192.0.2.1")
    ends.call("no address", ends.reactor.listenTCP, 0, _quiet(), interface="not an address")
    for _ in range(10):
        await ends.turn()


@scenarios
async def port(ends: Ends) -> None:
    """
    What a port says of itself, and its end.
    """
    factory = ends.factory("factory")
    made, number = ends.listen(factory)
    where = made.getHost()
    ends.say("address", type(where).__name__, where.type, where.host, where.port)
    ends.say("text", str(number) in str(made), made.connected)
    ends.call("taken", lambda: bool(ends.listen(_quiet(), number)))
    await ends.wait("stop", made.stopListening)
    ends.say("connected", bool(made.connected))
    await ends.wait("again", made.stopListening)
    free = ends.call("free", lambda: bool(ends.listen(_quiet(), number)))
    ends.say("is", free)


@scenarios
async def anew(ends: Ends) -> None:
    """
    A port listens again after its end.
    """
    factory = ends.factory("factory")
    made, _ = ends.listen(factory)
    await ends.wait("stop", made.stopListening)
    ends.call("start", made.startListening)
    ends.record.names[made.getHost().port] = "SERVER"
    client = ends.factory("client")
    ends.reactor.connectTCP(HOST, made.getHost().port, client)
    await ends.have("build", factory, client)
    ends.noting[:] = [each for each in ends.noting if each.name != "one more"]
    for each in (factory, client):
        each.log.sort()


@scenarios
async def refused(ends: Ends) -> None:
    """
    Nobody listens.
    """
    number = nobody()
    for name, endpoint in (
        ("address", TCP4ClientEndpoint(ends.reactor, HOST, number)),
        ("name", HostnameEndpoint(ends.reactor, HOST, number)),
        ("text", clientFromString(ends.reactor, f"tcp:{HOST}:{number}")),
        ("zero", TCP4ClientEndpoint(ends.reactor, HOST, 0)),
    ):
        await ends.wait(name, endpoint.connect, _quiet())


@scenarios
async def endpoints(ends: Ends) -> None:
    """
    Endpoints of strings and of classes.
    """
    server = ends.recorder("server")
    text = f"tcp:0:interface={HOST}"
    listening = await serverFromString(ends.reactor, text).listen(_quiet(lambda: server))
    ends.ports.append(listening)
    number = listening.getHost().port
    client: Any = ends.recorder("client")
    await ends.wait("connect", connectProtocol, TCP4ClientEndpoint(ends.reactor, HOST, number), client)
    ends.check(client.transport)
    await ends.have("made", server)
    client.transport.loseConnection()
    await ends.have("lost", client, server)
    await ends.wait("taken", TCP4ServerEndpoint(ends.reactor, number, interface=HOST).listen, _quiet())


@scenarios
async def cancelled(ends: Ends) -> None:
    """
    An endpoint's connect is cancelled.
    """
    _, number = ends.listen(_quiet())
    connecting = TCP4ClientEndpoint(ends.reactor, HOST, number).connect(_quiet())
    connecting.cancel()
    await ends.wait("connect", lambda: connecting)


@scenarios
async def bound(ends: Ends) -> None:
    """
    A client with an address and a number of its own.
    """
    server, client = ends.recorder("server"), ends.recorder("client")
    _, number = ends.listen(ends.factory("two", server))
    own = nobody()
    ends.record.names[own] = "OWN"
    ends.reactor.connectTCP(HOST, number, ends.factory("one", client), bindAddress=(HOST, own))
    await ends.have("made", client, server)
    ends.say("own", client.transport.getHost().port, server.transport.getPeer().port)
    taken = ends.factory("taken")
    ends.reactor.connectTCP(HOST, number, taken, bindAddress=(HOST, number))
    await ends.have("failed", taken)
    other = ends.factory("other")
    ends.reactor.connectTCP(HOST, number, other, bindAddress=("192.0.2.1", 0))
    await ends.have("failed", other)
    client.transport.loseConnection()
    await ends.have("lost", client, server)


@scenarios
async def many(ends: Ends) -> None:
    """
    A hundred connects in one turn: each has its own end and its own number.
    """
    servers: list[Any] = []
    _, number = ends.listen(_quiet(lambda: servers.append(Protocol()) or servers[-1]))
    made: list[Any] = []
    for _ in range(100):
        connectProtocol(TCP4ClientEndpoint(ends.reactor, HOST, number), Protocol()).addCallback(made.append)
    await ends.until(lambda: len(made) == len(servers) == 100)
    ours = {each.transport.getHost().port for each in made}
    ends.say("numbers", len(ours), ours == {each.transport.getPeer().port for each in servers})
    for each in made:
        each.transport.loseConnection()
    await ends.until(lambda: not any(each.transport.connected for each in servers))
