"""
Services, and sockets that come from elsewhere, under the C{ib} reactor.
"""

from __future__ import annotations

import os
import socket
from stat import S_ISSOCK
from typing import Any

from twisted.application.internet import ClientService, StreamServerEndpointService
from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.epollreactor import EPollReactor

from tests.switch.case import Client, Server, SwitchTestsBuilder
from twisted_ib.reactor.ibreactor import IBReactor
from twisted_ib.switch.switch import direct, explain


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

    def listening(self, family: int = socket.AF_INET, host: str = "127.0.0.1") -> socket.socket:
        """
        @return: A socket that listens, as systemd or a parent process hands one over.
        """
        skt = socket.socket(family)
        self.addCleanup(skt.close)
        skt.bind((host, 0))
        skt.listen()
        skt.setblocking(False)
        return skt

    def test_adopted(self) -> None:
        """
        A port of C{adoptStreamPort} offers SDP on its socket's address, until it stops; the socket goes on
        listening for who else has it (issue 16, point 3).
        """

        async def scenario(reactor: Any) -> None:
            for family, host in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"):
                factory, client, skt = Server(), Client(), self.listening(family, host)
                port = reactor.adoptStreamPort(skt.fileno(), family, factory)
                self.assertEqual((explain(port).provider, explain(port).rule), ("both", "default"))
                self.assertEqual(port.getHost().port, skt.getsockname()[1])
                (service,) = self.services()
                link = os.readlink(os.path.join(self.run_, service))
                self.assertTrue(link.endswith(f".tcp-{os.fstat(skt.fileno()).st_ino}"))
                made = factory.next()
                connector = reactor.connectTCP(host, port.getHost().port, client)
                await made
                await client.done
                self.assertEqual(explain(client.answer.transport).provider, "sdp")
                connector.disconnect()
                await client.lost
                await port.stopListening()
                self.assertEqual((factory.starts, factory.stops, self.services()), (1, 1, []))
                client = Client()
                reactor.connectTCP(host, skt.getsockname()[1], client)
                self.assertEqual(await client.done, "made")
                self.assertEqual(explain(client.answer.transport).provider, "tcp")

        self.play(scenario)

    def test_adoptedByRule(self) -> None:
        """
        Rules, and a program that wants none, decide for an adopted socket too; it stays a TCP listener, whose
        clients would wait for ever otherwise.
        """
        self.rules("use tcp listen * 127.0.0.1:*\nuse sdp listen * 127.0.0.2:*\n")

        async def scenario(reactor: Any) -> None:
            skt = self.listening()
            adopt = skt.fileno(), socket.AF_INET, Server()
            why = explain(reactor.adoptStreamPort(*adopt))
            self.assertEqual((why.provider, why.verdict), ("tcp", "tcp"))
            self.assertTrue(why.rule.endswith("rules:1"), why.rule)
            why = explain(direct(reactor).adoptStreamPort(*adopt))
            self.assertEqual((why.provider, why.rule), ("tcp", "explicit"))
            skt = self.listening(host="127.0.0.2")
            port = reactor.adoptStreamPort(skt.fileno(), socket.AF_INET, Server())
            why = explain(port)
            self.assertEqual((why.provider, why.verdict, port.fileno() < 0), ("both", "both", False))
            self.assertTrue(why.rule.endswith("rules:2"), why.rule)
            self.rules("use tcp listen * *:*\n")
            reactor.switch.configuration.reload()
            self.assertTrue(reactor.switch.configuration.tcpOnly("listen"))
            why = explain(reactor.adoptStreamPort(*adopt))
            self.assertEqual((why.provider, why.verdict), ("tcp", "tcp"))
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
                self.assertRaises(
                    error.UnsupportedAddressFamily,
                    reactor.adoptStreamPort,
                    other.fileno(),
                    socket.AF_APPLETALK,
                    Server(),
                )

        self.play(scenario)

    def test_adoptedConnection(self) -> None:
        """
        C{adoptStreamConnection} is TCP.
        """

        async def scenario(reactor: Any) -> None:
            factory, client = Server(), Client()
            port = direct(reactor).listenTCP(0, factory, interface="127.0.0.1")
            made = factory.next()
            reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            server = await made
            await client.done
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
            if not S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
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
        for name in ("listenUDP", "listenMulticast", "listenUNIX", "connectUNIX", "adoptStreamConnection"):
            self.assertIs(getattr(IBReactor, name), getattr(EPollReactor, name), name)


globals().update(ServiceTests.makeTestCaseClasses())
globals().update(UntouchedTests.makeTestCaseClasses())
del ServiceTests, UntouchedTests
