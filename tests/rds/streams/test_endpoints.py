"""
Tests of L{twisted_ib.rds.streams}: streams over reliable datagrams as Twisted sees them.
"""

from __future__ import annotations

import errno
import inspect
import re
from io import BytesIO
from typing import Any

from twisted.internet import error, interfaces, ssl
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import clientFromString, serverFromString, wrapClientTLS
from twisted.internet.protocol import ClientFactory, Factory, Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.protocols import amp, basic
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from twisted.spread import pb
from twisted.trial.unittest import SynchronousTestCase, TestCase
from twisted.web import client as webclient
from twisted.web import resource
from twisted.web import server as webserver
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.rds.ends import HOST, ProcessesTestCase
from tests.rds.fakes import FakeSocket, FakeSockets
from tests.support.certificates import certificate
from tests.support.rundirectory import ownRunDirectory
from twisted_ib import limits
from twisted_ib.errors import NoRouteError
from twisted_ib.internet.readers import channelsOf
from twisted_ib.rds.media import rcconnection
from twisted_ib.rds.paths.network import STREAM_COUNTERS
from twisted_ib.rds.protocol import streammachine, streams
from twisted_ib.rds.protocol.frames import EndReason, FrameKind, frame
from twisted_ib.rds.streams import connector, streamsocket
from twisted_ib.rds.streams.connector import RDSClientEndpoint, connectStream
from twisted_ib.rds.streams.listening import RDSServerEndpoint, listenStreams
from twisted_ib.reactor.ibreactor import IBReactor


class Recorder(Protocol):
    """
    Remembers what happened.

    @ivar data: The data received.
    @ivar reason: Why the connection ended, or L{None}.
    """

    def __init__(self) -> None:
        """
        Nothing has.
        """
        self.data = b""
        self.reason: Any = None
        self.calls: list[str] = []

    def connectionMade(self) -> None:
        """
        Remember.
        """
        self.calls.append("made")

    def dataReceived(self, data: bytes) -> None:
        """
        Remember.
        """
        self.data += data

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Remember.
        """
        assert self.reason is None
        self.reason = reason.value
        self.calls.append("lost")


@implementer(interfaces.IHalfCloseableProtocol)
class HalfRecorder(Recorder):
    """
    One that goes on when one direction has ended.
    """

    def readConnectionLost(self) -> None:
        """
        Remember.
        """
        self.calls.append("read")

    def writeConnectionLost(self) -> None:
        """
        Remember.
        """
        self.calls.append("write")


class Collecting(Factory):
    """
    Remembers its protocols.
    """

    def __init__(self, make: Any = Recorder) -> None:
        """
        @param make: Makes them.
        """
        self.make = make
        self.protocols: list[Any] = []
        self.peers: list[Any] = []

    def buildProtocol(self, addr: Any) -> Any:
        """
        Make one.
        """
        self.peers.append(addr)
        protocol = self.make()
        if protocol is not None:
            protocol.factory = self
            self.protocols.append(protocol)
        return protocol


class EndpointTestCase(SynchronousTestCase):
    """
    A server, and clients, over sockets in memory and a clock.
    """

    def setUp(self) -> None:
        """
        The server listens on port 4000.
        """
        self.clock = Clock()
        self.sockets = FakeSockets(self.clock)
        self.patch(streamsocket, "listenRDS", self.sockets.listenRDS)
        self.accepted = Collecting()
        self.port: Any = None

    def listen(self, make: Any = Recorder, port: int = 4000) -> Any:
        """
        Listen.
        """
        self.accepted = Collecting(make)
        endpoint = RDSServerEndpoint(self.clock, port)
        self.port = self.successResultOf(endpoint.listen(self.accepted))
        return self.port

    def run_(self, seconds: float = 0.0) -> None:
        """
        Let what is due happen.
        """
        self.clock.advance(seconds)
        for _ in range(10_000):
            if not any(call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls()):
                return
            self.clock.advance(0)
        raise AssertionError("no end")

    def begin(self, make: Any = Recorder, **more: Any) -> Deferred[Any]:
        """
        Begin to connect.
        """
        endpoint = RDSClientEndpoint(self.clock, "127.0.0.1", 4000, **more)
        return endpoint.connect(Collecting(make))

    def connect(self, make: Any = Recorder, **more: Any) -> tuple[Any, Any]:
        """
        @return: Both protocols of a new connection.
        """
        made = self.begin(make, **more)
        self.run_()
        return self.successResultOf(made), self.accepted.protocols[-1]

    def clean(self) -> None:
        """
        Close the port; then there is nothing left in the reactor.
        """
        self.successResultOf(self.port.stopListening())
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.sockets.sockets, {})
        self.assertEqual(getattr(self.clock, streamsocket._SOCKETS, {}), {})


class ConnectingTests(EndpointTestCase):
    """
    How a connection begins.
    """

    def test_both(self) -> None:
        """
        Both sides are told, and know each other.
        """
        self.listen()
        client, server = self.connect()
        self.assertEqual((client.calls, server.calls), (["made"], ["made"]))
        self.assertEqual(client.transport.getPeer(), server.transport.getHost())
        self.assertEqual(server.transport.getPeer(), client.transport.getHost())
        self.assertEqual(self.accepted.peers, [server.transport.getPeer()])
        self.assertEqual(client.transport.getPeer().port, 4000)
        client.transport.loseConnection()
        self.run_()
        self.assertIsInstance(client.reason, error.ConnectionDone)
        self.assertIsInstance(server.reason, error.ConnectionDone)
        self.clean()

    def test_interfaces(self) -> None:
        """
        Ports, connectors and transports provide what they say.
        """
        port = self.listen()
        verifyObject(interfaces.IListeningPort, port)
        client, _ = self.connect()
        for interface in (interfaces.ITCPTransport, interfaces.IConsumer, interfaces.IPushProducer):
            verifyObject(interface, client.transport)
        verifyObject(interfaces.IConnector, client.transport.connector)
        transport = client.transport
        transport.setTcpNoDelay(False)
        transport.setTcpKeepAlive(False)
        self.assertEqual((transport.getTcpNoDelay(), transport.getTcpKeepAlive()), (False, False))
        self.assertIn("Recorder", repr(transport) + transport.logPrefix())
        self.assertIn("4000", repr(port))

    def test_dataWithTheConnection(self) -> None:
        """
        Data that a protocol writes when it is connected arrives, on either side.
        """

        class Greeter(Recorder):
            def connectionMade(self) -> None:
                assert self.transport is not None
                self.transport.write(b"hello")

        self.listen(Greeter)
        client, server = self.connect(Greeter)
        self.assertEqual((client.data, server.data), (b"hello", b"hello"))

    def test_nobodyListens(self) -> None:
        """
        A port that takes no streams any more, for those that it has, refuses.
        """
        self.listen()
        client, server = self.connect()
        for _ in range(2):
            self.successResultOf(self.port.stopListening())
        failed = self.begin()
        self.run_()
        self.failureResultOf(failed, error.ConnectionRefusedError)
        client.transport.write(b"still here")
        self.run_()
        self.assertEqual(server.data, b"still here")
        client.transport.loseConnection()
        self.run_()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.sockets.sockets, {})

    def test_listenAgain(self) -> None:
        """
        A port can be listened on again while connections of the one before last; not twice.
        """
        self.listen()
        first, _ = self.connect()
        self.failureResultOf(RDSServerEndpoint(self.clock, 4000).listen(Factory()), error.CannotListenError)
        self.port.stopListening()
        self.listen()
        second, server = self.connect()
        second.transport.write(b"x")
        self.run_()
        self.assertEqual(server.data, b"x")
        first.transport.loseConnection()
        second.transport.loseConnection()
        self.run_()
        self.clean()

    def test_refused(self) -> None:
        """
        A factory that wants no connection has the peer refused; one that raises, too, and it is
        logged.
        """
        self.listen(lambda: None)
        failed = self.begin()
        self.run_()
        self.failureResultOf(failed, error.ConnectionRefusedError)
        self.port.stopListening()
        self.listen(lambda: 1 // 0)
        failed = self.begin()
        self.run_()
        self.failureResultOf(failed, error.ConnectionRefusedError)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.clean()

    def test_timeout(self) -> None:
        """
        Nobody is there: OPEN is repeated until the timeout.
        """
        sent: list[int] = []
        self.sockets.listenRDS(self.clock, 4000, Recorder2())
        self.sockets.lost = lambda sender, to, data: sent.append(data[5]) or True
        failed = self.begin(timeout=3.5)
        for _ in range(40):
            self.run_(0.1)
        self.failureResultOf(failed, error.TimeoutError)
        self.assertEqual(sent, [FrameKind.OPEN] * 4)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_later(self) -> None:
        """
        A server that comes while a client asks is found.
        """
        made = self.begin()
        self.run_(0.5)
        self.assertNoResult(made)
        self.listen()
        self.run_(streammachine.RDS_STREAM_OPEN_SECONDS)
        client = self.successResultOf(made)
        client.transport.loseConnection()
        self.run_()
        self.clean()

    def test_cancel(self) -> None:
        """
        A cancelled attempt leaves nothing behind, whenever it is cancelled.
        """
        self.listen()
        for seconds in (None, 0.0, 0.5):
            self.sockets.lost = lambda sender, to, data: True
            made = self.begin()
            if seconds is not None:
                self.run_(seconds)
            made.cancel()
            self.failureResultOf(made, error.ConnectingCancelledError)
            self.run_()
        self.assertEqual(self.accepted.protocols, [])
        self.clean()

    def test_cancelledTooLate(self) -> None:
        """
        A server whose client does not want it any more hears of it.
        """
        self.listen()
        made = self.begin()

        def lost(sender: Any, to: Any, data: bytes) -> bool:
            if data[5] == FrameKind.ACCEPT:
                made.cancel()
            return False

        self.sockets.lost = lost
        self.run_()
        self.failureResultOf(made, error.ConnectingCancelledError)
        for _ in range(streammachine.RDS_STREAM_PROBES + 2):
            self.run_(streams.RDS_STREAM_PROBE_SECONDS)
        self.assertIsInstance(self.accepted.protocols[0].reason, error.ConnectionLost)
        self.clean()

    def test_tooMany(self) -> None:
        """
        A port takes so many connections, and a client asks for so many.
        """
        self.patch(limits, "RDS_STREAMS_PER_PEER", 2)
        self.listen()
        for _ in range(2):
            self.connect(bindAddress=("127.0.0.1", 5000))
        failed = self.begin(bindAddress=("127.0.0.1", 5000))
        self.run_()
        self.failureResultOf(failed, error.ConnectError)
        self.patch(limits, "RDS_STREAMS", 2)
        failed = self.begin()
        self.run_()
        self.failureResultOf(failed, error.ConnectionRefusedError)

    def test_nobodyAtAll(self) -> None:
        """
        Where it can be known that nobody has the port a client is refused at once, and the next
        address of the host is tried.
        """
        served = {("127.0.0.1", 4000): False, ("127.0.0.2", 4000): True}
        asked = []

        def isServed(socket: Any, address: tuple[str, int]) -> bool:
            asked.append(address)
            return served[address]

        self.patch(streamsocket.StreamSocket, "isServed", isServed)
        failed = self.begin()
        self.run_()
        self.failureResultOf(failed, error.ConnectionRefusedError)
        self.assertEqual((self.clock.getDelayedCalls(), self.sockets.sockets), ([], {}))
        asked.clear()
        self.patch(connector, "resolve", lambda *arguments: succeed(["127.0.0.1", "127.0.0.2"]))
        made = self.begin()
        self.run_()
        self.assertEqual(asked, [("127.0.0.1", 4000), ("127.0.0.2", 4000)])
        made.cancel()
        self.failureResultOf(made, error.ConnectingCancelledError)

    def test_clientFactory(self) -> None:
        """
        A client's factory that makes no protocol, or raises.
        """

        class None_(ClientFactory):
            def buildProtocol(self, addr: Any) -> None:
                return None

        class Raises(ClientFactory):
            reason: Any = None

            def buildProtocol(self, addr: Any) -> None:
                raise ZeroDivisionError

            def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
                self.reason = reason.value
                raise ValueError

        self.listen()
        connectStream(self.clock, "127.0.0.1", 4000, None_())
        self.run_()
        self.assertIsInstance(self.accepted.protocols[-1].reason, error.ConnectionDone)
        factory = Raises()
        connectStream(self.clock, "127.0.0.1", 4000, factory)
        self.run_()
        self.assertIsInstance(factory.reason, error.ConnectError)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError, ValueError)), 2)
        for _ in range(streammachine.RDS_STREAM_PROBES + 2):
            self.run_(streams.RDS_STREAM_PROBE_SECONDS)
        self.assertIsInstance(self.accepted.protocols[-1].reason, error.ConnectionLost)
        self.clean()

    def test_disconnectEarly(self) -> None:
        """
        A connector that is told to disconnect before there is a connection.
        """
        reasons: list[Any] = []

        class Told(ClientFactory):
            def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
                reasons.append(reason.value)

        made = connectStream(self.clock, "127.0.0.1", 4000, Told())
        self.assertRaises(RuntimeError, made.connect)
        transport: Any = made.transport  # type: ignore[attr-defined]
        self.assertEqual(transport.logPrefix(), "Uninitialized")
        transport.loseConnection()
        transport.loseConnection()
        self.run_()
        self.assertIsInstance(reasons[0], error.UserError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_unreachable(self) -> None:
        """
        The socket's exception is the reason of the failed connection.
        """

        def write(socket: Any, data: bytes, address: Any) -> None:
            raise NoRouteError("no HCA reaches it")

        self.patch(FakeSocket, "write", write)
        failed = self.begin()
        self.run_()
        self.failureResultOf(failed, error.NoRouteError)
        self.assertEqual((self.clock.getDelayedCalls(), self.sockets.sockets), ([], {}))

    def test_sharedPort(self) -> None:
        """
        Two clients with one port of their own, and a server on it, are told apart.
        """
        self.listen()
        pairs = [self.connect(bindAddress=("127.0.0.1", 5000)) for _ in range(3)]
        self.assertEqual(len(self.sockets.sockets), 2)
        for index, (client, _) in enumerate(pairs):
            client.transport.write(b"%d" % index)
        self.run_()
        self.assertEqual([server.data for _, server in pairs], [b"0", b"1", b"2"])
        for client, _ in pairs:
            client.transport.loseConnection()
        self.run_()
        self.clean()

    def test_connector(self) -> None:
        """
        A connector tells its factory of the end, which may connect again.
        """
        ends = []

        class Again(ClientFactory):
            protocol = Recorder

            def clientConnectionLost(self, connector: Any, reason: Failure) -> None:
                ends.append(reason.type)
                if len(ends) < 3:
                    connector.connect()

        self.listen()
        connector = connectStream(self.clock, "127.0.0.1", 4000, Again())
        for _ in range(3):
            self.run_()
            connector.disconnect()
        self.run_()
        self.assertEqual(ends, [error.ConnectionDone] * 3)
        self.assertIn("4000", repr(connector.getDestination()))
        self.clean()

    def test_bindTaken(self) -> None:
        """
        A client whose own port is somebody else's fails.
        """
        self.sockets.listenRDS(self.clock, 5000, Recorder2(), "127.0.0.1")
        failed = self.begin(bindAddress=("127.0.0.1", 5000))
        self.run_()
        self.failureResultOf(failed, error.ConnectBindError)

    def test_arguments(self) -> None:
        """
        Invalid arguments are refused.
        """
        self.assertRaises(ValueError, listenStreams, self.clock, 70000, Factory())
        self.assertRaises(ValueError, listenStreams, self.clock, 1, Factory(), interface=3)
        for host, port, timeout in (("h", 0, 1), ("h", 1, -1), (3, 1, 1)):
            self.assertRaises(ValueError, connectStream, self.clock, host, port, ClientFactory(), timeout)


class Recorder2(Protocol):
    """
    A datagram protocol that does nothing.
    """

    def doStop(self) -> None:
        """
        Nothing.
        """


class DataTests(EndpointTestCase):
    """
    Written data arrives.
    """

    def test_sizes(self) -> None:
        """
        Writes of any size, both ways.
        """
        self.listen()
        client, server = self.connect()
        parts = [b"", b"a", b"b" * 100, b"c" * streammachine.RDS_SEGMENT, b"d" * 3_000_000, b"e"]
        for part in parts:
            client.transport.write(part)
        server.transport.writeSequence(parts)
        self.run_()
        self.assertEqual(client.data, b"".join(parts))
        self.assertEqual(server.data, b"".join(parts))

    def test_onlyBytes(self) -> None:
        """
        Nothing else is written.
        """
        self.listen()
        client, _ = self.connect()
        self.assertRaises(TypeError, client.transport.write, "text")
        self.assertRaises(TypeError, client.transport.write, bytearray(b"x"))
        self.assertRaises(TypeError, client.transport.writeSequence, [b"x", "text"])

    def test_gathered(self) -> None:
        """
        The first write of a turn leaves at once, the others together; an answer is one datagram.
        """
        self.listen(lambda: Several())
        client, _ = self.connect()
        socket = self.sockets.sockets["127.0.0.1", client.transport.getHost().port]
        self.clock.advance(0)
        for _ in range(5):
            client.transport.write(b"x")
        self.assertEqual(len(socket.queue), 1)
        counted = []
        self.sockets.lost = lambda sender, to, data: counted.append((sender[1], len(data) - 32))
        self.run_()
        self.assertEqual(counted[0], (socket.address[1], 1))
        self.assertIn((4000, 3), counted)
        self.assertIn((socket.address[1], 4), counted)
        self.assertEqual(client.data, b"abc" * 2)

    def test_paused(self) -> None:
        """
        A protocol that does not read keeps the writer waiting, with a bound.
        """
        self.listen()
        client, server = self.connect()
        server.transport.pauseProducing()
        client.transport.write(bytes(2_000_000))
        self.run_()
        self.assertEqual(server.data, b"")
        self.assertEqual(server.transport.session.arrivedBytes, streammachine.RDS_STREAM_WINDOW)
        server.transport.resumeProducing()
        self.assertEqual(server.data, b"")
        self.run_()
        self.assertEqual(len(server.data), 2_000_000)

    def test_pausedFromWithin(self) -> None:
        """
        A protocol that pauses while data is delivered gets no more of it.
        """

        class OneByOne(Recorder):
            def dataReceived(self, data: bytes) -> None:
                self.data += data
                assert self.transport is not None
                self.transport.pauseProducing()

        self.listen(OneByOne)
        client, server = self.connect()
        for letter in (b"a", b"b", b"c"):
            client.transport.write(letter)
            self.run_()
        self.assertEqual(server.data, b"a")
        server.transport.resumeProducing()
        self.run_()
        self.assertEqual(server.data, b"ab")

    def test_endBehindUnread(self) -> None:
        """
        The end of a stream waits behind what was not read.
        """
        for end in ("loseConnection", "abortConnection"):
            self.listen()
            client, server = self.connect()
            server.transport.pauseProducing()
            client.transport.write(b"abc")
            self.run_()
            getattr(client.transport, end)()
            self.run_()
            self.assertIsNotNone(client.reason)
            self.assertIsNone(server.reason)
            server.transport.resumeProducing()
            self.run_()
            self.assertEqual((server.data, type(server.reason)), (b"abc", ENDS[end]))
            self.clean()

    def test_pushProducer(self) -> None:
        """
        A push producer is paused while more than a buffer waits, and resumed.
        """
        self.listen()
        client, server = self.connect()
        server.transport.pauseProducing()
        calls: list[str] = []

        class Producer:
            def pauseProducing(self) -> None:
                calls.append("pause")

            def resumeProducing(self) -> None:
                calls.append("resume")

            def stopProducing(self) -> None:
                calls.append("stop")

        client.transport.registerProducer(Producer(), True)
        self.assertRaises(RuntimeError, client.transport.registerProducer, Producer(), True)
        client.transport.write(bytes(streammachine.RDS_STREAM_WINDOW))
        self.run_()
        self.assertEqual(calls, ["pause", "resume"])
        client.transport.write(bytes(limits.SEND_BUFFER))
        self.run_()
        self.assertEqual(calls, ["pause", "resume"])
        client.transport.write(b"x")
        self.assertEqual(calls, ["pause", "resume", "pause"])
        server.transport.resumeProducing()
        self.run_()
        self.assertEqual(calls, ["pause", "resume", "pause", "resume"])
        server.transport.abortConnection()
        self.run_()
        self.assertEqual(calls[4:], ["stop"])
        client.transport.registerProducer(Producer(), True)
        self.assertEqual(calls[5:], ["stop"])

    def test_pullProducer(self) -> None:
        """
        A pull producer is asked whenever what it wrote has left, and finishes before the end.
        """
        self.listen()
        client, server = self.connect()
        chunks = [bytes([index]) * 100_000 for index in range(20)]

        class Puller:
            def resumeProducing(self) -> None:
                if chunks:
                    client.transport.write(chunks.pop(0))
                else:
                    client.transport.unregisterProducer()

            def stopProducing(self) -> None:
                raise AssertionError

        client.transport.registerProducer(Puller(), False)
        client.transport.loseConnection()
        self.run_()
        self.assertEqual(server.data, b"".join(bytes([index]) * 100_000 for index in range(20)))
        self.assertIsInstance(client.reason, error.ConnectionDone)
        self.assertIsInstance(server.reason, error.ConnectionDone)

    def test_socketPaused(self) -> None:
        """
        A socket that takes no more makes streams wait, and nothing is lost or overtaken.
        """
        for budget, most in ((3, 1 << 30), (1 << 30, 3)):
            self.sockets.budget, self.sockets.most = budget, most
            self.listen()
            pairs = [self.connect(bindAddress=("127.0.0.1", 5000)) for _ in range(3)]
            for index, (client, server) in enumerate(pairs):
                client.transport.write(bytes([index]) * 1_000_000)
                server.transport.write(bytes([index]) * 500_000)
            self.run_()
            for index, (client, server) in enumerate(pairs):
                self.assertEqual(server.data, bytes([index]) * 1_000_000)
                self.assertEqual(client.data, bytes([index]) * 500_000)
                client.transport.loseConnection()
            self.run_()
            self.clean()

    def test_overheld(self) -> None:
        """
        When too much waits for protocols that do not read, the connection with most of it is lost.
        """
        self.patch(streams, "RDS_STREAMS_HELD", 100_000)
        self.listen()
        pairs = [self.connect() for _ in range(3)]
        for (client, server), size in zip(pairs, (40_000, 45_000, 30_000), strict=True):
            server.transport.pauseProducing()
            client.transport.write(bytes(size))
            self.run_()
        self.assertIsInstance(pairs[1][0].reason, error.ConnectionLost)
        self.assertEqual(pairs[1][1].transport.socket.streams.counters["stream_overheld"], 1)
        pairs[1][1].transport.resumeProducing()
        self.run_()
        self.assertIsInstance(pairs[1][1].reason, error.ConnectionLost)
        self.assertEqual([client.reason for client, _ in (pairs[0], pairs[2])], [None, None])

    def test_plainDatagrams(self) -> None:
        """
        A datagram of a program without streams harms nobody, and is counted.
        """
        self.listen()
        client, server = self.connect()
        stranger = self.sockets.listenRDS(self.clock, 6000, Recorder2())
        for data in (b"", b"hello", b"x" * 100):
            stranger.write(data, ("127.0.0.1", 4000))
        client.transport.write(b"abc")
        self.run_()
        self.assertEqual((server.data, server.reason), (b"abc", None))
        counters = server.transport.socket.streams.counters
        self.assertEqual(counters["stream_plain_datagrams"], 3)


ENDS = {"loseConnection": error.ConnectionDone, "abortConnection": error.ConnectionLost}


class Several(Recorder):
    """
    Answers in three writes.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Answer.
        """
        assert self.transport is not None
        for letter in (b"a", b"b", b"c"):
            self.transport.write(letter)


class EndingTests(EndpointTestCase):
    """
    How a connection ends.
    """

    def test_flush(self) -> None:
        """
        Everything written arrives before the end.
        """
        self.listen()
        client, server = self.connect()
        client.transport.write(bytes(3_000_000))
        client.transport.loseConnection()
        client.transport.loseConnection()
        self.assertIsNone(client.reason)
        self.run_()
        self.assertEqual(len(server.data), 3_000_000)
        self.assertIsInstance(client.reason, error.ConnectionDone)
        self.assertIsInstance(server.reason, error.ConnectionDone)
        client.transport.write(b"nobody")
        client.transport.loseConnection()
        client.transport.abortConnection()
        self.clean()

    def test_crossing(self) -> None:
        """
        Both sides close at the same time, with data under way.
        """
        self.listen()
        client, server = self.connect()
        for protocol in (client, server):
            protocol.transport.write(bytes(2_000_000))
            protocol.transport.loseConnection()
        self.run_()
        self.assertIsInstance(client.reason, error.ConnectionDone)
        self.assertIsInstance(server.reason, error.ConnectionDone)
        self.clean()

    def test_abort(self) -> None:
        """
        The aborting side is told in the next turn, and the peer that the connection was lost.
        """
        self.listen()
        client, server = self.connect()
        client.transport.write(bytes(3_000_000))
        client.transport.abortConnection()
        client.transport.abortConnection()
        self.assertIsNone(client.reason)
        self.run_()
        self.assertIsInstance(client.reason, error.ConnectionAborted)
        self.assertIsInstance(server.reason, error.ConnectionLost)
        self.clean()

    def test_raising(self) -> None:
        """
        An exception of a protocol is logged and ends its connection, which the peer sees as lost.
        """

        class Raising(Recorder):
            def dataReceived(self, data: bytes) -> None:
                raise ZeroDivisionError

        self.listen(Raising)
        client, server = self.connect()
        _, spared = self.connect()
        client.transport.write(b"x")
        self.run_()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertIsInstance(server.reason, ZeroDivisionError)
        self.assertIsInstance(client.reason, error.ConnectionLost)
        self.assertIsNone(spared.reason)

    def test_deadPeer(self) -> None:
        """
        A peer that is gone without a word is seen.
        """
        self.listen()
        client, _ = self.connect()
        self.sockets.sockets["127.0.0.1", 4000].vanish()
        for _ in range(streammachine.RDS_STREAM_PROBES + 1):
            self.assertIsNone(client.reason)
            self.run_(streams.RDS_STREAM_PROBE_SECONDS)
        self.run_(streams.RDS_STREAM_PROBE_SECONDS)
        self.assertIsInstance(client.reason, error.ConnectionLost)

    def test_peerGone(self) -> None:
        """
        The news that a peer is gone ends the streams with sockets that nobody has.
        """
        self.listen()
        client, server = self.connect()
        other, _ = self.connect()
        socket = client.transport.socket
        socket.peerGone("192.0.2.1", Exception("gone"))
        self.run_()
        self.assertIsNone(client.reason)
        self.patch(streamsocket.StreamSocket, "isServed", lambda socket, address: True)
        socket.processGone("127.0.0.1")
        self.run_()
        self.assertIsNone(client.reason)
        self.patch(streamsocket.StreamSocket, "isServed", lambda socket, address: False)
        socket.destinationCongested(("127.0.0.1", 4000))
        socket.destinationCleared(("127.0.0.1", 4000))
        socket.processGone("127.0.0.1")
        self.run_()
        self.assertIsInstance(client.reason, error.ConnectionLost)
        self.assertEqual((server.reason, other.reason), (None, None))

    def test_finWhileClosing(self) -> None:
        """
        A peer that ends its direction while this end closes gets all the same what was written.
        """
        self.listen()
        client, server = self.connect(HalfRecorder)
        client.transport.pauseProducing()
        server.transport.write(bytes(2_000_000))
        server.transport.loseConnection()
        self.run_()
        client.transport.loseWriteConnection()
        self.run_()
        self.assertIsNone(server.reason)
        client.transport.resumeProducing()
        self.run_()
        self.assertEqual(len(client.data), 2_000_000)
        self.assertIsInstance(server.reason, error.ConnectionDone)
        self.assertIsInstance(client.reason, error.ConnectionDone)

    def test_lastWords(self) -> None:
        """
        Exceptions of a protocol, a producer or a factory at the end are logged, and harm nobody else.
        """

        class Raising(Recorder):
            def connectionLost(self, reason: Failure = connectionDone) -> None:
                raise ZeroDivisionError

            def stopProducing(self) -> None:
                raise ZeroDivisionError

            def pauseProducing(self) -> None:
                raise AssertionError

            resumeProducing = pauseProducing

        class Told(ClientFactory):
            protocol = Raising

            def clientConnectionLost(self, connector: Any, reason: Failure) -> None:
                raise ZeroDivisionError

        self.listen()
        connectStream(self.clock, "127.0.0.1", 4000, Told())
        self.run_()
        (server,) = self.accepted.protocols
        connection = server.transport.socket.streams
        self.assertEqual(len(connection), 1)
        server.transport.abortConnection()
        self.run_()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)
        self.clean()

    def test_idle(self) -> None:
        """
        A quiet connection stays.
        """
        self.listen()
        client, server = self.connect()
        for _ in range(100):
            self.run_(streams.RDS_STREAM_PROBE_SECONDS)
        self.assertIsNone(client.reason)
        client.transport.write(b"abc")
        self.run_()
        self.assertEqual(server.data, b"abc")

    def test_halfClose(self) -> None:
        """
        A protocol that can goes on reading when it has closed for writing, and its peer on writing.
        """
        self.listen(HalfRecorder)
        client, server = self.connect(HalfRecorder)
        client.transport.write(b"question")
        client.transport.loseWriteConnection()
        client.transport.write(b"too late")
        self.run_()
        self.assertEqual((client.calls, server.calls), (["made", "write"], ["made", "read"]))
        server.transport.write(b"answer")
        server.transport.loseConnection()
        self.run_()
        self.assertEqual((client.data, server.data), (b"answer", b"question"))
        self.assertEqual(client.calls, ["made", "write", "read", "lost"])
        self.assertEqual(server.calls, ["made", "read", "lost"])
        self.assertIsInstance(client.reason, error.ConnectionDone)
        self.assertIsInstance(server.reason, error.ConnectionDone)
        self.clean()

    def test_halfClosedPeer(self) -> None:
        """
        A protocol that cannot closes when the peer sends no more.
        """
        self.listen()
        client, server = self.connect(HalfRecorder)
        client.transport.loseWriteConnection()
        self.run_()
        self.assertIsInstance(client.reason, error.ConnectionDone)
        self.assertIsInstance(server.reason, error.ConnectionDone)
        self.clean()

    def test_reactorStops(self) -> None:
        """
        When the socket is closed under it a stream is lost.
        """
        self.listen()
        _, server = self.connect()
        self.sockets.sockets["127.0.0.1", 4000].stopListening()
        self.assertIsInstance(server.reason, error.ConnectionLost)


class StringTests(SynchronousTestCase):
    """
    Endpoint strings.
    """

    def test_server(self) -> None:
        """
        C{rds:PORT}, an address and a device.
        """
        endpoint = serverFromString(Clock(), r"rds:4000:interface=\:\:1:device=tcp")
        self.assertIsInstance(endpoint, RDSServerEndpoint)
        self.assertEqual((endpoint._port, endpoint._interface, endpoint._device), (4000, "::1", "tcp"))
        self.assertRaises(ValueError, serverFromString, Clock(), "rds:70000")
        self.assertRaises(TypeError, serverFromString, Clock(), "rds:1:color=red")

    def test_client(self) -> None:
        """
        C{rds:HOST:PORT}, and what goes with it.
        """
        text = "rds:127.0.0.1:4000:timeout=3:bindAddress=127.0.0.2:device=shm0"
        endpoint: Any = clientFromString(Clock(), text)
        self.assertIsInstance(endpoint, RDSClientEndpoint)
        self.assertEqual((endpoint._host, endpoint._port, endpoint._timeout), ("127.0.0.1", 4000, 3.0))
        self.assertEqual((endpoint._bindAddress, endpoint._device), (("127.0.0.2", 0), "shm0"))
        self.assertRaises(ValueError, clientFromString, Clock(), "rds:h:0")


class ApplicationTests(TestCase):
    """
    Programs that know nothing of it, in a real reactor over sockets in memory.
    """

    def setUp(self) -> None:
        """
        Put the sockets in the way.
        """
        from twisted.internet import reactor

        self.reactor: Any = reactor
        self.sockets = FakeSockets(reactor)
        self.patch(streamsocket, "listenRDS", self.sockets.listenRDS)

    async def serve(self, factory: Any) -> int:
        """
        Listen.

        @return: The port.
        """
        port = await serverFromString(self.reactor, "rds:0").listen(factory)
        self.addCleanup(port.stopListening)
        number: int = port.getHost().port
        return number

    async def client(self, port: int, factory: Any) -> Any:
        """
        Connect.
        """
        return await clientFromString(self.reactor, f"rds:127.0.0.1:{port}").connect(factory)

    async def test_lines(self) -> None:
        """
        C{LineReceiver}.
        """
        lines: Deferred[list[bytes]] = Deferred()

        class Server(basic.LineReceiver):
            def lineReceived(self, line: bytes) -> None:
                self.sendLine(line.upper())

        class Client(basic.LineReceiver):
            def connectionMade(self) -> None:
                self.found: list[bytes] = []
                self.lost: Deferred[None] = Deferred()
                for index in range(1000):
                    self.sendLine(b"line %d" % index)

            def lineReceived(self, line: bytes) -> None:
                self.found.append(line)
                if len(self.found) == 1000:
                    assert self.transport is not None
                    self.transport.loseConnection()

            def connectionLost(self, reason: Failure = connectionDone) -> None:
                lines.callback(self.found)

        port = await self.serve(Factory.forProtocol(Server))
        await self.client(port, Factory.forProtocol(Client))
        self.assertEqual(await lines, [b"LINE %d" % index for index in range(1000)])

    async def test_amp(self) -> None:
        """
        AMP.
        """

        class Sum(amp.Command):
            arguments = ((b"a", amp.Integer()), (b"b", amp.Integer()))
            response = ((b"total", amp.Integer()),)

        class Adder(amp.AMP):
            @Sum.responder
            def sum(self, a: int, b: int) -> dict[str, int]:
                return {"total": a + b}

        port = await self.serve(Factory.forProtocol(Adder))
        clients = [await self.client(port, Factory.forProtocol(amp.AMP)) for _ in range(3)]
        for index, client in enumerate(clients):
            found = await client.callRemote(Sum, a=index, b=40)
            self.assertEqual(found, {"total": index + 40})
        for client in clients:
            client.transport.loseConnection()

    async def test_pb(self) -> None:
        """
        Perspective Broker.
        """

        class Root(pb.Root):
            def remote_reversed(self, text: str) -> str:
                return text[::-1]

        port = await self.serve(pb.PBServerFactory(Root()))
        factory = pb.PBClientFactory()
        await self.client(port, factory)
        root = await factory.getRootObject()
        self.assertEqual(await root.callRemote("reversed", "abc" * 10_000), "cba" * 10_000)
        lost: Deferred[None] = Deferred()
        root.broker.notifyOnDisconnect(lambda: lost.callback(None))
        factory.disconnect()
        await lost

    async def test_web(self) -> None:
        """
        twisted.web, server and agent, with bodies longer than a window.
        """
        body = bytes(range(256)) * 8000

        class Page(resource.Resource):
            isLeaf = True

            def render_GET(self, request: Any) -> bytes:
                return body

            def render_POST(self, request: Any) -> bytes:
                found: bytes = request.content.read()
                return b"%d" % len(found)

        site = webserver.Site(Page())
        port = await self.serve(site)
        endpoint = clientFromString(self.reactor, f"rds:127.0.0.1:{port}")

        class Factory_:
            def endpointForURI(self, uri: Any) -> Any:
                return endpoint

        pool = webclient.HTTPConnectionPool(self.reactor)
        agent = webclient.Agent.usingEndpointFactory(self.reactor, Factory_(), pool)
        for _ in range(3):
            response = await agent.request(b"GET", b"http://host/")
            self.assertEqual(await webclient.readBody(response), body)
        producer: Any = webclient.FileBodyProducer(BytesIO(body))
        response = await agent.request(b"POST", b"http://host/", None, producer)
        self.assertEqual(await webclient.readBody(response), b"%d" % len(body))
        await pool.closeCachedConnections()

    async def test_tls(self) -> None:
        """
        TLS, whose memory transport stands between.
        """
        own = certificate("localhost")
        echoes: Deferred[bytes] = Deferred()

        class Echo(Protocol):
            def dataReceived(self, data: bytes) -> None:
                assert self.transport is not None
                self.transport.write(data)

        class Asker(Protocol):
            got = b""

            def connectionMade(self) -> None:
                assert self.transport is not None
                self.transport.write(bytes(200_000))

            def dataReceived(self, data: bytes) -> None:
                self.got += data
                if len(self.got) == 200_000:
                    assert self.transport is not None
                    self.transport.loseConnection()

            def connectionLost(self, reason: Failure = connectionDone) -> None:
                echoes.callback(self.got)

        factory = TLSMemoryBIOFactory(own.options(), False, Factory.forProtocol(Echo))
        port = await self.serve(factory)
        inner = clientFromString(self.reactor, f"rds:127.0.0.1:{port}")
        options = ssl.optionsForClientTLS("localhost", own)
        await wrapClientTLS(options, inner).connect(Factory.forProtocol(Asker))
        self.assertEqual(await echoes, bytes(200_000))


class ForgedTests(EndpointTestCase):
    """
    Frames that nobody should send.
    """

    def test_forged(self) -> None:
        """
        A stranger cannot reach into a connection, and rubbish in each kind harms nobody.
        """
        self.listen()
        client, server = self.connect()
        stranger = self.sockets.listenRDS(self.clock, 6000, Recorder2())
        number = server.transport.session.number
        for kind in (*FrameKind, 0, 99):
            if kind != FrameKind.OPEN:
                for session in (number, client.transport.session.number, 0, 1 << 64 - 1):
                    stranger.write(frame(kind, session, 5, 5, EndReason.ABORTED), ("127.0.0.1", 4000))
        stranger.protocol.datagramReceived = lambda data, address: None
        self.run_()
        client.transport.write(b"abc")
        self.run_()
        self.assertEqual((server.data, server.reason, client.reason), (b"abc", None, None))


class BindTests(SynchronousTestCase):
    """
    A client whose own socket cannot be had.
    """

    def test_texts(self) -> None:
        """
        It hears why, as it would of TCP.
        """
        ownRunDirectory(self)
        reactor = IBReactor()
        self.addCleanup(lambda: [channel.close() for channel in channelsOf(reactor)])
        for more, number, text in (
            ({"device": "none9"}, errno.ENODEV, "19: there is no device 'none9'; there are "),
            (
                {"device": "shm0", "bindAddress": ("192.0.2.77", 0)},
                errno.EADDRNOTAVAIL,
                "99: 192.0.2.77 is not an address of this host",
            ),
        ):
            made = RDSClientEndpoint(reactor, HOST, 4000, **more).connect(Factory.forProtocol(Protocol))
            reactor.runUntilCurrent()
            failed = self.failureResultOf(made, error.ConnectBindError).value
            self.assertEqual(failed.osError, number)
            self.assertIn(text, str(failed))


class CounterTests(ProcessesTestCase):
    """
    Counters, over real sockets.
    """

    def test_counted(self) -> None:
        """
        Plain datagrams to a port of streams are counted where everything of RDS is, and a plain socket
        beside it is reached as ever.
        """
        a, b = self.process(), self.process()
        factory = Collecting()
        port = listenStreams(a.reactor, 4000, factory, HOST, device="lo0")
        plain, other = b.listen(5000), a.listen(4001)
        for to in (4000, 4001):
            plain.transport.write(b"hello", (HOST, to))
        self.settle()
        self.assertEqual(other.data, [b"hello"])
        self.assertEqual((factory.protocols, plain.data), ([], []))
        self.assertEqual(a.network.counters["stream_plain_datagrams"], 1)
        connectStream(b.reactor, HOST, 4000, ClientFactory.forProtocol(Recorder), device="lo0")
        self.settle()
        (accepted,) = factory.protocols
        accepted.transport.write(b"x" * 200_000)
        accepted.transport.loseConnection()
        self.settle()
        self.assertIsInstance(accepted.reason, error.ConnectionDone)
        stopped = port.stopListening()
        self.pass_(4 * rcconnection.RDS_ACK_SECONDS)
        self.successResultOf(stopped)

    def test_names(self) -> None:
        """
        Each counter of streams has a name there.
        """
        source = inspect.getsource(streams) + inspect.getsource(streamsocket)
        self.assertEqual(set(re.findall(r'counters\["(\w+)"\]', source)), set(STREAM_COUNTERS))
