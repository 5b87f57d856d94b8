"""
What two ends of a reliable connection agree on: parameters of a program, REQ, REP, and the
attributes of the queue pairs that follow from them.

Each side says how many READs it serves at a time (I{responder resources}) and how many it wants
to have on the way (I{initiator depth}); what one wants is bounded by what the other serves.  All
numbers of a peer are bounded here.  Sources: Linux C{drivers/infiniband/core/cm.c} and
C{cma.c}; rdma-core 65 C{librdmacm}; IBTA vol. 1 12.7, 12.9.8.
"""

from __future__ import annotations

import errno
from typing import Any

import attrs

from twisted_ib import limits
from twisted_ib.errors import HCAError, WireError
from twisted_ib.hca.base import attributes
from twisted_ib.hca.base.operation import QPN_MASK
from twisted_ib.hca.verbs.base.addr import GID, AHAttr, GlobalRoute
from twisted_ib.hca.verbs.base.errors import PyverbsRDMAError, errnoOf
from twisted_ib.hca.verbs.cm.connparam import ConnParam
from twisted_ib.hca.verbs.enums.cm import RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES
from twisted_ib.hca.verbs.enums.device import ibv_access_flags, ibv_mtu
from twisted_ib.hca.verbs.enums.queues import ibv_qp_attr_mask, ibv_qp_state
from twisted_ib.hca.verbs.qp.qpattr import QPAttr
from twisted_ib.hca.wire.cm import REP, REQ, CMPath
from twisted_ib.hca.wire.cm.codes import RejectReason

_M, _S = ibv_qp_attr_mask, ibv_qp_state

#: The most that three bits say; as RNR retries for ever.
MOST_RETRIES = 7
#: Linux RDMA-CM's: the timeout codes of messages, about four seconds, and how often one is
#: repeated; the lifetime of packets and the hop limit of a path on Ethernet.
RESPONSE_TIMEOUT = 20
CM_RETRIES = 15
PACKET_LIFETIME = 16
HOP_LIMIT = 64
#: Transport service type of a REQ.
_RELIABLE_CONNECTION = 0
_MTU_CODE = attributes.MTU_CODES[limits.DATAGRAM_BYTES]
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


class UnfitRequest(WireError):
    """
    A REQ asks for what cannot be.

    @ivar reason: the L{RejectReason} to answer with.
    """

    def __init__(self, text: str, reason: RejectReason) -> None:
        """
        @param text: what it asks for.
        @param reason: the answer.
        """
        super().__init__(text)
        self.reason = reason


@attrs.define
class NegotiatedParameters:
    """
    What one side has to say.

    @ivar responderResources: READs and atomics of the peer that it serves at a time.
    @ivar initiatorDepth: READs and atomics to the peer that it wants on the way at a time.
    @ivar retries: 0 to 7.
    @ivar rnrRetries: 0 to 7; 7 is for ever.
    """

    responderResources: int = limits.READS
    initiatorDepth: int = limits.READS
    flowControl: bool = False
    retries: int = MOST_RETRIES
    rnrRetries: int = MOST_RETRIES
    shared: bool = False
    number: int = 0
    privateData: bytes = b""


def termsOf(
    param: ConnParam | None, room: int, most: NegotiatedParameters | None = None
) -> NegotiatedParameters:
    """
    What a program says; without parameters, as much as the device can.

    @param room: octets of private data that the message has.
    @param most: the bounds that the peer sets, if it is known.

    @raise PyverbsRDMAError: more READs than the device can, or too much private data (EINVAL).
    """
    terms = (
        NegotiatedParameters()
        if most is None
        else NegotiatedParameters(most.responderResources, most.initiatorDepth)
    )
    if param is not None:
        if param.resources != RDMA_MAX_RESP_RES:
            terms.responderResources = _reads(param.resources)
        if param.depth != RDMA_MAX_INIT_DEPTH:
            terms.initiatorDepth = _reads(param.depth)
        terms.flowControl = bool(param.flow_control)
        terms.retries = min(param.retry, MOST_RETRIES)
        terms.rnrRetries = min(param.rnr_retry, MOST_RETRIES)
        terms.shared, terms.number = bool(param.srq), param.qpn
        terms.privateData = param.private_data
    if len(terms.privateData) > room:
        raise PyverbsRDMAError(f"Private data has at most {room} octets here", errno.EINVAL)
    if terms.number > QPN_MASK:
        raise PyverbsRDMAError("A queue pair number has 24 bits", errno.EINVAL)
    if most is not None:
        terms.responderResources = min(terms.responderResources, most.responderResources)
        terms.initiatorDepth = min(terms.initiatorDepth, most.initiatorDepth)
    return terms


def _reads(count: int) -> int:
    """
    @raise PyverbsRDMAError: the device cannot have so many on the way.
    """
    if count > limits.READS:
        raise PyverbsRDMAError(f"At most {limits.READS} READs are on the way", errno.EINVAL)
    return count


def paramOf(terms: NegotiatedParameters) -> ConnParam:
    """
    Terms as a program sees them.
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
    How long to wait for an acknowledgement.

    @param lifetime: of a packet, a timeout code.
    @param delay: how long the peer takes for it, a timeout code.
    @return: a timeout code, as Linux's C{cm_ack_timeout} has it.
    """
    total = lifetime + 1
    if total >= delay:
        total += delay >= total - 1
    else:
        total = delay + (total >= delay - 1)
    return min(total, 31)


def flowLabel(source: int, destination: int) -> int:
    """
    The flow label of a path.

    @param source: a port; C{destination} likewise.
    """
    return (source * 31 + destination) & 0xFFFFF


def makeREQ(
    terms: NegotiatedParameters,
    serviceID: int,
    psn: int,
    lifetime: int,
    path: CMPath,
    header: bytes,
    mtu: int = _MTU_CODE,
) -> REQ:
    """
    The REQ of an active side.

    @param psn: what it wants to hear first, 24 bits.
    @param lifetime: of packets, a timeout code.
    @param path: its addresses.
    @param header: what precedes the private data of the program.
    @param mtu: the code of what a packet carries.
    """
    timeout = ackTimeout(lifetime, attributes.ACK_DELAY_CODE)
    return REQ(
        serviceID=serviceID,
        localQPN=terms.number,
        responderResources=terms.responderResources,
        initiatorDepth=terms.initiatorDepth,
        remoteCMResponseTimeout=RESPONSE_TIMEOUT,
        endToEndFlowControl=terms.flowControl,
        startingPSN=psn,
        localCMResponseTimeout=RESPONSE_TIMEOUT,
        retryCount=terms.retries,
        pathMTU=mtu,
        rnrRetryCount=terms.rnrRetries,
        maxCMRetries=CM_RETRIES,
        sharedReceiveQueue=terms.shared,
        primaryPath=attrs.evolve(path, localACKTimeout=timeout),
        privateData=header + terms.privateData,
    )


def makeREP(terms: NegotiatedParameters, psn: int) -> REP:
    """
    The REP of a passive side.

    @param psn: what it wants to hear first, 24 bits.
    """
    return REP(
        localQPN=terms.number,
        startingPSN=psn,
        responderResources=terms.responderResources,
        initiatorDepth=terms.initiatorDepth,
        targetACKDelay=attributes.ACK_DELAY_CODE,
        endToEndFlowControl=terms.flowControl,
        rnrRetryCount=terms.rnrRetries,
        sharedReceiveQueue=terms.shared,
        privateData=terms.privateData,
    )


def heard(message: REQ | REP, own: NegotiatedParameters) -> NegotiatedParameters:
    """
    What the peer says, from this side's point of view: what it wants is what is served here.

    @param own: the bounds of this side.
    """
    return NegotiatedParameters(
        min(message.initiatorDepth, own.responderResources),
        min(message.responderResources, own.initiatorDepth),
        message.endToEndFlowControl,
        message.retryCount if isinstance(message, REQ) else 0,
        message.rnrRetryCount,
        message.sharedReceiveQueue,
        message.localQPN,
    )


@attrs.define
class Agreement:
    """
    What a queue pair needs to know.

    @ivar path: the way to the peer's HCA.
    @ivar gid: the GID of that HCA, as the way has it.
    @ivar flowLabel: of the path.
    @ivar remote: the peer's queue pair.
    @ivar expected: the packet number to come first, C{first} the one to send first.
    @ivar mtu: one of C{ibv_mtu}.
    @ivar served: READs of the peer at a time, C{asked} those to it.
    @ivar ackTimeout: a timeout code.
    """

    path: Any
    gid: int
    flowLabel: int
    remote: int
    expected: int
    first: int
    mtu: int
    served: int
    asked: int
    retries: int
    rnrRetries: int
    ackTimeout: int

    def attributes(self, state: int, timeout: int | None) -> tuple[QPAttr, int]:
        """
        The attributes for the step into a state.

        @param timeout: what the program has set for C{ackTimeout}, or None.
        @return: them, and which are meant: bits of C{ibv_qp_attr_mask}.

        @raise PyverbsRDMAError: no attributes lead there (EINVAL).
        """
        attr = QPAttr(qp_state=state, port_num=attributes.PORT)
        if state == _S.IBV_QPS_INIT:
            return initAttributes(self.served)
        if state == _S.IBV_QPS_RTR:
            address = addressOf(self.gid, self.flowLabel)
            address.path = self.path
            attr.ah_attr = address
            attr.path_mtu, attr.dest_qp_num, attr.rq_psn = self.mtu, self.remote, self.expected
            attr.max_dest_rd_atomic = self.served
            # 655 ms: Linux's RDMA-CM leaves it at 0.
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
    The attributes for the step into INIT of a connected queue pair.

    @param served: READs of the peer at a time; 0 if there is no peer yet.
    """
    attr = QPAttr(qp_state=_S.IBV_QPS_INIT, port_num=attributes.PORT)
    access = ibv_access_flags.IBV_ACCESS_REMOTE_WRITE
    if served:
        access |= ibv_access_flags.IBV_ACCESS_REMOTE_READ | ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC
    attr.qp_access_flags = access
    return attr, int(_INIT_MASK | _M.IBV_QP_ACCESS_FLAGS)


def datagramAttributes(state: int, key: int) -> tuple[QPAttr, int]:
    """
    The attributes for the step of a datagram queue pair into a state.

    @param key: its Q_Key.

    @raise PyverbsRDMAError: no attributes lead there (EINVAL).
    """
    attr = QPAttr(qp_state=state, port_num=attributes.PORT)
    if state == _S.IBV_QPS_INIT:
        attr.qkey = key
        return attr, int(_INIT_MASK | _M.IBV_QP_QKEY)
    if state == _S.IBV_QPS_RTR:
        return attr, int(_M.IBV_QP_STATE)
    if state == _S.IBV_QPS_RTS:
        return attr, int(_M.IBV_QP_STATE | _M.IBV_QP_SQ_PSN)
    raise PyverbsRDMAError("Failed to get QP attributes", errno.EINVAL)


def called(request: REQ, path: Any, psn: int) -> tuple[NegotiatedParameters, Agreement]:
    """
    What a REQ offers to a passive side.

    @param path: the way it came.
    @param psn: what this side wants to hear first.

    @raise UnfitRequest: it asks for what cannot be.
    """
    if request.transportServiceType != _RELIABLE_CONNECTION:
        raise UnfitRequest("another transport service", RejectReason.INVALID_TRANSPORT_TYPE)
    if request.pathMTU not in list(ibv_mtu) or not _isPossible(request.pathMTU, path):
        # Packets of the size that the peer will send do not reach it from here.
        raise UnfitRequest(f"MTU code {request.pathMTU}", RejectReason.INVALID_MTU)
    terms = heard(request, NegotiatedParameters())
    return terms, Agreement(
        path,
        path.peer.gid,
        request.primaryPath.flowLabel,
        request.localQPN,
        psn,
        request.startingPSN,
        min(request.pathMTU, _MTU_CODE),
        terms.responderResources,
        terms.initiatorDepth,
        request.retryCount,
        request.rnrRetryCount,
        request.primaryPath.localACKTimeout,
    )


def _isPossible(code: int, path: Any) -> bool:
    """
    Whether packets of a size reach a peer.  What the interface carries is not doubted: what the kernel
    knows of the way, strangers may have told it.

    @param code: of the path MTU.
    @param path: the way to the peer's HCA.
    """
    fabric = path.fabric
    return not fabric.addressed or code <= attributes.MTU_CODES[fabric.pathMTU] or code <= mtuCode(path)


def answered(
    reply: REP, own: NegotiatedParameters, path: Any, mtu: int, psn: int, lifetime: int, label: int
) -> tuple[NegotiatedParameters, Agreement]:
    """
    What a REP gives to an active side.

    @param own: what this side has said.
    @param path: the way it came.
    @param mtu: the code of what a packet carries, as the REQ has said.
    @param psn: what this side wants to hear first.
    @param lifetime: of packets, a timeout code.
    @param label: the flow label of the path.
    """
    terms = heard(reply, own)
    return terms, Agreement(
        path,
        path.peer.gid,
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


def mtuCode(path: Any) -> int:
    """
    @param path: the way to a peer's HCA.
    @return: the most that a packet carries to it, a code.
    """
    fabric = path.fabric
    return attributes.MTU_CODES[fabric.owner.pathMTUTo(path)] if fabric.addressed else _MTU_CODE


def addressOf(gid: int, label: int = 0) -> AHAttr:
    """
    The address of an HCA.

    @param gid: the GID that leads to it.
    @param label: the flow label of the path.
    """
    return groupAddress(GID(gid.to_bytes(16, "big").hex(":", 2)), HOP_LIMIT, label)


def groupAddress(gid: GID, hops: int = 1, label: int = 0) -> AHAttr:
    """
    The address that a GID is.
    """
    route = GlobalRoute(dgid=gid, flow_label=label, hop_limit=hops)
    return AHAttr(is_global=1, port_num=attributes.PORT, gr=route)


def numberOf(error: HCAError) -> int:
    """
    The errno of whatever went wrong.
    """
    if isinstance(error, PyverbsRDMAError) and error.error_code > 0:
        return error.error_code
    return errnoOf(error)
