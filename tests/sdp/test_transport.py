"""
Tests for L{twisted_ib.sdp.transport}: what TCP's transport does, on two HCAs of
one thread.  Twisted's own suite for stream transports runs over SDP too
(L{tests.internet.test_stream_suite}); here are the cases that it leaves out.
"""

from __future__ import annotations

import threading
from typing import Any

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IPullProducer, IPushProducer
from twisted.python import log
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.sdp.pair import PairTestCase
from tests.sdp.stream.test_closing import HalfRecorder
from tests.support.descriptors import runForked
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.errors import DeviceClosedError, WrongThreadError


def elsewhere(call: Any, *arguments: Any) -> list[BaseException]:
    """
    Call something in another thread.

    @return: what it raised.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call(*arguments)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(HANG_SECONDS)
    return raised


@implementer(IPushProducer, IPullProducer)
class Producer:
    """
    Remembers what is asked of it.

    @ivar log: That.
    @ivar hook: Called by C{resumeProducing}.
    """

    def __init__(self) -> None:
        """
        Nothing is asked yet.
        """
        self.log: list[str] = []
        self.hook: Any = None

    def pauseProducing(self) -> None:
        self.log.append("pause")

    def resumeProducing(self) -> None:
        self.log.append("resume")
        if self.hook is not None:
            self.hook()

    def stopProducing(self) -> None:
        self.log.append("stop")


class WriteTests(PairTestCase):
    """
    C{write} and C{writeSequence}.
    """

    polled = True

    def test_onlyBytes(self) -> None:
        """
        Anything but bytes is a TypeError, in each way that a write can take,
        and nothing of it is sent.
        """
        one, two = self.pair.connected()
        for before in range(3):
            for _ in range(before):
                one.write(b"ok")
            for wrong in ("text", None, 7, bytearray(b"x"), memoryview(b"x"), ["x"]):
                self.assertRaises(TypeError, one.write, wrong)
                self.assertRaises(TypeError, one.writeSequence, [b"a", wrong])
            self.settle()
        self.assertEqual(two.heard.data, b"ok" * 3)

    def test_subclass(self) -> None:
        """
        A subclass of bytes counts as bytes.
        """

        class Bytes(bytes):
            """
            Derived.
            """

        one, two = self.pair.connected()
        one.write(Bytes(b"a"))
        one.write(Bytes(b"b"))
        self.settle()
        self.assertEqual(two.heard.data, b"ab")
        self.assertEqual({type(data) for data in two.heard.log}, {bytes})

    def test_empty(self) -> None:
        """
        A write of nothing sends nothing.
        """
        raw, stream = self.pair.raw()
        stream.write(b"")
        stream.writeSequence([])
        stream.writeSequence([b"", b""])
        self.settle()
        self.assertEqual((raw.messages, stream.buffer, stream.corked), ([], None, False))

    def test_writeSequence(self) -> None:
        """
        The pieces of one C{writeSequence} are one message.
        """
        raw, stream = self.pair.raw()
        stream.writeSequence(iter([b"a", b"bc", b"", b"d"]))
        self.settle()
        self.assertEqual([message[16:] for message in raw.messages], [b"abcd"])

    def test_wrongThread(self) -> None:
        """
        Every call that writes or closes from another thread is a
        L{WrongThreadError} which says what to do, gathered or not.
        """
        one, two = self.pair.connected()
        for gathered in (False, True):
            if gathered:
                one.write(b"a"), one.write(b"b")
            for call, arguments in (
                (one.write, (b"x",)),
                (one.writeSequence, ([b"x"],)),
                (one.loseConnection, ()),
                (one.abortConnection, ()),
            ):
                (error,) = elsewhere(call, *arguments)
                self.assertIsInstance(error, WrongThreadError)
                self.assertIn("reactor.callFromThread", str(error))
        self.settle()
        self.assertEqual((two.heard.data, two.heard.calls), (b"ab", []))

    def test_forked(self) -> None:
        """
        In a forked child every write is a L{DeviceClosedError}, also one that
        would only be gathered; the parent goes on.
        """
        one, two = self.pair.connected()
        one.write(b"a"), one.write(b"b")

        def child() -> None:
            """
            Try.
            """
            for call in (lambda: one.write(b"x"), one.loseConnection, one.abortConnection):
                try:
                    call()
                except DeviceClosedError as error:
                    assert "forked child" in str(error)
                else:
                    raise AssertionError("no error")

        self.assertEqual(runForked(child), 0)
        self.settle()
        self.assertEqual(two.heard.data, b"ab")

    def test_afterTheEnd(self) -> None:
        """
        Writes after the end are nothing.
        """
        one, two = self.pair.connected()
        one.loseConnection()
        self.settle()
        for stream in (one, two):
            stream.write(b"x")
            stream.writeSequence([b"x"])
            stream.loseConnection()
            stream.loseWriteConnection()
            stream.abortConnection()
            stream.resumeProducing()
            stream.stopProducing()
        self.settle()
        self.assertEqual([end.heard.log for end in (one, two)], [["ConnectionDone"]] * 2)


class ProducerTests(PairTestCase):
    """
    Producers.
    """

    def pausedPeer(self) -> tuple[Any, Any, Producer]:
        """
        @return: Two ends, the second of which does not read, and a producer of
            the first.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        return one, two, Producer()

    def test_push(self) -> None:
        """
        A push producer is paused once when more than C{bufferSize} bytes wait,
        and resumed once when all have left.
        """
        one, two, producer = self.pausedPeer()
        one.registerProducer(producer, True)
        self.assertEqual(producer.log, [])
        n = 0
        while not producer.log:
            one.write(bytes(10000))
            n += 10000
            self.settle()
        self.assertGreater(one.buffer.size, one.bufferSize)
        one.write(bytes(100000))
        self.settle()
        self.assertEqual(producer.log, ["pause"])
        two.resumeProducing()
        self.settle()
        self.assertEqual(producer.log, ["pause", "resume"])
        self.assertEqual(len(two.heard.data), n + 100000)

    def test_pushOneLargeWrite(self) -> None:
        """
        It is paused by one write of more than C{bufferSize} bytes, whatever of it
        has left, and resumed in a later turn.
        """
        for size in (limits.SEND_BUFFER, limits.SEND_BUFFER + 1):
            one, two = self.pair.connected()
            producer = Producer()
            one.registerProducer(producer, True)
            one.write(bytes(size))
            self.assertEqual(producer.log, ["pause"] * (size > limits.SEND_BUFFER))
            self.settle()
            self.assertEqual(producer.log, ["pause", "resume"] * (size > limits.SEND_BUFFER))
            self.assertEqual(len(two.heard.data), size)

    def test_pausedByOneByteMore(self) -> None:
        """
        Writes of together C{bufferSize} bytes do not pause it, and the next byte does.
        """
        for size in (1024, limits.SEND_BUFFER):
            one, _ = self.pair.connected()
            producer = Producer()
            one.registerProducer(producer, True)
            for _ in range(limits.SEND_BUFFER // size):
                one.write(bytes(size))
            self.assertEqual(producer.log, [])
            one.write(b"x")
            self.assertEqual(producer.log, ["pause"])

    def test_pausedBefore(self) -> None:
        """
        One that follows a producer which was paused when it left is paused too.
        """
        one, two, first = self.pausedPeer()
        one.registerProducer(first, True)
        one.write(bytes(limits.SEND_BUFFER + 1))
        one.unregisterProducer()
        second = Producer()
        one.registerProducer(second, True)
        one.write(bytes(limits.SEND_BUFFER + 1))
        self.assertEqual((first.log, second.log), (["pause"], ["pause"]))
        two.resumeProducing()
        self.settle()
        self.assertEqual((first.log, second.log), (["pause"], ["pause", "resume"]))

    def test_ownBufferSize(self) -> None:
        """
        C{bufferSize} is the connection's own.
        """
        one, _ = self.pair.connected()
        producer = Producer()
        one.bufferSize = 100
        one.registerProducer(producer, True)
        one.write(bytes(101))
        self.assertEqual(producer.log, ["pause"])

    def test_pull(self) -> None:
        """
        A pull producer is asked when it registers and each time that all has
        left.
        """
        one, two = self.pair.connected()
        producer = Producer()
        left = [b"a", b"b" * 100000, b"c"]

        def produce() -> None:
            """
            Write, or end.
            """
            if left:
                one.write(left.pop(0))
            else:
                one.unregisterProducer()

        producer.hook = produce
        one.registerProducer(producer, False)
        self.settle()
        self.assertEqual(producer.log, ["resume"] * 4)
        self.assertEqual(two.heard.data, b"a" + b"b" * 100000 + b"c")
        one.write(b"d")
        self.settle()
        self.assertEqual(len(producer.log), 4)

    def test_pullIdle(self) -> None:
        """
        A pull producer that writes nothing is not asked again before something
        is written, as over TCP: it does not keep the reactor busy.
        """
        one, two = self.pair.connected()
        producer = Producer()
        one.registerProducer(producer, False)
        for n in range(1, 4):
            self.settle()
            self.assertEqual((len(producer.log), self.pair.a.device.busy()), (n, False))
            one.write(b"x")
        self.assertEqual(two.heard.data, b"xx")

    def test_closeWithProducer(self) -> None:
        """
        C{loseConnection} does not wait for a push producer that could write and
        does not, as C{FileDescriptor.doWrite} does not: a web server registers
        one for every connection.
        """
        one, two = self.pair.connected()
        producer = Producer()
        one.registerProducer(producer, True)
        one.write(b"a")
        one.loseConnection()
        self.settle()
        self.assertEqual((one.heard.calls, producer.log), (["ConnectionDone"], ["stop"]))
        self.assertEqual((two.heard.calls, two.heard.data), (["ConnectionDone"], b"a"))

    def test_closeWithPullProducer(self) -> None:
        """
        C{loseConnection} waits for a pull producer to end,
        C{unregisterProducer} then closes.
        """
        one, two = self.pair.connected()
        producer = Producer()
        one.registerProducer(producer, False)
        one.loseConnection()
        self.settle()
        self.assertEqual(one.heard.calls, [])
        one.unregisterProducer()
        self.settle()
        self.assertEqual((one.heard.calls, two.heard.calls), (["ConnectionDone"], ["ConnectionDone"]))

    def test_pausedProducerAndClose(self) -> None:
        """
        A producer that is paused when the connection closes is resumed first.
        """
        one, two, producer = self.pausedPeer()
        one.registerProducer(producer, True)
        one.write(bytes(6000000))
        one.loseConnection()
        self.settle()
        self.assertEqual(producer.log, ["pause"])
        producer.hook = one.unregisterProducer
        two.resumeProducing()
        self.settle()
        self.assertEqual(producer.log, ["pause", "resume"])
        self.assertEqual((one.heard.calls, len(two.heard.data)), (["ConnectionDone"], 6000000))

    def test_stopped(self) -> None:
        """
        A producer is stopped when the connection is lost, and one that
        registers afterwards at once.
        """
        one, two = self.pair.connected()
        producer, late = Producer(), Producer()
        one.registerProducer(producer, True)
        self.assertRaises(RuntimeError, one.registerProducer, late, True)
        two.abortConnection()
        self.settle()
        self.assertEqual(producer.log, ["stop"])
        one.registerProducer(late, True)
        self.assertEqual(late.log, ["stop"])

    def test_stopConsuming(self) -> None:
        """
        C{stopConsuming} ends producer and connection.
        """
        one, two = self.pair.connected()
        producer = Producer()
        one.registerProducer(producer, True)
        one.stopConsuming()
        self.settle()
        self.assertEqual(two.heard.calls, ["ConnectionDone"])

    def test_resumeRaises(self) -> None:
        """
        An exception of C{resumeProducing} is logged and ends the connection.
        """
        one, two = self.pair.connected()
        producer = Producer()
        one.registerProducer(producer, True)
        producer.hook = lambda: 1 // 0
        one.write(bytes(100000))
        self.settle()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(one.heard.calls, ["ZeroDivisionError"])
        self.assertEqual(len(two.heard.data), 100000)


class UpcallTests(PairTestCase):
    """
    Calls to the protocol.
    """

    def test_order(self) -> None:
        """
        Nothing is called after C{connectionLost}, whatever is under way.
        """
        for close in ("loseConnection", "abortConnection"):
            one, two = self.pair.connected()
            two.pauseProducing()
            for data in (b"1", b"2", b"3"):
                one.write(data)
                self.settle()
            two.heard.hook = lambda data, two=two, close=close: getattr(two, close)()
            two.resumeProducing()
            self.settle()
            self.assertEqual(two.heard.log[0], b"1")
            self.assertEqual(len(two.heard.calls), 1)
            self.assertEqual(two.heard.log[-1], two.heard.calls[0])
            self.assertEqual(two.heldBytes, 0)

    def test_closeInUpcall(self) -> None:
        """
        A protocol that closes while it is given data gets no more of it.
        """
        one, two = self.pair.connected()
        two.heard.hook = lambda data: two.loseConnection()
        for data in (b"1", b"2", b"3"):
            one.write(data)
            self.pair.a.turn()
        self.settle()
        self.assertEqual(two.heard.log, [b"1", "ConnectionDone"])

    def test_logSystem(self) -> None:
        """
        A protocol's log entries are marked with its connection's name; afterwards none is.
        """
        for polled in (False, True):
            one, two = self.pair.connected()
            two.logstr = "Recorder,7,host"
            systems: list[str] = []

            def observe(event: Any, systems: list[str] = systems) -> None:
                """
                Remember the system.
                """
                systems.append(event["system"])

            log.addObserver(observe)
            try:
                two.heard.hook = lambda data: log.msg("x")
                one.write(b"a")
                self.settle()
                log.msg("y")
            finally:
                log.removeObserver(observe)
            self.assertEqual(systems, ["Recorder,7,host", "-"], polled)

    def test_halfClosedRaises(self) -> None:
        """
        An exception of C{readConnectionLost} or C{writeConnectionLost} ends the connection.
        """
        for name in ("readConnectionLost", "writeConnectionLost"):
            protocol = HalfRecorder()
            one, two = self.pair.connected(None, protocol)

            def fail() -> None:
                raise ZeroDivisionError

            setattr(protocol, name, fail)
            (one if name == "readConnectionLost" else two).loseWriteConnection()
            self.settle()
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
            self.assertEqual(protocol.calls, ["ZeroDivisionError"])

    def test_reactorGivesUp(self) -> None:
        """
        C{connectionLost} from outside, as a reactor calls it, is told once and
        the channel is released.
        """
        one, _ = self.pair.connected()
        one.write(b"a")
        one.write(b"b")
        one.connectionLost(Failure(ConnectionLost()))
        one.connectionLost(Failure(ConnectionDone()))
        one.writeConnectionLost(Failure(ConnectionDone()))
        one.readConnectionLost(Failure(ConnectionDone()))
        self.assertEqual(one.heard.calls, ["ConnectionLost"])
        self.assertNotIn(one, self.pair.a.channel.users)

    def test_options(self) -> None:
        """
        Socket options are remembered; there is no descriptor.
        """
        one, _ = self.pair.connected()
        for get, put in (
            (one.getTcpNoDelay, one.setTcpNoDelay),
            (one.getTcpKeepAlive, one.setTcpKeepAlive),
        ):
            self.assertIs(get(), False)
            put(1)
            self.assertIs(get(), True)
            put(0)
            self.assertIs(get(), False)
        self.assertEqual(one.fileno(), -1)
        self.assertIs(one.getHandle(), one.queuePair)
        self.assertIs(one.reactor, self.pair.a.reactor)
        self.assertIs(one.TLS, False)
        self.assertEqual((one.doRead(), one.doWrite(), one.stopWriting()), (None, None, None))
