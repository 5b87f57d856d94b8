"""
The frames of streams over reliable datagrams.

RDS carries whole messages between sockets, in order and once.  It has no connections: nobody sees
a peer come or go, nobody waits for a slow reader, and all datagrams of one socket look alike.  A
I{session} adds what a stream has.  Two of them, one at each end, speak the frames below; one frame
is the payload of one RDS message.  What does not begin with the magic number is no frame, so that a
program without sessions may send to the same port and harms nobody.

All numbers are big endian::

    offset size
     0      4   magic number, "RdSt" in ASCII (52 64 53 74)
     4      1   version, 1
     5      1   kind
     6      2   reason, 0 if there is none
     8      8   session: who is meant, by the number that the receiver has given itself
    16      8   offset: the position in the sender's stream of what follows, that is, how many
                bytes of it were in all frames before
    24      8   window: the position in the receiver's stream up to which it may send
    32          data, in frames of the kind DATA only: at least one byte

======  ========  ====================================================================================
kind    name      meaning
======  ========  ====================================================================================
1       OPEN      somebody wants a stream; session is I{his own} number.  Repeated each second
2       ACCEPT    he has one; offset is the number of the end that accepts
3       REFUSE    he gets none, for a reason
4       DATA      the next bytes
5       WINDOW    there is more room; or the answer to a PROBE
6       PROBE     are you there?
7       FIN       nothing more comes in this direction
8       CLOSE     the same, and what comes in the other direction is not read any more
9       RESET     the stream is over, for a reason
10      GONE      session is a number that the sender of this does not know, though it was called by it
======  ========  ====================================================================================

A number of a session is random, 64 bits, so that two streams between the same two sockets are told
apart, and those of an earlier life of a process from those of the next; a frame counts only if it
comes from the (address, port) that the session is with.  Positions begin at 0 and never wrap.

OPEN and ACCEPT carry the first window.  An end sends no byte beyond its window; one that receives
such a byte resets the stream (VIOLATION).  Any offset that is not the number of bytes received says
that a message was lost, which RDS does when a peer's instance restarts: DATA_LOST.  So a stream
breaks, but never has a hole.

An end that wants to close sends CLOSE behind its last byte and waits for the other's FIN or CLOSE.
One that gets a CLOSE drops what it has not sent, answers CLOSE unless it has sent a FIN or CLOSE
itself, and is done.  The stream is also over when both directions had a FIN.  DATA, WINDOW, PROBE,
FIN and ACCEPT of an unknown session are answered GONE, which ends the sender's session; nothing else
is answered.

An end that hears nothing for a while sends a PROBE, which a WINDOW answers; after some probes in vain
the peer is taken for dead.  A REFUSE or RESET says why in I{reason}, see L{Reason}.

A frame OPEN of another version is answered with a REFUSE of this one, reason VERSION; what a later
version changes, the first eight bytes and that answer stay.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

MAGIC = 0x52645374
VERSION = 1

#: Magic, version, kind, reason, session, offset, window.
HEADER = Struct(">IBBHQQQ")
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


class Reason(IntEnum):
    """
    Why there is no stream, or no more.
    """

    NONE = 0
    #: Nobody listens at that port.
    NO_LISTENER = 1
    #: There are too many streams.
    TOO_MANY = 2
    #: The application does not want it.
    UNWANTED = 3
    #: No common version.
    VERSION = 4
    #: The application gave the stream up.
    ABORTED = 5
    #: A frame that the rules do not allow.
    VIOLATION = 6
    #: A message did not arrive.
    DATA_LOST = 7
    #: The peer did not answer.
    SILENT = 8
    #: Too much waits for applications that do not read.
    NO_MEMORY = 9
    #: The peer does not know the session: it was started again, or has ended it.
    GONE = 10


def frame(kind: int, session: int, offset: int = 0, window: int = 0, reason: int = 0) -> bytes:
    """
    Make a frame without data.
    """
    return _pack(MAGIC, VERSION, kind, reason, session, offset, window)
