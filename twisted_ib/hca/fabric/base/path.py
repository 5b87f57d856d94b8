"""
Paths of records to a peer's HCA: what a ring, a socket and a queue have in common.

Such a path knows the queue pairs that may be reached through it, and no others.  Its table maps queue pair
numbers to the receivers of their records: the L{QueuePair}, a L{Refusing} while requests are dropped after
a refusal, or, for number 1, L{Management}.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from zope.interface import classImplements

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import PathLostError, RingError
from twisted_ib.hca.base.events import notifyAll
from twisted_ib.hca.base.interfaces import ISharedMemoryPath, ITwinPath
from twisted_ib.hca.base.operation import (
    ABSENT,
    ABSENT_WORD,
    GSI_QPN,
    MANAGEMENT,
    MANAGEMENT_HEADER,
    REFUSAL,
    RESPONSES,
    RESUME,
    SMI_QPN,
    SOLICITED,
    isDatagram,
)
from twisted_ib.hca.fabric.base.management import Management, takeMAD
from twisted_ib.hca.queues.streamqueuepair import RecordReceiver
from twisted_ib.hca.wire.headers import QPN_MASK
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE, SEND_ONLY, UNRELIABLE

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Acknowledged, BoundQueuePair, Buffer, Waiter
    from twisted_ib.hca.base.interfaces.roles import Segment
    from twisted_ib.hca.memory.memory import MemoryRegion

#: Queue pair numbers, unknown here or not any more, that a path remembers.
ABSENT_NUMBERS = 1024
#: The C{peerSleep} of a path that does not know whether its peer sleeps.
AWAKE: Final[Sequence[int]] = (0,)


class Refusing(RecordReceiver):
    """
    Stands in a path's table for a queue pair that refused a request: later requests are dropped until the
    requester resumes.
    """

    __slots__ = ("path", "queuePair")

    def __init__(self, path: RecordPath, queuePair: Any) -> None:
        self.path = path
        self.queuePair = queuePair

    def delivered(self, opcode: int, buffer: Buffer, start: int, stop: int) -> int:
        # Drop requests, pass responses on, and leave the table when the requester resumes.
        # IBTA vol. 1 9.7.5.2.8: after an RNR NAK the responder drops requests until the refused one comes
        # again, which it recognises by its PSN.  Records have no PSN, so a record of its own marks the
        # place.
        if opcode == RESUME:
            self.path.table[self.queuePair.number] = self.queuePair
        # Responses concern the queue pair's own requests, which go on: send and receive queue are
        # independent (IBTA vol. 1 10.2.4).
        elif opcode in RESPONSES:
            answer: int = self.queuePair.delivered(opcode, buffer, start, stop)
            return answer
        return 0


class PendingResume:
    """
    A RESUME record to send for a requester that is gone.
    """

    __slots__ = ("path", "remote")

    def __init__(self, path: RecordPath, remote: int) -> None:
        self.path = path
        self.remote = remote

    def resume(self) -> None:
        """
        Send the record, now that there is space.
        """
        # If the peer refused one of the requests, or will, it would otherwise drop what the next requester
        # sends to that number.  The record goes behind everything that the old one sent.
        if not self.path.postReserved(RESUME << 24 | self.remote, b"", False):
            self.path.wantSpace(self)


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiters:
    """
    Those that wait for room in a path's medium: see L{IPath<twisted_ib.hca.base.interfaces.IPath>}.

    @ivar waiting: They, in order, connection management first; each has C{resume()}.
    @ivar peerSleep: Not known.
    @ivar peerGrants: None.
    @ivar peerAsks: Never.
    @ivar sendsInPlace: Never, as SENDs are copied.
    """

    __slots__ = ("waiting",)

    waiting: OrderedDict[Waiter, None]
    peerSleep: Sequence[int] = AWAKE
    peerGrants: Sequence[int] = AWAKE
    peerAsks: Sequence[int] = AWAKE
    sendsInPlace: bool = False

    def postInPlace(self, word: int, header: bytes, payload: memoryview, length: int) -> None:
        raise NotImplementedError

    def hasPlace(self) -> bool:
        return False

    def alert(self) -> None:
        pass  # Whether the peer sleeps is not known.

    def writeDirectly(
        self, number: int, key: int, address: int, source: Any, offset: int, length: int
    ) -> bool:
        return False  # Its medium is records.

    def grantWrites(self, queuePair: BoundQueuePair, region: MemoryRegion) -> bool:
        return False

    def revokeWrites(self, queuePair: BoundQueuePair) -> None:
        pass

    def wantSpace(self, waiter: Waiter) -> None:
        self.waiting[waiter] = None

    def wantNoSpace(self, waiter: Waiter) -> None:
        self.waiting.pop(waiter, None)

    def resumeWaiting(self) -> int:
        """
        Resume waiters until one finds no room again.

        @return: How many were resumed.
        """
        n = 0
        waiting = self.waiting
        while waiting:
            waiter, _ = waiting.popitem(False)
            waiter.resume()
            n += 1
            # It waits again, so the medium is full and those behind it would fail as well.
            if waiter in waiting:
                break
        return n


@mypyc_attr(allow_interpreted_subclasses=True)
class RecordPath(Waiters):
    """
    A path to one peer's HCA that carries records: see
    L{IPath<twisted_ib.hca.base.interfaces.IPath>}.

    @ivar table: The receivers of records, by queue pair number; C{taker} is its C{get}.
    @ivar bell: Whether something was published that the peer has not been notified of.
    @ivar busy: Whether records are being delivered: L{progress} does nothing then.
    @ivar consumed: Whether the latest L{progress} may have read records, for which a peer without room waits.
    @ivar isThreadless: Whether the device has no thread of its own, as those of verbs: whoever asks for
        completions drives it, and L{progress} completes requests of a C{twin}, too, which it counts.
    @ivar absent: Numbers without a queue pair.  True: refused, and the requester has not resumed yet.  False:
        a stream has had it, to which messages may still be on the way.
    @ivar unacknowledged: All that L{track} was given, in order: C{track} is its C{append}.
    @ivar requesters: All that L{expect} was given, by the peer's queue pair number.
    """

    inPackets: ClassVar = False
    recordBytes: ClassVar = limits.INLINE_MESSAGE
    inSegments: ClassVar = False
    retransmits: ClassVar = 0
    messageBytes: ClassVar = limits.INLINE_RECORD

    __slots__ = (
        "absent",
        "alive",
        "bell",
        "busy",
        "consumed",
        "fabric",
        "isThreadless",
        "owed",
        "peer",
        "peerSocket",
        "requesters",
        "scheduler",
        "table",
        "taker",
        "track",
        "twin",
        "unacknowledged",
    )

    def __init__(self, fabric: Any, peer: Any) -> None:
        self.fabric = fabric
        self.peer = peer
        self.alive = True
        self.peerSocket: Any = None
        self.table: dict[int, Any] = {GSI_QPN: Management(self)}
        self.taker: Any = self.table.get
        self.absent: OrderedDict[int, bool] = OrderedDict()
        self.requesters: dict[int, Any] = {}
        self.twin: Any = None
        self.isThreadless = not getattr(getattr(fabric, "owner", None), "thread", True)
        self.scheduler: Any = None
        self.waiting: OrderedDict[Waiter, None] = OrderedDict()
        self.unacknowledged: deque[tuple[int, Acknowledged]] = deque()
        self.track: Any = self.unacknowledged.append
        self.owed: tuple[int, int, int] | None = None
        self.bell = self.busy = False
        self.consumed = True

    # -- queue pairs

    @property
    def way(self) -> RecordPath:
        return self

    def bind(self, queuePair: BoundQueuePair, message: Any = None) -> RecordPath:
        # IBTA vol. 1 9.6: HCAs compare a packet's source with the queue pair's peer.  Here a peer cannot
        # even name a queue pair that is bound to another path.
        if queuePair.number in self.absent:
            self._enter(queuePair)
        else:
            self.table[queuePair.number] = queuePair
        # A queue pair connected to itself sends from this end and receives at the other: its requests
        # arrive there, their refusals here.
        if self.twin is not None and queuePair.number == queuePair.remote:
            self.twin._enter(queuePair)
        return self

    def modified(self, queuePair: BoundQueuePair) -> None:
        pass  # Records depend on no attribute of a queue pair.

    def prepareRequest(self, request: Any) -> None:
        pass

    def prepareReply(self, reply: Any, request: Any) -> Any:
        return None

    def readReply(self, reply: Any, number: int) -> None:
        pass

    def _enter(self, queuePair: BoundQueuePair) -> None:
        number = queuePair.number
        if self.absent.pop(number, False):
            # This number was refused as absent and the requester has not resumed yet: what is still on the
            # way was sent before the refusal, and is not for the new queue pair.
            self.table[number] = Refusing(self, queuePair)
        else:
            self.table[number] = queuePair

    def unbind(self, queuePair: BoundQueuePair) -> None:
        number = queuePair.number
        self.table.pop(number, None)
        if queuePair.work is None:
            # CM's timewait (IBTA vol. 1 12.9.7): the peer may have sent something, such as credits, before it
            # heard of the stream's end.
            absent = self.absent
            if len(absent) >= ABSENT_NUMBERS:
                absent.popitem(False)
            absent[number] = False
        if self.twin is not None:
            # Without a test: both ends belong to one HCA, whose numbers are unique.
            self.twin.table.pop(number, None)
        if self.waiting:
            self.waiting.pop(queuePair, None)
        # Asked first, as most paths have none.
        if self.requesters and self.requesters.get(remote := queuePair.remote) is queuePair:
            del self.requesters[remote]
            work = queuePair.work
            if self.alive and (work is None or not work.isSettled()):
                PendingResume(self, remote).resume()

    def queuePairs(self) -> list[Any]:
        """
        @return: The queue pairs that are bound to this path.
        """
        found = []
        for entry in self.table.values():
            if entry.__class__ is Refusing:
                found.append(entry.queuePair)
            elif entry.__class__ is not Management:
                found.append(entry)
        return found

    def forget(self, number: int) -> None:
        self.absent.pop(number, None)

    def expect(self, requester: Any) -> None:
        self.requesters[requester.remote] = requester

    # -- down

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        raise NotImplementedError

    def respond(self, word: int, record: bytes, partition: int) -> bool:
        return self.post(word, record, b"", 0)

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        raise NotImplementedError

    def progress(self, budget: int) -> int:
        """
        Deliver what has arrived, resume waiters for room, complete requests that the peer has consumed.

        @param budget: How many records at most.
        @return: How many records were consumed, waiters resumed and requests completed, of a twin, too: 0
            only if nothing was called.
        @raise RingError: the peer broke the layout.
        """
        raise NotImplementedError

    def pending(self) -> bool:
        """
        @return: Whether L{progress} has something to do.
        """
        raise NotImplementedError

    def position(self) -> int:
        raise NotImplementedError

    def octets(self) -> tuple[int, int]:
        """
        @return: How many octets of records it has sent and received, with their headers.
        """
        return 0, 0

    def offer(self, segment: Segment) -> int:
        return 0

    def withdraw(self, segment: Segment) -> None:
        pass  # Nothing is shared.

    def offered(self, number: int) -> memoryview | None:
        return None

    def handOver(self, number: int, descriptor: int) -> bool:
        return False

    def handedOver(self, number: int) -> int | None:
        return None

    def peerProcess(self) -> int:
        return 0

    def rouse(self) -> bool | None:
        """
        Check a sleeping path that may have been woken.

        @return: Whether there is something to do; L{None} if there is nothing, or not yet, but it was woken.
        """
        return self.pending()

    def holdBack(self, held: bool) -> None:
        """
        Make L{post} refuse all records, or accept them again.

        @param held: Whether connection management waits for room.
        """
        raise NotImplementedError

    def sendManagement(self, attribute: int, body: bytes, transaction: int = 0) -> None:
        # IBTA vol. 1 13.4: a MAD has 256 octets, of which the 24 of the header are left out.  Between two
        # processes only the attribute differs, and the transaction ID follows from the communication IDs in
        # the body.
        record = MANAGEMENT_HEADER.pack(attribute, 0) + body
        management = self.table.get(GSI_QPN)
        if management is None:
            # lost() has cleared the table.
            return
        if management.waiting or not self.alive or not self.postReserved(MANAGEMENT, record, False):
            management.send(record)

    def unsent(self) -> int:
        management = self.table.get(GSI_QPN)
        return 0 if management is None else len(management.waiting)

    def completeTo(self, position: int) -> int:
        """
        Complete requests: the peer has consumed everything before C{position}.

        @return: How many were completed.
        """
        n = 0
        waiting = self.unacknowledged
        while waiting and waiting[0][0] <= position:
            reached, requester = waiting.popleft()
            requester.acknowledged(reached)
            n += 1
        return n

    # -- refusals

    def refuse(self, word: int, syndrome: int, position: int) -> bool:
        """
        Refuse a record, and drop the requester's later ones until it resumes.

        @param position: The position in the medium after that record.
        @return: Whether the refusal is published; if not, it is kept in C{owed}, and nothing more may be
            consumed first.
        """
        number = word & QPN_MASK
        entry = self.table.get(number)
        # IBTA vol. 1 9.6: HCAs drop a packet for a queue pair that does not exist, and the requester finds
        # out by its timeout.  Here the peer is a living process, so it is notified at once.
        target = ABSENT_WORD
        if entry is not None:
            target = ACKNOWLEDGE << 24 | entry.remote
            # Unless the queue pair was closed while it refused.  One connected to itself has the twin as
            # its path.
            if entry.path is self or (self.twin is not None and entry.path is self.twin):
                self.table[number] = Refusing(self, entry)
        elif syndrome == ABSENT:
            if self.absent.get(number):
                return True
            # A peer chooses the numbers, so the table is bounded; the oldest is evicted, whose requester is
            # refused once more at worst.
            if len(self.absent) >= ABSENT_NUMBERS:
                self.absent.popitem(False)
            self.absent[number] = True
        return self._publishRefusal(target, syndrome, number, position)

    def _publishRefusal(self, target: int, syndrome: int, number: int, position: int) -> bool:
        body = REFUSAL.pack(syndrome, number, position)
        if self.postReserved(target, body, True):
            self.owed = None
            return True
        self.owed = (target, syndrome | number << 8, position)
        return False

    def payOwed(self) -> bool:
        """
        Publish the refusal that found no room.

        @return: Whether nothing is owed any more.
        """
        if self.owed is None:
            return True
        target, code, position = self.owed
        return self._publishRefusal(target, code & 0xFF, code >> 8, position)

    def unknown(self, word: int, buffer: Buffer, start: int, stop: int) -> int:
        """
        Receive a record for a queue pair number that is not in the table.

        @return: The syndrome to refuse it with, or 0.
        """
        if not self.alive:
            # The path was lost in an upcall while records were being delivered.
            return 0
        opcode, number = word >> 24, word & QPN_MASK
        if opcode & UNRELIABLE:
            # A datagram needs no connection: its queue pair belongs to the device and to no path (IBTA vol.
            # 1 9.8.3).
            if isDatagram(opcode) and number == SMI_QPN:
                takeMAD(self, number, opcode, buffer, start, stop)
            elif isDatagram(opcode):
                self.fabric.owner.datagramReceived(self, opcode, number, buffer, start, stop)
            else:
                self.fabric.count("absent_queue_pair")
            # IBTA vol. 1 9.8.2: unreliable service drops without notice.
            return 0
        if opcode == ACKNOWLEDGE and number == 0 and stop - start == REFUSAL.size:
            _, remote, _ = REFUSAL.unpack_from(buffer, start)
            # A refusal as absent cannot name the requester, whose number the refusing side does not know:
            # it is found by the number that it sent to.
            requester = self.requesters.get(remote)
            if requester is not None:
                requester.delivered(ACKNOWLEDGE, buffer, start, stop)
            return 0
        if opcode == RESUME:
            self.absent.pop(number, None)
            return 0
        if opcode & ~SOLICITED == SEND_ONLY and self.absent.get(number) is False:
            return 0
        self.fabric.count("absent_queue_pair")
        # A response is never refused: nothing would be sent again, and two sides could refuse refusals for
        # ever.  Queue pairs 0 and 1 take no connected requests at all.
        return 0 if opcode in RESPONSES or number < 2 else ABSENT

    # -- the end

    def drain(self) -> None:
        """
        Deliver everything that a lost peer has published.

        An exception of one consumer does not keep the others from their records; the first is raised at the
        end.
        """
        failure: Exception | None = None
        # Bounded by what the medium holds once: the peer may live and keep writing.  Records have at least 64
        # bytes; completions and waiters count besides, as progress() counts them.
        left = limits.RING // 64 + len(self.unacknowledged) + len(self.waiting)
        while left > 0:
            try:
                n = self.progress(min(left, limits.RECORDS_PER_TURN))
                if not n:
                    break
                left -= n
            except RingError:
                self.fabric.count("ring_errors")
                break
            except Exception as error:
                left -= 1
                failure = failure or error
        if failure is not None:
            raise failure

    def lost(self, reason: PathLostError) -> None:
        """
        Notify every queue pair, since the peer is gone.

        An exception of one consumer does not keep the others from being notified; the first is raised at
        the end.
        """
        self.alive = False
        try:
            notifyAll([partial(queuePair.pathLost, reason) for queuePair in self.queuePairs()])
        finally:
            self.table.clear()
            self.waiting.clear()
            self.unacknowledged.clear()
            self.requesters.clear()
            self.twin = None


classImplements(RecordPath, ISharedMemoryPath, ITwinPath)
