"""
Tests of L{twisted_ib.verbs.pyverbs.cm.call}: datagram services and groups, both sides in one
process.
"""

from __future__ import annotations

import errno
from typing import Any
from unittest import mock

from tests.verbs.pyverbs.cm.case import UDP, CMTestCase, Kind, attributes, param
from twisted_ib import limits
from twisted_ib.hca.connection import RejectReason, SIDRStatus
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    AH,
    GID,
    AddrInfo,
    ConnParam,
    JoinMCAttrEx,
    PyverbsUserError,
    UDParam,
    enums,
)
from twisted_ib.verbs.pyverbs.cm.call import Connected
from twisted_ib.verbs.pyverbs.cm.groups import groupOf

GRH_BYTES = 40
GROUP = "230.0.0.1"


class DatagramTests(CMTestCase):
    """
    Looking for a service, and serving one.
    """

    space = int(UDP)

    def test_lookup(self) -> None:
        """
        The active side learns where to send to; the passive side learns the sender.
        """
        listener = self.listening()
        active = self.calling(listener, param(b"where?"))
        event = self.event(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
        self.assertEqual(event.private_data, b"where?".ljust(180, b"\0"))
        self.assertIsNone(event.conn_param)
        self.assertEqual((UDParam(event).qp_num, UDParam(event).qkey), (0, 0))
        passive = self.made(event, listen_id=listener)
        event.ack_cm_event()
        self.assertEqual((passive.peer_addr, passive.local_addr), (active.local_addr, active.peer_addr))
        passive.create_qp(attributes(UDP))
        passive.accept(param(b"here"))
        event = self.event(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.assertEqual(event.private_data, b"here".ljust(136, b"\0"))
        where = UDParam(event)
        event.ack_cm_event()
        self.assertEqual((where.qp_num, where.qkey), (passive.qpn, enums.RDMA_UDP_QKEY))
        self.assertEqual(where.ah_attr.dgid, self.context.query_gid(1, 0).gid)
        self.exchange(active, passive, where)
        # There is no third message, and no end.
        self.quiet(self.near, self.far)
        active.disconnect()
        self.assertEqual(active.query_qp(0)[0].qp_state, enums.IBV_QPS_ERR)
        self.quiet(self.near, self.far)

    def exchange(self, active: Any, passive: Any, where: UDParam) -> None:
        """
        A datagram, and one back to where it came from.
        """
        mine, theirs = active.reg_msgs(100), passive.reg_msgs(100)
        passive.post_recv(theirs)
        active.post_recv(mine)
        out = active.reg_msgs(8)
        out.write(b"ping", 4)
        way = AH(active.pd, attr=where.ah_attr)
        active.post_ud_send(out, way, where.qp_num, length=4)
        self.assertEqual(active.get_send_comp().status, enums.IBV_WC_SUCCESS)
        completion = passive.get_recv_comp()
        self.assertEqual(completion.byte_len, GRH_BYTES + 4)
        self.assertEqual(theirs.read(4, GRH_BYTES), b"ping")
        back = AH(passive.pd, wc=completion, port_num=1, grh=theirs.buf)
        answer = passive.reg_msgs(8)
        answer.write(b"pong", 4)
        passive.post_ud_send(answer, back, completion.src_qp, length=4)
        self.assertEqual(active.get_recv_comp().byte_len, GRH_BYTES + 4)
        self.assertEqual(mine.read(4, GRH_BYTES), b"pong")
        for handle in (way, back):
            handle.close()

    def test_states(self) -> None:
        """
        The queue pair is ready as soon as it is made.
        """
        active = self.routed(1)
        active.create_qp(attributes(UDP))
        attr, _ = active.query_qp(0)
        self.assertEqual((attr.qp_state, attr.qkey), (enums.IBV_QPS_RTS, enums.RDMA_UDP_QKEY))
        for state in (enums.IBV_QPS_INIT, enums.IBV_QPS_RTR, enums.IBV_QPS_RTS):
            self.assertTrue(active.init_qp_attr(state)[1] & enums.IBV_QP_STATE)
        self.refused(errno.EINVAL, active.init_qp_attr, enums.IBV_QPS_ERR)

    def test_no(self) -> None:
        """
        The passive side does not want, by a word or by going away.
        """
        for withWord in (True, False):
            listener = self.listening()
            self.calling(listener)
            passive = self.called(listener)
            if withWord:
                passive.reject(b"no")
                self.refused(errno.EINVAL, passive.accept)
            else:
                passive.close()
            event = self.event(self.near, Kind.RDMA_CM_EVENT_UNREACHABLE, SIDRStatus.REJECTED)
            self.assertEqual(event.private_data[:3], b"no\0" if withWord else bytes(3))
            event.ack_cm_event()

    def test_nobody(self) -> None:
        """
        Nobody serves it.
        """
        active = self.routed(1)
        active.connect()
        self.expect(self.near, Kind.RDMA_CM_EVENT_UNREACHABLE, SIDRStatus.SERVICE_ID_UNSUPPORTED)
        listener = self.listening(space=enums.RDMA_PS_TCP)
        active = self.routed(listener.local_addr[1])
        active.connect()
        self.expect(self.near, Kind.RDMA_CM_EVENT_UNREACHABLE, SIDRStatus.SERVICE_ID_UNSUPPORTED)

    def test_withoutQueuePair(self) -> None:
        """
        The program's own queue pair is named by its number.
        """
        listener = self.listening()
        self.calling(listener, withQP=False)
        passive = self.called(listener, withQP=False)
        self.refused(errno.EINVAL, passive.accept)
        self.refused(errno.EINVAL, passive.accept, ConnParam(qp_num=1 << 24))
        passive.accept(ConnParam(qp_num=0x123456))
        self.assertEqual(UDParam(self.event(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)).qp_num, 0x123456)

    def test_tooMuchToSay(self) -> None:
        """
        Private data has bounds.
        """
        listener = self.listening()
        active = self.routed(listener.local_addr[1])
        self.refused(errno.EINVAL, active.connect, param(b"x" * 181))
        active.connect(param(b"x" * 180))
        event = self.event(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
        self.assertEqual(event.private_data, b"x" * 180)
        passive = self.made(event, listen_id=listener)
        self.refused(errno.EINVAL, passive.accept, param(b"y" * 137, qp_num=1))
        self.refused(errno.EINVAL, passive.reject, b"y" * 137)
        passive.accept(param(b"y" * 136, qp_num=1))
        self.assertEqual(self.event(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED).private_data, b"y" * 136)

    def test_backlog(self) -> None:
        """
        Questions beyond the backlog come again.
        """
        listener = self.listening(backlog=1)
        for _ in range(2):
            self.calling(listener)
        self.called(listener).reject()
        self.expect(self.near, Kind.RDMA_CM_EVENT_UNREACHABLE, SIDRStatus.REJECTED)
        self.assertEqual(listener.device.counters["backlog_full"], 1)
        self.later(listener)
        self.called(listener)

    def later(self, made: Any, seconds: float = 10.0) -> None:
        """
        Let time pass for a device.
        """
        with hub:
            made.device.tick(made.device.clock() + seconds)

    def test_gone(self) -> None:
        """
        The active side closes before the answer.
        """
        listener = self.listening()
        active = self.calling(listener)
        passive = self.called(listener)
        active.close()
        passive.accept()
        self.quiet(self.near, self.far)

    def test_noAnswer(self) -> None:
        """
        Nobody answers, for minutes.
        """
        listener = self.listening()
        active = self.calling(listener)
        self.called(listener)
        # Where messages may be lost the question is repeated.
        for round in range(1, 17):
            self.later(active, round * 4.2)
        self.later(active, 2 * limits.CM_ANSWER_SECONDS)
        self.expect(self.near, Kind.RDMA_CM_EVENT_UNREACHABLE, -errno.ETIMEDOUT)

    def test_establish(self) -> None:
        """
        There is nothing to establish.
        """
        self.refused(errno.EINVAL, self.routed(1).establish)

    def test_connectionToService(self) -> None:
        """
        A connection is asked for at the service id of datagrams.
        """
        listener = self.listening()
        active = self.routed(listener.local_addr[1])
        identifier = active._id
        identifier.qpType = enums.IBV_QPT_RC
        identifier.transport = Connected(identifier)
        active.connect(ConnParam(qp_num=5))
        self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.INVALID_SERVICE_ID)


class GroupTests(CMTestCase):
    """
    Multicast groups.
    """

    space = int(UDP)
    #: The GID of L{GROUP}.
    gid = "ff0e:0000:0000:0000:0000:ffff:e600:0001"

    def member(self, join: bool = True, **more: Any) -> Any:
        """
        An identifier with a queue pair, in the group.
        """
        made = self.made(self.near, port_space=UDP)
        made.resolve_addr(AddrInfo(src=self.host, dst=GROUP))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
        made.create_qp(attributes(UDP))
        if join:
            made.join_multicast(**(more or {"addr": AddrInfo(src=GROUP)}))
        return made

    def joined(self, **more: Any) -> tuple[Any, UDParam]:
        """
        A member, and where the group is.
        """
        made = self.member(**more)
        event = self.event(self.near, Kind.RDMA_CM_EVENT_MULTICAST_JOIN)
        where = UDParam(event)
        event.ack_cm_event()
        return made, where

    def send(self, made: Any, where: UDParam) -> None:
        """
        A datagram to the group.
        """
        region = made.reg_msgs(8)
        region.write(b"everyone", 8)
        handle = AH(made.pd, attr=where.ah_attr)
        made.post_ud_send(region, handle, where.qp_num, length=8)
        self.assertEqual(made.get_send_comp().status, enums.IBV_WC_SUCCESS)
        handle.close()

    def test_members(self) -> None:
        """
        Datagrams to the group reach its members, until they leave.
        """
        first, where = self.joined()
        second, _ = self.joined()
        self.assertEqual((where.qp_num, where.qkey), (0xFFFFFF, enums.RDMA_UDP_QKEY))
        self.assertEqual(where.ah_attr.dgid, self.gid)
        region = second.reg_msgs(100)
        second.post_recv(region)
        second.post_recv(region)
        self.send(first, where)
        self.assertEqual(second.get_recv_comp().byte_len, GRH_BYTES + 8)
        self.assertEqual(region.read(8, GRH_BYTES), b"everyone")
        second.leave_multicast(AddrInfo(src=GROUP))
        self.send(first, where)
        self.quiet(self.near)
        self.assertEqual(second.recv_cq.poll(1)[0], 0)
        self.refused(errno.EADDRNOTAVAIL, second.leave_multicast, AddrInfo(src=GROUP))

    def test_extended(self) -> None:
        """
        By extended attributes: a full member, or one that only sends.
        """
        mask = enums.RDMA_CM_JOIN_MC_ATTR_ADDRESS | enums.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS
        group = AddrInfo(src=GROUP)
        full, _ = self.joined(mc_attr=JoinMCAttrEx(group, mask, enums.RDMA_MC_JOIN_FLAG_FULLMEMBER))
        deaf, where = self.joined(
            mc_attr=JoinMCAttrEx(group, mask, enums.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER)
        )
        regions = [made.reg_msgs(100) for made in (full, deaf)]
        for made, region in zip((full, deaf), regions, strict=True):
            made.post_recv(region)
        self.send(deaf, where)
        self.assertEqual(full.get_recv_comp().byte_len, GRH_BYTES + 8)
        self.assertEqual(deaf.recv_cq.poll(1)[0], 0)
        deaf.leave_multicast(group)

    def test_attributes(self) -> None:
        """
        Extended attributes that cannot be.
        """
        made = self.member(join=False)
        group = AddrInfo(src=GROUP)
        for code, mask, flags in (
            (errno.EOPNOTSUPP, 4, 0),
            (errno.EINVAL, 1, 0),
            (errno.EINVAL, 2, 0),
            (errno.EINVAL, 3, 2),
        ):
            self.refused(code, made.join_multicast, mc_attr=JoinMCAttrEx(group, mask, flags))
        attr = JoinMCAttrEx(group)
        self.assertEqual((attr.comp_mask, attr.join_flags), (0, 0))
        attr.comp_mask, attr.join_flags = 3, 1
        self.assertEqual((attr.comp_mask, attr.join_flags), (3, 1))
        self.assertRaises(TypeError, JoinMCAttrEx, GROUP)
        self.assertRaises(PyverbsUserError, made.join_multicast)
        self.refused(errno.EINVAL, made.join_multicast, mc_attr=JoinMCAttrEx(AddrInfo(), 3, 0))

    def test_errors(self) -> None:
        """
        No group, no datagrams, no address, twice.
        """
        made = self.member(join=False)
        self.refused(errno.EINVAL, made.join_multicast, AddrInfo(src=self.host))
        self.refused(errno.EINVAL, made.join_multicast, AddrInfo())
        self.refused(errno.EINVAL, made.leave_multicast, AddrInfo())
        made.join_multicast(AddrInfo(src=GROUP))
        self.expect(self.near, Kind.RDMA_CM_EVENT_MULTICAST_JOIN)
        self.refused(errno.EADDRINUSE, made.join_multicast, AddrInfo(src=GROUP))
        unbound = self.made(self.near, port_space=UDP)
        self.refused(errno.EINVAL, unbound.join_multicast, AddrInfo(src=GROUP))
        connected = self.routed(1, space=enums.RDMA_PS_TCP)
        self.refused(errno.EINVAL, connected.join_multicast, AddrInfo(src=GROUP))

    def test_context(self) -> None:
        """
        An event of a group has the context that the group was joined with.
        """
        made = self.member(join=False)
        made.join_multicast(AddrInfo(src=GROUP), context="first")
        made.join_multicast(AddrInfo(src="230.0.0.2"), context="second")
        for context in ("first", "second"):
            event = self.event(self.near, Kind.RDMA_CM_EVENT_MULTICAST_JOIN)
            self.assertEqual(event.context, context)
            event.ack_cm_event()

    def test_withoutQueuePair(self) -> None:
        """
        Without a queue pair the program attaches its own.
        """
        made = self.made(self.near, port_space=UDP)
        made.bind_addr(AddrInfo(src=self.host))
        made.join_multicast(AddrInfo(src=GROUP))
        self.expect(self.near, Kind.RDMA_CM_EVENT_MULTICAST_JOIN)
        made.leave_multicast(AddrInfo(src=GROUP))

    def test_noRoom(self) -> None:
        """
        Too many groups.
        """
        made = self.member(join=False)
        with mock.patch.object(limits, "MULTICAST_GROUPS", 0):
            made.join_multicast(AddrInfo(src=GROUP))
        self.expect(self.near, Kind.RDMA_CM_EVENT_MULTICAST_ERROR, -errno.ENOMEM)
        self.refused(errno.EADDRNOTAVAIL, made.leave_multicast, AddrInfo(src=GROUP))

    def test_closed(self) -> None:
        """
        A closed member is in no group.
        """
        made, where = self.joined()
        made.close()
        other, _ = self.joined()
        region = other.reg_msgs(100)
        other.post_recv(region)
        self.send(other, where)
        self.assertEqual(other.get_recv_comp().status, enums.IBV_WC_SUCCESS)

    def test_names(self) -> None:
        """
        The GID of a group.
        """
        self.assertEqual(groupOf("ff0e::7").gid, GID("ff0e:0000:0000:0000:0000:0000:0000:0007").gid)
        self.assertEqual(groupOf("239.1.2.3").gid, "ff0e:0000:0000:0000:0000:ffff:ef01:0203")
