"""
Common parts of the tests of verbs: contexts, and two connected ends.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import waitUntil
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SGE,
    AHAttr,
    Context,
    GlobalRoute,
    PyverbsRDMAError,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    enums,
)

ALL_RIGHTS = int(
    enums.IBV_ACCESS_LOCAL_WRITE
    | enums.IBV_ACCESS_REMOTE_WRITE
    | enums.IBV_ACCESS_REMOTE_READ
    | enums.IBV_ACCESS_REMOTE_ATOMIC
    | enums.IBV_ACCESS_MW_BIND
)
QKEY = 0x11111111


class VerbsTestCase(SynchronousTestCase):
    """
    A test in a run directory of its own; nothing is left of it.
    """

    device = "shm0"

    def setUp(self) -> None:
        """
        A run directory.
        """
        ownRunDirectory(self)
        self.addCleanup(self.nothingLeft)

    def nothingLeft(self) -> None:
        """
        Every device is closed.
        """
        self.assertEqual(list(hub.devices), [])

    def open(self) -> Context:
        """
        @return: a context, closed after the test.
        """
        context = Context(name=self.device)
        self.addCleanup(context.close)
        return context

    def refused(self, errno: int, call: Any, *arguments: Any, **keywords: Any) -> PyverbsRDMAError:
        """
        A verb fails with an errno.
        """
        error = self.assertRaises(PyverbsRDMAError, call, *arguments, **keywords)
        self.assertEqual(error.error_code, errno, str(error))
        return error

    def wait(self, cq: Any, count: int = 1) -> list[Any]:
        """
        @return: the next completions of a queue.
        """
        found: list[Any] = []

        def all_() -> bool:
            found.extend(cq.poll(count - len(found))[1])
            return len(found) == count

        waitUntil(all_, lambda: None)
        return found


class End:
    """
    One end: a context and what it takes to talk.
    """

    def __init__(
        self,
        test: VerbsTestCase,
        kind: int = enums.IBV_QPT_RC,
        size: int = 4096,
        cap: QPCap | None = None,
        sq_sig_all: int = 0,
        srq: Any = None,
        pd: PD | None = None,
    ) -> None:
        """
        Create everything; one of datagrams is ready.
        """
        self.ctx = test.open() if pd is None else pd.ctx
        self.pd = PD(self.ctx) if pd is None else pd
        self.mr = MR(self.pd, size, ALL_RIGHTS)
        self.cq = CQ(self.ctx, 100)
        self.srq = srq
        cap = cap or QPCap(20, 20, 4, 4, 256)
        attr = QPInitAttr(kind, None, self.cq, self.cq, srq, cap, sq_sig_all)
        self.qp = QP(self.pd, attr)
        if kind == enums.IBV_QPT_UD:
            ready = QPAttr()
            ready.qkey = QKEY
            self.qp.to_rts(ready)

    def address(self) -> AHAttr:
        """
        @return: where to reach it.
        """
        lid = self.ctx.query_port(1).lid
        return AHAttr(dlid=lid, is_global=1, gr=GlobalRoute(self.ctx.query_gid(1, 0)))

    def attr(self, peer: End) -> QPAttr:
        """
        @return: what takes this end to RTS.
        """
        attr = QPAttr()
        attr.qp_access_flags = ALL_RIGHTS & ~int(enums.IBV_ACCESS_MW_BIND)
        attr.ah_attr = peer.address()
        attr.dest_qp_num = peer.qp.qp_num
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 1
        return attr

    def connect(self, peer: End) -> None:
        """
        Connect both ends.
        """
        self.qp.to_rts(self.attr(peer))
        peer.qp.to_rts(peer.attr(self))

    def sge(self, offset: int = 0, length: int = 64) -> SGE:
        """
        @return: a piece of its region.
        """
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def receive(self, offset: int = 0, length: int = 64, wr_id: int = 1) -> None:
        """
        Post a receive.
        """
        self.qp.post_recv(RecvWR(wr_id, 1, [self.sge(offset, length)]))

    def send(self, offset: int = 0, length: int = 64, **more: Any) -> SendWR:
        """
        @return: a request that sends.
        """
        return SendWR(num_sge=1, sg=[self.sge(offset, length)], **more)

    def handle(self, peer: End) -> AH:
        """
        @return: the way of datagrams to another end.
        """
        return AH(self.pd, attr=peer.address())


def connected(test: VerbsTestCase, kind: int = enums.IBV_QPT_RC, **more: Any) -> tuple[End, End]:
    """
    @return: two ends.
    """
    a, b = End(test, kind, **more), End(test, kind, **more)
    a.connect(b)
    return a, b
