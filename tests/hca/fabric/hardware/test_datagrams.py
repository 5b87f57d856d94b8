"""
Datagrams over the adapter of a host in memory.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import struct
from typing import Any

from tests.hca.fabric.hardware.test_outofband import SLOT, STATE, RoCETestCase
from tests.hca.fabric.hardware.world import (
    ANYTHING,
    ERR,
    INIT,
    RESET,
    RTR,
    RTS,
    UD,
    Completion,
)
from tests.verbs.pyverbs.pair import QKEY, End
from twisted_ib.hca.base.states import attributeBits
from twisted_ib.hca.device import registry
from twisted_ib.hca.fabric.hardware import datagrams
from twisted_ib.hca.fabric.hardware.datagrams import DATAGRAM_SENDS, DATAGRAM_SLOTS
from twisted_ib.verbs.pyverbs import AH, WC, QPAttr, enums

#: Of the GRH.
HEAD = 40
#: What an adapter says of a request that it cannot send (enum ibv_wc_status).
_LOCAL = 2


class DatagramTestCase(RoCETestCase):
    """
    Queue pairs of UD.
    """

    def setUp(self) -> None:
        """
        Two that are ready.
        """
        super().setUp()
        self.a, self.b = End(self, enums.IBV_QPT_UD), End(self, enums.IBV_QPT_UD)
        self.device_ = self.a.ctx._device
        self.to = self.a.handle(self.b)
        self.addCleanup(self.leave)

    def leave(self) -> None:
        """
        Close what domains wait for.
        """
        self.host.isHeld = self.host.isFull = False
        self.to.close()

    def post(self, text: bytes = b"hello", key: int = QKEY, to: Any = None, **more: Any) -> None:
        """
        Post a datagram of the one to the other.
        """
        a = self.a
        a.mr.write(text, len(text))
        more.setdefault("opcode", enums.IBV_WR_SEND)
        request = a.send(0, len(text), send_flags=enums.IBV_SEND_SIGNALED, **more)
        request.set_wr_ud(to or self.to, self.b.qp.qp_num, key)
        a.qp.post_send(request)
        # The kernel may have found the address.
        self.device_.fabric.progress()

    def sent(self, *arguments: Any, **more: Any) -> WC:
        """
        @return: the completion of a datagram that is posted.
        """
        self.post(*arguments, **more)
        (done,) = self.wait(self.a.cq)
        return done

    def turn(self) -> None:
        """
        Let the adapter do what it can.
        """
        for end in (self.a, self.b):
            self.assertEqual(end.cq.poll(1)[0], 0)

    def heard(self) -> bytes:
        """
        @return: the payload of the next datagram.
        """
        (received,) = self.wait(self.b.cq)
        self.assertEqual(received.status, 0)
        return bytes(self.b.mr.read(received.byte_len - HEAD, HEAD))


class DatagramTests(DatagramTestCase):
    """
    Steps, operations, bounds and ends.
    """

    def test_exchange(self) -> None:
        """
        A datagram with immediate data arrives behind a GRH, whatever an adapter has before its IPv4 header;
        and so does an answer to the sender that its completion names.
        """
        a, b = self.a, self.b
        b.receive(100, 200)
        self.assertEqual(self.sent(opcode=enums.IBV_WR_SEND_WITH_IMM, imm_data=77).status, 0)
        (received,) = self.wait(b.cq)
        self.assertEqual(
            (received.byte_len, received.src_qp, received.imm_data, received.wc_flags),
            (HEAD + 5, a.qp.qp_num, 77, enums.IBV_WC_GRH | enums.IBV_WC_WITH_IMM),
        )
        head = b.mr.read(HEAD, 100)
        self.assertEqual((head[:20], head[32:40]), (bytes(20), b"\x7f\0\0\1" * 2))
        self.assertNotEqual(head[:20], ANYTHING)
        self.assertEqual(b.mr.read(5, 100 + HEAD), b"hello")
        a.receive(0, 100)
        back = b.handle(a)
        request = b.send(100 + HEAD, 5, opcode=enums.IBV_WR_SEND)
        request.set_wr_ud(back, received.src_qp, QKEY)
        b.qp.post_send(request)
        (answer,) = self.wait(a.cq)
        self.assertEqual((answer.src_qp, a.mr.read(5, HEAD)), (b.qp.qp_num, b"hello"))
        back.close()

    def arrived(self, header: bytes) -> tuple[str, bytes]:
        """
        Let the adapter have received a datagram behind a header.

        @return: address of the sender, and the header that is handed on.
        """
        (two,), found = self.adapters(self.b), []
        receive = two.receives.popleft()
        ctypes.memmove(receive.sg_list[0].addr, header, HEAD)
        self.patch(
            self.device_.paths,
            "datagramReceived",
            lambda way, opcode, number, record, *others: found.append((way.peer.address, record[:HEAD])),
        )
        self.host.contexts[0].queue.push(Completion(receive.wr_id, two.qp_num, byte_len=HEAD))
        self.turn()
        (one,) = found
        return one

    def test_leftovers(self) -> None:
        """
        An IPv4 header with its checksum is one, also in a slot where an IPv6 header was; without it the IPv6
        header is, whatever its addresses look like.
        """
        # An IPv4 header of 10.0.0.7, which are 20 octets of two IPv6 addresses as well.
        ipv4 = bytes.fromhex("45000050 00004000 40112695 0a000007 0a000002")
        left = struct.pack(">IHBB", 6 << 28, 60, 17, 64) + bytes.fromhex("fd00") + bytes(10)
        self.assertEqual(self.arrived(left + ipv4), ("10.0.0.7", bytes(20) + ipv4))
        wrong = ipv4[:11] + b"\0" + ipv4[12:]
        self.assertEqual(self.arrived(left + wrong), ("fd00::4500:50", left + wrong))

    def test_steps(self) -> None:
        """
        The adapter's queue pair takes each step of ours, with the attributes that datagrams have.
        """
        (one,) = self.adapters(self.a)
        changed = QPAttr(enums.IBV_QPS_RTS)
        changed.qkey = 5
        self.a.qp.modify(changed, STATE | int(enums.IBV_QP_QKEY))
        self.assertEqual(one.given.qp_type, UD)
        steps = [
            {"qp_state": INIT, "pkey_index": 0, "port_num": 1, "qkey": QKEY},
            {"qp_state": RTR},
            {"qp_state": RTS, "sq_psn": 0},
            {"qp_state": RTS, "qkey": 5},
        ]
        self.assertEqual(one.steps, [(attributeBits(each), None, each) for each in steps])

    def test_handles(self) -> None:
        """
        The adapter has an address handle for each address and class of traffic, with this device's slot in
        its table, and of a queue pair no more than are bounded: those that are done with make room.
        """
        self.patch(datagrams, "HANDLES", 2)
        found = []
        for trafficClass in (0, 4, 0, 4, 8, 12, 0):
            vector = self.b.address()
            vector.gr.traffic_class = trafficClass
            with AH(self.a.pd, attr=vector) as handle:
                self.b.receive(0, 100)
                self.sent(to=handle)
                self.heard()
            found.append([each.vector.traffic_class for each in self.host.handles])
        self.assertEqual(found, [[0], [0, 4], [0, 4], [0, 4], [8], [8, 12], [0]])
        (one,) = self.host.handles
        self.assertEqual(
            (one.vector.sgid_index, one.vector.dgid, one.vector.hop_limit),
            (SLOT, bytes(10) + b"\xff\xff\x7f\0\0\1", 1),
        )

    def test_handlesInUse(self) -> None:
        """
        While the adapter sends by its address handles a datagram to one more address waits.
        """
        self.patch(datagrams, "HANDLES", 1)
        vector = self.b.address()
        vector.gr.traffic_class = 4
        self.host.isHeld = True
        for _ in range(2):
            self.b.receive(0, 100)
        with AH(self.a.pd, attr=vector) as other:
            self.sent(b"first")
            self.sent(b"other", to=other)
            self.turn()
            self.assertEqual(len(self.adapters(self.a)[0].waiting), 1)
            self.host.resume()
            self.assertEqual([self.heard() for _ in range(2)], [b"first", b"other"])
        self.assertEqual([each.vector.traffic_class for each in self.host.handles], [4])

    def test_full(self) -> None:
        """
        More than the adapter takes wait, and go in their order.
        """
        self.host.isHeld = True
        count = 3 * DATAGRAM_SENDS
        for number in range(count):
            self.b.receive(number * 64, 64, number) if number < 20 else None
            self.sent(b"%05d" % number)
        self.assertEqual(len(self.adapters(self.a)[0].waiting), DATAGRAM_SENDS)
        self.host.resume()
        for number in range(count):
            (received,) = self.wait(self.b.cq)
            place = received.wr_id * 64
            self.assertEqual(self.b.mr.read(5, place + HEAD), b"%05d" % number)
            self.b.receive(place, 64, received.wr_id)

    def test_slots(self) -> None:
        """
        Datagrams without a receive of the program's are lost and counted, and cost no slot of the adapter's.
        """
        (two,) = self.adapters(self.b)
        for _ in range(DATAGRAM_SLOTS + 5):
            self.sent()
            self.turn()
        self.assertEqual(self.device_.counters["datagrams_without_receive"], DATAGRAM_SLOTS + 5)
        self.assertEqual(len(two.receives), DATAGRAM_SLOTS)
        self.b.receive(0, 100)
        self.sent(b"found")
        self.assertEqual(self.heard(), b"found")

    def test_events(self) -> None:
        """
        An adapter does not say whether the sender wants an event: each datagram makes one.
        """
        self.b, channel = self.listening(enums.IBV_QPT_UD)
        ready = QPAttr()
        ready.qkey = QKEY
        self.b.qp.to_rts(ready)
        self.b.receive(0, 100)
        self.sent()
        self.heard()
        self.assertTrue(channel._notices.waiting)

    def test_empty(self) -> None:
        """
        A datagram may have no bytes.
        """
        self.b.receive(0, 100)
        self.sent(b"")
        self.assertEqual(self.heard(), b"")

    def test_longest(self) -> None:
        """
        The port's MTU is the adapter's; a longer datagram is an error of the sender.
        """
        for end in (self.a, self.b):
            end.qp.close()
        self.to.close()
        self.a.ctx.close()
        self.b.ctx.close()
        self.host.mtu = enums.IBV_MTU_1024
        self.a, self.b = End(self, enums.IBV_QPT_UD), End(self, enums.IBV_QPT_UD)
        self.to = self.a.handle(self.b)
        self.assertEqual(self.a.ctx.query_port(1).active_mtu, enums.IBV_MTU_1024)
        self.b.receive(0, 2000)
        self.sent(b"x" * 1024)
        self.assertEqual(self.heard(), b"x" * 1024)
        self.assertEqual(self.sent(b"x" * 1025).status, enums.IBV_WC_LOC_LEN_ERR)

    def test_wrongKey(self) -> None:
        """
        The adapter compares Q_Keys.
        """
        self.b.receive(0, 100)
        self.sent(b"wrong", QKEY + 1)
        self.sent(b"right")
        self.assertEqual(self.heard(), b"right")

    def test_malformed(self) -> None:
        """
        What has no header of a datagram is counted, and costs no slot.
        """
        (two,) = self.adapters(self.b)
        receive = two.receives.popleft()
        self.host.contexts[0].queue.push(Completion(receive.wr_id, two.qp_num, byte_len=HEAD))
        self.turn()
        self.assertEqual(self.device_.counters["datagrams_malformed"], 1)
        self.assertEqual(len(two.receives), DATAGRAM_SLOTS)

    def test_raises(self) -> None:
        """
        An error of who takes a datagram is raised at the end of the turn, and costs no slot.
        """
        self.patch(self.device_.paths, "datagramReceived", lambda *arguments: 1 / 0)
        self.sent()
        self.assertRaises(ZeroDivisionError, self.device_.fabric.progress)
        self.assertEqual(len(self.adapters(self.b)[0].receives), DATAGRAM_SLOTS)

    def test_reset(self) -> None:
        """
        What the adapter has not sent is not sent after RESET, nor taken for done; the queue pair has its
        receives again, and goes on.
        """
        (one,) = self.adapters(self.a)
        self.host.isHeld = True
        for _ in range(DATAGRAM_SENDS + 5):
            self.sent(b"never")
        self.host.contexts[0].queue.push(Completion(1, one.qp_num, _LOCAL))
        self.a.qp.modify(QPAttr(enums.IBV_QPS_RESET), STATE)
        self.assertEqual((one.state, len(one.waiting)), (RESET, 0))
        self.assertEqual(self.device_.counters["datagrams_unsendable"], 5)
        self.host.resume()
        ready = QPAttr()
        ready.qkey = QKEY
        self.a.qp.to_rts(ready)
        self.assertEqual(len(one.receives), DATAGRAM_SLOTS)
        self.b.receive(0, 100)
        self.sent(b"after")
        self.assertEqual(self.heard(), b"after")
        self.assertEqual(self.a.qp.query(STATE)[0].qp_state, enums.IBV_QPS_RTS)

    def test_resetMeanwhile(self) -> None:
        """
        A program that takes its queue pair through RESET where it takes a datagram has no receive too many.
        """
        ready = QPAttr()
        ready.qkey = QKEY
        queuePair = self.b.qp

        def again(*arguments: Any) -> None:
            queuePair.modify(QPAttr(enums.IBV_QPS_RESET), STATE)
            queuePair.to_rts(ready)

        self.patch(self.device_.paths, "datagramReceived", again)
        self.sent()
        self.turn()
        self.assertEqual(len(self.adapters(self.b)[0].receives), DATAGRAM_SLOTS)

    def test_error(self) -> None:
        """
        One that its program takes to ERR sends no more, and its receives are flushed, ours once.
        """
        self.b.receive(0, 100)
        self.b.qp.modify(QPAttr(enums.IBV_QPS_ERR), STATE)
        (flushed,) = self.wait(self.b.cq)
        self.assertEqual(flushed.status, enums.IBV_WC_WR_FLUSH_ERR)
        self.assertEqual(self.adapters(self.b)[0].state, ERR)
        self.turn()

    def test_failed(self) -> None:
        """
        A request or a receive that the adapter fails is the end of the queue pair, until its program resets
        it.
        """
        for end, wr_id in ((self.a, 1), (self.b, 1 << 63)):
            self.host.contexts[0].queue.push(Completion(wr_id, end.qp.qp_num, _LOCAL))
            self.turn()
            self.turn()
            self.assertEqual(end.qp.query(STATE)[0].qp_state, enums.IBV_QPS_ERR)
        self.assertEqual(self.device_.counters["hardware_requests_failed"], 1)
        self.a.qp.modify(QPAttr(enums.IBV_QPS_RESET), STATE)
        self.assertEqual(self.adapters(self.a)[0].state, RESET)

    def test_refused(self) -> None:
        """
        A step that the adapter does not take is an error, and has not happened; one to the end is taken.
        """
        changed = QPAttr(enums.IBV_QPS_RTS)
        changed.qkey = 5
        mask = STATE | int(enums.IBV_QP_QKEY)
        self.host.isFull = True
        error = self.refused(errno.EINVAL, self.a.qp.modify, changed, mask)
        self.assertIn("the adapter does not take the step", str(error))
        self.assertEqual(self.a.qp.query(mask)[0].qkey, QKEY)
        self.a.qp.modify(QPAttr(enums.IBV_QPS_ERR), STATE)
        self.assertEqual(self.device_.counters["hardware_cm_refused"], 1)

    def test_notMade(self) -> None:
        """
        A queue pair that the adapter does not make, or has no memory for, is an error that leaves nothing.
        """
        before = dict(self.host.queuePairs), dict(self.host.regions), dict(self.device_.fabric.streams)
        create = type(self.device_.fabric).makeQueuePair

        def last(*arguments: Any) -> Any:
            made = create(*arguments)
            self.host.isFull = True
            return made

        self.patch(type(self.device_.fabric), "makeQueuePair", last)
        for _ in range(2):
            error = self.refused(errno.ENOMEM, self.another, self.a, enums.IBV_QPT_UD)
            self.assertIn("adapter rxe0 makes no queue pair", str(error))
        self.host.isFull = False
        self.patch(self.device_.fabric, "_most", 2)
        error = self.refused(errno.ENOMEM, self.another, self.a, enums.IBV_QPT_UD)
        self.assertIn("adapter rxe0 has room for 2 connections here", str(error))
        after = self.host.queuePairs, self.host.regions, self.device_.fabric.streams
        self.assertEqual(before, after)

    def test_unreachable(self) -> None:
        """
        A datagram to an address of which the adapter makes no handle is lost, and counted.
        """
        self.host.isFull = True
        self.assertEqual(self.sent().status, 0)
        self.assertEqual(self.device_.counters["datagrams_unsendable"], 1)

    def test_noAddress(self) -> None:
        """
        So is each while the adapter has lost its address, and with it the GID, until it has that again.
        """
        self.slot = -1
        self.assertEqual(self.sent().status, 0)
        self.assertEqual((self.host.handles, self.device_.counters["datagrams_unsendable"]), ([], 1))
        self.slot = SLOT
        self.assertEqual(self.sent().status, 0)
        self.assertEqual((len(self.host.handles), self.device_.counters["datagrams_unsendable"]), (1, 1))

    def test_vanished(self) -> None:
        """
        The queue pairs of an adapter that disappears fail, and are closed.
        """
        self.host.vanish()
        self.turn()
        self.assertEqual(self.a.qp.query(STATE)[0].qp_state, enums.IBV_QPS_ERR)
        self.a.qp.close()

    def test_noGroups(self) -> None:
        """
        Nobody joins multicast groups, and there are none.
        """
        self.assertEqual(self.a.ctx.query_device().max_mcast_grp, 0)
        gid = self.a.address().gr.dgid
        self.refused(errno.EINVAL, self.a.qp.attach_mcast, gid, 0)
        self.refused(errno.ENETUNREACH, self.a.qp.attach_mcast, "0000:0000:0000:0000:0000:ffff:e001:0203", 0)

    def test_forked(self) -> None:
        """
        A forked child that closes and gives up all it has of the adapter leaves everything to its parent.
        """
        self.sent()
        host, fabric = self.host, self.device_.fabric
        ends = list(fabric.streams.values())
        child = os.fork()
        if not child:
            status = 99
            try:
                before = dict(host.queuePairs), dict(host.regions), list(host.handles)
                for each in (self.a.qp, self.b.qp, *ends):
                    each.close()
                if before == (host.queuePairs, host.regions, host.handles):
                    del before, each, ends, fabric, self.a, self.b, self.device_, self.to
                    host.queuePairs, host.regions, host.contexts, host.handles = {}, {}, [], []
                    registry.removeDevice("hw0")
                    gc.collect()
                    status = sum(host.collected.values())
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
