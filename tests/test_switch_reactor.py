"""
The switch in a reactor of its own, whose servers and clients are in one process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any
from unittest import mock

from twisted.internet import error, ssl, tcp
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import IReactorTCP, ISystemHandle, ITCPTransport, ITLSTransport
from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted.internet.task import deferLater
from twisted.internet.tcp import makeBinding
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.certificates import selfSigned
from tests.descriptors import runForked
from twisted_ib import limits
from twisted_ib.errors import PathLostError, ServiceInUseError
from twisted_ib.hca.channel import channelsOf
from twisted_ib.hca.fabric import rendezvous
from twisted_ib.hca.fabric.rendezvous import Rendezvous
from twisted_ib.hca.rdma.port import listenRDMA
from twisted_ib.reactor import listening, offload
from twisted_ib.reactor.switch import direct, explain
from twisted_ib.sdp.port import connectSDP, listenSDP

Scenario = Callable[[Any], Coroutine[Any, Any, None]]


class Server(Factory):
    """
    Counts.

    @ivar starts: How often it was started.
    @ivar stops: How often it was stopped.
    @ivar made: The protocols.
    """

    noisy = False

    def __init__(self) -> None:
        """
        Nothing yet.
        """
        self.starts = self.stops = 0
        self.made: list[Any] = []
        self.waiting: list[Deferred[Any]] = []

    def startFactory(self) -> None:
        """
        Count.
        """
        self.starts += 1

    def stopFactory(self) -> None:
        """
        Count.
        """
        self.stops += 1

    def buildProtocol(self, addr: Any) -> Any:
        """
        One that is kept.
        """
        made: Any = Protocol()
        made.connectionMade = lambda: self._made(made)
        return made

    def _made(self, made: Any) -> None:
        """
        One more.
        """
        self.made.append(made)
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each.callback(made)

    def next(self) -> Deferred[Any]:
        """
        @return: Fires with the next one.
        """
        found: Deferred[Any] = Deferred()
        self.waiting.append(found)
        return found


class Client(ClientFactory):
    """
    Writes down what it is told.
    """

    noisy = False

    def __init__(self) -> None:
        """
        Nothing yet.
        """
        self.log: list[Any] = []
        self.done: Deferred[str] = Deferred()
        self.lost: Deferred[None] = Deferred()
        self.answer: Any = Protocol()

    def buildProtocol(self, addr: Any) -> Any:
        """
        The answer, or what it raises.
        """
        self.log.append("build")
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            self.answer.connectionMade = lambda: self._said("made")
        return self.answer

    def _said(self, what: str) -> None:
        """
        The first that happens fires C{done}.
        """
        self.log.append(what)
        if not self.done.called:
            self.done.callback(what)

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        """
        It did not work.
        """
        self.reason: Any = reason.value
        self._said("failed")

    def clientConnectionLost(self, connector: Any, reason: Failure) -> None:
        """
        It is over.
        """
        self.log.append("lost")
        self.lost.callback(None)


class SwitchTests(ReactorBuilder):
    """
    C{listenTCP} and C{connectTCP} of the C{ib} reactor without rules.
    """

    _reactors = ["twisted_ib.reactor.ibreactor.IBReactor"]
    timeout = 20

    def setUp(self) -> None:
        """
        A run directory and a configuration of our own.
        """
        self.folder = tempfile.mkdtemp(prefix="tib-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.run_ = os.path.join(self.folder, "run")
        patched = mock.patch.dict(os.environ, {"TWISTED_IB_RUN_DIR": self.run_, "HOME": self.folder})
        patched.start()
        self.addCleanup(patched.stop)
        for name in ("TWISTED_IB_CONFIG", "XDG_CONFIG_HOME", "SIMPLE_LIBSDP", "ALWAYS_USE_SDP"):
            os.environ.pop(name, None)

    def rules(self, text: str) -> None:
        """
        Have rules.
        """
        path = os.path.join(self.folder, "rules")
        with open(path, "w") as file:
            file.write(text)
        os.environ["TWISTED_IB_CONFIG"] = path

    def play(self, scenario: Scenario) -> None:
        """
        Run a scenario in a reactor.
        """
        reactor = self.buildReactor()
        failed: list[Failure] = []

        def begin() -> None:
            done = Deferred.fromCoroutine(scenario(reactor))
            done.addErrback(failed.append)
            done.addBoth(lambda _: reactor.stop())

        reactor.callWhenRunning(begin)
        self.runReactor(reactor)
        if failed:
            failed[0].raiseException()

    def services(self) -> list[str]:
        """
        @return: What is published.
        """
        return [name for name in os.listdir(self.run_) if name.startswith("svc-")]

    # -- listening

    def test_port(self) -> None:
        """
        One port over both, which starts and stops its factory once and takes everything along.
        """

        async def scenario(reactor: Any) -> None:
            verifyObject(IReactorTCP, reactor)
            factory = Server()
            port = reactor.listenTCP(0, factory, interface="127.0.0.1")
            self.assertIsInstance(port, tcp.Port)
            number = port.getHost().port
            self.assertEqual((explain(port).provider, explain(port).device), ("both", "shm0"))
            (service,) = self.services()
            link = os.readlink(os.path.join(self.run_, service))
            self.assertTrue(link.endswith(f".tcp-{os.fstat(port.fileno()).st_ino}"))
            self.assertIn(f"{0x10000 + number:016x}", service)
            self.assertIn(port, reactor.getReaders())
            await port.stopListening()
            self.assertEqual((factory.starts, factory.stops, self.services()), (1, 1, []))
            self.assertNotIn(port, reactor.getReaders())
            port.startListening()
            self.assertEqual(len(self.services()), 1)
            await port.stopListening()

        self.play(scenario)

    def test_paused(self) -> None:
        """
        A port that does not read accepts from nobody.
        """

        async def scenario(reactor: Any) -> None:
            factory, client = Server(), Client()
            port = reactor.listenTCP(0, factory, interface="127.0.0.1")
            port.stopReading()
            reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            await deferLater(reactor, 0.1, lambda: None)
            self.assertEqual((factory.made, client.log), ([], []))
            port.startReading()
            await client.done
            self.assertEqual(explain(client.answer.transport).provider, "sdp")
            await port.stopListening()

        self.play(scenario)

    def test_numbers(self) -> None:
        """
        Connections are numbered over all providers, and belong to the port.
        """

        async def scenario(reactor: Any) -> None:
            factory = Server()
            port = reactor.listenTCP(0, factory, interface="127.0.0.1")
            for connect in (reactor.connectTCP, direct(reactor).connectTCP) * 2:
                accepted = factory.next()
                connect("127.0.0.1", port.getHost().port, Client())
                await accepted
            transports = [each.transport for each in factory.made]
            self.assertEqual([each.sessionno for each in transports], [0, 1, 2, 3])
            self.assertEqual([explain(each).provider for each in transports], ["sdp", "tcp"] * 2)
            self.assertEqual({each.server for each in transports}, {port})

        self.play(scenario)

    def test_busy(self) -> None:
        """
        Where a number is free for TCP only another one is taken; if there is none TCP has to do.
        """
        publish = Rendezvous.publish
        refusals = [True, True]

        def sometimes(this: Any, *arguments: Any) -> None:
            if refusals and refusals.pop():
                raise ServiceInUseError("taken")
            publish(this, *arguments)

        self.patch(Rendezvous, "publish", sometimes)

        async def scenario(reactor: Any) -> None:
            factory = Server()
            port = reactor.listenTCP(0, factory)
            self.assertEqual((explain(port).provider, refusals), ("both", []))
            refusals.extend([True] * 100)
            self.patch(limits, "PORT_ATTEMPTS", 3)
            port = reactor.listenTCP(0, factory)
            self.assertEqual((explain(port).provider, len(refusals)), ("tcp", 97))
            self.assertEqual(factory.starts, 1)

        self.play(scenario)

    def test_anyTrouble(self) -> None:
        """
        Whatever a device has, a program that asks for TCP gets TCP.
        """

        def broken(*_: Any) -> None:
            raise ZeroDivisionError("a device's own")

        self.patch(listening.Companion, "startListening", broken)

        async def scenario(reactor: Any) -> None:
            client = Client()
            port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
            self.assertEqual(explain(port).provider, "tcp")
            self.assertIn("a device's own", str(explain(port).fallback))
            reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            self.assertEqual(await client.done, "made")

        self.play(scenario)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_closedWithEverything(self) -> None:
        """
        A reactor that closes everything closes ports of either kind once.
        """
        factories = [Server(), Server()]
        self.rules("use sdp listen * *:7301\n")

        async def scenario(reactor: Any) -> None:
            reactor.listenTCP(0, factories[0])
            reactor.listenTCP(7301, factories[1])

        self.play(scenario)
        self.assertEqual([(each.starts, each.stops) for each in factories], [(1, 1), (1, 1)])

    def test_noPort(self) -> None:
        """
        Under a rule C{sdp}, too, a connect to port 0 is refused in TCP's words.
        """
        self.rules("use sdp connect * *:*\n")

        async def scenario(reactor: Any) -> None:
            client = Client()
            reactor.connectTCP("127.0.0.1", 0, client)
            self.assertEqual(await client.done, "failed")
            self.assertIsInstance(client.reason, error.ConnectionRefusedError)
            self.assertEqual(client.reason.args, ("Connection refused",))

        self.play(scenario)

    def test_alone(self) -> None:
        """
        Under a rule C{sdp} there is no TCP socket, but what is like one.
        """
        self.rules("use sdp listen * *:*\n")

        async def scenario(reactor: Any) -> None:
            factory, client = Server(), Client()
            port = reactor.listenTCP(0, factory, interface="127.0.0.1")
            number = port.getHost().port
            self.assertEqual((port.fileno(), port.socket.getsockname()), (-1, ("127.0.0.1", number)))
            self.assertNotIn(port, reactor.getReaders())
            reactor.connectTCP("127.0.0.1", number, client)
            self.assertEqual(await client.done, "failed")
            self.assertIsInstance(client.reason, error.ConnectionRefusedError)
            accepted = factory.next()
            connectSDP(reactor, "127.0.0.1", number, Client())
            await accepted
            self.assertRaises(error.CannotListenError, reactor.listenTCP, number, factory, 50, "127.0.0.1")
            await port.stopListening()
            self.assertEqual((factory.starts, factory.stops), (1, 1))

        self.play(scenario)

    def test_bindings(self) -> None:
        """
        A C{Binding} stands for a port and an address in all calls.
        """

        async def scenario(reactor: Any) -> None:
            factory = Server()
            ports = [
                reactor.listenTCP(makeBinding("127.0.0.1", 0, reuseAddress=True), factory),
                listenSDP(reactor, makeBinding("127.0.0.1", 0), factory),
                listenRDMA(reactor, makeBinding("127.0.0.1", 0), factory),
            ]
            self.assertEqual([port.getHost().host for port in ports], ["127.0.0.1"] * 3)
            for listen in (listenSDP, listenRDMA):
                binding = makeBinding("127.0.0.1", 0)
                self.assertRaises(ValueError, listen, reactor, binding, factory, interface="127.0.0.2")
            number = ports[1].getHost().port
            client: Any = Client()
            connectSDP(reactor, "127.0.0.1", number, client, bindAddress=makeBinding("127.0.0.1", 50123))
            await client.done
            self.assertEqual(client.answer.transport.getHost().port, 50123)

        self.play(scenario)

    def test_counters(self) -> None:
        """
        A device shows the counters that count most, and of a long name its end: what it says of itself
        is bounded.
        """
        path = "/" + "x" * 200 + "/rules:7"

        async def scenario(reactor: Any) -> None:
            reactor.listenTCP(0, Server())
            (channel,) = channelsOf(reactor)
            counters = reactor.switch.counters
            for number in range(100):
                counters[f"switch_rule_{number}"] = 1000 + number
            shown = [name for name in channel.device.statistics() if name.startswith("switch_")]
            self.assertEqual(len(shown), limits.SWITCH_COUNTERS_SHOWN)
            self.assertIn("switch_rule_99", shown)
            decision = mock.Mock(where=path)
            self.patch(reactor.switch.configuration, "decide", lambda *_: decision)
            reactor.switch.decide("listen", "", 0)
            self.assertEqual(counters["switch_rule_" + path[-limits.SWITCH_COUNTER_NAME :]], 1)

        self.play(scenario)

    # -- connecting

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
        self.patch(offload._SwitchedAttempt, "_ask", lambda attempt: found.callback(attempt))
        return found

    def test_stopConnecting(self) -> None:
        """
        Who gives up while SDP is tried is told once, and nothing goes on.
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
            self.assertEqual(reactor.getDelayedCalls(), calls)

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

    def test_gone(self) -> None:
        """
        A server that has gone between the look and the REQ is not asked.
        """
        search = offload._SwitchedAttempt._search

        async def scenario(reactor: Any) -> None:
            client, sdp = Client(), Server()
            port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
            number = port.getHost().port

            def searching(attempt: Any, channel: Any) -> Any:
                port.connectionLost(Failure(error.ConnectionDone()))
                listenSDP(reactor, number, sdp, interface="127.0.0.1")
                return search(attempt, channel)

            self.patch(offload._SwitchedAttempt, "_search", searching)
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
        A client whose device fails as nobody has thought of has TCP.
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
        What was asked for by name says so.
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


class ForkTests(SynchronousTestCase):
    """
    Nothing here may keep a device of another process.
    """

    def test_forked(self) -> None:
        """
        The devices of a forked child are its parent's; C{_served} is empty there.
        """
        rendezvous._served["a", "b"] = []
        self.addCleanup(rendezvous._served.clear)

        def child() -> None:
            assert not rendezvous._served

        self.assertEqual(runForked(child), 0)


globals().update(SwitchTests.makeTestCaseClasses())
del SwitchTests
