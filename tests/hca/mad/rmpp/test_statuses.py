"""
Each status with which a transfer can end.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.mad.rmpp.segmented import AT, HEAD, SIZE, answer, data
from twisted_ib.hca.mad.rmpp import receiver, sender
from twisted_ib.hca.mad.rmpp.receiver import Receiver
from twisted_ib.hca.mad.rmpp.segments import RMPP_IDLE_SECONDS, TransferStatus, headerOf
from twisted_ib.hca.mad.rmpp.sender import RMPP_ACK_SECONDS, Sender
from twisted_ib.hca.wire.mad.classes import ABORT, ACK, FIRST, LAST, STOP


class StatusTests(SynchronousTestCase):
    """
    One end makes each of them, and the other end understands it.
    """

    def received(self, *mads: bytes) -> list[bytes]:
        """
        @return: the MADs that the last of some segments draws.
        """
        machine = Receiver(AT, 0.0)
        found: list[bytes] = []
        for mad in mads:
            found = machine.received(mad, 0.0)
        return found

    def sent(self, mad: bytes) -> list[bytes]:
        """
        @return: the MADs that an answer to the first of five segments draws.
        """
        machine = Sender(HEAD, bytes(5 * SIZE), 0.0)
        machine.begin(0.0)
        return machine.received(mad, 0.0)

    def late(self) -> list[bytes]:
        """
        @return: the last MADs of a sender of whose segments only the first is acknowledged.
        """
        self.patch(sender, "RMPP_RETRIES", 0)
        machine = Sender(HEAD, bytes(5 * SIZE), 0.0)
        machine.begin(0.0)
        machine.received(answer(ACK, 0, 1, 9), 0.0)
        return machine.expired(RMPP_ACK_SECONDS)

    def test_all(self) -> None:
        """
        Success is an ACK of all; no resources is a STOP; all others are ABORTs.
        """
        self.patch(receiver, "RMPP_TABLE_BYTES", 9 * SIZE)
        first = data(1, FIRST, 5 * 220)
        idle = Receiver(AT, 0.0)
        idle.received(first, 0.0)
        status = TransferStatus
        made = {
            status.SUCCESS: self.received(data(1, FIRST | LAST, 220)),
            status.RESOURCES_EXHAUSTED: self.received(data(1, FIRST, 10 * 220)),
            status.TIME_TOO_LONG: idle.expired(RMPP_IDLE_SECONDS),
            status.INCONSISTENT_LAST: self.received(first, data(2, LAST, 220)),
            status.INCONSISTENT_FIRST: self.received(data(1)),
            status.BAD_TYPE: self.received(data(1, FIRST, type=7)),
            status.WINDOW_TOO_SMALL: self.sent(answer(ACK, 0, 1, 0)),
            status.SEGMENT_TOO_BIG: self.sent(answer(ACK, 0, 2, 9)),
            status.ILLEGAL_STATUS: self.sent(answer(ACK, 5, 1, 9)),
            status.UNSUPPORTED_VERSION: self.received(data(1, FIRST, version=2)),
            status.TOO_MANY_RETRIES: self.late(),
            status.UNSPECIFIED: Sender(HEAD, b"", 0.0).abort(status.UNSPECIFIED),
        }
        self.assertEqual(set(made), set(TransferStatus))
        for expected, (mad,) in made.items():
            kind = {status.SUCCESS: ACK, status.RESOURCES_EXHAUSTED: STOP}.get(expected, ABORT)
            self.assertEqual((headerOf(mad).type, mad[27]), (kind, expected))
            for machine in (Sender(HEAD, bytes(SIZE), 0.0), Receiver(AT, 0.0)):
                if isinstance(machine, Sender):
                    machine.begin(0.0)
                elif kind == ACK:
                    continue
                machine.received(mad, 0.0)
                self.assertIs(machine.status, expected)
