"""
States, inputs and consumer events of a CM connection (IBTA vol. 1 12.9).
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """
    Connection states (IBTA vol. 1 12.9.7).
    """

    # Linux ib_cm.h has LISTEN and DREQ_RCVD besides. Listening belongs to the table, which makes a new
    # connection per REQ; DREQ_RCVD is never visible because the DREP goes out in the same step.
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
    Inputs of the state machine: messages, consumer commands, timer expiries.
    """

    CONNECT = 0
    REQ = 1
    #: The REQ that created this connection arrived again.
    REPEATED_REQ = 2
    MRA_REQ = 3
    MRA_REP = 4
    REJ = 5
    #: A REJ with reason 10, stale connection: one of the two sides has restarted.
    REJ_STALE = 6
    REP = 7
    RTU = 8
    DREQ = 9
    DREP = 10
    LAP = 11
    ACCEPT = 12
    REJECT = 13
    #: The consumer needs time: prepare an MRA.
    SEND_MRA = 14
    READY = 15
    #: The first message arrived on the queue pair before the RTU: "communication established" (IBTA vol. 1
    #: 12.9.8).
    DATA = 16
    #: The consumer ends the connection, in whatever state it is.
    CLOSE = 17
    #: The consumer treats the REQ as lost.
    IGNORE = 18
    #: The response timer expired and retries are left; EXHAUSTED: none are.
    RETRY = 19
    EXHAUSTED = 20
    #: The peer opens a new connection with the queue pair of this one, so it has restarted.
    STALE = 21
    PATH_LOST = 22
    #: Both consumers know of the end from their own messages, on a medium that loses none.
    FINISH = 23
    #: As ACCEPT or READY on such a medium, for consumers that have no use for an RTU.
    OPEN = 24
    #: As CLOSE on such a medium, for a consumer that waits for no answer.
    LEAVE = 25


class Event(IntEnum):
    """
    Notifications for the consumer, as tuples C{(event, connection, message)}.
    """

    #: Passive: a REQ for C{connection.listener}; the message is the L{REQ}.
    REQUEST = 0
    #: Active: the peer accepted; L{REP}. Answer with L{Connection.ready} or L{Connection.reject}.
    REPLY = 1
    #: Passive: the L{RTU} arrived, or L{None} if data arrived first.
    ESTABLISHED = 2
    #: The connection attempt failed; L{REJ}.
    REJECTED = 3
    #: The peer answers neither our REQ nor our REP nor a SIDR_REQ; L{None}.
    UNREACHABLE = 4
    #: The connection ended; the L{DREQ}, L{DREP} or L{REJ} that ended it, or L{None} if our DREQ was never
    #: answered.
    DISCONNECTED = 5
    #: The connection is L{None}; the message is the local queue pair number, which may be reused now.
    TIMEWAIT_EXIT = 6
    #: Passive: the "connection" is a L{Lookup<twisted_ib.hca.cm.sidr.Lookup>}; L{SIDR_REQ}.
    LOOKUP = 7
    #: Active: the answer to a lookup; L{SIDR_REP}.
    FOUND = 8
    #: The connection is L{None}: a message has made an object of a connection that had settled, which may
    #: settle again; see L{SettledConnections.rest<twisted_ib.hca.cm.peer.SettledConnections.rest>}.
    WOKEN = 9


#: The anomalies that a table counts.
COUNTERS = (
    *("malformed", "unknownAttribute", "invalidID", "unknownID", "foreignSource", "wrongQPN", "unexpected"),
    "noListener",
    "repeatedREQ",
    "stale",
    "halfOpenExceeded",
    "halfOpenReplaced",
    "tableFull",
    "connectionsExceeded",
    "eventsFull",
    "outputsDropped",
    "timewaitDropped",
    "retransmitted",
    "unreachable",
    "repeatedSIDR",
    "lookupsExceeded",
)
