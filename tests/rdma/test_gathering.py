"""
Several messages in one SEND: the format, who agrees on it, and that order, pauses and ends are those of one
message each.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.rdma.pair import PairTestCase
from tests.sdp.pair import Plain
from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.fabric.roce import connparams
from twisted_ib.rdma import gathering, handshake

#: So many that most of them are gathered.
MANY = limits.RDMA_GATHERS_BEHIND + 20


def numbered(count: int) -> list[bytes]:
    """
    @return: so many messages of different lengths.
    """
    return [b"%d" % number * (number % 7) for number in range(count)]


class FormatTests(SynchronousTestCase):
    """
    L{gathering.join} and L{gathering.divided}.
    """

    joined = bytes.fromhex("03000000 02000000 00000000 03000000 6162 636465")

    def test_join(self) -> None:
        """
        The number of messages, that of each one's bytes, the messages.
        """
        self.assertEqual(gathering.join([b"ab", b"", b"cde"]), self.joined)

    def test_divided(self) -> None:
        """
        The same is read, wherever it lies, and copied.
        """
        within = b"*" * 5 + self.joined + b"*"
        for buffer in (within, bytearray(within), memoryview(within)):
            found = gathering.divided(buffer, 5, len(within) - 1)
            self.assertEqual(found, [b"ab", b"", b"cde"])
            self.assertEqual({type(message) for message in found}, {bytes})

    def test_malformed(self) -> None:
        """
        Every shorter one is refused, a longer one, none, and more than the bound.
        """
        wrong = [self.joined[:count] for count in range(len(self.joined))]
        most = limits.RDMA_GATHERED // limits.RDMA_GATHERED_EACH
        many = (most + 1).to_bytes(4, "little") + bytes(4 * (most + 1))
        for data in (*wrong, self.joined + b"x", bytes(4), b"\xff" * 16, many):
            # Also where the buffer ends with it.
            for before, behind in ((b"", b""), (b"****", b""), (b"*", b"*" * 99)):
                within = before + data + behind
                start = len(before)
                with self.assertRaises(WireError) as refused:
                    gathering.divided(within, start, start + len(data))
                self.assertIn(f"a SEND of {len(data)} bytes", str(refused.exception))
        found = gathering.divided(most.to_bytes(4, "little") + bytes(4 * most), 0, 4 * most + 4)
        self.assertEqual(found, [b""] * most)


class BeginTests(SynchronousTestCase):
    """
    Messages that wait together.
    """

    def test_full(self) -> None:
        """
        A first message holds up no producer; one for which there is no room posts those before it, and does.
        """
        log: list[Any] = []
        transport: Any = SimpleNamespace(
            gathered=None,
            cork=lambda: log.append("cork"),
            filled=lambda: log.append("filled"),
            post=lambda data, length, several=False: log.append((data, length, several)),
        )
        gathering.begin(transport, b"first", 5)
        room = limits.RDMA_GATHERED - 5 - 2 * limits.RDMA_GATHERED_EACH
        self.assertEqual((transport.gathered, log), ([room, b"first"], ["cork"]))
        log.clear()
        gathering.begin(transport, b"second", 6)
        self.assertEqual(
            (transport.gathered, log), ([room - 1, b"second"], [(b"first", 5, False), "cork", "filled"])
        )
        transport.gathered.append(b"third")
        log.clear()
        gathering.post(transport)
        together = bytes.fromhex("02000000 06000000 05000000") + b"secondthird"
        self.assertEqual((transport.gathered, log), (None, [(together, 23, True)]))


class AgreementTests(PairTestCase):
    """
    Both sides have to know it.
    """

    def agreed(self, first: int, second: int) -> tuple[bool, ...]:
        """
        @param first: the active side's longest message; C{second} the passive side's.
        @return: whether the active side gathers, and takes what is gathered; and the same of the other.
        """
        one = self.pair.transport(self.pair.a, maxMessageSize=first)
        two = self.pair.transport(self.pair.b, maxMessageSize=second)
        self.pair.join(one, two)
        return tuple(
            each
            for side in (one, two)
            for each in (side.onTheWay is side.work.requester.onTheWay, side.queuePair.gathers)
        )

    def test_both(self) -> None:
        """
        Two sides that take such a SEND agree; one whose longest message is shorter does not.
        """
        long, short = limits.RDMA_GATHERED, limits.RDMA_GATHERED - 1
        self.assertEqual(self.agreed(long, long), (True,) * 4)
        self.assertEqual(self.agreed(long, short), (False,) * 4)
        self.assertEqual(self.agreed(short, long), (False,) * 4)

    def test_message(self) -> None:
        """
        The vendor id of Enhanced Connection Establishment says it, in the REQ and the REP.
        """
        self.pair.connected()
        request = self.pair.listener.request
        assert request is not None
        self.assertEqual(request.vendorID, 0x024742)

    def test_verbs(self) -> None:
        """
        A program of verbs gets one message in a SEND, and a solicited one of its own is one message.
        """
        raw, two = self.pair.raw()
        for message in numbered(MANY):
            two.write(message)
        self.pair.wait()
        self.assertEqual(
            [completion.byteLength for completion in raw.polled()], [len(each) for each in numbered(MANY)]
        )
        raw.work.postInline(gathering.join([b"a", b"b"]), 14, None, None, True)
        self.settle()
        self.assertEqual(two.heard.log, [gathering.join([b"a", b"b"])])

    def test_hosts(self) -> None:
        """
        Between hosts neither message says it, whatever a REQ asked for.
        """
        fabric = self
        request, reply = ConnectRequest(vendorID=handshake.GATHERS), ConnectReply(vendorID=handshake.GATHERS)
        connparams.answer(fabric, "10.0.0.2", reply, request)
        self.assertEqual((request.vendorID, reply.vendorID), (0, 0))

    # What connparams needs of a fabric and its link.

    @property
    def link(self) -> Any:
        """
        This object.
        """
        return self

    def sourcePort(self, wanted: int) -> int:
        """
        @return: as wanted.
        """
        return wanted

    @property
    def owner(self) -> Any:
        """
        A device.
        """
        return self.pair.a.device

    def randomBits(self, bits: int) -> int:
        """
        @return: no random ones.
        """
        return 1

    def clock(self) -> float:
        """
        @return: seconds.
        """
        return 0.0


class OrderTests(PairTestCase):
    """
    What is gathered stays in its place.
    """

    def sent(self, transport: Any) -> list[int]:
        """
        @return: where the bytes of each SEND from now on will be.
        """
        sizes: list[int] = []
        post = transport.work.postInline

        def posted(payload: Any, length: int, *arguments: Any) -> bool:
            sizes.append(length)
            answer: bool = post(payload, length, *arguments)
            return answer

        class Counted:
            """
            The work queues, with a count.
            """

            postInline = staticmethod(posted)

            def __getattr__(self, name: str) -> Any:
                return getattr(work, name)

        work = transport.work
        transport.work = Counted()
        return sizes

    def test_messages(self) -> None:
        """
        All arrive, each by itself and in order, and few SENDs have carried them; the first ones go at once.
        """
        one, two = self.pair.connected()
        sizes = self.sent(one)
        for message in numbered(MANY):
            one.write(message)
        self.assertEqual(len(sizes), limits.RDMA_GATHERS_BEHIND)
        self.assertEqual(
            one.unsent(), sum(len(each) for each in numbered(MANY)[limits.RDMA_GATHERS_BEHIND :])
        )
        self.settle()
        self.assertEqual(two.heard.log, numbered(MANY))
        self.assertEqual(len(sizes), limits.RDMA_GATHERS_BEHIND + 1)

    def test_alone(self) -> None:
        """
        One message that waited for others in vain goes as what it is.
        """
        one, two = self.pair.connected()
        sizes = self.sent(one)
        for _ in range(limits.RDMA_GATHERS_BEHIND + 1):
            one.write(b"alone")
        self.settle()
        self.assertEqual(sizes, [5] * (limits.RDMA_GATHERS_BEHIND + 1))
        self.assertEqual(two.heard.log, [b"alone"] * len(sizes))

    def test_streams(self) -> None:
        """
        A protocol of streams gets each message too.
        """
        one, two = self.pair.connected(second=Plain())
        for message in numbered(MANY):
            one.write(message)
        self.settle()
        self.assertEqual(two.heard.log, numbered(MANY))

    def test_amongOthers(self) -> None:
        """
        Every other way to send comes behind what was gathered before it, and before what is written after it.
        """
        one, two = self.pair.connected()
        memory = two.registerMemory(bytearray(8), 0xF)
        ways = (
            lambda: one.send(b"send"),
            lambda: one.send(b"immediate", 5),
            lambda: one.writeSequence([b"se", b"quence"]),
            lambda: one.write(b"long" * 2000),
            lambda: one.rdmaWriteWithImmediate(b"12345678", memory.address, memory.remoteKey, 9),
        )
        arrived = (b"send", b"immediate", b"sequence", b"long" * 2000, (9, 8))
        expected: list[Any] = []
        for way, what in zip(ways, arrived, strict=True):
            for message in numbered(MANY):
                one.write(message)
            way()
            one.write(b"behind")
            expected += [*numbered(MANY), what, b"behind"]
        self.settle()
        self.assertEqual(two.heard.log, expected)

    def test_bound(self) -> None:
        """
        No SEND is longer than the bound, neither of small messages nor of empty ones nor of the longest.
        """
        for size, count in ((0, 5000), (1, 5000), (100, 2000), (limits.RDMA_GATHERED_MESSAGE, 100)):
            one, two = self.pair.connected()
            sizes = self.sent(one)
            for number in range(count):
                one.write(b"%c" % (number % 256) * size)
            self.settle()
            self.assertLessEqual(max(sizes), limits.RDMA_GATHERED)
            self.assertLess(len(sizes), count / 5)
            for _ in range(10):
                self.pair.wait()
            self.assertEqual(two.heard.log, [b"%c" % (number % 256) * size for number in range(count)])

    def test_fullQueue(self) -> None:
        """
        Behind a full send queue they wait as others do.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        expected = []
        for number in range(200):
            one.send(b"%d" % number)
            expected.append(b"%d" % number)
            for message in numbered(MANY):
                one.write(message)
            expected += numbered(MANY)
        self.settle()
        self.assertIsNotNone(one.waiting)
        two.resumeProducing()
        for _ in range(20):
            self.pair.wait()
        self.assertEqual(two.heard.log, expected)

    def test_producer(self) -> None:
        """
        A producer is paused when a SEND is full; what it writes while it is told so comes behind what filled
        it.
        """
        one, two = self.pair.connected()
        size, log = 4000, []
        case = self

        class Producer:
            """
            Writes when it is paused, too.
            """

            def pauseProducing(self) -> None:
                """
                Write.
                """
                case.assertLess(len(log), 40)
                log.append(b"paused")
                one.write(b"paused")

            def resumeProducing(self) -> None:
                """
                Nothing.
                """

            def stopProducing(self) -> None:
                """
                Nothing.
                """

        one.registerProducer(Producer(), True)
        while b"paused" not in log:
            log.append(b"%04d" % len(log) * (size // 4))
            one.write(log[-1])
        self.assertTrue(one.producerPaused)
        self.settle()
        # The last write was under way when the producer was told.
        self.assertEqual(two.heard.log, [*log[:-2], *sorted(log[-2:])])


class EndTests(PairTestCase):
    """
    A protocol that pauses or ends amid them.
    """

    def arrive(self, hook: Any, count: int = MANY) -> tuple[Any, Any]:
        """
        Send, and call something with each message that is delivered.

        @return: the two transports.
        """
        one, two = self.pair.connected()
        two.heard.hook = lambda data: hook(two, data)
        for number in range(count):
            one.write(b"%d" % number)
        self.settle()
        return one, two

    def test_pause(self) -> None:
        """
        What follows a pause is held, counted, and comes after it, one by one if the protocol pauses again.
        """
        _, two = self.arrive(lambda two, data: two.pauseProducing())
        budget = self.pair.b.device.receiveBudget
        for number in range(MANY):
            self.assertEqual(two.heard.log, [b"%d" % each for each in range(number + 1)])
            two.resumeProducing()
            self.pair.wait()
        self.assertEqual(budget.heldBytes, 0)

    def test_budget(self) -> None:
        """
        What is held counts.
        """
        _, two = self.arrive(lambda two, data: two.pauseProducing() if data == b"9" else None)
        self.assertEqual(two.heard.log[-1], b"9")
        self.assertEqual(self.pair.b.device.receiveBudget.heldBytes, 2 * (MANY - 10))

    def test_close(self) -> None:
        """
        After a close nothing more comes, and the end is orderly at both.
        """
        one, two = self.arrive(lambda two, data: two.loseConnection() if data == b"9" else None)
        self.assertEqual(two.heard.log, [*(b"%d" % number for number in range(10)), "ConnectionDone"])
        self.assertEqual(one.heard.log, ["ConnectionDone"])

    def test_abort(self) -> None:
        """
        After an abort nothing more comes, and the peer hears of a loss.
        """
        one, two = self.arrive(lambda two, data: two.abortConnection() if data == b"9" else None)
        self.pair.wait()
        self.assertEqual(two.heard.log, [*(b"%d" % number for number in range(10)), "ConnectionAborted"])
        self.assertEqual(one.heard.log, ["ConnectionLost"])

    def test_reactorStops(self) -> None:
        """
        Nothing comes behind the end of a connection that ends with its channel, amid them; nothing is held.
        """
        _, two = self.arrive(lambda two, data: self.pair.b.channel.close() if data == b"9" else None)
        self.assertEqual(two.heard.log, [*(b"%d" % number for number in range(10)), "ConnectionLost"])
        self.assertEqual((two.held, self.pair.b.device.receiveBudget.heldBytes), (None, 0))

    def test_exception(self) -> None:
        """
        An exception ends the connection, and the rest is dropped.
        """

        def hook(two: Any, data: bytes) -> None:
            if data == b"9":
                raise ZeroDivisionError

        _, two = self.arrive(hook)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(two.heard.log, [*(b"%d" % number for number in range(10)), "ZeroDivisionError"])

    def test_written(self) -> None:
        """
        What was gathered before a close still arrives, and before an abort does not.
        """
        for end, kept, told in (
            ("loseConnection", MANY, "ConnectionDone"),
            ("abortConnection", limits.RDMA_GATHERS_BEHIND, "ConnectionLost"),
        ):
            one, two = self.pair.connected()
            for message in numbered(MANY):
                one.write(message)
            getattr(one, end)()
            self.pair.wait()
            self.assertEqual(two.heard.log, [*numbered(kept), told])

    def test_malformed(self) -> None:
        """
        A peer that breaks the format ends its connection, with the reason and without a traceback.
        """
        one, two = self.pair.connected()
        one.work.postInline(b"\x02\x00\x00\x00" * 2, 8, None, None, True)
        self.pair.wait()
        self.assertEqual(two.heard.log, ["ConnectionLost"])
        self.assertIn("is said to have 2 messages", str(two.heard.reason.value))
