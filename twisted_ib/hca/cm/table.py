"""
All connections of one HCA, as its communication manager sees them.

L{ConnectionTable} is the part of a TCP stack that has the listening ports, the
list of connections and the clock: it finds the L{Connection} that a message is
about, and keeps what must outlive one (TIMEWAIT).  Its user gives it messages
and the time, then takes events, messages to send, and the next deadline::

    table.receive(path, attribute, buffer, start, stop, now)
    while (event := table.nextEvent()) is not None: ...
    while (output := table.nextOutput()) is not None: ...

A peer is whoever the medium says sent a message (C{source}: a path or an
address).  A message about somebody else's connection is ignored, so that one
peer can do nothing to the connections of another, whatever it writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError, ServiceInUseError, WireError
from twisted_ib.hca.cm.admission import HalfOpenLimit
from twisted_ib.hca.cm.machine import Connection, Output
from twisted_ib.hca.cm.peer import Peer
from twisted_ib.hca.cm.sidr import Lookup, Lookups
from twisted_ib.hca.cm.states import Event, Input, State
from twisted_ib.hca.cm.timers import Deadlines, Timewait
from twisted_ib.hca.cm.transitions import HALF_OPEN
from twisted_ib.hca.wire.cm import (
    DREP,
    DREQ,
    LAP,
    MRA,
    REJ,
    REP,
    REQ,
    RTU,
    SIDR_REP,
    SIDR_REQ,
    AnyMessage,
    Buffer,
    MessageKind,
    RejectReason,
    byAttribute,
    timeoutSeconds,
)

#: The longest times that a REQ may ask us to give its sender: a timeout code,
#: about eight seconds.
CM_RESPONSE_TIMEOUT_CODE = 21
#: The shortest, 0.27 s: nobody is sent many answers at once in another's name.
CM_RESPONSE_TIMEOUT_CODE_LEAST = 16
#: Ended connections whose ids are still reserved; over it the next to expire
#: goes early.
CM_TIMEWAIT = 2048
#: Messages that wait for the medium; over it they count as lost.
CM_OUTPUTS = 65536

_Parse = Callable[[Buffer, int, int], AnyMessage]
_Take = Callable[[Any, Any, float], None]
CMEvent = tuple[Event, "Connection | Lookup | None", Any]

# Names of this module are looked up much faster than those of an enumeration.
_IDLE, _TIMEWAIT = State.IDLE, State.TIMEWAIT
_CONNECT, _REQ, _REP, _RTU = Input.CONNECT, Input.REQ, Input.REP, Input.RTU
_DREQ, _DREP, _TIMEWAIT_EXIT = Input.DREQ, Input.DREP, Event.TIMEWAIT_EXIT

COUNTERS = (
    "malformed",
    "unknownAttribute",
    "invalidID",
    "unknownID",
    "foreignSource",
    "wrongQPN",
    "unexpected",
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


@lru_cache(maxsize=1024)  # 32 times 32; connections keep what it gives.
def _answerSeconds(ackTimeout: int, responseTimeout: int) -> float:
    """
    How long an answer to a REQ may take: two timeout codes of it.
    """
    # The code is packet lifetime + 1, and there are two ways.
    return 2 * timeoutSeconds(max(ackTimeout - 1, 0)) + timeoutSeconds(responseTimeout)


class ConnectionTable:
    """
    The communication manager of one HCA.

    @ivar counters: how often things happened that should not, by name.
    @ivar lookups: questions for datagram services.
    @ivar events: what L{nextEvent} takes from.
    @ivar outputs: what L{nextOutput} takes from; a user that must put one back
        does so with C{appendleft}.
    """

    def __init__(
        self,
        caGUID: int,
        randomBits: Callable[[int], int],
        halfOpenPerSource: int = limits.CM_HALF_OPEN_PER_PATH,
        halfOpenInAll: int = limits.CM_HALF_OPEN_PATHS,
    ) -> None:
        """
        @param caGUID: the name of this HCA.
        @param randomBits: given a number of bits, a random integer of so many.
        @param halfOpenPerSource: see L{limits.CM_HALF_OPEN_PER_PATH} and
            L{limits.CM_HALF_OPEN_PER_ADDRESS}.
        """
        self.caGUID = caGUID
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.outputs: deque[Output] = deque()
        self.events: deque[CMEvent] = deque()
        self._randomBits = randomBits
        self._room = HalfOpenLimit(halfOpenPerSource, halfOpenInAll)
        self._listeners: dict[int, Any] = {}
        self._connections: dict[int, Connection] = {}
        self._peers: dict[Any, Peer] = {}
        self._deadlines: Deadlines[Connection] = Deadlines()
        #: What connections ask for: a deadline, or none any more.  See L{machine.Surroundings}.
        self.arm, self.disarm = self._deadlines.set, self._deadlines.clear
        self.lookups = Lookups(self, randomBits)
        self._timewait = Timewait()
        take: dict[type[AnyMessage], _Take] = {
            REQ: self._takeREQ,
            REP: self._takeREP,
            REJ: self._takeREJ,
            MRA: self._takeMRA,
            RTU: self._takeRTU,
            DREQ: self._takeDREQ,
            DREP: self._takeDREP,
            LAP: self._takeLAP,
            SIDR_REQ: self._takeSIDR_REQ,
            SIDR_REP: self.lookups.takeREP,
        }
        self._receivers: dict[int, tuple[_Parse, _Take]] = {
            attribute: (message.parse, take.get(message, self._takeOther))
            for attribute, message in byAttribute.items()
        }

    def __len__(self) -> int:
        return len(self._connections)

    def limitHalfOpen(self, halfOpenPerSource: int, halfOpenInAll: int) -> None:
        """
        Sources are addresses, which anybody can write on a message: from now on a REQ that is one too many
        takes the place of the oldest that is half open.

        @param halfOpenPerSource: how many of a source may be half open.
        @param halfOpenInAll: how many of all.
        """
        self._room = HalfOpenLimit(halfOpenPerSource, halfOpenInAll, True)
        self.lookups.limitHalfOpen(halfOpenPerSource, halfOpenInAll)

    def listen(self, serviceID: int, listener: object) -> None:
        """
        Give every REQ for a service to C{listener}, as a REQUEST event.

        @raise ServiceInUseError: somebody else has it.
        """
        if serviceID in self._listeners:
            raise ServiceInUseError(f"service id {serviceID:#018x} is in use")
        self._listeners[serviceID] = listener

    def unlisten(self, serviceID: int) -> None:
        """
        Refuse REQs for a service from now on.
        """
        self._listeners.pop(serviceID, None)

    def connect(self, destination: Any, request: REQ, user: object, now: float) -> Connection:
        """
        Send a REQ.

        @param request: complete but for C{localCommunicationID} and
            C{localCAGUID}.
        @raise ResourceLimitError: there are too many connections.
        """
        if len(self._connections) >= limits.CM_CONNECTIONS:
            raise ResourceLimitError(f"{limits.CM_CONNECTIONS} connections are open")
        ended = self._timewait.heap
        if ended and ended[0][0] <= now:
            self._expire(now)
        localID = self._newID()
        request.localCommunicationID = localID
        request.localCAGUID = self.caGUID
        peer = self._peers.get(destination) or Peer(destination)
        connection = Connection(self, peer, destination, localID, request)
        connection.user = user
        connection.localQPN = request.localQPN
        connection.period = _answerSeconds(
            request.primaryPath.localACKTimeout, request.remoteCMResponseTimeout
        )
        self._connections[localID] = connection
        try:
            connection.feed(_CONNECT, request, now)
        except ValueError:
            del self._connections[localID]
            raise
        self._peers[destination] = peer
        peer.call(connection)
        return connection

    def receive(self, source: Any, attribute: int, buffer: Buffer, start: int, stop: int, now: float) -> None:
        """
        Take a message of 232 octets.  Whatever it is, nothing is raised.
        """
        receiver = self._receivers.get(attribute)
        if receiver is None:
            self.counters["unknownAttribute"] += 1
            return
        parse, take = receiver
        try:
            message = parse(buffer, start, stop)
        except WireError:
            self.counters["malformed"] += 1
            return
        ended = self._timewait.heap
        if ended and ended[0][0] <= now:
            self._expire(now)
        take(source, message, now)

    def pathLost(self, source: Any) -> list[Connection | Lookup]:
        """
        Forget everything about a source: nothing will come from there, nothing
        need be sent.

        @return: its connections and lookups, which are IDLE now; no events are
            left for them.
        """
        kept = [output for output in self.outputs if output[0] != source]
        self.outputs.clear()
        self.outputs.extend(kept)
        lost: list[Connection | Lookup] = [*self.lookups.pathLost(source)]
        peer = self._peers.get(source)
        if peer is not None:
            connections = [*peer.calling.values(), *peer.connections.values()]
            for connection in connections:
                connection.feed(Input.PATH_LOST, None, 0.0)
            if peer.waiting:
                self._timewait.forget(peer)
            self._peers.pop(source, None)
            lost += connections
        gone = set(map(id, lost))
        left = [event for event in self.events if id(event[1]) not in gone]
        self.events.clear()  # The same queue: somebody may be taking from it.
        self.events.extend(left)
        return lost

    def nextEvent(self) -> CMEvent | None:
        """
        @return: the oldest event, see L{Event}.
        """
        return self.events.popleft() if self.events else None

    def nextOutput(self) -> Output | None:
        """
        @return: destination, attribute, 232 octets.
        """
        return self.outputs.popleft() if self.outputs else None

    def deadline(self, withTimewait: bool = True) -> float | None:
        """
        When L{tick} should be called.

        @param withTimewait: whether to be called for the end of a TIMEWAIT
            alone, which otherwise is noticed whenever something else happens.
        """
        found = self._deadlines.soonest()
        for when in self.lookups.deadline(), self._timewait.soonest() if withTimewait else None:
            if when is not None and (found is None or when < found):
                found = when
        return found

    def tick(self, now: float) -> None:
        """
        Do what is due.
        """
        for connection in self._deadlines.takeDue(now):
            if connection.retriesLeft > 0:
                self.counters["retransmitted"] += 1
                connection.feed(Input.RETRY, None, now)
            else:
                self.counters["unreachable"] += 1
                connection.feed(Input.EXHAUSTED, None, now)
        self.lookups.tick(now)
        self._expire(now)

    # What connections ask for, see machine.Surroundings.

    def send(self, output: Output) -> None:
        """
        Queue a message; too many are as lost as on a wire.
        """
        if len(self.outputs) >= CM_OUTPUTS:
            self.counters["outputsDropped"] += 1
            return
        self.outputs.append(output)

    def report(self, event: Event, connection: Connection | Lookup, message: object) -> None:
        """
        Queue an event.  A connection has few in its life, and L{_takeREQ}
        looks at the length of the queue.
        """
        self.events.append((event, connection, message))

    def moved(self, connection: Connection, old: State, now: float) -> None:
        """
        A connection changed its state.
        """
        state = connection.state
        halfOpen = HALF_OPEN[state]
        if halfOpen is not HALF_OPEN[old]:
            self._room.changed(connection, halfOpen)
        if state is _TIMEWAIT:
            self._startTimewait(connection, now)
            self._forget(connection)
        elif state is _IDLE:
            self._forget(connection)

    # Messages.

    def _takeREQ(self, source: Any, message: REQ, now: float) -> None:
        remoteID = message.localCommunicationID
        if not remoteID:
            self.counters["invalidID"] += 1
            return
        peer = self._peers.get(source)
        if peer is not None:
            if self._isOld(peer, message, now):
                return
            peer = self._peers.get(source)  # That may have ended the only one that it had.
        if message.serviceID not in self._listeners:
            self.counters["noListener"] += 1
            self._refuse(source, message, MessageKind.REQ, RejectReason.INVALID_SERVICE_ID)
            return
        excess = self._room.excess(peer)
        if excess is not None:
            self.counters["halfOpenReplaced"] += 1
            excess.feed(Input.EXHAUSTED, None, now)
            peer = self._peers.get(source)  # It may have been the only one that it had.
        lacking = self._room.lacks(peer, len(self._connections), len(self.events))
        if lacking is not None:
            self.counters[lacking] += 1
            return
        if peer is None:
            peer = self._peers[source] = Peer(source)
        localID = self._newID()
        connection = Connection(self, peer, source, localID, message)
        connection.listener = self._listeners[message.serviceID]
        longest, shortest = CM_RESPONSE_TIMEOUT_CODE, CM_RESPONSE_TIMEOUT_CODE_LEAST
        connection.period = timeoutSeconds(max(shortest, min(message.localCMResponseTimeout, longest)))
        connection.ackSeconds = timeoutSeconds(min(message.primaryPath.localACKTimeout, longest))
        self._connections[localID] = connection
        peer.know(connection, message)
        connection.feed(_REQ, message, now)

    def _isOld(self, peer: Peer, message: REQ, now: float) -> bool:
        """
        Whether a REQ is about a connection that there is or was.
        """
        guid = message.localCAGUID
        key = peer.key(guid, message.localCommunicationID)
        known = peer.connections.get(key)
        if known is not None:
            self.counters["repeatedREQ"] += 1
            known.feed(Input.REPEATED_REQ, message, now)
            return True
        if key not in peer.waiting:
            known = peer.queuePairs.get(peer.key(guid, message.localQPN))
            if known is None:
                return False
            if HALF_OPEN[known.state]:
                # The peer has confirmed nothing: who knows who has sent that.
                self.counters["stale"] += 1
                known.feed(Input.EXHAUSTED, None, now)
                return False
        # The peer started again, or has not seen that it ended.
        self.counters["stale"] += 1
        self._refuse(peer.source, message, MessageKind.REQ, RejectReason.STALE_CONNECTION)
        if known is not None:
            known.feed(Input.STALE, None, now)
        return True

    def _takeREP(self, source: Any, message: REP, now: float) -> None:
        connection = self._find(source, message)
        if connection is None:
            return
        if connection.remoteID:
            self._feed(connection, Input.REP, message, now)
            return
        remoteID = message.localCommunicationID
        if not remoteID:
            self.counters["invalidID"] += 1
            return
        peer: Peer = connection.peer
        key = peer.key(message.localCAGUID, remoteID)
        known = peer.queuePairs.get(peer.key(message.localCAGUID, message.localQPN))
        if known is not None or key in peer.connections:
            self.counters["stale"] += 1
            self._refuse(source, message, MessageKind.REP, RejectReason.STALE_CONNECTION)
            if known is not None:
                known.feed(Input.STALE, None, now)
            return
        peer.know(connection, message)
        if not connection.feed(_REP, message, now):
            self.counters["unexpected"] += 1

    def _takeREJ(self, source: Any, message: REJ, now: float) -> None:
        """
        By ids, or by the CA GUID of a peer that gave up before it knew ours.
        """
        if message.reason == RejectReason.TIMEOUT and message.additionalInfoLength >= 8:
            guid = int.from_bytes(message.additionalInfo[:8], "big")
            peer = self._peers.get(source)
            connection = None
            if peer is not None:
                connection = peer.connections.get(peer.key(guid, message.localCommunicationID))
            if connection is None or not HALF_OPEN[connection.state]:
                # Who has confirmed a connection knows our id.
                self.counters["unknownID"] += 1
                return
        else:
            found = self._find(source, message)
            if found is None:
                return
            connection = found
        stale = message.reason == RejectReason.STALE_CONNECTION
        self._feed(connection, Input.REJ_STALE if stale else Input.REJ, message, now)

    def _takeMRA(self, source: Any, message: MRA, now: float) -> None:
        """
        The one that is about a LAP cannot be meant.
        """
        connection = self._find(source, message)
        if connection is None:
            return
        if message.messageMRAed == MessageKind.REQ:
            self._feed(connection, Input.MRA_REQ, message, now)
        elif message.messageMRAed == MessageKind.REP:
            self._feed(connection, Input.MRA_REP, message, now)
        else:
            self.counters["unexpected"] += 1

    def _takeRTU(self, source: Any, message: RTU, now: float) -> None:
        connection = self._find(source, message)
        if connection is not None and not connection.feed(_RTU, message, now):
            self.counters["unexpected"] += 1

    def _takeDREQ(self, source: Any, message: DREQ, now: float) -> None:
        """
        Even if we know nothing of it, the peer needs the answer (Linux
        C{cm_issue_drep}).
        """
        connection = self._connections.get(message.remoteCommunicationID)
        if connection is None or connection.remoteID != message.localCommunicationID:
            self.counters["unknownID"] += 1
            reply = DREP(message.remoteCommunicationID, message.localCommunicationID)
            self.send((source, reply.attribute, reply.pack()))
        elif connection.destination is not source and connection.destination != source:
            self.counters["foreignSource"] += 1
        elif connection.localQPN != message.remoteQPN:
            self.counters["wrongQPN"] += 1
        elif not connection.feed(_DREQ, message, now):
            self.counters["unexpected"] += 1

    def _takeDREP(self, source: Any, message: DREP, now: float) -> None:
        connection = self._find(source, message)
        if connection is not None and not connection.feed(_DREP, message, now):
            self.counters["unexpected"] += 1

    def _takeLAP(self, source: Any, message: LAP, now: float) -> None:
        connection = self._find(source, message)
        if connection is not None:
            self._feed(connection, Input.LAP, message, now)

    def _takeSIDR_REQ(self, source: Any, message: SIDR_REQ, now: float) -> None:
        self.lookups.expire(now)
        listener = self._listeners.get(message.serviceID)
        if listener is not None and len(self.events) >= limits.CM_EVENTS:
            self.counters["eventsFull"] += 1
            return
        self.lookups.takeREQ(source, message, listener, now)

    def _takeOther(self, source: Any, message: AnyMessage, now: float) -> None:
        """
        An answer to what we never ask.
        """
        self.counters["unexpected"] += 1

    # Helpers of these.

    def _find(self, source: Any, message: REP | REJ | MRA | RTU | DREP | LAP) -> Connection | None:
        """
        The connection that a message is about, if it is its sender's: both ids are right, or the
        sender's is not known yet.
        """
        connection = self._connections.get(message.remoteCommunicationID)
        if connection is None:
            self.counters["unknownID"] += 1
            return None
        if connection.destination is not source and connection.destination != source:
            self.counters["foreignSource"] += 1
            return None
        remoteID = connection.remoteID
        if remoteID and remoteID != message.localCommunicationID:
            self.counters["unknownID"] += 1
            return None
        return connection

    def _feed(self, connection: Connection, given: Input, message: AnyMessage, now: float) -> None:
        if not connection.feed(given, message, now):
            self.counters["unexpected"] += 1

    def _refuse(self, source: Any, message: REQ | REP, kind: MessageKind, reason: RejectReason) -> None:
        reject = REJ(
            remoteCommunicationID=message.localCommunicationID,
            messageRejected=kind,
            reason=reason,
        )
        if isinstance(message, REP):
            reject.localCommunicationID = message.remoteCommunicationID
        self.send((source, reject.attribute, reject.pack()))

    def _newID(self) -> int:
        """
        A communication id that is free.  Random, so that after a restart ids
        do not repeat and nobody else can guess them.
        """
        localID = self._randomBits(32)
        while not localID or localID in self._connections or localID in self._timewait.ids:
            localID = localID + 1 & 0xFFFFFFFF
        return localID

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection.localID, None)
        peer: Peer = connection.peer
        peer.forget(connection)
        if not peer.waiting and peer.isIdle():
            self._peers.pop(peer.source, None)

    def _startTimewait(self, connection: Connection, now: float) -> None:
        """
        Reserve the ids until nothing of the connection can be on its way.
        """
        if len(self._timewait.ids) >= CM_TIMEWAIT:
            self.counters["timewaitDropped"] += 1
            self._endTimewait()
        peer: Peer = connection.peer
        # Its id is 0 if it never had another end; no REQ has that.
        key = peer.key(connection.remoteCAGUID, connection.remoteID)
        peer.startTimewait(key)
        expiry = now + connection.ackSeconds
        self._timewait.add((expiry, connection.localID, peer, key, connection.localQPN))

    def _endTimewait(self) -> None:
        _, _, ending, key, localQPN = self._timewait.pop()
        peer: Peer = ending
        peer.endTimewait(key)
        if not peer.connections and peer.isIdle():
            self._peers.pop(peer.source, None)
        self.events.append((_TIMEWAIT_EXIT, None, localQPN))

    def _expire(self, now: float) -> None:
        timewait = self._timewait
        while timewait.heap and timewait.heap[0][0] <= now:
            self._endTimewait()
