"""
An identifier's connection: REQ, REP, RTU, and the state transitions of its queue pair.

The passive side's queue pair is in RTS before the REP is sent, the active side's before the RTU is sent, as
data may follow either at once (IBTA vol. 1 12.9.8).  A program with a queue pair of its own performs these
transitions itself, with the attributes of L{Connected.attributes}.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from twisted_ib.errors import HCAError, NoListenerError, PathLostError
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.connection import ConnectReply, ConnectRequest, PathRecord, Rejection, RejectReason
from twisted_ib.hca.connection.rdmacm import gidOf, serviceID
from twisted_ib.hca.wire.grh import HOP_LIMIT
from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError
from twisted_ib.verbs.pyverbs.base.verb import invalid
from twisted_ib.verbs.pyverbs.cm.call import Call, Stage
from twisted_ib.verbs.pyverbs.cm.connparam import ConnParam
from twisted_ib.verbs.pyverbs.cm.negotiation import (
    NegotiatedParameters,
    QueuePairParameters,
    checkPrivateData,
    errnoFor,
    flowLabel,
    initAttributes,
    localParameters,
    makeReply,
    makeRequest,
    parametersFromReply,
    parametersFromRequest,
)
from twisted_ib.verbs.pyverbs.enums.cm import rdma_cm_event_type
from twisted_ib.verbs.pyverbs.enums.queues import ibv_qp_state
from twisted_ib.verbs.pyverbs.qp.qpattr import QPAttr

if TYPE_CHECKING:
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.verbs.pyverbs.cm.identifier import Identifier

_E, _S = rdma_cm_event_type, ibv_qp_state

_PSN_BITS = 24


class Connected(Call):
    """
    The connection of one identifier.
    """

    # librdmacm/cma.c, ucma_init_conn_qp: a connected queue pair is created in INIT, so that receives can be
    # posted before the peer may send (IBTA vol. 1 10.3.1).
    initialStates = (_S.IBV_QPS_INIT,)
    connection: Any = None

    def __init__(self, identifier: Identifier) -> None:
        super().__init__(identifier)
        #: This side's connection parameters, sent or permitted; None before.
        self.terms: NegotiatedParameters | None = None
        self._agreement: QueuePairParameters | None = None
        self._psn = self._mtu = 0
        self._isEnding = False
        self._timer: Any = None

    def _termsOf(
        self, param: ConnParam | None, room: int, most: NegotiatedParameters | None
    ) -> NegotiatedParameters:
        identifier = self._identifier
        # librdmacm/cma.c, ucma_valid_param: the queue pair number must come from somewhere.
        if param is None and identifier.qp is None:
            raise invalid("An identifier without a queue pair needs connection parameters")
        terms = localParameters(param, room, most)
        # The identifier's own queue pair overrides the program's numbers, as in librdmacm/cma.c,
        # rdma_connect.
        if identifier.qp is not None:
            terms.number = identifier.qp.qp_num
            terms.shared = identifier.qp.srq is not None
        return terms

    def attributes(self, state: int) -> tuple[QPAttr, int]:
        """
        The attributes of the queue pair's transition into a state.

        @raise PyverbsRDMAError: they are not known yet, or there is no such transition (EINVAL).
        """
        agreement = self._agreement
        if agreement is not None:
            return agreement.attributes(state, self._identifier.timeout)
        if state == _S.IBV_QPS_INIT:
            return initAttributes(0)
        raise invalid("Failed to get QP attributes: nothing is agreed on yet")

    # -- active

    @property
    def isDelayed(self) -> bool:
        """
        Whether the peer has asked for time to answer.
        """
        return self.connection is not None and bool(self.connection.isDelayed)

    def connect(self, param: ConnParam | None) -> None:
        """
        Begin to connect.

        @raise PyverbsRDMAError: bad parameters (EINVAL).
        """
        identifier = self._identifier
        room = identifier.privateBytes.request - len(self.header())
        terms = self._termsOf(param, room, None)
        identifier.step("connect")
        self.terms = terms
        self.findPath()

    def send(self, path: Any) -> IConnection:
        identifier, terms = self._identifier, self.terms
        here, there = identifier.source, identifier.destination
        assert here is not None and there is not None and terms is not None
        # IBTA vol. 1 9.7.1 allows any starting PSN; a random one keeps late packets of an earlier connection
        # out of the window, and off-path attackers guessing.  Linux cma.c draws it at random too (seq_num).
        self._psn = identifier.device.randomBits(_PSN_BITS)
        way = PathRecord(
            localGID=gidOf(here.host),
            remoteGID=gidOf(there.host),
            flowLabel=flowLabel(here.port, there.port),
            hopLimit=HOP_LIMIT,
        )
        service = serviceID(identifier.portSpace, there.port)
        # RoCEv2 packets must not be fragmented (IBTA vol. 1 annex A17), so the MTU that the kernel knows for
        # the path counts; other fabrics carry the largest.
        self._mtu = MTU_CODES[identifier.device.pathMTUTo(path)]
        request = makeRequest(terms, service, self._psn, identifier.lifetime, way, self.header(), self._mtu)
        return self.device.sendRequest(path, request, self, self.device.clock())

    def unsent(self, error: Exception) -> None:
        # A missing service entry is what a REJ with reason 8 would say (IBTA vol. 1 12.6.7.2); programs map
        # it to "connection refused".
        if isinstance(error, NoListenerError):
            self._over(_E.RDMA_CM_EVENT_REJECTED, status=int(RejectReason.INVALID_SERVICE_ID))
        else:
            self._over(_E.RDMA_CM_EVENT_UNREACHABLE, status=-errnoFor(error))

    def replied(self, connection: Any, reply: ConnectReply) -> None:
        identifier, terms = self._identifier, self.terms
        assert terms is not None
        path = connection.destination
        here, there = identifier.source, identifier.destination
        assert here is not None and there is not None
        label = flowLabel(here.port, there.port)
        heard, self._agreement = parametersFromReply(
            reply, terms, path, self._mtu, self._psn, identifier.lifetime, label
        )
        if identifier.qp is None:
            # The program must move its own queue pair to RTS first.  The MRA keeps the peer's REP timer from
            # expiring meanwhile (IBTA vol. 1 12.6.6).
            identifier.stage = Stage.REP_RECEIVED
            connection.sendMRA(identifier.now())
            identifier.report(_E.RDMA_CM_EVENT_CONNECT_RESPONSE, privateData=reply.privateData, terms=heard)
            return
        try:
            identifier.bringUp()
        except HCAError as error:
            # A REP that is not followed by an RTU leaves the peer half open; the REJ frees its resources now.
            connection.reject(RejectReason.NO_RESOURCES, b"", identifier.now())
            self._over(_E.RDMA_CM_EVENT_CONNECT_ERROR, status=-errnoFor(error))
            return
        # RTS before the RTU: the peer may send as soon as it has the RTU (IBTA vol. 1 12.9.8; Linux cma.c,
        # cma_rep_recv).
        identifier.stage = Stage.UP
        connection.ready(identifier.now())
        identifier.report(_E.RDMA_CM_EVENT_ESTABLISHED, privateData=reply.privateData, terms=heard)

    def establish(self) -> None:
        """
        Send the RTU for the program's own queue pair.

        @raise PyverbsRDMAError: the identifier has a queue pair, or there is no REP (EINVAL), or the peer has
            given up (ECONNRESET).
        """
        identifier = self._identifier
        # librdmacm/cma.c, rdma_establish: the identifier's own queue pair is established by the REP already.
        if identifier.qp is not None:
            raise invalid("Failed to establish: the identifier's queue pair is its own")
        identifier.step("establish")
        if not self.connection.ready(identifier.now()):
            raise PyverbsRDMAError("The peer has given up", errno.ECONNRESET)

    # -- passive

    def requested(self, connection: Any, request: ConnectRequest) -> None:
        """
        A REQ was received.

        @raise UnsupportedRequest: it asks for something unsupported.
        """
        self._psn = self._identifier.device.randomBits(_PSN_BITS)
        self.terms, self._agreement = parametersFromRequest(request, connection.destination, self._psn)
        self.connection = connection
        connection.user = self

    def accept(self, param: ConnParam | None) -> None:
        """
        Send the REP.

        @raise PyverbsRDMAError: bad parameters or queue pair (EINVAL), or the peer has given up (ECONNRESET).
        """
        identifier, agreement = self._identifier, self._agreement
        if identifier.stage is Stage.OVER:
            raise PyverbsRDMAError("The peer has given up", errno.ECONNRESET)
        terms = self._termsOf(param, identifier.privateBytes.reply, self.terms)
        identifier.step("accept")
        assert agreement is not None
        # IBTA vol. 1 12.7: the REP announces the final numbers; they may only be lower than the REQ's.
        agreement.served, agreement.asked = terms.responderResources, terms.initiatorDepth
        # RTS before the REP: the peer may send as soon as it has the REP, before its RTU arrives
        # (IBTA vol. 1 12.9.8; Linux cma.c, cma_accept_ib).
        try:
            identifier.bringUp()
        except BaseException:
            # The request stays open, so that the program may retry with other parameters or reject it.
            identifier.stage = Stage.REQ_RECEIVED
            raise
        if not self.connection.accept(makeReply(terms, self._psn), identifier.now()):
            identifier.bringDown()
            raise PyverbsRDMAError("The peer has given up", errno.ECONNRESET)

    def reject(self, privateData: bytes) -> None:
        """
        Send a REJ.

        @raise PyverbsRDMAError: there is no request, or too much private data (EINVAL).
        """
        identifier = self._identifier
        checkPrivateData(privateData, identifier.privateBytes.rejection)
        identifier.step("reject")
        # librdmacm maps rdma_reject to reason 28, consumer defined (Linux cma.c).
        self.connection.reject(RejectReason.CONSUMER_DEFINED, privateData, identifier.now())

    def established(self, connection: Any) -> None:
        """
        The RTU was received.
        """
        self._identifier.report(_E.RDMA_CM_EVENT_ESTABLISHED)

    # -- the end

    def rejected(self, connection: Any, rejection: Rejection) -> None:
        self._over(_E.RDMA_CM_EVENT_REJECTED, status=rejection.reason, privateData=rejection.privateData)

    def unreachable(self, connection: Any) -> None:
        self._over(_E.RDMA_CM_EVENT_UNREACHABLE, status=-errno.ETIMEDOUT)

    def peerDisconnected(self, connection: Any) -> None:
        """
        The connection is in timewait.
        """
        self._isEnding = False
        self._disconnected(connection)

    def _disconnected(self, connection: Any) -> None:
        # Linux cma.c leaves the queue pair alone on DISCONNECTED: the program may still want to poll its
        # completions before rdma_disconnect flushes the rest.
        self._identifier.stage = Stage.OVER
        self._identifier.report(_E.RDMA_CM_EVENT_DISCONNECTED)
        # IBTA vol. 1 12.9.8: timewait lasts until no packet of the connection can still arrive; Linux cm.c,
        # cm_enter_timewait waits for the local ACK timeout too.
        timers = self._identifier.device.timers
        self._timer = timers.start(connection.ackSeconds, self._timewaitOver)

    def _timewaitOver(self) -> None:
        self._identifier.report(_E.RDMA_CM_EVENT_TIMEWAIT_EXIT)

    def pathLost(self, reason: PathLostError) -> None:
        stage = self._identifier.stage
        isEnding, self._isEnding = self._isEnding, False
        # A live connection was cut; one still being made was never reached.  The events are those of the DREQ
        # that a kernel sends for a process that ended.
        if stage is Stage.UP or isEnding:
            self._disconnected(self.connection)
        elif stage is not Stage.OVER:
            self._over(_E.RDMA_CM_EVENT_UNREACHABLE, status=-errno.ETIMEDOUT)

    def _over(self, kind: int, **what: Any) -> None:
        identifier = self._identifier
        identifier.stage = Stage.OVER
        try:
            identifier.bringDown()
        except HCAError:
            # The device is closing too; its queue pairs flush by themselves.
            pass
        identifier.report(kind, **what)

    def disconnect(self) -> None:
        """
        Send a DREQ.  DISCONNECTED follows, unless it came already.

        @raise PyverbsRDMAError: there is no connection (EINVAL).
        """
        identifier, connection = self._identifier, self.connection
        if connection is None and identifier.stage is Stage.REQ_SENT:
            self.giveUp()
            self._over(_E.RDMA_CM_EVENT_DISCONNECTED)
            return
        if connection is None:
            raise invalid("Failed to Disconnect: there is no connection")
        # Into ERR before the DREQ: posted requests flush, and nothing is sent behind it (librdmacm/cma.c,
        # ucma_shutdown).
        identifier.bringDown()
        before, identifier.stage = identifier.stage, Stage.OVER
        if before is Stage.OVER:
            return
        device = identifier.device
        # The DREP, or the loss of the path, may be reported before this call returns.
        self._isEnding = True
        isAwaited = device.disconnect(connection)
        if self._isEnding and not isAwaited:
            # It was never established: no DREQ was sent, so no DREP will come (IBTA vol. 1 12.9.7).
            self._isEnding = False
            connection.user = None
            identifier.report(_E.RDMA_CM_EVENT_DISCONNECTED)

    def close(self, device: Any) -> None:
        """
        Release the connection; the identifier is closing.
        """
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.device = device
        if self.connection is not None:
            self.connection.user = None
        # Linux cm.c, cm_destroy_id: destroying an identifier sends the REJ or DREQ that its state calls for.
        self.giveUp()
