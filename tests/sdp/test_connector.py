"""
Tests for L{twisted_ib.sdp.port}, the active side, on a fake device.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import error, main
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IConnector
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.sdp.fakes import (
    FakeChannel,
    FakePath,
    FakeReactor,
    RaisingProtocol,
    RecordingClientFactory,
    acceptance,
)
from twisted_ib.errors import (
    NoListenerError,
    NoRouteError,
    PathLostError,
    ResourceLimitError,
    UnknownDeviceError,
)
from twisted_ib.hca.connection import ConnectReply, Rejection, RejectReason
from twisted_ib.internet import connector as connectorModule
from twisted_ib.sdp.handshake import SDP_HANDSHAKE as handshake
from twisted_ib.sdp.port import connectSDP


class ConnectorTestCase(SynchronousTestCase):
    """
    A connector on a fake device.
    """

    def setUp(self) -> None:
        """
        Make the device.
        """
        self.reactor = FakeReactor()
        self.channel = FakeChannel(self.reactor)
        self.device = self.channel.device
        self.asked: list[Any] = []
        self.patch(connectorModule, "channelFor", self.channelFor)
        self.factory = RecordingClientFactory()

    def channelFor(self, reactor: Any, device: Any, *where: str) -> Any:
        """
        Give the fake.
        """
        self.asked.append((reactor, device))
        return self.channel

    def begin(self, host: str = "127.0.0.1", port: int = 5001, **options: Any) -> Any:
        """
        Connect and let the attempt begin.
        """
        connector = connectSDP(self.reactor, host, port, self.factory, **options)
        self.reactor.advance(0)
        return connector

    def request(self, host: str = "127.0.0.1", **options: Any) -> Any:
        """
        Connect as far as the REQ.
        """
        self.device.paths.add(host)
        return self.begin(host, **options)

    def connected(self, **options: Any) -> Any:
        connector = self.request(**options)
        connection = self.device.requests[-1][1]
        connection.user.replied(connection, acceptance())
        return connector

    def failure(self, kind: type[Exception] = error.ConnectError) -> str:
        """
        Assert that the attempt failed and left nothing.

        @return: The reason's text.
        """
        [reason] = self.factory.failures
        self.assertTrue(reason.check(kind), reason)
        self.assertEqual(self.channel.users, [])
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.assertTrue(all(queuePair.closed for queuePair in self.device.queuePairs))
        self.assertEqual(self.factory.log, ["start", "connecting", "failed", "stop"])
        text = str(reason.value)
        self.assertNotIn("\n", text)
        return text


class SuccessTests(ConnectorTestCase):
    """
    Tests for attempts that end well.
    """

    def test_interface(self) -> None:
        """
        A connector provides what Twisted says it does.
        """
        connector = self.begin()
        verifyObject(IConnector, connector)
        self.assertEqual(connector.getDestination(), IPv4Address("TCP", "127.0.0.1", 5001))
        self.assertIn("connecting", repr(connector))

    def test_nothingBeforeTurn(self) -> None:
        """
        The device is not opened before the reactor has its turn.
        """
        connector: Any = connectSDP(self.reactor, "127.0.0.1", 5001, self.factory, device="lo0")
        self.assertEqual(connector.state, "connecting")
        self.assertEqual(connector.transport.logstr, "Uninitialized")
        self.assertEqual(self.asked, [])
        self.assertEqual(self.factory.log, ["start", "connecting"])
        self.reactor.advance(0)
        self.assertEqual(self.asked, [(self.reactor, "lo0")])

    def test_connect(self) -> None:
        """
        Path, REQ, REP, RTU: then the protocol is connected, and only the
        transport holds the device.
        """
        connector = self.begin()
        [route] = self.device.routes
        self.assertEqual((route.address, route.port), ("127.0.0.1", 5001))
        route.user.pathReady(FakePath("path"))
        [(request, connection)] = self.device.requests
        self.assertEqual(request.serviceID, 0x11389)
        self.assertEqual(connection.destination, "path")
        hello = handshake.requested(request)
        self.assertEqual(handshake.addresses(hello), ("127.0.0.1", "127.0.0.1"))
        self.assertTrue(49152 <= hello.localPort <= 65535)
        connection.user.replied(connection, acceptance())
        self.assertEqual(connection.done, ["ready"])
        [protocol] = self.factory.protocols
        self.assertTrue(protocol.made)
        transport: Any = protocol.transport
        self.assertIs(connector.transport, transport)
        self.assertIs(connection.user, transport)
        self.assertEqual(connector.state, "connected")
        self.assertEqual(self.channel.users, [transport])
        self.reactor.advance(0)
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.assertEqual(self.factory.addresses, [IPv4Address("TCP", "127.0.0.1", 5001)])
        self.assertEqual(transport.getPeer(), IPv4Address("TCP", "127.0.0.1", 5001))
        self.assertEqual(transport.getHost(), IPv4Address("TCP", "127.0.0.1", hello.localPort))
        self.assertEqual(transport.logPrefix(), "RecordingProtocol,client")
        self.assertIn("('127.0.0.1', 5001)", repr(transport))
        [queuePair] = self.device.queuePairs
        self.assertEqual((queuePair.path, queuePair.remote), ("path", 78))

    def test_ports(self) -> None:
        """
        Local ports differ from attempt to attempt.
        """
        ports = set()
        for _ in range(20):
            self.request()
            ports.add(handshake.requested(self.device.requests[-1][0]).localPort)
        self.assertGreater(len(ports), 10)

    def test_together(self) -> None:
        """
        Connects of one turn to one service look for its path once, while that is alive; each has its own
        port number.
        """
        self.device.paths.add("127.0.0.1")
        for wanted in ((5001, None), (5001, None), (5002, None), (5001, ("127.0.0.2", 0))):
            connectSDP(self.reactor, "127.0.0.1", wanted[0], self.factory, bindAddress=wanted[1])
        self.reactor.advance(0)
        self.assertEqual([route.port for route in self.device.routes], [5001, 5002, 5001])
        requests = [handshake.requested(request) for request, _ in self.device.requests]
        self.assertEqual(len({request.localPort for request in requests}), 4)
        sources = [handshake.addresses(request)[1] for request in requests]
        self.assertEqual(sources, ["127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.2"])
        self.patch(FakePath, "alive", False)
        for _ in range(2):
            connectSDP(self.reactor, "127.0.0.1", 5001, self.factory)
        self.reactor.advance(0)
        self.assertEqual(len(self.device.routes), 5)

    def test_bindAddress(self) -> None:
        """
        The address that the user has bound is the local end.
        """
        for bound, host, port in [
            (("127.0.0.2", 1234), "127.0.0.2", 1234),
            (("127.0.0.2", 0), "127.0.0.2", None),
            ("127.0.0.3", "127.0.0.3", None),
            (("", 1234), "127.0.0.1", 1234),
        ]:
            self.request(bindAddress=bound)
            hello = handshake.requested(self.device.requests[-1][0])
            self.assertEqual(handshake.addresses(hello), ("127.0.0.1", host))
            if port is not None:
                self.assertEqual(hello.localPort, port)

    def test_IPv6(self) -> None:
        """
        An IPv6 address needs no resolver, a scope does not reach the Hello.
        """
        for host in ["::1", "fe80::1%lo"]:
            connector = self.connected(host=host)
            hello = handshake.requested(self.device.requests[-1][0])
            self.assertEqual(hello.ipVersion, 6)
            self.assertEqual(handshake.addresses(hello)[0], host.partition("%")[0])
            self.assertIsInstance(connector.transport.getPeer(), IPv6Address)
            self.assertEqual(connector.transport.getPeer().host, host)
        self.assertEqual(self.reactor.receivers, [])

    def test_wildcards(self) -> None:
        """
        To connect to a wildcard is to connect to this host; a mapped address
        is an IPv4 address.
        """
        for host, expected in [
            ("0.0.0.0", "127.0.0.1"),
            ("::", "::1"),
            ("", "127.0.0.1"),
            ("::ffff:127.0.0.9", "127.0.0.9"),
        ]:
            self.begin(host)
            self.assertEqual(self.device.routes[-1].address, expected)

    def test_name(self) -> None:
        """
        A name's addresses are tried one after the other, IPv4 first, and the
        peer's address is that which answered.
        """
        connector = self.begin("localhost")
        self.assertEqual(self.device.routes, [])
        self.reactor.answer("::1", "127.0.0.1")
        self.assertEqual([route.address for route in self.device.routes], ["127.0.0.1"])
        self.device.routes[0].user.connectFailed(NoListenerError("nobody"))
        self.assertEqual([route.address for route in self.device.routes], ["127.0.0.1", "::1"])
        self.device.routes[1].user.pathReady(FakePath("path"))
        connection = self.device.requests[0][1]
        connection.user.replied(connection, acceptance())
        self.assertEqual(connector.transport.getPeer().host, "::1")
        self.assertEqual(self.factory.failures, [])
        self.assertEqual(self.channel.users, [connector.transport])

    def test_noProtocol(self) -> None:
        """
        A factory that gives no protocol has the connection closed in order.
        """
        self.factory.none = True
        connector = self.connected()
        self.assertTrue(connector.transport.disconnecting)

    def test_connectionLost(self) -> None:
        """
        The factory hears of the loss after the protocol, once.
        """
        connector = self.connected()
        transport = connector.transport
        transport.connectionLost(Failure(main.CONNECTION_LOST))
        transport.connectionLost(Failure(main.CONNECTION_DONE))
        [protocol] = self.factory.protocols
        assert protocol.reason is not None
        self.assertTrue(protocol.reason.check(error.ConnectionLost))
        [reason] = self.factory.losses
        self.assertTrue(reason.check(error.ConnectionLost))
        self.assertEqual(self.factory.log, ["start", "connecting", "build", "lost", "stop"])
        self.assertEqual(self.channel.users, [])
        self.assertEqual(connector.state, "disconnected")

    def test_reconnect(self) -> None:
        """
        A factory may connect again when its connection is lost.
        """
        connector = self.connected()
        self.patch(self.factory, "clientConnectionLost", lambda connector, reason: connector.connect())
        connector.transport.connectionLost(Failure(main.CONNECTION_LOST))
        self.assertEqual(self.factory.log.count("stop"), 0)
        self.reactor.advance(0)
        self.assertEqual(len(self.device.requests), 2)

    def test_disconnect(self) -> None:
        """
        C{disconnect} closes what is connected.
        """
        connector = self.connected()
        connector.disconnect()
        self.assertTrue(connector.transport.disconnecting)


class FailureTests(ConnectorTestCase):
    """
    Tests for attempts that fail.
    """

    def test_badPort(self) -> None:
        """
        A port that is neither a number nor the name of a service is an error at once.
        """
        wrong: list[Any] = [0, -1, 65536, None]
        for port in wrong:
            self.assertRaises(ValueError, self.begin, "127.0.0.1", port)
        self.assertRaises(ValueError, self.begin, bindAddress=("127.0.0.1", 70000))
        name: Any = "no-such-service"
        self.assertRaises(error.ServiceNameUnknownError, self.begin, "127.0.0.1", name)
        self.assertEqual(self.factory.log, [])

    def test_unknownDevice(self) -> None:
        """
        A device that does not open fails the attempt, later.
        """

        def unknown(reactor: Any, device: Any, *where: str) -> Any:
            raise UnknownDeviceError(f"no HCA is called {device!r}")

        self.patch(connectorModule, "channelFor", unknown)
        self.begin(device="shm9")
        self.assertEqual(
            self.failure(),
            "An error occurred while connecting: SDP 127.0.0.1:5001: no HCA is called 'shm9'.",
        )

    def test_noRoute(self) -> None:
        """
        An address that no device serves.
        """
        self.device.error = None
        self.patch(self.device, "connect", self._raise(NoRouteError("x")))
        self.begin("10.9.9.9")
        self.assertIn("no HCA reaches SDP 10.9.9.9:5001", self.failure(error.NoRouteError))

    def _raise(self, reason: Exception) -> Any:
        """
        Make a function that raises.
        """

        def raising(*arguments: Any) -> Any:
            raise reason

        return raising

    def test_nobodyListens(self) -> None:
        """
        The rendezvous knows nobody, or the peer's CM says so.
        """
        connector = self.begin()
        self.device.routes[0].user.connectFailed(NoListenerError("x"))
        text = "Connection was refused by other side: 111: nobody listens on SDP 127.0.0.1:5001."
        self.assertEqual(self.failure(error.ConnectionRefusedError), text)
        self.assertEqual(connector.state, "disconnected")
        self.factory.__init__()  # type: ignore[misc]
        self.request()
        connection = self.device.requests[0][1]
        connection.user.rejected(connection, Rejection(reason=RejectReason.INVALID_SERVICE_ID))
        self.assertEqual(self.failure(error.ConnectionRefusedError), text)

    def test_rejected(self) -> None:
        """
        Another reject says its reason.
        """
        self.request()
        connection = self.device.requests[0][1]
        connection.user.rejected(connection, Rejection(reason=RejectReason.NO_RESOURCES))
        self.assertIn("no resources (3)", self.failure(error.ConnectionRefusedError))

    def test_silent(self) -> None:
        """
        A reject that says that the peer was silent for too long is no refusal.
        """
        self.request()
        connection = self.device.requests[0][1]
        connection.user.rejected(connection, Rejection(reason=RejectReason.TIMEOUT))
        self.assertIn("did not answer", self.failure(error.TCPTimedOutError))

    def test_badAnswer(self) -> None:
        """
        A REP without a proper HelloAck is refused with reason 28.
        """
        self.request()
        connection = self.device.requests[0][1]
        connection.user.replied(connection, ConnectReply(privateData=bytes(196)))
        self.assertEqual(connection.done, ["reject"])
        self.assertEqual(connection.reason, RejectReason.CONSUMER_DEFINED)
        self.assertIn("127.0.0.1:5001", self.failure())

    def test_pathLost(self) -> None:
        """
        A peer that dies meanwhile.
        """
        self.request()
        connection = self.device.requests[0][1]
        connection.user.pathLost(PathLostError("the process has died"))
        self.assertIn("127.0.0.1:5001: the process has died", self.failure())

    def test_bindAddressNotOurs(self) -> None:
        """
        A local address that is not of this host, or of another kind.
        """
        self.device.bindError = NoRouteError("x")
        self.begin(bindAddress=("10.9.9.9", 0))
        self.assertIn("10.9.9.9 cannot be the local address", self.failure(error.ConnectBindError))
        self.factory.__init__()  # type: ignore[misc]
        self.device.bindError = None
        self.begin(bindAddress=("::1", 0))
        self.assertIn("::1 cannot be the local address", self.failure(error.ConnectBindError))

    def test_bindAddressInUse(self) -> None:
        """
        A local port that was asked for is one connection's at a time.
        """
        first = self.connected(bindAddress=("127.0.0.1", 1234))
        other = RecordingClientFactory()
        factory, self.factory = self.factory, other
        self.begin(bindAddress=("127.0.0.1", 1234))
        [reason] = other.failures
        self.assertTrue(reason.check(error.ConnectBindError))
        self.assertIn("the local port 127.0.0.1:1234 is in use", str(reason.value))
        first.transport.connectionLost(Failure(main.CONNECTION_LOST))
        self.factory = factory
        self.begin(bindAddress=("127.0.0.1", 1234))
        self.assertEqual(self.factory.failures, [])

    def test_localPortsGivenBack(self) -> None:
        """
        However an attempt ends, its local port is free again.
        """
        ports = self.channel.localPorts
        self.begin().stopConnecting()
        self.device.error = ResourceLimitError("all are in use")
        self.begin()
        self.device.error = None
        connector = self.connected()
        self.assertEqual(len(ports.ends), 1)
        connector.transport.connectionLost(Failure(main.CONNECTION_LOST))
        self.assertEqual(ports.ends, {})

    def test_noQueuePair(self) -> None:
        """
        The device has no queue pair, or the CM no place, for it.
        """
        self.device.error = ResourceLimitError("all are in use")
        self.begin()
        self.assertIn("127.0.0.1:5001: all are in use", self.failure())
        self.factory.__init__()  # type: ignore[misc]
        self.device.error = None
        self.device.requestError = ResourceLimitError("the table is full")
        self.request()
        self.assertIn("127.0.0.1:5001: the table is full", self.failure())

    def test_factoryRaisesOnFailure(self) -> None:
        """
        An exception of C{clientConnectionFailed} is logged and does not reach the source of the failure: the
        CM, the device, the timeout or the user.
        """
        self.patch(self.factory, "clientConnectionFailed", self._raise(ZeroDivisionError("mistake")))

        def reject() -> None:
            connection = self.device.requests[-1][1]
            connection.user.rejected(connection, Rejection(reason=RejectReason.NO_RESOURCES))

        def losePath() -> None:
            self.device.requests[-1][1].user.pathLost(PathLostError("the process has died"))

        def stop() -> None:
            connector.stopConnecting()

        for news in (reject, losePath, lambda: self.reactor.advance(30), stop):
            connector = self.request()
            news()
            self.assertEqual(connector.state, "disconnected")
            self.assertEqual(self.channel.users, [])
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.device.paths.clear()
        self.begin()
        self.device.routes[-1].user.connectFailed(NoListenerError("x"))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_factoryRaisesOnLoss(self) -> None:
        """
        The same of C{clientConnectionLost}.
        """
        connector = self.connected()
        self.patch(self.factory, "clientConnectionLost", self._raise(ZeroDivisionError("mistake")))
        connector.transport.connectionLost(Failure(main.CONNECTION_LOST))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.channel.users, [])

    def test_factoryRaisesOnStart(self) -> None:
        """
        An exception of C{startedConnecting} goes to the caller of C{connect}, as with TCP; if that is the
        factory when it hears of a failure or a loss, it is logged.
        """
        lost = self.connected()
        failed = self.request()
        started = self._raise(ZeroDivisionError("mistake"))
        self.patch(self.factory, "startedConnecting", started)
        self.assertRaises(ZeroDivisionError, self.begin)
        self.patch(self.factory, "clientConnectionLost", lambda connector, reason: connector.connect())
        self.patch(self.factory, "clientConnectionFailed", lambda connector, reason: connector.connect())
        lost.transport.connectionLost(Failure(main.CONNECTION_LOST))
        failed.transport.failIfNotConnected(error.ConnectError())
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

    def test_unknownName(self) -> None:
        """
        A name that does not resolve.
        """
        self.begin("no.such.name")
        self.reactor.answer()
        self.assertIn("no.such.name", self.failure(error.DNSLookupError))

    def test_allAddressesFail(self) -> None:
        """
        If no address of a name works the last one's reason is told, and which
        it was.
        """
        self.begin("localhost")
        self.reactor.answer("127.0.0.1", "::1")
        self.device.routes[0].user.connectFailed(NoRouteError("x"))
        self.device.routes[1].user.connectFailed(NoListenerError("x"))
        self.assertIn("localhost:5001 (::1)", self.failure(error.ConnectionRefusedError))

    def test_unreachable(self) -> None:
        """
        Silence is asked again, as long as TCP would, and then fails.
        """
        self.device.lossless = False
        self.request(timeout=None)
        for number in range(connectorModule.CONNECT_ROUNDS):
            self.assertEqual(len(self.device.requests), number + 1)
            connection = self.device.requests[-1][1]
            connection.user.unreachable(connection)
        self.assertIn("127.0.0.1:5001 did not answer", self.failure(error.TCPTimedOutError))
        self.assertEqual(len(self.device.requests), connectorModule.CONNECT_ROUNDS)
        # All rounds are one request to a peer that was away and reads them late.
        first = self.device.requests[0][0]
        self.assertTrue(all(request is first for request, _ in self.device.requests))
        self.assertEqual(first.communicationID, 7)

    def test_late(self) -> None:
        """
        Events of the CM or the device after the end are ignored.
        """
        connector = self.begin()
        [route] = self.device.routes
        connector.stopConnecting()
        self.failure(error.UserError)
        self.assertTrue(route.cancelled)
        route.user.pathReady(FakePath("path"))
        route.user.connectFailed(NoListenerError("x"))
        self.assertEqual(self.device.requests, [])
        self.factory.__init__()  # type: ignore[misc]
        connector = self.request()
        connection = self.device.requests[0][1]
        attempt = connection.user
        connector.stopConnecting()
        attempt.replied(connection, acceptance())
        attempt.rejected(connection, Rejection(reason=8))
        attempt.unreachable(connection)
        attempt.pathLost(PathLostError("x"))
        self.assertEqual(self.factory.protocols, [])
        self.assertEqual(len(self.device.requests), 1)
        self.failure(error.UserError)

    def test_lateName(self) -> None:
        """
        So are addresses.
        """
        connector = self.begin("localhost")
        connector.stopConnecting()
        self.reactor.answer("127.0.0.1")
        self.failure(error.UserError)
        self.assertEqual(self.device.routes, [])

    def test_factoryRaises(self) -> None:
        """
        A factory that raises fails the attempt, as with TCP; the peer's end is
        closed.
        """
        self.factory.hook = lambda: 1 // 0
        self.request()
        connection = self.device.requests[0][1]
        connection.user.replied(connection, acceptance())
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(connection.done, ["ready", "abandon"])
        self.failure()

    def test_protocolRaises(self) -> None:
        """
        An exception of C{connectionMade} is logged and ends the connection.
        """
        self.factory.made = RaisingProtocol
        self.connected()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        [reason] = self.factory.losses
        self.assertTrue(reason.check(ZeroDivisionError))
        self.assertEqual(self.channel.users, [])


class TimeoutTests(ConnectorTestCase):
    """
    Tests for the timeout, C{stopConnecting} and C{disconnect}.
    """

    def test_timeout(self) -> None:
        """
        The user's timeout ends the attempt wherever it is, and says for what.
        """
        text = "User timeout caused connection failure: SDP 127.0.0.1:5001 did not answer within 5 s."
        self.begin(timeout=5)
        self.reactor.advance(5)
        self.assertEqual(self.failure(error.TimeoutError), text)
        self.assertTrue(self.device.routes[0].cancelled)
        self.factory.__init__()  # type: ignore[misc]
        self.request(timeout=5)
        self.reactor.advance(5)
        self.assertEqual(self.failure(error.TimeoutError), text)
        self.assertEqual(self.device.requests[0][1].done, ["abandon"])
        self.factory.__init__()  # type: ignore[misc]
        self.begin("example.com", timeout=5)
        self.reactor.advance(5)
        self.assertIn("SDP example.com:5001 did", self.failure(error.TimeoutError))

    def test_noTimeout(self) -> None:
        """
        L{None} is for ever.
        """
        self.begin(timeout=None)
        self.reactor.advance(1e9)
        self.assertEqual(self.factory.failures, [])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_stopBeforeBegin(self) -> None:
        """
        An attempt that is stopped at once opens no device.
        """
        connector = connectSDP(self.reactor, "127.0.0.1", 5001, self.factory)
        connector.stopConnecting()
        self.failure(error.UserError)
        self.reactor.advance(0)
        self.assertEqual(self.asked, [])

    def test_disconnectWhileConnecting(self) -> None:
        """
        C{disconnect} stops the attempt, and the CM is told.
        """
        connector = self.request()
        connector.disconnect()
        self.failure(error.UserError)
        self.assertEqual(self.device.requests[0][1].done, ["abandon"])

    def test_stopTwice(self) -> None:
        """
        There is nothing to stop after the end.
        """
        connector = self.begin()
        connector.stopConnecting()
        self.assertRaises(error.NotConnectingError, connector.stopConnecting)

    def test_stopInsideStarted(self) -> None:
        """
        A factory may stop its attempt when it is told of it.
        """
        self.patch(self.factory, "startedConnecting", lambda connector: connector.stopConnecting())
        connectSDP(self.reactor, "127.0.0.1", 5001, self.factory)
        [reason] = self.factory.failures
        self.assertTrue(reason.check(error.UserError))
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_again(self) -> None:
        """
        A factory may connect again when the attempt fails.
        """
        self.patch(self.factory, "clientConnectionFailed", lambda connector, reason: connector.connect())
        self.begin()
        self.device.routes[0].user.connectFailed(NoListenerError("x"))
        self.reactor.advance(0)
        self.assertEqual(len(self.device.routes), 2)
        self.assertEqual(self.factory.log.count("start"), 1)

    def test_shutdown(self) -> None:
        """
        A reactor that stops ends attempts through the channel.
        """
        connector = self.request()
        connector.transport.connectionLost(Failure(main.CONNECTION_LOST))
        self.failure()
