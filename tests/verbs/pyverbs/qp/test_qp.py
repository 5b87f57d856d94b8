"""
Queue pairs of verbs: creation, states, queries, requests.
"""

from __future__ import annotations

import ctypes
import errno
import time
from threading import Thread
from typing import Any

from tests.support.waiting import HANG_SECONDS, waitUntil
from tests.verbs.pyverbs.pair import ALL_RIGHTS, End, VerbsTestCase, connected
from twisted_ib import limits
from twisted_ib.hca.device.addressing import processes as addressing
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    CQ,
    ECE,
    MR,
    PD,
    QP,
    SGE,
    WQ,
    XRCD,
    AHAttr,
    CompChannel,
    CompCntr,
    Context,
    Flow,
    FlowAttr,
    GlobalRoute,
    PyverbsUserError,
    QPAttachCompCntrAttr,
    QPAttr,
    QPCap,
    QPEx,
    QPInitAttr,
    QPInitAttrEx,
    QPRateLimitAttr,
    RecvWR,
    RwqIndTable,
    RwqIndTableInitAttr,
    RxHashConf,
    SendWR,
    WQAttr,
    WQInitAttr,
    XRCDInitAttr,
    enums,
)

STATE = enums.IBV_QP_STATE


class CreationTests(VerbsTestCase):
    """
    Creating queue pairs.
    """

    def setUp(self) -> None:
        """
        Create the objects that a queue pair needs.
        """
        super().setUp()
        self.pd = PD(self.open())
        self.ctx: Context = self.pd.ctx  # type: ignore[assignment]
        self.cq = CQ(self.ctx, 10)

    def attr(self, kind: int = enums.IBV_QPT_RC, **more: Any) -> QPInitAttr:
        """
        @return: attributes with a completion queue.
        """
        return QPInitAttr(kind, scq=self.cq, rcq=self.cq, **{"cap": QPCap(), **more})

    def attrEx(self, **more: Any) -> QPInitAttrEx:
        """
        @return: extended attributes with a completion queue and a domain.
        """
        every = {
            "qp_type": enums.IBV_QPT_RC,
            "pd": self.pd,
            "comp_mask": enums.IBV_QP_INIT_ATTR_PD,
            "cap": QPCap(),
            **more,
        }
        return QPInitAttrEx(scq=self.cq, rcq=self.cq, **every)

    def test_types(self) -> None:
        """
        A queue pair is new, or goes to INIT with attributes, one of datagrams to RTS.
        """
        for kind, state in (
            (enums.IBV_QPT_RC, enums.IBV_QPS_INIT),
            (enums.IBV_QPT_UC, enums.IBV_QPS_INIT),
            (enums.IBV_QPT_UD, enums.IBV_QPS_RTS),
        ):
            for creator, attr in ((self.pd, self.attr(kind)), (self.ctx, self.attrEx(qp_type=kind))):
                qp = QP(creator, attr)
                self.assertEqual((qp.qp_type, qp.qp_state), (kind, enums.IBV_QPS_RESET))
                self.assertGreaterEqual(qp.qp_num, 17)
                self.assertIn("RESET", str(qp))
                self.assertEqual(QP(creator, attr, QPAttr()).qp_state, state)

    def test_unsupported(self) -> None:
        """
        Other types and extensions are not supported.
        """
        for kind in (enums.IBV_QPT_RAW_PACKET, enums.IBV_QPT_XRC_SEND, enums.IBV_QPT_XRC_RECV, 99):
            self.refused(errno.EOPNOTSUPP, QP, self.pd, self.attr(kind))
        mask = enums.IBV_QP_INIT_ATTR_PD
        for more in (
            {"comp_mask": mask | enums.IBV_QP_INIT_ATTR_MAX_TSO_HEADER},
            {"comp_mask": mask | enums.IBV_QP_INIT_ATTR_CREATE_FLAGS, "create_flags": 2},
            {"comp_mask": mask | enums.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, "send_ops_flags": 0x800},
            {
                "comp_mask": mask | enums.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                "send_ops_flags": enums.IBV_QP_EX_WITH_RDMA_READ,
                "qp_type": enums.IBV_QPT_UD,
            },
        ):
            self.refused(errno.EOPNOTSUPP, QP, self.ctx, self.attrEx(**more))
        QP(self.ctx, self.attrEx(create_flags=2))

    def test_wrong(self) -> None:
        """
        A queue pair needs a domain, two queues, and sizes that there are.
        """
        self.refused(errno.EINVAL, QP, self.ctx, self.attr())
        self.refused(errno.EINVAL, QP, self.ctx, self.attrEx(comp_mask=0))
        self.refused(errno.EINVAL, QP, self.pd, QPInitAttr(enums.IBV_QPT_RC, scq=self.cq))
        self.assertRaises(PyverbsUserError, QP, None, self.attr())
        self.assertRaises(TypeError, QP, self.pd, None)
        for cap in (
            QPCap(max_send_wr=limits.WORK_QUEUE_DEPTH + 1),
            QPCap(max_recv_wr=0xFFFFFFFF),
            QPCap(max_send_sge=limits.SCATTER_GATHER_ELEMENTS + 1),
            QPCap(max_recv_sge=0xFFFF),
            QPCap(max_inline_data=limits.INLINE_DATA + 1),
        ):
            self.refused(errno.EINVAL, QP, self.pd, self.attr(cap=cap))
        foreign = CQ(Context(name="lo0"), 1)
        self.refused(errno.EINVAL, QP, self.pd, QPInitAttr(enums.IBV_QPT_RC, scq=foreign, rcq=self.cq))
        foreign.context.close()  # type: ignore[union-attr]
        self.patch(limits, "QUEUE_PAIRS", 0)
        self.refused(errno.ENOMEM, QP, self.pd, self.attr())
        self.assertEqual(self.pd._core.users, {})

    def test_wrongAttributes(self) -> None:
        """
        If the first step cannot be, there is no queue pair.
        """
        attr = QPAttr(port_num=3)
        self.refused(errno.EINVAL, QP, self.pd, self.attr(), attr)
        self.assertEqual(self.pd._device.queuePairs, {})

    def test_query(self) -> None:
        """
        A query tells what was asked for.
        """
        cap = QPCap(30, 40, 5, 6, 100)
        qp = QP(self.pd, self.attr(cap=cap, sq_sig_all=0, qp_context="mine"))
        attr, init = qp.query(STATE | enums.IBV_QP_CAP)
        self.assertEqual(attr.qp_state, enums.IBV_QPS_RESET)
        for found in (attr.cap, init.cap):
            self.assertEqual(str(found), str(cap))
        self.assertEqual((init.qp_type, init.sq_sig_all, init.qp_context), (enums.IBV_QPT_RC, 0, "mine"))
        self.assertIs(init.send_cq, self.cq)

    def test_hardware(self) -> None:
        """
        Optional features of hardware are refused.
        """
        qp = QP(self.pd, self.attr())
        self.refused(errno.EOPNOTSUPP, qp.modify_rate_limit, QPRateLimitAttr(5))
        self.refused(errno.EOPNOTSUPP, qp.attach_comp_cntr, None, QPAttachCompCntrAttr())
        self.refused(errno.EOPNOTSUPP, qp.query_ece)
        self.refused(errno.EOPNOTSUPP, qp.set_ece, ECE(5))
        qp.set_ece(ECE())
        self.assertRaises(TypeError, qp.set_ece, None)
        self.assertEqual(qp.query_data_in_order(enums.IBV_WR_SEND), 0)
        self.refused(errno.EOPNOTSUPP, Flow, qp, FlowAttr())
        self.refused(errno.EOPNOTSUPP, WQ, self.ctx, WQInitAttr(wq_pd=self.pd, wq_cq=self.cq))
        self.refused(errno.EOPNOTSUPP, XRCD, self.ctx, XRCDInitAttr(3, 0, 0))
        self.refused(errno.EOPNOTSUPP, RwqIndTable, self.ctx, RwqIndTableInitAttr(1, []))
        self.refused(errno.EOPNOTSUPP, CompCntr, self.ctx, None)
        self.assertRaises(PyverbsUserError, RwqIndTableInitAttr, 0, [])
        self.assertEqual((WQAttr(1).attr_mask, RxHashConf(2).rx_hash_function), (1, 2))
        self.assertIn("Rate limit", str(QPRateLimitAttr(5)))
        self.assertIn("0x5", str(ECE(5)))


class StateTests(VerbsTestCase):
    """
    States and attributes.
    """

    def test_connect(self) -> None:
        """
        A query returns the attributes that were set.
        """
        a, b = End(self), End(self)
        attr = a.attr(b)
        attr.rq_psn, attr.sq_psn = 0x1000005, 0x2000006
        a.qp.to_rts(attr)
        self.assertEqual(attr.qp_state, enums.IBV_QPS_RTS)
        found, _ = a.qp.query(0x1FFFFFF)
        self.assertEqual(found.qp_state, enums.IBV_QPS_RTS)
        self.assertEqual(found.dest_qp_num, b.qp.qp_num)
        self.assertEqual((found.rq_psn, found.sq_psn), (5, 6))
        self.assertEqual(found.ah_attr.dgid, b.ctx.query_gid(1, 0).gid)
        names = "timeout retry_cnt rnr_retry min_rnr_timer qp_access_flags path_mtu max_rd_atomic"
        for name in names.split():
            self.assertEqual(getattr(found, name), getattr(attr, name), name)

    def test_refused(self) -> None:
        """
        A step that is none, or lacks an attribute, or has a wrong one, changes nothing.
        """
        a, b = End(self), End(self)
        modify = a.qp.modify
        for attr, mask in (
            (QPAttr(enums.IBV_QPS_RTS), STATE),
            (QPAttr(enums.IBV_QPS_INIT), STATE),
            (QPAttr(9), STATE),
            (QPAttr(enums.IBV_QPS_INIT), STATE | 1 << 30),
            (QPAttr(enums.IBV_QPS_INIT, port_num=2), STATE | 0x38),
            (QPAttr(enums.IBV_QPS_RESET, enums.IBV_QPS_RTS), STATE | enums.IBV_QP_CUR_STATE),
        ):
            self.refused(errno.EINVAL, modify, attr, mask)
            self.assertEqual(a.qp.qp_state, enums.IBV_QPS_RESET)
        attr = a.attr(b)
        attr.ah_attr = b.address()
        local = attr.ah_attr
        local.is_global = 0
        attr.ah_attr = local
        self.refused(errno.EINVAL, a.qp.to_rtr, attr)
        self.assertEqual(a.qp.qp_state, enums.IBV_QPS_INIT)
        self.assertRaises(TypeError, a.qp.to_init, None)

    def test_drain(self) -> None:
        """
        A send queue drains, raises an event, and goes on.
        """
        a, b = connected(self)
        attr = QPAttr(enums.IBV_QPS_SQD)
        attr.en_sqd_async_notify = 1
        a.qp.modify(attr, STATE | enums.IBV_QP_EN_SQD_ASYNC_NOTIFY)
        self.assertEqual(a.ctx.get_async_event().event_type, enums.IBV_EVENT_SQ_DRAINED)
        self.assertEqual(a.qp.query(0)[0].sq_draining, 0)
        b.receive()
        a.qp.post_send(a.send())
        a.qp.modify(QPAttr(enums.IBV_QPS_RTS), STATE)
        self.assertEqual(self.wait(a.cq)[0].status, enums.IBV_WC_SUCCESS)

    def test_silentPeer(self) -> None:
        """
        A send without a peer fails after its retries.
        """
        a, b = End(self), End(self)
        attr = a.attr(b)
        attr.timeout, attr.retry_cnt = 1, 1
        a.qp.to_rts(attr)
        b.qp.close()
        a.qp.post_send(a.send())
        a.receive()
        found = [wc.status for wc in self.wait(a.cq, 2)]
        self.assertEqual(found, [enums.IBV_WC_RETRY_EXC_ERR, enums.IBV_WC_WR_FLUSH_ERR])
        self.assertEqual(a.qp.qp_state, enums.IBV_QPS_ERR)

    def test_again(self) -> None:
        """
        Queue pairs that failed are connected anew.
        """
        a, b = connected(self)
        a.qp.post_send(a.send(length=64, opcode=enums.IBV_WR_SEND))
        for end in (a, b):
            end.qp.modify(QPAttr(enums.IBV_QPS_ERR), STATE)
            end.qp.modify(QPAttr(enums.IBV_QPS_RESET), STATE)
        a.connect(b)
        b.receive()
        a.qp.post_send(a.send(wr_id=77))
        self.assertEqual(self.wait(a.cq)[0].wr_id, 77)
        self.assertEqual(self.wait(b.cq)[0].status, enums.IBV_WC_SUCCESS)


class RequestTests(VerbsTestCase):
    """
    Requests.
    """

    def test_immediate(self) -> None:
        """
        Immediate data arrive as they were sent.
        """
        a, b = connected(self)
        b.receive()
        a.qp.post_send(a.send(opcode=enums.IBV_WR_SEND_WITH_IMM, imm_data=0x01020304))
        self.wait(a.cq)
        (wc,) = self.wait(b.cq)
        self.assertEqual((wc.imm_data, wc.wc_flags), (0x01020304, enums.IBV_WC_WITH_IMM))

    def test_oneSided(self) -> None:
        """
        WRITE, READ and atomics.
        """
        a, b = connected(self)
        a.mr.write("written", 7)
        b.mr.write((5).to_bytes(8, "little"), 8, 256)
        for opcode, offset, more in (
            (enums.IBV_WR_RDMA_WRITE, 0, None),
            (enums.IBV_WR_RDMA_READ, 0, None),
            (enums.IBV_WR_ATOMIC_FETCH_AND_ADD, 256, (7, 0)),
            (enums.IBV_WR_ATOMIC_CMP_AND_SWP, 256, (12, 99)),
        ):
            length = 64 if more is None else 8
            place = {enums.IBV_WR_RDMA_WRITE: 0, enums.IBV_WR_RDMA_READ: 128}.get(opcode, 512)
            wr = a.send(place, length, opcode=opcode)
            if more is None:
                wr.set_wr_rdma(b.mr.rkey, b.mr.buf + offset)
            else:
                wr.set_wr_atomic(b.mr.rkey, b.mr.buf + offset, *more)
            a.qp.post_send(wr)
            self.assertEqual(self.wait(a.cq)[0].status, enums.IBV_WC_SUCCESS, opcode)
        self.assertEqual(b.mr.read(7, 0), b"written")
        self.assertEqual(a.mr.read(7, 128), b"written")
        self.assertEqual(a.mr.read(8, 512), (12).to_bytes(8, "little"))
        self.assertEqual(b.mr.read(8, 256), (99).to_bytes(8, "little"))

    def test_changedRequest(self) -> None:
        """
        What is sent is what a request has when it is posted, not when it was made.
        """
        a, b = connected(self)
        request = SendWR(num_sge=2, sg=[a.sge(0, 10), a.sge(10, 20)])
        for length in (30, 25, 5):
            b.receive()
            if length == 25:
                request.sg_list[0].length = 5
            if length == 5:
                request.num_sge = 1
            a.qp.post_send(request)
            self.wait(a.cq)
            self.assertEqual([wc.byte_len for wc in self.wait(b.cq)], [length])

    def test_badRequest(self) -> None:
        """
        A chain ends at the first request that cannot be posted, which is copied.
        """
        a, b = connected(self)
        for i in range(2):
            b.receive(wr_id=i)
        bad = SendWR(num_sge=1, sg=[a.sge()])
        last = a.send(wr_id=3)
        wrong = SendWR(2, num_sge=5, sg=[a.sge()] * 5, opcode=enums.IBV_WR_SEND, next_wr=last)
        self.refused(errno.EINVAL, a.qp.post_send, a.send(wr_id=1, next_wr=wrong), bad)
        self.assertEqual((bad.wr_id, bad.num_sge, bad.next_wr), (2, 5, last))
        self.assertEqual([wc.wr_id for wc in self.wait(a.cq)], [1])
        received = RecvWR()
        self.refused(
            errno.EINVAL,
            b.qp.post_recv,
            RecvWR(8, 1, [b.sge()], RecvWR(9, 5, [b.sge()] * 5)),
            received,
        )
        self.assertEqual(received.wr_id, 9)

    def test_full(self) -> None:
        """
        Queues that are full are ENOMEM, the wrong state EINVAL.
        """
        a = End(self, cap=QPCap(2, 2, 1, 1))
        self.refused(errno.EINVAL, a.qp.post_send, a.send())
        self.refused(errno.EINVAL, a.qp.post_recv, RecvWR(1, 1, [a.sge()]))
        a.qp.to_init(QPAttr())
        self.refused(errno.EINVAL, a.qp.post_send, a.send())
        for _ in range(2):
            a.receive()
        self.refused(errno.ENOMEM, a.receive)
        b = End(self, cap=QPCap(2, 2, 1, 1))
        b.connect(End(self))
        for _ in range(2):
            b.qp.post_send(b.send())
        bad = b.send()
        self.refused(errno.ENOMEM, b.qp.post_send, b.send(wr_id=4), bad)
        self.assertEqual(bad.wr_id, 4)

    def test_wrongOpcodes(self) -> None:
        """
        Operations that there are not, and those that the service has not.
        """
        a, _ = connected(self, enums.IBV_QPT_UC)
        for opcode in (enums.IBV_WR_TSO, enums.IBV_WR_FLUSH):
            self.refused(errno.EOPNOTSUPP, a.qp.post_send, a.send(opcode=opcode))
        self.refused(errno.EINVAL, a.qp.post_send, a.send(opcode=77))
        for opcode in (enums.IBV_WR_RDMA_READ, enums.IBV_WR_ATOMIC_WRITE):
            wr = a.send(opcode=opcode)
            wr.set_wr_rdma(1, 1)
            self.refused(errno.EINVAL, a.qp.post_send, wr)

    def test_inline(self) -> None:
        """
        Inline data is read when it is posted: by its address in a region, or in the process.  Its key is
        not looked at: one that opens another region is as good as none.
        """
        a, b = connected(self)
        memory = ctypes.create_string_buffer(b"process", 64)
        other = MR(a.pd, 100, enums.IBV_ACCESS_LOCAL_WRITE)
        for sge in (
            a.sge(0, 7),
            SGE(a.mr.buf, 7, 0),
            SGE(ctypes.addressof(memory), 7, 0),
            SGE(ctypes.addressof(memory), 7, a.mr.lkey),
            SGE(a.mr.buf, 7, other.lkey),
        ):
            a.mr.write("inlined", 7)
            b.receive()
            a.qp.post_send(
                SendWR(num_sge=1, sg=[sge], send_flags=enums.IBV_SEND_INLINE | enums.IBV_SEND_SIGNALED)
            )
            a.mr.write("changed", 7)
            self.wait(a.cq)
            self.assertEqual(self.wait(b.cq)[0].byte_len, 7)
            self.assertEqual(b.mr.read(7, 0), b"process" if sge.addr >> 12 != a.mr.buf >> 12 else b"inlined")

    def test_inlineRefused(self) -> None:
        """
        Inline data that is too long, or nowhere, is refused at once.
        """
        a, _ = connected(self)
        flags = enums.IBV_SEND_INLINE
        self.refused(errno.EINVAL, a.qp.post_send, a.send(length=257, send_flags=flags))
        for sge, code in (
            (SGE(a.mr.buf + 4090, 10, a.mr.lkey), errno.EFAULT),
            (SGE(0x1000, 10, 0), errno.EFAULT),
        ):
            self.refused(code, a.qp.post_send, SendWR(num_sge=1, sg=[sge], send_flags=flags))

    def test_wrongKey(self) -> None:
        """
        A key that opens nothing ends the request, not the call.
        """
        a, _ = connected(self)
        a.qp.post_send(SendWR(num_sge=1, sg=[SGE(a.mr.buf, 10, a.mr.lkey ^ 0x100)]))
        self.assertEqual(self.wait(a.cq)[0].status, enums.IBV_WC_LOC_PROT_ERR)

    def test_unsignalled(self) -> None:
        """
        A request that is not signalled completes with the queue pair's signals only.
        """
        for every in (0, 1):
            a, b = connected(self, sq_sig_all=every)
            b.receive()
            a.qp.post_send(a.send(send_flags=0))
            self.wait(b.cq)
            for _ in range(10):
                b.cq.poll()
            self.assertEqual(a.cq.poll()[0], every)

    def test_flushedByAnotherThread(self) -> None:
        """
        A thread that sleeps until there is an event is woken when another flushes the queue pair.
        """
        a = End(self)
        channel = CompChannel(a.ctx)
        cq = CQ(a.ctx, 10, None, channel)
        qp = QP(a.pd, QPInitAttr(enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap()), QPAttr())
        qp.post_recv(RecvWR(7))
        cq.req_notify()
        thread = Thread(target=channel.get_cq_event, args=(cq,), daemon=True)
        thread.start()
        waitUntil(lambda: hub.isAwaited)
        time.sleep(0.02)
        qp.modify(QPAttr(qp_state=enums.IBV_QPS_ERR), STATE)
        thread.join(HANG_SECONDS)
        self.assertFalse(thread.is_alive())

    def test_listedGIDs(self) -> None:
        """
        The queue pairs of an HCA reach each other by each GID that it lists, the host's addresses among them,
        which no other HCA is reached by.
        """
        addresses = ["10.9.8.7", "fd00::7"]
        self.patch(addressing, "localAddresses", lambda: addresses)
        self.patch(addressing, "isPeersAddress", lambda address, second: address in addresses)
        # Those of the HCA itself are there twice.
        for index in range(4 + len(addresses)):
            a, b = End(self), End(self)
            gid = a.ctx.query_gid(1, index)
            for one, other in (a, b), (b, a):
                attr = one.attr(other)
                attr.ah_attr = AHAttr(is_global=1, gr=GlobalRoute(gid, index))
                one.qp.to_rts(attr)
            b.receive()
            a.qp.post_send(a.send())
            self.assertEqual([self.wait(end.cq)[0].status for end in (a, b)], [enums.IBV_WC_SUCCESS] * 2)
        attr.dest_qp_num = 0xABCDE
        self.refused(errno.ENETUNREACH, End(self).qp.to_rts, attr)

    def test_itself(self) -> None:
        """
        A queue pair may be connected to itself.
        """
        a = End(self)
        a.qp.to_rts(a.attr(a))
        a.mr.write("myself", 6)
        a.receive(128)
        a.qp.post_send(a.send(length=6))
        self.assertEqual({wc.opcode for wc in self.wait(a.cq, 2)}, {enums.IBV_WC_SEND, enums.IBV_WC_RECV})
        self.assertEqual(a.mr.read(6, 128), b"myself")

    def test_otherDevice(self) -> None:
        """
        The device within a process, beside the other.
        """
        self.device = "lo0"
        self.test_oneSided()


class ForeignTests(VerbsTestCase):
    """
    Objects of different domains.
    """

    def test_regionOfAnotherDomain(self) -> None:
        """
        A key of another domain opens nothing.
        """
        a, b = connected(self)
        other = MR(PD(a.ctx), 100, ALL_RIGHTS)
        a.qp.post_send(SendWR(num_sge=1, sg=[SGE(other.buf, 10, other.lkey)]))
        self.assertEqual(self.wait(a.cq)[0].status, enums.IBV_WC_LOC_PROT_ERR)
        b.cq.poll()
        self.assertTrue(issubclass(QPEx, QP))
