"""
A connection identifier with its queue pair, for the programs of C{ib-ping}.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from contextlib import suppress
from math import inf

from twisted_ib.hca.connection import RejectReason, SIDRStatus
from twisted_ib.tools.ping.station import Steps, VerbsSession, reason
from twisted_ib.tools.program import ProgramError
from twisted_ib.verbs.pyverbs import (
    CMID,
    CQ,
    MR,
    SGE,
    WC,
    CMEvent,
    CMEventChannel,
    ConnParam,
    PyverbsError,
    PyverbsRDMAError,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    UDParam,
    enums,
)

#: Seconds that a peer has to answer a DREQ.
PARTING = 5.0
#: Seconds of silence after which the peer's device is probed.
DOUBT = 3.0
#: Completions of one poll.
_BATCH = 64
#: The id of a probe.  Others have 0.
_PROBE = 1

_E, _WC = enums.rdma_cm_event_type, enums.ibv_wc_status
_NOBODY = (RejectReason.INVALID_SERVICE_ID, RejectReason.CONSUMER_DEFINED)
_TEXTS = {
    _WC.IBV_WC_RETRY_EXC_ERR: "does not answer any more",
    _WC.IBV_WC_RNR_RETRY_EXC_ERR: "takes no messages",
    _WC.IBV_WC_REM_ACCESS_ERR: "gives no access to the memory that it tells of",
    _WC.IBV_WC_LOC_LEN_ERR: "sends more than there is room for",
}


class PeerEnded(ProgramError):
    """
    The peer has disconnected, or its process is gone.
    """


class PeerGone(ProgramError):
    """
    The peer's device does not answer a probe; what was sent before has arrived.
    """


class PingConnection:
    """
    A connection identifier with a queue pair, and its events and completions.

    @ivar peer: the peer's address, for texts.
    @ivar isUp: the connection is established, or the multicast group is joined.
    @ivar isOver: the connection was established and is closed.
    @ivar target: the destination of datagrams.
    """

    def __init__(
        self, station: VerbsSession, cmid: CMID, sends: int, receives: int, datagrams: bool = False
    ) -> None:
        """
        Create the completion queue and the queue pair.

        @param cmid: an identifier without a queue pair.
        @param sends: the depth of the send queue, C{receives} of the receive queue.
        @param datagrams: whether it is a datagram queue pair.
        @raise ProgramError: one of them cannot be created.
        """
        self.station = station
        self.cmid = cmid
        there = cmid.peer_addr
        self.peer = "the peer" if there is None else there[0]
        self.isUp = self.isOver = False
        self._isConnected = not datagrams
        self._isProbing = False
        self._doubted, self._seconds, self._end = 0.0, inf, inf
        self.target: UDParam | None = None
        self._failure = ""
        self._done: deque[WC] = deque()
        self._regions: list[MR] = []
        # A channel for each identifier makes it asynchronous (rdma_migrate_id(3)): with a common one, events
        # would have to be sorted to their connections.
        self._channel = CMEventChannel()
        self._cq: CQ | None = None
        cmid.migrate_id(self._channel)
        try:
            # Large enough for everything that can be posted: a CQ overrun would bring the queue pair to ERR.
            self._cq = CQ(station.context, sends + receives)
            caps = QPCap(max_send_wr=sends, max_recv_wr=receives)
            kind = enums.IBV_QPT_UD if datagrams else enums.IBV_QPT_RC
            cmid.create_qp(QPInitAttr(kind, scq=self._cq, rcq=self._cq, cap=caps))
        except PyverbsError as error:
            self.close()
            raise ProgramError(reason(error)) from None

    # -- what happened

    def look(self) -> bool:
        """
        @return: whether there are events or completions that were not handled.
        """
        if self._cq is not None:
            for wc in self._cq.poll(_BATCH)[1]:
                if wc.wr_id == _PROBE and wc.status == _WC.IBV_WC_SUCCESS:
                    # A probe's success is no answer of the program's: it is not passed on.
                    self._isProbing = False
                else:
                    self._done.append(wc)
        return bool(self._done) or self._channel.pending

    def hear(self) -> None:
        """
        Handle the events of the connection.
        """
        while self._channel.pending:
            with CMEvent(self._channel) as event:
                self.station.say(f"{event.event_str()}, status {event.status}")
                self._happened(event)

    # -- silence

    def begin(self, seconds: float | None) -> None:
        """
        Start the timers: the peer has to send something now.

        @param seconds: how long it may be silent; L{None} for ever.
        """
        self._doubted = time.monotonic()
        self._seconds = inf if seconds is None else seconds
        self._end = self._doubted + self._seconds

    def left(self) -> float | None:
        """
        @return: seconds until L{doubt} has to be called.
        """
        end = min(self._end, self._doubted + DOUBT) if self._isConnected else self._end
        return None if end == inf else max(0.0, end - time.monotonic())

    def doubt(self) -> None:
        """
        Probe the peer's device after a time of silence.

        @raise ProgramError: the peer was silent for too long.
        """
        # A peer whose host is gone sends no DREQ.  An idle RC connection has no keepalive (IBTA vol. 1 has
        # none), so this end must send something: then the local ACK timeout and retry_cnt end the connection.
        now = time.monotonic()
        if now >= self._end and self.cmid.isDelayed:
            # The MRA's own time ends with another REQ, which may take as long as the first.
            self._end = now + self._seconds
        if now >= self._end:
            raise ProgramError(f"{self.peer} does not answer")
        self._doubted = now
        if self.isUp and not self.isOver and not self._isProbing:
            self._probe()

    def _probe(self) -> None:
        # A WRITE of no octets: the device acknowledges it, the program is not concerned, and no receive is
        # consumed.
        self._isProbing = True
        region = self._regions[0] if self._regions else self.register(1, 0)
        request = self.request(region, 0, enums.IBV_WR_RDMA_WRITE)
        request.wr_id = _PROBE
        # Linux rxe_resp.c check_rkey: address and key of an access of no octets are not looked at; rsockets
        # sends keepalives of this kind (librdmacm/rsocket.c).
        request.set_wr_rdma(0, 0)
        qp = self.cmid.qp
        assert qp is not None
        # If the send queue is full, unacknowledged requests probe the peer already.
        with suppress(PyverbsRDMAError):
            qp.post_send(request)

    def _happened(self, event: CMEvent) -> None:
        kind = event.event_type
        if kind in (_E.RDMA_CM_EVENT_ESTABLISHED, _E.RDMA_CM_EVENT_MULTICAST_JOIN):
            self.isUp = True
            # For datagrams: where the SIDR_REP or the group's join says (struct rdma_ud_param).
            self.target = UDParam(event)
        elif kind == _E.RDMA_CM_EVENT_DISCONNECTED:
            self.isOver = True
        # IBTA vol. 1 12.9.7: the end of TIMEWAIT follows each disconnect and is no failure.
        elif kind != _E.RDMA_CM_EVENT_TIMEWAIT_EXIT:
            self._failure = self._failed(kind, event.status)

    def _failed(self, kind: int, status: int) -> str:
        there = self.cmid.peer_addr
        where = self.peer if there is None else f"{there[0]} port {there[1]}"
        if kind == _E.RDMA_CM_EVENT_REJECTED:
            # IBTA vol. 1 12.6.7.2: reason 8, no listener; 28 is the consumer's own refusal, as by
            # rdma_reject.
            if status == RejectReason.INVALID_SERVICE_ID:
                return f"{where}: connection refused, nobody listens there"
            if status in _NOBODY:
                return f"{where}: connection refused"
            return f"{where}: connection refused, reason {status}"
        if kind == _E.RDMA_CM_EVENT_UNREACHABLE:
            # A datagram service is refused by a SIDR_REP with a status, not by a REJ (IBTA vol. 1 12.11);
            # librdmacm reports both this and silence as UNREACHABLE.
            if status == SIDRStatus.SERVICE_ID_UNSUPPORTED:
                return f"{where}: connection refused, nobody listens there"
            if status > 0:
                return f"{where}: connection refused, status {status}"
            return f"{where} does not answer"
        return f"{where}: {_E(kind).name}, status {status}"

    # -- steps

    def up(self) -> Steps[None]:
        """
        Wait until the connection is established.

        @raise ProgramError: the connection failed.
        """
        while not self.isUp:
            if self._failure:
                raise ProgramError(self._failure)
            if self.isOver:
                raise PeerEnded(f"{self.peer} has disconnected")
            yield

    def over(self) -> Steps[None]:
        """
        Wait until the connection is closed.
        """
        while not self.isOver:
            if self._failure:
                raise ProgramError(self._failure)
            yield

    def completion(self) -> Steps[WC]:
        """
        Wait for a completion.

        @raise ProgramError: the request has failed; L{PeerEnded} if the connection was closed.
        """
        while not self._done:
            if self.isOver:
                raise PeerEnded(f"{self.peer} has disconnected")
            yield
        wc = self._done.popleft()
        # Flushed requests follow a disconnect, and may be seen before its event.
        if wc.status == _WC.IBV_WC_WR_FLUSH_ERR:
            raise PeerEnded(f"{self.peer} has disconnected")
        if wc.status != _WC.IBV_WC_SUCCESS:
            text = _TEXTS.get(_WC(wc.status))
            if text is None:
                name = _WC(wc.status).name.removeprefix("IBV_WC_").replace("_", " ").lower()
                text = f"has a request fail: {name}"
            raise (PeerGone if wc.wr_id == _PROBE else ProgramError)(f"{self.peer} {text}")
        self.station.say(f"{enums.ibv_wc_opcode(wc.opcode).name.removeprefix('IBV_WC_').lower()} completion")
        return wc

    # -- requests

    def register(self, size: int, access: int) -> MR:
        """
        Register memory.

        @param access: bits of C{ibv_access_flags}.
        @raise ProgramError: it failed.
        """
        try:
            region = MR(self.station.pd, size, access)
        except PyverbsError as error:
            raise ProgramError(reason(error)) from None
        self._regions.append(region)
        return region

    def receive(self, region: MR, length: int | None = None) -> None:
        """
        Post a receive into the beginning of a region.
        """
        qp = self.cmid.qp
        assert qp is not None
        sge = SGE(region.buf, region.length if length is None else length, region.lkey)
        qp.post_recv(RecvWR(num_sge=1, sg=[sge]))

    def request(self, region: MR, length: int, opcode: int) -> SendWR:
        """
        @return: a send request with the beginning of a region.
        """
        return SendWR(opcode=opcode, num_sge=1, sg=[SGE(region.buf, length, region.lkey)])

    def post(self, request: SendWR) -> None:
        """
        Post a send request.

        @raise ProgramError: it cannot be posted; L{PeerEnded} if the connection was closed.
        """
        qp = self.cmid.qp
        assert qp is not None
        try:
            qp.post_send(request)
        except PyverbsError as error:
            # A disconnect may be the cause; its event tells the user more than the error.
            self.hear()
            if self.isOver:
                raise PeerEnded(f"{self.peer} has disconnected") from None
            raise ProgramError(reason(error)) from None

    def connect(self, param: ConnParam | None) -> None:
        """
        Send the REQ.
        """
        try:
            self.cmid.connect(param)
        except PyverbsError as error:
            raise ProgramError(reason(error)) from None

    def accept(self, param: ConnParam | None = None) -> None:
        """
        Send the REP, or the SIDR_REP.

        @raise Ended: the peer has given up.
        """
        try:
            self.cmid.accept(param)
        except PyverbsError as error:
            if error.error_code == errno.ECONNRESET:
                raise PeerEnded(f"{self.peer} has given up") from None
            raise ProgramError(reason(error)) from None

    def disconnect(self) -> None:
        """
        Disconnect, if there is a connection.
        """
        try:
            self.cmid.disconnect()
        except PyverbsError:
            # There is no connection.
            pass

    def part(self) -> None:
        """
        Disconnect, and wait until the peer has answered.
        """
        # Without waiting the process would end before the DREQ is acknowledged, and the peer, if the DREQ was
        # lost, would wait for its timeouts.
        self.disconnect()
        end = time.monotonic() + PARTING
        while self.isUp and not self.isOver and not self._failure:
            if not self.station.wait(lambda: self._channel.pending, end - time.monotonic()):
                return
            self.hear()

    def migrate(self) -> None:
        """
        Move to another event channel: C{rdma_migrate_id}.
        """
        before, self._channel = self._channel, CMEventChannel()
        # Events that wait in the old channel move, too.
        self.cmid.migrate_id(self._channel)
        before.close()

    def close(self) -> None:
        """
        Destroy the identifier, its queue pair, regions and queues.
        """
        # The queue pair first: the regions and the CQ are busy before.
        self.cmid.close()
        for region in self._regions:
            region.close()
        if self._cq is not None:
            self._cq.close()
        self._channel.close()
