"""
Ping-pong with datagrams (UD), as rdma-core's C{ibv_ud_pingpong}.

    python ibv_ud_pingpong.py               the server, in one terminal
    python ibv_ud_pingpong.py localhost     the client, in another

A queue pair for datagrams is not connected: it can send to any other, and each send says to which.  To say
so takes an address handle for the way to the port, the number of the queue pair there, and its Q_Key,
which is a password of sorts.  A datagram is one packet, and begins with a header in the memory of a
receive: where it came from, so that it can be answered.  The sender is not told of a lost datagram.
"""

from __future__ import annotations

from argparse import Namespace

from ibv_rc_pingpong import SEND, PingPong
from pingpong import main, optionsOf
from rendezvous import Address

from twisted_ib.verbs.pyverbs import AH, QP, Context, QPAttr, QPCap, QPInitAttr, SendWR, enums

HEADER = 40  # Octets of the GRH, the global route header.
QKEY = 0x11111111


class DatagramPingPong(PingPong):
    """One side."""

    kind, start = enums.IBV_QPT_UD, HEADER

    def __init__(self, options: Namespace, context: Context) -> None:
        """Create everything, if a message fits into a packet."""
        most = 128 << context.query_port(options.ib_port).active_mtu
        if options.size > most:
            raise SystemExit(f"A datagram of this port has at most {most} octets")
        super().__init__(options, context)

    def createQP(self, context: Context, cap: QPCap) -> QP:
        """Create the queue pair, and bring it to INIT."""
        qp = QP(self.pd, QPInitAttr(self.kind, scq=self.cq, rcq=self.cq, cap=cap))
        attr = QPAttr(port_num=self.options.ib_port)
        attr.qkey = QKEY
        qp.to_init(attr)
        return qp

    def connect(self, theirs: list[Address]) -> None:
        """Go to RTR and RTS, and find the way to the other side."""
        attr = QPAttr(port_num=self.options.ib_port)
        attr.sq_psn = self.mine[0].psn
        self.qp.to_rts(attr)
        self.handle, self.number = AH(self.pd, attr=theirs[0].route(self.options)), theirs[0].qpn

    def postSend(self) -> None:
        """Send the message to the other side."""
        wr = SendWR(SEND, enums.IBV_WR_SEND, 1, sg=[self.message])
        wr.set_wr_ud(self.handle, self.number, QKEY)
        self.qp.post_send(wr)


if __name__ == "__main__":
    main(DatagramPingPong, optionsOf("Ping-pong with datagrams.", size=1024, mtu=False))
