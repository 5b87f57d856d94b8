"""
Tests for L{twisted_ib.hca.queues.completion}.
"""

from __future__ import annotations

from itertools import product

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import ResourceBusyError, ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.queues.completion import CompletionQueue, WCFlags, WCOpcode, WCStatus, WorkCompletion


def completion(number: int, status: WCStatus = WCStatus.SUCCESS) -> WorkCompletion:
    """
    A send that ended.
    """
    return WorkCompletion(number, status, WCOpcode.SEND, 17)


class NumbersTests(SynchronousTestCase):
    """
    The numbers are those of verbs.
    """

    def test_statuses(self) -> None:
        """
        Statuses count from 0 to 21; those that peers see are compared one by one.
        """
        self.assertEqual([int(status) for status in WCStatus], list(range(22)))
        self.assertEqual(WCStatus.LOC_PROT_ERR, 4)
        self.assertEqual(WCStatus.WR_FLUSH_ERR, 5)
        self.assertEqual(WCStatus.REM_INV_REQ_ERR, 9)
        self.assertEqual(WCStatus.REM_ACCESS_ERR, 10)
        self.assertEqual(WCStatus.REM_OP_ERR, 11)
        self.assertEqual(WCStatus.RETRY_EXC_ERR, 12)
        self.assertEqual(WCStatus.RNR_RETRY_EXC_ERR, 13)

    def test_opcodes(self) -> None:
        """
        Opcodes of send completions count from 0, of receive completions from 128.
        """
        self.assertEqual([int(opcode) for opcode in WCOpcode], [*range(10), 0x80, 0x81])

    def test_flags(self) -> None:
        """
        Flags are bits.
        """
        self.assertEqual([int(flag) for flag in WCFlags], [1, 2, 4])


class CompletionQueueTests(SynchronousTestCase):
    """
    L{CompletionQueue}.
    """

    def test_order(self) -> None:
        """
        Completions come out in the order they came in, as many as asked for.
        """
        queue = CompletionQueue(10)
        for number in range(5):
            self.assertTrue(queue.push(completion(number)))
        self.assertEqual([c.workRequestID for c in queue.poll()], [0])
        self.assertEqual([c.workRequestID for c in queue.poll(3)], [1, 2, 3])
        self.assertEqual(len(queue), 1)
        self.assertEqual([c.workRequestID for c in queue.poll(3)], [4])
        self.assertEqual(queue.poll(3), [])

    def test_takes(self) -> None:
        """
        Several may be appended while they leave room for one more, and nobody waits for a notification.
        """
        queue = CompletionQueue(5)
        queue.push(completion(0))
        self.assertEqual([queue.takes(count) for count in (1, 3, 4, 5)], [True, True, False, False])
        queue.arm()
        self.assertFalse(queue.takes(1))

    def test_overflow(self) -> None:
        """
        A completion too many is lost, and the queue says so; those before it stay.
        """
        queue = CompletionQueue(2)
        self.assertTrue(queue.push(completion(1)))
        self.assertTrue(queue.push(completion(2)))
        self.assertFalse(queue.overflowed)
        self.assertFalse(queue.push(completion(3)))
        self.assertTrue(queue.overflowed)
        self.assertEqual([c.workRequestID for c in queue.poll(9)], [1, 2])
        self.assertTrue(queue.push(completion(4)))
        self.assertTrue(queue.overflowed)

    def test_depth(self) -> None:
        """
        The depth is bounded.
        """
        CompletionQueue(limits.COMPLETION_QUEUE_DEPTH)
        for depth in (-1, 0, limits.COMPLETION_QUEUE_DEPTH + 1):
            self.assertRaises(ResourceLimitError, CompletionQueue, depth)
        deep = CompletionQueue(32768)
        for number in range(deep.depth):
            self.assertTrue(deep.push(completion(number)))
        self.assertFalse(deep.push(completion(0)))

    def test_busy(self) -> None:
        """
        A queue that work queues use does not close.
        """
        queue = CompletionQueue(9)
        queue.hold("work queues")
        queue.hold("work queues")
        error = self.assertRaises(ResourceBusyError, queue.close)
        self.assertEqual(str(error), "the completion queue is still used by 2 work queues")
        queue.release("work queues")
        queue.release("work queues")
        queue.close()

    def test_overflowEvent(self) -> None:
        """
        The first completion that is lost, and no other, raises an event; armed or not, it is lost,
        and no notification comes for it.
        """
        for arm in (False, True):
            queue = CompletionQueue(1)
            events: list[tuple[EventType, object]] = []
            calls: list[object] = []
            queue.onEvent = lambda kind, element, events=events: events.append((kind, element))
            queue.onCompletion = calls.append
            queue.push(completion(1))
            self.assertEqual(events, [])
            if arm:
                queue.arm()
            self.assertFalse(queue.push(completion(2), True))
            self.assertFalse(queue.push(completion(3)))
            queue.poll()
            queue.push(completion(4))
            self.assertFalse(queue.push(completion(5)))
            self.assertEqual(events, [(EventType.CQ_ERR, queue)])
            self.assertEqual(calls, [queue] if arm else [])

    def test_resize(self) -> None:
        """
        A queue grows and shrinks, but not below what waits in it; armed or not.
        """
        for arm in (False, True):
            queue = CompletionQueue(2)
            if arm:
                queue.arm(True)
            self.assertTrue(queue.push(completion(1)) and queue.push(completion(2)))
            queue.resize(3)
            self.assertTrue(queue.push(completion(3)))
            self.assertFalse(queue.push(completion(4)))
            for depth in (2, 1, 0, -1, limits.COMPLETION_QUEUE_DEPTH + 1):
                self.assertRaises(ResourceLimitError, queue.resize, depth)
                self.assertEqual(queue.depth, 3)
            queue.resize(3)
            self.assertEqual([c.workRequestID for c in queue.poll(2)], [1, 2])
            queue.resize(1)
            self.assertFalse(queue.push(completion(5)))
            queue.resize(limits.COMPLETION_QUEUE_DEPTH)
            self.assertEqual(queue.depth, limits.COMPLETION_QUEUE_DEPTH)
            self.assertEqual([c.workRequestID for c in queue.poll(9)], [3])

    def test_close(self) -> None:
        """
        A closed queue forgets what waited.
        """
        queue = CompletionQueue(9)
        queue.push(completion(1))
        queue.close()
        queue.close()
        self.assertEqual(queue.poll(), [])

    def test_fields(self) -> None:
        """
        A completion has what it was made with, and what it can do without is 0.
        """
        plain = completion(7)
        self.assertEqual(
            (plain.byteLength, plain.flags, plain.immediate, plain.sourceQueuePair), (0, 0, 0, 0)
        )
        full = WorkCompletion(1, WCStatus.SUCCESS, WCOpcode.RECV, 17, 20, WCFlags.WITH_IMM, 30)
        self.assertEqual((full.byteLength, full.flags, full.immediate), (20, 2, 30))

    def test_repr(self) -> None:
        """
        A completion's text names the request, kind, status and queue pair.
        """
        self.assertEqual(repr(completion(7)), "<WorkCompletion 7 SEND SUCCESS of queue pair 17>")


class TakingMirror:
    """
    A mirror, for a program that takes C{taken} completions without a call.
    """

    def __init__(self, queue: CompletionQueue) -> None:
        self.queue = queue
        self.calls: list[str] = []
        self.shown = self.taken = 0
        queue.reflect(self)

    def wanted(self) -> None:
        self.calls.append("wanted")

    def show(self) -> None:
        """
        Have all.
        """
        self.settle()
        self.shown = len(self.queue.completions)
        self.queue.quiet = 0

    def settle(self) -> None:
        """
        Remove what was taken.
        """
        for _ in range(self.taken):
            self.queue.completions.popleft()
        self.shown -= self.taken
        self.taken = 0

    def recall(self) -> None:
        """
        Count it, and have nothing.
        """
        self.calls.append("recall")
        self.settle()
        self.shown = 0


class MirrorTests(SynchronousTestCase):
    """
    A queue whose completions are taken from a mirror.
    """

    def setUp(self) -> None:
        """
        A queue of four.
        """
        self.queue = CompletionQueue(4)
        self.mirror = TakingMirror(self.queue)

    def push(self, *numbers: int) -> list[bool]:
        """
        @return: Whether there was room for each.
        """
        return [self.queue.push(completion(each)) for each in numbers]

    def left(self) -> list[int]:
        """
        @return: What waits.
        """
        return [each.workRequestID for each in self.queue.completions]

    def test_wanted(self) -> None:
        """
        It is told of the first completion since it had all, armed or not; that makes no notification.
        """
        noticed: list[CompletionQueue] = []
        self.queue.onCompletion = noticed.append
        self.push(1, 2)
        self.assertEqual(self.mirror.calls, ["wanted"])
        self.mirror.show()
        self.queue.arm()
        self.push(3)
        self.assertEqual((self.mirror.calls, noticed), (["wanted"] * 2, [self.queue]))
        self.mirror.taken = 3
        self.mirror.show()
        self.push(4)
        self.assertEqual((self.mirror.calls, noticed), (["wanted"] * 3, [self.queue]))

    def test_room(self) -> None:
        """
        What was taken leaves room, and no other.
        """
        self.assertEqual(self.push(1, 2, 3, 4, 5), [True] * 4 + [False])
        self.queue = CompletionQueue(4)
        self.mirror = TakingMirror(self.queue)
        self.push(1, 2, 3)
        self.mirror.show()
        self.mirror.taken = 2
        self.assertEqual(self.push(4, 5, 6, 7), [True] * 3 + [False])
        self.assertEqual(self.left(), [3, 4, 5, 6])

    def test_full(self) -> None:
        """
        A notification that waits for more comes when the queue is full of what was not taken, not before.
        """
        noticed: list[CompletionQueue] = []
        self.queue.onCompletion = noticed.append
        self.queue.modify(9, 0)
        self.push(1, 2)
        self.mirror.show()
        self.mirror.taken = 2
        self.queue.arm()
        self.push(3, 4, 5)
        self.assertEqual(noticed, [])
        self.push(6)
        self.assertEqual(noticed, [self.queue])

    def test_changes(self) -> None:
        """
        A resize and a reset find what was not taken, and so does the end.
        """
        self.push(1, 2, 3)
        self.mirror.show()
        self.assertRaises(ResourceLimitError, self.queue.resize, 2)
        self.mirror.show()
        self.mirror.taken = 1
        self.queue.resize(2)
        self.assertEqual((self.left(), self.mirror.shown), ([2, 3], 0))
        self.mirror.show()
        self.mirror.taken = 1
        self.queue.discard(18)
        self.assertEqual((self.left(), self.mirror.shown), ([3], 0))
        self.queue.discard(17)
        self.assertEqual(self.left(), [])
        self.push(4)
        self.mirror.show()
        self.queue.close()
        self.assertEqual((self.left(), self.mirror.shown), ([], 0))

    def test_without(self) -> None:
        """
        A queue whose mirror has gone is as others are.
        """
        self.queue.reflect(None)
        self.assertEqual(self.push(1, 2, 3, 4, 5), [True] * 4 + [False])
        self.assertEqual(self.mirror.calls, [])


class NotificationTests(SynchronousTestCase):
    """
    Arming, solicited events, moderation.
    """

    def setUp(self) -> None:
        """
        A queue that counts its notifications, on a clock that stands still.
        """
        self.clock = Clock()
        self.timers = Timers(self.clock.seconds)
        self.queue = CompletionQueue(100, self.timers)
        self.calls: list[int] = []
        self.queue.onCompletion = lambda queue: self.calls.append(len(queue))

    def push(self, count: int = 1) -> None:
        """
        Queue good completions that are not solicited.
        """
        for number in range(count):
            self.assertTrue(self.queue.push(completion(number)))

    def advance(self, microseconds: int) -> None:
        """
        Let time pass.
        """
        self.clock.advance(microseconds / 1e6)
        self.timers.tick(self.clock.seconds())

    def test_notArmed(self) -> None:
        """
        A queue that is not armed does not notify.
        """
        self.push(3)
        self.queue.push(completion(4, WCStatus.REM_OP_ERR), True)
        self.assertEqual(self.calls, [])

    def test_oneShot(self) -> None:
        """
        One arming gives one call, however many completions come, and whatever came
        before does not count.
        """
        self.push(2)
        self.queue.arm()
        self.assertEqual(self.calls, [])
        self.push(3)
        self.assertEqual(self.calls, [3])
        self.queue.arm()
        self.queue.arm()
        self.push(2)
        self.assertEqual(self.calls, [3, 6])
        self.assertEqual(len(self.queue), 7)

    def test_solicited(self) -> None:
        """
        Every way to be armed, twice, and every kind of completion: any one is enough if
        any was asked for once, else it has to be solicited or an error.
        """
        ways: tuple[bool | None, ...] = (None, False, True)
        for first, second, solicited, status in product(ways, ways, (False, True), WCStatus):
            queue = CompletionQueue(9)
            calls: list[object] = []
            queue.onCompletion = calls.append
            for way in (first, second):
                if way is not None:
                    queue.arm(way)
            queue.push(completion(1, status), solicited)
            asked = (first, second) != (None, None)
            wanted = asked and (False in (first, second) or solicited or status != WCStatus.SUCCESS)
            self.assertEqual(calls, [queue] * wanted, (first, second, solicited, status))

    def test_stillArmed(self) -> None:
        """
        A completion that does not count leaves the queue armed; one that counted does not leave it
        armed for more than it is armed for next.
        """
        self.queue.arm()
        self.push()
        self.assertEqual(self.calls, [1])
        self.calls.clear()
        self.queue.poll()
        self.queue.arm(True)
        self.push(5)
        self.assertEqual(self.calls, [])
        self.queue.push(completion(6), True)
        self.queue.push(completion(7), True)
        self.assertEqual(self.calls, [6])

    def test_armedInCall(self) -> None:
        """
        The call may ask for the next one.
        """

        def again(queue: CompletionQueue) -> None:
            self.calls.append(len(queue))
            queue.arm()

        self.queue.onCompletion = again
        self.queue.arm()
        self.push(3)
        self.assertEqual(self.calls, [1, 2, 3])

    def test_nobody(self) -> None:
        """
        An armed queue without a callback calls nothing.
        """
        self.queue.onCompletion = None
        self.queue.arm()
        self.push()
        self.assertEqual(len(self.queue), 1)

    def test_closed(self) -> None:
        """
        A closed queue calls nothing any more, whether it was armed or a call was due, or something
        happens later.
        """
        self.queue.modify(5, 10)
        self.queue.arm()
        self.push()
        self.queue.onEvent = lambda kind, element: self.calls.append(-1)
        self.queue.close()
        self.assertIsNone(self.timers.deadline())
        self.push(1)
        self.queue.modify(0, 0)
        self.queue.arm()
        self.push(99)
        self.queue.push(completion(0))
        self.assertTrue(self.queue.overflowed)
        self.advance(20)
        self.assertEqual((self.calls, self.timers.deadline()), ([], None))

    def test_count(self) -> None:
        """
        The call waits for the requested number of completions since the arming, polled or not.
        """
        self.queue.modify(3, 0)
        self.push(2)
        self.queue.arm()
        self.push(1)
        self.queue.poll(9)
        self.push(1)
        self.assertEqual((self.calls, self.timers.deadline()), ([], None))
        self.push(2)
        self.assertEqual(self.calls, [2])
        self.queue.arm()
        self.push(2)
        self.assertEqual(self.calls, [2])
        self.push(1)
        self.assertEqual(self.calls, [2, 6])

    def test_countSolicited(self) -> None:
        """
        Only what the call is for is counted.
        """
        self.queue.modify(2, 0)
        self.queue.arm(True)
        self.push(5)
        self.queue.push(completion(5), True)
        self.push(5)
        self.assertEqual(self.calls, [])
        self.queue.push(completion(6, WCStatus.WR_FLUSH_ERR))
        self.assertEqual(self.calls, [12])

    def test_period(self) -> None:
        """
        The time counts from the first completion after the arming.
        """
        self.queue.modify(10, 50)
        self.push(1)
        self.queue.arm()
        self.advance(100)
        self.assertEqual((self.calls, self.timers.deadline()), ([], None))
        self.push(1)
        self.advance(30)
        self.push(1)
        self.advance(19)
        self.assertEqual(self.calls, [])
        self.advance(2)
        self.assertEqual((self.calls, self.timers.deadline()), ([3], None))
        self.advance(100)
        self.push(1)
        self.advance(100)
        self.assertEqual(self.calls, [3])

    def test_countBeforePeriod(self) -> None:
        """
        Enough completions do not wait for the time, which does not make a second call.
        """
        self.queue.modify(2, 50)
        self.queue.arm()
        self.push(2)
        self.assertEqual((self.calls, self.timers.deadline()), ([2], None))
        self.queue.arm()
        self.push(1)
        self.advance(49)
        self.assertEqual(self.calls, [2])
        self.advance(2)
        self.assertEqual(self.calls, [2, 3])

    def test_periodOnly(self) -> None:
        """
        With a count of 0 only the time counts.
        """
        self.queue.modify(0, 50)
        self.queue.arm()
        self.push(90)
        self.assertEqual(self.calls, [])
        self.advance(51)
        self.assertEqual(self.calls, [90])

    def test_full(self) -> None:
        """
        A full queue waits neither for more completions nor for the time.
        """
        self.queue.resize(4)
        for count, period in ((9, 0), (0, 50), (9, 50)):
            self.calls.clear()
            self.queue.modify(count, period)
            self.queue.arm()
            self.push(3)
            self.assertEqual(self.calls, [])
            self.push(1)
            self.assertEqual((self.calls, self.timers.deadline()), ([4], None))
            self.queue.poll(4)
        self.queue.arm()
        self.push(2)
        self.queue.resize(2)
        self.assertEqual(self.calls, [4, 2])

    def test_off(self) -> None:
        """
        Moderation that ends, or wants no more than came already, makes the call that was
        held back; one that wants more goes on waiting.
        """
        for count, period, made in ((0, 0, True), (1, 0, True), (2, 9, True), (3, 0, False), (0, 9, False)):
            self.queue.modify(5, 1000)
            self.queue.arm()
            self.calls.clear()
            self.push(2)
            self.queue.modify(count, period)
            self.assertEqual(bool(self.calls), made, (count, period))
            self.advance(10)
            self.push(1)
            self.assertEqual(len(self.calls), 1)
            self.advance(2000)
            self.assertEqual(len(self.calls), 1)
            self.queue.poll(99)

    def test_modifiedUnarmed(self) -> None:
        """
        To change moderation makes no call by itself.
        """
        self.push(5)
        self.queue.modify(3, 10)
        self.queue.arm()
        self.queue.modify(1, 0)
        self.advance(100)
        self.assertEqual(self.calls, [])
        self.push()
        self.assertEqual(self.calls, [6])

    def test_bounds(self) -> None:
        """
        Count and period have 16 bits; without timers there is no period.
        """
        most = limits.COMPLETION_MODERATION
        self.queue.modify(most, most)
        self.assertEqual((self.queue.count, self.queue.period), (65535, 65535))
        for count, period in ((most + 1, 0), (0, most + 1), (-1, 0), (0, -1)):
            self.assertRaises(ResourceLimitError, self.queue.modify, count, period)
        self.assertEqual((self.queue.count, self.queue.period), (65535, 65535))
        plain = CompletionQueue(1)
        plain.modify(5, 0)
        self.assertRaises(ResourceLimitError, plain.modify, 5, 1)
        self.assertEqual((plain.count, plain.period), (5, 0))

    def test_manyEvents(self) -> None:
        """
        Calls that come before their time leave no timers behind.
        """
        self.queue.modify(2, 60000)
        for _ in range(1000):
            self.queue.arm()
            self.push(2)
            self.queue.poll(2)
        self.assertEqual(len(self.calls), 1000)
        self.assertLess(len(self.timers._heap), 200)
        self.assertIsNone(self.timers.deadline())
