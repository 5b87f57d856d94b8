"""
Switching to RDMA a connection that SDP carries: a second queue pair over the path that there is.

Nothing new is on the wire: the passive side serves a private service id, made of the number of its stream's
queue pair, and the active side sends a REQ for it.  With the REP the stream has done its work, and closes in
order, unnoticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet import error
from twisted.python.failure import Failure

from twisted_ib.errors import HCAError
from twisted_ib.hca.connection import ConnectRequest, RejectReason
from twisted_ib.rdma.successor import FormerTransport
from twisted_ib.rdma.switching import Switch

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from twisted_ib.hca.connection import Rejection
    from twisted_ib.hca.connection.interfaces import IConnection


#: The service ids: a number that an operating system assigns (IBTA vol. 1 annex A3: the first byte is 0x02;
#: Linux cm.c IB_CM_ASSIGN_SERVICE_ID), "SDPR", and the 24 bits of the queue pair.
SERVICE = 0x02 << 56 | int.from_bytes(b"SDPR", "big") << 24
#: Seconds until a REQ is repeated that came before the passive side's call, doubled each time.
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.01, 0.5


class StreamSwitch(Switch):
    """
    One connection over SDP that switches.
    """

    kind = FormerTransport

    _delay = FIRST_RETRY_SECONDS
    _retry: IDelayedCall | None = None
    _isStreamOver = False

    def begun(self) -> None:
        # The peer's end of stream must be seen, and is none before it has switched.
        self.former.startReading()

    def drained(self) -> None:
        stream = self.former
        self._path, self._remote = stream.connection.destination, stream.queuePair.remote
        try:
            self.open(stream.channel)
            if self.options.isInitiator:
                self._ask()
            else:
                self.serve(SERVICE | stream.queuePair.number)
        except HCAError as e:
            self.failed(e)

    def discard(self) -> None:
        self.serveNoMore()
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        if self.transport is not None:
            self.transport.abandon()
        self.former.connectionLost(Failure(error.ConnectionAborted()))

    # -- the active side

    def _ask(self) -> None:
        self._retry = None
        self.serviceID = SERVICE | self._remote
        self.pathReady(self._path)

    def rejected(self, connection: IConnection, rejection: Rejection) -> None:
        # Perhaps the passive side's application has not called yet.
        late = rejection.reason == RejectReason.INVALID_SERVICE_ID
        if connection is not self.connection or not late or self._isStreamOver:
            super().rejected(connection, rejection)
            return
        self.connection = None
        self._retry = self.former.reactor.callLater(self._delay, self._ask)
        self._delay = min(2 * self._delay, LAST_RETRY_SECONDS)

    def formerLost(self, reason: Failure) -> None:
        # The peer closes it when it has switched, and its end may overtake the REP or the RTU.
        if self.connection is not None and reason.check(error.ConnectionDone):
            self._isStreamOver = True
        else:
            super().formerLost(reason)

    def connectionRequested(self, connection: IConnection, request: ConnectRequest) -> None:
        """
        A REQ came for the service.
        """
        assert self.channel is not None
        now = self.channel.now()
        # The number of a queue pair is no secret: only the peer of this stream is answered.
        if connection.destination.peer != self._path.peer:
            connection.reject(RejectReason.INVALID_SERVICE_ID, b"", now)
            return
        if request.unsupported is not None:
            connection.reject(request.unsupported, b"", now)
            return
        self.answer(connection, request)
