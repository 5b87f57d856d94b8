"""
How an identifier speaks on the wire: the stages of an identifier and the commands that each permits, and what
its connections and datagram services share, private data header and path resolution.

A connection is REQ, REP, RTU (L{Connected}), and the state transitions of its queue pair.  The passive side's
queue pair is in RTS before the REP is sent, the active side's before the RTU is sent, as data may follow
either at once (IBTA vol. 1 12.9.8).  A program with a queue pair of its own performs these transitions
itself, with the attributes of L{Connected.attributes}.

A datagram service is SIDR_REQ, SIDR_REP (L{Datagrams}; IBTA vol. 1 12.11).  The queue pair needs no
connection: it is in RTS from the start.  The active side learns the address, queue pair number and Q_Key to
send to; the passive side learns the sender's address.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from twisted_ib.errors import HCAError, NoListenerError, PathLostError
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.connection import (
    ConnectReply,
    ConnectRequest,
    LookupReply,
    LookupRequest,
    PathRecord,
    Rejection,
    RejectReason,
    SIDRStatus,
)
from twisted_ib.hca.connection.active import ActiveSide
from twisted_ib.hca.connection.rdmacm import RDMACMHeader, gidNumber, gidOf, serviceID
from twisted_ib.hca.wire.grh import HOP_LIMIT
from twisted_ib.hca.wire.headers import QPN_MASK
from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError
from twisted_ib.verbs.pyverbs.base.verb import invalid
from twisted_ib.verbs.pyverbs.cm.event import Target
from twisted_ib.verbs.pyverbs.cm.negotiation import (
    CM_RETRIES,
    RESPONSE_TIMEOUT,
    ConnParam,
    NegotiatedParameters,
    QueuePairParameters,
    addressOf,
    checkPrivateData,
    datagramAttributes,
    errnoFor,
    flowLabel,
    initAttributes,
    localParameters,
    makeReply,
    makeRequest,
    parametersFromReply,
    parametersFromRequest,
)
from twisted_ib.verbs.pyverbs.enums.cm import RDMA_UDP_QKEY, rdma_cm_event_type, rdma_port_space
from twisted_ib.verbs.pyverbs.enums.queues import ibv_qp_state
from twisted_ib.verbs.pyverbs.qp.qpattr import QPAttr

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.verbs.pyverbs.cm.identifier import Identifier

_E, _S = rdma_cm_event_type, ibv_qp_state

_PSN_BITS = 24


class Stage(IntEnum):
    """
    The stages, after C{enum rdma_cm_state} of Linux cma.c.

    @cvar BOUND: bound to an address of this host.
    @cvar RESOLVING: the kernel looks for the next hop to the destination.
    @cvar RESOLVED: the destination is reachable.
    @cvar ROUTED: the route is known.
    @cvar CALLED: a request was received and not answered.
    @cvar ANSWERED: the REP was received; the program must call C{establish}.
    @cvar UP: established, or a REP was sent and the RTU is awaited.
    @cvar OVER: rejected, failed or disconnected.
    """

    IDLE = 0
    BOUND = 1
    RESOLVED = 2
    ROUTED = 3
    REQ_SENT = 4
    REQ_RECEIVED = 5
    REP_RECEIVED = 6
    UP = 7
    OVER = 8
    LISTENING = 9
    CLOSED = 10
    RESOLVING = 11


#: Command -> (stages that permit it, next stage).  Linux cma.c checks the same with C{cma_comp_exch}: a
#: command in any other stage is EINVAL.
STEPS: dict[str, tuple[frozenset[Stage], Stage]] = {
    "bind": (frozenset((Stage.IDLE,)), Stage.BOUND),
    "resolve address": (frozenset((Stage.BOUND,)), Stage.RESOLVING),
    "resolve route": (frozenset((Stage.RESOLVED,)), Stage.ROUTED),
    "connect": (frozenset((Stage.ROUTED,)), Stage.REQ_SENT),
    "listen": (frozenset((Stage.BOUND,)), Stage.LISTENING),
    "accept": (frozenset((Stage.REQ_RECEIVED,)), Stage.UP),
    "reject": (frozenset((Stage.REQ_RECEIVED,)), Stage.OVER),
    "establish": (frozenset((Stage.REP_RECEIVED,)), Stage.UP),
}


class Call(ActiveSide):
    """
    One identifier's connection attempt or lookup.
    """

    def __init__(self, identifier: Identifier) -> None:
        self._identifier = identifier

    def header(self) -> bytes:
        """
        The header before the active side's private data; empty in C{RDMA_PS_IB}.
        """
        identifier = self._identifier
        here, there = identifier.source, identifier.destination
        # IBTA vol. 1 annex A11: IP port spaces carry the IP addresses and the source port in private data.
        # AF_IB identifiers have no header (Linux cma.c, cma_user_data_offset).
        if identifier.portSpace == rdma_port_space.RDMA_PS_IB or here is None or there is None:
            return b""
        return RDMACMHeader(here.host, here.port, there.host).pack()

    def findPath(self) -> None:
        """
        Resolve the path to the peer.
        """
        identifier = self._identifier
        there = identifier.destination
        assert there is not None
        device = self.device = identifier.device
        # IBTA vol. 1 4.1.1: a link-local GID holds the HCA's GUID; RDMA_PS_IB may address an HCA by it,
        # and no service lookup is needed.
        if identifier.portSpace == rdma_port_space.RDMA_PS_IB and there.host.startswith("fe80:"):
            self.find(device.services.connectHCA, gidNumber(there.host))
        else:
            self.find(device.connect, identifier.portSpace, there.host, there.port)


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


class Datagrams(Call):
    """
    The service lookup of one identifier.

    @ivar terms: None: datagrams negotiate nothing.
    """

    # librdmacm/cma.c, ucma_init_ud_qp: a UD queue pair needs no peer for RTS.
    initialStates = (_S.IBV_QPS_INIT, _S.IBV_QPS_RTR, _S.IBV_QPS_RTS)
    terms = None

    def __init__(self, identifier: Identifier) -> None:
        super().__init__(identifier)
        self.connection: Any = None
        self._privateData = b""

    def attributes(self, state: int) -> tuple[QPAttr, int]:
        """
        The attributes of the queue pair's transition into a state.

        @raise PyverbsRDMAError: there is no such transition (EINVAL).
        """
        return datagramAttributes(state, RDMA_UDP_QKEY)

    # -- active

    def connect(self, param: ConnParam | None) -> None:
        """
        Begin to look up the service.

        @raise PyverbsRDMAError: bad parameters (EINVAL).
        """
        data = self.header() + (param.private_data if param is not None else b"")
        if len(data) > self._identifier.privateBytes.lookup:
            raise invalid("Failed to Connect: too much private data")
        self._identifier.step("connect")
        self._privateData = data
        self.findPath()

    def send(self, path: IPeerPath) -> Any:
        identifier = self._identifier
        assert identifier.destination is not None
        service = serviceID(identifier.portSpace, identifier.destination.port)
        request = LookupRequest(service, self._privateData, RESPONSE_TIMEOUT, CM_RETRIES)
        return identifier.device.sendLookup(path, request, self, identifier.now())

    def unsent(self, error: Exception) -> None:
        nobody = isinstance(error, NoListenerError)
        # SIDR status 1, as the peer's CM would answer for an unknown service (Linux ib_cm.h,
        # ib_cm_sidr_status).
        status = int(SIDRStatus.SERVICE_ID_UNSUPPORTED) if nobody else -errnoFor(error)
        self._over(status)

    def found(self, lookup: Any, reply: LookupReply) -> None:
        """
        The SIDR_REP was received.
        """
        identifier = self._identifier
        self.connection = None
        # Linux cma.c, cma_sidr_rep_handler reports UNREACHABLE with the SIDR status as event status.
        if reply.status != SIDRStatus.VALID:
            self._over(reply.status, reply.privateData)
            return
        identifier.stage = Stage.UP
        address = addressOf(lookup.destination)
        identifier.report(
            _E.RDMA_CM_EVENT_ESTABLISHED,
            privateData=reply.privateData,
            target=Target(address, reply.queuePairNumber, reply.qKey),
        )

    def unanswered(self) -> None:
        self._over(-errno.ETIMEDOUT)

    def _over(self, status: int, privateData: bytes = b"") -> None:
        self._identifier.stage = Stage.OVER
        self._identifier.report(_E.RDMA_CM_EVENT_UNREACHABLE, status=status, privateData=privateData)

    def establish(self) -> None:
        """
        @raise PyverbsRDMAError: always (EINVAL): there is no connection.
        """
        raise invalid("Failed to establish: datagrams need no connection")

    # -- passive

    def requested(self, lookup: Any, request: LookupRequest) -> None:
        """
        A SIDR_REQ was received.
        """
        self.connection = lookup
        lookup.user = self

    def accept(self, param: ConnParam | None) -> None:
        """
        Answer with the queue pair number.

        @raise PyverbsRDMAError: there is no queue pair, or bad parameters (EINVAL), or the peer is gone
            (ECONNRESET).
        """
        identifier = self._identifier
        data = param.private_data if param is not None else b""
        if identifier.qp is not None:
            number = identifier.qp.qp_num
        # IBTA vol. 1 12.11: the SIDR_REP has 24 bits for the queue pair number.
        elif param is not None and param.qpn <= QPN_MASK:
            number = param.qpn
        else:
            raise invalid("An identifier without a queue pair needs connection parameters with one")
        checkPrivateData(data, identifier.privateBytes.lookupReply)
        identifier.step("accept")
        # Linux cma.c answers with the Q_Key of RDMA-CM's UD services too, RDMA_UDP_QKEY.
        reply = LookupReply(queuePairNumber=number, qKey=RDMA_UDP_QKEY, privateData=data)
        if not self.connection.answer(reply, identifier.now()):
            raise PyverbsRDMAError("The peer is gone", errno.ECONNRESET)

    def reject(self, privateData: bytes) -> None:
        """
        Answer with status REJECTED.

        @raise PyverbsRDMAError: there is no request, or too much private data (EINVAL).
        """
        identifier = self._identifier
        checkPrivateData(privateData, identifier.privateBytes.lookupReply)
        identifier.step("reject")
        self.connection.reject(SIDRStatus.REJECTED, privateData, identifier.now())

    # -- the end

    def pathLost(self, reason: PathLostError) -> None:
        # Once the lookup has an answer nothing depends on the path any more.
        if self._identifier.stage is Stage.REQ_SENT:
            self.connection = None
            self._over(-errno.ETIMEDOUT)

    def disconnect(self) -> None:
        """
        Flush the queue pair; there is no connection to end.
        """
        self._identifier.bringDown()

    def close(self, device: Any) -> None:
        """
        Release the lookup; the identifier is closing.
        """
        lookup, self.connection = self.connection, None
        self.giveUp()
        if lookup is not None:
            lookup.user = None
            lookup.close(device.clock())
