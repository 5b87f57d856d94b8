"""
Shared receive queues of verbs.
"""

from __future__ import annotations

import errno

from tests.verbs.pyverbs.pair import End, VerbsTestCase
from twisted_ib import limits
from twisted_ib.verbs.pyverbs import (
    PD,
    SRQ,
    OpsWr,
    PyverbsUserError,
    QPAttr,
    RecvWR,
    SrqAttr,
    SrqInitAttr,
    SrqInitAttrEx,
    enums,
)

STATE = enums.IBV_QP_STATE


class SharedTests(VerbsTestCase):
    """
    Shared receive queues.
    """

    def test_limit(self) -> None:
        """
        A queue that runs low raises an event, once.
        """
        pd = PD(self.open())
        srq = SRQ(pd, SrqInitAttr(SrqAttr(10)))
        near, far = End(self), End(self, srq=srq, pd=pd)
        near.connect(far)
        for i in range(3):
            srq.post_recv(RecvWR(i, 1, [far.sge()]))
        srq.modify(SrqAttr(srq_limit=3), enums.IBV_SRQ_LIMIT)
        self.assertEqual(srq.query().srq_limit, 3)
        near.qp.post_send(near.send())
        self.assertEqual(self.wait(far.cq)[0].wr_id, 0)
        self.assertEqual(far.ctx.get_async_event().event_type, enums.IBV_EVENT_SRQ_LIMIT_REACHED)
        self.assertEqual(srq.query().srq_limit, 0)
        self.refused(errno.EINVAL, far.qp.post_recv, RecvWR())
        far.qp.modify(QPAttr(enums.IBV_QPS_ERR), STATE)
        self.assertEqual(far.ctx.get_async_event().event_type, enums.IBV_EVENT_QP_LAST_WQE_REACHED)

    def test_sizes(self) -> None:
        """
        A queue has sizes, which change.
        """
        pd = PD(self.open())
        srq = SRQ(pd, SrqInitAttr(SrqAttr(2, 1)))
        srq.post_recv(RecvWR(1, 0, [], RecvWR(2)))
        bad = RecvWR()
        self.refused(errno.ENOMEM, srq.post_recv, RecvWR(3), bad)
        self.assertEqual(bad.wr_id, 3)
        self.refused(errno.EINVAL, srq.modify, SrqAttr(1), enums.IBV_SRQ_MAX_WR)
        self.refused(errno.EINVAL, srq.modify, SrqAttr(srq_limit=3), enums.IBV_SRQ_LIMIT)
        self.refused(errno.EINVAL, srq.modify, SrqAttr(), 8)
        self.assertRaises(TypeError, srq.modify, 5, enums.IBV_SRQ_MAX_WR)
        srq.modify(SrqAttr(20), enums.IBV_SRQ_MAX_WR)
        self.assertEqual(srq.query().max_wr, 20)
        self.refused(errno.EOPNOTSUPP, srq.get_srq_num)
        self.refused(errno.EOPNOTSUPP, srq.post_srq_ops, None)
        for attr in (SrqAttr(0), SrqAttr(limits.SHARED_RECEIVE_DEPTH + 1), SrqAttr(1, 99)):
            self.refused(errno.EINVAL, SRQ, pd, SrqInitAttr(attr))
        self.assertRaises(PyverbsUserError, SRQ, None, SrqInitAttr())
        self.patch(limits, "SHARED_RECEIVE_QUEUES", 1)
        self.refused(errno.ENOMEM, SRQ, pd, SrqInitAttr(SrqAttr()))

    def test_extended(self) -> None:
        """
        A queue may be made with extended attributes, of the basic type.
        """
        pd = PD(self.open())
        attr = SrqInitAttrEx(5, 2)
        self.refused(errno.EINVAL, SRQ, pd.ctx, attr)
        attr.pd = pd
        attr.comp_mask = enums.IBV_SRQ_INIT_ATTR_PD
        self.assertEqual(SRQ(pd.ctx, attr).query().max_wr, 5)
        attr.comp_mask |= enums.IBV_SRQ_INIT_ATTR_TYPE
        attr.srq_type = enums.IBV_SRQT_XRC
        self.refused(errno.EOPNOTSUPP, SRQ, pd.ctx, attr)
        attr.comp_mask = enums.IBV_SRQ_INIT_ATTR_PD | enums.IBV_SRQ_INIT_ATTR_TM
        self.refused(errno.EOPNOTSUPP, SRQ, pd.ctx, attr)
        self.assertEqual(OpsWr().opcode, enums.IBV_WR_TAG_ADD)
