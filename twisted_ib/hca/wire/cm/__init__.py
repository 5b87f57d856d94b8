"""
Messages of the communication manager (IBTA vol. 1 chapter 12).

L{REQ}, L{REP} and L{RTU} open a connection, like the three segments of TCP's handshake; L{REJ} refuses it,
L{MRA} asks for time, L{DREQ} and L{DREP} close. L{SIDR_REQ} and L{SIDR_REP} find the queue pair of a
datagram service; L{LAP} and L{APR} change the path of an open connection.

Every message is 232 octets, big endian: a MAD without its 24-octet header. Private data areas have a fixed
size and no length field, so the receiver always gets the whole area. C{parse} accepts any value of any field
and raises L{WireError} for a wrong length only; reserved bits are preserved in C{reserved}, an integer as
wide as the fixed part of the message, so that a parsed message packs to the same octets.

Modules:

  - C{codes}: numbers of the communication manager
  - C{layout}: the common base of the messages of L{twisted_ib.hca.wire.cm}
  - C{messages}: the messages (IBTA vol. 1 chapter 12)
"""

from twisted_ib.hca.wire.cm.codes import APRStatus, MessageKind, timeoutSeconds
from twisted_ib.hca.wire.cm.layout import BODY_BYTES, Buffer
from twisted_ib.hca.wire.cm.messages import (
    APR,
    DREP,
    DREQ,
    LAP,
    MESSAGES,
    MRA,
    REJ,
    REP,
    REQ,
    RTU,
    SIDR_REP,
    SIDR_REQ,
    AnyMessage,
    byAttribute,
)

__all__ = [
    "APR",
    "BODY_BYTES",
    "DREP",
    "DREQ",
    "LAP",
    "MESSAGES",
    "MRA",
    "REJ",
    "REP",
    "REQ",
    "RTU",
    "SIDR_REP",
    "SIDR_REQ",
    "APRStatus",
    "AnyMessage",
    "Buffer",
    "MessageKind",
    "byAttribute",
    "timeoutSeconds",
]
