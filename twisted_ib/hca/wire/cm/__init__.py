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

  - C{answers}: MRA and REJ, which may answer a REQ, REP or LAP
  - C{codes}: numbers of the communication manager
  - C{connect}: the messages that open and close a connection (IBTA vol. 1 12.6)
  - C{layout}: the common base of the messages of L{twisted_ib.hca.wire.cm}
  - C{path}: paths in CM messages, and LAP and APR, which give an open connection an alternate path (IBTA vol.
    1 12.8)
  - C{sidr}: service id resolution for datagram services (IBTA vol. 1 12.11)
"""

from twisted_ib.hca.wire.cm.answers import MRA, REJ
from twisted_ib.hca.wire.cm.codes import APRStatus, MessageKind, timeoutSeconds
from twisted_ib.hca.wire.cm.connect import DREP, DREQ, MESSAGES, REP, REQ, RTU, AnyMessage, byAttribute
from twisted_ib.hca.wire.cm.layout import BODY_BYTES, Buffer
from twisted_ib.hca.wire.cm.path import APR, LAP
from twisted_ib.hca.wire.cm.sidr import SIDR_REP, SIDR_REQ

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
