"""
Messages of the communication manager as management datagrams (IBTA vol. 1 12.6).
"""

from __future__ import annotations

from typing import Final

from twisted_ib.errors import WireError
from twisted_ib.hca.wire.cm import (
    APR,
    BODY_BYTES,
    DREP,
    MRA,
    REJ,
    REP,
    SIDR_REP,
    SIDR_REQ,
    AnyMessage,
    MessageKind,
    byAttribute,
)
from twisted_ib.hca.wire.mad import MAD

#: The class of communication management, and its version.
CLASS: Final = 0x07
CLASS_VERSION: Final = 2
#: Every message is sent, not asked for; answers too.
SEND: Final = 0x03


def wrap(attribute: int, body: bytes, transaction: int, modifier: int = 0) -> MAD:
    """
    Put a message that is packed into a MAD.

    @param attribute: what message it is.
    @param body: 232 octets.
    @param transaction: see L{transactionOf}.
    @param modifier: of the attribute.
    """
    return MAD(CLASS, CLASS_VERSION, SEND, transaction, attribute, body, modifier)


def messageOf(mad: MAD) -> AnyMessage:
    """
    The message that a MAD carries.

    @raise WireError: it carries none.
    """
    if (mad.managementClass, mad.classVersion, mad.method) != (CLASS, CLASS_VERSION, SEND):
        raise WireError(
            f"class {mad.managementClass:#x} version {mad.classVersion} method {mad.method:#x}"
            " is not a message of the communication manager"
        )
    message = byAttribute.get(mad.attribute)
    if message is None:
        raise WireError(f"the communication manager has no message {mad.attribute:#06x}")
    return message.parse(mad.data, 0, BODY_BYTES)


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
