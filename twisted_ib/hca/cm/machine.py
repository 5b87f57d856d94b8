"""
One connection of the communication manager.

L{Connection} is to an InfiniBand connection what a TCP control block is before
and after the data: it asks, answers, repeats what was lost and closes; data
never comes here.  Its states are in L{twisted_ib.hca.cm.states}, and what it
does in them is the table L{twisted_ib.hca.cm.transitions.TRANSITIONS}.  A
message that has no entry there is ignored, and counted by the table of
connections; a command that has no entry is the caller's mistake, or came too
late.
"""

from __future__ import annotations

from typing import Any, Protocol

from twisted_ib.errors import ConnectionStateError
from twisted_ib.hca.cm.states import Event, Input, State
from twisted_ib.hca.cm.transitions import ROWS
from twisted_ib.hca.wire.cm import MRA, REJ, REP, REQ, RTU, timeoutSeconds

__all__ = ["Connection", "ConnectionContext", "Event", "Input", "Output", "State"]

Output = tuple[Any, int, bytes]

# Names of this module are looked up much faster than those of an enumeration.
_IDLE, _ACCEPT, _READY, _CLOSE = State.IDLE, Input.ACCEPT, Input.READY, Input.CLOSE


class ConnectionContext(Protocol):
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
    @ivar farewell: the private data of the DREQ or REJ by which the peer ended it; empty if
        it did not.
    """

    __slots__ = (
        "ackSeconds",
        "deadline",
        "destination",
        "disconnectData",
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

    def __init__(
        self, table: ConnectionContext, peer: Any, destination: Any, localID: int, request: REQ
    ) -> None:
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
        self.state: State = _IDLE
        self.output: Output | None = None
        self.disconnectData = b""
        self.deadline: float | None = None
        self.maxRetries = self.retriesLeft = request.maxCMRetries
        self.period = 0.0
        self.ackSeconds = timeoutSeconds(request.primaryPath.localACKTimeout)

    def accept(self, reply: REP, now: float) -> bool:
        """
        Passive: answer REQUEST with yes.  Fills in the ids and the CA GUID.

        @return: whether the peer still waits for it.
        """
        return self.feed(_ACCEPT, reply, now) or self._missed(Input.ACCEPT)

    def reject(self, reason: int, privateData: bytes, now: float) -> bool:
        """
        Answer REQUEST or REPLY with no.
        """
        message = REJ(reason=reason, privateData=privateData)
        return self.feed(Input.REJECT, message, now) or self._missed(Input.REJECT)

    def ignore(self, now: float) -> bool:
        """
        Passive: forget a REQUEST, so that the peer's retry comes as a new one.
        """
        return self.feed(Input.IGNORE, None, now) or self._missed(Input.IGNORE)

    def sendMRA(self, now: float, serviceTimeout: int = 24, privateData: bytes = b"") -> bool:
        """
        The answer to REQUEST or REPLY will take long: if the peer asks again,
        it is told so by an MRA.

        @param serviceTimeout: a timeout code; 24 is 65.5 seconds.
        """
        message = MRA(serviceTimeout=serviceTimeout, privateData=privateData)
        return self.feed(Input.THINK, message, now) or self._missed(Input.THINK)

    def ready(self, now: float, privateData: bytes = b"") -> bool:
        """
        Active: answer REPLY with yes: send RTU.
        """
        message = RTU(privateData=privateData)
        return self.feed(_READY, message, now) or self._missed(Input.READY)

    def established(self, now: float) -> bool:
        """
        Passive: the first data came, which is as good as an RTU.

        @return: whether that was news.
        """
        return self.feed(Input.DATA, None, now)

    def disconnect(self, now: float, privateData: bytes = b"") -> bool:
        """
        End it, in any state: DREQ if it is open, else a REJ.

        @param privateData: of the DREQ, or of the REJ after a REP: at most 148 bytes.
        @return: False if it is over or ending already.  If L{state} is
            DREQ_SENT now, DISCONNECTED follows; else nothing does.
        """
        return self.feed(_CLOSE, privateData, now)

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
        row = ROWS[old][given]
        if row is None:
            return False
        action, state, timed = row
        action(self, message, now)
        if state is not old:
            self.state = state
            if not timed and self.deadline is not None:
                self.table.disarm(self)
            self.table.moved(self, old, now)
        return True

    def _missed(self, given: Input) -> bool:
        """
        An input that the consumer may give at certain times only had no entry.  That the
        peer was faster in ending it all is not the consumer's fault.

        @return: L{False}.
        @raise ConnectionStateError: it makes no sense in this state.
        """
        if self.state in (State.IDLE, State.TIMEWAIT):
            return False
        raise ConnectionStateError(f"{given.name.lower()} in state {self.state.name}")
