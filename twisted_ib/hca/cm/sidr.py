"""
Finding the queue pair behind a datagram service (IBTA vol. 1 12.11, "service id resolution").

Datagrams need no connection, but whoever sends them must know the queue pair and its Q_Key.
One question and one answer tell: SIDR_REQ and SIDR_REP.  A L{Lookup} is one of them, on
either side; it is as short as a DNS query, and lost messages are mended the same way: who
asks asks again, with the same id, and who was asked gives the same answer again.

L{Lookups} is the part of a L{table<twisted_ib.hca.cm.table>} that has them.  As there, only
what comes from where a lookup leads to can do something to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Protocol

from twisted_ib import limits
from twisted_ib.errors import ConnectionStateError, ResourceLimitError
from twisted_ib.hca.cm.states import Event
from twisted_ib.hca.cm.timers import Deadlines
from twisted_ib.hca.wire.cm import SIDR_REP, SIDR_REQ, SIDRStatus, timeoutSeconds

#: Lookups of one path that our consumers have not answered; over it more count as lost.
CM_LOOKUPS_PER_PATH = 4096
#: The same of all paths together.
CM_LOOKUPS_PATHS = 65536
#: Answers that are kept in case that the same is asked again; over it the oldest goes.
CM_LOOKUPS_ANSWERED = 2048
#: How long they are kept: longer than RDMA-CM's time between two repetitions.
CM_LOOKUP_SECONDS = 9.0

Output = tuple[Any, int, bytes]


class LookupState(IntEnum):
    """
    Where a lookup is.

    @cvar ANSWERED: passive: the answer is kept for a while, in case that it is lost.
    """

    IDLE = 0
    REQ_SENT = 1
    REQ_RCVD = 2
    ANSWERED = 3


class LookupInput(IntEnum):
    """
    What can happen to a lookup.

    @cvar ASK: active: the consumer asks.
    @cvar ANSWER: passive: the consumer answers.
    @cvar CLOSE: the consumer does not want it any more.
    @cvar IGNORE: passive: as if the SIDR_REQ had been lost.
    @cvar RETRY: no answer in time, and retries are left.
    @cvar EXHAUSTED: no answer in time, and none is left.
    @cvar EXPIRED: passive: nobody will ask again.
    """

    ASK = 0
    REQ = 1
    REPEATED_REQ = 2
    REP = 3
    ANSWER = 4
    CLOSE = 5
    IGNORE = 6
    RETRY = 7
    EXHAUSTED = 8
    EXPIRED = 9
    PATH_LOST = 10


class LookupContext(Protocol):
    """
    What lookups need of the table of connections that they are beside.
    """

    counters: dict[str, int]

    def send(self, output: Output) -> None:
        """
        Queue a message.
        """

    def report(self, event: Event, connection: Any, message: object) -> None:
        """
        Queue an event.
        """


class Lookup:
    """
    One question.

    @ivar state: the L{LookupState}.
    @ivar user: whatever the consumer wants to find here.
    @ivar listener: passive: who listens on the service.
    @ivar destination: where messages go, and the only place they may come from.
    @ivar localID: the request id, which who asks has chosen.
    @ivar serviceID: what is looked for.
    @ivar output: what is sent again.
    @ivar deadline: when, or L{None}.
    """

    __slots__ = (
        "deadline",
        "destination",
        "listener",
        "localID",
        "lookups",
        "output",
        "period",
        "retriesLeft",
        "serviceID",
        "state",
        "user",
    )

    def __init__(self, lookups: Lookups, destination: Any, request: SIDR_REQ) -> None:
        """
        @param request: sent or received.
        """
        self.lookups = lookups
        self.destination = destination
        self.localID = request.requestID
        self.serviceID = request.serviceID
        self.state = LookupState.IDLE
        self.user: Any = None
        self.listener: Any = None
        self.output: Output | None = None
        self.deadline: float | None = None
        self.period = 0.0
        self.retriesLeft = 0

    def answer(self, reply: SIDR_REP, now: float) -> bool:
        """
        Passive: answer a LOOKUP.  Fills in the request and service ids.

        @return: whether somebody still waits for it.
        @raise ConnectionStateError: it is answered already, or ours.
        """
        if self.feed(LookupInput.ANSWER, reply, now):
            return True
        if self.state is LookupState.IDLE:
            return False
        raise ConnectionStateError(f"answer in state {self.state.name}")

    def reject(self, status: int, privateData: bytes, now: float) -> bool:
        """
        Passive: answer a LOOKUP with no.

        @param status: a L{SIDRStatus} that is not VALID.
        @return: as L{answer}.
        @raise ConnectionStateError: as L{answer}.
        """
        return self.answer(SIDR_REP(status=status, privateData=privateData), now)

    def ignore(self, now: float) -> bool:
        """
        Passive: forget a LOOKUP, so that a repeated one comes as a new one.
        """
        return self.feed(LookupInput.IGNORE, None, now)

    def close(self, now: float) -> bool:
        """
        The consumer has no use for it any more.  A question that waits for its answer is
        answered with REJECTED.
        """
        return self.feed(LookupInput.CLOSE, None, now)

    def feed(self, given: LookupInput, message: Any, now: float) -> bool:
        """
        Make one step.

        @return: False if the table has no entry for it.
        """
        row = TRANSITIONS[self.state].get(given)
        if row is None:
            return False
        action, state = row
        action(self, message, now)
        old, self.state = self.state, state
        self.lookups.moved(self, old, now)
        return True


# What lookups do.


def _ask(lookup: Lookup, request: SIDR_REQ, now: float) -> None:
    lookup.output = (lookup.destination, request.attribute, request.pack())
    _repeat(lookup, request, now)


def _repeat(lookup: Lookup, message: object, now: float) -> None:
    assert lookup.output is not None
    lookup.lookups.table.send(lookup.output)


def _retry(lookup: Lookup, message: object, now: float) -> None:
    lookup.retriesLeft -= 1
    _repeat(lookup, message, now)


def _request(lookup: Lookup, request: SIDR_REQ, now: float) -> None:
    lookup.lookups.table.report(Event.LOOKUP, lookup, request)


def _answer(lookup: Lookup, reply: SIDR_REP, now: float) -> None:
    reply.requestID = lookup.localID
    reply.serviceID = lookup.serviceID
    lookup.output = (lookup.destination, reply.attribute, reply.pack())
    _repeat(lookup, reply, now)


def _refuse(lookup: Lookup, message: object, now: float) -> None:
    _answer(lookup, SIDR_REP(status=SIDRStatus.REJECTED), now)


def _found(lookup: Lookup, reply: SIDR_REP, now: float) -> None:
    lookup.lookups.table.report(Event.FOUND, lookup, reply)


def _unreachable(lookup: Lookup, message: object, now: float) -> None:
    lookup.lookups.table.report(Event.UNREACHABLE, lookup, None)


def _drop(lookup: Lookup, message: object, now: float) -> None:
    """
    Nobody is told.
    """


Action = Callable[[Lookup, Any, float], None]

#            IDLE
#     ask   /    \   SIDR_REQ
#          v      v
#   REQ_SENT      REQ_RCVD
#   retry |          | answer: SIDR_REP
#         |          v
#         |       ANSWERED     repeated SIDR_REQ: SIDR_REP again
#         |          |
#         +-> IDLE <-+ after a while
#     SIDR_REP, retries out, close
#
# IBTA vol. 1 12.11.2.  Linux forgets a question with its answer, and asks its consumer again.
_ENDED: dict[LookupInput, tuple[Action, LookupState]] = {LookupInput.PATH_LOST: (_drop, LookupState.IDLE)}
TRANSITIONS: dict[LookupState, dict[LookupInput, tuple[Action, LookupState]]] = {
    LookupState.IDLE: {
        LookupInput.ASK: (_ask, LookupState.REQ_SENT),
        LookupInput.REQ: (_request, LookupState.REQ_RCVD),
    },
    LookupState.REQ_SENT: {
        **_ENDED,
        LookupInput.REP: (_found, LookupState.IDLE),
        LookupInput.RETRY: (_retry, LookupState.REQ_SENT),
        LookupInput.EXHAUSTED: (_unreachable, LookupState.IDLE),
        LookupInput.CLOSE: (_drop, LookupState.IDLE),
    },
    LookupState.REQ_RCVD: {
        **_ENDED,
        LookupInput.REPEATED_REQ: (_drop, LookupState.REQ_RCVD),
        LookupInput.ANSWER: (_answer, LookupState.ANSWERED),
        LookupInput.CLOSE: (_refuse, LookupState.ANSWERED),
        LookupInput.IGNORE: (_drop, LookupState.IDLE),
    },
    LookupState.ANSWERED: {
        **_ENDED,
        LookupInput.REPEATED_REQ: (_repeat, LookupState.ANSWERED),
        LookupInput.EXPIRED: (_drop, LookupState.IDLE),
    },
}


class Lookups:
    """
    All lookups of one HCA.

    @ivar table: where their messages and events go.
    """

    __slots__ = (
        "_answered",
        "_asked",
        "_deadlines",
        "_inAll",
        "_perSource",
        "_randomBits",
        "_waiting",
        "_waitingInAll",
        "table",
    )

    def __init__(self, table: LookupContext, randomBits: Callable[[int], int]) -> None:
        """
        There are none.

        @param randomBits: given a number of bits, a random integer of so many.
        """
        self.table = table
        self._randomBits = randomBits
        self._asked: dict[int, Lookup] = {}
        self._deadlines: Deadlines[Lookup] = Deadlines()
        # By source, then by request id: what its consumer has not answered.
        self._waiting: dict[Any, dict[int, Lookup]] = {}
        self._waitingInAll = 0
        self._perSource, self._inAll = CM_LOOKUPS_PER_PATH, CM_LOOKUPS_PATHS
        # By source and request id, the oldest first: (when it expires, the lookup).
        self._answered: OrderedDict[tuple[Any, int], tuple[float, Lookup]] = OrderedDict()

    def limitHalfOpen(self, perSource: int, inAll: int) -> None:
        """
        Sources are addresses, which anybody can write on a message.

        @param perSource: how many of a source may wait.
        @param inAll: how many of all.
        """
        self._perSource, self._inAll = perSource, inAll

    def __len__(self) -> int:
        return len(self._asked) + self._waitingInAll

    # Active.

    def ask(
        self, destination: Any, request: SIDR_REQ, user: object, retries: int, timeout: int, now: float
    ) -> Lookup:
        """
        Send a SIDR_REQ.

        @param request: complete but for C{requestID}.
        @param retries: how often it is repeated.
        @param timeout: how long each time; a timeout code.
        @raise ResourceLimitError: too many wait for an answer.
        """
        if len(self._asked) >= limits.CM_LOOKUPS:
            raise ResourceLimitError(f"{limits.CM_LOOKUPS} lookups wait for their answers")
        number = self._randomBits(32)
        while not number or number in self._asked:
            number = number + 1 & 0xFFFFFFFF
        request.requestID = number
        lookup = Lookup(self, destination, request)
        lookup.user = user
        lookup.period = timeoutSeconds(timeout)
        lookup.retriesLeft = retries
        lookup.feed(LookupInput.ASK, request, now)
        return lookup

    def takeREP(self, source: Any, message: SIDR_REP, now: float) -> None:
        """
        An answer came.
        """
        lookup = self._asked.get(message.requestID)
        if lookup is None:
            self.table.counters["unknownID"] += 1
        elif lookup.destination != source:
            self.table.counters["foreignSource"] += 1
        else:
            lookup.feed(LookupInput.REP, message, now)

    # Passive.

    def takeREQ(self, source: Any, message: SIDR_REQ, listener: Any, now: float) -> None:
        """
        A question came.

        @param listener: whom it is for, or L{None}.
        """
        key = source, message.requestID
        waiting = self._waiting.get(source, {})
        old = waiting.get(message.requestID)
        if old is None and key in self._answered:
            old = self._answered[key][1]
        if old is not None:
            self.table.counters["repeatedSIDR"] += 1
            old.feed(LookupInput.REPEATED_REQ, message, now)
            return
        lookup = Lookup(self, source, message)
        if listener is None:
            # Nothing need be kept: the same question will have the same answer.
            self.table.counters["noListener"] += 1
            _answer(lookup, SIDR_REP(status=SIDRStatus.SERVICE_ID_UNSUPPORTED), now)
        elif len(waiting) >= self._perSource or self._waitingInAll >= self._inAll:
            self.table.counters["lookupsExceeded"] += 1
        else:
            lookup.listener = listener
            lookup.feed(LookupInput.REQ, message, now)

    # Both.

    def moved(self, lookup: Lookup, old: LookupState, now: float) -> None:
        """
        A lookup made a step.
        """
        state = lookup.state
        if old is not state:
            self._leave(lookup, old)
        if state is LookupState.REQ_SENT:
            self._asked[lookup.localID] = lookup
            self._deadlines.set(lookup, now + lookup.period)
        elif old is state:
            return
        elif state is LookupState.REQ_RCVD:
            self._waiting.setdefault(lookup.destination, {})[lookup.localID] = lookup
            self._waitingInAll += 1
        elif state is LookupState.ANSWERED:
            if len(self._answered) >= CM_LOOKUPS_ANSWERED:
                self._forgetOldest(now)
            expiry = now + CM_LOOKUP_SECONDS
            self._answered[lookup.destination, lookup.localID] = expiry, lookup

    def _leave(self, lookup: Lookup, old: LookupState) -> None:
        """
        Take a lookup from where its old state had it.
        """
        if old is LookupState.REQ_SENT:
            del self._asked[lookup.localID]
            if lookup.deadline is not None:
                self._deadlines.clear(lookup)
        elif old is LookupState.REQ_RCVD:
            waiting = self._waiting[lookup.destination]
            del waiting[lookup.localID]
            if not waiting:
                del self._waiting[lookup.destination]
            self._waitingInAll -= 1
        elif old is LookupState.ANSWERED:
            del self._answered[lookup.destination, lookup.localID]

    def _forgetOldest(self, now: float) -> None:
        next(iter(self._answered.values()))[1].feed(LookupInput.EXPIRED, None, now)

    def pathLost(self, source: Any) -> list[Lookup]:
        """
        Forget everything about a source.

        @return: its lookups that somebody waits for.
        """
        lost = [lookup for lookup in self._asked.values() if lookup.destination == source]
        lost += self._waiting.get(source, {}).values()
        answered = [lookup for _, lookup in self._answered.values() if lookup.destination == source]
        for lookup in lost + answered:
            lookup.feed(LookupInput.PATH_LOST, None, 0.0)
        return lost

    def deadline(self) -> float | None:
        """
        When L{tick} should be called.  Old answers are forgotten whenever it is.
        """
        return self._deadlines.soonest()

    def tick(self, now: float) -> None:
        """
        Do what is due.
        """
        for lookup in self._deadlines.takeDue(now):
            if lookup.retriesLeft > 0:
                self.table.counters["retransmitted"] += 1
                lookup.feed(LookupInput.RETRY, None, now)
            else:
                self.table.counters["unreachable"] += 1
                lookup.feed(LookupInput.EXHAUSTED, None, now)
        self.expire(now)

    def expire(self, now: float) -> None:
        """
        Forget the answers that nobody will ask for again.
        """
        while self._answered and next(iter(self._answered.values()))[0] <= now:
            self._forgetOldest(now)
