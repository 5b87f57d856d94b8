"""
Tests of L{twisted_ib.verbs.pyverbs.cm.cmid}: queue pairs of the program's own, ends, commands at the wrong
time.
"""

from __future__ import annotations

import errno
import gc
from typing import Any
from unittest import mock

from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs.cm.case import UDP, CMTestCase, Kind, attributes
from twisted_ib.errors import PathLostError
from twisted_ib.hca.connection import RejectReason
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    CMID,
    CQ,
    ECE,
    PD,
    QP,
    SGE,
    AddrInfo,
    CMEvent,
    ConnParam,
    Context,
    PyverbsUserError,
    QPAttr,
    QPCap,
    QPInitAttr,
    SendWR,
    enums,
)
from twisted_ib.verbs.pyverbs.cm.call import STEPS, Stage
from twisted_ib.verbs.pyverbs.cm.event import CMEventQueue
from twisted_ib.verbs.pyverbs.cm.identifier import Identifier

STATE = int(enums.IBV_QP_STATE)


class ExternalTests(CMTestCase):
    """
    Queue pairs that are the program's own.
    """

    def external(self, made: Any) -> tuple[QP, CQ]:
        """
        A queue pair in INIT.
        """
        cq = CQ(made.context, 10)
        return QP(made.pd, QPInitAttr(enums.IBV_QPT_RC, None, cq, cq, None, QPCap(), 1), QPAttr()), cq

    def ready(self, made: Any, qp: QP) -> None:
        """
        Bring it to RTS by the identifier's attributes.
        """
        for state in (enums.IBV_QPS_INIT, enums.IBV_QPS_RTR, enums.IBV_QPS_RTS):
            qp.modify(*made.init_qp_attr(state))

    def test_both(self) -> None:
        """
        Both sides have queue pairs of their own; the active one calls C{establish}.
        """
        listener = self.listening()
        active = self.routed(listener.local_addr[1])
        mine, mineCQ = self.external(active)
        self.refused(errno.EINVAL, active.init_qp_attr, enums.IBV_QPS_RTR)
        self.refused(errno.EINVAL, active.establish)
        active.connect(ConnParam(qp_num=mine.qp_num))
        passive = self.called(listener, withQP=False)
        theirs, theirsCQ = self.external(passive)
        self.ready(passive, theirs)
        passive.accept(ConnParam(qp_num=theirs.qp_num))
        event = self.event(self.near, Kind.RDMA_CM_EVENT_CONNECT_RESPONSE)
        assert event.conn_param is not None
        self.assertEqual(event.conn_param.qpn, theirs.qp_num)
        event.ack_cm_event()
        self.quiet(self.far)
        self.ready(active, mine)
        active.establish()
        self.expect(self.far, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.assertEqual((active.qpn, passive.qpn), (None, None))
        self.refused(errno.EINVAL, active.query_qp, 0)
        self.refused(errno.EINVAL, active.post_recv, active.reg_msgs(1))
        for qp in (mine, theirs):
            self.assertEqual(qp.query(0)[0].qp_state, enums.IBV_QPS_RTS)
        self.assertEqual(mine.query(0)[0].dest_qp_num, theirs.qp_num)
        active.disconnect()
        self.expect(self.near, Kind.RDMA_CM_EVENT_DISCONNECTED)
        self.expect(self.far, Kind.RDMA_CM_EVENT_DISCONNECTED)
        for thing in (mine, theirs, mineCQ, theirsCQ):
            thing.close()

    def test_one(self) -> None:
        """
        One side only has its own queue pair: messages arrive all the same.
        """
        for activeIsExternal in (True, False):
            listener = self.listening()
            active = self.routed(listener.local_addr[1])
            if activeIsExternal:
                qp, cq = self.external(active)
                active.connect(ConnParam(qp_num=qp.qp_num))
                other = self.called(listener)
                other.accept()
                self.expect(self.near, Kind.RDMA_CM_EVENT_CONNECT_RESPONSE)
                self.ready(active, qp)
                active.establish()
            else:
                active.create_qp(attributes())
                active.connect()
                passive = self.called(listener, withQP=False)
                qp, cq = self.external(passive)
                self.ready(passive, qp)
                passive.accept(ConnParam(qp_num=qp.qp_num))
                self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
                other = active
            self.expect(self.far, Kind.RDMA_CM_EVENT_ESTABLISHED)
            region = other.reg_msgs(8)
            other.post_recv(region)
            source = other.reg_msgs(8)
            source.write(b"external", 8)
            request = SendWR(num_sge=1, sg=[SGE(source.buf, 8, source.lkey)])
            qp.post_send(request)
            self.assertEqual(other.get_recv_comp().byte_len, 8)
            self.assertEqual(region.read(8, 0), b"external")
            self.assertEqual(self.wait(cq)[0].status, enums.IBV_WC_SUCCESS)
            qp.close()
            cq.close()

    def test_establishOwn(self) -> None:
        """
        An identifier with a queue pair of its own needs no word.
        """
        active, _ = self.pair()
        self.refused(errno.EINVAL, active.establish)

    def test_needsParameters(self) -> None:
        """
        Without a queue pair there must be parameters, and a number that fits.
        """
        active = self.routed(1)
        self.refused(errno.EINVAL, active.connect)
        self.refused(errno.EINVAL, active.connect, ConnParam(qp_num=1 << 24))
        listener = self.listening()
        self.calling(listener)
        passive = self.called(listener, withQP=False)
        self.refused(errno.EINVAL, passive.accept)
        passive.reject()

    def test_noSuchState(self) -> None:
        """
        Attributes lead to INIT, RTR and RTS only.
        """
        active, _ = self.pair()
        for state in (enums.IBV_QPS_RESET, enums.IBV_QPS_SQD, enums.IBV_QPS_SQE, enums.IBV_QPS_ERR, 99):
            self.refused(errno.EINVAL, active.init_qp_attr, state)


class EndTests(CMTestCase):
    """
    How connections end.
    """

    def test_disconnect(self) -> None:
        """
        Either side ends it: both hear of it once, what is posted is flushed, and the ids are free
        some time later.
        """
        for first in (0, 1):
            ends = self.pair()
            channels = (self.near, self.far)
            for end in ends:
                end.post_recv(end.reg_msgs(8))
            ends[first].disconnect()
            self.assertEqual(ends[first].get_recv_comp().status, enums.IBV_WC_WR_FLUSH_ERR)
            for channel in channels:
                self.expect(channel, Kind.RDMA_CM_EVENT_DISCONNECTED)
            # The other side's queue pair is the program's to end.
            self.assertEqual(ends[1 - first].query_qp(0)[0].qp_state, enums.IBV_QPS_RTS)
            ends[1 - first].disconnect()
            self.assertEqual(ends[1 - first].get_recv_comp().status, enums.IBV_WC_WR_FLUSH_ERR)
            for channel in channels:
                self.expect(channel, Kind.RDMA_CM_EVENT_TIMEWAIT_EXIT)
            ends[0].disconnect()
            self.quiet(*channels)

    def test_close(self) -> None:
        """
        Closing an end ends the connection.
        """
        for first in (0, 1):
            ends = self.pair()
            ends[first].close()
            self.expect((self.far, self.near)[first], Kind.RDMA_CM_EVENT_DISCONNECTED)
            self.expect((self.far, self.near)[first], Kind.RDMA_CM_EVENT_TIMEWAIT_EXIT)
            ends[1 - first].close()
            self.quiet(self.near, self.far)

    def test_pathLost(self) -> None:
        """
        The path goes, as with a peer's process: both events come all the same, also if the connection is
        being ended.  tgtd releases a connection with the second.
        """
        device = self.context._device
        for isEnding in (False, True):
            ends = self.pair()
            with hub:
                if isEnding:
                    ends[0].disconnect()
                for path in device.fabric.paths():
                    device.pathLost(path, PathLostError("the peer's process ended"))
            for kind in Kind.RDMA_CM_EVENT_DISCONNECTED, Kind.RDMA_CM_EVENT_TIMEWAIT_EXIT:
                self.expect(self.near, kind)
                self.expect(self.far, kind)
            self.quiet(self.near, self.far)

    def test_crossing(self) -> None:
        """
        Both end it at a time.
        """
        active, passive = self.pair()
        active.disconnect()
        passive.disconnect()
        for channel in (self.near, self.far):
            self.expect(channel, Kind.RDMA_CM_EVENT_DISCONNECTED)

    def test_unanswered(self) -> None:
        """
        A request that is not answered yet can be ended as well.
        """
        listener = self.listening()
        active = self.calling(listener)
        # Before the way to the peer is found,
        active.disconnect()
        self.expect(self.near, Kind.RDMA_CM_EVENT_DISCONNECTED)
        # and when the peer has been asked.
        active = self.calling(listener)
        self.assertTrue(hub.wait(lambda: bool(len(self.far._reports)), HANG_SECONDS))
        active.disconnect()
        self.expect(self.near, Kind.RDMA_CM_EVENT_DISCONNECTED)
        self.called(listener)
        self.expect(self.far, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.TIMEOUT)
        self.refused(errno.EINVAL, self.routed(1).disconnect)

    def test_regionsGo(self) -> None:
        """
        Memory that an identifier has registered is closed with it.
        """
        active, _ = self.pair()
        region = active.reg_msgs(8)
        qp, cq = active.qp, active.send_cq
        active.close()
        active.close()
        for thing in (region, qp, cq):
            self.assertRaises(PyverbsUserError, thing._check)
        self.assertRaises(PyverbsUserError, active.post_recv, region)

    def test_nothingLeft(self) -> None:
        """
        Nothing is in use when everything is closed, or just forgotten.
        """
        device = self.context._device
        before = device.inUse()
        ends: Any = self.pair()
        for end in ends:
            end.reg_msgs(8)
        listener = self.listening()
        self.assertNotEqual(device.inUse(), before)
        for made in (*ends, listener):
            made.close()
        self._closeCleanups()
        gc.collect()
        self.quiet(self.near, self.far)
        self.assertEqual(device.inUse(), before)
        self.assertEqual(len(device.cm), 0)

    def _closeCleanups(self) -> None:
        """
        Do the cleanups that close identifiers now.
        """
        for function, arguments, _ in list(self._cleanups):
            if function == self.closed:
                self.closed(*arguments)

    def test_forgotten(self) -> None:
        """
        An identifier that is garbage collected is closed.
        """
        device = self.context._device
        before = device.inUse()
        listener = CMID(self.far)
        listener.bind_addr(AddrInfo(self.host, src_service="0", port_space=self.space, flags=1))
        listener.listen()
        port = listener.local_addr[1]
        active = CMID(self.near)
        active.resolve_addr(AddrInfo(dst=self.host, dst_service=str(port)))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
        active.resolve_route()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ROUTE_RESOLVED)
        active.create_qp(attributes())
        active.connect()
        event = self.event(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
        del listener, active, event
        gc.collect()
        self.context.query_gid(1, 0)
        self.assertEqual(device.inUse(), before)
        self.assertEqual(len(device.cm), 0)

    def test_searchFails(self) -> None:
        """
        An error of the kernel in the search for a path is reported as any other.
        """
        for space in (self.space, UDP):
            active = self.routed(self.listening(space=space).local_addr[1], space)
            active.create_qp(attributes(space))
            full = OSError(errno.EMFILE, "too many")
            with mock.patch.object(active._id.device, "connect", side_effect=full):
                active.connect()
            self.expect(self.near, Kind.RDMA_CM_EVENT_UNREACHABLE, -errno.EMFILE)

    def test_deviceGone(self) -> None:
        """
        The device was closed under it all.
        """
        active, passive = self.pair()
        listener = self.listening()
        device = self.context._device
        device.close()
        for made in (active, passive, listener):
            self.refused(errno.ENODEV, made.disconnect)
            made.close()


class OrderTests(CMTestCase):
    """
    Commands at the wrong time, and parameters that cannot be.
    """

    def test_everyStage(self) -> None:
        """
        Each command at each stage: it goes on, or it is EINVAL and nothing has changed.
        """

        expected = {
            "bind": {Stage.IDLE: Stage.BOUND},
            "resolve address": {Stage.BOUND: Stage.RESOLVING},
            "resolve route": {Stage.RESOLVED: Stage.ROUTED},
            "connect": {Stage.ROUTED: Stage.REQ_SENT},
            "listen": {Stage.BOUND: Stage.LISTENING},
            "accept": {Stage.REQ_RECEIVED: Stage.UP},
            "reject": {Stage.REQ_RECEIVED: Stage.OVER},
            "establish": {Stage.REP_RECEIVED: Stage.UP},
        }
        self.assertEqual(set(STEPS), set(expected))
        for command, steps in expected.items():
            for stage in Stage:
                identifier = Identifier(CMEventQueue(), False, self.space, enums.IBV_QPT_RC)
                identifier.stage = stage
                if stage in steps:
                    identifier.step(command)
                else:
                    self.refused(errno.EINVAL, identifier.step, command)
                self.assertIs(identifier.stage, steps.get(stage, stage))

    def test_commands(self) -> None:
        """
        Verbs at the wrong time.
        """
        fresh = self.made(self.near)
        here = AddrInfo(src=self.host, src_service="0", flags=1)
        there = AddrInfo(dst=self.host, dst_service="1")
        for call in (fresh.connect, fresh.accept, fresh.reject, fresh.establish, fresh.disconnect):
            self.refused(errno.EINVAL, call, *([ConnParam()] if call == fresh.connect else []))
        self.refused(errno.EINVAL, fresh.resolve_route)
        self.refused(errno.EINVAL, fresh.resolve_addr, here)
        self.refused(errno.EINVAL, fresh.bind_addr, there)
        self.refused(errno.EINVAL, fresh.get_request)
        self.refused(errno.EINVAL, fresh.query_qp, 0)
        bound = self.made(self.near)
        bound.bind_addr(here)
        self.refused(errno.EINVAL, bound.bind_addr, here)
        self.refused(errno.EINVAL, bound.resolve_addr, AddrInfo(dst="::1", dst_service="1"))
        listener = self.listening()
        self.refused(errno.EINVAL, listener.listen)
        self.refused(errno.EINVAL, listener.resolve_addr, there)
        self.quiet(self.near, self.far)

    def test_addresses(self) -> None:
        """
        Addresses that cannot be had.
        """
        made = self.made(self.near)
        other = AddrInfo(src="192.0.2.1", src_service="0", flags=1)
        self.refused(errno.EADDRNOTAVAIL, made.bind_addr, other)
        source = AddrInfo(src="192.0.2.1", dst=self.host, dst_service="1")
        self.refused(errno.EADDRNOTAVAIL, made.resolve_addr, source)
        listener = self.listening()
        second = self.made(self.far)
        port = str(listener.local_addr[1])
        second.bind_addr(AddrInfo(src=self.host, src_service=port, flags=1))
        self.refused(errno.EADDRINUSE, second.listen)
        listener.close()
        second.listen()

    def test_anywhere(self) -> None:
        """
        A listener on the wildcard address is found at every address, of IPv4 and IPv6.
        """
        for host, asked in (("0.0.0.0", ["127.0.0.1", "127.1.2.3"]), ("::", ["127.0.0.1", "::1"])):
            listener = self.listening(host=host)
            for where in asked:
                self.host = where
                active = self.calling(listener)
                passive = self.called(listener)
                self.assertEqual(passive.local_addr[0], where)
                passive.reject()
                self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.CONSUMER_DEFINED)
                active.close()
        unbound = self.made(self.far)
        unbound.listen()
        self.assertEqual(unbound.local_addr[0], "0.0.0.0")

    def test_toAnywhere(self) -> None:
        """
        As with TCP, no address in particular is this host.
        """
        listener = self.listening()
        active = self.routed(listener.local_addr[1], host="0.0.0.0")
        self.assertEqual(active.peer_addr[0], "127.0.0.1")

    def test_boundSource(self) -> None:
        """
        The source that was bound is the one that the peer sees.
        """
        listener = self.listening(host="0.0.0.0")
        active = self.made(self.near)
        active.bind_addr(AddrInfo(src="127.0.0.9", src_service="5555", flags=1))
        active.resolve_addr(AddrInfo(dst=self.host, dst_service=str(listener.local_addr[1])))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
        active.resolve_route()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ROUTE_RESOLVED)
        active.create_qp(attributes())
        active.connect()
        self.assertEqual(self.called(listener).peer_addr, ("127.0.0.9", 5555))

    def test_queuePairs(self) -> None:
        """
        A queue pair of another type, or a second one.
        """
        active = self.routed(1)
        self.refused(errno.EINVAL, active.create_qp, attributes(UDP))
        self.assertRaises(TypeError, active.create_qp, None)
        active.create_qp(attributes())
        self.refused(errno.EINVAL, active.create_qp, attributes())
        wide = self.routed(1)
        device = wide.device
        before = device.inUse()
        huge = QPInitAttr(qp_type=enums.IBV_QPT_RC, cap=QPCap(max_send_wr=1 << 20))
        self.refused(errno.EINVAL, wide.create_qp, huge)
        self.assertEqual(device.inUse(), before)

    def test_options(self) -> None:
        """
        The timeout of acknowledgements, and nothing else.
        """
        active, passive = self.pair()
        level, name = enums.RDMA_OPTION_ID, enums.RDMA_OPTION_ID_ACK_TIMEOUT
        self.assertRaises(PyverbsUserError, active.set_option, level, enums.RDMA_OPTION_ID_TOS, 1, 1)
        self.refused(errno.ENOSYS, active.set_option, enums.RDMA_OPTION_IB, name, 1, 1)
        for value, size in ((32, 1), (-1, 1), (1, 2)):
            self.refused(errno.EINVAL, active.set_option, level, name, value, size)
        self.refused(errno.EINVAL, self.made(self.near, port_space=UDP).set_option, level, name, 1, 1)
        listener = self.listening()
        active = self.routed(listener.local_addr[1])
        active.create_qp(attributes())
        active.set_option(level, name, 21, 1)
        active.connect()
        passive = self.called(listener)
        passive.set_option(level, name, 5, 1)
        passive.accept()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.assertEqual((active.query_qp(0)[0].timeout, passive.query_qp(0)[0].timeout), (21, 5))

    def test_timeoutOfPath(self) -> None:
        """
        A timeout that is set before the route is what the REQ says, too.
        """
        listener = self.listening()
        active = self.made(self.near)
        active.set_option(enums.RDMA_OPTION_ID, enums.RDMA_OPTION_ID_ACK_TIMEOUT, 20, 1)
        active.resolve_addr(AddrInfo(dst=self.host, dst_service=str(listener.local_addr[1])))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
        active.resolve_route()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ROUTE_RESOLVED)
        active.create_qp(attributes())
        active.connect()
        passive = self.called(listener)
        passive.accept()
        self.assertEqual(passive.query_qp(0)[0].timeout, 20)

    def test_beyondStandard(self) -> None:
        """
        There are no enhanced connections.
        """
        made = self.made(self.near)
        self.refused(errno.EOPNOTSUPP, made.set_local_ece, ECE())
        self.refused(errno.EOPNOTSUPP, made.get_remote_ece)

    def test_creators(self) -> None:
        """
        The arguments that an identifier can be made of.
        """
        self.refused(errno.EINVAL, CMID, 5)
        self.refused(errno.EPROTONOSUPPORT, CMID, self.near, port_space=7)
        empty = CMID()
        self.assertRaises(PyverbsUserError, empty.connect)
        empty.close()
        listener = self.listening()
        self.calling(listener)
        event = self.event(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
        self.assertRaises(PyverbsUserError, CMID, event)
        self.made(event, listen_id=listener)
        self.refused(errno.EINVAL, CMID, event, listen_id=listener)
        event.ack_cm_event()
        self.refused(errno.EINVAL, CMID, event, listen_id=listener)

    def test_values(self) -> None:
        """
        Values of other classes are TypeErrors.
        """
        active, _ = self.pair()
        for call in (active.bind_addr, active.resolve_addr, active.connect, active.accept, active.post_recv):
            self.assertRaises(TypeError, call, "text")
        self.assertRaises(TypeError, active.leave_multicast, "text")
        self.assertRaises(TypeError, CMEvent, "text")

    def test_ownDomain(self) -> None:
        """
        An identifier may be given a domain of the program's, whose device it has then.
        """
        context = Context(name="lo0")
        self.addCleanup(context.close)
        pd = PD(context)
        info = AddrInfo(src=self.host, src_service="0", flags=1)
        made = CMID(info, attributes(), pd)
        self.assertEqual((made.dev_name, made.pd, made.context), ("lo0", pd, context))
        made.listen()
        made.close()
        pd.close()
        self.refused(errno.EADDRNOTAVAIL, CMID, AddrInfo(src="192.0.2.1", src_service="0", flags=1))
