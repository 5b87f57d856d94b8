"""
Queue pairs that programs connect by themselves, over the adapter of a host in memory.
"""

from __future__ import annotations

import errno
import gc
import os
from itertools import count

from tests.hca.fabric.hardware.test_contract import HardwareRow
from tests.hca.fabric.hardware.world import INIT, RESET, RTR, RTS, UC, AdapterQueuePair, Completion
from tests.verbs.pyverbs import pair
from tests.verbs.pyverbs.pair import End, VerbsTestCase, connected
from twisted_ib.hca.base.states import attributeBits
from twisted_ib.hca.device import registry
from twisted_ib.hca.fabric.hardware import hardware
from twisted_ib.hca.fabric.hardware.adapterpath import SLOTS
from twisted_ib.verbs.pyverbs import CQ, DM, QP, AllocDmAttr, CompChannel, QPAttr, QPCap, QPInitAttr, enums

#: The slot of the adapter's table that has the device's address.
SLOT = 5
STATE = int(enums.IBV_QP_STATE)
_SENDING = ("qp_state", "sq_psn", "timeout", "retry_cnt", "rnr_retry", "max_rd_atomic")


class RoCETestCase(HardwareRow, VerbsTestCase):
    """
    Queue pairs of one device.
    """

    device = "hw0"

    def setUp(self) -> None:
        """
        An adapter with a GID of RoCE v2; it knows no memory windows.
        """
        super().setUp()
        self.slot = SLOT
        self.patch(hardware, "indexOfGID", lambda adapter, gid: self.slot)
        self.patch(pair, "ALL_RIGHTS", 15)

    def nothingLeft(self) -> None:
        """
        Nor has the adapter anything.
        """
        super().nothingLeft()
        host = self.host
        self.assertEqual((host.queuePairs, host.regions, host.identifiers, host.handles), ({}, {}, {}, []))

    def adapters(self, *ends: End) -> list[AdapterQueuePair]:
        """
        @return: the adapter's queue pairs.
        """
        return [self.host.queuePairs[end.qp.qp_num] for end in ends]

    def another(self, end: End, kind: int = enums.IBV_QPT_RC) -> QP:
        """
        @return: another queue pair of an end.
        """
        return QP(end.pd, QPInitAttr(kind, None, end.cq, end.cq, None, QPCap()))

    def listening(self, kind: int = enums.IBV_QPT_RC) -> tuple[End, CompChannel]:
        """
        @return: an end whose program waits for solicited events alone, and where it waits.
        """
        end = End(self, kind)
        end.qp.close()
        channel = CompChannel(end.ctx)
        end.cq = CQ(end.ctx, 100, None, channel)
        end.qp = self.another(end, kind)
        end.cq.req_notify(True)
        return end, channel


class OutOfBandTests(RoCETestCase):
    """
    Two queue pairs that their program connects.
    """

    def test_operations(self) -> None:
        """
        The number is the adapter's, and SEND, WRITE, READ and atomics do what they do elsewhere.
        """
        a, b = connected(self)
        remote = {"wr_id": 7, "send_flags": enums.IBV_SEND_SIGNALED}
        b.receive(1000)
        a.mr.write(b"hello", 5)
        a.qp.post_send(a.send(0, 5, opcode=enums.IBV_WR_SEND, **remote))
        (received,) = self.wait(b.cq)
        self.assertEqual((received.byte_len, b.mr.read(5, 1000)), (5, b"hello"))
        self.wait(a.cq)
        for opcode, place in ((enums.IBV_WR_RDMA_WRITE, 0), (enums.IBV_WR_RDMA_READ, 100)):
            request = a.send(place, 5, opcode=opcode, **remote)
            request.set_wr_rdma(b.mr.rkey, b.mr.buf + 2000)
            a.qp.post_send(request)
            (done,) = self.wait(a.cq)
            self.assertEqual(done.status, 0)
        self.assertEqual((b.mr.read(5, 2000), a.mr.read(5, 100)), (b"hello", b"hello"))
        request = a.send(200, 8, opcode=enums.IBV_WR_ATOMIC_FETCH_AND_ADD, **remote)
        request.set_wr_atomic(b.mr.rkey, b.mr.buf + 3000, 5)
        a.qp.post_send(request)
        self.wait(a.cq)
        self.assertEqual(b.mr.read(8, 3000), (5).to_bytes(8, "little"))

    def test_events(self) -> None:
        """
        An adapter does not say whether the sender wants an event: each message makes one, so that no program
        waits for ever.
        """
        for opcode in (enums.IBV_WR_SEND, enums.IBV_WR_RDMA_WRITE_WITH_IMM):
            a, (b, channel) = End(self), self.listening()
            a.connect(b)
            b.receive()
            request = a.send(0, 5, opcode=opcode)
            request.set_wr_rdma(b.mr.rkey, b.mr.buf)
            a.qp.post_send(request)
            self.wait(b.cq)
            self.assertTrue(channel._notices.waiting)

    def test_attributes(self) -> None:
        """
        Each step has the program's attributes, and the peer's GID behind this device's in the adapter's own
        table.
        """
        a, b = connected(self)
        one, two = self.adapters(a, b)
        initial, ready, sending = one.steps
        self.assertEqual(
            [each[2] for each in one.steps],
            [
                {"qp_state": INIT, "pkey_index": 0, "port_num": 1, "qp_access_flags": 15},
                {
                    "qp_state": RTR,
                    "path_mtu": QPAttr().path_mtu,
                    "dest_qp_num": two.qp_num,
                    "rq_psn": 0,
                    "max_dest_rd_atomic": 4,
                    "min_rnr_timer": 1,
                },
                {
                    "qp_state": RTS,
                    "sq_psn": 0,
                    "timeout": 14,
                    "retry_cnt": 7,
                    "rnr_retry": 7,
                    "max_rd_atomic": 4,
                },
            ],
        )
        vector = ready[1]
        self.assertEqual((initial[1], sending[1]), (None, None))
        self.assertEqual(
            (vector.dgid, vector.sgid_index, vector.is_global), (bytes(10) + b"\xff\xff\x7f\0\0\1", SLOT, 1)
        )
        for mask, given, more in ((initial[0], initial[2], ()), (ready[0], ready[2], ("ah_attr",))):
            self.assertEqual(mask, attributeBits((*given, *more)))

    def test_receivesFirst(self) -> None:
        """
        In RTR a queue pair receives already.
        """
        a, b = End(self), End(self)
        b.qp.to_rtr(b.attr(a))
        b.receive(1000)
        a.qp.to_rts(a.attr(b))
        a.mr.write(b"early", 5)
        a.qp.post_send(a.send(0, 5, opcode=enums.IBV_WR_SEND))
        self.wait(b.cq)
        self.assertEqual((b.mr.read(5, 1000), self.adapters(b)[0].state), (b"early", RTR))

    def test_unreliable(self) -> None:
        """
        One of UC is one of the adapter's: it takes steps without what only reliable connections have, sends
        and writes, and what meets no receive is lost, as the sender does not hear.
        """
        a, b = connected(self, enums.IBV_QPT_UC)
        one, two = self.adapters(a, b)
        common = {"path_mtu": QPAttr().path_mtu, "dest_qp_num": two.qp_num, "rq_psn": 0}
        self.assertEqual(
            [each[2] for each in one.steps[1:]],
            [{"qp_state": RTR, **common}, {"qp_state": RTS, "sq_psn": 0}],
        )
        self.assertEqual((one.given.qp_type, two.given.qp_type), (UC, UC))
        written = {"opcode": enums.IBV_WR_RDMA_WRITE_WITH_IMM, "imm_data": 7}
        for number, more in enumerate(({"opcode": enums.IBV_WR_SEND}, written), 1):
            request = a.send(0, 5, send_flags=enums.IBV_SEND_SIGNALED, **more)
            request.set_wr_rdma(b.mr.rkey, b.mr.buf + 2000)
            for text in (b"lost!", b"taken"):
                a.mr.write(text, 5)
                a.qp.post_send(request)
                (done,) = self.wait(a.cq)
                self.assertEqual(done.status, 0)
                if text == b"lost!":
                    self.assertEqual(b.cq.poll(1)[0], 0)
                    self.assertEqual(b.ctx._device.counters["messages_dropped"], number)
                    b.receive(1000)
            self.wait(b.cq)
            self.assertEqual(b.mr.read(5, 1000 * number), b"taken")

    def test_unreliableRights(self) -> None:
        """
        Rights that are taken from a connected queue pair of UC are taken from the adapter's.
        """
        _, b = connected(self, enums.IBV_QPT_UC)
        less = QPAttr(enums.IBV_QPS_RTS)
        less.qp_access_flags = 1
        b.qp.modify(less, STATE | int(enums.IBV_QP_ACCESS_FLAGS))
        (one,) = self.adapters(b)
        self.assertEqual(one.steps[-1][2], {"qp_state": RTS, "qp_access_flags": 1})

    def test_noUnreliable(self) -> None:
        """
        Where rdma_cm alone connects there are none of UC and of UD.
        """
        a = End(self)
        self.slot = -1
        for kind in (enums.IBV_QPT_UC, enums.IBV_QPT_UD):
            error = self.refused(errno.EOPNOTSUPP, End, self, kind)
            self.assertIn("rdma_cm alone connects those of adapter rxe0, and reliable ones alone", str(error))
        self.assertEqual(list(self.host.queuePairs), [a.qp.qp_num])

    def test_rightsChange(self) -> None:
        """
        Rights that are taken from a connected queue pair are taken from the adapter's.
        """
        a, b = connected(self)
        (one,) = self.adapters(b)
        b.qp.modify(QPAttr(enums.IBV_QPS_RTS), STATE)
        self.assertEqual(len(one.steps), 3)
        less = QPAttr(enums.IBV_QPS_RTS)
        less.qp_access_flags = 1
        b.qp.modify(less, STATE | int(enums.IBV_QP_ACCESS_FLAGS))
        self.assertEqual((one.rights, one.steps[-1][2]["qp_access_flags"]), (1, 1))
        request = a.send(0, 5, opcode=enums.IBV_WR_RDMA_WRITE)
        request.set_wr_rdma(b.mr.rkey, b.mr.buf)
        a.qp.post_send(request)
        (done,) = self.wait(a.cq)
        self.assertEqual(done.status, enums.IBV_WC_REM_ACCESS_ERR)

    def test_again(self) -> None:
        """
        A queue pair that goes to RESET is connected anew, with the same number; what the adapter did for the
        former connection is not taken for the latter's.
        """
        a, b = connected(self)
        number = a.qp.qp_num
        self.host.isHeld = True
        a.qp.post_send(a.send(0, 5, opcode=enums.IBV_WR_SEND))
        self.host.contexts[0].queue.push(Completion(1, number, 12))
        for end in (a, b):
            end.qp.modify(QPAttr(enums.IBV_QPS_RESET), STATE)
        self.assertEqual([each.state for each in self.adapters(a, b)], [RESET, RESET])
        self.host.resume()
        a.connect(b)
        b.receive(1000)
        a.mr.write(b"again", 5)
        a.qp.post_send(a.send(0, 5, opcode=enums.IBV_WR_SEND, send_flags=enums.IBV_SEND_SIGNALED))
        (done,) = self.wait(a.cq)
        self.assertEqual((done.status, a.qp.qp_num), (0, number))
        self.wait(b.cq)
        self.assertEqual(b.mr.read(5, 1000), b"again")

    def test_others(self) -> None:
        """
        What the adapter does for others while one is connected anew is kept, and holds up nobody.
        """
        a, _ = connected(self)
        fabric = a.ctx._device.fabric
        self.patch(self.host.contexts[0].queue, "poll", lambda most: most * [Completion(1, 1)])
        fabric.purge(a.qp.qp_num)
        # The least number of polls that empty the queue.
        depth = hardware.QUEUE_DEPTH
        self.assertIn(len(fabric._completions), range(depth, depth + hardware.COMPLETIONS))
        fabric._completions.clear()

    def test_error(self) -> None:
        """
        One that its program takes to ERR sends and receives no more, and what is posted is flushed.
        """
        a, b = connected(self)
        b.receive()
        b.qp.modify(QPAttr(enums.IBV_QPS_ERR), STATE)
        (flushed,) = self.wait(b.cq)
        self.assertEqual((flushed.status, self.adapters(b)[0].state), (enums.IBV_WC_WR_FLUSH_ERR, RESET))
        b.qp.close()
        self.assertEqual(list(self.host.queuePairs), [a.qp.qp_num])

    def test_refused(self) -> None:
        """
        What the adapter does not take is an error of the step, which has not happened.
        """
        a, b = End(self), End(self)
        ready = a.attr(b)
        a.qp.to_init(ready)
        self.host.isFull = True
        error = self.refused(errno.EINVAL, a.qp.to_rtr, ready)
        self.assertIn("the adapter's queue pair cannot be connected", str(error))
        self.assertEqual(a.qp.qp_state, enums.IBV_QPS_INIT)
        self.assertEqual((len(self.host.regions), a.ctx._device.fabric.streams), (2, {}))
        self.refused(errno.ENOMEM, self.another, a)
        self.host.isFull = False
        a.qp.to_rtr(ready)
        b.qp.to_rts(b.attr(a))
        self.host.isFull = True
        error = self.refused(errno.EINVAL, a.qp.to_rts, ready)
        self.assertIn("the adapter does not take the attributes", str(error))
        self.assertEqual((a.qp.qp_state, self.adapters(a)[0].state), (enums.IBV_QPS_RTR, RTR))
        self.host.isFull = False
        a.qp.to_rts(ready)
        b.receive(1000)
        a.mr.write(b"after", 5)
        a.qp.post_send(a.send(0, 5, opcode=enums.IBV_WR_SEND))
        self.wait(b.cq)
        self.assertEqual(b.mr.read(5, 1000), b"after")

    def test_refusedConnected(self) -> None:
        """
        Rights and a timer that the adapter refuses to change stay what they were, and so does the connection.
        """
        _, b = connected(self)
        (one,) = self.adapters(b)
        less = QPAttr(enums.IBV_QPS_RTS)
        less.qp_access_flags, less.min_rnr_timer = 1, 5
        mask = STATE | int(enums.IBV_QP_ACCESS_FLAGS | enums.IBV_QP_MIN_RNR_TIMER)
        before, inner = b.qp.query(mask)[0], b.ctx._device.queuePairs[b.qp.qp_num]
        timer = inner.minRNRTimer
        self.host.isFull = True
        self.refused(errno.EINVAL, b.qp.modify, less, mask)
        self.host.isFull = False
        after = b.qp.query(mask)[0]
        for name in ("qp_state", "qp_access_flags", "min_rnr_timer"):
            self.assertEqual(getattr(after, name), getattr(before, name))
        self.assertEqual((inner.minRNRTimer, one.rights), (timer, 15))
        b.qp.modify(less, mask)
        self.assertEqual((inner.minRNRTimer, one.rights), (5, 1))

    def test_lessFromTheStart(self) -> None:
        """
        Rights that are taken with the step to RTS are taken from the adapter's queue pair in the same step.
        """
        a, b = End(self), End(self)
        ready = a.attr(b)
        a.qp.to_rtr(ready)
        (one,) = self.adapters(a)
        ready.qp_state, ready.qp_access_flags = enums.IBV_QPS_RTS, 1
        a.qp.modify(ready, attributeBits((*_SENDING, "qp_access_flags")))
        self.assertEqual((one.state, one.rights, len(one.steps)), (RTS, 1, 3))

    def test_notRoCE(self) -> None:
        """
        An adapter without a GID of RoCE v2 connects by rdma_cm alone, and says so.
        """
        self.slot = -1
        a, b = End(self), End(self)
        error = self.refused(errno.ENETUNREACH, a.qp.to_rtr, a.attr(b))
        self.assertIn("adapter rxe0 connects queue pairs by rdma_cm alone", str(error))

    def test_vanished(self) -> None:
        """
        An adapter that has disappeared is the reason why a queue pair is not connected.
        """
        a, b = End(self), End(self)
        ready = a.attr(b)
        self.host.vanish()
        a.cq.poll(1)
        error = self.refused(errno.ECONNRESET, a.qp.to_rtr, ready)
        self.assertIn("adapter rxe0 is gone", str(error))

    def test_forked(self) -> None:
        """
        A forked child that closes and gives up all it has of the adapter, connected or not, leaves everything
        to its parent.
        """
        a, b = connected(self)
        spare = self.another(a)
        host, fabric = self.host, a.ctx._device.fabric
        ends = *fabric.streams.values(), *fabric._registered
        child = os.fork()
        if not child:
            status = 99
            try:
                before = dict(host.queuePairs), dict(host.regions)
                for each in (spare, a.qp, a.mr, *ends):
                    each.close()
                if before == (host.queuePairs, host.regions):
                    del a, b, spare, before, each, ends, fabric
                    # Those of the host itself, and the table of devices.
                    host.queuePairs, host.regions, host.contexts = {}, {}, []
                    registry.removeDevice("hw0")
                    gc.collect()
                    status = sum(host.collected.values())
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        spare.close()

    def test_numbers(self) -> None:
        """
        A number that the adapter uses again while the device has another queue pair of it is not taken, as
        often as it is bounded; no queue pair of the adapter is left of that.
        """
        a = End(self)
        device, host = a.ctx._device, self.host
        # The lowest that is free.
        host.numbers = (next(n for n in count(1) if 0x100 + n not in host.queuePairs) for _ in count())
        first = next(host.numbers) + 0x100
        taken = [each for each in range(first, first + hardware.CLASHES + 1) if each != a.qp.qp_num]
        device.queuePairs.update(dict.fromkeys(taken[:-1], device.queuePairs[a.qp.qp_num]))
        last = self.another(a)
        self.assertEqual(last.qp_num, taken[-1])
        self.assertEqual(list(host.queuePairs), [a.qp.qp_num, last.qp_num])
        last.close()
        device.queuePairs[taken[-1]] = device.queuePairs[a.qp.qp_num]
        error = self.refused(errno.ENOMEM, self.another, a)
        self.assertIn("adapter rxe0 makes queue pairs of numbers that are taken", str(error))
        self.assertEqual(list(host.queuePairs), [a.qp.qp_num])
        for number in taken:
            del device.queuePairs[number]

    def test_ofRDMACM(self) -> None:
        """
        Where rdma_cm alone connects queue pairs, an RNIC among them, the adapter makes none before.
        """
        self.slot = -1
        a = End(self)
        self.slot = SLOT
        a.ctx._device.fabric.isRNIC = True
        b = End(self)
        self.assertEqual(self.host.queuePairs, {})
        self.refused(errno.ENETUNREACH, a.qp.to_rtr, a.attr(b))

    def test_deviceMemory(self) -> None:
        """
        There is no device memory, as the adapter would register none of it.
        """
        ctx = self.open()
        self.assertEqual(ctx.query_device_ex().max_dm_size, 0)
        error = self.refused(errno.EOPNOTSUPP, DM, ctx, AllocDmAttr(4096))
        self.assertIn("Max available size 0", str(error))

    def test_slots(self) -> None:
        """
        The adapter has receives when it can receive, and they last for more messages than it has slots.
        """
        a, b = connected(self)
        self.assertEqual([len(each.receives) for each in self.adapters(a, b)], [SLOTS, SLOTS])
        for number in range(3 * SLOTS):
            b.receive(wr_id=number)
            a.qp.post_send(a.send(0, 5, opcode=enums.IBV_WR_SEND))
            (received,) = self.wait(b.cq)
            self.assertEqual(received.wr_id, number)
