"""
A sender and a receiver on a wire that loses, reorders and repeats, in simulated time.
"""

from __future__ import annotations

import random
from heapq import heappop, heappush

from tests.hca.mad.rmpp.segmented import AT, HEAD
from twisted_ib.hca.mad.rmpp.receiver import RMPP_WINDOW, Receiver
from twisted_ib.hca.mad.rmpp.segments import TransferStatus
from twisted_ib.hca.mad.rmpp.sender import Sender

#: Records of a table; each has 112 octets, as NodeRecords have.
COUNTS = (0, 1, 2, 200, 5000)
RECORD_BYTES = 112
#: How long a MAD travels, and how much longer if it is delayed, in seconds.
TRAVEL, DELAYED = 0.001, 0.02


class Simulation:
    """
    One transfer, whose seed decides on the wire and on the number of records.
    """

    def __init__(self, seed: int) -> None:
        """
        @param seed: of all that is random.
        """
        self.dice = dice = random.Random(seed)
        self.table = dice.randbytes(COUNTS[seed % len(COUNTS)] * RECORD_BYTES)
        #: Probabilities.
        self.loss, self.repetition, self.delay = (dice.choice((0.0, 0.01, 0.05, 0.1)) for _ in range(3))
        self.now, self._count = 0.0, 0
        self._wire: list[tuple[float, int, bool, bytes]] = []
        self.sender = Sender(HEAD, self.table, 0.0)
        self.receiver: Receiver | None = None
        self.most = 0

    def _carry(self, mads: list[bytes], isBack: bool) -> None:
        dice = self.dice
        for mad in mads:
            for _ in range(1 + (dice.random() < self.repetition)):
                if dice.random() >= self.loss:
                    late = dice.random() * DELAYED if dice.random() < self.delay else 0.0
                    self._count += 1
                    heappush(self._wire, (self.now + TRAVEL + late, self._count, isBack, mad))

    def run(self) -> bytes:
        """
        Run it to its end.

        @return: the data that arrived.
        """
        found = None
        self._carry(self.sender.begin(0.0), False)
        while self.sender.status is None:
            deadline = self.sender.deadline
            assert deadline is not None
            if not self._wire or self._wire[0][0] > deadline:
                self.now = deadline
                self._carry(self.sender.expired(deadline), False)
                continue
            self.now, _, isBack, mad = heappop(self._wire)
            if isBack:
                self._carry(self.sender.received(mad, self.now), False)
                continue
            if self.receiver is None:
                self.receiver = Receiver(AT, self.now)
            machine = self.receiver
            self._carry(machine.received(mad, self.now), True)
            self.most = max(self.most, len(machine._early))
            if found is None and machine.status is TransferStatus.SUCCESS:
                found = machine.take()
        assert self.sender.status is TransferStatus.SUCCESS, self.sender.status
        assert self.most <= RMPP_WINDOW
        assert found is not None
        return found
