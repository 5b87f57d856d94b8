"""
Tests of L{twisted_ib.hca.services.requester}: either side ends its queue pair while something is on
the way, or in the callback of a completion.
"""

from __future__ import annotations

from tests.hca.queues.keyed_cases import RequesterTestCase
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.queues.requests import SendOpcode

WRITE, READ = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_READ
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR


class EndTests(RequesterTestCase):
    """
    Ends at any time.
    """

    def test_noAnswer(self) -> None:
        """
        When the peer's queue pair ends while it answers, the READ fails, although nothing is
        behind it that could be refused: whatever ends the queue pair, and whether there is
        room to say so at once or later.
        """
        for room in (1 << 18, 0):
            for how in ("ERR", "RESET", "close"):
                self.connect()
                self.b.path.capacity = 0
                self.post(1, READ)
                self.p.flow()
                self.b.path.capacity = 1 << 18
                reserve = self.b.path.postReserved
                if not room:
                    self.b.path.postReserved = lambda word, body, refusal: False  # type: ignore[method-assign]
                if how == "close":
                    self.b.qp.close()
                else:
                    self.b.qp.modify(QPState[how])
                self.b.path.postReserved = reserve  # type: ignore[method-assign]
                self.p.flow()
                self.assertEqual(self.a.statuses(), [(1, WCStatus.RETRY_EXC_ERR)], (room, how))
                self.assertEqual(len(self.b.path.waiting), 0)

    def test_answered(self) -> None:
        """
        A queue pair that has answered everything, or whose peer is gone, ends without a
        notification.
        """
        self.post(1, READ)
        self.p.settle()
        self.b.qp.modify(QPState.ERR)
        self.assertEqual(len(self.b.path.records), 0)
        self.connect()
        self.b.path.capacity = 0
        self.post(1, READ)
        self.p.flow()
        self.p.die(self.a)
        self.assertEqual(len(self.b.path.records), 0)

    def test_endedWhileCompleting(self) -> None:
        """
        A program may end its queue pair in the callback of a completion before the refused one, or
        of the event that one was lost.
        """
        for depth in (512, 2):
            for how in ("ERR", "RESET", "close"):
                self.connect(depth=depth)
                qp = self.a.qp

                def end(what: object, how: str = how, qp: QueuePair = qp) -> None:
                    """
                    End it.
                    """
                    if how == "close":
                        qp.close()
                    else:
                        qp.modify(QPState[how])

                if depth == 2:
                    self.a.consumer.failed = end  # type: ignore[method-assign]
                else:
                    self.a.sends.onCompletion = end
                    self.a.sends.arm()
                for id in range(4):
                    self.post(id, WRITE)
                self.post(4, WRITE, remoteKey=1)
                self.p.settle()
                expected = [(0, OK), (1, OK)] if depth == 2 else [(0, OK)]
                if depth == 512 and how == "ERR":
                    expected += [(id, FLUSH) for id in range(1, 5)]
                self.assertEqual(self.a.statuses(), expected, (depth, how))

    def test_begunAnew(self) -> None:
        """
        A queue pair that is brought up again over the completion of a request that failed is
        not failed once more.
        """
        self.a.sends.onCompletion = lambda queue: self.again()
        self.a.sends.arm()
        self.post(1, WRITE, remoteKey=1)
        self.p.settle()
        self.assertEqual((self.a.qp.state, self.a.consumer.failures), (QPState.RTS, []))

    def again(self) -> None:
        """
        Bring C{a} from RTS by RESET to RTS.
        """
        self.a.qp.modify(QPState.RESET)
        self.a.to(QPState.RTS, 18)
