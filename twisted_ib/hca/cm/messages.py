"""
Requests to connect and their answers (L{twisted_ib.hca.connection}) as messages of the communication manager,
and back.  REQ and REP have the fields of a request and a reply: one becomes the other by its class alone.

Communication ids, GUIDs and whatever else only the communication manager knows are not set here.
"""

from __future__ import annotations

from twisted_ib.hca.connection import ConnectReply, ConnectRequest, RejectReason
from twisted_ib.hca.wire.cm.messages import REP, REQ


def requestMessage(request: ConnectRequest) -> REQ:
    """
    @return: the request, which is the REQ from now on.
    """
    request.__class__ = REQ
    assert isinstance(request, REQ)
    request.localCMResponseTimeout = request.responseTimeout
    return request


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
    @return: the reply, which is the REP from now on.
    """
    reply.__class__ = REP
    assert isinstance(reply, REP)
    return reply
