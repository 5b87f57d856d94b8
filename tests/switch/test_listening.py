"""
Listening through the switch, in a reactor of its own.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any
from unittest import mock

from twisted.internet import error, tcp
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTCP
from twisted.trial.unittest import SkipTest
from zope.interface.verify import verifyObject

from tests.internet.twistedapi import NO_BINDINGS, makeBinding
from tests.support.ownaddress import ownAddress
from tests.switch.case import Client, Server, SwitchTestsBuilder
from twisted_ib import limits
from twisted_ib.errors import ServiceInUseError
from twisted_ib.hca.device import device
from twisted_ib.hca.device.device import addDevice, removeDevice
from twisted_ib.hca.host.rendezvous import Rendezvous
from twisted_ib.internet.addressing import localports
from twisted_ib.internet.addressing.addresses import FIRST_EPHEMERAL_PORT
from twisted_ib.internet.readers import channelsOf
from twisted_ib.rdma.port import listenRDMA
from twisted_ib.sdp.port import connectSDP, listenSDP
from twisted_ib.switch import listeners, listening, switch
from twisted_ib.switch.switch import direct, explain


class ListeningTests(SwitchTestsBuilder):
    """
    C{listenTCP} of the C{ib} reactor.
    """

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

    def test_order(self) -> None:
        """
        The device is open before the socket is bound, and the socket listens after the service is
        published: a client that waits for the port is refused until it gets SDP (issue 16, point 2).
        """
        steps: list[str] = []

        def spy(owner: Any, name: str, step: str) -> None:
            original = getattr(owner, name)

            def called(this: Any, *arguments: Any, **named: Any) -> Any:
                steps.append(step)
                return original(this, *arguments, **named)

            self.patch(owner, name, called)

        def publish(this: Any, service: int, *arguments: Any) -> None:
            with socket.socket() as client:
                refused = client.connect_ex(("127.0.0.1", service & 0xFFFF)) == errno.ECONNREFUSED
            steps.append("publish, refused" if refused else "publish")
            original(this, service, *arguments)

        original = Rendezvous.publish
        self.patch(Rendezvous, "publish", publish)
        spy(Rendezvous, "__init__", "open")
        spy(listening.SwitchedPort, "createInternetSocket", "bind")

        async def scenario(reactor: Any) -> None:
            with socket.socket() as skt:
                skt.bind(("127.0.0.1", 0))
                number = skt.getsockname()[1]
            port = reactor.listenTCP(number, Server(), interface="127.0.0.1")
            self.assertEqual(explain(port).provider, "both")
            self.assertEqual(steps, ["open", "bind", "publish, refused"])
            client = Client()
            direct(reactor).connectTCP("127.0.0.1", number, client)
            self.assertEqual(await client.done, "made")

        self.play(scenario)

    def test_cannotListen(self) -> None:
        """
        Where another socket listens meanwhile nothing stays published.
        """
        publish = Rendezvous.publish

        async def scenario(reactor: Any) -> None:
            factory = Server()
            with socket.socket() as rival:
                rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                rival.bind(("127.0.0.1", 0))

                def outrun(this: Any, *arguments: Any) -> None:
                    rival.listen()
                    publish(this, *arguments)

                self.patch(Rendezvous, "publish", outrun)
                number = rival.getsockname()[1]
                failed = self.assertRaises(
                    error.CannotListenError, reactor.listenTCP, number, factory, 50, "127.0.0.1"
                )
            self.assertEqual(failed.socketError.errno, errno.EADDRINUSE)
            self.assertEqual((self.services(), factory.starts), ([], 0))

        self.play(scenario)

    def test_peers(self) -> None:
        """
        No two connections of a port have the same peer, as with TCP: a client whose number a
        client in another process has must draw another; one that has bound it falls back to TCP.
        """
        draws = [5, 5, 6]

        async def scenario(reactor: Any) -> None:
            factory = Server()
            port = reactor.listenTCP(0, factory, interface="127.0.0.1")
            number = port.getHost().port
            port.peers["127.0.0.1"] = {FIRST_EPHEMERAL_PORT + 5}  # That of somebody else.
            client = Client()
            made = factory.next()
            connector = reactor.connectTCP("127.0.0.1", number, client)
            self.assertEqual(await client.done, "made")
            await made
            self.assertEqual(draws, [])
            self.assertEqual(factory.made[0].transport.getPeer(), client.answer.transport.getHost())
            self.assertEqual(port.peers, {"127.0.0.1": {FIRST_EPHEMERAL_PORT + each for each in (5, 6)}})
            self.assertEqual(explain(client.answer.transport).provider, "sdp")
            lost: Deferred[Any] = Deferred()
            factory.made[0].connectionLost = lambda reason: lost.callback(None)
            connector.disconnect()
            await lost
            self.assertEqual(port.peers, {"127.0.0.1": {FIRST_EPHEMERAL_PORT + 5}})
            with socket.socket() as skt:
                skt.bind(("127.0.0.1", 0))
                bound = skt.getsockname()
            port.peers["127.0.0.1"].add(bound[1])
            client = Client()
            reactor.connectTCP("127.0.0.1", number, client, bindAddress=bound)
            self.assertEqual(await client.done, "made")
            self.assertEqual(explain(client.answer.transport).provider, "tcp")

        with mock.patch.object(localports, "DrawnAhead", lambda *_: lambda bits: draws.pop(0)):
            self.play(scenario)

    def test_paused(self) -> None:
        """
        A port that does not read accepts no connection: clients wait in TCP's queue, at once and for this
        time only.
        """

        async def scenario(reactor: Any) -> None:
            factory, client = Server(), Client()
            port = reactor.listenTCP(0, factory, interface="127.0.0.1")
            port.stopReading()
            reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            await client.done
            why = explain(client.answer.transport)
            self.assertEqual((why.provider, why.fallback.kind), ("tcp", "refused"))
            self.assertEqual(factory.made, [])
            made = factory.next()
            port.startReading()
            await made
            client = Client()
            reactor.connectTCP("127.0.0.1", port.getHost().port, client)
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

    def test_busyNumber(self) -> None:
        """
        Under a rule C{both} a number that is in use for SDP is in use, on whichever device: nothing is
        listened on then, by TCP neither.
        """
        self.rules("use both listen * *:*\n")
        addDevice("lo5", "loopback")
        self.addCleanup(removeDevice, "lo5")
        start = listeners.SDPListener.startListening
        refusing: list[str] = []

        def sometimes(this: Any) -> None:
            if this.device in refusing:
                reason = OSError(errno.EADDRINUSE, "taken")
                raise error.CannotListenError(this.interface, this.port, reason)
            start(this)

        self.patch(listeners.SDPListener, "startListening", sometimes)

        async def scenario(reactor: Any) -> None:
            port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
            number = port.getHost().port
            self.assertEqual(explain(port).device, "shm0,lo5")
            await port.stopListening()
            for name in ("shm0", "lo5"):
                refusing[:] = [name]
                failure = self.assertRaises(
                    error.CannotListenError, reactor.listenTCP, number, Server(), 50, "127.0.0.1"
                )
                self.assertEqual(failure.socketError.errno, errno.EADDRINUSE)
            refusing.clear()
            port = reactor.listenTCP(number, Server(), interface="127.0.0.1")
            self.assertEqual(explain(port).device, "shm0,lo5")

        self.play(scenario)

    def test_anyTrouble(self) -> None:
        """
        Whatever a device has, a program that asks for TCP gets TCP.
        """

        def broken(*_: Any) -> None:
            raise ZeroDivisionError("a device's own")

        self.patch(listeners.SDPListener, "startListening", broken)

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
            for reusePort in (False, True) if makeBinding else ():
                binding = makeBinding("127.0.0.1", 0, reusePort=reusePort)
                bound = reactor.listenTCP(binding, Server()).socket
                self.assertEqual(bound.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR), 0)
                self.assertEqual(bound.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT), int(reusePort))
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
        if makeBinding is None:
            raise SkipTest(NO_BINDINGS)

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

    def test_addedDevices(self) -> None:
        """
        A device that is added joins the ports that listen on all devices, be they there before or made
        later; one of iWARP, whose TCP ports are the program's own, joins none, at its own address neither.
        """
        address = ownAddress(5)

        async def scenario(reactor: Any) -> None:
            before = reactor.listenTCP(0, Server())
            for name, fabric, at in (("lo5", "loopback", None), ("iwarp5", "iwarp", address)):
                addDevice(name, fabric, at)
                self.addCleanup(removeDevice, name)
            self.assertEqual(explain(before).device, "shm0,lo5")
            for interface in ("", address):
                after = reactor.listenTCP(0, Server(), interface=interface)
                self.assertEqual((explain(after).provider, explain(after).device), ("both", "shm0,lo5"))
            self.assertEqual({each.device.name for each in channelsOf(reactor)}, {"shm0", "lo5"})
            client = Client()
            reactor.connectTCP(address, after.getHost().port, client)
            self.assertEqual(await client.done, "made")
            self.assertNotIn("iwarp5", {each.device.name for each in channelsOf(reactor)})

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
            self.assertEqual(len(shown), device.SWITCH_COUNTERS_SHOWN)
            self.assertIn("switch_rule_99", shown)
            decision = mock.Mock(where=path)
            self.patch(reactor.switch.configuration, "decide", lambda *_: decision)
            reactor.switch.decide("listen", "", 0)
            self.assertEqual(counters["switch_rule_" + path[-switch.SWITCH_COUNTER_NAME :]], 1)
            decision.where = "/\u00e9\u20ac/rules:7"
            reactor.switch.decide("listen", "", 0)
            self.assertEqual(counters["switch_rule_/\\xe9\\u20ac/rules:7"], 1)

        self.play(scenario)


globals().update(ListeningTests.makeTestCaseClasses())
del ListeningTests
