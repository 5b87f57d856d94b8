"""
An identifier's connection: REQ, REP, RTU, and the queue pair's steps in between.

The passive side's queue pair is in RTS before the REP goes out, the active side's before the RTU
does, so that data may follow either at once (IBTA vol. 1 12.9.8).  A side whose program has the
queue pair elsewhere takes these steps itself, with the attributes that L{Connected.attributes}
gives.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from twisted_ib.errors import HCAError, NoListenerError, PathLostError
from twisted_ib.hca.cm.states import State
from twisted_ib.hca.verbs.base.errors import PyverbsRDMAError
from twisted_ib.hca.verbs.base.verb import invalid
from twisted_ib.hca.verbs.cm.call import Call
from twisted_ib.hca.verbs.cm.connparam import ConnParam
from twisted_ib.hca.verbs.cm.negotiation import (
    HOP_LIMIT,
    Agreement,
    NegotiatedParameters,
    answered,
    called,
    flowLabel,
    initAttributes,
    makeREP,
    makeREQ,
    mtuCode,
    numberOf,
    termsOf,
)
from twisted_ib.hca.verbs.cm.stage import Stage
from twisted_ib.hca.verbs.enums.cm import rdma_cm_event_type
from twisted_ib.hca.verbs.enums.queues import ibv_qp_state
from twisted_ib.hca.verbs.qp.qpattr import QPAttr
from twisted_ib.hca.wire.cm import REJ, REP, REQ, CMPath
from twisted_ib.hca.wire.cm.codes import RejectReason
from twisted_ib.hca.wire.cm.rdmacm import REJ_USER_BYTES, REP_USER_BYTES, gidOf, serviceID

if TYPE_CHECKING:
    from twisted_ib.hca.verbs.cm.identifier import Identifier

_E, _S = rdma_cm_event_type, ibv_qp_state

_PSN_BITS = 24


class Connected(Call):
    """
    The connection of one identifier.

    @ivar terms: what this side has said, or may say; None before.
    """

    initialStates = (_S.IBV_QPS_INIT,)

    def __init__(self, identifier: Identifier) -> None:
        super().__init__(identifier)
        self.terms: NegotiatedParameters | None = None
        self._agreement: Agreement | None = None
        self._connection: Any = None
        self._psn = self._mtu = 0
        self._isEnding = False
        self._timer: Any = None

    def _termsOf(
        self, param: ConnParam | None, room: int, most: NegotiatedParameters | None
    ) -> NegotiatedParameters:
        """
        What the program says, of the identifier's queue pair if it has made one.

        @raise PyverbsRDMAError: there is no queue pair, or something cannot be (EINVAL).
        """
        identifier = self._identifier
        if param is None and identifier.qp is None:
            raise invalid("An identifier without a queue pair needs connection parameters")
        terms = termsOf(param, room, most)
        if identifier.qp is not None:
            terms.number = identifier.qp.qp_num
            terms.shared = identifier.qp.srq is not None
        return terms

    def attributes(self, state: int) -> tuple[QPAttr, int]:
        """
        The attributes for the queue pair's step into a state.

        @raise PyverbsRDMAError: they are not known yet, or never (EINVAL).
        """
        agreement = self._agreement
        if agreement is not None:
            return agreement.attributes(state, self._identifier.timeout)
        if state == _S.IBV_QPS_INIT:
            return initAttributes(0)
        raise invalid("Failed to get QP attributes: nothing is agreed on yet")

    # -- active

    def connect(self, param: ConnParam | None) -> None:
        """
        Call the peer.

        @raise PyverbsRDMAError: parameters cannot be (EINVAL).
        """
        identifier = self._identifier
        room = REQ.privateDataBytes - len(self.header())
        terms = self._termsOf(param, room, None)
        identifier.step("connect")
        self.terms = terms
        self.findPath()

    def pathFound(self, path: Any) -> None:
        """
        The way is found: send a REQ.
        """
        identifier, terms = self._identifier, self.terms
        here, there = identifier.source, identifier.destination
        assert here is not None and there is not None and terms is not None
        self._psn = identifier.device.randomBits(_PSN_BITS)
        way = CMPath(
            localGID=gidOf(here.host),
            remoteGID=gidOf(there.host),
            flowLabel=flowLabel(here.port, there.port),
            hopLimit=HOP_LIMIT,
        )
        service = serviceID(identifier.portSpace, there.port)
        self._mtu = mtuCode(path)
        request = makeREQ(terms, service, self._psn, identifier.lifetime, way, self.header(), self._mtu)
        self._connection = identifier.device.cm.connect(path, request, self, identifier.now())

    def pathNotFound(self, error: HCAError) -> None:
        """
        There is no way, so nobody is there, or nobody answers.
        """
        if isinstance(error, NoListenerError):
            self._over(_E.RDMA_CM_EVENT_REJECTED, status=int(RejectReason.INVALID_SERVICE_ID))
        else:
            self._over(_E.RDMA_CM_EVENT_UNREACHABLE, status=-numberOf(error))

    def replied(self, connection: Any, reply: REP) -> None:
        """
        The peer accepts.
        """
        identifier, terms = self._identifier, self.terms
        assert terms is not None
        path = connection.destination
        here, there = identifier.source, identifier.destination
        assert here is not None and there is not None
        label = flowLabel(here.port, there.port)
        heard, self._agreement = answered(
            reply, terms, path, self._mtu, self._psn, identifier.lifetime, label
        )
        if identifier.qp is None:
            identifier.stage = Stage.ANSWERED
            connection.sendMRA(identifier.now())
            identifier.report(_E.RDMA_CM_EVENT_CONNECT_RESPONSE, privateData=reply.privateData, terms=heard)
            return
        try:
            identifier.bringUp()
        except HCAError as error:
            connection.reject(RejectReason.NO_RESOURCES, b"", identifier.now())
            self._over(_E.RDMA_CM_EVENT_CONNECT_ERROR, status=-numberOf(error))
            return
        identifier.stage = Stage.UP
        connection.ready(identifier.now())
        identifier.report(_E.RDMA_CM_EVENT_ESTABLISHED, privateData=reply.privateData, terms=heard)

    def establish(self) -> None:
        """
        The program's own queue pair is ready.

        @raise PyverbsRDMAError: the identifier has a queue pair, or no answer (EINVAL), or the peer
            has given up (ECONNRESET).
        """
        identifier = self._identifier
        if identifier.qp is not None:
            raise invalid("Failed to establish: the identifier's queue pair is its own")
        identifier.step("establish")
        if not self._connection.ready(identifier.now()):
            raise PyverbsRDMAError("The peer has given up", errno.ECONNRESET)

    # -- passive

    def requested(self, connection: Any, request: REQ) -> None:
        """
        Somebody calls.

        @raise UnfitRequest: it asks for what cannot be.
        """
        self._psn = self._identifier.device.randomBits(_PSN_BITS)
        self.terms, self._agreement = called(request, connection.destination, self._psn)
        self._connection = connection
        connection.user = self

    def accept(self, param: ConnParam | None) -> None:
        """
        Accept.

        @raise PyverbsRDMAError: parameters, or the queue pair, cannot be so (EINVAL), or the peer
            has given up (ECONNRESET).
        """
        identifier, agreement = self._identifier, self._agreement
        if identifier.stage is Stage.OVER:
            raise PyverbsRDMAError("The peer has given up", errno.ECONNRESET)
        terms = self._termsOf(param, REP_USER_BYTES, self.terms)
        identifier.step("accept")
        assert agreement is not None
        agreement.served, agreement.asked = terms.responderResources, terms.initiatorDepth
        try:
            identifier.bringUp()
        except BaseException:
            identifier.stage = Stage.CALLED
            raise
        if not self._connection.accept(makeREP(terms, self._psn), identifier.now()):
            identifier.bringDown()
            raise PyverbsRDMAError("The peer has given up", errno.ECONNRESET)

    def reject(self, privateData: bytes) -> None:
        """
        Refuse.

        @raise PyverbsRDMAError: there is nothing to refuse, or too much to say (EINVAL).
        """
        if len(privateData) > REJ_USER_BYTES:
            raise invalid(f"Private data has at most {REJ_USER_BYTES} octets here")
        identifier = self._identifier
        identifier.step("reject")
        self._connection.reject(RejectReason.CONSUMER_DEFINED, privateData, identifier.now())

    def established(self, connection: Any, message: object) -> None:
        """
        The peer is ready.
        """
        self._identifier.report(_E.RDMA_CM_EVENT_ESTABLISHED)

    # -- the end

    def rejected(self, connection: Any, rejection: REJ) -> None:
        """
        The peer does not want, or not any more.
        """
        self._over(_E.RDMA_CM_EVENT_REJECTED, status=rejection.reason, privateData=rejection.privateData)

    def unreachable(self, connection: Any) -> None:
        """
        The peer does not answer.
        """
        self._over(_E.RDMA_CM_EVENT_UNREACHABLE, status=-errno.ETIMEDOUT)

    def peerDisconnected(self, connection: Any) -> None:
        """
        The connection is over.  Its queue pair is the program's to end.
        """
        self._isEnding = False
        self._identifier.stage = Stage.OVER
        self._identifier.report(_E.RDMA_CM_EVENT_DISCONNECTED)
        timers = self._identifier.device.timers
        self._timer = timers.start(connection.ackSeconds, self._timewaitOver)

    def _timewaitOver(self) -> None:
        """
        Nothing of the connection can be on its way any more.
        """
        self._identifier.report(_E.RDMA_CM_EVENT_TIMEWAIT_EXIT)

    def pathLost(self, reason: PathLostError) -> None:
        """
        The peer's process is gone.
        """
        stage = self._identifier.stage
        isEnding, self._isEnding = self._isEnding, False
        if stage is Stage.UP or isEnding:
            self._over(_E.RDMA_CM_EVENT_DISCONNECTED)
        elif stage is not Stage.OVER:
            self._over(_E.RDMA_CM_EVENT_UNREACHABLE, status=-errno.ETIMEDOUT)

    def _over(self, kind: int, **what: Any) -> None:
        """
        It is over: flush what is posted, and say so.
        """
        identifier = self._identifier
        identifier.stage = Stage.OVER
        try:
            identifier.bringDown()
        except HCAError:
            pass  # Its device goes as well.
        identifier.report(kind, **what)

    def disconnect(self) -> None:
        """
        End it.  DISCONNECTED follows, unless it has come already.

        @raise PyverbsRDMAError: there is no connection (EINVAL).
        """
        identifier, connection = self._identifier, self._connection
        if connection is None and identifier.stage is Stage.CALLING:
            self.forgetPath()
            self._over(_E.RDMA_CM_EVENT_DISCONNECTED)
            return
        if connection is None:
            raise invalid("Failed to Disconnect: there is no connection")
        identifier.bringDown()
        before, identifier.stage = identifier.stage, Stage.OVER
        if before is Stage.OVER:
            return
        device = identifier.device
        # What the peer says, or its death, may come before this returns.
        self._isEnding = True
        device.disconnect(connection)
        if self._isEnding and connection.state is not State.DREQ_SENT:
            # It was never open: no answer will come.
            self._isEnding = False
            connection.user = None
            identifier.report(_E.RDMA_CM_EVENT_DISCONNECTED)

    def close(self, device: Any) -> None:
        """
        The identifier is going.
        """
        self.forgetPath()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.user = None
            connection.abandon(device.clock())
