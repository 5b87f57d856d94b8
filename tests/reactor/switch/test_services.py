"""
Services, and sockets that come from elsewhere, under the C{ib} reactor.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from twisted.application.internet import ClientService, StreamServerEndpointService
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.epollreactor import EPollReactor

from tests.reactor.switch.case import Client, Server, SwitchTestsBuilder
from twisted_ib.reactor.ibreactor import IBReactor
from twisted_ib.reactor.switch.switch import explain


class ServiceTests(SwitchTestsBuilder):
    """
    The services that twistd's plugins are made of.
    """

    def test_reconnects(self) -> None:
        """
        A C{ClientService} has SDP, or TCP, as the server has that is there when it connects again.
        """
        found: list[str] = []

        async def scenario(reactor: Any) -> None:
            with socket.socket() as skt:
                skt.bind(("127.0.0.1", 0))
                number = skt.getsockname()[1]
            factory = Server()
            endpoint = clientFromString(reactor, f"tcp:127.0.0.1:{number}")
            connecting = ClientService(endpoint, Server(), retryPolicy=lambda _: 0.01, clock=reactor)
            connecting.startService()
            for kind in ("tcp", "direct", "tcp"):
                listening = serverFromString(reactor, f"{kind}:{number}:interface=127.0.0.1")
                service = StreamServerEndpointService(listening, factory)
                made = factory.next()
                service.startService()
                server = await made
                protocol = await connecting.whenConnected()
                found.append(explain(protocol.transport).provider)
                await service.stopService()
                lost: Deferred[None] = Deferred()
                protocol.connectionLost = lambda reason, lost=lost: lost.callback(None)
                server.transport.loseConnection()
                await lost
            await connecting.stopService()

        self.play(scenario)
        self.assertEqual(found, ["sdp", "tcp", "sdp"])

    def test_adopted(self) -> None:
        """
        C{adoptStreamPort} and C{adoptStreamConnection} are TCP, and so are the connections to such a port.
        """

        async def scenario(reactor: Any) -> None:
            factory, client = Server(), Client()
            with socket.socket() as skt:
                skt.bind(("127.0.0.1", 0))
                skt.listen()
                skt.setblocking(False)
                port = reactor.adoptStreamPort(skt.fileno(), socket.AF_INET, factory)
            self.assertNotIn(port, reactor.switch.ports)
            made = factory.next()
            reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            server = await made
            await client.done
            self.assertEqual(explain(client.answer.transport).provider, "tcp")
            self.assertEqual(explain(client.answer.transport).fallback.kind, "no_listener")
            again = factory.next()
            reactor.adoptStreamConnection(server.transport.fileno(), socket.AF_INET, factory)
            adopted = await again
            self.assertEqual(explain(adopted.transport).provider, "tcp")
            self.assertEqual(adopted.transport.getPeer(), client.answer.transport.getHost())

        self.play(scenario)


def internetSockets() -> set[tuple[Any, ...]]:
    """
    @return: family, type and address of each IP socket of this process.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            # A socket of its own for the same: closing it leaves the other open.
            with socket.socket(fileno=os.dup(int(name))) as skt:
                if skt.family in (socket.AF_INET, socket.AF_INET6):
                    found.add((skt.family, skt.type, *skt.getsockname()))
        except OSError:
            continue
    return found


class UntouchedTests(SwitchTestsBuilder):
    """
    Calls that do not concern the switch.
    """

    def test_nothingElse(self) -> None:
        """
        With the default rules nothing is bound but what the program asked for, also while SDP
        carries a connection.
        """
        before = internetSockets()
        found: list[set[tuple[Any, ...]]] = []

        async def scenario(reactor: Any) -> None:
            factory, client = Server(), Client()
            port = reactor.listenTCP(0, factory, interface="127.0.0.1")
            made = factory.next()
            reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            await made
            await client.done
            self.assertEqual(explain(client.answer.transport).provider, "sdp")
            asked = {(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", port.getHost().port)}
            found.extend((internetSockets() - before, asked))

        self.play(scenario)
        self.assertEqual(*found)

    def test_others(self) -> None:
        """
        UDP and UNIX are the epoll reactor's own.
        """
        for name in ("listenUDP", "listenMulticast", "listenUNIX", "connectUNIX", "adoptStreamPort"):
            self.assertIs(getattr(IBReactor, name), getattr(EPollReactor, name), name)


globals().update(ServiceTests.makeTestCaseClasses())
globals().update(UntouchedTests.makeTestCaseClasses())
del ServiceTests, UntouchedTests
