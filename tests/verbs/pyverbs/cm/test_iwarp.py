"""
Verbs on an iWARP device: connections by the communication manager, and what RFC 5040 does not have, which is
EOPNOTSUPP.
"""

from __future__ import annotations

import errno

from tests.support.calls import requireReplaceable
from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs.cm.case import UDP, CMTestCase, Kind, attributes
from twisted_ib.hca.device.device import addDevice, removeDevice
from twisted_ib.hca.fabric.iwarp import mpaservice
from twisted_ib.hca.fabric.iwarp.protocol.sending import RDMAPSender
from twisted_ib.verbs.pyverbs import (
    CQ,
    MR,
    PD,
    QP,
    SGE,
    AddrInfo,
    QPCap,
    QPInitAttr,
    QPInitAttrEx,
    SendWR,
    enums,
)
from twisted_ib.verbs.pyverbs.cm import identifier

LOCAL = int(enums.IBV_ACCESS_LOCAL_WRITE)
LACKING = (
    enums.IBV_WR_SEND_WITH_IMM,
    enums.IBV_WR_RDMA_WRITE_WITH_IMM,
    enums.IBV_WR_ATOMIC_CMP_AND_SWP,
    enums.IBV_WR_ATOMIC_FETCH_AND_ADD,
)


class UnsupportedTests(CMTestCase):
    """
    One device, at an address of its own.
    """

    device = "iwarp5"

    def setUp(self) -> None:
        """
        Add it.
        """
        self.host = ownAddress(5)
        addDevice(self.device, "iwarp", self.host)
        self.addCleanup(removeDevice, self.device)
        self.patch(identifier, "deviceFor", lambda *addresses: self.device)
        super().setUp()

    def test_operations(self) -> None:
        """
        On a connected queue pair messages go, immediate data and atomics are refused by name, and the queue
        pair goes on.
        """
        one, other = self.pair()
        self.assertEqual(one.context.name, self.device)
        region = MR(one.pd, 8, LOCAL)
        for opcode in LACKING:
            request = SendWR(opcode=opcode, num_sge=1, sg=[SGE(region.buf, 8, region.lkey)])
            error = self.refused(errno.EOPNOTSUPP, one.qp.post_send, request)
            self.assertIn(opcode.name.removeprefix("IBV_WR_"), str(error))
        region.close()
        self.talk(one, other)

    def test_closedUnspoken(self) -> None:
        """
        An initiator that does not say that it is ready, as Linux's siw, and closes before its first message
        was connected.
        """
        requireReplaceable(RDMAPSender, "readyToReceive")
        self.patch(RDMAPSender, "readyToReceive", lambda *arguments: None)
        self.patch(mpaservice, "HOLD_SECONDS", 2 * HANG_SECONDS)
        listener = self.listening()
        active = self.calling(listener)
        self.called(listener).accept()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.quiet(self.far)
        active.disconnect()
        self.expect(self.far, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.expect(self.far, Kind.RDMA_CM_EVENT_DISCONNECTED)

    def test_creation(self) -> None:
        """
        Queue pairs of UC and UD, and those that are to have an operation that is lacking, cannot be created.
        """
        pd, cq = PD(self.context), CQ(self.context, 10)
        cap = QPCap(5, 5, 1, 1, 0)
        for kind in (enums.IBV_QPT_UC, enums.IBV_QPT_UD):
            self.refused(errno.EOPNOTSUPP, QP, pd, QPInitAttr(kind, None, cq, cq, None, cap))
        mask = enums.IBV_QP_INIT_ATTR_PD | enums.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        for flag in (
            enums.IBV_QP_EX_WITH_SEND_WITH_IMM,
            enums.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
            enums.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
            enums.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        ):
            wanted = QPInitAttrEx(
                *(enums.IBV_QPT_RC, None, cq, cq),
                cap=cap,
                pd=pd,
                comp_mask=mask,
                send_ops_flags=flag | enums.IBV_QP_EX_WITH_SEND,
            )
            self.refused(errno.EOPNOTSUPP, QP, pd, wanted)
        cq.close()
        pd.close()

    def test_datagrams(self) -> None:
        """
        A datagram service has no queue pair to be created.
        """
        identifier = self.made(self.near, port_space=UDP)
        identifier.bind_addr(AddrInfo(self.host, src_service="0", port_space=UDP, flags=1))
        self.refused(errno.EOPNOTSUPP, identifier.create_qp, attributes(UDP))

    def test_attributes(self) -> None:
        """
        The device says that it has no atomics, no multicast and no address handles; it is an RNIC.
        """
        found = self.context.query_device()
        self.assertEqual(found.atomic_caps, enums.IBV_ATOMIC_NONE)
        self.assertEqual((found.max_mcast_grp, found.max_mcast_qp_attach, found.max_ah), (0, 0, 0))
        self.assertFalse(found.device_cap_flags & enums.IBV_DEVICE_RC_RNR_NAK_GEN)
