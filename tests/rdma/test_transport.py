"""
Tests for L{twisted_ib.rdma.transport}: messages, and how they are delivered and paced.
"""

from __future__ import annotations

import threading
from typing import Any

from twisted.internet.interfaces import IConsumer, IPushProducer, ITransport
from zope.interface.verify import verifyObject

from tests.rdma.pair import PairTestCase, Plain, Recorder
from twisted_ib import limits
from twisted_ib.errors import DeviceClosedError, MessageTooLongError, WrongThreadError
from twisted_ib.hca.queues.requests import Capabilities, SendOpcode
from twisted_ib.interfaces import IRDMAProtocol, IRDMATransport
from twisted_ib.rdma import backlog


class MessageTests(PairTestCase):
    """
    Each write is one message.
    """

    def test_interfaces(self) -> None:
        """
        Transport and protocol provide what they say.
        """
        one, two = self.pair.connected()
        for interface in (IRDMATransport, ITransport, IConsumer, IPushProducer):
            verifyObject(interface, one)
        verifyObject(IRDMAProtocol, two.heard)

    def test_capabilities(self) -> None:
        """
        The queues have room for 128 requests of one piece; receives and inline data need none.
        """
        one, _ = self.pair.connected()
        self.assertEqual(one.work.capabilities, Capabilities(128, 0, 1, 0, 0))

    def test_boundaries(self) -> None:
        """
        Messages arrive as they were written: in order, empty ones too, the pieces of one
        sequence together.
        """
        one, two = self.pair.connected()
        one.write(b"a")
        one.write(b"")
        one.writeSequence([b"bc", b"", b"d"])
        one.writeSequence([b"e"])
        one.writeSequence([])
        one.send(b"f")
        self.settle()
        self.assertEqual(two.heard.log, [b"a", b"", b"bcd", b"e", b"f"])

    def test_views(self) -> None:
        """
        C{messageReceived} gets a read-only view that stays as it is.
        """
        one, two = self.pair.connected()
        for size in (1, 1000, 65536):
            one.write(b"x" * size)
        self.settle()
        one.write(b"y" * 65536)
        self.settle()
        views = two.heard.views
        self.assertTrue(all(view.readonly for view in views))
        self.assertEqual(bytes(views[2]), b"x" * 65536)
        # Of a medium that shows its own memory, too.
        memory = bytearray(b"z" * 9)
        two.inbox.received(memory, 0, 9)
        memory[:] = bytes(9)
        self.assertEqual(bytes(views[4]), b"z" * 9)

    def test_plainProtocol(self) -> None:
        """
        A protocol without L{IRDMAProtocol} gets C{bytes} by C{dataReceived}, and nothing of
        WRITEs with immediate.
        """
        one, two = self.pair.connected(second=Plain())
        region = two.registerMemory(bytearray(8), 3)
        one.write(b"one")
        one.rdmaWriteWithImmediate(b"8 bytes.", region.address, region.remoteKey, 5)
        one.write(b"two")
        self.settle()
        self.assertEqual(two.heard.log, [b"one", b"two"])
        self.assertIs(type(two.heard.log[0]), bytes)

    def test_protocolChanges(self) -> None:
        """
        It is the protocol of the moment that counts.
        """
        one, two = self.pair.connected(second=Plain())
        one.write(b"first")
        self.settle()
        other = two.protocol = Recorder()
        other.transport = two
        one.write(b"second")
        self.settle()
        self.assertEqual([bytes(view) for view in other.views], [b"second"])

    def test_immediate(self) -> None:
        """
        The immediate of a message is the transport's C{immediate} while it is delivered.
        """
        one, two = self.pair.connected()
        for immediate in (0, None, 0xFFFFFFFF):
            one.send(b"x", immediate)
        self.settle()
        self.assertEqual(two.heard.immediates, [0, None, 0xFFFFFFFF])
        self.assertIsNone(two.immediate)

    def test_wrongImmediate(self) -> None:
        """
        An immediate has 32 bits; if not, nothing is sent.
        """
        one, two = self.pair.connected()
        for immediate in (-1, 1 << 32):
            self.assertRaises(ValueError, one.send, b"x", immediate)
            self.assertRaises(ValueError, one.rdmaWriteWithImmediate, b"x", 0, 0, immediate)
        self.settle()
        self.assertEqual(two.heard.log, [])

    def test_longest(self) -> None:
        """
        A message of C{maxMessageSize} bytes goes; a longer one raises, and nothing is sent.
        """
        one, two = self.pair.connected()
        region = one.registerMemory(65537)
        for call in (
            lambda: one.write(b"x" * 65537),
            lambda: one.writeSequence([b"x" * 65536, b"x"]),
            lambda: one.send(b"x" * 65537),
            lambda: one.sendRegistered(region),
        ):
            self.assertRaises(MessageTooLongError, call)
        one.write(b"x" * 65536)
        one.sendRegistered(region, 1)
        self.settle()
        self.assertEqual([len(message) for message in two.heard.log], [65536, 65536])

    def test_other_sizes(self) -> None:
        """
        The longest message is the user's to say, less or more than a record of the medium.
        """
        for size in (1, 10, 300_000):
            one, two = self.pair.connected(maxMessageSize=size)
            self.assertEqual(one.maxMessageSize, size)
            message = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
            one.write(message)
            one.writeSequence([message[: size // 2], message[size // 2 :]])
            one.send(message, 77)
            self.assertRaises(MessageTooLongError, one.write, message + b"x")
            self.settle()
            self.assertEqual([message] * 3, two.heard.log)
            self.assertEqual(two.heard.immediates, [None, None, 77])

    def test_peerSendsTooLong(self) -> None:
        """
        A longer message from a peer ends the connection, at both ends, by name.
        """
        for length in (65537, 131072):
            raw, transport = self.pair.raw()
            raw.send(length)
            self.settle()
            self.assertEqual(transport.heard.log, ["ConnectionLost"])
            self.assertEqual(next(each.status.name for each in raw.polled()), "REM_INV_REQ_ERR")

    def test_notBytes(self) -> None:
        """
        Only bytes are written; C{send} copies what can change.
        """
        one, two = self.pair.connected()
        wrong: Any
        for wrong in ("text", bytearray(b"x"), None, 5):
            self.assertRaises(TypeError, one.write, wrong)
            self.assertRaises(TypeError, one.writeSequence, [b"x", wrong])
        self.assertRaises(TypeError, one.send, "text")
        changing = bytearray(b"before")
        one.send(changing)
        changing[:] = b"after!"
        self.settle()
        self.assertEqual(two.heard.log, [b"before"])

    def test_wrongThread(self) -> None:
        """
        Every call from another thread raises; nothing is sent.
        """
        one, two = self.pair.connected()
        region = one.registerMemory(8)
        calls = (
            lambda: one.write(b"x"),
            lambda: one.writeSequence([b"x"]),
            lambda: one.send(b"x"),
            lambda: one.sendRegistered(region),
            lambda: one.rdmaRead(1, 0, 0),
            lambda: one.rdmaWrite(b"x", 0, 0),
            lambda: one.rdmaWriteWithImmediate(b"x", 0, 0, 0),
            lambda: one.compareAndSwap(0, 0, 0, 0),
            lambda: one.fetchAdd(0, 0, 0),
            lambda: one.registerMemory(8),
            lambda: one.loseConnection(),
            lambda: one.abortConnection(),
            region.close,
        )
        raised = []

        def elsewhere() -> None:
            for call in calls:
                try:
                    call()
                except Exception as error:
                    raised.append(type(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        self.assertEqual(raised, [WrongThreadError] * len(calls))
        self.settle()
        self.assertEqual(two.heard.log, [])
        self.assertFalse(region.closed)

    def test_forked(self) -> None:
        """
        In a forked child every call raises by name.
        """
        one, _ = self.pair.connected()
        region = one.registerMemory(8)
        device = one.channel.device
        one.queuePair.consumer.forked()
        self.patch(device, "closed", True)
        for call in (lambda: one.write(b"x"), lambda: one.fetchAdd(0, 0, 0), region.close):
            self.assertRaises(DeviceClosedError, call)
        device.closed = False
        one.thread = device.thread

    def test_protocolRaises(self) -> None:
        """
        An exception of the protocol is logged and ends its connection, in order for the peer.
        """
        one, two = self.pair.connected()
        two.heard.hook = lambda data: 1 // 0
        one.write(b"x")
        self.settle()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(two.heard.log, [b"x", "ZeroDivisionError"])
        self.assertEqual(one.heard.log, ["ConnectionDone"])


class PolledMessageTests(MessageTests):
    """
    The same where the reactor polls.
    """

    polled = True


class EarlyTests(PairTestCase):
    """
    Messages that come before there is a protocol.
    """

    def test_early(self) -> None:
        """
        Messages that come before C{makeConnection} are delivered after it, in order.
        """
        one, two = self.pair.transport(self.pair.a), self.pair.transport(self.pair.b)
        self.pair.join(one, two)
        self.pair.attach(one)
        for number in range(10):
            one.send(b"%d" % number, number)
        self.settle()
        self.assertEqual(two.heard.log, [])
        self.assertEqual(self.pair.b.device.receiveBudget.heldBytes, 10)
        self.pair.attach(two)
        self.settle()
        self.assertEqual(two.heard.log, [b"%d" % number for number in range(10)])
        self.assertEqual(two.heard.immediates, list(range(10)))
        self.assertEqual(self.pair.b.device.receiveBudget.heldBytes, 0)

    def test_moreThanReceives(self) -> None:
        """
        More than there are receives for waits at the peer: what is held is bounded.
        """
        one, two = self.pair.transport(self.pair.a), self.pair.transport(self.pair.b)
        self.pair.join(one, two)
        self.pair.attach(one)
        messages = [b"%d" % number for number in range(2 * limits.RDMA_RECEIVES)]
        for message in messages:
            one.send(message)
        self.settle()
        self.assertEqual(len(two.held), limits.RDMA_RECEIVES)
        two.connected = 1
        two.startReading()
        self.assertEqual(two.queuePair.posted, 0)
        two.reading = False
        self.pair.attach(two)
        for _ in range(4):
            self.pair.wait()
        self.assertEqual(two.heard.log, messages)

    def test_closedBefore(self) -> None:
        """
        The peer's end comes behind what it sent early.
        """
        one, two = self.pair.transport(self.pair.a), self.pair.transport(self.pair.b)
        self.pair.join(one, two)
        self.pair.attach(one)
        one.write(b"early")
        one.loseConnection()
        self.settle()
        self.pair.attach(two)
        self.settle()
        self.assertEqual(two.heard.log, [b"early", "ConnectionDone"])

    def test_heldBytes(self) -> None:
        """
        Early messages count among what a process holds: over that the connection ends.
        """
        self.patch(limits, "HELD_BYTES", 1000)
        one, two = self.pair.transport(self.pair.a), self.pair.transport(self.pair.b)
        self.pair.join(one, two)
        self.pair.attach(one)
        one.write(b"x" * 1001)
        self.settle()
        self.assertEqual(one.heard.log, ["ConnectionLost"])
        # Dropping them again takes nothing from what others hold.
        two.inbox.drop(two)
        self.assertEqual(self.pair.b.device.receiveBudget.heldBytes, 0)


class Producer:
    """
    Writes when it is told.

    @ivar log: What it was told.
    """

    def __init__(self, consumer: Any, message: bytes = b"", count: int = 0) -> None:
        """
        @param count: How many messages it writes, one each time.
        """
        self.consumer, self.message, self.count = consumer, message, count
        self.log: list[str] = []

    def pauseProducing(self) -> None:
        self.log.append("pause")

    def resumeProducing(self) -> None:
        """
        Write.
        """
        self.log.append("resume")
        if self.count:
            self.count -= 1
            self.consumer.write(self.message)
            if not self.count:
                self.consumer.unregisterProducer()

    def stopProducing(self) -> None:
        self.log.append("stop")


class PacingTests(PairTestCase):
    """
    A protocol that does not read makes its peer wait.
    """

    def test_paused(self) -> None:
        """
        While a protocol is paused nothing is delivered and nothing is held; the peer is told
        RNR and asks again for as long as it takes, and all comes in order.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        self.assertFalse(two.reading)
        messages = [b"%d" % number for number in range(300)]
        for message in messages:
            one.write(message)
        for _ in range(50):
            self.pair.wait()
        self.assertEqual(two.heard.log, [])
        self.assertIsNone(two.held)
        self.assertGreater(self.pair.b.device.counters["send_rnr_err"], 10)
        two.resumeProducing()
        for _ in range(10):
            self.pair.wait()
        self.assertEqual(two.heard.log, messages)

    def test_pauseInMessage(self) -> None:
        """
        A protocol that pauses in a message gets no other before it resumes.
        """
        one, two = self.pair.connected()
        two.heard.hook = lambda data: two.pauseProducing()
        for number in range(5):
            one.write(b"%d" % number)
        self.settle()
        self.assertEqual(two.heard.log, [b"0"])
        two.resumeProducing()
        self.pair.wait()
        self.assertEqual(two.heard.log, [b"0", b"1"])

    def test_pauseInHeld(self) -> None:
        """
        The same with messages that were held.
        """
        one, two = self.pair.transport(self.pair.a), self.pair.transport(self.pair.b)
        self.pair.join(one, two)
        self.pair.attach(one)
        two.heard.hook = lambda data: two.pauseProducing()
        one.write(b"0"), one.write(b"1")
        self.settle()
        self.pair.attach(two)
        self.settle()
        self.assertEqual(two.heard.log, [b"0"])
        two.resumeProducing()
        self.settle()
        self.assertEqual(two.heard.log, [b"0", b"1"])

    def test_streamingProducer(self) -> None:
        """
        A streaming producer is paused when the peer does not take what is written, and
        resumed when it does.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        producer = Producer(one)
        one.registerProducer(producer, True)
        one.write(b"x")
        self.settle()
        one.write(b"y")
        self.assertEqual(producer.log, ["pause"])
        self.pair.wait()
        self.assertEqual(producer.log, ["pause"])
        two.resumeProducing()
        self.pair.wait()
        self.assertEqual(producer.log, ["pause", "resume"])
        self.assertEqual(two.heard.log, [b"x", b"y"])

    def test_pausedBefore(self) -> None:
        """
        One that follows a producer which was paused when it left is paused too.
        """
        one, _ = self.pair.connected()
        one.bufferSize = 10
        for _ in range(2):
            producer = Producer(one)
            one.registerProducer(producer, True)
            one.write(bytes(11))
            self.assertEqual(producer.log, ["pause"])
            one.unregisterProducer()

    def test_producerWaitsForReader(self) -> None:
        """
        While the peer does not read, a producer is not resumed each time that what it wrote is
        sent again.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        for streaming in (True, False):
            producer = Producer(one, b"x" * 65536, 1000)
            one.registerProducer(producer, streaming)
            one.write(b"x"), self.settle()
            one.write(b"x")
            for _ in range(300):
                self.pair.wait()
            self.assertGreater(producer.count, 997)
            one.unregisterProducer()

    def test_pullProducer(self) -> None:
        """
        A pull producer is asked when what it wrote has left.
        """
        one, two = self.pair.connected()
        producer = Producer(one, b"pulled", 200)
        one.registerProducer(producer, False)
        one.loseConnection()
        self.settle()
        self.assertEqual(two.heard.log, [b"pulled"] * 200 + ["ConnectionDone"])

    def test_producerStopped(self) -> None:
        """
        A producer is stopped with the connection.
        """
        one, two = self.pair.connected()
        producer = Producer(one)
        one.registerProducer(producer, True)
        two.abortConnection()
        self.settle()
        self.assertEqual(producer.log, ["stop"])

    def test_moreThanSends(self) -> None:
        """
        Requests and messages that find the send queue full wait behind it, in order, and some leave in each
        turn.
        """
        self.patch(backlog, "RDMA_SENDS_PER_FLUSH", 10)
        one, two = self.pair.connected()
        region = two.registerMemory(bytearray(8), 0xF)
        two.pauseProducing()
        found = []
        for number in range(256):
            one.write(b"%d" % number)
            one.fetchAdd(region.address, region.remoteKey, 1).addCallback(found.append)
        # The queue has 128.
        self.assertEqual(len(one.waiting.entries), 512 - 128)
        # Of "64" to "255"; the medium has the others.
        self.assertEqual(one.unsent(), 36 * 2 + 156 * 3)
        self.settle()
        two.resumeProducing()
        for _ in range(200):
            self.pair.wait()
        self.assertEqual(two.heard.log, [b"%d" % number for number in range(256)])
        self.assertEqual(found, list(range(256)))
        self.assertIsNone(one.waiting)

    def test_someInEachTurn(self) -> None:
        """
        64 waiting requests leave in each turn; those made meanwhile wait behind them.
        """
        one, two = self.pair.connected()
        region = two.registerMemory(bytearray(8), 0xF)
        one.waiting = backlog.Backlog()
        one.waiting.entries.extend(
            backlog.Waiting(None, b"%d" % number, len(b"%d" % number)) for number in range(79)
        )
        told: list[Any] = []
        two.heard.hook = told.append
        one.waiting.flush(one)
        self.assertEqual((len(one.waiting.entries), one.corked), (15, True))
        one.fetchAdd(region.address, region.remoteKey, 1).addCallback(told.append)
        self.assertEqual(len(one.waiting.entries), 16)
        self.settle()
        self.assertEqual(told, [*(b"%d" % number for number in range(79)), 0])

    def test_mediumFull(self) -> None:
        """
        A producer that is paused because the medium is full is resumed when the peer has taken
        something, and not before.
        """
        one, two = self.pair.connected()
        producer = Producer(one)
        one.registerProducer(producer, True)
        sent = 0
        while not producer.log:
            one.write(b"x" * 60_000)
            sent += 1
        for _ in range(3):
            self.pair.a.turn()
        self.assertEqual(producer.log, ["pause"])
        self.settle()
        self.assertEqual(producer.log, ["pause", "resume"])
        self.assertEqual(len(two.heard.log), sent)

    def test_fullMedium(self) -> None:
        """
        Much more than the medium holds gets through.
        """
        one, two = self.pair.connected()
        messages = [bytes([number]) * 65536 for number in range(100)]
        for message in messages:
            one.write(message)
        self.settle()
        self.assertEqual(two.heard.log, messages)

    def test_peerWithoutReceives(self) -> None:
        """
        A peer with verbs that posts no receive is waited for, too.
        """
        raw, transport = self.pair.raw(0)
        done = transport.send(b"patience")
        for _ in range(20):
            self.pair.wait(0.7)
        self.assertNoResult(done)
        raw.receives = 1
        raw.posted()
        self.pair.wait(0.7)
        self.assertIsNone(self.successResultOf(done))

    def test_peerWithImmediate(self) -> None:
        """
        A peer with verbs sends with immediate.
        """
        raw, transport = self.pair.raw()
        raw.send(5, SendOpcode.SEND_WITH_IMM, immediate=9)
        self.settle()
        self.assertEqual(transport.heard.immediates, [9])


class PolledPacingTests(PacingTests):
    """
    The same where the reactor polls.
    """

    polled = True
