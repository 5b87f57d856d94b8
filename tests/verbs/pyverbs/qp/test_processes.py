"""
Verbs between two processes on C{shm0}, without a communication manager.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import traceback
from collections.abc import Callable
from typing import Any

from tests.support.waiting import HANG_SECONDS, waitUntil
from tests.verbs.pyverbs.pair import End, VerbsTestCase
from twisted_ib.verbs.pyverbs import (
    CQ,
    GID,
    QP,
    AHAttr,
    CompChannel,
    GlobalRoute,
    QPCap,
    QPInitAttr,
    SendWR,
    enums,
)

ROUNDS = 5
#: A second for each of eight attempts: a busy machine may let a process wait for its turn.
PATIENT = 18


class Remote:
    """
    The data that one end needs of the other.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        """
        @param told: what that process said.
        """
        self.number, self.key, self.address = told["number"], told["key"], told["address"]
        gid = GID()
        gid.raw = told["gid"]
        self.attr = AHAttr(is_global=1, gr=GlobalRoute(gid))


class Side(End):
    """
    One end, whose completions tell a channel.
    """

    def __init__(self, test: ProcessTests, wire: socket.socket, timeout: int = PATIENT) -> None:
        """
        Create everything, and connect with the data that a socket carries.

        @param timeout: the queue pair's.
        """
        super().__init__(test)
        self.wire = wire
        wire.settimeout(HANG_SECONDS)
        self.channel = CompChannel(self.ctx)
        self.cq = CQ(self.ctx, 100, None, self.channel)
        attr = QPInitAttr(enums.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(20, 20, 4, 4))
        self.qp = QP(self.pd, attr)
        self.tell(
            {
                "number": self.qp.qp_num,
                "gid": self.ctx.query_gid(1, 0).raw,
                "key": self.mr.rkey,
                "address": self.mr.buf,
            }
        )
        self.remote = Remote(self.hear())
        ready = self.attr(self)
        ready.ah_attr, ready.dest_qp_num = self.remote.attr, self.remote.number
        ready.timeout = timeout
        self.qp.to_init(ready)
        self.cq.req_notify()
        for i in range(ROUNDS):
            self.receive(64 * i, wr_id=i)
        self.qp.to_rts(ready)
        self.tell("ready")
        self.hear()

    def tell(self, what: Any) -> None:
        """
        Say something to the other process.
        """
        self.wire.send(pickle.dumps(what))

    def hear(self) -> Any:
        """
        @return: what the other process said.
        """
        return pickle.loads(self.wire.recv(1 << 16))


class ProcessTests(VerbsTestCase):
    """
    This process, and a child that was forked from it.
    """

    def together(
        self, child: Callable[[Side], None], here: Callable[[Side], None], timeout: int = PATIENT
    ) -> int:
        """
        Run each side in a process.

        @param timeout: of the queue pair here.

        @return: the child's status.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:  # pragma: no cover - in the child
            code = 1
            try:
                ours.close()
                child(Side(self, theirs))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        theirs.close()
        try:
            here(Side(self, ours, timeout))
        finally:
            ours.close()
            status = os.waitpid(pid, 0)[1]
        return os.waitstatus_to_exitcode(status)

    def send(self, side: Side, text: str, **more: Any) -> None:
        """
        Send a text, and see that it was taken.
        """
        side.mr.write(text, len(text), 2048)
        side.qp.post_send(SendWR(num_sge=1, sg=[side.sge(2048, len(text))], **more))
        self.assertEqual(self.wait(side.cq)[0].status, enums.IBV_WC_SUCCESS)

    def test_events(self) -> None:
        """
        A process that waits for events gets one for each message.
        """

        def child(side: Side) -> None:
            for i in range(ROUNDS):
                self.send(side, f"message {i}")
                side.hear()

        def here(side: Side) -> None:
            for i in range(ROUNDS):
                side.channel.get_cq_event(side.cq)
                side.cq.req_notify()
                (wc,) = self.wait(side.cq)
                self.assertEqual((wc.status, wc.wr_id, wc.byte_len), (enums.IBV_WC_SUCCESS, i, 9))
                self.assertEqual(side.mr.read(9, 64 * i), f"message {i}".encode())
                side.cq.ack_events(1)
                side.tell("next")

        self.assertEqual(self.together(child, here), 0)

    def test_descriptor(self) -> None:
        """
        A program may watch the channel's descriptor, and call only when it is readable.
        """

        def child(side: Side) -> None:
            for i in range(ROUNDS):
                self.send(side, f"message {i}")
                side.hear()

        def here(side: Side) -> None:
            fd = side.channel.fd
            taken = 0
            while taken < ROUNDS:
                self.assertEqual(select.select([fd], [], [], HANG_SECONDS)[0], [fd])
                side.channel.get_cq_event(side.cq)
                side.cq.req_notify()
                while side.cq.poll()[0]:
                    taken += 1
                    side.tell("next")

        self.assertEqual(self.together(child, here), 0)

    def test_passive(self) -> None:
        """
        A process that only waits has its memory read, written and added to, and sees the result in the end.
        """

        def child(side: Side) -> None:
            for opcode, length in (
                (enums.IBV_WR_RDMA_WRITE, 64),
                (enums.IBV_WR_RDMA_READ, 64),
                (enums.IBV_WR_ATOMIC_FETCH_AND_ADD, 8),
            ):
                wr = SendWR(opcode=opcode, num_sge=1, sg=[side.sge(1024, length)])
                side.mr.write("by the child", 12, 1024)
                if length == 8:
                    wr.set_wr_atomic(side.remote.key, side.remote.address + 1280, 1)
                else:
                    wr.set_wr_rdma(side.remote.key, side.remote.address + 1024)
                side.qp.post_send(wr)
                self.assertEqual(self.wait(side.cq)[0].status, enums.IBV_WC_SUCCESS)
            self.send(side, "done")
            side.hear()

        def here(side: Side) -> None:
            side.mr.write((41).to_bytes(8, "little"), 8, 1280)
            side.channel.get_cq_event(side.cq)
            self.assertEqual(side.mr.read(12, 1024), b"by the child")
            self.assertEqual(side.mr.read(8, 1280), (42).to_bytes(8, "little"))
            side.tell("seen")

        self.assertEqual(self.together(child, here), 0)

    def test_death(self) -> None:
        """
        A queue pair whose peer's process died stays in RTS with its receives, though they have talked:
        nothing is flushed.  A send to it completes with an error when its retries are over, and then the
        receives are flushed.
        """

        def child(side: Side) -> None:
            self.send(side, "hello")
            side.hear()
            os._exit(7)

        def here(side: Side) -> None:
            self.wait(side.cq)
            side.receive(0, wr_id=0)
            side.tell("die")
            self.assertEqual(side.wire.recv(1), b"")
            waitUntil(lambda: not side.ctx._device.fabric.paths(), side.cq.poll)
            self.assertEqual(side.cq.poll()[0], 0)
            self.assertEqual(side.qp.qp_state, enums.IBV_QPS_RTS)
            side.qp.post_send(SendWR(99, num_sge=1, sg=[side.sge(2048)]))
            found = self.wait(side.cq, ROUNDS + 1)
            self.assertEqual(found[0].wr_id, 99)
            self.assertEqual(found[0].status, enums.IBV_WC_RETRY_EXC_ERR)
            self.assertEqual({wc.status for wc in found[1:]}, {enums.IBV_WC_WR_FLUSH_ERR})
            self.assertEqual(side.qp.qp_state, enums.IBV_QPS_ERR)

        self.assertEqual(self.together(child, here, 12), 7)
