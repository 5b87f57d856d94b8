"""
Queue pairs of streams on packets, which keep nothing of what they send: what the path does for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.contracts.path import Consumer
from tests.hca.fabric.roce.test_devices import HERE, THERE, PacketTestCase
from tests.hca.fabric.roce.test_hostile import packet
from tests.hca.hcas import settle
from tests.hca.memorylink import Datagram
from twisted_ib import limits
from twisted_ib.errors import PathLostError, QueuePairError
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.roce import packet as rocePacket
from twisted_ib.hca.fabric.roce import qppath
from twisted_ib.hca.fabric.roce import sessions as roceSessions
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.queues.streamqueuepair import SEND_SOLICITED
from twisted_ib.hca.transport import responder, sendwindow
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE, SEND_ONLY

SEND_FIRST, SEND_MIDDLE, SEND_LAST = 0, 1, 2


class StreamTests(PacketTestCase):
    """
    Two streams.
    """

    def joined(self) -> tuple[QueuePair, QueuePair]:
        """
        @return: Two queue pairs that are connected by what a REQ and a REP have said.
        """
        devices = self.device(HERE), self.device(THERE)
        one, two = ends = [device.createQueuePair(Consumer()) for device in devices]
        here, there = (
            device.fabric.pathTo(address) for device, address in zip(devices, (THERE, HERE), strict=True)
        )
        request = ConnectRequest(localQPN=one.number, responderResources=1, retryCount=7, rnrRetryCount=7)
        here.prepareRequest(request)
        reply = ConnectReply(localQPN=two.number, responderResources=1, rnrRetryCount=7)
        there.prepareReply(reply, request)
        two.connect(there, one.number, request)
        one.connect(here, two.number, reply)
        for end in ends:
            end.postReceives(100)
        return one, two

    def until(self, *devices: Device, seconds: float = 1.0) -> None:
        """
        Let so much time pass.
        """
        for _ in range(round(seconds * 100)):
            settle(*devices)
            self.clock.advance(0.01)
            for device in devices:
                device.tick(self.clock.seconds())
        settle(*devices)

    def lose(self, *numbers: int) -> None:
        """
        Lose some of the next datagrams, by number from 0 on.
        """
        count = iter(range(1 << 30))
        self.wire.pass_ = lambda datagram: () if next(count) in numbers else (datagram,)

    def post(self, queuePair: QueuePair, data: bytes) -> None:
        """
        Send a message.
        """
        queuePair.postInline(data[:16], data[16:], len(data) - 16)

    def messages(self, queuePair: QueuePair) -> list[bytes]:
        """
        @return: the messages received.
        """
        found: list[bytes] = queuePair.consumer.messages
        return found

    def test_flowsKept(self) -> None:
        """
        A connection knows the flow of its peer's packets, and does not keep its state, of which a device has
        so many.
        """
        one, two = self.joined()
        self.post(one, bytes(60000))
        settle(one.device, two.device)
        self.assertEqual(two.path.heard, (HERE, THERE, one.path.port))

    def test_joined(self) -> None:
        """
        A message of many packets is given to the consumer as one; its slices are bytes.
        """
        one, two = self.joined()
        sent = [bytes([n]) * size for n, size in enumerate((16, 17, 1024, 1025, 5000, limits.INLINE_MESSAGE))]
        for data in sent:
            self.post(one, data)
            settle(one.device, two.device)
        self.assertEqual(self.messages(two), sent)
        self.assertEqual({type(data) for data in self.messages(two)}, {bytes})
        self.assertEqual((one.device.deadline(), two.device.deadline()), (None, None))

    def test_closedAtOnce(self) -> None:
        """
        Data sent before a close arrives though packets are lost; then nothing is left.
        """
        one, two = self.joined()
        device = one.device
        self.lose(0, 2, 3)
        self.post(one, b"x" * 4000)
        self.post(one, b"the end" * 9)
        one.close()
        self.until(device, two.device, seconds=3.0)
        self.assertEqual(self.messages(two), [b"x" * 4000, b"the end" * 9])
        sessions: Any = device.fabric.sessions
        self.assertEqual((sessions.byNumber, sessions.lingering, device.deadline()), ({}, {}, None))
        self.assertEqual(device.fabric.paths(), [])

    def test_lingersSoLong(self) -> None:
        """
        That ends after a time if the peer is gone.
        """
        one, two = self.joined()
        device = one.device
        self.wire.pass_ = lambda datagram: ()
        self.post(one, b"x" * 4000)
        one.close()
        self.until(device, seconds=roceSessions.PACKET_LINGER_SECONDS - 0.5)
        sessions: Any = device.fabric.sessions
        self.assertEqual(len(sessions.byNumber), 1)
        self.until(device, seconds=1.0)
        self.assertEqual((sessions.byNumber, sessions.lingering, device.deadline()), ({}, {}, None))
        two.close()

    def test_lingeringBound(self) -> None:
        """
        Of those that go on so the oldest ends when there are too many.
        """
        self.patch(roceSessions, "PACKET_LINGERING", 3)
        here, _ = self.device(HERE), self.device(THERE)
        self.wire.pass_ = lambda datagram: ()
        for _ in range(5):
            queuePair = here.createQueuePair(Consumer())
            queuePair.connect(here.fabric.pathTo(THERE), 77, ConnectReply(rnrRetryCount=7))
            self.post(queuePair, b"x" * 100)
            queuePair.close()
        self.assertEqual(len(here.fabric.sessions.byNumber), 3)

    def test_numberAgain(self) -> None:
        """
        If its number is another's meanwhile, the older one ends.
        """
        one, two = self.joined()
        device: Any = one.device
        self.wire.pass_ = lambda datagram: ()
        self.post(one, b"x" * 100)
        one.close()
        settle(device)
        again = QueuePair(one.number, Consumer(), device)
        again.connect(device.fabric.pathTo(THERE), 99, ConnectReply(rnrRetryCount=7))
        settle(device)
        sessions = device.fabric.sessions
        self.assertEqual((sessions.lingering, sessions.byNumber), ({}, {one.number: again.path}))
        self.assertIsNone(device.deadline())
        two.close()

    def test_silence(self) -> None:
        """
        A peer that does not answer for the stream's time is lost.
        """
        one, two = self.joined()
        self.wire.pass_ = lambda datagram: ()
        self.post(one, b"x" * 100)
        self.until(one.device, seconds=30.0)
        self.assertEqual(one.state, QPState.RTS)
        self.until(one.device, seconds=10.0)
        (failure,) = one.consumer.failures
        self.assertIsInstance(failure, PathLostError)
        self.assertIn(THERE, str(failure))
        self.assertEqual(one.device.counters["retry_exceeded_err"], 1)
        self.assertEqual((one.device.fabric.sessions.byNumber, one.device.deadline()), ({}, None))
        two.close()

    def test_comesBack(self) -> None:
        """
        One that is silent for 30 seconds is not.
        """
        one, two = self.joined()
        kept: list[Datagram] = []
        self.wire.pass_ = lambda datagram: kept.append(datagram) or ()
        self.post(one, b"x" * 3000)
        self.until(one.device, seconds=30.0)
        self.wire.pass_ = lambda datagram: (datagram,)
        self.until(one.device, two.device, seconds=8.0)
        self.assertEqual(self.messages(two), [b"x" * 3000])
        self.assertEqual((one.consumer.failures, one.device.deadline()), ([], None))

    def test_tooLong(self) -> None:
        """
        A message that is longer than any is refused, and nothing of it is kept.
        """
        one, two = self.joined()
        psn = one.path.connection.requester._terms.firstPSN
        code = SEND_FIRST
        for n in range(limits.INLINE_RECORD // 1024 + 1):
            data = packet(code, two.number, b"x" * 1024, psn + n & 0xFFFFFF, port=one.path.port)
            self.wire.deliver((HERE, THERE, one.path.port, 0, data))
            settle(two.device)
            code = SEND_MIDDLE
        (failure,) = two.consumer.failures
        self.assertIsInstance(failure, QueuePairError)
        self.assertIn("too long", str(failure))
        self.assertEqual(self.messages(two), [])

    def test_partial(self) -> None:
        """
        A bounded number of streams have a part of a message; one that begins beyond that waits, and loses
        nothing.
        """
        self.patch(qppath, "PACKET_REASSEMBLIES", 1)
        one, two = self.joined()
        held: Any = object()
        two.device.fabric.partial[held] = None
        data = [b"whole" * 20, b"x" * 5000]
        for each in data:
            self.post(one, each)
        self.until(one.device, two.device, seconds=0.1)
        self.assertEqual(self.messages(two), data[:1])
        self.assertGreater(one.device.counters["rcvd_rnr_err"], 2)
        del two.device.fabric.partial[held]
        self.until(one.device, two.device, seconds=0.1)
        self.assertEqual(self.messages(two), data)
        self.assertEqual(two.device.fabric.partial, {})

    def test_solicited(self) -> None:
        """
        The last packet of a solicited message says so; to a stream it is a message like any other.
        """
        one, two = self.joined()
        one.sends = SEND_SOLICITED
        self.wire.log = log = []
        data = [b"short" * 20, b"x" * 3000]
        for each in data:
            self.post(one, each)
        self.until(one.device, two.device, seconds=0.1)
        self.assertEqual(self.messages(two), data)
        events = [octets[1] & SOLICITED for source, *_, octets in log if source == HERE and octets[0] < 5]
        self.assertEqual(events, [SOLICITED, 0, 0, SOLICITED])

    def test_waits(self) -> None:
        """
        Where a message may have to wait for a receive it is refused by its first packet and comes again,
        whatever its length; elsewhere the peer has broken the rules.
        """
        one, two = self.joined()
        two.waits, two.posted, two.minRNRTimer = True, 0, 10
        data = [b"short" * 20, b"x" * 5000, b"last" * 20]
        for each in data:
            self.post(one, each)
            self.until(one.device, two.device, seconds=0.1)
        self.assertEqual((self.messages(two), two.device.fabric.partial), ([], {}))
        refused = two.device.counters["send_rnr_err"]
        self.assertGreater(refused, 2)
        for count in (1, 2):
            two.postReceives(1)
            self.until(one.device, two.device, seconds=0.1)
            self.assertEqual((self.messages(two), two.device.fabric.partial), (data[:count], {}))
        self.assertGreater(two.device.counters["send_rnr_err"], refused)
        two.waits = False
        self.until(one.device, two.device, seconds=0.1)
        self.assertEqual((two.state, self.messages(two)), (QPState.ERR, data[:2]))

    def test_withdrawn(self) -> None:
        """
        A message that has begun gets its receive, though the consumer has withdrawn those that were left.
        """
        _, two = self.joined()
        path = two.path
        assert path is not None
        two.waits = True
        self.assertEqual(path.delivered(SEND_FIRST, b"x" * 1024, 0, 1024), 0)
        two.posted = 0
        self.assertEqual(path.delivered(SEND_LAST, b"yz", 0, 2), 0)
        self.assertEqual((self.messages(two), two.posted), ([b"x" * 1024 + b"yz"], 0))

    def test_partialEnds(self) -> None:
        """
        A queue pair that is closed in the middle of a message keeps nothing.
        """
        _, two = self.joined()
        device, path = two.device, two.path
        assert path is not None
        self.assertEqual(path.delivered(SEND_FIRST, b"x" * 1024, 0, 1024), 0)
        self.assertEqual(list(device.fabric.partial), [path])
        two.close()
        self.assertEqual(device.fabric.partial, {})

    def test_consumerFails(self) -> None:
        """
        An exception of a consumer is raised at the end of the turn, once, and what came behind it is
        processed all the same.
        """
        one, two = self.joined()
        taken: list[bytes] = []

        def received(buffer: Any, start: int, stop: int) -> None:
            """
            Fail over one message.
            """
            taken.append(buffer[start:stop])
            if len(taken) == 2:
                raise ZeroDivisionError

        two.consumer.received = received
        for n in range(5):
            self.post(one, bytes([n]) * 20)
        one.device.progress()
        self.assertRaises(ZeroDivisionError, two.device.progress)
        settle(one.device, two.device)
        self.assertEqual(taken, [bytes([n]) * 20 for n in range(5)])
        self.assertEqual(one.device.deadline(), None)

    def test_disorder(self) -> None:
        """
        Packets that overtake each other, or come twice, make no difference.
        """
        one, two = self.joined()
        held: list[Datagram] = []

        def shuffle(datagram: Datagram) -> Iterable[Datagram]:
            """
            Exchange neighbours, repeat some.
            """
            held.append(datagram)
            if len(held) < 3:
                return ()
            found, held[:] = [held[2], held[0], held[1], held[0]], []
            return found

        self.wire.pass_ = shuffle
        sent = [bytes([n]) * 2500 for n in range(20)]
        for data in sent:
            while not one.canPost():
                self.until(one.device, two.device, seconds=0.1)
            self.post(one, data)
        self.until(one.device, two.device, seconds=5.0)
        self.assertEqual(self.messages(two), sent)


class PatienceTests(StreamTests):
    """
    The same with fabrics that are patient, as on a reactor that looks at them all the time.
    """

    def device(self, address: str) -> Device:
        """
        @return: A patient HCA at an address.
        """
        device = super().device(address)
        device.fabric.patient = True
        return device

    def acknowledgements(self) -> int:
        """
        @return: How many have left.
        """
        assert self.wire.log is not None
        return sum(each[4][0] == 0x11 for each in self.wire.log)

    def exchange(self, one: QueuePair, two: QueuePair, times: int) -> None:
        """
        Send messages there and back again.
        """
        for number in range(times):
            for here, there in ((one, two), (two, one)):
                self.post(here, b"%16d" % number)
                here.device.progress()
                self.assertTrue(there.device.busy())
                there.device.fabric.progress()
                self.assertEqual(self.messages(there)[-1], b"%16d" % number)

    def test_answersFirst(self) -> None:
        """
        While one message follows the other few are acknowledged; when nothing comes any more, all are.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        self.wire.log = []
        many = 5 * responder.TRANSPORT_DEFERRED
        self.exchange(one, two, many)
        self.assertLess(self.acknowledgements(), many // 4)
        self.assertGreaterEqual(self.acknowledgements(), 2 * many // responder.TRANSPORT_DEFERRED - 4)
        self.assertFalse(one.path.isDone and two.path.isDone)  # type: ignore[union-attr]
        for device in (one.device, two.device):
            device.progress()
            device.progress()
        settle(one.device, two.device)
        self.assertTrue(one.path.isDone and two.path.isDone)  # type: ignore[union-attr]
        self.assertIsNone(one.device.deadline())

    def test_together(self) -> None:
        """
        After a pause an answer leaves in one call with the acknowledgement of what it answers, where that is
        no longer and the link takes several; where there is none that leaves at the end of the same batch.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        link, calls = self.wire.links[THERE], list[list[int]]()
        send = link.send

        def noted(destination: str, port: int, pieces: list[Any], size: int, *marks: int) -> bool:
            """
            Note the opcodes of a call.
            """
            data = b"".join(pieces)
            calls.append([data[at] for at in range(0, len(data), size)])
            return send(destination, port, pieces, size, *marks)

        link.send = noted  # type: ignore[method-assign]
        for burst, size, expected in (
            (62, 64, [[SEND_ONLY, ACKNOWLEDGE]]),
            (62, 4, [[SEND_ONLY, ACKNOWLEDGE]]),
            (62, 0, [[SEND_ONLY], [ACKNOWLEDGE]]),
            (1, 64, [[SEND_ONLY], [ACKNOWLEDGE]]),
            (62, -1, [[ACKNOWLEDGE]]),
        ):
            for coalesces in (False, True):
                link.burst, self.wire.links[HERE].coalesces = burst, coalesces
                self.clock.advance(2 * rocePacket.PACKET_PATIENCE_SECONDS)
                self.post(one, bytes(64))
                one.device.progress()
                calls.clear()
                two.device.fabric.progress()
                if size >= 0:
                    two.postInline(b"", bytes(size), size)
                two.device.ringBells()
                self.assertEqual(calls, expected, size)
                settle(one.device, two.device)
                self.assertTrue(one.path.isDone and two.path.isDone)  # type: ignore[union-attr]
        self.assertEqual([len(each) for each in self.messages(one)], [64, 64, 4, 4, 0, 0, 64, 64])

    def test_alone(self) -> None:
        """
        A message outside of a batch leaves at once, whatever is owed.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        self.exchange(one, two, 3)
        self.assertTrue(two.path.connection.owes)  # type: ignore[union-attr]
        self.clock.advance(2 * rocePacket.PACKET_PATIENCE_SECONDS)
        self.wire.log = []
        self.post(two, bytes(64))
        self.assertEqual([each[4][0] for each in self.wire.log], [SEND_ONLY])

    def test_published(self) -> None:
        """
        What a peer may answer is counted, and no acknowledgement, alone or with a message.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        self.wire.log = []
        counts = [end.device.fabric.published() for end in (one, two)]
        self.post(one, bytes(64))
        settle(one.device, two.device)
        self.clock.advance(2 * rocePacket.PACKET_PATIENCE_SECONDS)
        for many, sender in ((1, one), (2, two)):
            for _ in range(many):
                self.post(sender, bytes(64))
            settle(one.device, two.device)
            self.assertGreater(self.acknowledgements(), 0)
        found = [end.device.fabric.published() for end in (one, two)]
        self.assertEqual(found, [counts[0] + 2, counts[1] + 2])

    def test_impatient(self) -> None:
        """
        Once its caller polls no more what was delayed leaves at once, whatever comes from others.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        self.exchange(one, two, 3)
        self.wire.log = []
        receive = two.device.fabric.link.receive
        self.patch(two.device.fabric.link, "receive", lambda budget: receive(budget) + 1)
        for patient, expected in ((True, 0), (False, 1)):
            two.device.fabric.patient = patient
            two.device.progress()
            self.assertEqual(self.acknowledgements(), expected)

    def test_beforeSleep(self) -> None:
        """
        Before a fabric sleeps it has acknowledged everything.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        self.exchange(one, two, 3)
        two.device.progress()
        self.wire.log = []
        two.device.arm()
        one.device.arm()
        self.assertGreater(self.acknowledgements(), 0)
        settle(one.device, two.device)
        self.assertTrue(one.path.isDone and two.path.isDone)  # type: ignore[union-attr]

    def test_busy(self) -> None:
        """
        Where something always comes from others an acknowledgement waits for a time, and not until its peer
        sends again.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        receive = two.device.fabric.link.receive
        self.patch(two.device.fabric.link, "receive", lambda budget: receive(budget) + 1)
        for number in range(2):
            self.post(one, b"%16d" % number)
            one.device.progress()
            two.device.progress()
        self.wire.log = []
        two.device.progress()
        self.assertEqual(self.acknowledgements(), 0)
        self.clock.advance(2 * rocePacket.PACKET_PATIENCE_SECONDS)
        two.device.progress()
        self.assertEqual(self.acknowledgements(), 1)

    def test_notOften(self) -> None:
        """
        One that comes alone is acknowledged with its answer.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        self.wire.log = []
        for number in range(1, 4):
            self.clock.advance(2 * rocePacket.PACKET_PATIENCE_SECONDS)
            self.exchange(one, two, 1)
            self.assertEqual(self.acknowledgements(), 2 * number - 1)

    def test_closedMeanwhile(self) -> None:
        """
        A queue pair that closes while it owes an acknowledgement still sends it.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        self.exchange(one, two, 2)
        device, path = two.device, one.path
        two.close()
        settle(one.device, device)
        self.assertTrue(path.isDone)  # type: ignore[union-attr]

    def test_atOnce(self) -> None:
        """
        A small message is sent before the end of the batch, unless something is before it or it is long.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        self.wire.log = log = []
        self.post(one, b"a" * 100)
        self.assertEqual(len(log), 1)
        self.post(one, b"b" * 5000)
        self.assertEqual(len(log), 1)
        self.post(one, b"c" * 100)
        self.assertEqual(len(log), 1)
        self.until(one.device, two.device)
        self.assertEqual(self.messages(two), [b"a" * 100, b"b" * 5000, b"c" * 100])

    def test_atOnceBounds(self) -> None:
        """
        A message that has no room in the window, or found none in the link, waits; nothing overtakes it.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        sent = [b"%16d" % number for number in range(60)]
        self.wire.log = log = []
        for data in sent[:40]:
            self.post(one, data)
            one.device.fabric.ringBells()
        self.assertEqual(len(log), sendwindow.TRANSPORT_WINDOW_FIRST)
        self.until(one.device, two.device)
        link: Any = self.wire.links[HERE]
        link.room = 3
        for data in sent[40:]:
            self.post(one, data)
            one.device.fabric.ringBells()
        self.assertTrue(one.device.fabric.transmitter.stalled)
        link.room = None
        self.until(one.device, two.device)
        self.assertEqual(self.messages(two), sent)

    def test_atOnceFirst(self) -> None:
        """
        Only the first message of a batch is sent at once: the others share calls of the link.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        link: Any = self.wire.links[HERE]
        link.burst = 64
        self.wire.log = log = []
        calls: list[int] = []
        send = link.send
        self.patch(link, "send", lambda *call: calls.append(len(call[2])) or send(*call))
        sent = [b"%16d" % number for number in range(20)]
        for data in sent:
            self.post(one, data)
        self.assertEqual((len(log), len(calls)), (1, 1))
        one.device.progress()
        self.assertEqual((len(log), len(calls)), (20, 2))
        sent.append(b"another batch's 1")
        self.post(one, sent[-1])
        self.assertEqual((len(log), len(calls)), (21, 3))
        self.until(one.device, two.device)
        self.assertEqual(self.messages(two), sent)

    def test_atOnceLost(self) -> None:
        """
        One that is lost comes again, and those behind it.
        """
        one, two = self.joined()
        settle(one.device, two.device)
        self.lose(1)
        sent = [b"%16d" % number for number in range(5)]
        for data in sent:
            self.post(one, data)
        self.until(one.device, two.device, seconds=2.0)
        self.assertEqual(self.messages(two), sent)
        self.assertIsNone(one.device.deadline())
