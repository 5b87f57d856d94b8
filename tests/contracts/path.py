"""
Tests for every path: records in order, back-pressure, reserves, refusals.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Any

from tests.hca.hcas import HCATestCase, Taker, settle, turn
from tests.support.calls import requireReplaceable
from twisted_ib import limits
from twisted_ib.hca.base.operation import ABSENT, MANAGEMENT, RESUME, word
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.fabric.base import path as basePath
from twisted_ib.hca.fabric.shm import socketpath
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.wire.headers import RNR
from twisted_ib.hca.wire.opcodes import SEND_ONLY, WRITE_ONLY

if TYPE_CHECKING:
    from twisted_ib.hca.device.device import Device

    Base = HCATestCase
else:
    Base = object  # Mixins: trial runs what is made of them.

#: More than any medium takes of records of 8000 bytes before it is full.
MANY = 1000


class Consumer:
    """
    Takes the messages of a queue pair.
    """

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.resumed = 0
        self.failures: list[Exception] = []

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        A message arrived.
        """
        self.messages.append(buffer[start:stop])

    def resume(self) -> None:
        """
        All is taken by the medium.
        """
        self.resumed += 1

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in ERR.
        """
        self.failures.append(reason)


def fill(taker: Taker) -> int:
    """
    Post until there is no room.

    @return: how many records that took.
    """
    for n in range(MANY):
        if not taker.post(b"%08d" % n * 1000):
            return n
    raise AssertionError("the medium is never full")


def give(a: Device, b: Device) -> None:
    """
    Have the second take what the first has posted, which takes nothing meanwhile.
    """
    a.fabric.ringBells()
    b.fabric.look()
    b.progress()


class FlowContract(Base):
    """
    Records arrive once, in order, whatever they look like, and no more than
    there is room for.
    """

    def test_shapes(self) -> None:
        """
        Headers and payloads of every kind arrive as what they are.
        """
        a, b, one, two = self.takers()
        data = random.Random(1).randbytes(limits.INLINE_RECORD)
        view = memoryview(data)
        shapes: list[tuple[bytes, Any, int]] = [
            (b"", b"", 0),
            (b"head", b"", 4),
            (b"", data, len(data)),
            (data[:16], view[16:100], 100),
            (b"", bytearray(data[:1000]), 1000),
            (b"", [], 0),
            (data[:3], [view[3:10], data[10:1000], view[1000:70]], 1000),
            (data[:24], [data[n : n + 1] for n in range(24, 5000)], 5000),
            (b"", [view], len(data)),
        ]
        for header, payload, length in shapes:
            posted = one.path.post(word(SEND_ONLY, 21), header, payload, length - len(header))
            self.assertTrue(posted or settle(a, b))
            settle(a, b)
        expected = [data[:length] for _, _, length in shapes]
        expected[1] = b"head"
        self.assertEqual(two.records, expected)

    def test_order(self) -> None:
        """
        Records of all sizes, both ways at once, arrive in order.  Seed 2.
        """
        a, b, one, two = self.takers()
        source = random.Random(2)
        sizes = [0, 55, 56, 57, 4095, 16383, 16384, 16385, limits.INLINE_RECORD]
        sent = {taker: [source.randbytes(source.choice(sizes)) for _ in range(150)] for taker in (one, two)}
        waiting = {taker: deque(data) for taker, data in sent.items()}
        for taker in (one, two):

            def go(taker: Taker = taker) -> None:
                """
                Post what there is room for.
                """
                while waiting[taker]:
                    if not taker.post(waiting[taker][0]):
                        taker.path.wantSpace(taker)
                        return
                    waiting[taker].popleft()

            taker.resume = go  # type: ignore[method-assign]
            go()
        settle(a, b)
        self.assertEqual([len(left) for left in waiting.values()], [0, 0])
        self.assertTrue(two.records == sent[one] and one.records == sent[two])

    def test_bound(self) -> None:
        """
        Records that are not accepted are bounded; a refused post publishes nothing.
        """
        a, b, one, two = self.takers()
        n = fill(one)
        self.assertTrue(limits.INLINE_RECORD <= n * 8000 <= max(4 * socketpath.CARRIER_BUFFER, limits.RING))
        position = one.path.position()
        for _ in range(10):
            self.assertFalse(one.post(b"x" * 8000))
        self.assertEqual(one.path.position(), position)
        settle(a, b)
        self.assertEqual(two.records, [b"%08d" % k * 1000 for k in range(n)])

    def test_resume(self) -> None:
        """
        Those who wait for room are told once each, first come first served,
        only when there is some.
        """
        a, b, one, _ = self.takers()
        fill(one)
        order: list[int] = []
        for n in range(3):
            waiter = Taker(one.path, 30 + n, 99)
            waiter.resume = lambda n=n: order.append(n)  # type: ignore[method-assign,misc]
            one.path.wantSpace(waiter)
        for _ in range(3):
            turn(a)
        self.assertEqual(order, [])
        settle(a, b)
        self.assertEqual(order, [0, 1, 2])

    def test_turns(self) -> None:
        """
        Of those who wait, each gets its turn: who is refused again stands
        behind the others.
        """
        a, b, one, _ = self.takers()
        fill(one)
        done: list[int] = []
        for n in range(4):
            waiter = Taker(one.path, 30 + n, 99)

            def go(n: int = n, waiter: Taker = waiter) -> None:
                """
                Take all the room there is, ten times.
                """
                done.append(n)
                if done.count(n) < 10:
                    fill(one)
                    one.path.wantSpace(waiter)

            waiter.resume = go  # type: ignore[method-assign]
            one.path.wantSpace(waiter)
        settle(a, b)
        self.assertEqual(done[:12], [0, 1, 2, 3] * 3)
        self.assertEqual(len(done), 40)

    def test_queuePair(self) -> None:
        """
        Messages of a queue pair that the medium does not accept are sent from the head on, in order, and then
        its consumer goes on.
        """
        a, b, path, other = self.joined()
        ends = []
        for device, way, remote in ((a, path, 21), (b, other, 20)):
            queuePair = QueuePair(41 - remote, Consumer(), device)
            queuePair.connect(way, remote)
            queuePair.postReceives(10000)
            ends.append(queuePair)
        one, two = ends
        sent: list[bytes] = []
        while one.canPost():
            data = b"%08d" % len(sent) * 1000
            sent.append(data)
            one.postInline(data[:16], data[16:], len(data) - 16)
        self.assertEqual(len(one.pending or ()), limits.INLINE_SENDS)
        settle(a, b)
        self.assertEqual((one.consumer.resumed, one.pending), (1, None))
        self.assertTrue(two.consumer.messages == sent)
        b.close()
        settle(a)
        self.assertEqual([len(end.consumer.failures) for end in ends], [1, 1])

    def test_reserve(self) -> None:
        """
        With both directions full, management still gets through both ways.
        """
        a, b, one, two = self.takers()
        came: list[tuple[Any, int, bytes]] = []
        for device in (a, b):
            device.managementReceived = (  # type: ignore[method-assign]
                lambda path, attribute, buffer, start, stop: came.append(
                    (path, attribute, buffer[start:stop])
                )
            )
        full = fill(one), fill(two)
        bodies = [bytes([n]) * 232 for n in range(10)]
        for taker in (one, two):
            for body in bodies:
                taker.path.sendManagement(0x10 + body[0], body)
        self.assertEqual((len(one.path.waiting), len(two.path.waiting)), (0, 0))
        settle(a, b)
        self.assertEqual((len(two.records), len(one.records)), full)
        for end in (one, two):
            mine = [(attribute, body) for path, attribute, body in came if path is end.path]
            self.assertEqual(mine, [(0x10 + body[0], body) for body in bodies])

    def test_managementWaits(self) -> None:
        """
        Management beyond the reserve waits, in order, and none is dropped.
        """
        a, b, one, _ = self.takers()
        came: list[int] = []
        b.managementReceived = (  # type: ignore[method-assign]
            lambda path, attribute, buffer, start, stop: came.append(attribute)
        )
        fill(one)
        for n in range(1000):
            one.path.sendManagement(n, bytes(232))
        self.assertTrue(500 < one.path.unsent() < 1000)
        settle(a, b)
        self.assertEqual((came, one.path.unsent()), (list(range(1000)), 0))

    def test_managementFirst(self) -> None:
        """
        While management waits nothing ordinary overtakes it, room or not; then
        those who waited go on, those who came before it too.
        """
        a, b, one, two = self.takers()
        came: list[Any] = []
        b.managementReceived = (  # type: ignore[method-assign]
            lambda path, attribute, buffer, start, stop: came.append(attribute)
        )
        two.upcall = lambda data: came.append(data) if len(data) < 100 else None
        fill(one)
        waiters = [Taker(one.path, 30 + n, 21) for n in range(2)]
        for waiter, data in zip(waiters, (b"earlier", b"later"), strict=True):
            waiter.resume = lambda waiter=waiter, data=data: waiter.post(data)  # type: ignore[method-assign,misc]
        one.path.wantSpace(waiters[0])
        n = 0
        while not one.path.unsent():
            one.path.sendManagement(n, bytes(232))
            n += 1
        one.path.wantSpace(waiters[1])
        turn(a)
        b.fabric.look()
        for _ in range(MANY):
            if not one.path.unsent():
                break
            b.progress(4)
            self.assertFalse(one.post(b"overtakes"))
            turn(a)
        self.assertTrue(one.post(b"behind"))
        settle(a, b)
        self.assertEqual(came, [*range(n), b"earlier", b"later", b"behind"])

    def test_waiterLeaves(self) -> None:
        """
        A waiter that is closed is not kept: a peer that never reads cannot make the list of waiters grow.
        """
        a, _, path, _ = self.joined()
        fill(Taker(path, 60, 99))
        for verb in ("close", "modify"):
            for n in range(3):
                queuePair = QueuePair(30 + n, Consumer(), a)
                queuePair.connect(path, 21)
                while queuePair.pending is None:
                    queuePair.postInline(b"", bytes(8000), 8000)
                self.assertIn(queuePair, path.waiting)
                queuePair.close() if verb == "close" else queuePair.modify(QPState.ERR)
                self.assertEqual(len(path.waiting), 0)

    def test_badManagement(self) -> None:
        """
        Malformed management is counted and dropped; what follows is taken.
        """
        a, b, one, two = self.takers()
        for target, body in ((MANAGEMENT, b"abc"), (word(SEND_ONLY, 1), bytes(236))):
            self.assertTrue(one.path.post(target, b"", body, len(body)))
        one.post(b"next")
        settle(a, b)
        self.assertEqual((b.counters["management_malformed"], two.records), (2, [b"next"]))

    def test_budget(self) -> None:
        """
        One turn takes no more than its budget from a path.
        """
        a, b, one, two = self.takers()
        for n in range(100):
            one.post(b"%d" % n)
        a.progress()
        b.fabric.look()
        for n in range(10, 101, 10):
            b.progress(10)
            self.assertEqual(len(two.records), n)
        self.assertEqual(b.progress(10), 0)

    def test_exception(self) -> None:
        """
        A consumer that fails over a record ends that turn; the record counts
        as taken and the next comes in the next turn.
        """
        a, b, one, two = self.takers()
        two.upcall = lambda data: 1 // (data not in (b"3", b"5"))
        for n in range(6):
            one.postKept(b"%d" % n)
        a.progress()
        b.fabric.look()
        for count in (4, 6):
            self.assertTrue(b.busy())
            self.assertRaises(ZeroDivisionError, b.progress)
            self.assertEqual(two.records, [b"%d" % n for n in range(count)])
        settle(a, b)
        self.assertEqual(len(two.records), 6)
        self.assertEqual(len(one.said("acknowledged")), 6)

    def test_answerInUpcall(self) -> None:
        """
        A consumer may post, and make progress, from within an upcall; that
        takes no record out of turn.
        """
        a, b, one, two = self.takers()

        def upcall(data: bytes) -> None:
            """
            Answer.
            """
            self.assertTrue(two.post(b"re: " + data))
            self.assertEqual(b.fabric.progress(64), 0)

        two.upcall = upcall
        for n in range(5):
            one.post(b"%d" % n)
        settle(a, b)
        self.assertEqual(two.records, [b"%d" % n for n in range(5)])
        self.assertEqual(one.records, [b"re: %d" % n for n in range(5)])


class RefusalContract(Base):
    """
    Records that are not accepted are refused before they are acknowledged.
    """

    def test_acknowledged(self) -> None:
        """
        A sender that keeps its records is notified of each when it is consumed, in order, and not before.
        """
        a, b, one, _ = self.takers()
        positions = [one.postKept(b"%d" % n) for n in range(5)]
        self.assertEqual(positions, sorted(set(positions)))
        for _ in range(3):
            turn(a)
        self.assertEqual(one.log, [])
        settle(a, b)
        self.assertEqual(one.log, [("acknowledged", position) for position in positions])

    def test_refused(self) -> None:
        """
        A refusal is heard before the acknowledgement that passes its record;
        what follows is dropped until the requester resumes.
        """
        a, b, one, two = self.takers()
        two.answers.extend([0, RNR | 5])
        positions = [one.postKept(b"%d" % n) for n in range(4)]
        settle(a, b)
        self.assertEqual(two.records, [b"0", b"1"])
        expected: list[tuple[str, Any]] = [("acknowledged", position) for position in positions]
        self.assertEqual(one.said("refused"), [(RNR | 5, 21, positions[1])])
        self.assertLess(one.log.index(("refused", (RNR | 5, 21, positions[1]))), one.log.index(expected[1]))
        self.assertEqual([entry for entry in one.log if entry[0] == "acknowledged"], expected)
        one.post(b"dropped as well")
        one.post(b"", RESUME)
        one.post(b"again")
        settle(a, b)
        self.assertEqual(two.records, [b"0", b"1", b"again"])
        self.assertEqual(len(one.said("refused")), 1)

    def test_refusedLate(self) -> None:
        """
        A refusal that lies behind other records is still heard first.
        """
        a, b, one, two = self.takers()
        for _ in range(200):
            two.post(b"in its way")
        two.answers.append(RNR)
        position = one.postKept(b"refuse me")
        give(a, b)
        a.fabric.look()
        for n in range(10, 201, 10):
            a.progress(10)
            self.assertEqual(len(one.records), n)
            self.assertEqual(one.said("acknowledged"), [])
        settle(a, b)
        self.assertEqual(
            [entry for entry in one.log if entry[0] != "taken"],
            [("refused", (RNR, 21, position)), ("acknowledged", position)],
        )

    def test_answered(self) -> None:
        """
        An answer comes behind the acknowledgement of what it answers, as of a queue pair between adapters,
        be it of several records; and behind the refusal of what came before, if there is one.
        """
        a, b, one, two = self.takers()

        def ask(*answers: bytes) -> int:
            one.log.clear()
            position = one.postKept(b"question")
            turn(a)
            turn(b)
            for each in answers:
                two.post(each)
            settle(a, b)
            return position

        for answers in ([b"answer"], [b"an", b"swer" * 99], [b"x" * 700] * 3):
            for _ in range(2):
                position = ask(*answers)
                taken = [("taken", each) for each in answers]
                self.assertEqual(one.log, [("acknowledged", position), *taken])
        # Of two that are found together the second one is refused.
        one.log.clear()
        first = one.postKept(b"first")
        turn(a)
        turn(b)
        two.post(b"its answer")
        two.answers.append(RNR)
        second = one.postKept(b"second")
        give(a, b)
        settle(a, b)
        expected: list[tuple[str, Any]] = [("acknowledged", first), ("taken", b"its answer")]
        self.assertEqual(one.log, [*expected, ("refused", (RNR, 21, second)), ("acknowledged", second)])

    def test_answerAfterError(self) -> None:
        """
        A completion that raises loses neither the answer behind it nor what is told the peer of that.
        """
        a, b, one, two = self.takers()
        one.postKept(b"question")
        turn(a)
        turn(b)
        position = two.postKept(b"answer")
        turn(b)
        taken, one.acknowledged = one.acknowledged, lambda position: 1 // 0  # type: ignore[method-assign]
        for _ in range(20):
            try:
                turn(a)
            except ZeroDivisionError:
                one.acknowledged = taken  # type: ignore[method-assign]
        self.assertEqual(one.acknowledged, taken)
        settle(a, b)
        self.assertEqual(one.said("taken"), [b"answer"])
        self.assertEqual(two.said("acknowledged"), [position])

    def test_acknowledgedInTraffic(self) -> None:
        """
        Acknowledgements come although there is always more to take than a
        turn takes.
        """
        a, b, one, two = self.takers()
        for _ in range(20):
            two.post(b"traffic")
        for n in range(1, 6):
            one.postKept(b"kept")
            for _ in range(20):
                two.post(b"traffic")
                turn(b)
                a.fabric.look()
                a.progress(1)
                a.fabric.ringBells()
            self.assertTrue(a.busy())
            self.assertGreaterEqual(len(one.said("acknowledged")), n - 3)

    def test_refusedManyTimes(self) -> None:
        """
        However the turns fall, the refusal comes first.  Seed 3.
        """
        source = random.Random(3)
        a, b, one, two = self.takers()
        for _ in range(50):
            one.log.clear()
            positions = [one.postKept(b"x" * source.choice((1, 100, 5000))) for _ in range(8)]
            k = source.randrange(8)
            two.answers.extend([0] * k + [RNR])
            for _ in range(40):
                source.choice((a, b)).progress(source.choice((1, 2, 64)))
                turn(source.choice((a, b)))
            settle(a, b)
            heard = one.log.index(("refused", (RNR, 21, positions[k])))
            self.assertLess(heard, one.log.index(("acknowledged", positions[k])))
            self.assertEqual(one.said("acknowledged"), positions)
            one.post(b"", RESUME)

    def test_refusedWhenFull(self) -> None:
        """
        With both directions full, refusals get through both ways.
        """
        a, b, one, two = self.takers()
        one.answers.append(RNR)
        two.answers.append(RNR)
        full = fill(one), fill(two)
        settle(a, b)
        self.assertEqual((len(one.said("refused")), len(two.said("refused"))), (1, 1))
        self.assertEqual((len(one.records), len(two.records)), (1, 1))
        self.assertTrue(min(full) > 1)
        one.post(b"", RESUME)
        two.post(b"", RESUME)
        self.assertTrue(one.post(b"one") and two.post(b"two"))
        settle(a, b)
        self.assertEqual((two.records[1:], one.records[1:]), ([b"one"], [b"two"]))

    def test_manyRefusedWhenFull(self) -> None:
        """
        The same with more refusals, of different queue pairs, than the
        reserve holds: each record that is taken makes room for a refusal.
        """
        a, b, path, other = self.joined()
        ones = [Taker(path, 100 + n, 1000 + n) for n in range(300)]
        twos = [Taker(other, 1000 + n, 100 + n) for n in range(300)]
        for takers in (ones, twos):
            for taker in takers:
                taker.answers.append(RNR)
            n = 0
            while takers[n % 300].post(bytes(100)):
                n += 1
        settle(a, b)
        self.assertEqual((path.owed, other.owed), (None, None))
        for takers, peers in ((ones, twos), (twos, ones)):
            refused = sum(len(taker.said("refused")) for taker in takers)
            self.assertTrue(refused > limits.REFUSAL_RESERVE // 64)
            self.assertEqual(refused, sum(len(taker.records) for taker in peers))

    def test_owed(self) -> None:
        """
        A refusal that finds no room is sent when there is some; before that
        nothing more is taken, and its record is not acknowledged.
        """
        a, b, one, two = self.takers()
        two.answers.append(RNR)
        positions = [one.postKept(b"%d" % n) for n in range(3)]
        kind = type(two.path)
        requireReplaceable(kind, "postReserved")
        full = self.patch(kind, "postReserved", lambda *arguments: False)
        for _ in range(5):
            turn(a)
            turn(b)
        self.assertEqual((two.records, one.log), ([b"0"], []))
        full.restore()
        two.path.sendManagement(0x10, bytes(232))
        settle(a, b)
        self.assertEqual(one.said("refused"), [(RNR, 21, positions[0])])
        self.assertEqual(one.said("acknowledged"), positions)
        self.assertEqual(one.log[0][0], "refused")
        self.assertEqual(two.records, [b"0"])

    def test_absent(self) -> None:
        """
        Nobody has the number: refused once, until the requester resumes, also
        if somebody has it meanwhile.
        """
        a, b, path, other = self.joined()
        one = Taker(path, 20, 21)
        path.requesters[21] = one
        positions = [one.postKept(b"%d" % n) for n in range(3)]
        settle(a, b)
        self.assertEqual(one.said("refused"), [(ABSENT, 21, positions[0])])
        self.assertEqual(one.log[0][0], "refused")
        two = Taker(other, 21, 20)
        one.post(b"too early")
        settle(a, b)
        self.assertEqual(two.records, [])
        one.post(b"", RESUME)
        one.post(b"again")
        settle(a, b)
        self.assertEqual(two.records, [b"again"])

    def test_ended(self) -> None:
        """
        Messages that are on the way when a stream ends are dropped: no error, no refusal, and the next queue
        pair with that number takes what comes then.  Opcodes that no stream sends are refused.
        """
        a, b, path, other = self.joined()
        one, two = Taker(path, 20, 21), Taker(other, 21, 20)
        path.requesters[21] = one
        two.work = None
        other.unbind(two)
        one.post(b"late")
        settle(a, b)
        self.assertEqual((one.log, b.counters["absent_queue_pair"]), ([], 0))
        three = Taker(other, 21, 20)
        one.post(b"new")
        settle(a, b)
        self.assertEqual(three.records, [b"new"])
        three.work = None
        other.unbind(three)
        one.post(b"for memory", WRITE_ONLY)
        settle(a, b)
        self.assertEqual(one.said("refused"), [(ABSENT, 21, path.position())])

    def test_absentNumbers(self) -> None:
        """
        The numbers that are remembered to be absent are bounded.
        """
        a, b, path, other = self.joined()
        self.patch(basePath, "ABSENT_NUMBERS", 10)
        for number in range(100, 200):
            one = Taker(path, 20, number)
            self.assertTrue(one.post(b"anybody?"))
            settle(a, b)
        self.assertEqual(len(other.absent), 10)
