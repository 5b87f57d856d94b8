"""
Requests to connect and their answers (L{twisted_ib.hca.connection}) as messages of the communication manager,
and back, but for REQ and REP: one that was received is a request or reply itself.

Communication ids, GUIDs and whatever else only the communication manager knows are not set here.
"""

from __future__ import annotations

from twisted_ib.hca.base.partition import DEFAULT_PKEY
from twisted_ib.hca.connection import (
    ConnectReply,
    ConnectRequest,
    LookupReply,
    LookupRequest,
    Rejection,
    RejectReason,
)
from twisted_ib.hca.wire.cm.messages import REJ, REP, REQ, SIDR_REP, SIDR_REQ


def requestMessage(request: ConnectRequest) -> REQ:
    """
    @return: the REQ of a request.
    """
    timeout = request.responseTimeout
    # By position, as keywords cost more than the object; in the order of the message.
    # fmt: off
    return REQ(
        0, request.vendorID, request.serviceID, 0,
        0, request.localQPN, request.responderResources, request.localEECN, request.initiatorDepth, 0,
        timeout, 0, request.endToEndFlowControl, request.startingPSN, timeout, request.retryCount,
        DEFAULT_PKEY, request.pathMTU, False, request.rnrRetryCount,
        request.requestRetries, request.sharedReceiveQueue, 0,
        request.primaryPath, None, request.privateData,
    )
    # fmt: on


def requestOf(message: REQ) -> ConnectRequest:
    """
    @return: the request of a REQ, which it is itself.
    """
    # IBTA vol. 1 12.6.7.2, reason 9: only RC (0); connections need its order and retransmission.
    if message.transportServiceType:
        message.unsupported = RejectReason.INVALID_TRANSPORT_TYPE
    return message


def replyMessage(reply: ConnectReply) -> REP:
    """
    @return: the REP of a reply.
    """
    # fmt: off
    return REP(
        0, 0, 0, reply.localQPN, reply.vendorID, reply.localEECN, reply.startingPSN,
        reply.responderResources, reply.initiatorDepth,
        reply.targetACKDelay, 0, reply.endToEndFlowControl,
        reply.rnrRetryCount, reply.sharedReceiveQueue, 0, reply.privateData,
    )
    # fmt: on


def rejectionOf(message: REJ) -> Rejection:
    """
    @return: the rejection of a REJ.
    """
    return Rejection(message.reason, message.privateData)


def lookupMessage(request: LookupRequest) -> SIDR_REQ:
    """
    @return: the SIDR_REQ of a lookup.
    """
    return SIDR_REQ(serviceID=request.serviceID, privateData=request.privateData)


def lookupOf(message: SIDR_REQ) -> LookupRequest:
    """
    @return: the lookup of a SIDR_REQ.
    """
    return LookupRequest(message.serviceID, message.privateData)


def lookupReplyMessage(reply: LookupReply) -> SIDR_REP:
    """
    @return: the SIDR_REP of a lookup's reply.
    """
    return SIDR_REP(
        status=reply.status,
        queuePairNumber=reply.queuePairNumber,
        qKey=reply.qKey,
        privateData=reply.privateData,
    )


def lookupReplyOf(message: SIDR_REP) -> LookupReply:
    """
    @return: the reply of a SIDR_REP.
    """
    return LookupReply(message.status, message.privateData, message.queuePairNumber, message.qKey)
