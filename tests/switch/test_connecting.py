"""
Connecting through the switch, in a reactor of its own.
"""

from __future__ import annotations

import os
from typing import Any

from twisted.internet import error, ssl, tcp
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import ISystemHandle, ITCPTransport, ITLSTransport
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from zope.interface.verify import verifyObject

from tests.support.certificates import selfSigned
from tests.switch.case import Client, Server, SwitchTestsBuilder
from twisted_ib.errors import PathLostError
from twisted_ib.internet.readers import channelsOf
from twisted_ib.sdp.port import connectSDP, listenSDP
from twisted_ib.switch import offload
from twisted_ib.switch.switch import direct, explain


class ConnectingTests(SwitchTestsBuilder):
    """
    C{connectTCP} of the C{ib} reactor, and what goes around the switch.
    """

    def test_connected(self) -> None:
        """
        A connector has its transport, and ends with it.
        """

        async def scenario(reactor: Any) -> None:
            factory, client = Server(), Client()
            port = reactor.listenTCP(0, factory, interface="127.0.0.1")
            connector = reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            self.assertEqual((connector.state, client.log), ("connecting", []))
            await client.done
            transport = client.answer.transport
            self.assertEqual((connector.state, connector.transport), ("connected", transport))
            self.assertIs(transport.connector, connector)
            self.assertEqual(transport.getPeer(), port.getHost())
            for interface in (ISystemHandle, ITCPTransport, ITLSTransport):
                verifyObject(interface, transport)
            handle = transport.getHandle()
            self.assertEqual(handle.getpeername(), ("127.0.0.1", port.getHost().port))
            self.assertIs(transport.getHandle(), handle)
            self.assertIs(transport.socket, handle)
            why = explain(transport)
            self.assertIs(explain(connector), why)
            self.assertTrue(why.asked <= why.decided <= why.connected)
            connector.disconnect()
            await client.lost
            self.assertEqual(client.log, ["build", "made", "lost"])
            self.assertEqual(connector.state, "disconnected")

        self.play(scenario)

    def attempted(self) -> Deferred[Any]:
        """
        @return: Fires with the first attempt over SDP when it is about to send its REQ, which it does
            not do then.
        """
        found: Deferred[Any] = Deferred()
        self.patch(offload._SwitchedAttempt, "pathReady", lambda attempt, _: found.callback(attempt))
        return found

    def test_closed(self) -> None:
        """
        The end of a connection is worded as TCP's is.
        """

        async def scenario(reactor: Any) -> None:
            texts = []
            for listen in (reactor, direct(reactor)):
                factory, client = Server(), Client()
                port = listen.listenTCP(0, factory, interface="127.0.0.1")
                made = factory.next()
                reactor.connectTCP("127.0.0.1", port.getHost().port, client)
                server = await made
                await client.done
                texts.append([explain(server.transport).provider])
                lost: Deferred[None] = Deferred()
                for each in (server, client.answer):
                    each.connectionLost = lambda reason, said=texts[-1]: said.append(str(reason.value))
                client.clientConnectionLost = lambda connector, reason, lost=lost: lost.callback(None)
                server.transport.loseConnection()
                await lost
            self.assertEqual([each[0] for each in texts], ["sdp", "tcp"])
            self.assertEqual(set(texts[0][1:]), set(texts[1][1:]))

        self.play(scenario)

    def test_certain(self) -> None:
        """
        Where the rules leave everything to TCP the rule is known all the same, also when there are others
        later.
        """
        for several, where in ((False, 2), (True, 3)):
            special = "use tcp connect * 10.0.0.0/8:*\n" if several else ""
            self.rules(f"use tcp listen * *:*\n{special}use tcp connect * *:*\n")

            async def scenario(reactor: Any, where: int = where) -> None:
                factory, client = Server(), Client()
                port = reactor.listenTCP(0, factory, interface="127.0.0.1")
                made = factory.next()
                connector = reactor.connectTCP("127.0.0.1", port.getHost().port, client)
                await client.done
                await made
                self.rules("use both listen * *:*\n")
                self.assertTrue(reactor.switch.configuration.reload())
                things = (port, factory.made[0].transport, connector, client.answer.transport)
                found = [explain(each) for each in things]
                self.assertEqual({(each.provider, each.verdict) for each in found}, {("tcp", "tcp")})
                lines = [each.rule.rpartition(":")[2] for each in found]
                self.assertEqual(lines, ["1", "1", str(where), str(where)])
                self.assertEqual([reactor.whyOf(each).rule for each in things], [each.rule for each in found])

            self.play(scenario)

    def test_stopConnecting(self) -> None:
        """
        A connector that is stopped while SDP is tried is notified once, and nothing goes on.
        """
        attempted = self.attempted()

        async def scenario(reactor: Any) -> None:
            factory, client = Server(), Client()
            calls = reactor.getDelayedCalls()
            port = reactor.listenTCP(0, factory, interface="127.0.0.1")
            connector = reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            await attempted
            connector.stopConnecting()
            self.assertIsInstance(client.reason, error.UserError)
            await deferLater(reactor, 0.05, lambda: None)
            self.assertEqual((client.log, factory.made), (["failed"], []))
            await port.stopListening()
            self.assertCountEqual(reactor.getDelayedCalls(), calls)

        self.play(scenario)

    def test_fallback(self) -> None:
        """
        Whatever ends the attempt over SDP, TCP carries the connection, which is made once.
        """
        attempted = self.attempted()

        async def scenario(reactor: Any) -> None:
            client = Client()
            port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
            reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            (await attempted).pathLost(PathLostError("it went"))
            self.assertEqual(await client.done, "made")
            why = explain(client.answer.transport)
            self.assertEqual((why.provider, str(why.fallback)[-7:]), ("tcp", "it went"))
            self.assertEqual(client.log, ["build", "made"])
            self.assertEqual(reactor.switch.counters["switch_fallback_failed"], 1)

        self.play(scenario)

    def test_offeredNoMore(self) -> None:
        """
        A server that has not answered, and offers SDP no more, is not waited for: TCP carries the connection.
        One look alone says nothing.
        """
        attempted, looks = self.attempted(), []
        stands = offload.Offload.stands

        def looking(each: offload.Offload) -> bool:
            looks.append(stands(each))
            # The first finds what is about to be again.
            return looks[-1] and len(looks) > 1

        async def scenario(reactor: Any) -> None:
            client = Client()
            port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
            reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            await attempted
            self.patch(offload.Offload, "stands", looking)
            while len(looks) < 3:
                await deferLater(reactor, 0.01, lambda: None)
            self.assertEqual((client.log, looks), ([], [True] * 3))
            port._closeCompanions(Failure(error.ConnectionDone()))
            self.assertEqual(await client.done, "made")
            self.assertEqual(looks[-2:], [False] * 2)
            self.assertEqual(looks.count(False), 2)
            why = explain(client.answer.transport)
            self.assertEqual((why.provider, why.fallback.kind), ("tcp", "refused"))
            # It did not cost its time.
            self.assertNotIn("switch_fallback_timeout", reactor.switch.counters)
            await port.stopListening()

        self.play(scenario)

    def test_noFallback(self) -> None:
        """
        Under a rule C{sdp} the reason of the last attempt is the connect's: its type where it is an error of
        connects, and its words, without those of a TCP that was not asked.
        """
        self.rules("use sdp connect * *:*\n")

        async def scenario(reactor: Any) -> None:
            port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
            for reason, text in (
                (error.TCPTimedOutError(110, "it is silent"), ": 110: SDP: it is silent."),
                (error.ConnectionRefusedError(111, "nobody is there"), ": 111: SDP: nobody is there."),
            ):
                client, attempted = Client(), self.attempted()
                reactor.connectTCP("127.0.0.1", port.getHost().port, client)
                (await attempted).failIfNotConnected(reason)
                self.assertEqual(await client.done, "failed")
                self.assertIs(type(client.reason), type(reason))
                self.assertEqual(str(client.reason)[-len(text) :], text)

        self.play(scenario)

    def test_gone(self) -> None:
        """
        A server that has gone between the look and the REQ is not asked.
        """
        search = offload._SwitchedAttempt._reach

        async def scenario(reactor: Any) -> None:
            client, sdp = Client(), Server()
            port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
            number = port.getHost().port

            def searching(attempt: Any, channel: Any) -> Any:
                port.connectionLost(Failure(error.ConnectionDone()))
                listenSDP(reactor, number, sdp, interface="127.0.0.1")
                return search(attempt, channel)

            self.patch(offload._SwitchedAttempt, "_reach", searching)
            reactor.connectTCP("127.0.0.1", number, client)
            self.assertEqual(await client.done, "failed")
            self.assertIsInstance(client.reason, error.ConnectionRefusedError)
            self.assertIn("nobody listens", str(client.reason))
            self.assertEqual(sdp.made, [])

        self.play(scenario)

    def test_reactorStops(self) -> None:
        """
        A reactor that stops while SDP is tried begins no TCP.
        """
        attempted = self.attempted()
        client = Client()

        async def scenario(reactor: Any) -> None:
            port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
            reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            await attempted

        self.play(scenario)
        self.assertEqual(client.log, ["failed"])

    def test_reactorStopsSoon(self) -> None:
        """
        Also if it stops before SDP has begun, the connector is notified, once.
        """
        for turns in range(3):
            client = Client()

            async def scenario(reactor: Any, client: Client = client, turns: int = turns) -> None:
                port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
                reactor.connectTCP("127.0.0.1", port.getHost().port, client)
                for _ in range(turns):
                    await deferLater(reactor, 0, lambda: None)

            self.play(scenario)
            self.assertEqual(client.log, ["failed"])

    def test_factoryRaises(self) -> None:
        """
        A factory that makes no protocol, or raises, is asked once.
        """

        async def scenario(reactor: Any) -> None:
            port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
            number = port.getHost().port
            client = Client()
            client.answer = ZeroDivisionError("a factory's own")
            connector = reactor.connectTCP("127.0.0.1", number, client)
            self.assertEqual(await client.done, "failed")
            self.assertEqual((client.log, connector.state), (["build", "failed"], "disconnected"))
            nothing = Client()
            nothing.answer = None
            reactor.connectTCP("127.0.0.1", number, nothing)
            await nothing.lost
            self.assertEqual(nothing.log, ["build", "lost"])

        self.play(scenario)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_noDevice(self) -> None:
        """
        A client whose device fails in an unexpected way uses TCP.
        """

        async def scenario(reactor: Any) -> None:
            port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
            client = Client()

            def broken(*_: Any, **__: Any) -> None:
                raise OSError(24, "Too many open files")

            (channel,) = channelsOf(reactor)
            channel.device.fabric.reach = broken
            reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            self.assertEqual(await client.done, "made")
            why = explain(client.answer.transport)
            self.assertEqual((why.provider, str(why.fallback)[-19:]), ("tcp", "Too many open files"))

        self.play(scenario)
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)

    def test_secure(self) -> None:
        """
        TLS goes through the switch, and is looked through.
        """
        options, _ = selfSigned(os.path.join(self.folder, "keys"), "localhost")

        async def scenario(reactor: Any) -> None:
            client = Client()
            port = reactor.listenSSL(0, Server(), options, interface="127.0.0.1")
            plain = ssl.CertificateOptions()
            reactor.connectSSL("127.0.0.1", port.getHost().port, client, plain)
            self.assertEqual(await client.done, "made")
            self.assertEqual(explain(client.answer.transport).provider, "sdp")

        self.play(scenario)

    def test_direct(self) -> None:
        """
        The way around the switch: calls, TLS and endpoint strings; the reactor's other calls are there.
        """
        options, _ = selfSigned(os.path.join(self.folder, "keys"), "localhost")

        async def scenario(reactor: Any) -> None:
            around = direct(reactor)
            self.assertIs(direct(around), around)
            self.assertEqual(around.callLater, reactor.callLater)
            factory = Server()
            endpoint = serverFromString(reactor, "direct:0:interface=127.0.0.1:backlog=5")
            ports: list[Any] = [
                around.listenTCP(0, factory, interface="127.0.0.1"),
                around.listenSSL(0, factory, options, interface="127.0.0.1"),
                await endpoint.listen(factory),
            ]
            self.assertEqual([type(port) for port in ports], [tcp.Port] * 3)
            for each in ports:
                self.assertEqual((explain(each).rule, explain(each).provider), ("explicit", "tcp"))
            self.assertFalse(os.path.exists(self.run_))
            both = reactor.listenTCP(0, factory, interface="127.0.0.1").getHost().port
            clients = [Client(), Client(), Client()]
            around.connectTCP("127.0.0.1", both, clients[0])
            around.connectSSL("127.0.0.1", ports[1].getHost().port, clients[1], ssl.CertificateOptions())
            endpoint = clientFromString(reactor, f"direct:localhost:{both}:timeout=5")
            await endpoint.connect(clients[2])
            for client in clients:
                await client.done
                why = explain(client.answer.transport)
                self.assertEqual((why.rule, why.provider), ("explicit", "tcp"))

        self.play(scenario)

    def test_names(self) -> None:
        """
        Connections asked for by name are explained so.
        """

        async def scenario(reactor: Any) -> None:
            port = listenSDP(reactor, 0, Server(), interface="127.0.0.1")
            client = Client()
            connectSDP(reactor, "127.0.0.1", port.getHost().port, client)
            await client.done
            for each in (port, client.answer.transport):
                why = explain(each)
                self.assertEqual((why.rule, why.provider), ("explicit", "sdp"))

        self.play(scenario)

    def test_reloaded(self) -> None:
        """
        New rules are for what is asked next, and bring and take devices.
        """
        self.rules("use both listen * *:*\n")

        async def scenario(reactor: Any) -> None:
            port = reactor.listenTCP(0, Server())
            number = port.getHost().port
            self.rules("device shm8 shm\nuse both listen * *:*\nuse tcp connect * *:*\n")
            self.assertTrue(reactor.switch.configuration.reload())
            self.assertEqual(explain(port).device, "shm0,shm8")
            client = Client()
            reactor.connectTCP("127.0.0.1", number, client)
            await client.done
            self.assertIs(type(client.answer.transport), tcp.Client)
            self.rules("use both listen * *:*\n")
            self.assertTrue(reactor.switch.configuration.reload())
            self.assertEqual(explain(port).device, "shm0")

        self.play(scenario)


globals().update(ConnectingTests.makeTestCaseClasses())
del ConnectingTests
