"""
Tests of L{twisted_ib.verbs.pyverbs.cm.cmid}: connections, both sides in one process.
"""

from __future__ import annotations

import errno
from ipaddress import IPv6Address
from typing import Any
from unittest import mock

from attrs import evolve

from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs.cm.case import UDP, CMTestCase, Kind, attributes, param
from twisted_ib import limits
from twisted_ib.hca.base.traits import PrivateBytes
from twisted_ib.hca.cm.states import Input
from twisted_ib.hca.connection import RejectReason
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.wire.cm.messages import MRA
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import CQ, MR, PD, QP, SGE, AddrInfo, ConnParam, Context, SendWR, enums

STATE = int(enums.IBV_QP_STATE)


class ConnectionTests(CMTestCase):
    """
    From a request to a connection.
    """

    def test_delayed(self) -> None:
        """
        An identifier knows that its peer has asked for time.
        """
        listener = self.listening()
        active = self.routed(listener.local_addr[1])
        self.assertFalse(active.isDelayed)
        active.create_qp(attributes())
        active.connect()
        passive = self.called(listener)
        self.assertFalse(active.isDelayed)
        connection = active._id.transport.connection
        send = MRA(localCommunicationID=1, remoteCommunicationID=connection.localID, serviceTimeout=20)
        connection.feed(Input.MRA_REQ, send, active._id.now())
        self.assertTrue(active.isDelayed)
        passive.accept()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.assertFalse(active.isDelayed)

    def test_connection(self) -> None:
        """
        Request, answer, ready: what each side hears, with whose private data; then data.
        """
        listener = self.listening()
        active = self.calling(listener, param(b"who is there?", resources=3, depth=4, retry=6, rnr_retry=2))
        event = self.event(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
        self.assertEqual(event.private_data, b"who is there?".ljust(56, b"\0"))
        heard = event.conn_param
        assert heard is not None
        # From this side's point of view: what the peer wants is what is served here.
        self.assertEqual((heard.resources, heard.depth, heard.retry, heard.rnr_retry), (4, 3, 6, 2))
        self.assertEqual(heard.qpn, active.qpn)
        passive = self.made(event, listen_id=listener)
        event.ack_cm_event()
        passive.create_qp(attributes())
        passive.accept(param(b"it is me", resources=2, depth=9, rnr_retry=3))
        event = self.event(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.assertEqual(event.private_data, b"it is me".ljust(196, b"\0"))
        heard = event.conn_param
        assert heard is not None
        self.assertEqual((heard.resources, heard.depth, heard.rnr_retry, heard.qpn), (3, 2, 3, passive.qpn))
        event.ack_cm_event()
        event = self.event(self.far, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.assertEqual((event.private_data, event.conn_param), (b"", None))
        event.ack_cm_event()
        self.talk(active, passive)
        self.talk(passive, active)

    def test_agreement(self) -> None:
        """
        One side's initiator depth is bounded by the other's responder resources; each queue pair gets the
        result.
        """
        active, passive = self.pair(
            param(resources=3, depth=4, retry=6, rnr_retry=2), param(resources=2, depth=9, rnr_retry=3)
        )
        near, _ = active.query_qp(0)
        far, _ = passive.query_qp(0)
        self.assertEqual((near.max_rd_atomic, near.max_dest_rd_atomic), (2, 3))
        self.assertEqual((far.max_rd_atomic, far.max_dest_rd_atomic), (3, 2))
        self.assertEqual((near.retry_cnt, near.rnr_retry), (6, 3))
        self.assertEqual((far.retry_cnt, far.rnr_retry), (6, 2))
        self.assertEqual((near.rq_psn, near.sq_psn), (far.sq_psn, far.rq_psn))
        self.assertEqual((near.dest_qp_num, far.dest_qp_num), (passive.qpn, active.qpn))
        access = enums.IBV_ACCESS_REMOTE_WRITE | enums.IBV_ACCESS_REMOTE_READ | enums.IBV_ACCESS_REMOTE_ATOMIC
        for attr in (near, far):
            self.assertEqual((attr.qp_state, attr.timeout, attr.min_rnr_timer), (enums.IBV_QPS_RTS, 17, 0))
            self.assertEqual((attr.path_mtu, attr.port_num), (enums.IBV_MTU_4096, 1))
            self.assertEqual(attr.qp_access_flags, access)
            self.assertEqual(attr.ah_attr.dgid, self.context.query_gid(1, 0).gid)

    def test_noReads(self) -> None:
        """
        A side that serves no READs grants no right to them.
        """
        active, passive = self.pair(param(resources=0, depth=1), param(resources=1, depth=1))
        near, _ = active.query_qp(0)
        far, _ = passive.query_qp(0)
        self.assertEqual(near.qp_access_flags, enums.IBV_ACCESS_REMOTE_WRITE)
        self.assertEqual((near.max_dest_rd_atomic, far.max_rd_atomic), (0, 0))
        self.assertTrue(far.qp_access_flags & enums.IBV_ACCESS_REMOTE_READ)

    def test_withoutParameters(self) -> None:
        """
        Then it is as much as the device can.
        """
        active, passive = self.pair()
        for end in (active, passive):
            attr, _ = end.query_qp(0)
            self.assertEqual((attr.max_rd_atomic, attr.max_dest_rd_atomic), (limits.READS, limits.READS))
            self.assertEqual((attr.retry_cnt, attr.rnr_retry), (7, 7))

    def test_asMuchAsPossible(self) -> None:
        """
        255 is as much as the device can.
        """
        active, _ = self.pair(param(resources=255, depth=255), param(resources=255, depth=255))
        attr, _ = active.query_qp(0)
        self.assertEqual((attr.max_rd_atomic, attr.max_dest_rd_atomic), (limits.READS, limits.READS))

    def test_readAndWrite(self) -> None:
        """
        The peer's memory is read and written by the rights of its region.
        """
        active, passive = self.pair()
        mine, readable, writable = active.reg_msgs(16), passive.reg_read(16), passive.reg_write(16)
        readable.write(b"read me", 7)
        active.post_read(mine, 7, readable.buf, readable.rkey, flags=enums.IBV_SEND_SIGNALED)
        self.assertEqual(active.get_send_comp().status, enums.IBV_WC_SUCCESS)
        self.assertEqual(mine.read(7, 0), b"read me")
        mine.write(b"written", 7)
        active.post_write(mine, 7, writable.buf, writable.rkey, flags=enums.IBV_SEND_SIGNALED)
        self.assertEqual(active.get_send_comp().status, enums.IBV_WC_SUCCESS)
        self.assertEqual(writable.read(7, 0), b"written")
        active.post_write(mine, 7, readable.buf, readable.rkey)
        self.assertEqual(active.get_send_comp().status, enums.IBV_WC_REM_ACCESS_ERR)
        self.assertEqual(readable.read(7, 0), b"read me")

    def test_addresses(self) -> None:
        """
        Both ends know both addresses, and the device.
        """
        active, passive = self.pair()
        self.assertEqual((active.local_addr, active.peer_addr), (passive.peer_addr, passive.local_addr))
        self.assertEqual(active.local_addr[0], self.host)
        self.assertGreaterEqual(active.local_addr[1], 49152)
        self.assertEqual((active.dev_name, active.port_num), (self.device, 1))
        self.assertIs(active.event_channel, self.near)
        self.assertIs(passive.event_channel, self.far)
        # All identifiers of a process share these, as with librdmacm.
        self.assertIs(active.context, passive.context)
        self.assertIs(active.pd, passive.pd)

    def test_unbound(self) -> None:
        """
        An identifier that is bound to nothing has no device.
        """
        made = self.made(self.near)
        self.assertEqual((made.context, made.pd, made.qpn, made.qp, made.port_num), (None,) * 4 + (0,))
        self.assertEqual((made.local_addr, made.peer_addr), (None, None))
        for use in (lambda: made.dev_name, lambda: made.reg_msgs(1), lambda: made.init_qp_attr(1)):
            self.refused(errno.EINVAL, use)

    def test_many(self) -> None:
        """
        Several connections of one listener; each request has its own identifier.
        """
        listener = self.listening()
        actives = [self.calling(listener) for _ in range(5)]
        passives = [self.called(listener) for _ in actives]
        for passive in reversed(passives):
            passive.accept()
        for _ in actives:
            self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
            self.expect(self.far, Kind.RDMA_CM_EVENT_ESTABLISHED)
        for active, passive in zip(actives, passives, strict=True):
            self.assertEqual(active.peer_addr, passive.local_addr)
            self.talk(active, passive)

    def test_ownCompletionQueues(self) -> None:
        """
        Queues that the program brings are the program's.
        """
        listener = self.listening()
        active = self.routed(listener.local_addr[1])
        cq = CQ(active.context, 10)
        active.create_qp(attributes(scq=cq, rcq=cq))
        active.connect()
        passive = self.called(listener)
        passive.accept()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.assertEqual((active.send_cq, active.recv_cq), (None, None))
        self.refused(errno.EINVAL, active.get_send_comp)
        self.refused(errno.EINVAL, active.get_recv_comp)
        region = active.reg_msgs(8)
        passive.post_recv(passive.reg_msgs(8))
        active.post_send(region)
        self.assertEqual(self.wait(cq)[0].opcode, enums.IBV_WC_SEND)
        active.close()
        cq.close()

    def test_ownQueuePair(self) -> None:
        """
        A queue pair that the program made, in its own domain, moves with the connection.  Destroyed, another
        takes its place.  Events name the identifier.
        """
        listener = self.listening()
        active = self.routed(listener.local_addr[1])
        self.refused(errno.EINVAL, active.destroy_qp)
        domain, cq = PD(self.context), CQ(self.context, 10)
        made = QP(domain, attributes(scq=cq, rcq=cq))
        active.take_qp(made)
        self.assertEqual((active.qp, made.qp_state), (made, enums.IBV_QPS_INIT))
        active.connect()
        event = self.event(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
        self.assertIs(event.identifier, listener.identifier)
        self.assertIsNone(event.context)
        passive = self.made(event, listen_id=listener)
        event.ack_cm_event()
        passive.create_qp(attributes())
        passive.accept()
        event = self.event(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.assertIs(event.identifier, active.identifier)
        source, sink = MR(domain, 64, enums.IBV_ACCESS_LOCAL_WRITE), passive.reg_msgs(64)
        passive.post_recv(sink)
        active.post_send(source)
        self.assertEqual(self.wait(cq)[0].status, enums.IBV_WC_SUCCESS)
        self.refused(errno.EINVAL, active.take_qp, made)
        active.destroy_qp()
        self.assertIsNone(active.qp)
        active.create_qp(attributes())

    def test_unaskedInline(self) -> None:
        """
        A queue pair that asked for no inline data has as much as its elements would take, as on Linux's rxe.
        """
        active, passive = self.pair()
        self.assertEqual(active.query_qp(enums.IBV_QP_CAP)[1].cap.max_inline_data, 16)
        source, sink = active.reg_msgs(32), passive.reg_msgs(32)
        source.write(b"sixteen octets..", 16)
        passive.post_recv(sink)
        flags = enums.IBV_SEND_INLINE | enums.IBV_SEND_SIGNALED
        sent = [SGE(source.buf, 16, 0)]
        active.qp.post_send(SendWR(num_sge=1, sg=sent, send_flags=flags))
        self.assertEqual(passive.get_recv_comp().byte_len, 16)
        self.assertEqual(sink.read(16, 0), b"sixteen octets..")
        longer = SendWR(num_sge=1, sg=[SGE(source.buf, 17, source.lkey)], send_flags=flags)
        self.refused(errno.EINVAL, active.qp.post_send, longer)

    def test_unfitQueuePair(self) -> None:
        """
        A queue pair of another type, or of another device.
        """
        active = self.routed(1)
        domain, cq = PD(self.context), CQ(self.context, 10)
        made = QP(domain, attributes(UDP, scq=cq, rcq=cq))
        self.refused(errno.EINVAL, active.take_qp, made)
        other = Context(name="lo0")
        self.addCleanup(other.close)
        domain, cq = PD(other), CQ(other, 10)
        made = QP(domain, attributes(scq=cq, rcq=cq))
        self.refused(errno.EINVAL, active.take_qp, made)


class IPv6Tests(ConnectionTests):
    """
    The same over IPv6.
    """

    host = "::1"


class GIDTests(CMTestCase):
    """
    C{RDMA_PS_IB}: addresses are GIDs, and private data has no header.
    """

    space = int(enums.RDMA_PS_IB)

    def test_mapped(self) -> None:
        """
        A GID that stands for an IP address; 92 octets of private data.
        """
        listener = self.listening()
        active = self.calling(listener, param(b"x" * 92))
        event = self.event(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
        self.assertEqual(event.private_data, b"x" * 92)
        event.close()
        self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.CONSUMER_DEFINED)
        active.close()
        active, passive = self.pair()
        self.talk(active, passive)
        self.assertEqual(passive.peer_addr, (self.host, 0))
        self.refused(errno.EINVAL, self.routed(1).connect, param(b"x" * 93))

    def test_own(self) -> None:
        """
        The HCA's own GID.
        """
        raw = self.context.query_gid(1, 0).gid
        self.host = ":".join(word.lstrip("0") or "0" for word in raw.split(":"))
        listener = self.listening(host="::")
        active = self.calling(listener)
        passive = self.called(listener)
        passive.accept()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.talk(active, passive)
        self.assertEqual(passive.peer_addr, (IPv6Address(raw).compressed, 0))

    def test_forged(self) -> None:
        """
        A peer that claims another HCA's GID is refused.
        """
        listener = self.listening(host="::")
        forged = mock.patch.object(Device, "localAddressFor", lambda *_: "fe80::1234")
        with forged:
            active = self.calling(listener)
        self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.CONSUMER_DEFINED)
        active.close()


class RefusalTests(CMTestCase):
    """
    It does not come to a connection.
    """

    def test_rejected(self) -> None:
        """
        The passive side says why; the queue pair of the active side is flushed.
        """
        listener = self.listening()
        active = self.calling(listener)
        active.post_recv(active.reg_msgs(8))
        passive = self.called(listener)
        passive.reject(b"not today")
        event = self.event(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.CONSUMER_DEFINED)
        self.assertEqual(event.private_data, b"not today".ljust(148, b"\0"))
        event.ack_cm_event()
        self.assertEqual(active.get_recv_comp().status, enums.IBV_WC_WR_FLUSH_ERR)
        self.assertEqual(active.query_qp(0)[0].qp_state, enums.IBV_QPS_ERR)
        self.refused(errno.EINVAL, passive.reject)
        self.refused(errno.ECONNRESET, passive.accept)
        self.quiet(self.near, self.far)

    def test_bound(self) -> None:
        """
        Port 0 is bound to a port at once, which nobody else gets; nobody is answered there before it listens.
        """
        bound = self.made(self.far, port_space=self.space)
        bound.bind_addr(AddrInfo(self.host, src_service="0", port_space=self.space, flags=1))
        port = bound.local_addr[1]
        self.assertGreaterEqual(port, 49152)
        other = self.made(self.channel(), port_space=self.space)
        other.bind_addr(AddrInfo(self.host, src_service=str(port), port_space=self.space, flags=1))
        self.refused(errno.EADDRINUSE, other.listen)
        self.calling(bound)
        self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.INVALID_SERVICE_ID)
        self.quiet(self.far)
        bound.listen()
        self.assertEqual(bound.local_addr[1], port)
        self.calling(bound)
        self.called(bound).reject()
        bound.close()
        other.listen()

    def test_boundClient(self) -> None:
        """
        An identifier that connects keeps its number and leaves the service to others.
        """
        listener = self.listening()
        bound = self.made(self.near, port_space=self.space)
        bound.bind_addr(AddrInfo(self.host, src_service="0", port_space=self.space, flags=1))
        port = bound.local_addr[1]
        where = AddrInfo(dst=self.host, dst_service=str(listener.local_addr[1]), port_space=self.space)
        bound.resolve_addr(where)
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
        self.assertEqual(bound.local_addr[1], port)
        other = self.made(self.channel(), port_space=self.space)
        other.bind_addr(AddrInfo(self.host, src_service=str(port), port_space=self.space, flags=1))
        other.listen()

    def test_nobody(self) -> None:
        """
        Nobody listens.
        """
        listener = self.listening()
        port = listener.local_addr[1]
        listener.close()
        active = self.routed(port)
        active.create_qp(attributes())
        active.connect()
        self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.INVALID_SERVICE_ID)
        self.refused(errno.EINVAL, active.connect)

    def test_otherAddress(self) -> None:
        """
        Somebody listens, but at another address.
        """
        listener = self.listening(host="127.0.0.2")
        active = self.routed(listener.local_addr[1])
        active.create_qp(attributes())
        active.connect()
        self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.INVALID_SERVICE_ID)

    def test_elsewhere(self) -> None:
        """
        An address that no device reaches.
        """
        active = self.made(self.near)
        active.resolve_addr(AddrInfo(dst="192.0.2.1", dst_service="1"))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_ERROR, -errno.ENODEV)
        self.refused(errno.EINVAL, active.resolve_route)
        active.resolve_addr(AddrInfo(dst="127.0.0.1", dst_service="1"))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)

    def test_dropped(self) -> None:
        """
        An abandoned request is rejected: its event is acknowledged without an identifier, or the identifier,
        its listener or its channel is closed.
        """

        def event(listener: Any) -> None:
            self.expect(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)

        def identifier(listener: Any) -> None:
            self.called(listener).close()

        def listening(listener: Any) -> None:
            listener.close()

        def channel(listener: Any) -> None:
            self.far.close()

        for close in (event, identifier, listening, channel):
            listener = self.listening()
            active = self.calling(listener)
            if close in (listening, channel):
                self.assertTrue(self.waiting(1))
            close(listener)
            self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.CONSUMER_DEFINED)
            active.close()

    def waiting(self, count: int) -> bool:
        """
        Whether so many reports come to the passive side.
        """
        return hub.wait(lambda: len(self.far._reports) == count, HANG_SECONDS)

    def test_withdrawn(self) -> None:
        """
        The active side gives up before it is answered.
        """
        listener = self.listening()
        active = self.calling(listener)
        passive = self.called(listener)
        active.close()
        event = self.event(self.far, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.TIMEOUT)
        event.ack_cm_event()
        self.refused(errno.ECONNRESET, passive.accept)

    def test_withdrawnUnheard(self) -> None:
        """
        The same before the passive program has heard of it.
        """
        listener = self.listening()
        active = self.calling(listener)
        self.waiting(1)
        active.close()
        self.waiting(2)
        passive = self.called(listener)
        self.expect(self.far, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.TIMEOUT)
        self.refused(errno.ECONNRESET, passive.accept)

    def test_backlog(self) -> None:
        """
        Requests beyond the backlog are dropped and come again.
        """
        listener = self.listening(backlog=2)
        actives = [self.calling(listener) for _ in range(3)]
        self.waiting(2)
        self.quiet(self.near)
        self.assertEqual(len(self.far._reports), 2)
        self.assertEqual(listener.device.counters["backlog_full"], 1)
        for _ in range(2):
            self.called(listener).reject()
            self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.CONSUMER_DEFINED)
        with hub:
            listener.device.tick(listener.device.clock() + 10.0)
        passive = self.called(listener)
        self.assertEqual(passive.peer_addr, actives[2].local_addr)

    def test_backlogBound(self) -> None:
        """
        A listener that was given none has L{limits.CM_BACKLOG}.
        """
        with mock.patch.object(limits, "CM_BACKLOG", 1):
            listener = self.listening()
        self.calling(listener)
        self.calling(listener)
        self.waiting(1)
        self.quiet(self.near)
        self.assertEqual(listener.device.counters["backlog_full"], 1)

    def test_tooMuchToSay(self) -> None:
        """
        Private data has bounds, each message its own.
        """
        listener = self.listening()
        active = self.routed(listener.local_addr[1])
        active.create_qp(attributes())
        self.refused(errno.EINVAL, active.connect, param(b"x" * 57))
        active.connect(param(b"x" * 56))
        event = self.event(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
        self.assertEqual(event.private_data, b"x" * 56)
        passive = self.made(event, listen_id=listener)
        passive.create_qp(attributes())
        self.refused(errno.EINVAL, passive.accept, param(b"x" * 197))
        self.refused(errno.EINVAL, passive.reject, b"x" * 149)
        passive.accept(param(b"y" * 196))
        event = self.event(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.assertEqual(event.private_data, b"y" * 196)

    def test_fabricsPrivateData(self) -> None:
        """
        The bounds are the fabric's.
        """
        listener = self.listening()
        active = self.routed(listener.local_addr[1])
        active.create_qp(attributes())
        for device in {active._id.device, listener._id.device}:
            room = PrivateBytes(HEADER_BYTES + 14, 20, 10, 0, 0)
            self.patch(device, "traits", evolve(device.traits, privateBytes=room))
        self.refused(errno.EINVAL, active.connect, param(b"x" * 15))
        active.connect(param(b"x" * 14))
        passive = self.called(listener)
        self.refused(errno.EINVAL, passive.accept, param(b"y" * 21))
        self.refused(errno.EINVAL, passive.reject, b"y" * 11)
        passive.accept(param(b"y" * 20))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)

    def test_tooManyReads(self) -> None:
        """
        More READs than the device can is an error.
        """
        active = self.routed(1)
        active.create_qp(attributes())
        for fields in ({"resources": 129}, {"depth": 129}):
            self.refused(errno.EINVAL, active.connect, ConnParam(**fields))

    def test_otherKind(self) -> None:
        """
        A connection to a port of datagrams, and the other way around.
        """
        listener = self.listening(space=UDP)
        active = self.routed(listener.local_addr[1])
        active.create_qp(attributes())
        active.connect()
        # The port spaces have service ids of their own.
        self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.INVALID_SERVICE_ID)
