"""
Services, and sockets that come from elsewhere, under the C{ib} reactor.
"""

from __future__ import annotations

import socket
from typing import Any

from twisted.application.internet import ClientService, StreamServerEndpointService
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString

from tests.switch_case import Client, Server, SwitchTestsBuilder
from twisted_ib.reactor.switch import explain


class ServiceTests(SwitchTestsBuilder):
    """
    What twistd's plugins are made of.
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
        C{adoptStreamPort} and C{adoptStreamConnection} are TCP, and so is who connects to such a port.
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


globals().update(ServiceTests.makeTestCaseClasses())
del ServiceTests
