"""
All connections of one HCA.

L{ConnectionTable} is what a TCP stack's listening ports, connection list and timers are: it finds the
L{Connection} that a message belongs to, and keeps what outlives one (TIMEWAIT).  Its user gives it messages
and the time, then collects events, messages to send and the next deadline::

    table.receive(path, attribute, buffer, start, stop, now)
    while (event := table.nextEvent()) is not None: ...
    while (output := table.nextOutput()) is not None: ...

A peer is identified by the source that the medium reports (C{source}: a path or an address), never by what
the message declares: a peer cannot affect the connections of another, whatever it writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError, ServiceInUseError, WireError
from twisted_ib.hca.cm.adapters import asksAdapter, takesHello
from twisted_ib.hca.cm.admission import HalfOpenLimit
from twisted_ib.hca.cm.machine import Connection, Output
from twisted_ib.hca.cm.parked import Parked, ParkedConnections
from twisted_ib.hca.cm.peer import Peer, SettledConnections, hasShown
from twisted_ib.hca.cm.sidr import COUNTED_ID_BITS, Lookup, Lookups
from twisted_ib.hca.cm.states import COUNTERS, Event, Input, State
from twisted_ib.hca.cm.timers import Deadlines, Ended, Timewait, answering, asking
from twisted_ib.hca.cm.transitions import CM_IF_ASKED, DREQ_LAST, HALF_OPEN, askAgain, refuse
from twisted_ib.hca.connection import RejectReason
from twisted_ib.hca.connection.compacthello import MARK
from twisted_ib.hca.wire.cm.layout import BODY_BYTES, Buffer
from twisted_ib.hca.wire.cm.messages import (
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
    MessageKind,
    byAttribute,
)

#: Connections in TIMEWAIT; over it the next to expire is released early.
CM_TIMEWAIT = 2048
#: Messages that wait for the medium; over it they are dropped.
CM_OUTPUTS = 65536

_Parse = Callable[[Buffer, int, int], AnyMessage]
_Take = Callable[[Any, Any, float], None]
CMEvent = tuple[Event, "Connection | Lookup | None", Any]

# Module globals: looking a member up on an enumeration is much slower.
_IDLE, _REP_SENT, _TIMEWAIT = State.IDLE, State.REP_SENT, State.TIMEWAIT
_CONNECT, _REQ, _REP, _RTU = Input.CONNECT, Input.REQ, Input.REP, Input.RTU
_DREQ, _DREP, _TIMEWAIT_EXIT = Input.DREQ, Input.DREP, Event.TIMEWAIT_EXIT


class ConnectionTable:
    """
    The communication manager of one HCA: see
    L{ConnectionContext<twisted_ib.hca.cm.machine.ConnectionContext>}.

    @ivar counters: anomalies by name, see L{COUNTERS}.
    @ivar lossless: whether no message is lost while the peer lives: then one is repeated only if an MRA, or a
        SIDR_REP's NO_QP, says so.
    @ivar pack: serializes every message for the medium, see L{keepLengths}.
    @ivar padded: the length of every message; 0 if they end with their private data.
    @ivar draw: draws a communication id; where no stranger can send it is the number of a queue pair.
    @ivar lookups: SIDR exchanges; C{ended}: ids that draw no REJ.
    @ivar quietUntil: until then an RTU may mean a process that had this address before us, and draws no REJ.
    @ivar follow: see C{ConnectionContext}; where sources can be forged. C{hasShown}: whether one is not.
    @ivar parked: those half-open that are kept as octets; C{settled}: those that queue pairs stand for.
    @ivar accepted: connections whose REP was sent and whose RTU is awaited, by their queue pair number.
    @ivar events: queue of L{nextEvent}.
    @ivar outputs: queue of L{nextOutput}; a user that must put one back does so with C{appendleft}.
    """

    def __init__(
        self,
        caGUID: int,
        randomBits: Callable[[int], int],
        halfOpenPerSource: int = limits.CM_HALF_OPEN_PER_PATH,
        halfOpenInAll: int = limits.CM_HALF_OPEN_PATHS,
    ) -> None:
        """
        @param caGUID: GUID of this HCA.
        @param randomBits: given a number of bits, a random integer of so many.
        @param halfOpenPerSource: see L{limits.CM_HALF_OPEN_PER_PATH} and L{limits.CM_HALF_OPEN_PER_ADDRESS}.
        """
        self.caGUID = caGUID
        self.sourcesForgeable = self.lossless = False
        self.pack: Callable[[Any], bytes] = methodcaller("pack")
        self.padded, self.quietUntil = BODY_BYTES, 0.0
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.outputs: deque[Output] = deque()
        self.events: deque[CMEvent] = deque()
        self.draw: Callable[[], int] = partial(randomBits, 32)
        self._halfOpenLimit = HalfOpenLimit(halfOpenPerSource, halfOpenInAll)
        self._listeners: dict[int, Any] = {}
        self._connections: dict[int, Connection] = {}
        self.accepted: dict[int, Connection | Parked] = {}
        self._peers: dict[Any, Peer] = {}
        self.hasShown: Callable[[Any], bool] = partial(hasShown, self._peers)
        self.parked = ParkedConnections(self, self._connections, self._peers)
        self.settled = SettledConnections(self._connections, self._peers, self.events.append)
        self._deadlines: Deadlines[Connection] = Deadlines(self._connections)
        self.arm, self.disarm = self._deadlines.set, self._deadlines.clear
        self.lookups = Lookups(self, randomBits)
        self._timewait, self.ended = Timewait(), Ended()
        self.follow: Callable[[Connection, object], object] | None = None
        self._takers: dict[type[AnyMessage], _Take] = {
            REQ: self._takeREQ,
            REP: self._takeREP,
            REJ: self._takeREJ,
            MRA: self._takeMRA,
            RTU: self._takeRTU,
            DREQ: self._takeDREQ,
            DREP: partial(self._takeKnown, _DREP),
            LAP: partial(self._takeKnown, Input.LAP),
            SIDR_REQ: self._takeSIDR_REQ,
            SIDR_REP: self.lookups.takeREP,
        }
        self._receivers: dict[int, tuple[_Parse, _Take]] = {}  # Of kinds that have come: slow to make.

    def __len__(self) -> int:
        return len(self._connections) + self.parked.count + self.settled.count

    def keepLengths(self) -> None:
        """
        From now on messages end with their private data, and so do those that are received: the medium
        carries its length.
        """
        self.pack, self.padded = methodcaller("packExact"), 0
        self._receivers.clear()

    def _receiver(self, attribute: int) -> tuple[_Parse, _Take] | None:
        if (message := byAttribute.get(attribute)) is None:
            return None
        parse = message.made().parse if self.padded else message.parseExact
        receiver = self._receivers[attribute] = parse, self._takers.get(message, self._takeOther)
        return receiver

    def limitHalfOpen(self, halfOpenPerSource: int, halfOpenInAll: int) -> None:
        """
        From now on source addresses can be forged: a REQ over a limit evicts the oldest half-open
        connection, but for those of sources that have shown themselves, and a source that has not answered
        is sent no more than twice what came from it.

        @param halfOpenPerSource: half-open connections of one source.
        @param halfOpenInAll: the same of all sources.
        """
        self.sourcesForgeable = True
        self._halfOpenLimit = HalfOpenLimit(halfOpenPerSource, halfOpenInAll, self.parked)
        self.lookups.limitHalfOpen(halfOpenPerSource, halfOpenInAll)

    def listen(self, serviceID: int, listener: object) -> None:
        """
        Deliver REQs for a service id to C{listener}, as REQUEST events.

        @raise ServiceInUseError: it has a listener.
        """
        if serviceID in self._listeners:
            raise ServiceInUseError(f"service id {serviceID:#018x} is in use")
        self._listeners[serviceID] = listener

    def unlisten(self, serviceID: int) -> None:
        """
        Refuse REQs for a service id from now on.
        """
        self._listeners.pop(serviceID, None)

    def connect(
        self, destination: Any, request: REQ, user: object, now: float, localID: int = 0
    ) -> Connection:
        """
        Send a REQ.

        @param request: complete but for C{localCommunicationID} and C{localCAGUID}.
        @param localID: its communication id, if it is not in use; 0 for any.
        @raise ResourceLimitError: there are too many connections.
        @raise ValueError: a field of the request does not fit.
        """
        if len(self._connections) + self.parked.count + self.settled.count >= limits.CM_CONNECTIONS:
            raise ResourceLimitError(f"{limits.CM_CONNECTIONS} connections are open")
        if (ended := self._timewait.heap) and ended[0][0] <= now:
            self._expire(now)
        if not localID or localID in self._connections or (self.settled.count and self.settled.at(localID)):
            localID = self._newID()
        request.localCommunicationID = localID
        request.localCAGUID = self.caGUID
        # Entered only below: a request that does not pack must leave nothing behind.
        peer = self._peers.get(destination) or Peer(self, destination)
        timing = asking(request.primaryPath.localACKTimeout, request.responseTimeout, request.requestRetries)
        connection = Connection(peer, localID, timing)
        connection.user = user
        connection.localQPN = request.localQPN
        self._connections[localID] = connection
        try:
            connection.feed(_CONNECT, request, now)
        except ValueError:
            del self._connections[localID]
            raise
        self._peers[destination] = peer
        peer.calling += 1
        return connection

    def receive(self, source: Any, attribute: int, buffer: Buffer, start: int, stop: int, now: float) -> None:
        """
        Process a message of 232 octets. Nothing a peer sends raises an exception.
        """
        if (receiver := self._receivers.get(attribute) or self._receiver(attribute)) is None:
            self.counters["unknownAttribute"] += 1
            return
        parse, take = receiver
        try:
            message = parse(buffer, start, stop)
        except WireError:
            self.counters["malformed"] += 1
            return
        if (ended := self._timewait.heap) and ended[0][0] <= now:
            self._expire(now)
        take(source, message, now)

    def abandonAll(self, now: float) -> None:
        """
        End all connections: each peer is sent one DREQ or REJ, which nobody will repeat.
        """
        self.parked.resumeAll()
        self.settled.resumeAll(self._peers.values())
        for connection in list(self._connections.values()):
            connection.abandon(now)

    def pathLost(self, source: Any) -> list[Connection | Lookup]:
        """
        Forget everything about a source that cannot be reached any more.

        @return: its connections and lookups, which are IDLE now; no events are left for them.
        """
        kept = [output for output in self.outputs if output[0] != source]
        self.outputs.clear()
        self.outputs.extend(kept)
        lost: list[Connection | Lookup] = [*self.lookups.pathLost(source)]
        self.parked.resumeAll(name=self.parked.nameOf(source))
        if (peer := self._peers.get(source)) is not None:
            self.settled.resumeAll((peer,))
            every = self._connections.values() if peer.calling else ()
            connections = [each for each in every if each.peer is peer and not each.remoteID]
            connections += peer.known()
            for connection in connections:
                connection.feed(Input.PATH_LOST, None, 0.0)
            if peer.waiting:
                self._timewait.forget(peer)
            self._peers.pop(source, None)
            lost += connections
        gone = set(map(id, lost))
        left = [event for event in self.events if id(event[1]) not in gone]
        self.events.clear()  # In place: the caller may be iterating over this queue.
        self.events.extend(left)
        return lost

    def nextEvent(self) -> CMEvent | None:
        """
        @return: the oldest event, see L{Event}, or L{None}.
        """
        return self.events.popleft() if self.events else None

    def nextOutput(self) -> Output | None:
        """
        @return: destination, attribute, 232 octets; or L{None}.
        """
        return self.outputs.popleft() if self.outputs else None

    def deadline(self, withTimewait: bool = True) -> float | None:
        """
        When L{tick} should be called next.

        @param withTimewait: whether the end of a TIMEWAIT counts; otherwise it is noticed at the next
            message or tick.
        """
        found, asked = self._deadlines.soonest() if self._deadlines.heap else None, self.lookups.deadlines
        if asked.heap or withTimewait or self.parked.count:
            for when in asked.soonest(), self.parked.look, self._timewait.soonest() if withTimewait else None:
                if when is not None and (found is None or when < found):
                    found = when
        return found

    def tick(self, now: float) -> None:
        """
        Retransmit, give up and release what is due.
        """
        for connection in self._deadlines.takeDue(now):
            if 0 < connection.retriesLeft < CM_IF_ASKED:
                self.counters["retransmitted"] += 1
                connection.feed(Input.RETRY, None, now)
            else:
                self.counters["unreachable"] += 1
                connection.feed(Input.EXHAUSTED, None, now)
        if self.parked.look is not None:
            self.parked.tick(now)
        self.lookups.tick(now)
        self._expire(now)

    # ConnectionContext.

    def send(self, output: Output) -> None:
        """
        Queue a message; over L{CM_OUTPUTS} it is dropped, as a wire would, and retransmitted later.
        """
        if len(self.outputs) >= CM_OUTPUTS:
            self.counters["outputsDropped"] += 1
            return
        self.outputs.append(output)

    def report(self, event: Event, connection: Connection | Lookup, message: object) -> None:
        # Not bounded here: a connection has few events in its life, connections are bounded, and new REQs
        # are dropped while the queue is long.
        self.events.append((event, connection, message))

    def moved(self, connection: Connection, old: State, now: float) -> None:
        halfOpen = HALF_OPEN[state := connection.state]
        if halfOpen is not HALF_OPEN[old]:
            self._halfOpenLimit.changed(connection, halfOpen, now)
            if self.accepted:
                self.accepted.pop(connection.localQPN, None)
        elif state is _REP_SENT:
            self.accepted[connection.localQPN] = connection
        if state is _TIMEWAIT or state is _IDLE:
            # Where nothing is lost or repeated, nothing of the connection is on its way any more.
            if not self.lossless:
                if state is _TIMEWAIT:
                    self._startTimewait(connection, now)
                if self.follow is not None:
                    self.follow(connection, None)
            self._connections.pop(connection.localID, None)
            peer: Peer = connection.peer
            peer.forget(connection)
            if not (peer.only or peer.connections or peer.calling or peer.waiting):
                self._peers.pop(peer.source, None)

    # Messages.

    def _takeREQ(self, source: Any, message: REQ, now: float) -> None:
        remoteID = message.localCommunicationID
        if not remoteID:
            # 0 is no communication id: in a REJ and in our tables it means "not known".
            self.counters["invalidID"] += 1
            return
        if self.parked.count and self.parked.isOld(source, message, now):
            return
        if (peer := self._peers.get(source)) is not None:
            # Before the listener is looked up: a repeated REQ belongs to its connection, even if the
            # listener has gone since (Linux cm.c cm_match_req has the same order).
            if self._isOld(peer, message, now):
                return
            peer = self._peers.get(source)  # _isOld may have ended its only connection, and so the Peer.
        if message.privateData[36:44] == MARK and not takesHello(self, source, message):  # isMarked()
            return
        if message.serviceID not in self._listeners:
            self.counters["noListener"] += 1
            # IBTA vol. 1 12.6.7.2 reason 8: nobody listens. RDMA-CM applications see ECONNREFUSED.
            refuse(self, source, message, MessageKind.REQ, RejectReason.INVALID_SERVICE_ID)
            return
        victim = self._halfOpenLimit.victim(source, peer, now) if self.sourcesForgeable else None
        if victim is not None:
            self.counters["halfOpenReplaced"] += 1
            self.parked.resume(victim).feed(Input.EXHAUSTED, None, now)
            peer = self._peers.get(source)  # The evicted one may have been its only connection.
        count = len(self._connections) + self.parked.count + self.settled.count
        lacking = self._halfOpenLimit.lacks(source, peer, count, len(self.events))
        if lacking is not None:
            self.counters[lacking] += 1
            if self.lossless:
                askAgain(self, source, 0, remoteID)
            return
        if peer is None:
            peer = self._peers[source] = Peer(self, source)
        localID = self._newID()
        ackTimeout, period = message.primaryPath.localACKTimeout, message.localCMResponseTimeout
        timing = answering(ackTimeout, period, message.requestRetries)
        connection = Connection(peer, localID, timing)
        connection.listener = self._listeners[message.serviceID]
        self._connections[localID] = connection
        peer.know(connection, message)
        connection.feed(_REQ, message, now)

    def _isOld(self, peer: Peer, message: REQ, now: float) -> bool:
        # A duplicate has the CA GUID and communication id of a connection; a stale REQ has its GUID and
        # queue pair number, or ids that are in TIMEWAIT (Linux cm.c cm_match_req, cm_dup_req_handler).
        guid, key, number = message.localCAGUID, message.localCommunicationID, message.localQPN
        if guid != peer.guid:
            key, number = peer.key(guid, key), peer.key(guid, number)
        known = (peer.only and peer.isOnly(key, number)) or peer.halfOpen.get(key)
        if known is None and number in peer.connections:
            known = self.settled.found(peer, number)
        if known is not None and known.remoteID == message.localCommunicationID:
            self.counters["repeatedREQ"] += 1
            known.feed(Input.REPEATED_REQ, message, now)
            return True
        if key not in peer.waiting:
            if known is None:
                return False
            if HALF_OPEN[known.state]:
                # The old attempt was never confirmed, so a third party may have forged it: it must not block
                # the real peer's REQ, which is accepted.
                self.counters["stale"] += 1
                known.feed(Input.EXHAUSTED, None, now)
                return False
        # IBTA vol. 1 12.6.7.2 reason 10: the peer has restarted, or has not noticed the end of the old
        # connection.
        self.counters["stale"] += 1
        refuse(self, peer.source, message, MessageKind.REQ, RejectReason.STALE_CONNECTION)
        if known is not None:
            known.feed(Input.STALE, None, now)
        return True

    def _takeREP(self, source: Any, message: REP, now: float) -> None:
        connection = self._find(source, message)
        if connection is None:
            # Linux cm.c cm_rep_handler does so too.  A passive side that was away cannot learn otherwise that
            # we gave up before its REP came.
            self._disown(source, message, MessageKind.REP, now)
            return
        # A repeated REP: the state machine repeats the RTU or MRA.
        if connection.remoteID:
            self._feed(connection, Input.REP, message, now)
            return
        remoteID = message.localCommunicationID
        if not remoteID:
            self.counters["invalidID"] += 1
            return
        peer: Peer = connection.peer
        guid, number = message.localCAGUID, message.localQPN
        number = number if guid == peer.guid else peer.key(guid, number)
        known = peer.only and peer.isOnly(-1, number)
        if number in peer.connections:
            known = self.settled.found(peer, number)
        if known is not None:
            # IBTA vol. 1 12.6.7.2 reason 10: the queue pair of this REP belongs to a connection that we
            # still hold (Linux cm.c cm_rep_handler).
            self.counters["stale"] += 1
            refuse(self, source, message, MessageKind.REP, RejectReason.STALE_CONNECTION)
            known.feed(Input.STALE, None, now)
            return
        if self.parked.count:
            self.parked.giveWay(source, message.localQPN, now)
        peer.calling -= 1
        peer.know(connection, message)
        if not connection.feed(_REP, message, now):
            self.counters["unexpected"] += 1

    def _takeREJ(self, source: Any, message: REJ, now: float) -> None:
        # Reason 4 is from a peer that gave up before it learned our id: it gives its CA GUID instead (IBTA
        # vol. 1 12.6.7.2; Linux cm.c cm_acquire_rejected_id).
        if message.reason == RejectReason.TIMEOUT and message.additionalInfoLength >= 8:
            guid = int.from_bytes(message.additionalInfo[:8], "big")
            peer = self._peers.get(source)
            connection = None
            if peer is not None:
                key = peer.key(guid, message.localCommunicationID)
                connection = peer.isOnly(key, -1) or peer.halfOpen.get(key)
            connection = connection or self.parked.givenUp(source, guid, message.localCommunicationID)
            if connection is None:
                # A peer that has confirmed the connection knows our id and must use it.
                self.counters["unknownID"] += 1
                return
        elif (connection := self._find(source, message)) is None:
            return
        stale = message.reason == RejectReason.STALE_CONNECTION
        if not asksAdapter(connection, message, self._connections, self._newID, now):
            self._feed(connection, Input.REJ_STALE if stale else Input.REJ, message, now)

    def _takeMRA(self, source: Any, message: MRA, now: float) -> None:
        if (connection := self._find(source, message)) is None:
            return
        if message.messageMRAed == MessageKind.REQ:
            self._feed(connection, Input.MRA_REQ, message, now)
        elif message.messageMRAed == MessageKind.REP:
            self._feed(connection, Input.MRA_REP, message, now)
        else:
            # An MRA about a LAP: we never send one.
            self.counters["unexpected"] += 1

    def _takeRTU(self, source: Any, message: RTU, now: float) -> None:
        connection = self._find(source, message)
        if connection is None:
            # Its sender would wait for data on what it takes for open.
            if now >= self.quietUntil:
                self._disown(source, message, MessageKind.OTHER, now)
        elif not connection.feed(_RTU, message, now) and connection.state is not State.ESTABLISHED:
            # Repeated there, see CM_READY_REPEATS.
            self.counters["unexpected"] += 1

    def _takeDREQ(self, source: Any, message: DREQ, now: float) -> None:
        connection = self._connections.get(message.remoteCommunicationID) or self._claimed(source, message)
        if connection is None or connection.remoteID != message.localCommunicationID:
            if message.reserved & DREQ_LAST and self.lossless:
                return  # Both ends leave.
            self.counters["unknownID"] += 1
            # Answered without state: the peer repeats its DREQ until a DREP comes (Linux cm.c cm_issue_drep).
            reply = DREP(message.remoteCommunicationID, message.localCommunicationID)
            self.send((source, reply.attribute, self.pack(reply)))
        elif connection.peer.source is not source and connection.peer.source != source:
            self.counters["foreignSource"] += 1
        elif connection.localQPN != message.remoteQPN:
            # IBTA vol. 1 12.6.10: it names our queue pair; Linux cm.c cm_dreq_handler ignores another one's.
            self.counters["wrongQPN"] += 1
        elif not connection.feed(_DREQ, message, now):
            self.counters["unexpected"] += 1

    def _takeKnown(self, given: Input, source: Any, message: DREP | LAP, now: float) -> None:
        if (connection := self._find(source, message)) is not None:
            self._feed(connection, given, message, now)

    def _takeSIDR_REQ(self, source: Any, message: SIDR_REQ, now: float) -> None:
        # Kept answers have no timer of their own, and an expired one must not answer a new request with its
        # id.
        self.lookups.expire(now)
        listener = self._listeners.get(message.serviceID)
        self.lookups.takeREQ(source, message, listener, len(self.events) >= limits.CM_EVENTS, now)

    def _takeOther(self, source: Any, message: AnyMessage, now: float) -> None:
        # Messages without a handler, such as an APR: we never send a LAP.
        self.counters["unexpected"] += 1

    # Helpers of the message handlers.

    def _find(self, source: Any, message: REP | REJ | MRA | RTU | DREP | LAP) -> Connection | None:
        # The source must be the connection's and both ids must match, unless the sender's is not known yet:
        # a third party must not end a connection whose id it has guessed.
        connection = self._connections.get(message.remoteCommunicationID) or self._claimed(source, message)
        if connection is None:
            self.counters["unknownID"] += 1
            return None
        if connection.peer.source is not source and connection.peer.source != source:
            self.counters["foreignSource"] += 1
            return None
        if connection.remoteID and connection.remoteID != message.localCommunicationID:
            self.counters["unknownID"] += 1
            return None
        return connection

    def _claimed(self, source: Any, message: REP | REJ | MRA | RTU | DREQ | DREP | LAP) -> Connection | None:
        return self.settled.wake(message.remoteCommunicationID) or self.parked.claimed(source, message)

    def _feed(self, connection: Connection, given: Input, message: AnyMessage, now: float) -> None:
        if not connection.feed(given, message, now):
            self.counters["unexpected"] += 1

    def _disown(self, source: Any, message: REP | RTU, kind: MessageKind, now: float) -> None:
        number = message.remoteCommunicationID
        if number not in self._connections and not self.ended.isKnown(number, now):
            refuse(self, source, message, kind, RejectReason.INVALID_COMMUNICATION_ID)

    def _newID(self) -> int:
        # Random: an off-path attacker cannot guess it (RFC 6528 for TCP's sequence numbers), and after a
        # restart ids do not repeat. Linux cm.c starts at a random number too. Queue pairs may stand for some.
        localID = self.draw()
        mine, used = self._connections, self.settled.queuePairs
        while not localID or localID in mine or localID in used or localID in self._timewait.ids:
            counted = localID & ~COUNTED_ID_BITS | localID + 1 & COUNTED_ID_BITS
            localID = self.draw() if self.lossless else counted  # The next may be a queue pair's.
        return localID

    def _startTimewait(self, connection: Connection, now: float) -> None:
        # The peer's packets may be on their way for the ACK timeout: until then its ids and our queue pair
        # number stay reserved (Linux cm.c cm_enter_timewait).
        if len(self._timewait.ids) >= CM_TIMEWAIT:
            self.counters["timewaitDropped"] += 1
            self._endTimewait()
        self._timewait.add(connection.peer.startTimewait(connection, now))
        self.ended.add(connection.localID, now)

    def _endTimewait(self) -> None:
        _, _, ending, key, localQPN = self._timewait.pop()
        peer: Peer = ending
        peer.endTimewait(key)
        if not peer.isNeeded():
            self._peers.pop(peer.source, None)
        # Linux ib_cm.h IB_CM_TIMEWAIT_EXIT: only now may the consumer reuse the queue pair number.
        self.events.append((_TIMEWAIT_EXIT, None, localQPN))

    def _expire(self, now: float) -> None:
        while self._timewait.heap and self._timewait.heap[0][0] <= now:
            self._endTimewait()
