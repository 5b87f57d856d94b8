"""
RC ATOMIC WRITE with pyverbs: both sides write 8 octets into the middle of the other's memory, in turns.

C{atomicwrite.py DEVICE GID-INDEX [PEER]}: with the server's address it is the client, which writes first, and
at the end to an address that is no multiple of 8: that is refused.  They meet over TCP.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from typing import Any

from pyverbs import enums
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx

PORT = 18515
TURNS = 50
#: The memory, and what comes before and behind the 8 octets in it.
SIZE, GUARD = 24, b"\xa5" * 8


class Side:
    """
    One side.
    """

    def __init__(self, device: str, index: int, stream: socket.socket) -> None:
        """
        Connect with the peer.

        @param stream: to it.
        """
        self._stream, self._heard = stream, b""
        context = Context(name=device)
        self.pd = PD(context)
        self.mr = MR(self.pd, SIZE, enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE)
        self.mr.write(3 * GUARD, SIZE)
        self.cq = CQ(context, 8)
        init = QPInitAttrEx(
            enums.IBV_QPT_RC,
            scq=self.cq,
            rcq=self.cq,
            cap=QPCap(4, 1, 1, 1),
            pd=self.pd,
            comp_mask=enums.IBV_QP_INIT_ATTR_PD | enums.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags=enums.IBV_QP_EX_WITH_ATOMIC_WRITE,
        )
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = enums.IBV_ACCESS_REMOTE_WRITE
        self.qp = QPEx(context, init, attr)
        gid = context.query_gid(1, index).gid
        self.say([gid, self.qp.qp_num, self.mr.buf, self.mr.rkey])
        gid, number, self.address, self.rkey = self.hear()
        attr = QPAttr(port_num=1, path_mtu=enums.IBV_MTU_1024)
        attr.ah_attr = AHAttr(gr=GlobalRoute(GID(gid), sgid_index=index), is_global=1, port_num=1)
        attr.dest_qp_num, attr.min_rnr_timer, attr.timeout = number, 12, 14
        attr.qp_access_flags = enums.IBV_ACCESS_REMOTE_WRITE
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.retry_cnt = attr.rnr_retry = 7
        self.qp.to_rts(attr)
        self.say("ready")
        self.hear()

    def say(self, what: Any) -> None:
        """
        Tell the peer.
        """
        self._stream.sendall(json.dumps(what).encode() + b"\n")

    def hear(self) -> Any:
        """
        @return: what the peer tells.  Meanwhile the completion queue is polled: an HCA that is part of this
            program answers the peer in its calls.
        """
        while b"\n" not in self._heard:
            self.cq.poll()
            if select.select([self._stream], [], [], 0)[0]:
                octets = self._stream.recv(4096)
                assert octets, "the peer has ended"
                self._heard += octets
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)

    def write(self, turn: int, offset: int = 8) -> int:
        """
        @return: the completion's status.
        """
        self.qp.wr_start()
        self.qp.wr_id, self.qp.wr_flags = turn, enums.IBV_SEND_SIGNALED
        self.qp.wr_atomic_write(self.rkey, self.address + offset, valueOf(turn))
        self.qp.wr_complete()
        done: list[Any] = []
        while not done:
            done = self.cq.poll()[1]
        return int(done[0].status)

    def turn(self, number: int) -> None:
        """
        Write, and tell the peer.
        """
        status = self.write(number)
        assert status == enums.IBV_WC_SUCCESS, f"turn {number}: status {status}"
        self.say(number)

    def look(self) -> None:
        """
        Check what the peer has written.
        """
        turn = self.hear()
        found = self.mr.read(SIZE, 0)
        assert found == GUARD + valueOf(turn) + GUARD, f"turn {turn}: {found!r}"


def valueOf(turn: int) -> bytes:
    """
    @return: what is written.
    """
    return bytes((turn * 8 + each) & 255 for each in range(8))


def main(device: str, index: str, *peer: str) -> None:
    """
    Be a side.
    """
    if peer:
        with socket.create_connection((peer[0], PORT)) as stream:
            side = Side(device, int(index), stream)
            for number in range(TURNS):
                side.turn(2 * number)
                side.look()
            status = side.write(0, 9)
            assert status == enums.IBV_WC_REM_INV_REQ_ERR, f"at no multiple of 8: status {status}"
            side.say("over")
        return
    with socket.create_server(("", PORT)) as listener:
        print("listens", flush=True)
        with listener.accept()[0] as stream:
            side = Side(device, int(index), stream)
            for number in range(TURNS):
                side.look()
                side.turn(2 * number + 1)
            side.hear()
            assert side.mr.read(8, 0) == GUARD and side.mr.read(8, 16) == GUARD


if __name__ == "__main__":
    main(*sys.argv[1:])
