"""
The parameters that two ends of a reliable connection negotiate: from C{ConnParam} to REQ and REP, and from
these to queue pair attributes.

Each side announces how many incoming READs it serves (I{responder resources}) and how many outgoing ones it
wants (I{initiator depth}); the peer's resources bound the depth.  All numbers of a peer are bounded here.
Throughout, C{psn} is the first PSN that this side expects, 24 bits; C{lifetime} the packet lifetime, a
timeout code; C{path} the path to the peer's HCA; C{mtu} a path MTU code.

Sources: Linux C{drivers/infiniband/core/cm.c}, C{cma.c}; rdma-core 65 C{librdmacm/cma.c},
C{pyverbs/cmid.pyx}; C{rdma_connect(3)}; IBTA vol. 1 12.7 and 12.9.8.
"""

from __future__ import annotations

import errno
from typing import Any

import attrs

from twisted_ib import limits
from twisted_ib.errors import HCAError, WireError
from twisted_ib.hca.base import attributes
from twisted_ib.hca.connection import ConnectReply, ConnectRequest, PathRecord, RejectReason
from twisted_ib.hca.wire.grh import HOP_LIMIT
from twisted_ib.hca.wire.headers import QPN_MASK
from twisted_ib.verbs.pyverbs.base.addr import GID, AHAttr, GlobalRoute
from twisted_ib.verbs.pyverbs.base.base import PyverbsObject, table, u8, u32
from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError, errnoOf
from twisted_ib.verbs.pyverbs.enums.cm import RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES
from twisted_ib.verbs.pyverbs.enums.device import ibv_access_flags, ibv_mtu
from twisted_ib.verbs.pyverbs.enums.queues import ibv_qp_attr_mask, ibv_qp_state
from twisted_ib.verbs.pyverbs.qp.qpattr import QPAttr

_M, _S = ibv_qp_attr_mask, ibv_qp_state

#: IBTA vol. 1 12.7: three bits for each retry count; as RNR retry count 7 is without limit
#: (IBTA vol. 1 12.7).
MOST_RETRIES = 7
#: Linux cma.c: C{CMA_CM_RESPONSE_TIMEOUT}, a timeout code of about four seconds, and C{CMA_MAX_CM_RETRIES}.
#: A dead peer is noticed after about 74 s.
RESPONSE_TIMEOUT = 20
CM_RETRIES = 15
#: Linux cma.c, C{CMA_IBOE_PACKET_LIFETIME}: a timeout code: 16 in 6.12, 18 in 6.1.
PACKET_LIFETIME = 16
_MTU_CODE = attributes.MTU_CODES[limits.DATAGRAM_BYTES]
#: The required attributes of IBTA vol. 1 10.3.1 for each transition, as Linux cm.c, C{cm_init_qp_rtr_attr}
#: and its siblings set them.
_INIT_MASK = _M.IBV_QP_STATE | _M.IBV_QP_PKEY_INDEX | _M.IBV_QP_PORT
_RTR_MASK = (
    _M.IBV_QP_STATE
    | _M.IBV_QP_AV
    | _M.IBV_QP_PATH_MTU
    | _M.IBV_QP_DEST_QPN
    | _M.IBV_QP_RQ_PSN
    | _M.IBV_QP_MAX_DEST_RD_ATOMIC
    | _M.IBV_QP_MIN_RNR_TIMER
)
_RTS_MASK = (
    _M.IBV_QP_STATE
    | _M.IBV_QP_SQ_PSN
    | _M.IBV_QP_TIMEOUT
    | _M.IBV_QP_RETRY_CNT
    | _M.IBV_QP_RNR_RETRY
    | _M.IBV_QP_MAX_QP_RD_ATOMIC
)


@attrs.define(eq=False)
class ConnParam(PyverbsObject):
    """
    The parameters of C{rdma_connect} and C{rdma_accept}, as C{struct rdma_conn_param}.
    """

    #: Incoming READs and atomics that this side serves at a time.
    resources: int = attrs.field(default=1, converter=u8)
    #: Outgoing READs and atomics that this side has outstanding at a time.
    depth: int = attrs.field(default=1, converter=u8)
    #: 1 for end-to-end flow control.
    flow_control: int = attrs.field(default=0, converter=u8)
    # IBTA vol. 1 12.7: both retry counts have three bits in the REQ.  pyverbs leaves larger values to the
    # kernel, which caps them at 7 (Linux cma.c, cma_connect_ib).
    #: The peer's retry count for unacknowledged requests, 0 to 7.
    retry: int = attrs.field(default=5, converter=u8)
    #: The peer's RNR retry count, 0 to 7; 7 retries without limit.
    rnr_retry: int = attrs.field(default=5, converter=u8)
    #: 1 if the queue pair has a shared receive queue.
    srq: int = attrs.field(default=0, converter=u8)
    #: The queue pair's number; ignored if the CMID has its own queue pair.
    qpn: int = attrs.field(default=0, converter=u32, alias="qp_num")
    # IBTA vol. 1 12.6: private data has no length on the wire, the area is padded with zeros.  In RDMA_PS_TCP
    # the header of annex A11 takes 36 of the REQ's 92 octets.
    #: The most octets of private data that L{set_private_data} keeps (C{RDMA_PS_TCP}: 56 in a connect, 196 in
    #: an accept).
    data_len: int = attrs.field(default=0, converter=u8)
    _private_data: bytes = attrs.field(default=b"", init=False)

    @property
    def private_data(self) -> bytes:
        """
        The private data, C{bytes}.
        """
        return self._private_data

    def set_private_data(self, data: bytes) -> None:
        """
        Set the private data, truncated to C{data_len} octets.  Empty data changes nothing.
        """
        # pyverbs/cmid.pyx truncates to data_len without an error too.
        kept = bytes(data[: self.data_len])
        if kept:
            self._private_data = kept

    def __str__(self) -> str:
        """
        A heading, then one line per field.
        """
        rows = [
            ("responder resources", self.resources),
            ("initiator depth", self.depth),
            ("flow control", self.flow_control),
            ("retry count", self.retry),
            ("rnr retry count", self.rnr_retry),
            ("srq", self.srq),
            ("qp number", self.qpn),
        ]
        return "Connection parameters: \n" + table(rows, width=4)


class UnsupportedRequest(WireError):
    """
    A REQ asks for something unsupported.
    """

    def __init__(self, text: str, reason: RejectReason) -> None:
        super().__init__(text)
        #: The L{RejectReason} to answer with.
        self.reason = reason


@attrs.define
class NegotiatedParameters:
    """
    One side's connection parameters.
    """

    # The defaults of librdmacm/cma.c without parameters: RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH, all the
    # device has.
    #: Incoming READs and atomics that it serves at a time.
    responderResources: int = limits.READS
    #: Outgoing READs and atomics that it has outstanding at a time.
    initiatorDepth: int = limits.READS
    flowControl: bool = False
    #: Retry count, 0 to 7.
    retries: int = MOST_RETRIES
    #: RNR retry count, 0 to 7; 7 retries without limit.
    rnrRetries: int = MOST_RETRIES
    shared: bool = False
    number: int = 0
    privateData: bytes = b""


def localParameters(
    param: ConnParam | None, room: int, most: NegotiatedParameters | None = None
) -> NegotiatedParameters:
    """
    Check a program's parameters; without any, the most that the device supports.

    @param room: octets of private data in the message.
    @param most: the bounds set by the peer, if known.
    @raise PyverbsRDMAError: more READs than the device supports, or too much private data (EINVAL).
    """
    terms = (
        NegotiatedParameters()
        if most is None
        else NegotiatedParameters(most.responderResources, most.initiatorDepth)
    )
    if param is not None:
        # librdmacm/cma.c, ucma_valid_param: above the device's limit is EINVAL, but the two special values
        # mean the limit.
        if param.resources != RDMA_MAX_RESP_RES:
            terms.responderResources = _reads(param.resources)
        if param.depth != RDMA_MAX_INIT_DEPTH:
            terms.initiatorDepth = _reads(param.depth)
        terms.flowControl = bool(param.flow_control)
        terms.retries = min(param.retry, MOST_RETRIES)
        terms.rnrRetries = min(param.rnr_retry, MOST_RETRIES)
        terms.shared, terms.number = bool(param.srq), param.qpn
        terms.privateData = param.private_data
    checkPrivateData(terms.privateData, room)
    # IBTA vol. 1 9.2: queue pair numbers have 24 bits; a larger one would be cut on the wire and name
    # another.
    if terms.number > QPN_MASK:
        raise PyverbsRDMAError("A queue pair number has 24 bits", errno.EINVAL)
    # IBTA vol. 1 12.7: the REP may not exceed the REQ.
    if most is not None:
        terms.responderResources = min(terms.responderResources, most.responderResources)
        terms.initiatorDepth = min(terms.initiatorDepth, most.initiatorDepth)
    return terms


def checkPrivateData(privateData: bytes, room: int) -> None:
    """
    @param room: octets of private data in the message.
    @raise PyverbsRDMAError: there is too much (EINVAL).
    """
    if len(privateData) > room:
        raise PyverbsRDMAError(f"Private data has at most {room} octets here", errno.EINVAL)


def _reads(count: int) -> int:
    if count > limits.READS:
        raise PyverbsRDMAError(f"At most {limits.READS} READs are on the way", errno.EINVAL)
    return count


def paramOf(terms: NegotiatedParameters) -> ConnParam:
    """
    Convert to the program's C{ConnParam}.
    """
    return ConnParam(
        terms.responderResources,
        terms.initiatorDepth,
        int(terms.flowControl),
        terms.retries,
        terms.rnrRetries,
        int(terms.shared),
        terms.number,
    )


def ackTimeout(lifetime: int, delay: int) -> int:
    """
    The local ACK timeout code, as Linux cm.c, C{cm_ack_timeout} computes it.

    @param delay: the peer's ACK delay, a timeout code.
    """
    # IBTA vol. 1 12.7.34: two packet lifetimes, one code more, and the ACK delay, which is another code if
    # both are of about the same size.
    total = lifetime + 1
    if total >= delay:
        total += delay >= total - 1
    else:
        total = delay + (total >= delay - 1)
    # Five bits (IBTA vol. 1 9.7.6.1.3).
    return min(total, 31)


def flowLabel(source: int, destination: int) -> int:
    """
    The flow label of a path, from its two ports; 20 bits.
    """
    # Linux cma.c, cma_get_roce_udp_flow_label.  It decides the UDP source port of RoCEv2, and so spreads
    # connections over network paths and receive queues.
    return (source * 31 + destination) & 0xFFFFF


def makeRequest(
    terms: NegotiatedParameters,
    serviceID: int,
    psn: int,
    lifetime: int,
    path: PathRecord,
    header: bytes,
    mtu: int = _MTU_CODE,
) -> ConnectRequest:
    """
    Make the active side's REQ.

    @param path: the addresses of the primary path.
    @param header: precedes the program's private data.
    """
    # IBTA vol. 1 12.7: the REQ's timeout is the active side's guess, with its own ACK delay; the passive side
    # uses it as it is.
    timeout = ackTimeout(lifetime, attributes.ACK_DELAY_CODE)
    return ConnectRequest(
        serviceID=serviceID,
        localQPN=terms.number,
        responderResources=terms.responderResources,
        initiatorDepth=terms.initiatorDepth,
        endToEndFlowControl=terms.flowControl,
        startingPSN=psn,
        responseTimeout=RESPONSE_TIMEOUT,
        retryCount=terms.retries,
        pathMTU=mtu,
        rnrRetryCount=terms.rnrRetries,
        requestRetries=CM_RETRIES,
        sharedReceiveQueue=terms.shared,
        primaryPath=attrs.evolve(path, localACKTimeout=timeout),
        privateData=header + terms.privateData,
    )


def makeReply(terms: NegotiatedParameters, psn: int) -> ConnectReply:
    """
    Make the passive side's REP.
    """
    return ConnectReply(
        localQPN=terms.number,
        startingPSN=psn,
        responderResources=terms.responderResources,
        initiatorDepth=terms.initiatorDepth,
        # The active side recomputes its local ACK timeout from this one (Linux cm.c, cm_rep_handler).
        targetACKDelay=attributes.ACK_DELAY_CODE,
        endToEndFlowControl=terms.flowControl,
        rnrRetryCount=terms.rnrRetries,
        sharedReceiveQueue=terms.shared,
        privateData=terms.privateData,
    )


def remoteParameters(
    message: ConnectRequest | ConnectReply, own: NegotiatedParameters
) -> NegotiatedParameters:
    """
    The peer's parameters from this side's point of view: its initiator depth is what this side serves.

    @param own: the bounds of this side.
    """
    return NegotiatedParameters(
        # A peer may announce any numbers, and the SRP target of Linux exceeds the REQ's in its REP: never
        # trust them.
        min(message.initiatorDepth, own.responderResources),
        min(message.responderResources, own.initiatorDepth),
        message.endToEndFlowControl,
        message.retryCount if isinstance(message, ConnectRequest) else 0,
        message.rnrRetryCount,
        message.sharedReceiveQueue,
        message.localQPN,
    )


@attrs.define
class QueuePairParameters:
    """
    The attributes of one queue pair.
    """

    #: The path to the peer's HCA.
    path: Any
    flowLabel: int
    #: The peer's queue pair number.
    remote: int
    #: The first PSN to receive; C{first} is the first to send.
    expected: int
    first: int
    #: One of C{ibv_mtu}.
    mtu: int
    #: Incoming READs at a time; C{asked} are outgoing ones.
    served: int
    asked: int
    retries: int
    rnrRetries: int
    #: A timeout code.
    ackTimeout: int

    def attributes(self, state: int, timeout: int | None) -> tuple[QPAttr, int]:
        """
        The attributes of a transition.

        @param timeout: overrides C{ackTimeout}, unless None.
        @return: the attributes, and their C{ibv_qp_attr_mask}.
        @raise PyverbsRDMAError: there is no such transition (EINVAL).
        """
        attr = QPAttr(qp_state=state, port_num=attributes.PORT)
        if state == _S.IBV_QPS_INIT:
            return initAttributes(self.served)
        if state == _S.IBV_QPS_RTR:
            address = addressOf(self.path, self.flowLabel)
            # The path of the CM messages is kept: resolving the GID again might find another one, and RC
            # packets must come from one address (IBTA vol. 1 9.6; Linux rxe_recv.c, check_addr).
            address.path = self.path
            attr.ah_attr = address
            attr.path_mtu, attr.dest_qp_num, attr.rq_psn = self.mtu, self.remote, self.expected
            attr.max_dest_rd_atomic = self.served
            # Code 0 is 655 ms, not 0 (IBTA vol. 1 9.7.5.2.8).  Linux cm.c, cm_init_qp_rtr_attr leaves it at
            # 0.
            attr.min_rnr_timer = 0
            return attr, int(_RTR_MASK)
        if state == _S.IBV_QPS_RTS:
            attr.sq_psn, attr.retry_cnt, attr.rnr_retry = self.first, self.retries, self.rnrRetries
            attr.timeout = self.ackTimeout if timeout is None else timeout
            attr.max_rd_atomic = self.asked
            return attr, int(_RTS_MASK)
        raise PyverbsRDMAError("Failed to get QP attributes", errno.EINVAL)


def initAttributes(served: int) -> tuple[QPAttr, int]:
    """
    The attributes of a connected queue pair's transition to INIT.

    @param served: incoming READs at a time; 0 if there is no peer yet.
    """
    attr = QPAttr(qp_state=_S.IBV_QPS_INIT, port_num=attributes.PORT)
    # Linux cm.c, cm_init_qp_init_attr: remote write always, remote read and atomics only with responder
    # resources.
    access = ibv_access_flags.IBV_ACCESS_REMOTE_WRITE
    if served:
        access |= ibv_access_flags.IBV_ACCESS_REMOTE_READ | ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC
    attr.qp_access_flags = access
    return attr, int(_INIT_MASK | _M.IBV_QP_ACCESS_FLAGS)


def datagramAttributes(state: int, key: int) -> tuple[QPAttr, int]:
    """
    The attributes of a datagram queue pair's transition.

    @param key: the Q_Key.
    @raise PyverbsRDMAError: there is no such transition (EINVAL).
    """
    attr = QPAttr(qp_state=state, port_num=attributes.PORT)
    if state == _S.IBV_QPS_INIT:
        attr.qkey = key
        return attr, int(_INIT_MASK | _M.IBV_QP_QKEY)
    # IBTA vol. 1 10.3.1: a UD queue pair needs no address vector for RTR; each request brings its own.
    if state == _S.IBV_QPS_RTR:
        return attr, int(_M.IBV_QP_STATE)
    if state == _S.IBV_QPS_RTS:
        return attr, int(_M.IBV_QP_STATE | _M.IBV_QP_SQ_PSN)
    raise PyverbsRDMAError("Failed to get QP attributes", errno.EINVAL)


def parametersFromRequest(
    request: ConnectRequest, path: Any, psn: int
) -> tuple[NegotiatedParameters, QueuePairParameters]:
    """
    The passive side's parameters, from a REQ.

    @raise UnsupportedRequest: it asks for something unsupported.
    """
    if request.unsupported is not None:
        raise UnsupportedRequest(request.unsupported.name, request.unsupported)
    # The queue pair gets it as an attribute, also where records need none.
    if request.pathMTU not in list(ibv_mtu):
        raise UnsupportedRequest(f"MTU code {request.pathMTU}", RejectReason.INVALID_MTU)
    terms = remoteParameters(request, NegotiatedParameters())
    return terms, QueuePairParameters(
        path,
        request.primaryPath.flowLabel,
        request.localQPN,
        psn,
        request.startingPSN,
        # IBTA vol. 1 12.7: the REQ's path MTU is for both directions.
        min(request.pathMTU, _MTU_CODE),
        terms.responderResources,
        terms.initiatorDepth,
        # Both sides use the REQ's retry count; the RNR retry count is what the peer announces (Linux cm.c,
        # cm_init_qp_rts_attr).
        request.retryCount,
        request.rnrRetryCount,
        request.primaryPath.localACKTimeout,
    )


def parametersFromReply(
    reply: ConnectReply, own: NegotiatedParameters, path: Any, mtu: int, psn: int, lifetime: int, label: int
) -> tuple[NegotiatedParameters, QueuePairParameters]:
    """
    The active side's parameters, from a REP.

    @param own: the parameters of the REQ.
    @param mtu: the path MTU code of the REQ.
    """
    terms = remoteParameters(reply, own)
    return terms, QueuePairParameters(
        path,
        label,
        reply.localQPN,
        psn,
        reply.startingPSN,
        mtu,
        terms.responderResources,
        terms.initiatorDepth,
        own.retries,
        reply.rnrRetryCount,
        ackTimeout(lifetime, reply.targetACKDelay),
    )


def addressOf(path: Any, label: int = 0) -> AHAttr:
    """
    The address vector of the HCA that a path leads to.
    """
    resolution = path.fabric.owner.paths
    gid = resolution.gidOf(path).to_bytes(16, "big")
    found = groupAddress(GID.of(gid), HOP_LIMIT, label)
    found.dlid = resolution.lidOf(path)
    return found


def groupAddress(gid: GID, hops: int = 1, label: int = 0) -> AHAttr:
    """
    The address vector of a GID.
    """
    route = GlobalRoute(dgid=gid, flow_label=label, hop_limit=hops)
    return AHAttr(is_global=1, port_num=attributes.PORT, gr=route)


def errnoFor(error: Exception) -> int:
    """
    The errno for an error.
    """
    if isinstance(error, PyverbsRDMAError) and error.error_code > 0:
        return error.error_code
    # Else one of the kernel's, in the search for a path.
    return errnoOf(error) if isinstance(error, HCAError) else getattr(error, "errno", None) or errno.EIO
