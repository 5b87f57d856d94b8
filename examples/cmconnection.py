"""
One end of a connection that the communication manager (CM) makes, by IP address and port.

The CM calls the end a C{CMID}, and makes its queue pair and takes it from state to state.  A program may also
have a queue pair of its own: then it asks the CM for the attributes, and takes these steps itself.  That the
peer has disconnected is an event of the CM, which does not wake who waits for completions.  So a thread waits
for it, and has what is posted flushed: each request is done then, in vain.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Thread

from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.pyverbs import enums

STEPS = enums.IBV_QPS_INIT, enums.IBV_QPS_RTR, enums.IBV_QPS_RTS


def calls(address: str | None, port: int, debug: bool) -> Iterator[verbs.CMID]:
    """Listen, and give the identifier of each call that comes."""
    info = verbs.AddrInfo(address, None, str(port), None, enums.RDMA_PS_TCP, enums.RAI_PASSIVE)
    with verbs.CMID(info) as listener:
        listener.listen(3)
        if debug:
            print("listening", flush=True)
        while True:
            yield listener.get_request()


def route(source: str | None, address: str, port: int) -> verbs.CMID:
    """Find the way to who listens, and give an identifier that can call there."""
    return verbs.CMID(verbs.AddrInfo(source, address, None, str(port), enums.RDMA_PS_TCP))


class Disconnected(ConnectionError):
    """The connection is over."""


class Connection:
    """One end.  Receives may be posted as soon as it is there, sends when it is connected."""

    def __init__(self, cmid: verbs.CMID, side: str, ownQP: bool, debug: bool) -> None:
        """Create a queue pair and what it needs; C{side} is what to call this end."""
        self.cmid, self.side, self.ownQP, self.debug = cmid, side, ownQP, debug
        self.context = verbs.Context(cmid=cmid)
        self.channel = verbs.CompChannel(self.context)
        self.cq = verbs.CQ(self.context, 32, None, self.channel)
        self.cq.req_notify()
        attr = verbs.QPInitAttr(enums.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=verbs.QPCap(16, 2))
        if not ownQP:
            cmid.create_qp(attr)
        self.qp = cmid.qp or verbs.QP(cmid.pd, attr, verbs.QPAttr())
        self.param = verbs.ConnParam(resources=1, depth=1, retry=7, rnr_retry=7, qp_num=self.qp.qp_num)
        self.events = verbs.CMEventChannel()
        self.watcher = Thread(target=self.watch, daemon=True)

    def accept(self) -> None:
        """Take the call that the end was made for."""
        self.bringUp()
        self.cmid.accept(self.param)
        self.cmid.migrate_id(self.events)
        self.watcher.start()

    def connect(self) -> None:
        """Call the peer."""
        self.cmid.connect(self.param)
        self.bringUp()
        if self.ownQP:
            self.cmid.establish()
        self.cmid.migrate_id(self.events)
        self.watcher.start()

    def bringUp(self) -> None:
        """Take the steps of an own queue pair."""
        for state in STEPS if self.ownQP else ():
            self.qp.modify(*self.cmid.init_qp_attr(state))

    def watch(self) -> None:
        """Wait for the end of the connection, and flush."""
        self.events.get_cm_event().ack_cm_event()
        print(self.side, "DISCONNECT EVENT...", file=sys.stderr)
        self.qp.modify(verbs.QPAttr(enums.IBV_QPS_ERR), enums.IBV_QP_STATE)

    def receive(self, mr: verbs.MR) -> None:
        """Post a receive into a region."""
        self.qp.post_recv(verbs.RecvWR(num_sge=1, sg=[verbs.SGE(mr.buf, mr.length, mr.lkey)]))

    def post(self, mr: verbs.MR, opcode: int, length: int, key: int = 0, address: int = 0) -> None:
        """Post a SEND of the beginning of a region, or a READ or WRITE between it and the peer's address."""
        wr = verbs.SendWR(opcode=opcode, num_sge=1, sg=[verbs.SGE(mr.buf, length, mr.lkey)])
        wr.set_wr_rdma(key, address)
        self.qp.post_send(wr)

    def completions(self) -> Iterator[verbs.WC]:
        """Sleep until requests are done."""
        while True:
            self.channel.get_cq_event(self.cq)
            self.cq.ack_events(1)
            self.cq.req_notify()  # Before the poll: what is done after that makes the next event.
            for wc in self.cq.poll(self.cq.cqe)[1]:
                if wc.status == enums.IBV_WC_WR_FLUSH_ERR:
                    raise Disconnected("The peer has disconnected")
                if wc.status != enums.IBV_WC_SUCCESS:
                    raise ConnectionError(f"cq completion failed: {enums.ibv_wc_status(wc.status).name}")
                if self.debug:
                    print(enums.ibv_wc_opcode(wc.opcode).name.removeprefix("IBV_WC_").lower(), "completion")
                yield wc

    def close(self) -> None:
        """Disconnect, and give everything back."""
        if self.watcher.ident is not None:
            self.cmid.disconnect()
            self.watcher.join()
        for each in (self.cmid, self.context, self.events):
            each.close()
