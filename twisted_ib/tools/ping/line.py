"""
An identifier with a queue pair, for the programs of C{ib-ping}.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from contextlib import suppress
from math import inf

from twisted_ib.hca.verbs import (
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
from twisted_ib.hca.wire.cm.codes import RejectReason, SIDRStatus
from twisted_ib.tools.ping.station import Station, Steps, reason
from twisted_ib.tools.program import ProgramError

#: How long a peer is given to hear of the end, in seconds.
PARTING = 5.0
#: How long nothing is heard until a peer is asked whether it is there, in seconds.
DOUBT = 3.0
#: Completions that are taken at a time.
_BATCH = 64
#: The id of a request that only asks whether the peer is there.
_PROBE = 1

_E, _WC = enums.rdma_cm_event_type, enums.ibv_wc_status
_NOBODY = (RejectReason.INVALID_SERVICE_ID, RejectReason.CONSUMER_DEFINED)
_TEXTS = {
    _WC.IBV_WC_RETRY_EXC_ERR: "does not answer any more",
    _WC.IBV_WC_RNR_RETRY_EXC_ERR: "takes no messages",
    _WC.IBV_WC_REM_ACCESS_ERR: "gives no access to the memory that it tells of",
    _WC.IBV_WC_LOC_LEN_ERR: "sends more than there is room for",
}


class Ended(ProgramError):
    """
    The peer has disconnected, or its process is gone.
    """


class Line:
    """
    One identifier with a queue pair, and what happened to them.

    @ivar peer: who is at the other end, for texts.
    @ivar isUp: the connection is there, or the group is joined.
    @ivar isOver: the connection was there.
    @ivar target: where datagrams go.
    """

    def __init__(
        self, station: Station, cmid: CMID, sends: int, receives: int, datagrams: bool = False
    ) -> None:
        """
        Make the queue pair.

        @param cmid: an identifier without one.
        @param sends: send requests at a time, and C{receives} receives.
        @param datagrams: whether it is for datagrams.

        @raise ProgramError: it cannot be.
        """
        self.station = station
        self.cmid = cmid
        there = cmid.peer_addr
        self.peer = "the peer" if there is None else there[0]
        self.isUp = self.isOver = False
        self._isConnected = not datagrams
        self._isProbing = False
        self._doubted, self._end = 0.0, inf
        self.target: UDParam | None = None
        self._failure = ""
        self._done: deque[WC] = deque()
        self._regions: list[MR] = []
        self._channel = CMEventChannel()
        self._cq: CQ | None = None
        cmid.migrate_id(self._channel)
        try:
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
        Whether something happened that was not heard of.
        """
        if self._cq is not None:
            for wc in self._cq.poll(_BATCH)[1]:
                if wc.wr_id == _PROBE and wc.status == _WC.IBV_WC_SUCCESS:
                    self._isProbing = False  # That it is there is not what it is to say.
                else:
                    self._done.append(wc)
        return bool(self._done) or self._channel.pending

    def hear(self) -> None:
        """
        Hear of what happened to the connection.
        """
        while self._channel.pending:
            with CMEvent(self._channel) as event:
                self.station.say(f"{event.event_str()}, status {event.status}")
                self._happened(event)

    # -- silence

    def begin(self, seconds: float | None) -> None:
        """
        The peer has something to say now.

        @param seconds: how long it may be silent; L{None} is for ever.
        """
        self._doubted = time.monotonic()
        self._end = inf if seconds is None else self._doubted + seconds

    def left(self) -> float | None:
        """
        How long it may be silent until L{doubt} is to be called, in seconds.
        """
        end = min(self._end, self._doubted + DOUBT) if self._isConnected else self._end
        return None if end == inf else max(0.0, end - time.monotonic())

    def doubt(self) -> None:
        """
        Nothing is heard: ask the peer's device, by a WRITE of nothing, of which its program hears nothing.

        @raise ProgramError: it is silent for too long.
        """
        now = time.monotonic()
        if now >= self._end:
            raise ProgramError(f"{self.peer} does not answer")
        self._doubted = now
        if self.isUp and not self.isOver and not self._isProbing:
            self._probe()

    def _probe(self) -> None:
        self._isProbing = True
        region = self._regions[0] if self._regions else self.register(1, 0)
        request = self.request(region, 0, enums.IBV_WR_RDMA_WRITE)
        request.wr_id = _PROBE
        request.set_wr_rdma(0, 0)  # Nobody looks at these where nothing is written.
        qp = self.cmid.qp
        assert qp is not None
        with suppress(PyverbsRDMAError):  # The queue is full: then the device is being asked already.
            qp.post_send(request)

    def _happened(self, event: CMEvent) -> None:
        kind = event.event_type
        if kind in (_E.RDMA_CM_EVENT_ESTABLISHED, _E.RDMA_CM_EVENT_MULTICAST_JOIN):
            self.isUp = True
            self.target = UDParam(event)
        elif kind == _E.RDMA_CM_EVENT_DISCONNECTED:
            self.isOver = True
        elif kind != _E.RDMA_CM_EVENT_TIMEWAIT_EXIT:
            self._failure = self._failed(kind, event.status)

    def _failed(self, kind: int, status: int) -> str:
        there = self.cmid.peer_addr
        where = self.peer if there is None else f"{there[0]} port {there[1]}"
        if kind == _E.RDMA_CM_EVENT_REJECTED:
            if status == RejectReason.INVALID_SERVICE_ID:
                return f"{where}: connection refused, nobody listens there"
            if status in _NOBODY:
                return f"{where}: connection refused"
            return f"{where}: connection refused, reason {status}"
        if kind == _E.RDMA_CM_EVENT_UNREACHABLE:
            if status == SIDRStatus.SERVICE_ID_UNSUPPORTED:
                return f"{where}: connection refused, nobody listens there"
            if status > 0:
                return f"{where}: connection refused, status {status}"
            return f"{where} does not answer"
        return f"{where}: {_E(kind).name}, status {status}"

    # -- steps

    def up(self, orFirst: bool = False) -> Steps[None]:
        """
        Wait for the connection.

        @param orFirst: the peer's first message will do.

        @raise ProgramError: it does not come about.
        """
        while not self.isUp:
            if self._failure:
                raise ProgramError(self._failure)
            if self.isOver:
                raise Ended(f"{self.peer} has disconnected")
            if orFirst and self._done:
                return
            yield

    def over(self) -> Steps[None]:
        """
        Wait for the end of the connection.
        """
        while not self.isOver:
            if self._failure:
                raise ProgramError(self._failure)
            yield

    def completion(self) -> Steps[WC]:
        """
        Wait for a request to complete.

        @return: its completion.

        @raise ProgramError: it has failed.
        """
        while not self._done:
            if self.isOver:
                raise Ended(f"{self.peer} has disconnected")
            yield
        wc = self._done.popleft()
        if wc.status == _WC.IBV_WC_WR_FLUSH_ERR:
            raise Ended(f"{self.peer} has disconnected")
        if wc.status != _WC.IBV_WC_SUCCESS:
            text = _TEXTS.get(_WC(wc.status))
            if text is None:
                name = _WC(wc.status).name.removeprefix("IBV_WC_").replace("_", " ").lower()
                text = f"has a request fail: {name}"
            raise ProgramError(f"{self.peer} {text}")
        self.station.say(f"{enums.ibv_wc_opcode(wc.opcode).name.removeprefix('IBV_WC_').lower()} completion")
        return wc

    # -- requests

    def register(self, size: int, access: int) -> MR:
        """
        Register memory.

        @param access: bits of C{ibv_access_flags}.

        @raise ProgramError: there is none.
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
        @return: a send request of the beginning of a region.
        """
        return SendWR(opcode=opcode, num_sge=1, sg=[SGE(region.buf, length, region.lkey)])

    def post(self, request: SendWR) -> None:
        """
        Post a send request.

        @raise ProgramError: it cannot be posted.
        """
        qp = self.cmid.qp
        assert qp is not None
        try:
            qp.post_send(request)
        except PyverbsError as error:
            self.hear()
            if self.isOver:
                raise Ended(f"{self.peer} has disconnected") from None
            raise ProgramError(reason(error)) from None

    def connect(self, param: ConnParam | None) -> None:
        """
        Call the peer.
        """
        try:
            self.cmid.connect(param)
        except PyverbsError as error:
            raise ProgramError(reason(error)) from None

    def accept(self, param: ConnParam | None = None) -> None:
        """
        Answer who calls.

        @raise Ended: it has given up.
        """
        try:
            self.cmid.accept(param)
        except PyverbsError as error:
            if error.error_code == errno.ECONNRESET:
                raise Ended(f"{self.peer} has given up") from None
            raise ProgramError(reason(error)) from None

    def disconnect(self) -> None:
        """
        End the connection, if there is one.
        """
        try:
            self.cmid.disconnect()
        except PyverbsError:
            pass  # There is none.

    def part(self) -> None:
        """
        End the connection, and wait until the peer has heard of that.
        """
        self.disconnect()
        end = time.monotonic() + PARTING
        while self.isUp and not self.isOver and not self._failure:
            if not self.station.wait(lambda: self._channel.pending, end - time.monotonic()):
                return
            self.hear()

    def migrate(self) -> None:
        """
        Hear of what happens over another channel.
        """
        before, self._channel = self._channel, CMEventChannel()
        self.cmid.migrate_id(self._channel)
        before.close()

    def close(self) -> None:
        """
        Give everything back.
        """
        self.cmid.close()
        for region in self._regions:
            region.close()
        if self._cq is not None:
            self._cq.close()
        self._channel.close()
