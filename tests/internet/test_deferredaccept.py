"""
Tests of L{twisted_ib.internet.deferredaccept}: a port of a fabric of packets makes a transport when the
peer is ready.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric import faults
from tests.simulation.streams import ADDRESSES, Client, Sender, Streams
from twisted_ib import limits
from twisted_ib.hca.cm.parked import Parked
from twisted_ib.hca.fabric.roce.peerpath import PeerPath
from twisted_ib.hca.wire.cm.messages import DREQ, REJ, REP, REQ, RTU
from twisted_ib.rdma.port import connectRDMA, listenRDMA
from twisted_ib.sdp.port import connectSDP, listenSDP


class Recorder(Protocol):
    """
    Remembers.
    """

    def __init__(self) -> None:
        """
        Nothing came.
        """
        self.data = b""
        self.over = False

    def dataReceived(self, data: bytes) -> None:
        """
        Some came.
        """
        self.data += data

    def connectionLost(self, reason: object = None) -> None:
        """
        It is over.
        """
        self.over = True


def attributeOf(datagram: bytes) -> int:
    """
    Return the attribute id of a CM message in a datagram; 0 for another datagram.
    """
    return int.from_bytes(datagram[36:38], "big") if datagram[0] == 0x64 else 0


class Ending(Protocol):
    """
    Closes the connection when something comes; of streams and of messages.
    """

    over = False

    def dataReceived(self, data: bytes) -> None:
        """
        Some came.
        """
        assert self.transport is not None
        self.transport.loseConnection()

    def messageReceived(self, view: memoryview) -> None:
        """
        A message came.
        """
        self.dataReceived(bytes(view))

    def connectionLost(self, reason: object = None) -> None:
        """
        It is over.
        """
        self.over = True


class Speaking(Ending):
    """
    Says something first.
    """

    def connectionMade(self) -> None:
        """
        Say it.
        """
        transport: Any = self.transport
        (transport.sendMessage if hasattr(transport, "sendMessage") else transport.write)(b"data")


class PromiseTests(SynchronousTestCase):
    """
    A client and a server.
    """

    def setUp(self) -> None:
        self.streams = Streams(1)
        self.addCleanup(self.streams.close)
        self.world = self.streams.world
        self.device = self.streams.channels[ADDRESSES[1]].device
        self.made: list[Recorder] = []
        self.port = self.streams.listen(Factory.forProtocol(self.make))  # type: ignore[arg-type]

    def make(self) -> Recorder:
        """
        The protocol of a connection.
        """
        self.made.append(Recorder())
        return self.made[-1]

    def lose(self, side: int, *messages: type) -> list[int]:
        """
        Lose some messages of a side.

        @return: what was lost, by attribute.
        """
        lost: list[int] = []
        attributes = [message.attribute for message in messages]  # type: ignore[attr-defined]

        def fault(datagram: bytes, now: float) -> faults.Deliveries:
            """
            Look at one.
            """
            attribute = attributeOf(datagram)
            if attribute in attributes:
                lost.append(attribute)
                return []
            return [(0.0, datagram)]

        self.streams.links[side].faults.append(fault)
        return lost

    def wait(self, seconds: float) -> None:
        """
        Let time pass.
        """
        self.world.run(lambda: False, seconds)

    def test_nobody(self) -> None:
        """
        Before the peer has heard the answer there is no queue pair and no protocol; when it never does,
        nothing is left.
        """
        lost = self.lose(1, REP)
        client = self.streams.connect(Recorder(), 20)
        self.wait(2.0)
        self.assertGreaterEqual(len(lost), 2)
        self.assertEqual((self.made, self.device.queuePairs, len(self.device.cm.accepted)), ([], {}, 1))
        self.wait(400.0)
        assert client.failure is not None
        self.assertEqual((self.made, self.device.queuePairs, self.device.cm.accepted), ([], {}, {}))
        self.assertEqual(len(self.device.cm), 0)

    def test_withoutRTU(self) -> None:
        """
        The first data says as much as an RTU.
        """
        lost = self.lose(0, RTU)
        sender = Sender(b"data")
        self.streams.connect(sender)
        self.wait(0.5)
        self.assertEqual(lost[0], RTU.attribute)
        self.assertEqual([each.data for each in self.made], [b"data"])
        self.assertEqual((len(self.device.cm.accepted), len(self.device.queuePairs)), (0, 1))

    def test_strangersData(self) -> None:
        """
        Data from another address, or without the numbers that only the peer knows, is not taken for an RTU.
        """
        self.lose(0, RTU)
        self.streams.connect(Recorder())
        self.wait(0.1)
        (number,) = self.device.cm.accepted
        halfOpen: Any = self.device.cm.parked.awaited(number).user  # type: ignore[union-attr]
        psn = halfOpen.proposal.expectedPSN
        halfOpen.park()
        self.device.arrivedEarly(number, "10.0.0.9", psn)
        self.device.arrivedEarly(number ^ 1, ADDRESSES[0], psn)
        for other in (-1, limits.TRANSPORT_WINDOW, 1 << 23):
            self.device.arrivedEarly(number, ADDRESSES[0], psn + other & 0xFFFFFF)
        self.assertEqual(self.made, [])
        self.device.arrivedEarly(number, ADDRESSES[0], psn + limits.TRANSPORT_WINDOW - 1 & 0xFFFFFF)
        self.assertEqual((len(self.made), list(self.device.queuePairs)), (1, [number]))

    def test_small(self) -> None:
        """
        Of a request that may be forged only octets are kept: 92 of private data, and few others.
        """
        self.lose(1, REP)
        self.streams.connect(Recorder(), 20)
        self.wait(1.0)
        [parked] = self.device.cm.accepted.values()
        assert isinstance(parked, Parked)
        self.assertLessEqual(len(parked.record), 29 + 72 + 23 + 25 + 92)

    def test_otherTerms(self) -> None:
        """
        A REQ for another transport service, or for packets that do not fit, gets no half-open connection.
        """
        send = PeerPath.sendManagement
        for name, value in (("transportServiceType", 1), ("transportServiceType", 3), ("pathMTU", 7)):

            def asking(
                path: Any, attribute: int, body: bytes, *rest: Any, name: str = name, value: int = value
            ) -> None:
                """
                Ask for something else.
                """
                if attribute == REQ.attribute:
                    request = REQ.parse(body, 0, len(body))
                    setattr(request, name, value)
                    body = request.pack()
                send(path, attribute, body, *rest)

            self.patch(PeerPath, "sendManagement", asking)
            client = self.streams.connect(Recorder(), 20)
            self.wait(1.0)
            self.assertIsNotNone(client.failure, name)
            self.assertEqual((self.made, self.device.cm.accepted, len(self.device.cm)), ([], {}, 0))

    def test_givenUp(self) -> None:
        """
        The client goes before it was ready.
        """
        self.lose(1, REP)
        self.streams.connect(Recorder(), 0.01)
        self.wait(0.005)
        self.assertEqual(len(self.device.cm.accepted), 1)
        lost = self.lose(0, DREQ)
        self.wait(0.1)  # It says so by a REJ.
        self.assertEqual(lost, [])
        self.assertEqual((self.made, self.device.cm.accepted, len(self.device.cm)), ([], {}, 0))

    def test_stopped(self) -> None:
        """
        The port closes before the peer is ready: it is disconnected then.
        """
        self.streams.links[0].faults.append(faults.Delay(self.streams.dice, 0.1))
        client = Recorder()
        self.streams.connect(client)
        self.wait(0.15)
        self.assertEqual(len(self.device.cm.accepted), 1)
        self.port.stopListening()
        self.world.run(lambda: client.over, 5.0)
        self.assertTrue(client.over)
        self.assertEqual((self.made, self.device.queuePairs, self.device.cm.accepted), ([], {}, {}))

    def test_rejected(self) -> None:
        """
        A peer that loses all REPs and gives up leaves nothing, although its REJ is lost, too.
        """
        self.lose(1, REP)
        self.lose(0, REJ)
        self.streams.connect(Recorder(), 0.01)
        self.wait(400.0)
        self.assertEqual((self.made, self.device.cm.accepted, len(self.device.cm)), ([], {}, 0))

    def end(self, delays: list[float], listen: Any, connect: Any) -> None:
        """
        A connection, from its beginning to its end.

        @param delays: of the RTU, in seconds; none if it is lost.
        """
        sent: list[int] = []

        def fault(datagram: bytes, now: float) -> faults.Deliveries:
            """
            Note the messages of both sides.
            """
            sent.append(attributeOf(datagram))
            return [(delay, datagram) for delay in (delays if sent[-1] == RTU.attribute else [0.0])]

        for link in self.streams.links:
            link.faults.append(fault)
        server, speaker, reactor = Ending(), Speaking(), self.streams.host.reactor
        factory = Factory.forProtocol(lambda: server)  # type: ignore[arg-type]
        port = listen(reactor, 7, factory, interface=ADDRESSES[1], device=ADDRESSES[1])
        connect(reactor, ADDRESSES[1], 7, Client(speaker), device=ADDRESSES[0])
        self.world.run(lambda: server.over and speaker.over, 20.0)
        self.wait(2.0)
        self.assertIn(RTU.attribute, sent)
        self.assertIn(DREQ.attribute, sent)
        self.assertNotIn(REJ.attribute, sent)
        port.stopListening()
        for link in self.streams.links:
            link.faults.remove(fault)

    def test_overtaken(self) -> None:
        """
        The RTU is lost, comes when all is over, or right behind the data, and the server closes at once: by a
        DREQ, as there is a connection, and not by a REJ.
        """
        for delays in [], [1.0], [0.001]:
            self.end(delays, listenSDP, connectSDP)
            self.end(delays, listenRDMA, connectRDMA)
