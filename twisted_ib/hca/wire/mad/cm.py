"""
CM messages as management datagrams (IBTA vol. 1 12.6).
"""

from __future__ import annotations

from twisted_ib.hca.wire.cm.messages import (
    APR,
    DREP,
    MRA,
    REJ,
    REP,
    SIDR_REP,
    SIDR_REQ,
    AnyMessage,
    MessageKind,
)
from twisted_ib.hca.wire.mad.classes import COMMUNICATION
from twisted_ib.hca.wire.mad.mad import CM_VERSION, SEND, Mad


def wrap(attribute: int, body: bytes, transaction: int, modifier: int = 0) -> Mad:
    """
    Put a packed message into a MAD.

    @param attribute: attribute id of the message.
    @param body: 232 octets.
    @param transaction: see L{transactionOf}.
    @param modifier: attribute modifier.
    """
    # IBTA vol. 1 12.6: requests and replies alike use method Send, so the response bit of the method is
    # never set.
    return Mad(COMMUNICATION, CM_VERSION, SEND, transaction, attribute, body, modifier)


def transactionOf(message: AnyMessage) -> int:
    """
    The transaction id of a message, if it is derived from a communication id.

    @return: 32 bits.
    """
    # The side that begins an exchange (REQ, DREQ, LAP, SIDR_REQ) uses its own id; answers repeat it. Linux
    # cm.c cm_form_tid makes ids in the same way, with an agent number in the upper half.
    if isinstance(message, (SIDR_REQ, SIDR_REP)):
        return message.requestID
    if isinstance(message, MRA):
        # An MRA or REJ of a REP comes from the active side, whose own id the exchange has.
        answers = message.messageMRAed != MessageKind.REP
    elif isinstance(message, REJ):
        answers = message.messageRejected == MessageKind.REQ
    else:
        answers = isinstance(message, (REP, DREP, APR))
    if answers:
        remote: int = message.remoteCommunicationID  # type: ignore[union-attr]
        return remote
    return message.localCommunicationID
