"""
Tests of queue pairs that take messages without receives and send bytes without requests,
beside work requests.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

from twisted.trial.unittest import SkipTest

from tests.hca.queues.keyed_cases import RequesterTestCase, ResponderTestCase, bound
from tests.hca.queues.keyed_pair import piece
from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.device.form import compiledModules
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode
from twisted_ib.hca.wire.headers import IMMEDIATE, INVALIDATE, REFERENCE

SEND, SEND_IMM = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM
WRITE, WRITE_IMM, READ = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM, SendOpcode.RDMA_READ
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR


class PromiseTests(ResponderTestCase):
    """
    Promised receives.
    """

    def connect(self, **arguments: Any) -> None:
        """
        With two of them.
        """
        super().connect(**arguments)
        self.b.qp.postReceives(2)

    def got(self) -> list[Any]:
        """
        The messages that came to the consumer.
        """
        return self.b.consumer.got

    def test_only(self) -> None:
        """
        A message of one record is handed on where it lies.
        """
        for code in (0x04, 0x84):
            self.connect()
            self.assertEqual(self.put(code, b"abc"), 0)
            self.assertEqual((self.got(), self.b.qp.posted), ([(b"abc", None)], 1))

    def test_empty(self) -> None:
        """
        Also one of no bytes.
        """
        self.put(0x04)
        self.put(0x05, IMMEDIATE.pack(7))
        self.assertEqual(self.got(), [(b"", None), (b"", 7)])

    def test_immediate(self) -> None:
        """
        Immediates of SEND and WRITE.
        """
        self.put(0x05, IMMEDIATE.pack(7) + b"abc")
        self.put(0x0B, self.reth(3) + IMMEDIATE.pack(8) + b"xyz")
        self.assertEqual(self.got(), [(b"abc", 7), (3, 8)])
        self.assertEqual((self.b.qp.posted, bytes(self.target.view[:3])), (0, b"xyz"))

    def test_plainWrite(self) -> None:
        """
        A WRITE without immediate needs none.
        """
        self.put(0x0A, self.reth(3) + b"xyz")
        self.assertEqual((self.got(), self.b.qp.posted), ([], 2))

    def test_parts(self) -> None:
        """
        Several records are one message; in its middle the promises may be taken back.
        """
        self.put(0x00, b"abc")
        self.put(0x01, b"def")
        self.b.qp.posted = 0
        self.assertEqual(self.got(), [])
        self.put(0x03, IMMEDIATE.pack(9) + b"g")
        self.assertEqual((self.got(), self.b.qp.posted), ([(b"abcdefg", 9)], 0))
        self.assertEqual(self.put(0x04, b"h"), 0x20 | 12)
        self.b.qp.posted = 3
        self.assertEqual(self.put(0x04, b"h"), 0)

    def test_manyParts(self) -> None:
        """
        Small records cost no more memory than the message may have.
        """
        data = bytes(range(250))
        self.b.qp.maxMessage = len(data)
        self.put(0x00, data[:1])
        for at in range(1, 249):
            self.put(0x01, data[at : at + 1])
            self.assertLess(sys.getsizeof(self.b.work.responder._message.parts._bytes), 2 * at + 100)
        self.put(0x02, data[249:])
        self.assertEqual(self.got(), [(data, None)])

    def test_reference(self) -> None:
        """
        Bytes that a record refers to.
        """
        self.a.path.offers[1] = b"0123456789"
        self.assertEqual(self.put(0x44, REFERENCE.pack(1, 4, 3)), 0)
        self.assertEqual(self.got(), [(b"3456", None)])

    def test_longest(self) -> None:
        """
        A message longer than maxMessage is refused, in one record or many.
        """
        for records in ([(0x04, b"1234")], [(0x00, b"12"), (0x01, b"34")], [(0x00, b"12"), (0x02, b"34")]):
            self.connect()
            self.b.qp.maxMessage = 4
            *before, last = [self.put(code, data) for code, data in records]
            self.assertEqual((before, last), ([0] * len(before), 0))
            self.connect()
            self.b.qp.maxMessage = 3
            *before, last = [self.put(code, data) for code, data in records]
            self.assertEqual((before, last), ([0] * len(before), 0x61))
            self.assertEqual((self.got(), self.b.qp.state), ([], QPState.ERR))
            self.assertEqual(self.b.events, [EventType.QP_REQ_ERR])
            (reason,) = self.b.consumer.failures
            self.assertIn("sent a message of more than 3 bytes", str(reason))

    def test_first(self) -> None:
        """
        Promises are used before receives, which are used then.
        """
        self.b.receive(1, piece(self.target))
        for number in range(3):
            self.put(0x04, b"%d" % number)
        self.assertEqual(self.got(), [(b"0", None), (b"1", None)])
        self.assertEqual([c.workRequestID for c in self.b.received()], [1])
        self.assertEqual(self.put(0x04, b"4"), 0x20 | 12)

    def test_invalidates(self) -> None:
        """
        SEND with invalidate.
        """
        window = bound(self.b, self.target)
        self.assertEqual(self.put(0x17, INVALIDATE.pack(window.key) + b"abc"), 0)
        self.assertEqual((self.got(), window.region), ([(b"abc", None)], None))
        self.assertEqual(self.put(0x17, INVALIDATE.pack(window.key) + b"abc"), 0)
        self.assertEqual((len(self.got()), self.b.qp.state), (1, QPState.ERR))

    def test_again(self) -> None:
        """
        A message that has to come again gives its promised receive back.
        """
        self.b.path.capacity = 0
        self.put(0x0C, self.reth(3))
        self.put(0x00, b"abc")
        self.assertEqual(self.b.qp.posted, 1)
        self.assertEqual(self.put(0x1A), 0x41)
        self.assertEqual((self.b.qp.posted, self.got()), (2, []))
        self.put(0x00, b"abc")
        self.b.qp.modify(QPState.RESET)
        self.assertEqual(self.b.qp.posted, 0)

    def test_established(self) -> None:
        """
        The first message in RTR is an event.
        """
        super().connect(connect=False)
        self.b.to(QPState.RTR, 17)
        self.b.qp.postReceives(2)
        self.put(0x04, b"a")
        self.assertEqual(self.b.events, [EventType.COMM_EST])

    def test_closes(self) -> None:
        """
        The consumer may close the queue pair while it takes a message.
        """
        for code, data in ((0x04, b"a"), (0x05, IMMEDIATE.pack(1)), (0x0B, self.reth(0) + IMMEDIATE.pack(1))):
            self.connect()
            consumer: Any = self.b.consumer
            consumer.received = consumer.immediateReceived = lambda *arguments: self.b.qp.close()
            consumer.remoteMemoryWritten = lambda *arguments: self.b.qp.close()
            self.assertEqual(self.put(code, data), 0)
            self.assertIsNone(self.b.qp.path)


class InlineTests(RequesterTestCase):
    """
    L{WorkQueues.postInline} and what tells when to go on.
    """

    def connect(self, **arguments: Any) -> None:
        """
        The other end takes messages.
        """
        super().connect(**arguments)
        self.b.qp.postReceives(100)

    def test_kinds(self) -> None:
        """
        Bytes, a list of bytes, an immediate; one has a completion if it has a number.
        """
        post = self.a.work.postInline
        self.assertTrue(post(b"abc", 3))
        self.assertTrue(post([b"d", b"ef"], 3, 5))
        self.assertTrue(post(b"", 0))
        self.assertTrue(post(bytearray(b"g"), 1, None, 9))
        self.assertEqual(self.wire()[1], (0x05, IMMEDIATE.pack(5) + b"def"))
        self.p.settle()
        self.assertEqual(self.b.consumer.got, [(b"abc", None), (b"def", 5), (b"", None), (b"g", None)])
        (done,) = self.a.sends.poll(9)
        self.assertEqual((done.workRequestID, done.opcode, done.byteLength), (9, WCOpcode.SEND, 1))

    def test_solicited(self) -> None:
        """
        The last record, or the only one, says that the peer's completion is solicited.
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        for immediate, last in ((None, 0x82), (6, 0x83)):
            self.connect()
            self.a.work.postInline(bytes(150), 150, immediate, solicited=True)
            self.assertEqual([code for code, _ in self.wire()], [0x00, last])
        for immediate, only in ((None, 0x84), (6, 0x85)):
            self.connect()
            self.a.work.postInline(bytes(50), 50, immediate, solicited=True)
            self.assertEqual([code for code, _ in self.wire()], [only])

    def test_long(self) -> None:
        """
        A message longer than a record holds.
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        data = bytes(range(250))
        for payload in (data, [data[:33], data[33:]]):
            for immediate in (None, 6):
                self.connect()
                self.a.work.postInline(payload, 250, immediate)
                last = 0x02 if immediate is None else 0x03
                self.assertEqual([code for code, _ in self.wire()], [0x00, 0x01, last])
                self.p.settle()
                self.assertEqual(self.b.consumer.got, [(data, immediate)])

    def test_repeated(self) -> None:
        """
        It is kept until the peer has a receive, and resume follows.
        """
        self.b.qp.posted = 0
        self.assertTrue(self.a.work.postInline(b"abc", 3))
        self.p.flow()
        self.assertFalse(self.a.work.postInline(b"def", 3))
        self.b.qp.posted = 2
        self.assertEqual(self.a.consumer.resumed, 0)
        self.p.settle()
        self.assertEqual(self.b.consumer.got, [(b"abc", None), (b"def", None)])
        self.assertEqual(self.a.consumer.resumed, 1)

    def test_fullMedium(self) -> None:
        """
        The same while the medium has no room.
        """
        self.connect(capacity=100)
        self.assertTrue(self.a.work.postInline(bytes(80), 80))
        self.assertFalse(self.a.work.postInline(bytes(80), 80))
        self.p.settle()
        self.assertEqual((len(self.b.consumer.got), self.a.consumer.resumed), (2, 1))

    def test_order(self) -> None:
        """
        It keeps its place among requests.
        """
        self.post(1, SEND, 3)
        self.a.work.postInline(b"abc", 3)
        self.post(2, SEND, 2)
        self.p.settle()
        self.assertEqual([len(data) for data, _ in self.b.consumer.got], [3, 3, 2])  # type: ignore[arg-type]
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])

    def test_full(self) -> None:
        """
        The queue's depth is the bound; a consumer that found it full is notified when it is half
        empty, once.
        """
        for asks in (self.asksFirst, self.triesAtOnce):
            self.connect()
            self.b.qp.posted = 0
            for _ in range(128):
                self.assertTrue(self.a.work.canPost())
                self.a.work.postInline(b"x", 1)
            asks()
            self.emptied()

    def asksFirst(self) -> None:
        """
        Hear that it is full by asking.
        """
        self.assertFalse(self.a.work.canPost())

    def triesAtOnce(self) -> None:
        """
        Hear that it is full by posting.
        """
        self.assertRaises(ResourceLimitError, self.a.work.postInline, b"x", 1)

    def emptied(self) -> None:
        """
        Half of it is done, then all.
        """
        self.b.qp.posted = 63
        self.p.flow()
        self.p.pass_(0.001)
        self.assertEqual(self.a.consumer.resumed, 0)
        self.b.qp.posted = 65
        self.p.settle()
        self.assertEqual(self.a.consumer.resumed, 1)
        self.assertEqual(len(self.b.consumer.got), 128)

    def test_idle(self) -> None:
        """
        Whether all is done, and the notification when it is.
        """
        self.assertTrue(self.a.work.idle())
        self.post(1, READ)
        self.post(2, WRITE)
        self.assertFalse(self.a.work.idle())
        self.b.path.progress(1)
        for _ in range(3):
            self.a.path.progress()
        self.assertEqual((self.a.consumer.resumed, self.a.statuses()), (0, [(1, OK)]))
        self.p.settle()
        self.assertEqual((self.a.consumer.resumed, self.a.work.idle()), (1, True))

    def test_failsMeanwhile(self) -> None:
        """
        A waiting consumer is not resumed by the end of the queue pair.
        """
        self.post(1, WRITE)
        self.a.send(2, WRITE, SGE(1, 1, 1))
        self.assertFalse(self.a.work.idle())
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, WCStatus.LOC_PROT_ERR)])
        self.assertEqual(self.a.consumer.resumed, 0)

    def test_notAsked(self) -> None:
        """
        A consumer that did not ask is not notified.
        """
        self.a.work.postInline(b"x", 1)
        self.p.settle()
        self.assertEqual(self.a.consumer.resumed, 0)

    def test_everyState(self) -> None:
        """
        Only in RTS and SQD; in SQD it waits.
        """
        for state in (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS, QPState.SQD, QPState.ERR):
            self.connect(connect=False)
            self.a.to(state, 18)
            self.b.to(QPState.RTS, 17)
            self.b.qp.postReceives(1)
            if state in (QPState.RTS, QPState.SQD):
                self.assertEqual(self.a.work.postInline(b"x", 1), state == QPState.RTS)
            else:
                self.assertRaises(QueuePairError, self.a.work.postInline, b"x", 1)
            self.p.settle()
            self.assertEqual(len(self.b.consumer.got), int(state == QPState.RTS))

    def test_tooLong(self) -> None:
        """
        Longer than maxMessage.
        """
        self.a.qp.maxMessage = 5
        self.a.work.postInline(b"12345", 5)
        self.assertRaises(QueuePairError, self.a.work.postInline, b"123456", 6)

    def test_fails(self) -> None:
        """
        If it cannot be delivered the queue pair fails; there is a completion only if it
        has a number.
        """
        for id, expected in ((None, []), (7, [(7, WCStatus.RNR_RETRY_EXC_ERR)])):
            self.connect(rnr_retry=0)
            self.b.qp.posted = 0
            self.a.work.postInline(b"x", 1, None, id)
            self.post(8, WRITE)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [*expected, (8, FLUSH)])
            (reason,) = self.a.consumer.failures
            self.assertIn("SEND", str(reason))
            self.assertIn("RNR_RETRY_EXC_ERR", str(reason))
            self.assertEqual(self.a.consumer.resumed, 0)

    def test_postsWhenItHears(self) -> None:
        """
        A program may post in the callback of a failed completion: the request is flushed, nothing
        is sent.
        """
        self.post(1, WRITE, remoteKey=1)
        push, a = self.a.sends.push, self.a

        def pushed(completion: Any, solicited: bool = False) -> bool:
            """
            Post when the first comes.
            """
            if completion.workRequestID == 1:
                a.send(2, WRITE)
                a.work.postInline(b"x", 1)
            return push(completion, solicited)

        self.a.work.sendCompletions = type("Queue", (), {"push": staticmethod(pushed)})()  # type: ignore[assignment]
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.REM_ACCESS_ERR), (2, FLUSH)])
        self.assertEqual(self.a.work.recordsSent, 1)

    def test_objectsMade(self) -> None:
        """
        A message makes one object, whose initialiser calls no other; nothing else of a class is made,
        here or there.
        """
        if compiledModules():
            raise SkipTest("compiled modules: their calls are not counted")
        made: Counter[str] = Counter()

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            """
            Count an initialiser, and who called whom.
            """
            if event == "call" and frame.f_code.co_name == "__init__":
                made[type(frame.f_locals["self"]).__name__] += 1

        self.a.work.postInline(b"warm", 4)
        self.p.flow()
        sys.setprofile(profile)
        try:
            for _ in range(50):
                self.a.work.postInline(b"x" * 64, 64)
            self.p.flow()
        finally:
            sys.setprofile(None)
        self.assertEqual(made, {"Inline": 50})
        self.assertEqual(len(self.b.consumer.got), 51)

    def test_signalAll(self) -> None:
        """
        sq_sig_all makes no completion for what has no number.
        """
        self.connect(signalAll=True)
        self.a.work.postInline(b"x", 1)
        self.post(2, SEND, 1, flags=int(SendFlags.SOLICITED))
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(2, OK)])
