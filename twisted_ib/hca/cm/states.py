"""
The states of a connection, what can happen to it, and what its user hears of it.
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """
    IBTA vol. 1 12.9.7.  LISTEN is the table's, and DREQ_RCVD is never seen:
    the DREP goes out in the same step.
    """

    IDLE = 0
    REQ_SENT = 1
    MRA_REQ_RCVD = 2
    REP_RCVD = 3
    MRA_REP_SENT = 4
    REQ_RCVD = 5
    MRA_REQ_SENT = 6
    REP_SENT = 7
    MRA_REP_RCVD = 8
    ESTABLISHED = 9
    DREQ_SENT = 10
    TIMEWAIT = 11


class Input(IntEnum):
    """
    What can happen to a connection.

    @cvar REPEATED_REQ: the REQ that made this connection came again.
    @cvar REJ_STALE: a REJ whose reason is that the peer does not know us.
    @cvar THINK: the consumer will take its time.
    @cvar DATA: the first data came, so the peer is ready (IBTA vol. 1
        12.9.8.3.1, "communication established").
    @cvar CLOSE: the consumer wants to be rid of it, in whatever state.
    @cvar IGNORE: as if the REQ had been lost.
    @cvar RETRY: no answer in time, and retries are left.
    @cvar EXHAUSTED: no answer in time, and none is left.
    @cvar STALE: the peer uses our peer's queue pair for a new connection.
    """

    CONNECT = 0
    REQ = 1
    REPEATED_REQ = 2
    MRA_REQ = 3
    MRA_REP = 4
    REJ = 5
    REJ_STALE = 6
    REP = 7
    RTU = 8
    DREQ = 9
    DREP = 10
    LAP = 11
    ACCEPT = 12
    REJECT = 13
    THINK = 14
    READY = 15
    DATA = 16
    CLOSE = 17
    IGNORE = 18
    RETRY = 19
    EXHAUSTED = 20
    STALE = 21
    PATH_LOST = 22


class Event(IntEnum):
    """
    What a consumer is told, as tuples C{(event, connection, message)}.

    @cvar REQUEST: passive: C{connection.listener} is asked; L{REQ}.
    @cvar REPLY: active: the peer accepted; L{REP}.  Answer with
        L{Connection.ready} or L{Connection.reject}.
    @cvar ESTABLISHED: passive: the peer is ready; L{RTU}, or L{None} if data
        said so.
    @cvar REJECTED: it will not come to a connection; L{REJ}.
    @cvar UNREACHABLE: the peer does not answer our REQ or REP; L{None}.
    @cvar DISCONNECTED: the connection is over; the L{DREQ}, L{DREP} or L{REJ}
        that said so, or L{None} if our DREQ was never answered.
    @cvar TIMEWAIT_EXIT: the connection is L{None}; the message is the number
        of the local queue pair, which may be used again.
    @cvar LOOKUP: passive: the "connection" is a L{Lookup
        <twisted_ib.hca.cm.sidr.Lookup>}, and its listener is asked; L{SIDR_REQ}.
    @cvar FOUND: active: the answer to a lookup; L{SIDR_REP}.  UNREACHABLE if
        there is none.
    """

    REQUEST = 0
    REPLY = 1
    ESTABLISHED = 2
    REJECTED = 3
    UNREACHABLE = 4
    DISCONNECTED = 5
    TIMEWAIT_EXIT = 6
    LOOKUP = 7
    FOUND = 8
