"""
The subnet manager's SMPs on their way: a window of them, repeated until they are answered.

A response is taken if it has the transaction id, attribute and modifier of a request that waits, and comes
from where that went: a directed route by the same path, a LID-routed one from the LID.  All else is dropped
and counted:

  - C{sm_malformed}: no MAD, or not of this class version;
  - C{sm_unasked}: no request waits for it;
  - C{sm_foreign}: it answers something else, or comes from elsewhere;
  - C{sm_busy}: the agent is busy: the request is repeated as if it were lost;
  - C{sm_refused}: it has another status than success, and no attribute is taken from it;
  - C{sm_unanswered}: the last attempt was not answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from attrs import define, field

from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.hca.base.operation import SMI_QPN
from twisted_ib.hca.wire.mad.classes import SUBNET, SUBNET_DIRECTED, DirectedHeader
from twisted_ib.hca.wire.mad.mad import DIRECTION, GET, GET_RESPONSE, SET, SM_VERSION, Mad, decodeMAD
from twisted_ib.subnet.network.smi import PERMISSIVE_LID, Packet

#: The upper 16 bits of our transaction ids: no client of ibsim's protocol has this number.
TRANSACTIONS: Final = 0xFFFF << 48
_TRANSACTION: Final = 0xFFFFFFFF
_BUSY: Final = 0x01
_COUNT: Final = 0xFF

#: Takes the attribute of a response, or L{None} if there is none.
Answered = Callable[["bytes | None"], object]


@define(eq=False)
class Request:
    """
    A Get or a Set.

    @ivar route: the initial path; L{None} for one that goes to C{lid}.
    @ivar data: the attribute of a Set; L{None} for a Get.
    """

    route: bytes | None
    attribute: int
    modifier: int
    answered: Answered
    data: bytes | None = None
    lid: int = 0
    _transaction: int = field(default=0, init=False)
    _left: int = field(default=0, init=False)
    _deadline: float = field(default=0.0, init=False)

    @property
    def mad(self) -> Mad:
        """
        Its MAD.
        """
        method = GET if self.data is None else SET
        fields = SM_VERSION, method, self._transaction, self.attribute, self.data or b"", self.modifier
        if self.route is None:
            return Mad(SUBNET, *fields)
        header = DirectedHeader(initialPath=b"\0" + self.route)
        return Mad(SUBNET_DIRECTED, *fields, classSpecific=len(self.route), header=header)

    def _packet(self) -> Packet:
        octets = bytearray(self.mad.pack())
        if self.route is None:
            return Packet(0, self.lid, SMI_QPN, SMI_QPN, octets)
        return Packet(PERMISSIVE_LID, PERMISSIVE_LID, SMI_QPN, SMI_QPN, octets)

    def isAnswer(self, mad: Mad, slid: int = PERMISSIVE_LID) -> bool:
        """
        @param slid: where it comes from.
        @return: whether a response, which has its transaction id, answers it.
        """
        if (mad.method, mad.attribute, mad.modifier) != (GET_RESPONSE, self.attribute, self.modifier):
            return False
        header = mad.header
        if self.route is None:
            return mad.managementClass == SUBNET and slid == self.lid
        hops = len(self.route)
        return (
            isinstance(header, DirectedHeader)
            and mad.classSpecific & _COUNT == hops
            and header.initialPath[1 : 1 + hops] == self.route
            and bool(mad.status & DIRECTION)
        )


def decodeSMP(octets: bytes | bytearray) -> tuple[Mad, bytes] | None:
    """
    @return: a MAD of subnet management, and its attribute; L{None} if it is none, or of another version.
    """
    try:
        mad = decodeMAD(octets)
    except WireError:
        return None
    return (mad, mad.data) if mad.classVersion == SM_VERSION and isinstance(mad.data, bytes) else None


class IRequests(Protocol):
    """
    Sends requests, and repeats those that are not answered.
    """

    def add(self, requests: Iterable[Request]) -> None:
        """
        Send more, behind those that wait.

        @param requests: taken one by one as there is room for them.
        """


class Requests:
    """
    Requests that wait for their turn or for their response, at most L{limits.SM_WINDOW} of these: see
    L{IRequests}.

    @ivar sent: how many were, repetitions included.
    """

    def __init__(self, transaction: int, count: Callable[[str], object]) -> None:
        """
        @param transaction: where transaction ids begin: at random, so that responses to another manager's
            requests are not taken for ours.
        @param count: called with the name of each loss.
        """
        self._next = transaction
        self._count = count
        self._sources: deque[Iterator[Request]] = deque()
        #: By transaction id, the one whose deadline comes first is the first.
        self._waiting: dict[int, Request] = {}
        self._outgoing: list[Packet] = []
        self.sent = 0

    @property
    def isIdle(self) -> bool:
        """
        Whether all are answered or given up.
        """
        return not self._waiting and not self._sources

    def add(self, requests: Iterable[Request]) -> None:
        self._sources.append(iter(requests))

    def cancel(self) -> None:
        """
        Forget all, without calling anybody.
        """
        self._sources.clear()
        self._waiting.clear()
        self._outgoing.clear()

    def fill(self, now: float) -> None:
        """
        Take requests into the window.
        """
        while self._sources and len(self._waiting) < limits.SM_WINDOW:
            request = next(self._sources[0], None)
            if request is None:
                self._sources.popleft()
                continue
            self._next = self._next + 1 & _TRANSACTION
            request._transaction = TRANSACTIONS | self._next
            request._left = limits.SM_RETRIES
            self._send(request, now)

    def _send(self, request: Request, now: float) -> None:
        request._deadline = now + limits.SM_TIMEOUT_SECONDS
        self._waiting[request._transaction] = request
        self._outgoing.append(request._packet())
        self.sent += 1

    def outgoing(self) -> list[Packet]:
        """
        @return: the packets to send.
        """
        packets, self._outgoing = self._outgoing, []
        return packets

    def received(self, packet: Packet) -> None:
        """
        A response of subnet management arrived.
        """
        decoded = decodeSMP(packet.octets)
        if decoded is None:
            self._count("sm_malformed")
            return
        mad, data = decoded
        request = self._waiting.get(mad.transaction)
        if request is None:
            self._count("sm_unasked")
            return
        status = mad.status & ~DIRECTION
        if not request.isAnswer(mad, packet.slid):
            self._count("sm_foreign")
        elif status & _BUSY:
            self._count("sm_busy")
        else:
            del self._waiting[mad.transaction]
            if status:
                self._count("sm_refused")
            request.answered(None if status else data)

    def deadline(self) -> float | None:
        """
        @return: when L{expired} is to be called, if one waits.
        """
        request = next(iter(self._waiting.values()), None)
        return None if request is None else request._deadline

    def expired(self, now: float) -> None:
        """
        Repeat what was not answered in time, or give it up.
        """
        for transaction, request in list(self._waiting.items()):
            # The answer to one before may have cancelled all.
            if request._deadline > now or transaction not in self._waiting:
                return
            del self._waiting[transaction]
            if request._left:
                request._left -= 1
                self._send(request, now)
            else:
                self._count("sm_unanswered")
                request.answered(None)
