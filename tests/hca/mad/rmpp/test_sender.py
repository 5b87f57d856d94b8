"""
The sending end of a transfer, input by input.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random, getrandbits
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.mad.rmpp.segmented import AT, HEAD, METHOD, SIZE, answer, data, seen
from twisted_ib import limits
from twisted_ib.hca.mad.rmpp import segments, sender
from twisted_ib.hca.mad.rmpp.segments import TransferStatus
from twisted_ib.hca.mad.rmpp.sender import RMPP_ACK_SECONDS, RMPP_RETRIES, RMPP_RETRIES_UNPROVEN, Sender
from twisted_ib.hca.wire.mad.classes import ABORT, ACK, DATA, STOP
from twisted_ib.hca.wire.mad.mad import METHOD_AT

#: As C{seen} shows an ABORT.
FAILED = {status: [(ABORT, status, 0, 0)] for status in TransferStatus}


class SenderTestCase(SynchronousTestCase):
    """
    A table of 1,000 octets: five segments.
    """

    def begun(self, size: int = 5 * SIZE, **changes: Any) -> Sender:
        """
        @return: a sender that has sent its first segment.
        """
        machine = Sender(HEAD, bytes(size), 0.0, **changes)
        self.assertEqual(seen(machine.begin(0.0))[0][:3], (DATA, 0, 1))
        return machine

    def acked(self, machine: Sender, number: int, window: int, now: float = 0.0) -> list[int]:
        """
        @return: the segments that an ACK draws.
        """
        mads = machine.received(answer(ACK, 0, number, window), now)
        self.assertTrue(all(mad[METHOD_AT] == METHOD for mad in mads))
        return [header[2] for header in seen(mads)]


class WindowTests(SenderTestCase):
    """
    ACKs and windows.
    """

    def test_all(self) -> None:
        """
        As much is sent as the window has room for, and the ACK of all is the end.
        """
        machine = self.begun()
        self.assertEqual(self.acked(machine, 1, 3), [2, 3])
        self.assertEqual(self.acked(machine, 3, 100), [4, 5])
        self.assertIsNone(machine.status)
        self.assertEqual(self.acked(machine, 5, 100), [])
        self.assertEqual((machine.status, machine.deadline), (TransferStatus.SUCCESS, None))

    def test_old(self) -> None:
        """
        An ACK that a later one has overtaken changes nothing, nor does a window that shrinks.
        """
        machine = self.begun()
        self.acked(machine, 1, 3)
        self.acked(machine, 2, 4)
        for number, window in ((1, 3), (1, 9), (2, 3), (3, 3)):
            self.assertEqual(self.acked(machine, number, window), [])
            self.assertEqual(machine.acknowledged, 2)
        self.assertEqual(self.acked(machine, 2, 5), [5])

    def test_bound(self) -> None:
        """
        Whatever the window, so many are on their way at most.
        """
        self.patch(sender, "RMPP_SEGMENTS_SENT", 3)
        machine = self.begun(20 * SIZE)
        self.assertEqual(self.acked(machine, 1, 0xFFFFFFFF), [2, 3, 4])
        self.assertEqual(self.acked(machine, 2, 0xFFFFFFFF), [5])

    def test_turned(self) -> None:
        """
        If a response of many segments is expected, the end of the request gives it the first window.
        """
        machine = self.begun(SIZE, expectsResponse=True)
        (ack,) = machine.received(answer(ACK, 0, 1, 1), 0.0)
        self.assertEqual((seen([ack]), ack[METHOD_AT]), ([(ACK, 0, 0, 1)], METHOD))
        self.assertIs(machine.status, TransferStatus.SUCCESS)

    def test_faults(self) -> None:
        """
        An ABORT for each way in which an answer is wrong.
        """
        for mad, expected in (
            (answer(ACK, 0, 3, 2), TransferStatus.WINDOW_TOO_SMALL),
            (answer(ACK, 0, 2, 2), TransferStatus.SEGMENT_TOO_BIG),
            (answer(ACK, 0, 6, 0xFFFFFFFF), TransferStatus.SEGMENT_TOO_BIG),
            (answer(ACK, 1, 1, 1), TransferStatus.ILLEGAL_STATUS),
            (answer(ACK, 0, 1, 1, version=2), TransferStatus.UNSUPPORTED_VERSION),
            (answer(9), TransferStatus.BAD_TYPE),
            (answer(0), TransferStatus.BAD_TYPE),
        ):
            machine = self.begun()
            self.assertEqual(seen(machine.received(mad, 0.0)), FAILED[expected])
            self.assertEqual((machine.status, machine.deadline), (expected, None))

    def test_ends(self) -> None:
        """
        A STOP or ABORT ends it; neither is answered, not even a wrong one.
        """
        illegal = TransferStatus.ILLEGAL_STATUS
        for mad, expected in (
            (answer(STOP, 1), TransferStatus.RESOURCES_EXHAUSTED),
            (answer(STOP, 0), illegal),
            (answer(STOP, 126), illegal),
            (answer(ABORT, 0), illegal),
            (answer(ABORT, 1), illegal),
            *((answer(ABORT, status), TransferStatus(status)) for status in range(118, 128)),
        ):
            machine = self.begun()
            self.assertEqual((machine.received(mad, 0.0), machine.status), ([], expected))

    def test_ended(self) -> None:
        """
        Nothing happens after the end, however it came about, and a DATA segment is not for a sender.
        """
        inputs = [data(1), answer(0), answer(ACK, 0, 5, 9), answer(STOP, 1), answer(ABORT, 127)]
        for end in (answer(ACK, 0, 1, 1), answer(STOP, 1), answer(ABORT, 118), answer(9)):
            machine = self.begun(SIZE)
            machine.received(end, 0.0)
            status = machine.status
            for mad in inputs:
                self.assertEqual(machine.received(mad, 1.0), [])
            self.assertEqual((machine.expired(1e6), machine.repeat(), machine.status), ([], [], status))
        machine = self.begun()
        self.assertEqual((machine.received(data(1), 0.0), machine.status), ([], None))


class TimerTests(SenderTestCase):
    """
    Time.
    """

    forgers = 300

    def passed(self, machine: Sender) -> list[int]:
        """
        Let its deadline pass.

        @return: the segments that it sends.
        """
        assert machine.deadline is not None
        self.assertEqual(machine.expired(machine.deadline - 0.001), [])
        return [header[2] for header in seen(machine.expired(machine.deadline))]

    def test_again(self) -> None:
        """
        Segments that are not acknowledged in time are sent again, so often without any progress, and no more.
        """
        machine = self.begun()
        self.acked(machine, 1, 4)
        self.assertEqual(machine.deadline, RMPP_ACK_SECONDS)
        for _ in range(RMPP_RETRIES - 1):
            self.assertEqual(self.passed(machine), [2, 3, 4])
        assert machine.deadline is not None
        self.acked(machine, 2, 4, machine.deadline)
        for _ in range(RMPP_RETRIES):
            self.assertEqual(self.passed(machine), [3, 4])
        mads = machine.expired(machine.deadline)
        self.assertEqual(seen(mads), FAILED[TransferStatus.TOO_MANY_RETRIES])
        self.assertIs(machine.status, TransferStatus.TOO_MANY_RETRIES)

    def test_closedWindow(self) -> None:
        """
        A receiver without room for more is waited for as long as a silent one.
        """
        machine = self.begun()
        self.acked(machine, 1, 1)
        for turn in range(1, RMPP_RETRIES + 1):
            self.assertEqual(machine.deadline, turn * RMPP_ACK_SECONDS)
            self.assertEqual(self.passed(machine), [])
        assert machine.deadline is not None
        self.assertEqual(seen(machine.expired(machine.deadline)), FAILED[TransferStatus.TOO_MANY_RETRIES])

    def test_unproven(self) -> None:
        """
        A receiver that never answered gets no more than asked for, and no ABORT: the request may be forged.
        """
        machine = self.begun(draw=getrandbits)
        sent = [self.passed(machine) for _ in range(RMPP_RETRIES_UNPROVEN + 1)]
        self.assertEqual(sent, [[1]] + [[]] * RMPP_RETRIES_UNPROVEN)
        self.assertIs(machine.status, TransferStatus.TOO_MANY_RETRIES)

    def test_unprovenAlive(self) -> None:
        """
        While a receiver proves itself each of its ACKs shows that it is there, also one of nothing new: what
        got lost is sent again for those.
        """
        machine = self.begun(9 * SIZE, draw=getrandbits)
        self.acked(machine, 1, 65)
        self.acked(machine, 1, 65)
        for _ in range(RMPP_RETRIES + 1):
            self.passed(machine)
            now = machine.deadline
            assert now is not None
            self.assertEqual(self.acked(machine, 1, 65, now), [])
        self.assertIsNone(machine.status)

    def test_turningACK(self) -> None:
        """
        The ACK of segment 0, by which a double-sided transfer turns, shows that the receiver exists.
        """
        machine = self.begun(draw=getrandbits)
        self.assertEqual(self.acked(machine, 0, 1), [])
        sent = [self.passed(machine) for _ in range(RMPP_RETRIES + 1)]
        # With the first four for the two that came.
        self.assertEqual(sent, [[1]] * 3 + [[]] * (RMPP_RETRIES - 2))
        self.assertIs(machine.status, TransferStatus.TOO_MANY_RETRIES)

    def drawn(self, machine: Sender, numbers: Iterable[int]) -> tuple[int, int]:
        """
        Let someone forge the ACKs of so many segments, in order, with the largest window.

        @return: packets of the forger, its request among them, and packets that they have drawn, to the end.
        """
        forged = drawn = 1
        for number in numbers:
            if machine.status is not None:
                break
            forged += 1
            drawn += len(machine.received(answer(ACK, 0, number, 0xFFFFFFFF), 0.0))
        while machine.status is None:
            assert machine.deadline is not None
            drawn += len(machine.expired(machine.deadline))
        return forged, drawn

    def test_reflected(self) -> None:
        """
        Of two forged packets, a request and an ACK with whatever window, come four at most, and of further
        ACKs, repeated or of something new, two each.
        """
        for numbers in ((1,), (1, 1, 1), (0, 0, 1), (1, 2, 3, 4, 5, 6, 7), (1, 2, 2, 2, 3)):
            for bit in (0, 1):
                machine = self.begun(300 * SIZE, draw=lambda _, bit=bit: bit)
                forged, drawn = self.drawn(machine, numbers)
                self.assertLessEqual(drawn, limits.RMPP_REFLECTED * forged, (numbers, bit))

    def test_forged(self) -> None:
        """
        Who does not see the segments draws two packets for one at most, whatever it guesses: always one more,
        the same for a while, or by chance.
        """
        dice = Random(32)
        for steps in ((0,), (1,), (0, 1), (0, 0, 0, 1), (1, 1, 0), None):
            forged = drawn = 0
            for _ in range(self.forgers):
                # Twice, as some packets are spared first.
                numbers = [1, 1]
                for turn in range(40):
                    step = dice.getrandbits(1) if steps is None else steps[turn % len(steps)]
                    numbers.append(numbers[-1] + step)
                found = self.drawn(self.begun(300 * SIZE, draw=dice.getrandbits), numbers)
                forged, drawn = forged + found[0], drawn + found[1]
            self.assertLessEqual(drawn, limits.RMPP_REFLECTED * forged, steps)

    def test_proof(self) -> None:
        """
        A receiver proves itself when it acknowledges what was sent, whether that is the next segment or only
        one that is there, so often; then the window is used.  Of what is repeated then all go once.
        """
        bits = [1, 0] * limits.RMPP_PROOF
        machine = self.begun(300 * SIZE, draw=lambda _: bits.pop())
        # First some packets are spared.
        self.assertEqual(self.acked(machine, 1, 65), [1])
        last, doubt = 1, limits.RMPP_PROOF
        while doubt > 0:
            bit = bits[-1]
            self.assertEqual(self.acked(machine, last, 65), [last + 1, 1] if bit else [1])
            last, doubt = last + bit, doubt - 1 - bit
        expected = list(range(last + 1, 66))
        self.assertEqual(self.acked(machine, last, 65), expected)
        self.assertEqual(self.passed(machine), expected)
        for _ in range(RMPP_RETRIES - 1):
            self.assertEqual(self.passed(machine), [last + 1])
        self.assertEqual(len(self.passed(machine)), 1)
        self.assertIs(machine.status, TransferStatus.TOO_MANY_RETRIES)

    def test_proofAgainst(self) -> None:
        """
        An ACK of less than was sent draws nothing, and takes one round more.
        """
        machine = self.begun(300 * SIZE, draw=lambda _: 1)
        drawn = [self.acked(machine, 1, 65) for _ in range(3)]
        self.assertEqual(drawn, [[1], [2, 1], []])
        self.assertEqual(self.passed(machine), [2, 1])
        last = 2 + limits.RMPP_PROOF // 2 + 1
        for number in range(2, last):
            self.assertEqual(self.acked(machine, number, 65), [number + 1, 1])
        self.assertEqual(self.acked(machine, last, 65), list(range(last + 1, 66)))

    def test_proofWaits(self) -> None:
        """
        A window without room proves nothing, until there is.
        """
        machine = self.begun(300 * SIZE, draw=lambda _: 1)
        self.assertEqual([self.acked(machine, 1, window) for window in (1, 1, 1, 2)], [[], [], [], [2, 1]])

    def test_unprovenLoss(self) -> None:
        """
        A segment, its probe or the ACK may be lost while the receiver proves itself: the transfer goes on.
        """
        machine = self.begun(9 * SIZE, draw=getrandbits)
        self.acked(machine, 1, 65)
        # The ACK was lost: one is asked for.
        self.assertEqual(self.passed(machine), [1])
        self.assertEqual(self.acked(machine, 2, 65), [3, 1])
        # The segment was, or both: the requester, who has no response, asks again, and makes room for them.
        self.assertEqual(self.passed(machine), [])
        self.assertEqual(machine.repeat(), [])
        self.assertEqual(self.passed(machine), [3, 1])
        self.assertEqual(self.acked(machine, 3, 65), [4, 1])

    def test_repeated(self) -> None:
        """
        A repeated request draws the first segment, once, and nothing when that has arrived.
        """
        machine = self.begun(draw=getrandbits)
        self.assertEqual(seen(machine.repeat())[0][:3], (DATA, 0, 1))
        self.acked(machine, 1, 4)
        self.assertEqual(machine.repeat(), [])

    def test_responseTime(self) -> None:
        """
        A receiver may ask for more time (code 20: 4.3 s), but not for less; a code of no meaning is ignored.
        """
        machine = self.begun()
        for code, number, seconds in ((31, 1, 2.0), (0, 2, 2.0), (5, 3, 2.0), (20, 4, 4.294967296)):
            machine.received(answer(ACK, 0, number, 5, responseTime=code), 1.0)
            self.assertEqual(machine.deadline, 1.0 + seconds)

    def test_idle(self) -> None:
        """
        However long a receiver asks to be waited for, without progress it ends after a time.
        """
        machine = self.begun()
        machine.received(answer(ACK, 0, 1, 5, responseTime=30), 1.0)
        self.assertEqual(machine.deadline, 1.0 + segments.RMPP_IDLE_SECONDS)
        self.assertEqual(seen(machine.expired(41.0)), FAILED[TransferStatus.TIME_TOO_LONG])

    def test_total(self) -> None:
        """
        A receiver that is slow on purpose does not keep a table for ever.
        """
        machine = self.begun(400 * SIZE)
        now = 0.0
        for number in range(1, 400):
            self.acked(machine, number, number + 1, now)
            assert machine.deadline is not None
            if machine.deadline < now + RMPP_ACK_SECONDS:
                break
            now += 1.9
        self.assertEqual(machine.deadline, segments.RMPP_SECONDS)
        self.assertEqual(seen(machine.expired(segments.RMPP_SECONDS)), FAILED[TransferStatus.TIME_TOO_LONG])

    def test_cancelled(self) -> None:
        """
        Its owner may end it.
        """
        machine = self.begun()
        (mad,) = machine.abort(TransferStatus.UNSPECIFIED)
        self.assertEqual((seen([mad]), mad[METHOD_AT]), (FAILED[TransferStatus.UNSPECIFIED], METHOD))
        self.assertEqual(mad[:AT][:24], HEAD[:24])
