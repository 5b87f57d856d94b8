"""
Completion queues of verbs, plain and extended, channels and events.
"""

from __future__ import annotations

import errno
import gc
import select
import socket
import threading
from time import monotonic
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs.pair import End, VerbsTestCase, connected
from twisted_ib import limits
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    CQ,
    CQEX,
    PD,
    QP,
    CompChannel,
    CqInitAttrEx,
    ParentDomain,
    ParentDomainInitAttr,
    PollCqAttr,
    PyverbsUserError,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    WcTmInfo,
    enums,
)
from twisted_ib.verbs.pyverbs.base.wr import storedImmediate


class QueueTests(VerbsTestCase):
    """
    Completion queues.
    """

    def test_sizes(self) -> None:
        """
        A queue has 1 to as many places as the device says; a fraction is cut off, as C does.
        """
        ctx = self.open()
        most = ctx.query_device().max_cqe
        for size in (1, most / 2, most):
            self.assertEqual(CQ(ctx, size, None, None, 0).cqe, int(size))
        for size in (0, -1, most + 1):
            self.refused(errno.EINVAL, CQ, ctx, size)
        self.refused(errno.EINVAL, CQ, ctx, 10, None, None, 1)
        self.refused(errno.EINVAL, CQ, ctx, 10, None, None, -1)
        self.assertRaises(TypeError, CQ, ctx, "10")
        self.patch(limits, "COMPLETION_QUEUES", 0)
        self.refused(errno.ENOMEM, CQ, ctx, 10)
        self.assertRaises(TypeError, CQ, None, 10)

    def test_destroyed(self) -> None:
        """
        Completions of a queue pair go with it, those of others stay: programs free what C{wr_id} points to.
        """
        cq = CQ(self.open(), 8)
        pd = PD(cq.context)
        qps = [
            QP(pd, QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(4, 4, 1, 1)))
            for _ in range(2)
        ]
        for qp in qps:
            qp.modify(QPAttr(enums.IBV_QPS_ERR), enums.IBV_QP_STATE)
        for number in range(4):
            qps[number % 2].post_recv(RecvWR(number))
        self.assertEqual([wc.wr_id for wc in self.wait(cq, 1)], [0])
        qps[0].close()
        self.assertEqual([wc.wr_id for wc in self.wait(cq, 2)], [1, 3])
        self.assertEqual(cq.poll(4), (0, []))

    def test_poll(self) -> None:
        """
        A poll drives both ends, and takes no more than it is asked for.
        """
        a, b = connected(self, sq_sig_all=1)
        for i in range(3):
            b.receive(64 * i, wr_id=i)
            a.qp.post_send(a.send(wr_id=10 + i))
        self.assertEqual([wc.wr_id for wc in self.wait(a.cq, 3)], [10, 11, 12])
        count, found = b.cq.poll(2)
        self.assertEqual((count, [wc.wr_id for wc in found]), (2, [0, 1]))
        self.assertEqual(found[0].opcode, enums.IBV_WC_RECV)
        self.assertEqual(found[0].byte_len, 64)
        self.assertEqual(found[0].qp_num, b.qp.qp_num)
        self.assertEqual(b.cq.poll()[0], 1)
        self.assertEqual(b.cq.poll(0), (0, []))
        self.refused(errno.EINVAL, b.cq.poll, -1)
        self.assertIn("CQEs", str(b.cq))

    def test_resize(self) -> None:
        """
        A queue grows and shrinks, but not below the completions that wait.
        """
        a, b = connected(self, sq_sig_all=1)
        a.cq.resize(3)
        self.assertEqual(a.cq.cqe, 3)
        for i in range(2):
            b.receive(wr_id=i)
            a.qp.post_send(a.send())
        self.wait(b.cq, 2)
        b.cq.poll()
        self.refused(errno.EINVAL, a.cq.resize, 1)
        self.refused(errno.EINVAL, a.cq.resize, limits.COMPLETION_QUEUE_DEPTH + 1)
        self.assertEqual(a.cq.cqe, 3)
        a.cq.resize(2)

    def overflow(self) -> End:
        """
        @return: an end whose completion queue has lost a completion.
        """
        a, b = connected(self, sq_sig_all=1)
        a.cq.resize(1)
        for i in range(2):
            b.receive(wr_id=i)
            a.qp.post_send(a.send())
        self.wait(b.cq, 2)
        for _ in range(10):
            b.cq.poll()
        return a

    def test_overflow(self) -> None:
        """
        A queue that is full loses completions: it raises an event, and its queue pair fails.
        """
        a = self.overflow()
        self.assertTrue(select.select([a.ctx.async_fd], [], [], 0)[0])
        event = a.ctx.get_async_event()
        self.assertEqual(event.event_type, enums.IBV_EVENT_CQ_ERR)
        self.assertIs(event.element, a.cq)
        # That of the queue pair follows.
        event = a.ctx.next_async_event(0)
        assert event is not None
        self.assertIs(event.element, a.qp)
        self.assertIs(a.ctx.next_async_event(0), None)
        self.assertEqual(select.select([a.ctx.async_fd], [], [], 0)[0], [])
        self.assertEqual(a.qp.qp_state, enums.IBV_QPS_ERR)

    def test_forgottenEvents(self) -> None:
        """
        The events of a destroyed object are gone, too.
        """
        a = self.overflow()
        self.assertGreaterEqual(len(a.ctx._events), 1)
        a.cq.close()
        self.assertEqual(len(a.ctx._events), 0)

    def test_reset(self) -> None:
        """
        A queue pair that begins anew takes its old completions from the queue, and no others.
        """
        a, _ = connected(self)
        other = QP(a.pd, QPInitAttr(enums.IBV_QPT_RC, scq=a.cq, rcq=a.cq, cap=QPCap()), QPAttr())
        other.post_recv(RecvWR(7, 1, [a.sge()]))
        a.receive()
        for qp in (other, a.qp):
            qp.modify(QPAttr(enums.IBV_QPS_ERR), enums.IBV_QP_STATE)
        a.qp.modify(QPAttr(enums.IBV_QPS_RESET), enums.IBV_QP_STATE)
        (wc,) = a.cq.poll(10)[1]
        self.assertEqual((wc.wr_id, wc.status), (7, enums.IBV_WC_WR_FLUSH_ERR))


class ChannelTests(VerbsTestCase):
    """
    Completion channels.
    """

    def setUp(self) -> None:
        """
        Two ends; the second has its completions on a channel.
        """
        super().setUp()
        self.near, self.far = End(self, sq_sig_all=1), End(self)
        self.channel = CompChannel(self.far.ctx)
        self.cq = CQ(self.far.ctx, 100, None, self.channel)
        self.far.qp = QP(
            self.far.pd, QPInitAttr(enums.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(20, 20, 4, 4))
        )
        self.near.connect(self.far)

    def send(self, **more: Any) -> None:
        """
        The first end sends.
        """
        self.far.receive()
        self.near.qp.post_send(self.near.send(**more))

    def test_event(self) -> None:
        """
        One event comes for each request for it.
        """
        self.cq.req_notify()
        self.send()
        self.send()
        self.channel.get_cq_event(self.cq)
        self.assertEqual(self.cq.num_events, 1)
        self.assertEqual(len(self.wait(self.cq, 2)), 2)
        self.assertFalse(self.channel._notices.waiting)
        self.cq.ack_events(1)
        self.assertEqual(self.cq.num_events, 0)
        self.assertIs(self.cq.comp_channel, self.channel)

    def test_nextEvent(self) -> None:
        """
        The event of any queue can be fetched, without waiting too; a descriptor is readable meanwhile only.
        """

        def isReadable() -> bool:
            return bool(select.select([self.channel.event_fd], [], [], 0)[0])

        CQ(self.far.ctx, 1, None, self.channel)
        self.assertIs(self.channel.next_event(0), None)
        self.cq.req_notify()
        self.assertFalse(isReadable())
        self.send()
        self.wait(self.cq)
        self.assertTrue(isReadable())
        self.assertIs(self.channel.next_event(0), self.cq)
        self.assertFalse(isReadable())
        self.assertEqual(self.cq.num_events, 1)

    def test_waits(self) -> None:
        """
        A waiting thread is woken by a post of another thread.
        """
        self.cq.req_notify()
        found: list[Any] = []

        def wait() -> None:
            self.channel.get_cq_event(self.cq)
            found.append(self.cq.poll()[0])

        thread = threading.Thread(target=wait)
        thread.start()
        self.send()
        thread.join(HANG_SECONDS)
        self.assertEqual(found, [1])

    def test_solicitedOnly(self) -> None:
        """
        An event for solicited completions comes for these, or for errors.
        """
        self.cq.req_notify(True)
        self.send()
        self.wait(self.cq)
        self.assertFalse(self.channel._notices.waiting)
        self.send(send_flags=enums.IBV_SEND_SOLICITED)
        self.channel.get_cq_event(self.cq)

    def test_moderated(self) -> None:
        """
        One event stands for several completions.
        """
        self.cq.modify(2, 0)
        self.cq.req_notify()
        self.send()
        self.wait(self.cq)
        self.assertFalse(self.channel._notices.waiting)
        self.send()
        self.channel.get_cq_event(self.cq)
        self.refused(errno.EINVAL, self.cq.modify, 1 << 16, 0)
        self.refused(errno.EINVAL, self.cq.modify, 0, 1 << 16)

    def test_wrongQueue(self) -> None:
        """
        An event of another queue is an error.
        """
        other = CQ(self.far.ctx, 1, None, self.channel)
        self.cq.req_notify()
        self.send()
        self.refused(errno.EINVAL, self.channel.get_cq_event, other)

    def test_closedQueue(self) -> None:
        """
        The event of a queue that is gone is gone, and the descriptor is not readable.
        """
        self.cq.req_notify()
        self.send()
        self.wait(self.near.cq)
        self.wait(self.cq)
        self.assertTrue(self.channel._notices.waiting)
        self.cq.close()
        self.assertFalse(self.channel._notices.waiting)
        self.assertEqual(select.select([self.channel.event_fd], [], [], 0)[0], [])

    def test_channelClosesQueues(self) -> None:
        """
        Queues go before their channel, and queue pairs before them.
        """
        self.channel.close()
        self.assertRaises(PyverbsUserError, lambda: self.cq.cqe)
        self.assertRaises(PyverbsUserError, lambda: self.far.qp.qp_num)
        self.assertEqual(len(hub.watchers), 0)

    def test_forgotten(self) -> None:
        """
        A dropped channel is not woken any more by its queues.
        """
        channel = CompChannel(self.far.ctx)
        notices = channel._notices
        self.assertGreater(channel.fd, 0)
        self.assertIn(notices, hub.watchers)
        del channel
        gc.collect()
        self.assertNotIn(notices, hub.watchers)
        notices.add(self.cq._core)
        notices.forget(self.cq._core)

    def test_limit(self) -> None:
        """
        Too many channels are ENOMEM.
        """
        self.patch(limits, "COMPLETION_CHANNELS", 1)
        self.refused(errno.ENOMEM, CompChannel, self.far.ctx)
        self.channel.close()
        CompChannel(self.far.ctx)

    def test_waitEndsWithChannel(self) -> None:
        """
        A thread that waits on a channel gets an error when it is closed.
        """
        found: list[Any] = []

        def wait() -> None:
            try:
                self.channel.get_cq_event(self.cq)
            except PyverbsUserError as error:
                found.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        self.channel.close()
        hub.close(hub.open(self.device))
        thread.join(HANG_SECONDS)
        self.assertEqual(len(found), 1)

    def test_descriptor(self) -> None:
        """
        The descriptor becomes readable when the peer sends, and when an event waits, and not
        otherwise.
        """
        fd = self.channel.fd
        self.assertEqual(self.channel.fd, fd)
        for _ in range(3):
            self.cq.req_notify()
            while self.cq.poll()[0] or self.near.cq.poll()[0]:
                pass
            # What the last messages leave behind, as credits, makes it readable until somebody has looked.
            deadline = monotonic() + HANG_SECONDS
            while (ready := select.select([fd], [], [], 0)[0]) and monotonic() < deadline:
                hub.wait(lambda: False, 0.01)
            self.assertEqual(ready, [])
            self.send()
            self.assertEqual(select.select([fd], [], [], 10)[0], [fd])
            self.channel.get_cq_event(self.cq)
            self.assertEqual(self.wait(self.cq)[0].status, enums.IBV_WC_SUCCESS)
        self.cq.req_notify()
        self.send()
        self.wait(self.near.cq)
        self.wait(self.cq)
        self.assertEqual(select.select([fd], [], [], 0)[0], [fd])

    def test_descriptorInVain(self) -> None:
        """
        Readable as somebody has to drive, the descriptor is that until somebody has: without an event the
        program has nothing to fetch.
        """
        fd = self.channel.fd
        for isEvent in (False, True):
            self.cq.req_notify()
            if isEvent:
                self.send()
                self.wait(self.cq)
            with hub:
                hub._wakeWatchers()
            self.assertEqual(select.select([fd], [], [], 0)[0], [fd])
            # The devices are looked at every so often, and a pair's last messages are on their way.
            deadline = monotonic() + HANG_SECONDS * (not isEvent)
            while (ready := select.select([fd], [], [], 0)[0]) and monotonic() < deadline:
                self.assertEqual(self.cq.poll(), (0, []))
            self.assertEqual(ready, [fd] * isEvent)
        hub._attend()
        self.assertEqual(select.select([fd], [], [], 0)[0], [fd])
        self.channel.get_cq_event(self.cq)


class ExtendedTests(VerbsTestCase):
    """
    Extended completion queues.
    """

    def pair(self) -> tuple[CQEX, End, End]:
        """
        @return: a queue of the second end, and both.
        """
        near, far = End(self, sq_sig_all=1), End(self)
        cq = CQEX(far.ctx, CqInitAttrEx(50, wc_flags=enums.IBV_WC_STANDARD_FLAGS))
        far.qp = QP(far.pd, QPInitAttr(enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(20, 20, 4, 4)))
        near.connect(far)
        return cq, near, far

    def test_poll(self) -> None:
        """
        Completions are gone through one by one, and their fields read.
        """
        cq, near, far = self.pair()
        self.assertEqual(cq.start_poll(PollCqAttr()), errno.ENOENT)
        self.assertRaises(PyverbsUserError, cq.poll_next)
        for i in range(2):
            far.receive(wr_id=5 + i)
            near.qp.post_send(near.send(opcode=enums.IBV_WR_SEND_WITH_IMM, imm_data=0x01020304 + i))
        self.wait(near.cq, 2)
        self.assertEqual(cq.start_poll(None), 0)
        self.assertEqual((cq.wr_id, cq.status), (5, enums.IBV_WC_SUCCESS))
        self.assertEqual(cq.read_opcode(), enums.IBV_WC_RECV)
        self.assertEqual(cq.read_byte_len(), 64)
        self.assertEqual(cq.read_imm_data(), 0x01020304)
        self.assertEqual(cq.read_qp_num(), far.qp.qp_num)
        self.assertEqual(cq.read_wc_flags(), enums.IBV_WC_WITH_IMM)
        for read in (cq.read_vendor_err, cq.read_src_qp, cq.read_slid, cq.read_sl, cq.read_dlid_path_bits):
            self.assertEqual(read(), 0)
        self.assertEqual(cq.poll_next(), 0)
        self.assertEqual(cq.wr_id, 6)
        self.assertEqual(cq.poll_next(), errno.ENOENT)
        cq.end_poll()
        self.assertRaises(PyverbsUserError, cq.read_opcode)
        self.assertRaises(PyverbsUserError, cq.poll_next)
        bad = PollCqAttr()
        bad.comp_mask = 1
        self.assertEqual(cq.start_poll(bad), errno.EINVAL)
        self.assertRaises(TypeError, cq.start_poll, 1)
        self.assertIn("Extended CQ:", str(cq))

    def test_attributes(self) -> None:
        """
        Fields that no device here has are not supported; sizes are as those of a plain queue.
        """
        ctx = self.open()
        flagged = enums.IBV_CQ_INIT_ATTR_MASK_FLAGS
        for attr in (
            CqInitAttrEx(wc_flags=enums.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP),
            CqInitAttrEx(comp_mask=flagged, flags=enums.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN),
            CqInitAttrEx(comp_mask=1 << 5),
        ):
            self.refused(errno.EOPNOTSUPP, CQEX, ctx, attr)
        self.refused(errno.EINVAL, CQEX, ctx, CqInitAttrEx(limits.COMPLETION_QUEUE_DEPTH + 1))
        self.refused(errno.EINVAL, CQEX, ctx, CqInitAttrEx(comp_vector=2))
        self.refused(errno.EINVAL, CQEX, ctx, CqInitAttrEx(comp_mask=enums.IBV_CQ_INIT_ATTR_MASK_PD))
        single = CqInitAttrEx(comp_mask=flagged, flags=enums.IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
        cq = CQEX(ctx, single)
        self.assertEqual(cq.cqe, 100)
        self.refused(errno.EOPNOTSUPP, cq.read_timestamp)
        self.refused(errno.EOPNOTSUPP, cq.read_tm_info)
        self.assertEqual(WcTmInfo().tag, 0)

    def test_parentDomain(self) -> None:
        """
        A queue may be of a parent domain, and then goes before it.
        """
        pd = PD(self.open())
        parent = ParentDomain(pd.ctx, ParentDomainInitAttr(pd))
        attr = CqInitAttrEx(parent_domain=parent, comp_mask=enums.IBV_CQ_INIT_ATTR_MASK_PD)
        cq = CQEX(pd.ctx, attr)
        parent.close()
        self.assertRaises(PyverbsUserError, lambda: cq.cqe)

    def test_channel(self) -> None:
        """
        It tells a channel of completions too.
        """
        ctx = self.open()
        channel = CompChannel(ctx)
        cq = CQEX(ctx, CqInitAttrEx(channel=channel))
        pd = PD(ctx)
        qp = QP(pd, QPInitAttr(enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap()), QPAttr())
        qp.post_recv(RecvWR(3))
        cq.req_notify()
        qp.modify(QPAttr(enums.IBV_QPS_ERR), enums.IBV_QP_STATE)
        channel.get_cq_event(cq)
        self.assertEqual(cq.start_poll(None), 0)
        self.assertEqual((cq.wr_id, cq.status), (3, enums.IBV_WC_WR_FLUSH_ERR))


class LoopbackChannelTests(ChannelTests):
    """
    The same on the device within a process.
    """

    device = "lo0"


class StoredTests(SynchronousTestCase):
    """
    Immediate data.
    """

    def test_bigEnd(self) -> None:
        """
        The peer gets the octets in memory, so C{htonl} of a number is the number there.
        """
        self.assertEqual(storedImmediate(socket.htonl(1234)), 1234)
        self.assertEqual(storedImmediate(storedImmediate(0x01020304)), 0x01020304)
        self.assertEqual(SendWR(opcode=enums.IBV_WR_LOCAL_INV, imm_data=5).imm_data, 5)
