"""
Tests for L{twisted_ib.rdma.port} and L{twisted_ib.rdma.port} on two HCAs: what is
theirs alone; what they have in common with SDP's is tested there.
"""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from attrs import evolve
from twisted.internet import error
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.rdma.pair import LOCALHOST, Asker, PairTestCase, Raw, Recorder, Told
from twisted_ib import limits, rdma
from twisted_ib.hca.base.traits import PrivateBytes
from twisted_ib.hca.connection import ConnectRequest, Rejection, RejectReason
from twisted_ib.hca.device.registry import traitsOf
from twisted_ib.hca.wire.cm.messages import RTU
from twisted_ib.internet import connector as connectorModule
from twisted_ib.internet import port as portModule
from twisted_ib.internet.addressing.addresses import addressOf
from twisted_ib.rdma import handshake
from twisted_ib.rdma import port as rdmaPort
from twisted_ib.rdma.port import connectRDMA, listenRDMA
from twisted_ib.rdma.switching import FIRST_RETRY_SECONDS, SOCKET_SERVICE, STREAM_SERVICE, StreamSwitch


class Clients(Told):
    """
    Makes L{Recorder}s and remembers them, failures and losses.
    """

    def __init__(self) -> None:
        """
        Nothing happened.
        """
        self.made: list[Recorder] = []
        self.failures: list[Any] = []
        self.lost: list[Any] = []
        super().__init__(self.failures.append, self.lost.append)

    def buildProtocol(self, addr: Any) -> Recorder:
        self.made.append(Recorder())
        return self.made[-1]


class Forger(Asker):
    """
    Asks with another REQ than is usual.

    @ivar change: Changes it.
    @ivar rejection: The REJ that came.
    """

    rejection: Rejection | None = None

    def __init__(self, messages: Any, device: Any, port: int, change: Any) -> None:
        """
        @param change: Called with the REQ.
        """
        Asker.__init__(self, messages, device, port)
        self.change = change

    def pathReady(self, path: Any) -> None:
        here, there = addressOf(LOCALHOST, 40000), addressOf(LOCALHOST, self.port)
        request = handshake.request(self.messages, here, there)
        self.change(request)
        self.device.sendRequest(path, request, self, self.device.clock())

    def rejected(self, connection: Any, rejection: Rejection) -> None:
        self.rejection = rejection


class PortTestCase(PairTestCase):
    """
    A port at C{b}, callers at C{a}.
    """

    def setUp(self) -> None:
        super().setUp()
        pair = self.pair
        channels = {id(pair.a.reactor): pair.a.channel, id(pair.b.reactor): pair.b.channel}
        for module in (portModule, connectorModule):
            self.patch(module, "channelFor", lambda reactor, *name: channels[id(reactor)])
        self.servers = Clients()
        factory: Factory = self.servers
        self.port: Any = listenRDMA(pair.b.reactor, 0, factory, LOCALHOST, privateData=b"server")
        self.number = self.port.getHost().port
        self.clients = Clients()

    def connect(self, **options: Any) -> Any:
        """
        Begin to connect.
        """
        return connectRDMA(self.pair.a.reactor, LOCALHOST, self.number, self.clients, **options)

    def forge(self, change: Any) -> Forger:
        """
        Ask with a changed REQ.
        """
        device = self.pair.a.device
        forger = Forger(Raw(device), device, self.number, change)
        device.connect(handshake.PORT_SPACE, LOCALHOST, self.number, forger)
        self.settle()
        return forger

    def used(self, end: Any) -> tuple[int, int, int]:
        """
        @return: How many queue pairs, domains and regions there are.
        """
        used = end.device.inUse()
        return used["qp"], used["pd"], used["mr"]


class PortTests(PortTestCase):
    """
    Processing of REQs by a port.
    """

    def test_accepts(self) -> None:
        """
        Both ends know each other's addresses and private data when they are connected; the timeout and the
        backlog are Twisted's.
        """
        connector = self.connect(privateData=b"client", bindAddress=(LOCALHOST, 5555))
        self.assertEqual((connector.timeout, self.port.backlog), (30, 50))
        self.settle()
        [client], [server] = self.clients.made, self.servers.made
        self.assertEqual(server.transport.getPeer(), addressOf(LOCALHOST, 5555))
        self.assertEqual(client.transport.getPeer(), addressOf(LOCALHOST, self.number))
        self.assertEqual(server.transport.peerPrivateData, b"client".ljust(56, b"\0"))
        self.assertEqual(client.transport.peerPrivateData, b"server".ljust(196, b"\0"))
        self.assertEqual(client.transport.privateData, b"client")
        connector.disconnect()
        self.settle()
        self.assertIsInstance(self.clients.lost[0], error.ConnectionDone)
        self.assertEqual((self.used(self.pair.a), self.used(self.pair.b)), ((0, 0, 0), (0, 0, 0)))

    def test_atOnce(self) -> None:
        """
        Bytes that the server writes in C{connectionMade}, and its end, reach the client, in order.
        """

        class Hasty(Recorder):
            """
            Says all it has to say at once.
            """

            def connectionMade(self) -> None:
                """
                Say it.
                """
                for number in range(3 * limits.RDMA_RECEIVES):
                    self.transport.write(b"%d" % number)
                self.transport.loseConnection()

        self.patch(self.servers, "buildProtocol", lambda address: Hasty())
        self.connect()
        self.settle()
        for _ in range(5):
            self.pair.wait()
        expected = [b"%d" % number for number in range(3 * limits.RDMA_RECEIVES)]
        self.assertEqual(self.clients.made[0].log, [*expected, "ConnectionDone"])

    def test_oneMessage(self) -> None:
        """
        A message that comes together with the REP and the peer's end is delivered.
        """

        class Brief(Recorder):
            """
            Says one thing and goes.
            """

            def connectionMade(self) -> None:
                """
                Say it.
                """
                self.transport.write(b"the end")
                self.transport.loseConnection()

        self.patch(self.servers, "buildProtocol", lambda address: Brief())
        self.connect()
        self.pair.a.reactor.advance(0)
        for _ in range(20):
            # The client's reactor serves its device again and again, and makes no other turn.
            self.pair.b.turn(), self.pair.a.device.progress()
        self.assertEqual((len(self.clients.made), self.servers.made), (1, []))
        self.assertEqual(self.clients.made[0].log, [])
        self.settle()
        self.assertEqual(self.clients.made[0].log, [b"the end", "ConnectionDone"])

    def test_privateData(self) -> None:
        """
        Private data has the room that the device's fabric gives, less the header in a request; that there is
        no such device is told when it is opened.
        """
        known = traitsOf("lo0")
        wide = evolve(known, privateBytes=PrivateBytes(512, 512, 512, 0, 0))
        self.patch(rdmaPort, "traitsOf", lambda name: wide)
        factory: Any = self.servers
        arguments: Any = (LOCALHOST, 1, self.clients, 30, None, self.pair.a.reactor)
        for most, make in (
            (476, lambda data: rdmaPort.RDMAConnector(*arguments, privateData=data, maxMessageSize=1)),
            (512, lambda data: rdmaPort.RDMAPort(0, factory, privateData=data, maxMessageSize=1)),
        ):
            self.assertEqual(make(bytes(most)).privateData, bytes(most))
            self.assertRaises(ValueError, make, bytes(most + 1))
        self.patch(rdmaPort, "traitsOf", traitsOf)
        connector = rdmaPort.RDMAConnector(*arguments, "nothing0", privateData=b"x", maxMessageSize=1)
        self.assertEqual(connector.privateData, b"x")

    def test_confirmed(self) -> None:
        """
        The REP is enough between two sides of this package where no message is lost, also where the messages
        of one are too short to go several in a SEND; a side that says no such vendor id sends an RTU, and is
        sent one.
        """
        sent: list[int] = []

        def made(message: RTU, *arguments: Any) -> Any:
            sent.append(message.attribute)
            return pack(message, *arguments)

        # That of the class's first use makes its successor, which would be this one.
        pack = RTU.made().pack
        self.patch(RTU, "pack", made)
        for long in (True, False):
            self.connect(maxMessageSize=limits.RDMA_GATHERED - (not long))
            self.settle()
            self.assertEqual((len(self.clients.made), sent), (1, []))
            self.clients.made.pop()
        # The REP to a program of verbs says none either; such a program sends its RTU.
        forger = self.forge(lambda request: setattr(request, "vendorID", 0))
        assert forger.reply is not None
        self.assertEqual((forger.reply.vendorID, sent), (0, [RTU.attribute]))
        self.assertEqual(len(self.servers.made), 3)
        reply = handshake.reply
        self.patch(handshake, "reply", lambda *arguments: evolve(reply(*arguments), vendorID=0))
        self.connect()
        self.settle()
        self.assertEqual((len(self.clients.made), sent), (1, [RTU.attribute] * 2))

    def test_forgedAddress(self) -> None:
        """
        A REQ with an address that no process of this host has is refused, and counted.
        """

        # A listener on all addresses.
        self.port.stopListening()
        self.port = listenRDMA(self.pair.b.reactor, 0, self.servers, "", privateData=b"server")
        self.number = self.port.getHost().port
        # RDMACMHeader: the source's last octets, and the destination's.
        zeros, counters = bytes(4), self.pair.b.device.counters
        for forged in ({16: bytes((192, 0, 2, 1))}, {32: zeros}, {16: zeros, 32: zeros}):

            def foreign(request: ConnectRequest, forged: dict[int, bytes] = forged) -> None:
                data = bytearray(request.privateData)
                for at, octets in forged.items():
                    data[at : at + 4] = octets
                request.privateData = bytes(data)

            counters.clear()
            forger = self.forge(foreign)
            assert forger.rejection is not None
            self.assertEqual(forger.rejection.reason, 28)
            self.assertEqual(counters["bad_hello"], 1)
            self.assertEqual(self.servers.made, [])

    def test_forgedVersion(self) -> None:
        """
        So is one whose header is not one.
        """

        def other(request: ConnectRequest) -> None:
            request.privateData = b"\1" + request.privateData[1:]

        forger = self.forge(other)
        assert forger.rejection is not None
        self.assertEqual((forger.rejection.reason, self.servers.made), (28, []))

    def test_noResources(self) -> None:
        """
        A connection for which there is no queue pair is refused; nothing is left of it.
        """
        self.patch(limits, "QUEUE_PAIRS", 1)
        raw = Raw(self.pair.b.device)  # Has the one that there is.
        before = self.used(self.pair.b)
        self.connect()
        self.settle()
        [reason] = self.clients.failures
        self.assertIsInstance(reason, error.ConnectionRefusedError)
        self.assertIn("no resources", str(reason))
        self.assertEqual(self.used(self.pair.b), before)
        self.assertEqual(self.used(self.pair.a), (0, 0, 0))
        raw.queuePair.close()

    def test_noProtocol(self) -> None:
        """
        A factory that gives no protocol has the connection closed.
        """
        self.patch(self.servers, "buildProtocol", lambda address: None)
        self.connect()
        self.settle()
        self.assertEqual(self.clients.made[0].log, ["ConnectionDone"])
        self.assertEqual(self.used(self.pair.b), (0, 0, 0))

    def test_stopped(self) -> None:
        """
        A port that has stopped refuses; its connections stay.
        """
        self.connect()
        self.settle()
        self.port.stopListening()
        self.settle()
        self.connect()
        self.settle()
        self.assertIsInstance(self.clients.failures[0], error.ConnectionRefusedError)
        self.clients.made[0].transport.write(b"still there")
        self.settle()
        self.assertEqual(self.servers.made[0].log, [b"still there"])


class ConnectorTests(PortTestCase):
    """
    Attempts that end early leave nothing.
    """

    def test_timeout(self) -> None:
        """
        The timeout ends an attempt.
        """
        self.port.pauseProducing()
        self.connect(timeout=5)
        self.settle()
        self.pair.advance(5)
        self.settle()
        [reason] = self.clients.failures
        self.assertIsInstance(reason, error.TimeoutError)
        self.assertIn("RDMA 127.0.0.1", str(reason))
        self.assertEqual(self.used(self.pair.a), (0, 0, 0))

    def test_stopConnecting(self) -> None:
        """
        So does the user.
        """
        self.port.pauseProducing()
        connector = self.connect()
        self.settle()
        connector.stopConnecting()
        self.settle()
        self.assertIsInstance(self.clients.failures[0], error.UserError)
        self.assertEqual(self.used(self.pair.a), (0, 0, 0))
        self.port.resumeProducing()
        self.settle()
        self.assertEqual(self.servers.made, [])

    def test_waits(self) -> None:
        """
        A port that does not accept now keeps the request.
        """
        self.port.pauseProducing()
        self.connect()
        self.settle()
        self.assertEqual(len(self.port.requests), 1)
        self.port.resumeProducing()
        self.settle()
        self.assertEqual((len(self.clients.made), len(self.servers.made)), (1, 1))

    def test_factoryRaises(self) -> None:
        """
        A factory that raises fails the attempt.
        """
        self.patch(self.clients, "buildProtocol", lambda address: 1 // 0)
        self.connect()
        self.settle()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertIsInstance(self.clients.failures[0], error.ConnectError)
        self.assertEqual(self.used(self.pair.a), (0, 0, 0))
        self.assertEqual(self.servers.made[0].log[-1:], ["ConnectionDone"])
        self.assertEqual(self.used(self.pair.b), (0, 0, 0))


class RetryTests(SynchronousTestCase):
    """
    An active side that asks before the passive side's application has.
    """

    def test_later(self) -> None:
        """
        It asks again, after twice the time each, and half a second at most.
        """
        connection, reactor = Mock(), Mock()
        rejected: Any = StreamSwitch.rejected
        waits = SimpleNamespace(
            _delay=FIRST_RETRY_SECONDS, _isStreamOver=False, _ask=Mock(), former=Mock(reactor=reactor)
        )
        for _ in range(8):
            waits.connection = connection
            rejected(waits, connection, Mock(reason=RejectReason.INVALID_SERVICE_ID))
            self.assertIsNone(waits.connection)
        self.assertEqual(
            [call.args for call in reactor.callLater.call_args_list],
            [(seconds, waits._ask) for seconds in (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5)],
        )

    def made(self) -> Any:
        """
        @return: one whose stream's peer is C{"peer"}, and that counts how it fails.
        """
        made: Any = StreamSwitch.__new__(StreamSwitch)
        made.channel, made.answer, made._fail = Mock(), Mock(), Mock()
        made.peer = made._path = SimpleNamespace(host="peer", peer="peer")
        return made

    def test_streamEnds(self) -> None:
        """
        The end of the stream may overtake the REP, behind which no REQ is repeated; without a REQ that is on
        its way, or as a loss, it fails the switch.
        """
        for asks, reason, failures in (
            (True, error.ConnectionDone(), 0),
            (True, error.ConnectionLost(), 1),
            (False, error.ConnectionDone(), 1),
        ):
            made = self.made()
            made.connection = Mock() if asks else None
            made.formerLost(Failure(reason))
            self.assertEqual(made._fail.call_count, failures)
            if not failures:
                made.rejected(made.connection, Mock(reason=RejectReason.INVALID_SERVICE_ID))
                self.assertEqual((made._fail.call_count, made._later), (1, None))
        # While the stream is there, it is repeated.
        made = self.made()
        made.connection, made.former = Mock(), Mock()
        made.rejected(made.connection, Mock(reason=RejectReason.INVALID_SERVICE_ID))
        self.assertEqual((made._fail.call_count, made._later), (0, made.former.reactor.callLater()))

    def test_strangers(self) -> None:
        """
        A REQ of another peer than the stream's is refused as if nobody listened, one that is not understood
        with its reason; neither is answered.
        """
        wrong, unsupported = RejectReason.INVALID_SERVICE_ID, RejectReason.UNSUPPORTED_REQUEST
        for peer, reason, expected in (
            ("another", None, wrong),
            ("another", unsupported, wrong),
            ("peer", unsupported, unsupported),
        ):
            made, connection = self.made(), Mock()
            connection.destination.peer = peer
            made.connectionRequested(connection, Mock(unsupported=reason))
            connection.reject.assert_called_once_with(expected, b"", made.channel.now())
            made.answer.assert_not_called()
        made, connection, request = self.made(), Mock(), Mock(unsupported=None)
        connection.destination.peer = "peer"
        made.connectionRequested(connection, request)
        connection.reject.assert_not_called()
        made.answer.assert_called_once_with(connection, request)

    def test_service(self) -> None:
        """
        The services are such that no program listens on by a port: an operating system's.
        """
        services = [each.to_bytes(8, "big") for each in (STREAM_SERVICE, SOCKET_SERVICE)]
        self.assertEqual(services, [b"\x02SDPR\0\0\0", b"\x02MPAS\0\0\0"])


class PackageTests(SynchronousTestCase):
    """
    What the package is used by.
    """

    def test_names(self) -> None:
        """
        Each name of L{twisted_ib.rdma} is what is called so; another is an error.
        """
        self.assertEqual([getattr(rdma, name).__name__ for name in rdma.__all__], rdma.__all__)
        self.assertRaises(AttributeError, getattr, rdma, "nothing")

    def test_patience(self) -> None:
        """
        By default a switch waits for 10 seconds.
        """
        self.assertEqual(signature(rdma.switchToRDMA).parameters["timeout"].default, 10.0)
