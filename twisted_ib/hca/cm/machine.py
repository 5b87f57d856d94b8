"""
One connection of the communication manager.

A L{Connection} opens and closes an InfiniBand connection; data never passes here. Its states are in
L{twisted_ib.hca.cm.states}, its behaviour is the table L{twisted_ib.hca.cm.transitions.TRANSITIONS}. A
message without an entry there is ignored and counted by the
L{ConnectionTable<twisted_ib.hca.cm.table.ConnectionTable>}; a command without one is the caller's error, or
came too late.

Users have requests to connect and their answers (L{twisted_ib.hca.connection}). REQ and REP have the same
fields, and one becomes the other by its class alone; communication ids, GUIDs and whatever else only the
communication manager knows are not set by that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from zope.interface import classImplements

from twisted_ib.errors import ConnectionStateError
from twisted_ib.hca.cm.states import Event, Input, State
from twisted_ib.hca.cm.timers import Timing
from twisted_ib.hca.cm.transitions import ROWS
from twisted_ib.hca.connection import ConnectReply, ConnectRequest, RejectReason
from twisted_ib.hca.connection.interfaces import IConnection
from twisted_ib.hca.wire.cm.messages import MRA, REJ, REP, REQ, RTU

if TYPE_CHECKING:
    from twisted_ib.hca.cm.peer import Peer

__all__ = ["Connection", "ConnectionContext", "Event", "Input", "Output", "State"]

Output = tuple[Any, int, bytes]

# Module globals: looking a member up on an enumeration is much slower.
_IDLE, _ACCEPT, _READY, _CLOSE = State.IDLE, Input.ACCEPT, Input.READY, Input.CLOSE
_OPEN, _LEAVE = Input.OPEN, Input.LEAVE


def requestMessage(request: ConnectRequest) -> REQ:
    """
    @return: the request, which is the REQ from now on.
    """
    request.__class__ = REQ
    assert isinstance(request, REQ)
    request.localCMResponseTimeout = request.responseTimeout
    return request


def requestOf(message: REQ) -> ConnectRequest:
    """
    @return: the request of a REQ, which it is itself.
    """
    # IBTA vol. 1 12.6.7.2, reason 9: only RC (0); connections need its order and retransmission.
    if message.transportServiceType:
        message.unsupported = RejectReason.INVALID_TRANSPORT_TYPE
    return message


def replyMessage(reply: ConnectReply) -> REP:
    """
    @return: the reply, which is the REP from now on.
    """
    reply.__class__ = REP
    assert isinstance(reply, REP)
    return reply


class ConnectionContext(Protocol):
    """
    Services of the connection table for its connections.

    @ivar sourcesForgeable: whether a REQ proves nothing about its source.
    @ivar lossless: whether no message is lost while the peer lives.
    @ivar pack: serializes every message for the medium.
    @ivar padded: the length to which it pads them, or 0.
    @ivar follow: if not L{None}, called with each connection and its REQ, REP or RTU before that is sent, and
        with L{None} when the peer has established it, and when it has ended.
    """

    caGUID: int
    sourcesForgeable: bool
    lossless: bool
    pack: Callable[[Any], bytes]
    padded: int
    follow: Callable[[Connection, object], object] | None

    def send(self, output: Output) -> None:
        """
        Queue a message for the medium.
        """

    def report(self, event: Event, connection: Connection, message: object) -> None:
        """
        Queue an event for the consumer.
        """

    def arm(self, connection: Connection, deadline: float) -> None:
        """
        Feed RETRY or EXHAUSTED at C{deadline}.
        """

    def disarm(self, connection: Connection) -> None:
        """
        Cancel the deadline.
        """

    def moved(self, connection: Connection, old: State, now: float) -> None:
        """
        The connection's state has changed from C{old}: it has ended, sent a REP, or become half open or
        ceased to be.
        """


class Connection:
    """
    One end of a connection.

    @ivar state: the L{State}. Finally IDLE or TIMEWAIT; the table no longer holds this object then.
    @ivar user: free for the consumer.
    @ivar listener: passive: the listener of the service id.
    @ivar peer: the table's L{Peer<twisted_ib.hca.cm.peer.Peer>} of C{destination}, which has the table.
    @ivar remoteID: the peer's communication id; 0 while unknown.
    @ivar localQPN: 0 until C{accept} on the passive side.
    @ivar remoteQPN: 0 until the REP on the active side.
    @ivar output: the last message, for retransmission; on a medium that pads them, without zeros at its end.
    @ivar deadline: when to retransmit, or L{None}.
    @ivar timing: its times, of the REQ that was sent or received: they hold for both sides.
    @ivar retriesLeft: how often the message that waits for an answer is repeated yet; from C{CM_IF_ASKED} on
        so much less, and only if the peer asks for it.
    @ivar since: while it is half open and sources can be forged: when its REQ came.
    @ivar disconnectData: private data of the DREQ or REJ by which the peer ended the connection; else empty.
    """

    # No more than an established connection needs, of which there may be many.
    __slots__ = (
        "deadline",
        "disconnectData",
        "listener",
        "localID",
        "localQPN",
        "output",
        "peer",
        "remoteCAGUID",
        "remoteID",
        "remoteQPN",
        "retriesLeft",
        "since",
        "state",
        "timing",
        "user",
    )

    def __init__(self, peer: Peer, localID: int, timing: Timing) -> None:
        self.peer = peer
        self.localID = localID
        self.timing = timing
        self.remoteID = 0
        self.localQPN = 0
        self.remoteQPN = 0
        self.remoteCAGUID = 0
        self.listener: Any = None
        self.user: Any = None
        self.state: State = _IDLE
        self.output: bytes | None = None
        self.disconnectData = b""
        self.deadline: float | None = None
        self.retriesLeft = timing.retries
        self.since = 0.0

    @property
    def destination(self) -> Any:
        # And the only source that messages are accepted from.
        return self.peer.source

    @property
    def ackSeconds(self) -> float:
        return self.timing.ackSeconds

    @property
    def isDelayed(self) -> bool:
        return self.state is State.MRA_REQ_RCVD

    def accept(self, reply: ConnectReply, now: float, isConfirmed: bool = True) -> bool:
        """
        Passive: answer REQUEST with a REP.

        @param isConfirmed: whether an RTU confirms it, even where no message is lost: the same at both ends.
        @return: whether the peer still waits for it.
        """
        given = _ACCEPT if isConfirmed or not self.peer.table.lossless else _OPEN
        return self.feed(given, replyMessage(reply), now) or self._missed(Input.ACCEPT)

    def reject(self, reason: int, privateData: bytes, now: float) -> bool:
        message = REJ(reason=reason, privateData=privateData)
        return self.feed(Input.REJECT, message, now) or self._missed(Input.REJECT)

    def ignore(self, now: float) -> bool:
        return self.feed(Input.IGNORE, None, now) or self._missed(Input.IGNORE)

    def sendMRA(self, now: float, serviceTimeout: int = 24, privateData: bytes = b"") -> bool:
        """
        Announce a late answer to REQUEST or REPLY: if the peer retransmits, it receives an MRA.

        @param serviceTimeout: a timeout code; 24 is 65.5 seconds.
        """
        message = MRA(serviceTimeout=serviceTimeout, privateData=privateData)
        return self.feed(Input.SEND_MRA, message, now) or self._missed(Input.SEND_MRA)

    def ready(self, now: float, privateData: bytes = b"", isConfirmed: bool = True) -> bool:
        table = self.peer.table
        if not isConfirmed and table.lossless:
            return self.feed(_OPEN, None, now) or self._missed(Input.READY)
        return self.feed(_READY, RTU(privateData=privateData), now) or self._missed(Input.READY)

    def established(self, now: float) -> bool:
        """
        Passive: the first data arrived, which is as good as an RTU.

        @return: whether the connection was not established yet.
        """
        return self.feed(Input.DATA, None, now)

    def disconnect(self, now: float, privateData: bytes = b"") -> bool:
        """
        End the connection in any state: by a DREQ if it is established, else by a REJ.

        @param privateData: of the DREQ; or of the REJ after a REP, at most 148 bytes.
        @return: False if it has ended or is ending. DISCONNECTED follows only if L{state} is DREQ_SENT now.
        """
        return self.feed(_CLOSE, privateData, now)

    def leave(self, now: float, privateData: bytes = b"") -> bool:
        """
        End the connection as L{disconnect}, on a medium that loses nothing, where no answer is awaited.

        @return: False if it has ended or is ending. DISCONNECTED follows only if L{state} is DREQ_SENT now.
        """
        return self.feed(_LEAVE, privateData, now) or self.feed(_CLOSE, privateData, now)

    def finish(self, now: float) -> bool:
        """
        End a connection whose end both consumers know of, without a message.

        @return: False if it has ended.
        """
        return self.feed(Input.FINISH, None, now)

    def abandon(self, now: float) -> bool:
        """
        Give up, as L{disconnect}; before the REP this sends REJ with reason "timeout".
        """
        # IBTA vol. 1 12.6.7.2, reason 4: the REJ carries our CA GUID, by which the peer finds its end
        # although we do not know its communication id yet.
        return self.feed(Input.CLOSE, None, now)

    def feed(self, given: Input, message: Any, now: float) -> bool:
        """
        Make one step of the state machine.

        @return: False if the table has no entry for this state and input.
        """
        old = self.state
        row = ROWS[old][given]
        if row is None:
            return False
        action, state, timed, isFollowed = row
        # The action runs in the old state: _prepareMRA and _rejectRequest look at it.
        action(self, message, now)
        if state is not old:
            self.state = state
            # Only states with a RETRY entry may have a timer; any other would fire into a row that is not
            # there.
            if not timed and self.deadline is not None:
                self.peer.table.disarm(self)
            if isFollowed:
                self.peer.table.moved(self, old, now)
        return True

    def _missed(self, given: Input) -> bool:
        # A command without an entry. If the peer ended the connection first, the consumer could not know:
        # that is no error of the caller's.
        if self.state in (State.IDLE, State.TIMEWAIT):
            return False
        raise ConnectionStateError(f"{given.name.lower()} in state {self.state.name}")


classImplements(Connection, IConnection)
