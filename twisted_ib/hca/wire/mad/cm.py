"""
Messages of the communication manager as management datagrams (IBTA vol. 1 12.6).
"""

from __future__ import annotations

from twisted_ib.errors import WireError
from twisted_ib.hca.wire.cm import APR, DREP, MRA, REJ, REP, SIDR_REP, SIDR_REQ, AnyMessage, MessageKind
from twisted_ib.hca.wire.mad.classes import COMMUNICATION
from twisted_ib.hca.wire.mad.mad import CM_VERSION, SEND, Mad


def wrap(attribute: int, body: bytes, transaction: int, modifier: int = 0) -> Mad:
    """
    Put a message that is packed into a MAD.

    @param attribute: what message it is.
    @param body: 232 octets.
    @param transaction: see L{transactionOf}.
    @param modifier: of the attribute.
    """
    return Mad(COMMUNICATION, CM_VERSION, SEND, transaction, attribute, body, modifier)


def messageOf(mad: Mad) -> AnyMessage:
    """
    The message that a MAD carries.

    @raise WireError: it carries none.
    """
    message = mad.data
    if isinstance(message, bytes):
        raise WireError(
            f"class {mad.managementClass:#x} version {mad.classVersion} method {mad.method:#x}"
            f" attribute {mad.attribute:#06x} is not a message of the communication manager"
        )
    return message


def transactionOf(message: AnyMessage) -> int:
    """
    The transaction of a message, as who has chosen its communication id for it: whoever
    begins an exchange (REQ, DREQ, LAP, SIDR_REQ) takes its own id, and who answers takes
    that of the other one.

    @return: 32 bits.
    """
    if isinstance(message, (SIDR_REQ, SIDR_REP)):
        return message.requestID
    if isinstance(message, MRA):
        answers = message.messageMRAed != MessageKind.REP
    elif isinstance(message, REJ):
        answers = message.messageRejected == MessageKind.REQ
    else:
        answers = isinstance(message, (REP, DREP, APR))
    if answers:
        remote: int = message.remoteCommunicationID  # type: ignore[union-attr]
        return remote
    return message.localCommunicationID
