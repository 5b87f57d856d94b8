"""
Tests for L{twisted_ib.sdp.port}, the passive side, on a fake device.
"""

from __future__ import annotations

import errno
from typing import Any

from twisted.internet import error, main
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IListeningPort
from twisted.python import log
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.sdp.fakes import (
    FakeChannel,
    FakeConnection,
    FakeReactor,
    RaisingProtocol,
    RecordingFactory,
    requestFrom,
)
from twisted_ib import limits
from twisted_ib.errors import (
    NoRouteError,
    ResourceLimitError,
    RunDirectoryError,
    ServiceInUseError,
    UnknownDeviceError,
)
from twisted_ib.hca.connection import RejectReason
from twisted_ib.internet import port as portModule
from twisted_ib.sdp.port import SDPPort, listenSDP
from twisted_ib.sdp.protocol import wire


class PortTestCase(SynchronousTestCase):
    """
    A port on a fake device.
    """

    def setUp(self) -> None:
        """
        Make the device.
        """
        self.reactor = FakeReactor()
        self.channel = FakeChannel(self.reactor)
        self.device = self.channel.device
        self.asked: list[Any] = []
        self.patch(portModule, "channelFor", self.channelFor)
        self.factory = RecordingFactory()
        self.messages: list[str] = []
        log.addObserver(self.observe)
        self.addCleanup(log.removeObserver, self.observe)

    def observe(self, event: Any) -> None:
        """
        Remember a log line.
        """
        self.messages.append(log.textFromEventDict(event) or "")

    def channelFor(self, reactor: Any, device: Any, *where: str) -> Any:
        """
        Give the fake.
        """
        self.asked.append((reactor, device))
        return self.channel

    def listen(self, port: int = 5001, **options: Any) -> SDPPort:
        """
        Listen with the factory.
        """
        listening: Any = listenSDP(self.reactor, port, self.factory, **options)
        return listening  # type: ignore[no-any-return]

    def ask(self, port: SDPPort, number: int = 0, **options: Any) -> FakeConnection:
        """
        Let a client ask for a connection.
        """
        connection = FakeConnection()
        port.connectionRequested(connection, requestFrom("127.0.0.1", 40000 + number, **options))
        return connection


class ListenTests(PortTestCase):
    """
    Tests for taking and giving back a port.
    """

    def test_interface(self) -> None:
        """
        A port provides what Twisted says it does.
        """
        verifyObject(IListeningPort, self.listen())

    def test_listen(self) -> None:
        """
        The device is asked for the port of all IPv4 addresses.
        """
        port = self.listen()
        self.assertEqual(self.asked, [(self.reactor, None)])
        [service] = self.device.services
        self.assertEqual((service.address, service.port, service.listener), ("0.0.0.0", 5001, port))
        self.assertEqual(port.getHost(), IPv4Address("TCP", "0.0.0.0", 5001))
        self.assertEqual(self.channel.users, [port])
        self.assertEqual(self.factory.log, ["start"])
        self.assertEqual(self.messages[0], "RecordingFactory starting on 5001")
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_anyPort(self) -> None:
        """
        Port 0 is any port, and C{getHost} says which.
        """
        port = self.listen(0)
        self.assertEqual(port.port, 0)
        self.assertEqual(port.getHost().port, 50000)
        self.assertEqual(self.messages[0], "RecordingFactory starting on 50000")

    def test_options(self) -> None:
        """
        Interface and device reach the device.
        """
        port = self.listen(interface="::1", device="lo0")
        self.assertEqual(self.asked, [(self.reactor, "lo0")])
        self.assertEqual([s.address for s in self.device.services], ["::1"])
        self.assertEqual(port.getHost(), IPv6Address("TCP", "::1", 5001))

    def test_localhost(self) -> None:
        """
        C{localhost} needs no resolver; any other name is refused.
        """
        self.assertEqual(self.listen(interface="localhost").getHost().host, "127.0.0.1")
        reason = self.assertRaises(error.CannotListenError, self.listen, interface="example.com")
        self.assertEqual(
            str(reason),
            "Couldn't listen on example.com:5001: [Errno 99] 'example.com' is not an IP address.",
        )

    def test_bothFamilies(self) -> None:
        """
        C{::} is all IPv6 and all IPv4 addresses, with one port.
        """
        port = self.listen(0, interface="::")
        self.assertEqual(
            [(s.address, s.port) for s in self.device.services], [("::", 50000), ("0.0.0.0", 50000)]
        )
        self.assertEqual(port.getHost(), IPv6Address("TCP", "::", 50000))

    def test_bothFamiliesTaken(self) -> None:
        """
        If IPv4 has the port already, another is tried, or none if one was asked
        for; nothing stays taken.
        """
        listen = self.device.listen

        def taken(portSpace: int, address: str, port: int, listener: Any) -> Any:
            if address == "0.0.0.0" and port != 50002:
                raise ServiceInUseError("taken")
            return listen(portSpace, address, port, listener)

        self.patch(self.device, "listen", taken)
        self.assertRaises(error.CannotListenError, self.listen, interface="::")
        self.assertEqual(self.device.services, [])
        self.assertEqual(self.listen(0, interface="::").getHost().port, 50002)
        self.assertEqual(len(self.device.services), 2)

    def test_noPortForBoth(self) -> None:
        """
        The search for such a port has an end.
        """
        listen = self.device.listen

        def taken(portSpace: int, address: str, port: int, listener: Any) -> Any:
            if address == "0.0.0.0":
                raise ServiceInUseError("taken")
            return listen(portSpace, address, port, listener)

        self.patch(self.device, "listen", taken)
        self.assertRaises(error.CannotListenError, self.listen, 0, interface="::")
        self.assertEqual(self.device.services, [])
        self.assertLessEqual(self.device.nextPort, 50001 + limits.PORT_ATTEMPTS)

    def test_badPort(self) -> None:
        """
        A value that is no port number is a L{ValueError}, before anything is opened.
        """
        wrong: list[Any] = [-1, 65536, "http", None, 1.5]
        for number in wrong:
            self.assertRaises(ValueError, self.listen, number)
        self.assertEqual(self.asked, [])

    def test_errors(self) -> None:
        """
        An error of the device becomes a C{CannotListenError} in one line; the factory is not started and the
        device not held.
        """
        for reason, number in [
            (ServiceInUseError("x"), errno.EADDRINUSE),
            (NoRouteError("x"), errno.EADDRNOTAVAIL),
            (RunDirectoryError("/dev/null is not a directory"), errno.EACCES),
            (OSError(errno.EMFILE, "Too many open files"), errno.EMFILE),
            (OSError(errno.ENODEV, "No such device"), errno.EIO),
        ]:
            self.device.error = reason
            raised = self.assertRaises(error.CannotListenError, self.listen)
            self.assertEqual(raised.socketError.errno, number)
            self.assertIn("any:5001", str(raised))
            self.assertNotIn("\n", str(raised))
        self.assertEqual(self.factory.log, [])
        self.assertEqual(self.channel.users, [])
        self.assertEqual(self.messages, [])

    def test_unknownDevice(self) -> None:
        """
        So does a device that does not open.
        """

        def unknown(reactor: Any, device: Any, *where: str) -> Any:
            raise UnknownDeviceError(f"no HCA is called {device!r}")

        self.patch(portModule, "channelFor", unknown)
        raised = self.assertRaises(error.CannotListenError, self.listen, device="shm9")
        self.assertEqual(str(raised), "Couldn't listen on any:5001: [Errno 19] no HCA is called 'shm9'.")

    def test_repr(self) -> None:
        """
        As TCP's: class, factory, port.
        """
        port = self.listen()
        self.assertEqual(repr(port), f"<{SDPPort} of {RecordingFactory} on 5001>")
        port.stopListening()
        self.reactor.advance(0)
        self.assertEqual(repr(port), f"<{SDPPort} of {RecordingFactory} (not listening)>")

    def test_logPrefix(self) -> None:
        """
        Log lines of a port begin with the factory's class.
        """
        self.assertEqual(self.listen().logPrefix(), "tests.sdp.fakes.RecordingFactory")


class StopTests(PortTestCase):
    """
    Tests for the end of a port.
    """

    def test_stopListening(self) -> None:
        """
        In the next turn the port is given back, the line is logged, the factory
        stopped, and the Deferred fires.
        """
        port = self.listen()
        done = port.stopListening()
        assert done is not None
        self.assertNoResult(done)
        self.assertEqual(len(self.device.services), 1)
        self.reactor.advance(0)
        self.assertIsNone(self.successResultOf(done))
        self.assertEqual(self.device.services, [])
        self.assertEqual(self.channel.users, [])
        self.assertEqual(self.factory.log, ["start", "stop"])
        self.assertEqual(self.messages[-1], "(SDP Port 5001 Closed)")
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_stopTwice(self) -> None:
        """
        A port that is closed has nothing to wait for.
        """
        port = self.listen()
        port.stopListening()
        self.reactor.advance(0)
        self.assertIsNone(port.stopListening())
        self.assertEqual(self.factory.log, ["start", "stop"])

    def test_stopFactoryFails(self) -> None:
        """
        An exception of the factory at its stop fails the Deferred; the port is closed.
        """
        port = self.listen()
        self.patch(self.factory, "doStop", lambda: 1 // 0)
        done = port.stopListening()
        assert done is not None
        self.reactor.advance(0)
        self.failureResultOf(done, ZeroDivisionError)
        self.assertEqual(self.device.services, [])
        self.assertFalse(port.disconnecting)

    def test_refusedAtStop(self) -> None:
        """
        Requests that wait when the port closes are refused as if nobody had
        listened.
        """
        port = self.listen()
        port.pauseProducing()
        waiting = [self.ask(port, number) for number in range(3)]
        port.stopListening()
        late = self.ask(port, 3)
        self.reactor.advance(0)
        for connection in [*waiting, late]:
            self.assertEqual(connection.done, ["sendMRA", "reject"])
            self.assertEqual(connection.reason, RejectReason.INVALID_SERVICE_ID)
        self.assertEqual(self.factory.protocols, [])

    def test_startAgain(self) -> None:
        """
        A closed port can be opened again.
        """
        port = self.listen()
        port.stopListening()
        self.reactor.advance(0)
        port.startListening()
        self.ask(port)
        self.assertEqual(len(self.factory.protocols), 1)

    def test_shutdown(self) -> None:
        """
        A reactor that stops ends its ports through the channel.
        """
        port = self.listen()
        port.connectionLost(Failure(main.CONNECTION_LOST))
        self.assertEqual(self.device.services, [])
        self.assertEqual(self.channel.users, [])
        self.assertEqual(self.factory.log, ["start", "stop"])


class AcceptTests(PortTestCase):
    """
    Tests for what becomes of requests.
    """

    def test_accept(self) -> None:
        """
        A request is accepted at once: the protocol is made and connected, the
        peer gets a REP with a HelloAck.
        """
        port = self.listen()
        connection = self.ask(port)
        self.assertEqual(connection.done, ["accept"])
        [protocol] = self.factory.protocols
        self.assertTrue(protocol.made)
        self.assertEqual(self.factory.addresses, [IPv4Address("TCP", "127.0.0.1", 40000)])
        transport: Any = protocol.transport
        self.assertIs(connection.user, transport)
        self.assertEqual(transport.getPeer(), IPv4Address("TCP", "127.0.0.1", 40000))
        self.assertEqual(transport.getHost(), IPv4Address("TCP", "127.0.0.1", 5001))
        assert connection.reply is not None
        hello = wire.HelloAck.parse(connection.reply.privateData)
        [queuePair] = self.device.queuePairs
        self.assertEqual(hello.buffers, queuePair.posted)
        self.assertEqual(connection.reply.localQPN, queuePair.number)
        self.assertEqual((queuePair.path, queuePair.remote), ("path", 77))
        self.assertEqual(self.channel.users, [port, transport])

    def test_names(self) -> None:
        """
        A transport is called as TCP's is.
        """
        port = self.listen()
        self.ask(port)
        self.ask(port, 1)
        transports: list[Any] = [protocol.transport for protocol in self.factory.protocols]
        self.assertEqual(
            [repr(t) for t in transports], [f"<RecordingProtocol #{n} on 5001>" for n in range(2)]
        )
        self.assertEqual(
            [t.logPrefix() for t in transports], [f"RecordingProtocol,{n},127.0.0.1" for n in range(2)]
        )

    def test_addressesIPv6(self) -> None:
        """
        IPv6 addresses are shown as such.
        """
        port = self.listen(interface="::1")
        connection = FakeConnection()
        port.connectionRequested(connection, requestFrom("::1", 40000, "::1"))
        transport: Any = self.factory.protocols[0].transport
        self.assertEqual(transport.getPeer(), IPv6Address("TCP", "::1", 40000))
        self.assertEqual(transport.getHost(), IPv6Address("TCP", "::1", 5001))

    def test_addressesScoped(self) -> None:
        """
        On a link-local address both ends have its scope.
        """
        port = self.listen(interface="fe80::1%7")
        port.connectionRequested(FakeConnection(), requestFrom("fe80::2%7", 40000, "fe80::1%7"))
        transport: Any = self.factory.protocols[0].transport
        self.assertEqual(transport.getPeer(), IPv6Address("TCP", "fe80::2%7", 40000, 0, 7))
        self.assertEqual(transport.getHost(), IPv6Address("TCP", "fe80::1%7", 5001, 0, 7))

    def test_addressesMapped(self) -> None:
        """
        On C{::} an IPv4 peer is shown as a socket shows it.
        """
        self.ask(self.listen(interface="::"))
        transport: Any = self.factory.protocols[0].transport
        self.assertEqual(transport.getPeer(), IPv6Address("TCP", "::ffff:127.0.0.1", 40000))
        self.assertEqual(transport.getHost(), IPv6Address("TCP", "::ffff:127.0.0.1", 5001))

    def test_badHello(self) -> None:
        """
        A request without a proper Hello is refused, with reason 28, and
        counted; the port goes on.
        """
        port = self.listen()
        connection = FakeConnection()
        request = requestFrom("127.0.0.1", 40000)
        request.privateData = bytes(92)
        port.connectionRequested(connection, request)
        self.assertEqual(connection.done, ["reject"])
        self.assertEqual(connection.reason, RejectReason.CONSUMER_DEFINED)
        self.assertEqual(self.channel.counters, {"bad_hello": 1})
        self.assertEqual(self.ask(port).done, ["accept"])

    def test_unsupported(self) -> None:
        """
        A request that cannot be served is refused with the reason, and counted by it.
        """
        port = self.listen()
        for reason, counter in (
            (RejectReason.INVALID_TRANSPORT_TYPE, "bad_service_type"),
            (RejectReason.INVALID_MTU, "bad_path_mtu"),
            (RejectReason.PRIMARY_GID, "bad_partition"),
        ):
            connection, request = FakeConnection(), requestFrom("127.0.0.1", 40000)
            request.unsupported = reason
            self.channel.counters.clear()
            port.connectionRequested(connection, request)
            self.assertEqual((connection.done, connection.reason), (["reject"], reason))
            self.assertEqual(self.channel.counters, {counter: 1})

    def test_foreignAddress(self) -> None:
        """
        A Hello with an address that the peer cannot have, as it is a process
        of this host, is refused, with reason 28, and counted, whichever of the
        two it is.
        """
        port = self.listen()
        for source, destination in [
            ("192.0.2.1", "127.0.0.1"),
            ("127.0.0.1", "192.0.2.1"),
            ("192.0.2.1", "192.0.2.1"),
            # What the listener itself is bound to is no end's address.
            ("127.0.0.1", "0.0.0.0"),
            ("0.0.0.0", "0.0.0.0"),
        ]:
            connection = FakeConnection()
            self.channel.counters.clear()
            port.connectionRequested(connection, requestFrom(source, 40000, destination))
            self.assertEqual(connection.done, ["reject"])
            self.assertEqual(connection.reason, RejectReason.CONSUMER_DEFINED)
            self.assertEqual(self.channel.counters, {"bad_hello": 1})
        connection = FakeConnection()
        port.connectionRequested(connection, requestFrom("127.0.0.2", 40000, "127.0.0.1"))
        self.assertEqual(connection.done, ["accept"])

    def test_noProtocol(self) -> None:
        """
        A factory that gives no protocol has the connection closed in order.
        """
        self.factory.none = True
        port = self.listen()
        connection = self.ask(port)
        self.assertEqual(connection.done, ["accept"])
        self.assertTrue(connection.user.disconnecting)
        self.assertIn(connection.user, self.device.dirty)

    def test_factoryRaises(self) -> None:
        """
        So has one that raises; that is logged.
        """
        self.factory.hook = lambda: 1 // 0
        port = self.listen()
        connection = self.ask(port)
        self.assertEqual(connection.done, ["accept"])
        self.assertTrue(connection.user.disconnecting)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.factory.hook = None
        self.assertEqual(self.ask(port, 1).done, ["accept"])
        self.assertEqual(len(self.factory.protocols), 1)

    def test_protocolRaises(self) -> None:
        """
        An exception of C{connectionMade} is logged, and the port goes on.
        """
        self.factory.made = RaisingProtocol
        port = self.listen()
        self.ask(port)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.ask(port, 1)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_noResources(self) -> None:
        """
        Without a queue pair the request is refused and counted, and the factory
        does not hear of it.
        """
        port = self.listen()
        self.device.error = ResourceLimitError("no queue pair is free")
        connection = self.ask(port)
        self.assertEqual(connection.done, ["reject"])
        self.assertEqual(connection.reason, RejectReason.NO_RESOURCES)
        self.assertEqual(self.channel.counters, {"accept_failed": 1})
        self.assertEqual(self.factory.protocols, [])
        self.assertEqual(self.channel.users, [port])

    def test_gone(self) -> None:
        """
        A peer that gave up between its request and our answer leaves nothing.
        """
        port = self.listen()
        connection = FakeConnection()
        connection.answer = False
        port.connectionRequested(connection, requestFrom("127.0.0.1", 40000))
        self.assertEqual(self.factory.protocols, [])
        self.assertTrue(self.device.queuePairs[0].closed)
        self.assertEqual(self.channel.users, [port])

    def test_stopInsideBuildProtocol(self) -> None:
        """
        A factory may stop its port while it is asked for a protocol.
        """
        port = self.listen()
        self.factory.hook = port.stopListening
        connection = self.ask(port)
        self.assertEqual(connection.done, ["accept"])
        self.assertTrue(self.factory.protocols[0].made)
        self.reactor.advance(0)
        self.assertEqual(self.device.services, [])


class BacklogTests(PortTestCase):
    """
    Tests for requests that cannot be accepted at once.
    """

    def test_paused(self) -> None:
        """
        A paused port lets requests wait, as many as its backlog; one more is
        dropped without an answer.
        """
        port = self.listen(backlog=3)
        port.pauseProducing()
        waiting = [self.ask(port, number) for number in range(3)]
        beyond = self.ask(port, 3)
        for connection in waiting:
            self.assertEqual(connection.done, ["sendMRA"])
        self.assertEqual(beyond.done, ["ignore"])
        self.assertEqual(self.channel.counters, {"backlog_full": 1})
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        port.resumeProducing()
        self.assertEqual(self.factory.protocols, [])
        self.reactor.advance(0)
        self.assertEqual([a.port for a in self.factory.addresses], [40000, 40001, 40002])
        self.assertEqual(self.ask(port, 3).done, ["accept"])

    def test_withdrawn(self) -> None:
        """
        A request whose peer gives up makes place.
        """
        port = self.listen(backlog=1)
        port.pauseProducing()
        first = self.ask(port)
        port.requestWithdrawn(first)
        port.requestWithdrawn(first)
        second = self.ask(port, 1)
        port.resumeProducing()
        self.reactor.advance(0)
        self.assertEqual(first.done, ["sendMRA"])
        self.assertEqual(second.done, ["sendMRA", "accept"])

    def test_order(self) -> None:
        """
        Waiting requests are accepted before later ones.
        """
        port = self.listen()
        port.pauseProducing()
        self.ask(port, 0)
        port.resumeProducing()
        self.ask(port, 1)
        self.assertEqual(self.factory.protocols, [])
        self.reactor.advance(0)
        self.assertEqual([a.port for a in self.factory.addresses], [40000, 40001])

    def test_acceptsPerTurn(self) -> None:
        """
        One turn accepts a bounded number; the rest waits for the next.
        """
        port = self.listen(backlog=5)
        bound = limits.ACCEPTS_PER_TURN
        connections = [self.ask(port, number) for number in range(2 * bound + 10)]
        self.assertEqual(len(self.factory.protocols), bound)
        self.reactor.turn()
        self.assertEqual(len(self.factory.protocols), 2 * bound)
        self.reactor.turn()
        self.assertEqual(len(self.factory.protocols), 2 * bound + 10)
        self.assertTrue(all(connection.done[-1] == "accept" for connection in connections))
        self.reactor.turn()
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_queueBound(self) -> None:
        """
        The requests that wait for the next turns have a bound too.
        """
        port = self.listen(backlog=5)
        for number in range(limits.ACCEPTS_PER_TURN + limits.LISTEN_BACKLOG):
            self.assertNotIn("ignore", self.ask(port, number).done)
        self.assertEqual(self.ask(port, 9999).done, ["ignore"])

    def test_pauseInsideAccept(self) -> None:
        """
        A factory that pauses its port gets no more.
        """
        port = self.listen()
        port.pauseProducing()
        for number in range(3):
            self.ask(port, number)
        self.factory.hook = port.pauseProducing
        port.resumeProducing()
        self.reactor.advance(0)
        self.assertEqual(len(self.factory.protocols), 1)
        self.assertEqual(len(port.requests), 2)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_backlogBounds(self) -> None:
        """
        A backlog of nothing still is one, and the largest has a bound.
        """
        self.assertEqual(self.listen(backlog=0).backlog, 1)
        self.assertEqual(self.listen(backlog=1 << 40).backlog, limits.LISTEN_BACKLOG)
        port = self.listen(backlog=1 << 40)
        port.pauseProducing()
        for number in range(limits.LISTEN_BACKLOG):
            self.ask(port, number)
        self.assertEqual(self.ask(port, 9999).done, ["ignore"])

    def test_resumeWhileStopping(self) -> None:
        """
        A port that is stopping does not accept again.
        """
        port = self.listen()
        port.pauseProducing()
        connection = self.ask(port)
        port.stopListening()
        port.resumeProducing()
        self.reactor.advance(0)
        self.assertEqual(connection.done, ["sendMRA", "reject"])
