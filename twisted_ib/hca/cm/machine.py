"""
One connection of the communication manager: its states and what moves it.

L{Connection} is to an InfiniBand connection what a TCP control block is before
and after the data: it asks, answers, repeats what was lost and closes; data
never comes here.  L{TRANSITIONS} says everything: (state, input) -> (action,
next state).  A message that has no entry is ignored, and counted by the table
of connections; a command that has no entry is the caller's mistake, or came
too late.

Nothing here calls out: actions append to the queues of
L{twisted_ib.hca.cm.table.ConnectionTable}, which feeds the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Protocol

from twisted_ib.errors import ConnectionStateError
from twisted_ib.hca.wire.cm import (
    APR,
    DREP,
    DREQ,
    MRA,
    REJ,
    REP,
    REQ,
    RTU,
    APRStatus,
    MessageKind,
    RejectReason,
    timeoutSeconds,
)

Output = tuple[Any, int, bytes]


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
    """

    REQUEST = 0
    REPLY = 1
    ESTABLISHED = 2
    REJECTED = 3
    UNREACHABLE = 4
    DISCONNECTED = 5
    TIMEWAIT_EXIT = 6


class Surroundings(Protocol):
    """
    What a connection needs of the table that it is in.
    """

    caGUID: int

    def send(self, output: Output) -> None:
        """
        Queue a message.
        """

    def report(self, event: Event, connection: Connection, message: object) -> None:
        """
        Queue an event.
        """

    def arm(self, connection: Connection, deadline: float) -> None:
        """
        Feed RETRY or EXHAUSTED at C{deadline}.
        """

    def disarm(self, connection: Connection) -> None:
        """
        Forget the deadline.
        """

    def moved(self, connection: Connection, old: State, now: float) -> None:
        """
        The state is another one now.
        """


class Connection:
    """
    One end of a connection.

    @ivar state: the L{State}.  It ends as IDLE or TIMEWAIT, and then the table
        does not hold this object any more.
    @ivar user: whatever the consumer wants to find here.
    @ivar listener: passive: who listens on the service.
    @ivar peer: the table's notes on C{destination}.
    @ivar destination: where messages go, and the only place they may come from.
    @ivar localID: our communication id, C{remoteID} the peer's (0: not known).
    @ivar localQPN: 0 until C{accept} on the passive side.
    @ivar remoteQPN: 0 until the REP on the active side.
    @ivar output: what is sent again if no answer comes, or if a repeated
        message shows that it was lost.
    @ivar deadline: when, or L{None}.
    @ivar period: seconds between two retries.
    @ivar ackSeconds: the path's timeout: how long an MRA and TIMEWAIT add.
    """

    __slots__ = (
        "ackSeconds",
        "deadline",
        "destination",
        "listener",
        "localID",
        "localQPN",
        "maxRetries",
        "output",
        "peer",
        "period",
        "remoteCAGUID",
        "remoteID",
        "remoteQPN",
        "retriesLeft",
        "state",
        "table",
        "user",
    )

    def __init__(self, table: Surroundings, peer: Any, destination: Any, localID: int, request: REQ) -> None:
        """
        @param request: the REQ, sent or received, whose retry count and path
            hold for both sides.
        """
        self.table = table
        self.peer = peer
        self.destination = destination
        self.localID = localID
        self.remoteID = 0
        self.localQPN = 0
        self.remoteQPN = 0
        self.remoteCAGUID = 0
        self.listener: Any = None
        self.user: Any = None
        self.state = State.IDLE
        self.output: Output | None = None
        self.deadline: float | None = None
        self.maxRetries = self.retriesLeft = request.maxCMRetries
        self.period = 0.0
        self.ackSeconds = timeoutSeconds(request.primaryPath.localACKTimeout)

    def accept(self, reply: REP, now: float) -> bool:
        """
        Passive: answer REQUEST with yes.  Fills in the ids and the CA GUID.

        @return: whether the peer still waits for it.
        """
        return self._command(Input.ACCEPT, reply, now)

    def reject(self, reason: int, privateData: bytes, now: float) -> bool:
        """
        Answer REQUEST or REPLY with no.
        """
        return self._command(Input.REJECT, REJ(reason=reason, privateData=privateData), now)

    def ignore(self, now: float) -> bool:
        """
        Passive: forget a REQUEST, so that the peer's retry comes as a new one.
        """
        return self._command(Input.IGNORE, None, now)

    def think(self, now: float, serviceTimeout: int = 24, privateData: bytes = b"") -> bool:
        """
        The answer to REQUEST or REPLY will take long: if the peer asks again,
        it is told so by an MRA.

        @param serviceTimeout: a timeout code; 24 is 65.5 seconds.
        """
        message = MRA(serviceTimeout=serviceTimeout, privateData=privateData)
        return self._command(Input.THINK, message, now)

    def ready(self, now: float, privateData: bytes = b"") -> bool:
        """
        Active: answer REPLY with yes: send RTU.
        """
        return self._command(Input.READY, RTU(privateData=privateData), now)

    def established(self, now: float) -> bool:
        """
        Passive: the first data came, which is as good as an RTU.

        @return: whether that was news.
        """
        return self.feed(Input.DATA, None, now)

    def disconnect(self, now: float) -> bool:
        """
        End it, in any state: DREQ if it is open, else a REJ.

        @return: False if it is over or ending already.  If L{state} is
            DREQ_SENT now, DISCONNECTED follows; else nothing does.
        """
        return self.feed(Input.CLOSE, None, now)

    def abandon(self, now: float) -> bool:
        """
        Give up, as L{disconnect}: before the REP it sends a REJ "timeout", by
        which the peer finds its end though we do not know its id.
        """
        return self.feed(Input.CLOSE, None, now)

    def feed(self, given: Input, message: Any, now: float) -> bool:
        """
        Make one step.

        @return: False if the table has no entry for it.
        """
        old = self.state
        row = _ROWS[old][given]
        if row is None:
            return False
        action, state = row
        action(self, message, now)
        if state is not old:
            self.state = state
            if self.deadline is not None and not _TIMED[state]:
                self.table.disarm(self)
            self.table.moved(self, old, now)
        return True

    def _command(self, given: Input, message: Any, now: float) -> bool:
        """
        An input that the consumer may give at certain times only.  That the
        peer was faster in ending it all is not the consumer's fault.

        @raise ConnectionStateError: it makes no sense in this state.
        """
        if self.feed(given, message, now):
            return True
        if self.state in (State.IDLE, State.TIMEWAIT):
            return False
        raise ConnectionStateError(f"{given.name.lower()} in state {self.state.name}")


def _ask(connection: Connection, message: REQ | REP | DREQ, now: float) -> None:
    """
    Send what needs an answer, and wait for it.
    """
    output = (connection.destination, message.attribute, message.pack())
    connection.output = output
    connection.retriesLeft = connection.maxRetries
    connection.table.send(output)
    connection.table.arm(connection, now + connection.period)


def _tell(connection: Connection, message: MRA | REJ | RTU | DREP | APR) -> None:
    """
    Send what needs no answer, with the ids in it.
    """
    message.localCommunicationID = connection.localID
    message.remoteCommunicationID = connection.remoteID
    connection.table.send((connection.destination, message.attribute, message.pack()))


def _request(connection: Connection, request: REQ, now: float) -> None:
    """
    Report a REQ that came.
    """
    connection.table.report(Event.REQUEST, connection, request)


def _reply(connection: Connection, reply: REP, now: float) -> None:
    """
    Send the REP.
    """
    reply.localCommunicationID = connection.localID
    reply.remoteCommunicationID = connection.remoteID
    reply.localCAGUID = connection.table.caGUID
    _ask(connection, reply, now)
    connection.localQPN = reply.localQPN


def _replied(connection: Connection, reply: REP, now: float) -> None:
    """
    The REP came.
    """
    connection.output = None
    connection.table.report(Event.REPLY, connection, reply)


def _sendReady(connection: Connection, message: RTU, now: float) -> None:
    """
    Send the RTU.  Keep it only if it can not be made again from the ids.
    """
    message.localCommunicationID = connection.localID
    message.remoteCommunicationID = connection.remoteID
    output = (connection.destination, RTU.attribute, message.pack())
    connection.output = output if message.privateData else None
    connection.table.send(output)


def _repeat(connection: Connection, message: object, now: float) -> None:
    """
    The peer asks again, so our MRA or RTU was lost.
    """
    if connection.output is None:
        _tell(connection, RTU())
    else:
        connection.table.send(connection.output)


def _prepareMRA(connection: Connection, message: MRA, now: float) -> None:
    """
    Linux's C{ib_prepare_cm_mra}: nothing goes out until the peer asks again.
    """
    repRcvd = connection.state == State.REP_RCVD
    message.messageMRAed = MessageKind.REP if repRcvd else MessageKind.REQ
    message.localCommunicationID = connection.localID
    message.remoteCommunicationID = connection.remoteID
    connection.output = (connection.destination, MRA.attribute, message.pack())


def _extend(connection: Connection, message: MRA, now: float) -> None:
    """
    The peer thinks: wait this once for as long as it asks for.
    """
    wait = timeoutSeconds(message.serviceTimeout) + connection.ackSeconds
    connection.table.arm(connection, now + wait)


def _retry(connection: Connection, message: object, now: float) -> None:
    """
    Send the same octets again.
    """
    assert connection.output is not None
    connection.retriesLeft -= 1
    connection.table.send(connection.output)
    connection.table.arm(connection, now + connection.period)


def _established(connection: Connection, message: object, now: float) -> None:
    """
    The passive side is through.
    """
    connection.output = None
    connection.table.report(Event.ESTABLISHED, connection, message)


def _rejected(connection: Connection, message: object, now: float) -> None:
    """
    The peer does not want.
    """
    connection.output = None
    connection.table.report(Event.REJECTED, connection, message)


def _unreachable(connection: Connection, message: object, now: float) -> None:
    """
    The peer does not answer.
    """
    connection.output = None
    connection.table.report(Event.UNREACHABLE, connection, message)


def _rejectRequest(connection: Connection, message: REJ, now: float) -> None:
    """
    Refuse a REQ.  Linux leaves the local id 0 if it never sent it.
    """
    message.messageRejected = MessageKind.REQ
    if connection.state == State.MRA_REQ_SENT:
        message.localCommunicationID = connection.localID
    message.remoteCommunicationID = connection.remoteID
    connection.output = None
    connection.table.send((connection.destination, REJ.attribute, message.pack()))


def _rejectReply(connection: Connection, message: REJ, now: float) -> None:
    """
    Refuse a REP.
    """
    message.messageRejected = MessageKind.REP
    connection.output = None
    _tell(connection, message)


def _giveUp(connection: Connection, message: object, now: float) -> None:
    """
    No REP yet: the peer finds its end by our CA GUID and id (IBTA vol. 1
    12.6.7.2, reason 4).
    """
    guid = connection.table.caGUID.to_bytes(8, "big")
    connection.output = None
    _tell(
        connection,
        REJ(
            messageRejected=MessageKind.OTHER,
            reason=RejectReason.TIMEOUT,
            additionalInfoLength=len(guid),
            additionalInfo=guid,
        ),
    )


def _refuseRequest(connection: Connection, message: object, now: float) -> None:
    """
    The consumer went away without an answer to a REQ.
    """
    _rejectRequest(connection, REJ(reason=RejectReason.CONSUMER_DEFINED), now)


def _refuseReply(connection: Connection, message: object, now: float) -> None:
    """
    The consumer went away without an answer to a REP.
    """
    _rejectReply(connection, REJ(reason=RejectReason.CONSUMER_DEFINED), now)


def _withdraw(connection: Connection, message: object, now: float) -> None:
    """
    The consumer accepted, and went away before the peer was ready.
    """
    connection.output = None
    _tell(connection, REJ(messageRejected=MessageKind.OTHER, reason=RejectReason.CONSUMER_DEFINED))


def _sendDREQ(connection: Connection, message: object, now: float) -> None:
    """
    Ask the peer to end it.
    """
    request = DREQ(connection.localID, connection.remoteID, connection.remoteQPN)
    _ask(connection, request, now)


def _answerDREQ(connection: Connection, message: DREQ, now: float) -> None:
    """
    The peer ends it.
    """
    connection.output = None
    _tell(connection, DREP())
    connection.table.report(Event.DISCONNECTED, connection, message)


def _disconnected(connection: Connection, message: object, now: float) -> None:
    """
    It is over.
    """
    connection.output = None
    connection.table.report(Event.DISCONNECTED, connection, message)


def _declinePath(connection: Connection, message: object, now: float) -> None:
    """
    No alternate paths here, as with RoCE in Linux; but say so.
    """
    _tell(connection, APR(status=APRStatus.UNSUPPORTED))


def _drop(connection: Connection, message: object, now: float) -> None:
    """
    Nobody is told.
    """
    connection.output = None


Action = Callable[[Connection, Any, float], None]
Row = tuple[Action, State]

#                IDLE
#     connect   /    \   REQ
#              v      v
#   +-- REQ_SENT      REQ_RCVD --+   think: MRA_REQ_SENT, MRA to each repeated REQ
#   |  MRA: MRA_REQ_RCVD   |     |
#   |     | REP            | accept: send REP
#   |     v                v     |
#   |  REP_RCVD       REP_SENT   |   think: MRA_REP_SENT, MRA to each repeated REP
#   |     |         MRA: MRA_REP_RCVD
#   |     | ready:         | RTU, or first data
#   |     | send RTU       |     |
#   |     +-> ESTABLISHED <+     |   repeated REP: RTU again
#   |        disconnect: |       |
#   |        send DREQ   v       |   DREQ: send DREP
#   |             DREQ_SENT -> TIMEWAIT -> (the ids stay reserved for a while)
#   |                    DREP, DREQ, REJ, retries out
#   +---> IDLE <-----------------+
#     REJ, reject, retries out, close
#
# IBTA vol. 1 12.9.7; where that leaves a choice, as Linux's cm.c.
_ENDED: dict[Input, Row] = {Input.PATH_LOST: (_drop, State.IDLE)}
_CALLING: dict[Input, Row] = {
    **_ENDED,
    Input.REP: (_replied, State.REP_RCVD),
    Input.REJ: (_rejected, State.IDLE),
    Input.REJ_STALE: (_rejected, State.TIMEWAIT),
    Input.EXHAUSTED: (_unreachable, State.IDLE),
    Input.CLOSE: (_giveUp, State.IDLE),
}
_ANSWERED: dict[Input, Row] = {
    **_ENDED,
    Input.READY: (_sendReady, State.ESTABLISHED),
    Input.REJECT: (_rejectReply, State.IDLE),
    Input.REJ: (_rejected, State.TIMEWAIT),
    Input.REJ_STALE: (_rejected, State.TIMEWAIT),
    Input.CLOSE: (_refuseReply, State.IDLE),
}
_CALLED: dict[Input, Row] = {
    **_ENDED,
    Input.ACCEPT: (_reply, State.REP_SENT),
    Input.REJECT: (_rejectRequest, State.IDLE),
    Input.IGNORE: (_drop, State.IDLE),
    Input.REJ: (_rejected, State.IDLE),
    Input.REJ_STALE: (_rejected, State.TIMEWAIT),
    Input.CLOSE: (_refuseRequest, State.IDLE),
}
_ACCEPTED: dict[Input, Row] = {
    **_ENDED,
    Input.RTU: (_established, State.ESTABLISHED),
    Input.DATA: (_established, State.ESTABLISHED),
    Input.DREQ: (_answerDREQ, State.TIMEWAIT),
    Input.REJ: (_rejected, State.IDLE),
    Input.REJ_STALE: (_rejected, State.TIMEWAIT),
    Input.EXHAUSTED: (_unreachable, State.IDLE),
    Input.CLOSE: (_withdraw, State.IDLE),
}
TRANSITIONS: dict[State, dict[Input, Row]] = {
    State.IDLE: {
        Input.CONNECT: (_ask, State.REQ_SENT),
        Input.REQ: (_request, State.REQ_RCVD),
    },
    State.REQ_SENT: {
        **_CALLING,
        Input.MRA_REQ: (_extend, State.MRA_REQ_RCVD),
        Input.RETRY: (_retry, State.REQ_SENT),
    },
    State.MRA_REQ_RCVD: {
        **_CALLING,
        Input.RETRY: (_retry, State.MRA_REQ_RCVD),
    },
    State.REP_RCVD: {
        **_ANSWERED,
        Input.THINK: (_prepareMRA, State.MRA_REP_SENT),
    },
    State.MRA_REP_SENT: {
        **_ANSWERED,
        Input.REP: (_repeat, State.MRA_REP_SENT),
    },
    State.REQ_RCVD: {
        **_CALLED,
        Input.THINK: (_prepareMRA, State.MRA_REQ_SENT),
    },
    State.MRA_REQ_SENT: {
        **_CALLED,
        Input.REPEATED_REQ: (_repeat, State.MRA_REQ_SENT),
    },
    State.REP_SENT: {
        **_ACCEPTED,
        Input.MRA_REP: (_extend, State.MRA_REP_RCVD),
        Input.RETRY: (_retry, State.REP_SENT),
    },
    State.MRA_REP_RCVD: {
        **_ACCEPTED,
        Input.RETRY: (_retry, State.MRA_REP_RCVD),
    },
    State.ESTABLISHED: {
        **_ENDED,
        Input.REP: (_repeat, State.ESTABLISHED),
        Input.LAP: (_declinePath, State.ESTABLISHED),
        Input.CLOSE: (_sendDREQ, State.DREQ_SENT),
        Input.STALE: (_sendDREQ, State.DREQ_SENT),
        Input.DREQ: (_answerDREQ, State.TIMEWAIT),
        Input.REJ: (_disconnected, State.TIMEWAIT),
        Input.REJ_STALE: (_disconnected, State.TIMEWAIT),
    },
    State.DREQ_SENT: {
        **_ENDED,
        Input.RETRY: (_retry, State.DREQ_SENT),
        Input.DREQ: (_answerDREQ, State.TIMEWAIT),
        Input.DREP: (_disconnected, State.TIMEWAIT),
        Input.REJ: (_disconnected, State.TIMEWAIT),
        Input.REJ_STALE: (_disconnected, State.TIMEWAIT),
        Input.EXHAUSTED: (_disconnected, State.TIMEWAIT),
    },
    State.TIMEWAIT: {},
}

# The same as lists: an enumeration's hash costs a Python call.
_ROWS = [[TRANSITIONS[state].get(given) for given in Input] for state in State]
_TIMED = [Input.RETRY in TRANSITIONS[state] for state in State]

HALF_OPEN = [
    state in (State.REQ_RCVD, State.MRA_REQ_SENT, State.REP_SENT, State.MRA_REP_RCVD) for state in State
]
