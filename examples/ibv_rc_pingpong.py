"""
Ping-pong over a reliable connection (RC), as rdma-core's C{ibv_rc_pingpong}.  Read this one first.

    python ibv_rc_pingpong.py               the server, in one terminal
    python ibv_rc_pingpong.py localhost     the client, in another

The program posts receives, which say where messages may go, and sends, which say where they are.  These go
on by themselves; a completion queue tells which are done.  Their memory is registered, and named by a key.
"""

from __future__ import annotations

import secrets
from argparse import Namespace
from collections.abc import Iterator

from pingpong import MTUS, main, optionsOf
from rendezvous import Address

from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.pyverbs import enums

RECV, SEND = 1, 2  # Ids of the requests; together, bits that say which of them are not done yet.


class PingPong:
    """One side.  Attribute C{start} is where messages begin in the memory for them."""

    kind, start = enums.IBV_QPT_RC, 0

    def __init__(self, options: Namespace, context: verbs.Context) -> None:
        """Create everything; the context will close it.  Receives can be posted before there is a peer."""
        self.options = options
        self.channel = verbs.CompChannel(context) if options.events else None
        self.pd = verbs.PD(context)
        self.mr = self.register(context, self.start + options.size)
        self.whole = verbs.SGE(self.mr.buf, self.mr.length, self.mr.lkey)
        self.message = verbs.SGE(self.mr.buf + self.start, options.size, self.mr.lkey)
        self.cq = verbs.CQ(context, options.rx_depth + 1, None, self.channel)
        if self.channel is not None:
            self.cq.req_notify()
        self.qp = self.createQP(context, verbs.QPCap(max_send_wr=1, max_recv_wr=options.rx_depth))
        port, gid = context.query_port(options.ib_port), context.query_gid(options.ib_port, options.gid_idx)
        self.mine = [Address(port.lid, self.qp.qp_num, secrets.randbits(24), gid.raw)]
        self.postReceives(options.rx_depth)

    def register(self, context: verbs.Context, length: int) -> verbs.MR:
        """Register the memory of messages: of the program, or of the device, which has no addresses."""
        rights = enums.IBV_ACCESS_LOCAL_WRITE
        if not self.options.dm:
            return verbs.MR(self.pd, length, rights)
        self.dm = verbs.DM(context, verbs.AllocDmAttr(length + -length % 4))
        return verbs.DMMR(self.pd, length, rights | enums.IBV_ACCESS_ZERO_BASED, self.dm, 0)

    def createQP(self, context: verbs.Context, cap: verbs.QPCap) -> verbs.QP:
        """Create the queue pair, and bring it to INIT."""
        init = verbs.QPAttr(port_num=self.options.ib_port)
        if not self.options.new_send:
            return verbs.QP(self.pd, verbs.QPInitAttr(self.kind, scq=self.cq, rcq=self.cq, cap=cap), init)
        attr = verbs.QPInitAttrEx(self.kind, scq=self.cq, rcq=self.cq, cap=cap, pd=self.pd)
        attr.comp_mask = enums.IBV_QP_INIT_ATTR_PD | enums.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        attr.send_ops_flags = enums.IBV_QP_EX_WITH_SEND
        return verbs.QPEx(context, attr, init)

    def attributes(self, mine: Address, theirs: Address) -> verbs.QPAttr:
        """What a queue pair has to know to be connected with another."""
        attr = verbs.QPAttr(port_num=self.options.ib_port, path_mtu=MTUS[self.options.mtu])
        attr.ah_attr, attr.dest_qp_num = theirs.route(self.options), theirs.qpn
        attr.rq_psn, attr.sq_psn = theirs.psn, mine.psn
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
        # No receive there: again after 0.64 ms, for ever.  No answer: again after 67 ms, 7 times.
        attr.min_rnr_timer, attr.rnr_retry, attr.timeout, attr.retry_cnt = 12, 7, 14, 7
        return attr

    def connect(self, theirs: list[Address]) -> None:
        """Go to RTR, ready to receive, and to RTS, ready to send."""
        self.qp.to_rts(self.attributes(self.mine[0], theirs[0]))

    def postReceives(self, count: int) -> None:
        """Make room for more messages."""
        for _ in range(count):
            self.qp.post_recv(verbs.RecvWR(RECV, 1, [self.whole]))

    def postSend(self) -> None:
        """Send the message, the old way or the new."""
        if isinstance(self.qp, verbs.QPEx):
            self.qp.wr_start()
            self.qp.wr_id, self.qp.wr_flags = SEND, enums.IBV_SEND_SIGNALED
            self.qp.wr_send()
            self.qp.wr_set_sge(self.message)
            self.qp.wr_complete()
        else:
            self.qp.post_send(verbs.SendWR(SEND, enums.IBV_WR_SEND, 1, sg=[self.message]))

    def completions(self) -> Iterator[verbs.WC]:
        """Wait for requests to be done: asleep if there is a channel, else by asking again and again."""
        while True:
            if self.channel is not None:
                self.channel.get_cq_event(self.cq)
                self.cq.ack_events(1)
                self.cq.req_notify()  # Before the poll: what is done after that makes the next event.
            for wc in self.cq.poll(self.cq.cqe)[1]:
                if wc.status != enums.IBV_WC_SUCCESS:
                    raise SystemExit(f"Request {wc.wr_id} failed: {enums.ibv_wc_status(wc.status).name}")
                yield wc

    def run(self) -> None:
        """Send when something came and the last send is done, until there were enough of both."""
        done, missing = {RECV: 0, SEND: 0}, RECV
        if self.options.host:
            self.postSend()
            missing |= SEND
        for wc in self.completions():
            done[wc.wr_id] += 1
            if min(done.values()) >= self.options.iters:
                return
            if wc.wr_id == RECV:
                self.postReceives(1)
            missing &= ~wc.wr_id
            if not missing and done[SEND] < self.options.iters:
                self.postSend()
                missing = RECV | SEND


if __name__ == "__main__":
    parser = optionsOf("Ping-pong over a reliable connection.", lacking="oOPtU")
    parser.add_argument("-N", "--new_send", action="store_true", help="post sends the new way")
    parser.add_argument("-j", "--dm", action="store_true", help="have messages in device memory")
    main(PingPong, parser)
