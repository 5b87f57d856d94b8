"""
Extended queue pairs of verbs, datagrams, and every step between states.
"""

from __future__ import annotations

import ctypes
import errno
from typing import Any

from attrs import evolve

from tests.verbs.pyverbs.pair import QKEY, End, VerbsTestCase, connected
from twisted_ib import limits
from twisted_ib.hca.base.states import QPState, QPType, transitionRule
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.verbs.pyverbs import (
    AH,
    GID,
    GRH,
    MW,
    QP,
    WC,
    AHAttr,
    DataBuffer,
    GlobalRoute,
    MWBindInfo,
    PyverbsUserError,
    QPAttr,
    QPCap,
    QPEx,
    QPInitAttr,
    QPInitAttrEx,
    enums,
    inc_rkey,
)
from twisted_ib.verbs.pyverbs.objects.ah import addressAttr

STATE = enums.IBV_QP_STATE
SIGNALED = enums.IBV_SEND_SIGNALED
GRH_BYTES = 40


class ExtendedTests(VerbsTestCase):
    """
    Requests that are built by calls.
    """

    def pair(self, ops: int, kind: int = enums.IBV_QPT_RC) -> tuple[End, End, QPEx]:
        """
        @return: two connected ends, and the extended queue pair of the first.
        """
        near, far = End(self, kind), End(self, kind)
        attr = QPInitAttrEx(
            kind,
            scq=near.cq,
            rcq=near.cq,
            pd=near.pd,
            cap=QPCap(3, 3, 2, 2, 64),
            comp_mask=enums.IBV_QP_INIT_ATTR_PD | enums.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags=ops,
        )
        near.qp = qp = QPEx(near.ctx, attr)
        near.connect(far)
        return near, far, qp

    def begin(self, qp: QPEx, wr_id: int = 5, flags: int = SIGNALED) -> None:
        """
        Begin a batch.
        """
        qp.wr_start()
        qp.wr_id, qp.wr_flags = wr_id, flags

    def test_send(self) -> None:
        """
        Several requests are posted together.
        """
        near, far, qp = self.pair(enums.IBV_QP_EX_WITH_SEND | enums.IBV_QP_EX_WITH_SEND_WITH_IMM)
        near.mr.write("abcdef", 6)
        for i in range(2):
            far.receive(64 * i)
        self.begin(qp)
        qp.wr_send()
        qp.wr_set_sge(near.sge(0, 3))
        qp.wr_id = 6
        qp.wr_send_imm(0x01020304)
        qp.wr_set_sge_list(2, [near.sge(3, 1), near.sge(5, 1), near.sge()])
        self.assertEqual(far.cq.poll(), (0, []))
        qp.wr_complete()
        self.assertEqual([wc.wr_id for wc in self.wait(near.cq, 2)], [5, 6])
        found = self.wait(far.cq, 2)
        self.assertEqual(found[1].imm_data.to_bytes(4, "little"), b"\1\2\3\4")
        self.assertEqual((far.mr.read(3, 0), far.mr.read(2, 64)), (b"abc", b"df"))

    def test_oneSided(self) -> None:
        """
        WRITE, READ and atomics.
        """
        ops = (
            enums.IBV_QP_EX_WITH_RDMA_WRITE
            | enums.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | enums.IBV_QP_EX_WITH_RDMA_READ
            | enums.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
            | enums.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        )
        near, far, qp = self.pair(ops)
        key, address = far.mr.rkey, far.mr.buf
        far.receive(1024)
        near.mr.write((3).to_bytes(8, "little"), 8)
        calls: list[tuple[Any, tuple[int, ...], int]] = [
            (qp.wr_rdma_write, (), 0),
            (qp.wr_rdma_write_imm, (9,), 0),
            (qp.wr_atomic_fetch_add, (4,), 128),
            (qp.wr_atomic_cmp_swp, (7, 8), 192),
            (qp.wr_rdma_read, (), 256),
        ]
        for call, more, offset in calls:
            self.begin(qp)
            call(key, address, *more)
            qp.wr_set_sge(near.sge(offset, 8))
            qp.wr_complete()
            self.assertEqual(self.wait(near.cq)[0].status, enums.IBV_WC_SUCCESS)
        numbers = [int.from_bytes(near.mr.read(8, offset), "little") for offset in (128, 192, 256)]
        self.assertEqual(numbers, [3, 7, 8])

    def test_atomicWrite(self) -> None:
        """
        ATOMIC WRITE needs no element and no inline data, but 8 bytes; the device says that it has it.
        """
        near, far, qp = self.pair(enums.IBV_QP_EX_WITH_ATOMIC_WRITE)
        capabilities = near.pd.ctx.query_device_ex().device_cap_flags_ex
        self.assertTrue(capabilities & 1 << 40)  # IB_UVERBS_DEVICE_ATOMIC_WRITE
        self.begin(qp)
        qp.wr_atomic_write(far.mr.rkey, far.mr.buf + 8, b"atomicity")
        qp.wr_complete()
        wc = self.wait(near.cq)[0]
        self.assertEqual((wc.status, wc.opcode), (enums.IBV_WC_SUCCESS, enums.IBV_WC_ATOMIC_WRITE))
        self.assertEqual(far.mr.read(24, 0), bytes(8) + b"atomicit" + bytes(8))
        self.begin(qp)
        qp.wr_atomic_write(far.mr.rkey, far.mr.buf, b"seven by"[:7])
        self.refused(errno.EINVAL, qp.wr_complete)

    def test_fabric(self) -> None:
        """
        A queue pair cannot be made for a service or an operation that the fabric does not have, and the
        capability goes with the operation.
        """
        near, _, _ = self.pair(enums.IBV_QP_EX_WITH_ATOMIC_WRITE)
        few = frozenset({SendOpcode.SEND, SendOpcode.RDMA_READ})
        traits = evolve(near.pd._device.traits, services=frozenset({QPType.RC}), operations=few)
        self.patch(near.pd._device, "traits", traits)
        self.refused(errno.EOPNOTSUPP, End, self, enums.IBV_QPT_UD)
        self.refused(errno.EOPNOTSUPP, self.pair, enums.IBV_QP_EX_WITH_ATOMIC_WRITE)
        self.assertFalse(near.ctx.query_device_ex().device_cap_flags_ex & 1 << 40)
        near, _, qp = self.pair(enums.IBV_QP_EX_WITH_SEND)
        self.refused(errno.EOPNOTSUPP, qp.post_send, near.send(opcode=enums.IBV_WR_SEND_WITH_IMM))

    def test_windows(self) -> None:
        """
        A window is bound, the peer closes it, and it goes with the queue pair.
        """
        ops = enums.IBV_QP_EX_WITH_BIND_MW | enums.IBV_QP_EX_WITH_LOCAL_INV
        near, _, qp = self.pair(ops | enums.IBV_QP_EX_WITH_SEND_WITH_INV)
        mw = MW(near.pd, enums.IBV_MW_TYPE_2)
        key = inc_rkey(mw.rkey)
        self.begin(qp)
        qp.wr_bind_mw(mw, key, MWBindInfo(near.mr, near.mr.buf, 8, enums.IBV_ACCESS_REMOTE_WRITE))
        qp.wr_local_inv(key)
        qp.wr_complete()
        self.assertEqual([wc.status for wc in self.wait(near.cq, 2)], [0, 0])
        self.assertEqual(mw.rkey, key)
        self.begin(qp)
        qp.wr_send_inv(5)
        qp.wr_abort()
        qp.close()
        self.assertRaises(PyverbsUserError, lambda: mw.rkey)

    def test_inline(self) -> None:
        """
        Inline data is read at once; an error is reported by wr_complete.
        """
        near, far, qp = self.pair(enums.IBV_QP_EX_WITH_SEND)
        far.receive()
        near.mr.write("inline", 6)
        memory = ctypes.create_string_buffer(b"mine")
        self.begin(qp)
        qp.wr_send()
        qp.wr_set_inline_data_list(2, [DataBuffer(near.mr.buf, 6), DataBuffer(ctypes.addressof(memory), 4)])
        near.mr.write("changed", 7)
        qp.wr_complete()
        self.wait(far.cq)
        self.assertEqual(far.mr.read(10, 0), b"inlinemine")
        self.wait(near.cq)
        for address, length, code in ((near.mr.buf, 65, errno.EINVAL), (0x1000, 1, errno.EFAULT)):
            self.begin(qp)
            qp.wr_send()
            qp.wr_set_inline_data(address, length)
            self.refused(code, qp.wr_complete)
        self.assertRaises(PyverbsUserError, qp.wr_set_inline_data, near.mr.buf, 1)

    def test_allOrNone(self) -> None:
        """
        If one cannot be posted, none is.
        """
        near, far, qp = self.pair(enums.IBV_QP_EX_WITH_SEND)
        self.begin(qp)
        qp.wr_send()
        qp.wr_rdma_read(1, 1)
        self.refused(errno.EINVAL, qp.wr_complete)
        self.begin(qp)
        qp.wr_send()
        qp.wr_send()
        qp.wr_set_sge_list(3, [near.sge()] * 3)
        self.refused(errno.EINVAL, qp.wr_complete)
        self.begin(qp)
        for _ in range(4):
            qp.wr_send()
        self.refused(errno.ENOMEM, qp.wr_complete)
        self.assertEqual(qp._work.requester.room(), 3)
        qp.modify(self.reset(), STATE)
        self.begin(qp)
        qp.wr_send()
        self.refused(errno.EINVAL, qp.wr_complete)
        self.assertEqual((near.cq.poll()[0], far.cq.poll()[0]), (0, 0))

    def test_noReads(self) -> None:
        """
        A queue pair that may have no READs posts none, nor what was to go before one.
        """
        near, far, _ = self.pair(enums.IBV_QP_EX_WITH_SEND)
        attr = near.attr(far)
        attr.max_rd_atomic = 0
        made = QPInitAttrEx(
            enums.IBV_QPT_RC,
            scq=near.cq,
            rcq=near.cq,
            pd=near.pd,
            cap=QPCap(),
            comp_mask=enums.IBV_QP_INIT_ATTR_PD | enums.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags=enums.IBV_QP_EX_WITH_SEND | enums.IBV_QP_EX_WITH_RDMA_READ,
        )
        qp = QPEx(near.ctx, made)
        qp.to_rts(attr)
        self.begin(qp)
        qp.wr_send()
        qp.wr_rdma_read(1, 1)
        self.refused(errno.EINVAL, qp.wr_complete)
        self.assertEqual(qp._work.requester.room(), 1)

    def reset(self) -> Any:
        """
        @return: attributes of a queue pair that begins anew.
        """
        return QPAttr(enums.IBV_QPS_RESET)

    def test_order(self) -> None:
        """
        Calls out of order are errors of the program.
        """
        near, _, qp = self.pair(enums.IBV_QP_EX_WITH_SEND)
        for call in (qp.wr_send, qp.wr_complete, qp.wr_abort, lambda: qp.wr_set_sge(near.sge())):
            self.assertRaises(PyverbsUserError, call)
        qp.wr_start()
        self.assertRaises(PyverbsUserError, qp.wr_set_sge, near.sge())
        qp.wr_send()
        self.assertRaises(PyverbsUserError, qp.wr_set_sge_list, 2, [near.sge()])
        self.assertRaises(PyverbsUserError, qp.wr_set_inline_data_list, 1, [])
        qp.wr_abort()
        plain = QPEx(near.pd, QPInitAttr(enums.IBV_QPT_RC, scq=near.cq, rcq=near.cq, cap=QPCap()))
        self.assertRaises(PyverbsUserError, plain.wr_start)
        for call in (qp.wr_flush, qp.wr_send_tso, qp.wr_set_xrc_srqn):
            self.refused(errno.EOPNOTSUPP, call, *range(call.__code__.co_argcount - 1))
        self.assertIsNone(qp.ind_table)


class DatagramTests(VerbsTestCase):
    """
    Datagrams and address handles.
    """

    def setUp(self) -> None:
        """
        Two ends.
        """
        super().setUp()
        self.near, self.far = End(self, enums.IBV_QPT_UD), End(self, enums.IBV_QPT_UD)

    def send(self, ah: AH, number: int, key: int = QKEY, end: End | None = None) -> None:
        """
        Send "hello".
        """
        end = end or self.near
        end.mr.write("hello", 5, 512)
        wr = end.send(512, 5)
        wr.set_wr_ud(ah, number, key)
        end.qp.post_send(wr)
        self.assertEqual(self.wait(end.cq)[0].status, enums.IBV_WC_SUCCESS)

    def test_answer(self) -> None:
        """
        A datagram brings a header that an answer can be sent by.
        """
        self.far.receive(0, 100)
        self.send(self.near.handle(self.far), self.far.qp.qp_num)
        (wc,) = self.wait(self.far.cq)
        self.assertEqual((wc.byte_len, wc.src_qp), (GRH_BYTES + 5, self.near.qp.qp_num))
        self.assertEqual(wc.wc_flags, enums.IBV_WC_GRH)
        self.assertEqual(self.far.mr.read(5, GRH_BYTES), b"hello")
        raw = self.far.mr.read(GRH_BYTES, 0)
        for grh in (raw, self.far.mr.buf, self.parsed(raw)):
            back = AH(self.far.pd, wc=wc, grh=grh, port_num=1)
            self.near.receive(0, 100)
            self.send(back, wc.src_qp, end=self.far)
            self.assertEqual(self.wait(self.near.cq)[0].src_qp, self.far.qp.qp_num)
            self.assertEqual(self.near.mr.read(5, GRH_BYTES), b"hello")

    def parsed(self, raw: bytes) -> GRH:
        """
        @return: a header as a value.
        """
        sgid, dgid = GID(), GID()
        sgid.raw, dgid.raw = raw[8:24], raw[24:40]
        self.assertEqual(sgid.gid, self.near.ctx.query_gid(1, 0).gid)
        return GRH(sgid, dgid, int.from_bytes(raw[:4], "big"))

    def test_wrongHandles(self) -> None:
        """
        An address needs a GID, a port and a source.
        """
        pd = self.near.pd
        gid = self.near.ctx.query_gid(1, 0)
        for attr in (
            AHAttr(),
            AHAttr(is_global=1, gr=GlobalRoute(gid), port_num=2),
            AHAttr(is_global=1, gr=GlobalRoute()),
            AHAttr(is_global=1, gr=GlobalRoute(gid), port_num=0),
        ):
            error = self.refused(errno.EINVAL, AH, pd, attr=attr)
            self.assertTrue(str(error).startswith("Failed to create AH"))
        self.refused(errno.EINVAL, AH, pd, wc=WC(), grh=bytes(40), port_num=1)
        wc = WC(wc_flags=enums.IBV_WC_GRH)
        self.assertRaises(PyverbsUserError, AH, pd, wc=wc, grh=bytes(39), port_num=1)
        self.assertRaises(PyverbsUserError, AH, pd, wc=wc, grh=0x1000, port_num=1)
        self.patch(limits, "ADDRESS_HANDLES", 0)
        self.refused(errno.ENOMEM, self.near.handle, self.far)

    def test_localHandles(self) -> None:
        """
        On InfiniBand an address is a LID, of a vector or of a completion without a GRH.
        """
        device = self.near.ctx._device
        infiniband = evolve(device.traits, linkLayer=LinkLayer.INFINIBAND)
        for place, name, value in (
            (device, "traits", infiniband),
            (device.port, "linkLayer", LinkLayer.INFINIBAND),
        ):
            self.addCleanup(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        self.patch(device.paths, "check", lambda key: key)
        for given in ({"attr": AHAttr(dlid=7, sl=3)}, {"wc": WC(slid=7, sl=3), "grh": None, "port_num": 1}):
            vector = AH(self.near.pd, **given)._core.vector
            self.assertEqual((vector.lid, vector.serviceLevel, vector.isGlobal), (7, 3, False))
            attr = addressAttr(vector)
            self.assertEqual((attr.dlid, attr.sl, attr.is_global, attr.port_num), (7, 3, 0, 1))
        for dlid in (0, 0xFFFF):
            self.refused(errno.EINVAL, AH, self.near.pd, attr=AHAttr(dlid=dlid))

    def test_closedHandle(self) -> None:
        """
        A handle that is closed cannot be used, and a datagram needs one.
        """
        ah = self.near.handle(self.far)
        ah.close()
        wr = self.near.send()
        wr.set_wr_ud(ah, 1, 1)
        self.assertRaises(PyverbsUserError, self.near.qp.post_send, wr)
        self.refused(errno.EINVAL, self.near.qp.post_send, self.near.send())

    def test_extended(self) -> None:
        """
        A datagram that is built by calls.
        """
        attr = QPInitAttrEx(
            enums.IBV_QPT_UD,
            scq=self.near.cq,
            rcq=self.near.cq,
            pd=self.near.pd,
            cap=QPCap(),
            comp_mask=enums.IBV_QP_INIT_ATTR_PD | enums.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags=enums.IBV_QP_EX_WITH_SEND,
        )
        ready = self.near.attr(self.far)
        ready.qkey = QKEY
        qp = QPEx(self.near.ctx, attr, ready)
        self.far.receive(0, 100)
        qp.wr_start()
        qp.wr_flags = SIGNALED
        qp.wr_send()
        qp.wr_set_ud_addr(self.near.handle(self.far), self.far.qp.qp_num, QKEY)
        qp.wr_set_sge(self.near.sge(0, 9))
        qp.wr_complete()
        self.assertEqual(self.wait(self.far.cq)[0].byte_len, GRH_BYTES + 9)

    def test_group(self) -> None:
        """
        A datagram to a group comes to those that are attached.
        """
        group = "ff12:401b:ffff:0000:0000:0000:0000:0001"
        self.far.qp.attach_mcast(GID(group))
        gr = GlobalRoute(GID(group))
        ah = AH(self.near.pd, attr=AHAttr(is_global=1, gr=gr))
        self.far.receive(0, 100)
        self.send(ah, 0xFFFFFF)
        self.assertEqual(self.wait(self.far.cq)[0].byte_len, GRH_BYTES + 5)
        self.far.qp.detach_mcast(group)
        self.refused(errno.EINVAL, self.far.qp.detach_mcast, group)
        self.refused(errno.EINVAL, self.far.qp.attach_mcast, "fe80:0000:0000:0000:0000:0000:0000:0001")
        reliable, _ = connected(self)
        self.refused(errno.EINVAL, reliable.qp.attach_mcast, group)


class StepTests(VerbsTestCase):
    """
    Every state with every step.
    """

    def test_allSteps(self) -> None:
        """
        From each state each step with all its attributes goes there or is EINVAL and changes
        nothing, as the core has it.
        """
        path = [QPState.INIT, QPState.RTR, QPState.RTS, QPState.SQD, QPState.ERR]
        for kind in (enums.IBV_QPT_RC, enums.IBV_QPT_UC, enums.IBV_QPT_UD):
            for start in range(len(path)):
                for new in QPState:
                    a, b = End(self, enums.IBV_QPT_RC), End(self, enums.IBV_QPT_RC)
                    attr = a.attr(b)
                    attr.qkey = QKEY
                    qp = QP(a.pd, QPInitAttr(kind, scq=a.cq, rcq=a.cq, cap=QPCap()))
                    for state in path[:start]:
                        rule = transitionRule(QPType(kind), QPState(qp.qp_state), state)
                        assert rule is not None
                        attr.qp_state = state
                        qp.modify(attr, int(rule[0]) | STATE)
                    old = QPState(qp.qp_state)
                    rule = transitionRule(QPType(kind), old, new)
                    attr.qp_state = new
                    if rule is None:
                        self.refused(errno.EINVAL, qp.modify, attr, STATE)
                        self.assertEqual(qp.qp_state, old)
                    else:
                        qp.modify(attr, int(rule[0]) | STATE)
                        self.assertEqual(qp.qp_state, new)
                    a.ctx.close()
                    b.ctx.close()
