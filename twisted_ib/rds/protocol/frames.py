"""
The frames of streams over reliable datagrams.

RDS carries whole messages between sockets, once and in order.  It has no connections: no end learns that
a peer came or went, there is no flow control for one receiver, and all datagrams of one socket look
alike.  A I{session} adds what a stream needs.  One frame is the payload of one RDS message.  A payload
that does not begin with the magic number is no frame and is ignored, so a program without sessions can
send to the same port and harms nobody.

All numbers are big endian::

    offset size
     0      4   magic number, "RdSt" in ASCII (52 64 53 74)
     4      1   version, 1
     5      1   kind
     6      2   reason, 0 if there is none
     8      8   session: the receiver's number of it; in OPEN the sender's
    16      8   offset: position of the data in the sender's stream, that is, the bytes in all frames before
    24      8   window: the position in the receiver's stream up to which it may send
    32          data, in DATA frames only: at least one byte

======  ========  ====================================================================================
kind    name      meaning
======  ========  ====================================================================================
1       OPEN      asks for a stream; session is the I{sender's} number.  Repeated each second
2       ACCEPT    grants it; offset is the number of the accepting end
3       REFUSE    denies it, for a reason
4       DATA      the next bytes
5       WINDOW    widens the window, or answers a PROBE
6       PROBE     keepalive: asks for a WINDOW
7       FIN       ends this direction
8       CLOSE     ends this direction; data of the other direction is discarded from now on
9       RESET     ends the stream, for a reason
10      GONE      answers a frame of an unknown session, and repeats its number
======  ========  ====================================================================================

Session numbers are random, 64 bits: they tell apart two streams between the same two sockets, and the
streams of a restarted process from those before.  A frame counts only if it comes from the session's peer
(address, port).  Positions begin at 0 and never wrap.

OPEN and ACCEPT carry the first window.  An end sends no byte beyond its window; the receiver of such a
byte resets the stream (VIOLATION).  An offset other than the number of bytes received shows that a
message was lost, which happens when a peer's RDS instance restarts: DATA_LOST.  So a stream may break but
has no hole.

An end that closes sends CLOSE behind its last byte and awaits the peer's FIN or CLOSE.  On a CLOSE an end
drops its unsent data, answers CLOSE unless it has sent FIN or CLOSE already, and is closed.  The stream
is closed as well when both directions had a FIN.  DATA, WINDOW, PROBE, FIN and ACCEPT of an unknown
session are answered GONE, which ends the sender's session; nothing else is answered.

An end that receives nothing for a while sends a PROBE, which a WINDOW answers; after some unanswered
probes the peer is considered dead.  REFUSE and RESET give the cause in I{reason}, see L{EndReason}.

An OPEN of another version is answered with a version 1 REFUSE, reason VERSION; later versions keep the
first eight bytes and that answer.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


MAGIC = 0x52645374
VERSION = 1

#: Magic, version, kind, reason, session, offset, window.
HEADER: Packed[tuple[int, int, int, int, int, int, int]] = Struct(">IBBHQQQ")
HEADER_BYTES = HEADER.size

_pack = HEADER.pack


class FrameKind(IntEnum):
    """
    The kinds of frames.
    """

    OPEN = 1
    ACCEPT = 2
    REFUSE = 3
    DATA = 4
    WINDOW = 5
    PROBE = 6
    FIN = 7
    CLOSE = 8
    RESET = 9
    GONE = 10


class EndReason(IntEnum):
    """
    Why a stream was refused or ended.
    """

    NONE = 0
    #: No session port is listening there.
    NO_LISTENER = 1
    #: A limit on streams was reached.
    TOO_MANY = 2
    #: The application declined the stream.
    UNWANTED = 3
    #: No common version.
    VERSION = 4
    #: The application aborted the stream.
    ABORTED = 5
    #: The peer sent a frame that the protocol forbids.
    VIOLATION = 6
    #: An RDS message was lost.
    DATA_LOST = 7
    #: Keepalive probes were not answered.
    SILENT = 8
    #: Too much received data waits to be read.
    NO_MEMORY = 9
    #: The peer has no such session: it restarted, or ended it.
    GONE = 10


def frame(kind: int, session: int, offset: int = 0, window: int = 0, reason: int = 0) -> bytes:
    """
    Pack a frame without data.
    """
    return _pack(MAGIC, VERSION, kind, reason, session, offset, window)
