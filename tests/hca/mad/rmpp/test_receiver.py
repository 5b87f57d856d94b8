"""
The receiving end of a transfer, input by input.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.mad.rmpp.segmented import AT, SIZE, answer, data, seen
from twisted_ib.hca.mad.rmpp import receiver, segments
from twisted_ib.hca.mad.rmpp.receiver import RMPP_ASK_SECONDS, RMPP_COMPLETE_SECONDS, RMPP_WINDOW, Receiver
from twisted_ib.hca.mad.rmpp.segments import TransferStatus
from twisted_ib.hca.wire.mad.classes import ABORT, ACK, FIRST, LAST, STOP
from twisted_ib.hca.wire.mad.mad import METHOD_AT

#: The length of a class header, which each segment has.
OVERHEAD = 20
FAILED = {status: [(ABORT, status, 0, 0)] for status in TransferStatus}


def part(number: int, count: int, last: int = SIZE, total: bool = True) -> bytes:
    """
    @return: segment C{number} of C{count}, filled with its number.
    """
    flags, length, size = 0, 0, SIZE
    if number == 1:
        flags = FIRST
        length = count * OVERHEAD + (count - 1) * SIZE + last if total else 0
    if number == count:
        flags |= LAST
        length, size = OVERHEAD + last, last
    return data(number, flags, length, bytes((number & 0xFF,)) * size)


def whole(count: int, last: int = SIZE) -> bytes:
    """
    @return: the data of all parts.
    """
    return b"".join(bytes((n & 0xFF,)) * (SIZE if n < count else last) for n in range(1, count + 1))


class ReceiverTests(SynchronousTestCase):
    """
    One transfer.
    """

    def setUp(self) -> None:
        """
        A receiver.
        """
        self.machine = Receiver(AT, 0.0)

    def take(self, mad: bytes, now: float = 0.0) -> list[tuple[int, ...]]:
        """
        @return: the MADs that a segment draws.
        """
        mads = self.machine.received(mad, now)
        self.assertTrue(all(each[METHOD_AT] == 0x12 for each in mads))
        return seen(mads)

    def test_order(self) -> None:
        """
        The first segment is acknowledged with a window, then the middle of each window, and the last one.
        """
        count = 3 * RMPP_WINDOW
        acks = {number: self.take(part(number, count, 7)) for number in range(1, count + 1)}
        half = RMPP_WINDOW // 2
        for number in range(1, count, half):
            self.assertEqual(acks.pop(number), [(ACK, 0, number, number + RMPP_WINDOW)])
        self.assertEqual(acks.pop(count)[0][:3], (ACK, 0, count))
        self.assertEqual(set(map(tuple, acks.values())), {()})
        self.assertIs(self.machine.status, TransferStatus.SUCCESS)
        self.assertEqual(self.machine.held, (count - 1) * SIZE + 7)
        self.assertEqual(self.machine.take(), whole(count, 7))
        self.assertEqual((self.machine.held, self.machine.take()), (0, b""))

    def test_lengths(self) -> None:
        """
        The last segment says how long the data is: nothing, one octet, all of a segment.
        """
        for last in (0, 1, SIZE):
            for total in (True, False):
                self.setUp()
                for number in (1, 2):
                    self.take(part(number, 2, last, total))
                self.assertEqual(self.machine.take(), whole(2, last))
        self.setUp()
        self.assertEqual(self.take(part(1, 1, 0)), [(ACK, 0, 1, 1)])
        self.assertEqual((self.machine.status, self.machine.take()), (TransferStatus.SUCCESS, b""))

    def test_disorder(self) -> None:
        """
        Segments behind a gap are kept, and are acknowledged when it closes.
        """
        self.take(part(1, 6))
        for number in (3, 4, 3, 6):
            self.assertEqual(self.take(part(number, 6)), [])
        self.assertEqual(self.take(part(2, 6)), [(ACK, 0, 4, 4 + RMPP_WINDOW)])
        self.assertEqual(self.take(part(5, 6))[0][:3], (ACK, 0, 6))
        self.assertEqual(self.machine.take(), whole(6))
        self.setUp()
        for number in (1, 3):
            self.take(part(number, 9))
        self.assertEqual(self.take(part(2, 9)), [(ACK, 0, 3, 3 + RMPP_WINDOW)])

    def test_repeated(self) -> None:
        """
        A segment that is here already is acknowledged, before the end and for a while after it.
        """
        self.take(part(1, 3))
        self.assertEqual(self.take(part(1, 3)), [(ACK, 0, 1, 1 + RMPP_WINDOW)])
        self.take(part(2, 3))
        self.take(part(3, 3), 5.0)
        self.assertEqual(self.machine.deadline, 5.0 + RMPP_COMPLETE_SECONDS)
        self.assertEqual(self.take(part(2, 3))[0][:3], (ACK, 0, 3))
        self.assertEqual(self.machine.expired(5.0 + RMPP_COMPLETE_SECONDS), [])
        self.assertIsNone(self.machine.deadline)

    def test_window(self) -> None:
        """
        A segment beyond the window is not kept.
        """
        self.take(part(1, 99))
        self.assertEqual(self.take(part(2 + RMPP_WINDOW, 99)), [])
        self.assertEqual(self.machine.held, SIZE)
        self.take(part(1 + RMPP_WINDOW, 99))
        self.assertEqual(self.machine.held, 2 * SIZE)

    def test_tooLong(self) -> None:
        """
        A table that is too long is stopped, as soon as its length is known.
        """
        self.patch(receiver, "RMPP_TABLE_BYTES", 4 * SIZE)
        stopped = [(STOP, TransferStatus.RESOURCES_EXHAUSTED, 0, 0)]
        self.assertEqual(self.take(part(1, 5)), stopped)
        self.assertIs(self.machine.status, TransferStatus.RESOURCES_EXHAUSTED)
        self.setUp()
        for number in range(1, 5):
            self.assertNotEqual(self.take(part(number, 9, total=False)), stopped)
        self.assertEqual(self.take(part(5, 9)), stopped)
        self.assertEqual((self.machine.held, self.machine.deadline), (0, None))
        self.setUp()
        for number in range(1, 5):
            self.take(part(number, 4))
        self.assertEqual(self.machine.take(), whole(4))

    def test_faults(self) -> None:
        """
        An ABORT for each way in which a segment is wrong, whether it is the first or a later one.
        """
        last, first = TransferStatus.INCONSISTENT_LAST, TransferStatus.INCONSISTENT_FIRST
        early = [part(1, 9, total=False), part(5, 9)]
        for before, mad, expected in (
            ([], data(1), first),
            ([], data(2, FIRST, 660), first),
            ([], data(0, FIRST, 660), first),
            ([], data(0), first),
            ([part(1, 3)], data(2, FIRST), first),
            ([], data(1, FIRST | LAST, OVERHEAD - 1), last),
            ([], data(1, FIRST | LAST, 221), last),
            ([], data(1, FIRST, 220), last),
            ([part(1, 3)], data(2, LAST, 100), last),
            ([part(1, 3)], data(3), last),
            ([part(1, 3)], data(4), last),
            ([part(1, 3)], data(3, LAST, 19), last),
            ([*early, part(2, 9)], data(3, LAST, 100), last),
            ([*early, data(6, LAST, 99)], data(7), last),
            ([], data(1, FIRST, status=1), TransferStatus.ILLEGAL_STATUS),
            ([part(1, 3)], data(2, version=2), TransferStatus.UNSUPPORTED_VERSION),
            ([], data(1, FIRST, version=0), TransferStatus.UNSUPPORTED_VERSION),
            ([part(1, 3)], data(2, type=5), TransferStatus.BAD_TYPE),
            ([], data(1, FIRST, type=0), TransferStatus.BAD_TYPE),
        ):
            self.setUp()
            for each in before:
                self.take(each)
            self.assertEqual(self.take(mad), FAILED[expected], seen([mad]))
            self.assertEqual((self.machine.status, self.machine.held), (expected, 0))
            self.assertIsNone(self.machine.deadline)

    def test_ends(self) -> None:
        """
        A STOP or ABORT ends it; neither is answered, not even a wrong one.  An ACK is not for a receiver.
        """
        illegal = TransferStatus.ILLEGAL_STATUS
        for mad, expected in (
            (answer(STOP, 1), TransferStatus.RESOURCES_EXHAUSTED),
            (answer(STOP, 118), illegal),
            (answer(ABORT, 1), illegal),
            *((answer(ABORT, status), TransferStatus(status)) for status in range(118, 128)),
        ):
            self.setUp()
            self.take(part(1, 3))
            self.assertEqual((self.take(answer(ACK, 0, 0, 1)), self.machine.status), ([], None))
            self.assertEqual((self.take(mad), self.machine.status), ([], expected))
            self.assertEqual((self.machine.held, self.machine.deadline), (0, None))

    def test_ended(self) -> None:
        """
        When it has ended nothing happens; when it is complete only repeated segments are acknowledged.
        """
        others = [answer(ACK, 0, 0, 1), answer(STOP, 1), answer(ABORT, 118), answer(9), data(1, version=3)]
        for end in (answer(STOP, 1), answer(ABORT, 127), data(1)):
            self.setUp()
            self.take(part(1, 3))
            self.take(end)
            for mad in (part(1, 3), part(2, 3), *others):
                self.assertEqual(self.take(mad), [])
        self.setUp()
        self.take(part(1, 1))
        for mad in others:
            self.assertEqual((self.take(mad), self.machine.status), ([], TransferStatus.SUCCESS))
        self.assertEqual(self.machine.take(), whole(1))

    def test_idle(self) -> None:
        """
        It ends when nothing arrives in order for a time; other segments are no progress.
        """
        self.take(part(1, 9), 10.0)
        self.take(part(3, 9), 45.0)
        self.assertEqual((self.machine.deadline, self.machine.expired(49.9)), (50.0, []))
        self.assertEqual(seen(self.machine.expired(50.0)), FAILED[TransferStatus.TIME_TOO_LONG])
        self.machine = Receiver(AT, 0.0, 2.0)
        self.take(part(1, 9), 1.0)
        self.assertEqual(self.machine.deadline, 3.0)
        self.assertEqual(Receiver(AT, 0.0, 1e9).deadline, segments.RMPP_IDLE_SECONDS)

    def test_asking(self) -> None:
        """
        What was asked for is asked for again while nothing arrives in order, as long as it is waited for: its
        sender may have nothing left to spend on us.
        """
        self.machine = Receiver(AT, 0.0, 2.5 * RMPP_ASK_SECONDS, isAnswer=True)
        self.take(part(1, 9), 1.0)
        for turn in (1, 2):
            self.assertEqual(self.machine.deadline, 1.0 + turn * RMPP_ASK_SECONDS)
            found = seen(self.machine.expired(1.0 + turn * RMPP_ASK_SECONDS))
            self.assertEqual([each[:3] for each in found], [(ACK, 0, 1)])
        end = 1.0 + 2.5 * RMPP_ASK_SECONDS
        self.assertEqual(self.machine.deadline, end)
        self.assertEqual(seen(self.machine.expired(end)), FAILED[TransferStatus.TIME_TOO_LONG])

    def test_total(self) -> None:
        """
        A sender that is slow on purpose does not keep memory for ever.
        """
        for number in range(1, 32):
            self.take(part(number, 99), 19.9 * number)
        self.assertEqual(self.machine.deadline, segments.RMPP_SECONDS)
        self.assertEqual(
            seen(self.machine.expired(segments.RMPP_SECONDS)), FAILED[TransferStatus.TIME_TOO_LONG]
        )
