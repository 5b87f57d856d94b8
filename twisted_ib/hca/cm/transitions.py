"""
The state machine of a connection (IBTA vol. 1 12.9.7): (state, input) -> (next state, action).

Actions change the connection and append to its table's queues; they call no consumer. An input without an
entry in L{TRANSITIONS} does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.hca.base.machine import Machine, ignored, listed
from twisted_ib.hca.cm.states import Event, Input, State
from twisted_ib.hca.connection import RejectReason
from twisted_ib.hca.connection.compacthello import refusal
from twisted_ib.hca.wire.cm.messages import (
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
    timeoutSeconds,
)

if TYPE_CHECKING:
    from twisted_ib.hca.cm.machine import Connection, ConnectionContext

#: How often an RTU is repeated unasked on a medium whose sources can be forged: there the passive side
#: repeats its REP once only, and cannot learn otherwise of a peer that has no data to send.
CM_READY_REPEATS = 5
#: The longest service timeout of an MRA that is granted, about eight seconds, once per message: code 31
#: would keep a half-open connection for over two hours (IBTA vol. 1 12.6.6).
CM_SERVICE_TIMEOUT_CODE = 21
#: Added to the repeats that are left, of which there are at most 15, if only an MRA may ask for them.
CM_IF_ASKED = 16
#: A reserved bit of a DREQ that is ours between processes alone: its sender awaits no DREP.
DREQ_LAST = 1
#: Where the service id of a REQ begins.
_SERVICE_ID: Final = 8
#: When a REQ that found no room comes again, where nothing is repeated unasked: a timeout code, about one
#: second, as TCP's first SYN (RFC 6298 section 2).
CM_AGAIN_CODE = 18

# Module globals: looking a member up on an enumeration is much slower.
_REQUEST, _REPLY = Event.REQUEST, Event.REPLY
_ESTABLISHED, _DISCONNECTED = Event.ESTABLISHED, Event.DISCONNECTED


def _sendRequest(connection: Connection, message: REQ | REP | DREQ, now: float) -> None:
    table = connection.peer.table
    body = table.pack(message)
    # Most of its private data are zeros, and anybody can have any number of REPs kept.
    connection.output = body.rstrip(b"\0") if table.padded else body
    connection.retriesLeft = connection.timing.retries
    if table.follow is not None and connection.state is not State.ESTABLISHED:
        # Before it is sent: the peer of a process that dies then waits for it.
        table.follow(connection, message)
    table.send((connection.peer.source, message.attribute, body))
    _awaitAnswer(connection, now)


def _again(connection: Connection) -> None:
    body, table = connection.output, connection.peer.table
    assert body is not None
    table.send((connection.peer.source, _REPEATED[connection.state], body.ljust(table.padded, b"\0")))


def _awaitAnswer(connection: Connection, now: float) -> None:
    table, wait = connection.peer.table, connection.timing.period
    if table.lossless:
        # One wait, as long as all repeats would take: the peer will read the message, or its path is lost.
        # How many repeats it may ask for is kept.
        retries = connection.retriesLeft
        connection.retriesLeft = retries + CM_IF_ASKED
        wait *= retries + 1
        if wait < limits.CM_ANSWER_SECONDS:
            wait = limits.CM_ANSWER_SECONDS
    table.arm(connection, now + wait)


def askAgain(table: ConnectionContext, destination: Any, localID: int, remoteID: int) -> None:
    """
    Have a REQ repeated that finds no room now.

    @param remoteID: the communication id of the REQ.
    """
    # IBTA vol. 1 12.6.6: when an MRA's time is over, the REQ is repeated.
    message = MRA(localID, remoteID, serviceTimeout=CM_AGAIN_CODE)
    table.send((destination, MRA.attribute, table.pack(message)))


def refuse(
    table: ConnectionContext,
    destination: Any,
    message: REQ | REP | RTU,
    kind: MessageKind,
    reason: RejectReason,
) -> None:
    """
    Answer a message of nobody's by a REJ.

    @param kind: what it was, as a REJ has it.
    """
    reject = REJ(remoteCommunicationID=message.localCommunicationID, messageRejected=kind, reason=reason)
    if not isinstance(message, REQ):
        reject.localCommunicationID = message.remoteCommunicationID
    elif reason == RejectReason.INVALID_SERVICE_ID and not table.lossless:
        reject.privateData = refusal(message.serviceID)
    table.send((destination, reject.attribute, table.pack(reject)))


def _sendFinal(connection: Connection, message: MRA | REJ | RTU | DREP | APR) -> None:
    # MRA, REJ, RTU, DREP and APR need no answer: nothing is kept and no timer runs.
    message.localCommunicationID = connection.localID
    message.remoteCommunicationID = connection.remoteID
    peer = connection.peer
    peer.table.send((peer.source, message.attribute, peer.table.pack(message)))


def _request(connection: Connection, request: REQ, now: float) -> None:
    connection.peer.table.report(_REQUEST, connection, request)


def _reply(connection: Connection, reply: REP, now: float) -> None:
    reply.localCommunicationID = connection.localID
    reply.remoteCommunicationID = connection.remoteID
    reply.localCAGUID = connection.peer.table.caGUID
    connection.localQPN = reply.localQPN
    # IBTA vol. 1 12.6.8: a REP is acknowledged by the RTU, so it is retransmitted like a REQ.
    _sendRequest(connection, reply, now)


def _replyOnly(connection: Connection, reply: REP, now: float) -> None:
    # IBTA vol. 1 12.9.8: the RTU tells the passive side that its REP has arrived and the peer's queue pair is
    # ready.  A medium that loses nothing and keeps the order lets no message be late for it.
    table = connection.peer.table
    reply.localCommunicationID = connection.localID
    reply.remoteCommunicationID = connection.remoteID
    reply.localCAGUID = table.caGUID
    table.send((connection.peer.source, reply.attribute, table.pack(reply)))
    connection.output = None
    connection.localQPN = reply.localQPN


def _replied(connection: Connection, reply: REP, now: float) -> None:
    connection.output = None
    connection.peer.table.report(_REPLY, connection, reply)


def _sendReady(connection: Connection, message: RTU, now: float) -> None:
    message.localCommunicationID = connection.localID
    message.remoteCommunicationID = connection.remoteID
    table = connection.peer.table
    body = table.pack(message)
    # A repeated REP draws the RTU again (Linux cm.c cm_dup_rep_handler). Without private data it can be made
    # from the two ids, so an idle connection keeps no 232 octets for it.
    connection.output = body if message.privateData else None
    if table.follow is not None:
        table.follow(connection, message)
    table.send((connection.peer.source, RTU.attribute, body))
    if table.sourcesForgeable and connection.timing.retries:
        connection.retriesLeft = min(connection.timing.retries, CM_READY_REPEATS)
        table.arm(connection, now + connection.timing.period)
    elif connection.deadline is not None:
        table.disarm(connection)


def _repeatReady(connection: Connection, message: object, now: float) -> None:
    _repeat(connection, message, now)
    connection.retriesLeft -= 1
    if connection.retriesLeft > 0:  # Then nothing more is due; the connection stays as it is.
        connection.peer.table.arm(connection, now + connection.timing.period)


def _repeat(connection: Connection, message: object, now: float) -> None:
    # The peer repeated its REQ or REP, so our MRA, REP or RTU was lost.
    if connection.output is None:
        _sendFinal(connection, RTU())
    else:
        _again(connection)


def _prepareMRA(connection: Connection, message: MRA, now: float) -> None:
    # Linux cm.c ib_prepare_cm_mra: nothing is sent until the peer retransmits. Most consumers answer sooner,
    # and an MRA to each request would double the messages.
    repRcvd = connection.state == State.REP_RCVD
    message.messageMRAed = MessageKind.REP if repRcvd else MessageKind.REQ
    message.localCommunicationID = connection.localID
    message.remoteCommunicationID = connection.remoteID
    connection.output = connection.peer.table.pack(message)


def _extend(connection: Connection, message: MRA, now: float) -> None:
    # IBTA vol. 1 12.6.6: the MRA extends this one wait. Bounded, because the peer chooses the value and our
    # entry stays in the table meanwhile.
    code = min(message.serviceTimeout, CM_SERVICE_TIMEOUT_CODE)
    # Linux cm.c adds the path's timeout, too.
    wait = timeoutSeconds(code) + connection.timing.ackSeconds
    connection.retriesLeft %= CM_IF_ASKED
    connection.peer.table.arm(connection, now + wait)


def _retry(connection: Connection, message: object, now: float) -> None:
    connection.retriesLeft -= 1
    _again(connection)
    _awaitAnswer(connection, now)


def _retryReply(connection: Connection, message: object, now: float) -> None:
    table = connection.peer.table
    connection.retriesLeft -= 1
    wait = connection.timing.period
    if table.sourcesForgeable:
        # Nothing has come back from the REQ's source, which may be a victim's: one repeat of our own, then
        # each repeated REQ draws one REP. We wait for as long as all repeats would take.
        wait *= connection.retriesLeft + 1
        connection.retriesLeft = 0
    _again(connection)
    table.arm(connection, now + wait)


def _extendReply(connection: Connection, message: MRA, now: float) -> None:
    # The MRA has our communication id, so the REP has reached the REQ's source.
    connection.retriesLeft = connection.timing.retries
    _extend(connection, message, now)


def _established(connection: Connection, message: object, now: float) -> None:
    connection.output = None
    table = connection.peer.table
    if connection.deadline is not None:
        table.disarm(connection)
    table.report(_ESTABLISHED, connection, message)


def _rejected(connection: Connection, message: object, now: float) -> None:
    connection.output = None
    connection.peer.table.report(Event.REJECTED, connection, message)


def _unreachable(connection: Connection, message: object, now: float) -> None:
    if connection.peer.table.lossless:
        # The peer lives and will read this: neither end may keep what the other has given up.
        (_rejectAccepted if connection.remoteID else _rejectTimeout)(connection, message, now)
    connection.output = None
    connection.peer.table.report(Event.UNREACHABLE, connection, message)


def _rejectRequest(connection: Connection, message: REJ, now: float) -> None:
    # Linux cm.c cm_format_rej leaves the local id 0 if the peer was never told it; after an MRA it was.
    message.messageRejected = MessageKind.REQ
    if connection.state == State.MRA_REQ_SENT:
        message.localCommunicationID = connection.localID
    message.remoteCommunicationID = connection.remoteID
    connection.output = None
    peer = connection.peer
    peer.table.send((peer.source, REJ.attribute, peer.table.pack(message)))


def _rejectReply(connection: Connection, message: REJ, now: float) -> None:
    message.messageRejected = MessageKind.REP
    connection.output = None
    _sendFinal(connection, message)


def _rejectTimeout(connection: Connection, message: object, now: float) -> None:
    # No REP yet, so the peer's id is unknown: it finds its connection by our CA GUID and local id (IBTA vol.
    # 1 12.6.7.2 reason 4; Linux cm.c cm_acquire_rejected_id).
    guid, request = connection.peer.table.caGUID.to_bytes(8, "big"), connection.output or b""
    connection.output = None
    _sendFinal(
        connection,
        REJ(
            messageRejected=MessageKind.OTHER,
            reason=RejectReason.TIMEOUT,
            additionalInfoLength=len(guid),
            # Behind what counts, the service id: processes that share an address know by it whose this is.
            additionalInfo=guid + request[_SERVICE_ID : _SERVICE_ID + 8],
        ),
    )


def _refuseRequest(connection: Connection, message: object, now: float) -> None:
    # The consumer closed without an answer to the REQ: Linux cm.c ib_destroy_cm_id sends the same REJ.
    _rejectRequest(connection, REJ(reason=RejectReason.CONSUMER_DEFINED), now)


def _refuseReply(connection: Connection, message: object, now: float) -> None:
    _rejectReply(connection, REJ(reason=RejectReason.CONSUMER_DEFINED), now)


def _rejectAccepted(connection: Connection, message: object, now: float) -> None:
    # The consumer accepted and then closed before the RTU. Not a DREQ: the peer may not have the REP yet,
    # and a REJ ends its attempt in either case (Linux cm.c cm_destroy_id).
    connection.output = None
    hasRepeated = connection.retriesLeft < connection.timing.retries
    if hasRepeated and connection.state is State.REP_SENT and connection.peer.table.sourcesForgeable:
        return  # Two messages for one REQ are the most; if it is repeated, it is a new one.
    _sendFinal(
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
    _sendRequest(connection, request, now)


def _sendLast(connection: Connection, message: bytes, now: float) -> None:
    table = connection.peer.table
    connection.output = None
    request = DREQ(connection.localID, connection.remoteID, connection.remoteQPN, message, DREQ_LAST)
    table.send((connection.peer.source, DREQ.attribute, table.pack(request)))


def _answerDREQ(connection: Connection, message: DREQ, now: float) -> None:
    # Answered here; Linux cma.c differs and leaves it to rdma_disconnect, where a consumer that is slow to
    # close keeps the peer in DREQ_SENT.
    connection.output = None
    connection.disconnectData = message.privateData
    if not (message.reserved & DREQ_LAST and connection.peer.table.lossless):
        _sendFinal(connection, DREP())
    connection.peer.table.report(_DISCONNECTED, connection, message)


def _disconnected(connection: Connection, message: object, now: float) -> None:
    connection.output = None
    if isinstance(message, REJ):
        connection.disconnectData = message.privateData
    connection.peer.table.report(_DISCONNECTED, connection, message)


def _declinePath(connection: Connection, message: object, now: float) -> None:
    # Linux cm.c cm_lap_handler refuses alternate paths on RoCE too, but silently; with an APR the peer need
    # not retransmit its LAP.
    _sendFinal(connection, APR(status=APRStatus.UNSUPPORTED))


def _drop(connection: Connection, message: object, now: float) -> None:
    connection.output = None


def _ignore(connection: Connection, message: object, now: float) -> None:
    connection.output = None
    peer = connection.peer
    if peer.table.lossless:
        askAgain(peer.table, peer.source, connection.localID, connection.remoteID)


Action = Callable[["Connection", Any, float], None]
Row = tuple[State, Action]

#                IDLE
#     connect   /    \   REQ
#              v      v
#   +-- REQ_SENT      REQ_RCVD --+   think: MRA_REQ_SENT, MRA to each repeated REQ
#   |  MRA: MRA_REQ_RCVD   |     |
#   |     | REP            | accept: send REP, again to each repeated REQ
#   |     v                v     |
#   |  REP_RCVD       REP_SENT   |   think: MRA_REP_SENT, MRA to each repeated REP
#   |     |         MRA: MRA_REP_RCVD
#   |     | ready:         | RTU, or first data
#   |     | send RTU       |     |
#   |     +-> ESTABLISHED <+     |   repeated REP: RTU again; without RTU from REQ_RCVD at once
#   |        disconnect: |       |
#   |        send DREQ   v       |   DREQ: send DREP
#   |             DREQ_SENT -> TIMEWAIT -> (the ids stay reserved for a while)
#   |                    DREP, DREQ, REJ, retries out
#   +---> IDLE <-----------------+
#     REJ, reject, retries out, close
#
# IBTA vol. 1 12.9.7; where that leaves a choice, as Linux cm.c.
_ENDED: dict[Input, Row] = {Input.PATH_LOST: (State.IDLE, _drop)}
_ACTIVE: dict[Input, Row] = {
    **_ENDED,
    Input.REP: (State.REP_RCVD, _replied),
    # Linux cm.c cm_rej_handler: only a stale REJ leads to TIMEWAIT. The peer still remembers our queue pair
    # number, so it must not be used again at once.
    Input.REJ: (State.IDLE, _rejected),
    Input.REJ_STALE: (State.TIMEWAIT, _rejected),
    Input.EXHAUSTED: (State.IDLE, _unreachable),
    Input.CLOSE: (State.IDLE, _rejectTimeout),
}
_ANSWERED: dict[Input, Row] = {
    **_ENDED,
    Input.READY: (State.ESTABLISHED, _sendReady),
    Input.OPEN: (State.ESTABLISHED, _drop),
    Input.REJECT: (State.IDLE, _rejectReply),
    # The peer's queue pair was ready before its REP and may have sent, so the ids stay reserved as Linux cm.c
    # cm_rej_handler has it in REP_RCVD.
    Input.REJ: (State.TIMEWAIT, _rejected),
    Input.REJ_STALE: (State.TIMEWAIT, _rejected),
    Input.CLOSE: (State.IDLE, _refuseReply),
}
_PASSIVE: dict[Input, Row] = {
    **_ENDED,
    Input.ACCEPT: (State.REP_SENT, _reply),
    Input.OPEN: (State.ESTABLISHED, _replyOnly),
    Input.REJECT: (State.IDLE, _rejectRequest),
    Input.IGNORE: (State.IDLE, _ignore),
    Input.REJ: (State.IDLE, _rejected),
    Input.REJ_STALE: (State.TIMEWAIT, _rejected),
    # Evicted by a newer REQ, see HalfOpenLimit: no message is sent, since the source may be forged.
    Input.EXHAUSTED: (State.IDLE, _unreachable),
    Input.CLOSE: (State.IDLE, _refuseRequest),
}
_ACCEPTED: dict[Input, Row] = {
    **_ENDED,
    Input.RTU: (State.ESTABLISHED, _established),
    # IBTA vol. 1 12.9.8: data travels on another queue pair than the RTU and may overtake it.
    Input.DATA: (State.ESTABLISHED, _established),
    # The RTU was lost and the active side has closed already (Linux cm.c cm_dreq_handler).
    Input.DREQ: (State.TIMEWAIT, _answerDREQ),
    Input.REJ: (State.IDLE, _rejected),
    Input.REJ_STALE: (State.TIMEWAIT, _rejected),
    Input.EXHAUSTED: (State.IDLE, _unreachable),
    Input.CLOSE: (State.IDLE, _rejectAccepted),
    Input.FINISH: (State.IDLE, _drop),
}
TRANSITIONS = Machine[State, Input, Row | None](
    listed(
        {
            State.IDLE: {
                Input.CONNECT: (State.REQ_SENT, _sendRequest),
                Input.REQ: (State.REQ_RCVD, _request),
            },
            State.REQ_SENT: {
                **_ACTIVE,
                Input.MRA_REQ: (State.MRA_REQ_RCVD, _extend),
                Input.RETRY: (State.REQ_SENT, _retry),
            },
            State.MRA_REQ_RCVD: {
                **_ACTIVE,
                # The repeated REQ draws another MRA from a peer that still needs time, so the bound on one
                # MRA (CM_SERVICE_TIMEOUT_CODE) does not end a long wait in its accept queue.
                Input.RETRY: (State.REQ_SENT, _retry),
            },
            State.REP_RCVD: {
                **_ANSWERED,
                Input.SEND_MRA: (State.MRA_REP_SENT, _prepareMRA),
            },
            State.MRA_REP_SENT: {
                **_ANSWERED,
                Input.REP: (State.MRA_REP_SENT, _repeat),
            },
            State.REQ_RCVD: {
                **_PASSIVE,
                Input.SEND_MRA: (State.MRA_REQ_SENT, _prepareMRA),
            },
            State.MRA_REQ_SENT: {
                **_PASSIVE,
                Input.REPEATED_REQ: (State.MRA_REQ_SENT, _repeat),
            },
            State.REP_SENT: {
                **_ACCEPTED,
                Input.REPEATED_REQ: (State.REP_SENT, _repeat),
                Input.MRA_REP: (State.MRA_REP_RCVD, _extendReply),
                Input.RETRY: (State.REP_SENT, _retryReply),
            },
            State.MRA_REP_RCVD: {
                **_ACCEPTED,
                Input.RETRY: (State.MRA_REP_RCVD, _retry),
            },
            State.ESTABLISHED: {
                **_ENDED,
                # The RTU was lost.
                Input.REP: (State.ESTABLISHED, _repeat),
                Input.RETRY: (State.ESTABLISHED, _repeatReady),
                Input.LAP: (State.ESTABLISHED, _declinePath),
                Input.CLOSE: (State.DREQ_SENT, _sendDREQ),
                # No TIMEWAIT: behind the consumers' last messages nothing is on the way.
                Input.FINISH: (State.IDLE, _drop),
                Input.LEAVE: (State.IDLE, _sendLast),
                # Linux cm.c cm_match_req: after the REJ to the new REQ the old connection is closed by a
                # DREQ, in case that the peer does remember it.
                Input.STALE: (State.DREQ_SENT, _sendDREQ),
                Input.DREQ: (State.TIMEWAIT, _answerDREQ),
                Input.REJ: (State.TIMEWAIT, _disconnected),
                Input.REJ_STALE: (State.TIMEWAIT, _disconnected),
            },
            State.DREQ_SENT: {
                **_ENDED,
                Input.RETRY: (State.DREQ_SENT, _retry),
                # Crossing DREQs: each side answers the other's, and the DREP may come after that or never.
                Input.DREQ: (State.TIMEWAIT, _answerDREQ),
                Input.DREP: (State.TIMEWAIT, _disconnected),
                Input.REJ: (State.TIMEWAIT, _disconnected),
                Input.REJ_STALE: (State.TIMEWAIT, _disconnected),
                Input.EXHAUSTED: (State.TIMEWAIT, _disconnected),
            },
            # The table has dropped the connection: a repeated DREQ is answered without state (Linux cm.c
            # cm_issue_drep).
            State.TIMEWAIT: {},
        }
    ),
    unlisted=ignored,
)

# Passive states in which the peer has proved nothing: the REQ's source may be forged (RFC 4987 for TCP's
# SYN).
HALF_OPEN = [
    state in (State.REQ_RCVD, State.MRA_REQ_SENT, State.REP_SENT, State.MRA_REP_RCVD) for state in State
]

#: What L{Connection.output} is in each state, where it is kept.
_REPEATED = [
    *(0, REQ.attribute, REQ.attribute, 0, MRA.attribute, 0, MRA.attribute, REP.attribute, REP.attribute),
    *(RTU.attribute, DREQ.attribute, 0),
]

#: Action, next state, whether the next state may have a timer, and whether the table follows the change.
Step = tuple[Action, State, bool, bool]


def _step(old: State, row: Row | None) -> Step | None:
    if row is None:
        return None
    state, action = row
    isFollowed = HALF_OPEN[state] != HALF_OPEN[old] or state in (State.REP_SENT, State.IDLE, State.TIMEWAIT)
    return action, state, (state, Input.RETRY) in TRANSITIONS, isFollowed


# The same as lists, for speed: hashing an enumeration member costs a Python call.
ROWS = [[_step(state, TRANSITIONS[state, given]) for given in Input] for state in State]
