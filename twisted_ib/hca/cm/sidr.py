"""
Service id resolution for datagram services: SIDR (IBTA vol. 1 12.11).

Datagrams need no connection, but their sender must know the destination's queue pair number and Q_Key. One
exchange obtains them: SIDR_REQ and SIDR_REP. It is retried like a DNS query: the requester repeats the same
request id, the responder repeats the same answer. Where no message is lost only an answer of status NO_QP has
it repeated: the responder has no room for it yet.

A L{Lookup} is one such exchange, on either side; L{Lookups} is the part of the L{connection
table<twisted_ib.hca.cm.table>} that holds them. Only messages from a lookup's own destination affect it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import ConnectionStateError, ResourceLimitError
from twisted_ib.hca.base.machine import Machine, ignored, listed
from twisted_ib.hca.base.operation import ID_SHIFT
from twisted_ib.hca.cm.states import Event
from twisted_ib.hca.cm.timers import Deadlines
from twisted_ib.hca.cm.transitions import CM_AGAIN_CODE
from twisted_ib.hca.connection import LookupReply, SIDRStatus
from twisted_ib.hca.connection.interfaces import ILookup
from twisted_ib.hca.wire.cm.messages import SIDR_REP, SIDR_REQ, timeoutSeconds
from twisted_ib.records import define

if TYPE_CHECKING:
    from twisted_ib.hca.cm.table import ConnectionTable

#: The bits in which the next id differs from one in use; the upper ones may say whose it is.
COUNTED_ID_BITS = (1 << ID_SHIFT) - 1
#: Lookups of one source that our consumers have not answered; over it new ones are dropped.
CM_LOOKUPS_PER_PATH = 4096
#: The same of all sources together.
CM_LOOKUPS_PATHS = 65536
#: Answers that are kept for a repeated SIDR_REQ; over it the oldest is dropped.
CM_LOOKUPS_ANSWERED = 2048
#: How long they are kept, in seconds: longer than the 4.1 s between two retries of Linux (cma.c
#: cma_resolve_ib_udp: timeout code 20).
CM_LOOKUP_SECONDS = 9.0

Output = tuple[Any, int, bytes]


class LookupState(IntEnum):
    """
    States of a lookup.
    """

    IDLE = 0
    REQ_SENT = 1
    REQ_RCVD = 2
    #: Passive: the answer is kept for a while, since the SIDR_REP may be lost.
    ANSWERED = 3


class LookupInput(IntEnum):
    """
    Inputs of a lookup's state machine.
    """

    #: Active: the consumer asks.
    ASK = 0
    REQ = 1
    REPEATED_REQ = 2
    REP = 3
    #: Passive: the consumer answers.
    ANSWER = 4
    CLOSE = 5
    #: Passive: the consumer treats the SIDR_REQ as lost.
    IGNORE = 6
    #: The response timer expired and retries are left; EXHAUSTED: none are.
    RETRY = 7
    EXHAUSTED = 8
    #: Passive: the requester will not repeat its request any more.
    EXPIRED = 9
    PATH_LOST = 10
    #: Active: the responder has no room yet.
    AGAIN = 11


@implementer(ILookup)
@define(eq=False, repr=False, weakref_slot=False)
class Lookup:
    """
    One exchange.

    @ivar state: the L{LookupState}.
    @ivar user: free for the consumer.
    @ivar listener: passive: the listener of the service id.
    @ivar destination: where messages are sent, and the only source they are accepted from.
    @ivar localID: the request id, chosen by the requester.
    @ivar output: the last message, for retransmission.
    @ivar deadline: when to retransmit, or L{None}.
    @ivar period: how long an answer may take.
    @ivar wait: the time until the deadline: the period, or less if the responder has no room yet.
    @ivar retriesLeft: how often the request is repeated unasked.
    @ivar againLeft: how often it is repeated because the responder had no room.
    """

    lookups: Lookups
    destination: Any
    localID: int
    serviceID: int
    state: LookupState = LookupState.IDLE
    user: Any = None
    listener: Any = None
    output: Output | None = None
    deadline: float | None = None
    period: float = 0.0
    wait: float = 0.0
    retriesLeft: int = 0
    againLeft: int = 0

    def answer(self, reply: LookupReply, now: float) -> bool:
        """
        Passive: answer a LOOKUP.

        @return: False if it has ended meanwhile, such as by the loss of its path.
        @raise ConnectionStateError: it is answered already, or is one of ours.
        """
        message = SIDR_REP(
            status=reply.status,
            queuePairNumber=reply.queuePairNumber,
            qKey=reply.qKey,
            privateData=reply.privateData,
        )
        if self.feed(LookupInput.ANSWER, message, now):
            return True
        if self.state is LookupState.IDLE:
            return False
        raise ConnectionStateError(f"answer in state {self.state.name}")

    def reject(self, status: int, privateData: bytes, now: float) -> bool:
        return self.answer(LookupReply(status, privateData), now)

    def ignore(self, now: float) -> bool:
        # A repeated SIDR_REQ is a new one.
        return self.feed(LookupInput.IGNORE, None, now)

    def close(self, now: float) -> bool:
        # A passive lookup without an answer is answered REJECTED.
        return self.feed(LookupInput.CLOSE, None, now)

    def feed(self, given: LookupInput, message: Any, now: float) -> bool:
        """
        Make one step of the state machine.

        @return: False if the table has no entry for this state and input.
        """
        row = TRANSITIONS[self.state, given]
        if row is None:
            return False
        state, action = row
        action(self, message, now)
        old, self.state = self.state, state
        self.lookups.moved(self, old, now)
        return True


# Actions.


def _ask(lookup: Lookup, request: SIDR_REQ, now: float) -> None:
    lookup.output = (lookup.destination, request.attribute, lookup.lookups.table.pack(request))
    _repeat(lookup, request, now)


def _repeat(lookup: Lookup, message: object, now: float) -> None:
    assert lookup.output is not None
    lookup.lookups.table.send(lookup.output)


def _retry(lookup: Lookup, message: object, now: float) -> None:
    lookup.retriesLeft -= 1
    lookup.wait = lookup.period
    _repeat(lookup, message, now)


def _again(lookup: Lookup, reply: SIDR_REP, now: float) -> None:
    lookup.againLeft -= 1
    lookup.retriesLeft = 1
    lookup.wait = timeoutSeconds(CM_AGAIN_CODE)


def _request(lookup: Lookup, request: SIDR_REQ, now: float) -> None:
    lookup.lookups.table.report(Event.LOOKUP, lookup, request)


def _answer(lookup: Lookup, reply: SIDR_REP, now: float) -> None:
    reply.requestID = lookup.localID
    reply.serviceID = lookup.serviceID
    # IBTA vol. 1 12.11: the SIDR_REP is matched by request id, not by transaction; Linux cm.c
    # cm_sidr_rep_handler.
    lookup.output = (lookup.destination, reply.attribute, lookup.lookups.table.pack(reply))
    _repeat(lookup, reply, now)


def _refuse(lookup: Lookup, message: object, now: float) -> None:
    _answer(lookup, SIDR_REP(status=SIDRStatus.REJECTED), now)


def _ignore(lookup: Lookup, message: object, now: float) -> None:
    if lookup.lookups.table.lossless:
        # There is no MRA for SIDR (IBTA vol. 1 12.11), and nothing is repeated unasked.
        _answer(lookup, SIDR_REP(status=SIDRStatus.NO_QP), now)


def _found(lookup: Lookup, reply: SIDR_REP, now: float) -> None:
    lookup.lookups.table.report(Event.FOUND, lookup, reply)


def _unreachable(lookup: Lookup, message: object, now: float) -> None:
    lookup.lookups.table.report(Event.UNREACHABLE, lookup, None)


def _drop(lookup: Lookup, message: object, now: float) -> None:
    pass  # No message, no event.


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
# IBTA vol. 1 12.11.2.  Linux cm.c (cm_sidr_req_handler) forgets a request with its answer, and asks its
# consumer again if the SIDR_REP was lost.
_ENDED: dict[LookupInput, tuple[LookupState, Action]] = {LookupInput.PATH_LOST: (LookupState.IDLE, _drop)}
TRANSITIONS = Machine[LookupState, LookupInput, tuple[LookupState, Action] | None](
    listed(
        {
            LookupState.IDLE: {
                LookupInput.ASK: (LookupState.REQ_SENT, _ask),
                LookupInput.REQ: (LookupState.REQ_RCVD, _request),
            },
            LookupState.REQ_SENT: {
                **_ENDED,
                LookupInput.REP: (LookupState.IDLE, _found),
                LookupInput.RETRY: (LookupState.REQ_SENT, _retry),
                LookupInput.EXHAUSTED: (LookupState.IDLE, _unreachable),
                LookupInput.CLOSE: (LookupState.IDLE, _drop),
                LookupInput.AGAIN: (LookupState.REQ_SENT, _again),
            },
            LookupState.REQ_RCVD: {
                **_ENDED,
                # The consumer has been asked already; its answer serves both copies.
                LookupInput.REPEATED_REQ: (LookupState.REQ_RCVD, _drop),
                LookupInput.ANSWER: (LookupState.ANSWERED, _answer),
                # Refused, not dropped: the requester need not wait for its retries to run out.
                LookupInput.CLOSE: (LookupState.ANSWERED, _refuse),
                LookupInput.IGNORE: (LookupState.IDLE, _ignore),
            },
            LookupState.ANSWERED: {
                **_ENDED,
                LookupInput.REPEATED_REQ: (LookupState.ANSWERED, _repeat),
                LookupInput.EXPIRED: (LookupState.IDLE, _drop),
            },
        }
    ),
    unlisted=ignored,
)


class Lookups:
    """
    All lookups of one HCA.

    @ivar table: receives their messages and events.
    @ivar deadlines: of those that were asked.
    """

    def __init__(self, table: ConnectionTable, randomBits: Callable[[int], int]) -> None:
        """
        @param randomBits: given a number of bits, a random integer of so many.
        """
        self.table = table
        self._randomBits = randomBits
        self._asked: dict[int, Lookup] = {}
        self.deadlines: Deadlines[Lookup] = Deadlines(self._asked)
        # Source -> request id -> lookup that the consumer has not answered.
        self._waiting: dict[Any, dict[int, Lookup]] = {}
        self._waitingInAll = 0
        self._perSource, self._inAll = CM_LOOKUPS_PER_PATH, CM_LOOKUPS_PATHS
        # (source, request id) -> (expiry, lookup), oldest first. The source is in the key: request ids are
        # the requesters' choice, and two of them may choose the same.
        self._answered: OrderedDict[tuple[Any, int], tuple[float, Lookup]] = OrderedDict()

    def limitHalfOpen(self, perSource: int, inAll: int) -> None:
        """
        Limit unanswered lookups, because source addresses can be forged.

        @param perSource: unanswered lookups of one source.
        @param inAll: the same of all sources.
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
        @param timeout: the time between two, a timeout code.
        @raise ResourceLimitError: too many lookups wait for an answer.
        """
        if len(self._asked) >= limits.CM_LOOKUPS:
            raise ResourceLimitError(f"{limits.CM_LOOKUPS} lookups wait for their answers")
        # Random, so that nobody off the path can guess it and forge a SIDR_REP (RFC 5452 section 4.3: the
        # same for DNS ids). 0 is left out, as for communication ids.
        number = self._randomBits(32)
        while not number or number in self._asked:
            number = number & ~COUNTED_ID_BITS | number + 1 & COUNTED_ID_BITS
        request.requestID = number
        lookup = Lookup(self, destination, request.requestID, request.serviceID)
        lookup.user = user
        lookup.period = timeoutSeconds(timeout)
        if self.table.lossless:
            # One wait, as long as all repeats would take: the peer will read it, or its path is lost.
            lookup.period = max(lookup.period * (retries + 1), limits.CM_ANSWER_SECONDS)
            lookup.againLeft = retries
        else:
            lookup.retriesLeft = retries
        lookup.wait = lookup.period
        lookup.feed(LookupInput.ASK, request, now)
        return lookup

    def takeREP(self, source: Any, message: SIDR_REP, now: float) -> None:
        """
        A SIDR_REP arrived.
        """
        lookup = self._asked.get(message.requestID)
        if lookup is None:
            self.table.counters["unknownID"] += 1
        elif lookup.destination != source:
            self.table.counters["foreignSource"] += 1
        elif message.status == SIDRStatus.NO_QP and lookup.againLeft > 0:
            lookup.feed(LookupInput.AGAIN, message, now)
        else:
            lookup.feed(LookupInput.REP, message, now)

    # Passive.

    def takeREQ(self, source: Any, message: SIDR_REQ, listener: Any, isFull: bool, now: float) -> None:
        """
        A SIDR_REQ arrived.

        @param listener: of its service id, or L{None}.
        @param isFull: whether the table has no room for an event.
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
        lookup = Lookup(self, source, message.requestID, message.serviceID)
        if listener is None:
            # IBTA vol. 1 12.11: status 1, service id not supported. No state is kept: a repeated SIDR_REQ
            # has the same answer.
            self.table.counters["noListener"] += 1
            _answer(lookup, SIDR_REP(status=SIDRStatus.SERVICE_ID_UNSUPPORTED), now)
        elif isFull or len(waiting) >= self._perSource or self._waitingInAll >= self._inAll:
            # The requester repeats it, by when there may be room.
            self.table.counters["eventsFull" if isFull else "lookupsExceeded"] += 1
            _ignore(lookup, message, now)
        else:
            lookup.listener = listener
            lookup.feed(LookupInput.REQ, message, now)

    # Both.

    def moved(self, lookup: Lookup, old: LookupState, now: float) -> None:
        """
        A lookup made a step from the state C{old}.
        """
        state = lookup.state
        if old is not state:
            self._leave(lookup, old)
        if state is LookupState.REQ_SENT:
            self._asked[lookup.localID] = lookup
            self.deadlines.set(lookup, now + lookup.wait)
        # A repeated SIDR_REQ does not extend the expiry: a requester could keep its answer here for ever.
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
        if old is LookupState.REQ_SENT:
            del self._asked[lookup.localID]
            if lookup.deadline is not None:
                self.deadlines.clear(lookup)
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

        @return: its lookups that somebody still waits for.
        """
        lost = [lookup for lookup in self._asked.values() if lookup.destination == source]
        lost += self._waiting.get(source, {}).values()
        answered = [lookup for _, lookup in self._answered.values() if lookup.destination == source]
        for lookup in lost + answered:
            lookup.feed(LookupInput.PATH_LOST, None, 0.0)
        return lost

    def deadline(self) -> float | None:
        """
        When L{tick} should be called next, for retries; kept answers expire whenever it is called.
        """
        return self.deadlines.soonest()

    def tick(self, now: float) -> None:
        """
        Retransmit or give up what is due.
        """
        for lookup in self.deadlines.takeDue(now):
            if lookup.retriesLeft > 0:
                self.table.counters["retransmitted"] += 1
                lookup.feed(LookupInput.RETRY, None, now)
            else:
                self.table.counters["unreachable"] += 1
                lookup.feed(LookupInput.EXHAUSTED, None, now)
        self.expire(now)

    def expire(self, now: float) -> None:
        """
        Forget kept answers that have expired.
        """
        while self._answered and next(iter(self._answered.values()))[0] <= now:
            self._forgetOldest(now)
