"""
What a connection does when something happens to it: (state, input) -> (action,
next state).

Actions change the connection's notes and append to the queues of the table that
it is in; they call nobody.  What has no entry in L{TRANSITIONS} is not done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted_ib.hca.cm.states import Event, Input, State
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

if TYPE_CHECKING:
    from twisted_ib.hca.cm.machine import Connection

#: The longest time that an MRA may ask for, once per message that it is about.
CM_SERVICE_TIMEOUT_CODE = 21

# Names of this module are looked up much faster than those of an enumeration.
_REQUEST, _REPLY = Event.REQUEST, Event.REPLY
_ESTABLISHED, _DISCONNECTED = Event.ESTABLISHED, Event.DISCONNECTED


def _ask(connection: Connection, message: REQ | REP | DREQ, now: float) -> None:
    table = connection.table
    output = connection.output = (connection.destination, message.attribute, message.pack())
    connection.retriesLeft = connection.maxRetries
    table.send(output)
    table.arm(connection, now + connection.period)


def _tell(connection: Connection, message: MRA | REJ | RTU | DREP | APR) -> None:
    """
    Send what needs no answer, with the ids in it.
    """
    message.localCommunicationID = connection.localID
    message.remoteCommunicationID = connection.remoteID
    connection.table.send((connection.destination, message.attribute, message.pack()))


def _request(connection: Connection, request: REQ, now: float) -> None:
    connection.table.report(_REQUEST, connection, request)


def _reply(connection: Connection, reply: REP, now: float) -> None:
    reply.localCommunicationID = connection.localID
    reply.remoteCommunicationID = connection.remoteID
    reply.localCAGUID = connection.table.caGUID
    _ask(connection, reply, now)
    connection.localQPN = reply.localQPN


def _replied(connection: Connection, reply: REP, now: float) -> None:
    connection.output = None
    connection.table.report(_REPLY, connection, reply)


def _sendReady(connection: Connection, message: RTU, now: float) -> None:
    """
    Send the RTU.  Keep it only if it cannot be made again from the ids.
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
    The peer thinks: wait this once for as long as it asks for, within reason.
    """
    code = min(message.serviceTimeout, CM_SERVICE_TIMEOUT_CODE)
    wait = timeoutSeconds(code) + connection.ackSeconds
    connection.table.arm(connection, now + wait)


def _retry(connection: Connection, message: object, now: float) -> None:
    assert connection.output is not None
    connection.retriesLeft -= 1
    connection.table.send(connection.output)
    connection.table.arm(connection, now + connection.period)


def _established(connection: Connection, message: object, now: float) -> None:
    connection.output = None
    connection.table.report(_ESTABLISHED, connection, message)


def _rejected(connection: Connection, message: object, now: float) -> None:
    connection.output = None
    connection.table.report(Event.REJECTED, connection, message)


def _unreachable(connection: Connection, message: object, now: float) -> None:
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
    _tell(
        connection,
        REJ(
            messageRejected=MessageKind.OTHER,
            reason=RejectReason.CONSUMER_DEFINED,
            privateData=message if isinstance(message, bytes) else b"",
        ),
    )


def _sendDREQ(connection: Connection, message: object, now: float) -> None:
    disconnectData = message if isinstance(message, bytes) else b""
    request = DREQ(connection.localID, connection.remoteID, connection.remoteQPN, disconnectData)
    _ask(connection, request, now)


def _answerDREQ(connection: Connection, message: DREQ, now: float) -> None:
    connection.output = None
    connection.disconnectData = message.privateData
    _tell(connection, DREP())
    connection.table.report(_DISCONNECTED, connection, message)


def _disconnected(connection: Connection, message: object, now: float) -> None:
    connection.output = None
    if isinstance(message, REJ):
        connection.disconnectData = message.privateData
    connection.table.report(_DISCONNECTED, connection, message)


def _declinePath(connection: Connection, message: object, now: float) -> None:
    """
    No alternate paths here, as with RoCE in Linux; but say so.
    """
    _tell(connection, APR(status=APRStatus.UNSUPPORTED))


def _drop(connection: Connection, message: object, now: float) -> None:
    connection.output = None


Action = Callable[["Connection", Any, float], None]
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
    # Another has its place.
    Input.EXHAUSTED: (_unreachable, State.IDLE),
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
        # A peer that goes on thinking answers this with another MRA, so that
        # the bound on one MRA does not end a long wait in its queue.
        Input.RETRY: (_retry, State.REQ_SENT),
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

#: What a step comes to: the action, the next state, and whether that may have a deadline.
Step = tuple[Action, State, bool]


def _step(row: Row | None) -> Step | None:
    """
    Look up beforehand what a step needs to know.
    """
    return None if row is None else (*row, Input.RETRY in TRANSITIONS[row[1]])


# The same as lists: an enumeration's hash costs a Python call.
ROWS = [[_step(TRANSITIONS[state].get(given)) for given in Input] for state in State]

HALF_OPEN = [
    state in (State.REQ_RCVD, State.MRA_REQ_SENT, State.REP_SENT, State.MRA_REP_RCVD) for state in State
]
