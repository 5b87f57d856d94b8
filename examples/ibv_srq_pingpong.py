"""
Ping-pong over several reliable connections with one shared receive queue (SRQ), as rdma-core's
C{ibv_srq_pingpong}.

    python ibv_srq_pingpong.py               the server, in one terminal
    python ibv_srq_pingpong.py localhost     the client, in another

In C{ibv_rc_pingpong.py} a queue pair has its own receives.  Here all queue pairs take theirs from one queue,
so that a server with a thousand clients needs memory for the messages that come, not for all that might.
Completions of all of them are in one completion queue, and say whose they are.
"""

from __future__ import annotations

import secrets
from argparse import Namespace

from ibv_rc_pingpong import RECV, SEND, PingPong
from pingpong import main, optionsOf, positive
from rendezvous import Address

from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.pyverbs import enums

ADDRESSES = 256  # So many are exchanged, however many queue pairs there are.


class SharedPingPong(PingPong):
    """One side."""

    def __init__(self, options: Namespace, context: verbs.Context) -> None:
        """Create everything that all queue pairs share, and as many of these as wanted."""
        if options.num_qp > options.rx_depth:
            raise SystemExit(f"{options.num_qp} queue pairs need as many receives, not {options.rx_depth}")
        if options.num_qp >= ADDRESSES:
            raise SystemExit(f"There can be {ADDRESSES - 1} queue pairs, not {options.num_qp}")
        self.options = options
        self.channel = verbs.CompChannel(context) if options.events else None
        self.pd = verbs.PD(context)
        self.mr = verbs.MR(self.pd, options.size, enums.IBV_ACCESS_LOCAL_WRITE)
        self.whole = self.message = verbs.SGE(self.mr.buf, options.size, self.mr.lkey)
        self.cq = verbs.CQ(context, options.rx_depth + options.num_qp, None, self.channel)
        if self.channel is not None:
            self.cq.req_notify()
        self.srq = verbs.SRQ(self.pd, verbs.SrqInitAttr(verbs.SrqAttr(max_wr=options.rx_depth, max_sge=1)))
        self.postReceives(options.rx_depth)
        port, gid = context.query_port(options.ib_port), context.query_gid(options.ib_port, options.gid_idx)
        self.qps: dict[int, verbs.QP] = {}
        self.mine = [Address()] * ADDRESSES
        for i in range(options.num_qp):
            qp = self.createQP(context, verbs.QPCap(max_send_wr=1, max_recv_wr=0))
            self.qps[qp.qp_num] = qp
            self.mine[i] = Address(port.lid, qp.qp_num, secrets.randbits(24), gid.raw)

    def createQP(self, context: verbs.Context, cap: verbs.QPCap) -> verbs.QP:
        """Create a queue pair without receives of its own, and bring it to INIT."""
        attr = verbs.QPInitAttr(self.kind, scq=self.cq, rcq=self.cq, srq=self.srq, cap=cap)
        return verbs.QP(self.pd, attr, verbs.QPAttr(port_num=self.options.ib_port))

    def connect(self, theirs: list[Address]) -> None:
        """Connect each queue pair with its counterpart."""
        for qp, here, there in zip(self.qps.values(), self.mine, theirs, strict=False):
            qp.to_rts(self.attributes(here, there))

    def postReceives(self, count: int) -> None:
        """Make room for more messages, to whichever queue pair they may come."""
        for _ in range(count):
            self.srq.post_recv(verbs.RecvWR(RECV, 1, [self.whole]))

    def run(self) -> None:
        """Send with each queue pair that got something, until there were enough messages in all."""
        done, missing = {RECV: 0, SEND: 0}, dict.fromkeys(self.qps, RECV)
        if self.options.host:
            for number, qp in self.qps.items():
                qp.post_send(verbs.SendWR(SEND, num_sge=1, sg=[self.message]))
                missing[number] |= SEND
        for wc in self.completions():
            done[wc.wr_id] += 1
            if min(done.values()) >= self.options.iters:
                return
            if wc.wr_id == RECV:
                self.postReceives(1)
            missing[wc.qp_num] &= ~wc.wr_id
            if not missing[wc.qp_num] and done[SEND] < self.options.iters:
                self.qps[wc.qp_num].post_send(verbs.SendWR(SEND, num_sge=1, sg=[self.message]))
                missing[wc.qp_num] = RECV | SEND


if __name__ == "__main__":
    parser = optionsOf("Ping-pong over several connections with one shared receive queue.", lacking="o")
    parser.add_argument("-q", "--num-qp", type=positive, default=16, metavar="N", help="queue pairs (16)")
    main(SharedPingPong, parser)
