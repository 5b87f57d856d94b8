"""
What the ways to a peer's HCA have in common, whatever carries the records.

A path knows the queue pairs that may be reached through it, and no others: a
peer cannot speak for another peer's queue pair.  Its table maps queue pair
numbers to whatever takes their records: the L{QueuePair}, a L{Refusing} while
requests are dropped after a refusal, or, for number 1, the management side.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from attrs import frozen

from twisted_ib import limits
from twisted_ib.errors import DeviceClosedError, PathLostError, RingError
from twisted_ib.hca.base.operation import (
    ABSENT,
    ABSENT_WORD,
    ACKNOWLEDGE,
    GSI_QPN,
    MANAGEMENT,
    MANAGEMENT_HEADER,
    QPN_MASK,
    REFUSAL,
    RESPONSES,
    RESUME,
    UNRELIABLE,
    isDatagram,
)
from twisted_ib.hca.fabric.base.management import Management
from twisted_ib.hca.wire.grh import guidGID

#: Queue pair numbers, unknown here, that a path remembers to have refused.
ABSENT_NUMBERS = 1024


@frozen
class PeerIdentity:
    """
    Who is at the other end of a path.

    @ivar guid: of its HCA.
    @ivar pid: of its process, as the kernel says.
    @ivar uid: of its process, as the kernel says.
    @ivar program: what it calls itself.
    """

    guid: int
    pid: int
    uid: int
    program: str

    @property
    def gid(self) -> int:
        """
        The GID that leads to it.
        """
        return guidGID(self.guid)


class Refusing:
    """
    Stands in a path's table for a queue pair that refused a request: what was
    sent after the refused request is dropped until the requester resumes
    (IBTA vol. 1, 9.7.5.2.8, where sequence numbers do this).
    """

    __slots__ = ("path", "queuePair")

    def __init__(self, path: Path, queuePair: Any) -> None:
        """
        Refuse all but the requester's resuming.

        @param path: The path.
        @param queuePair: Who refused.
        """
        self.path = path
        self.queuePair = queuePair

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        Drop requests, pass responses on, and leave when the requester resumes.
        """
        if opcode == RESUME:
            self.path.table[self.queuePair.number] = self.queuePair
        elif opcode in RESPONSES:
            answer: int = self.queuePair.delivered(opcode, buffer, start, stop)
            return answer
        return 0


class _Parting:
    """
    A requester leaves.  If the peer refused what it sent, or does so when it comes to it,
    it must not wait for this requester to resume: it would drop what the next one sends to
    that number.
    """

    __slots__ = ("path", "remote")

    def __init__(self, path: Path, remote: int) -> None:
        """
        @param remote: The peer's queue pair number.
        """
        self.path = path
        self.remote = remote

    def resume(self) -> None:
        """
        Say so, behind all that it sent.
        """
        if not self.path.postReserved(RESUME << 24 | self.remote, b"", False):
            self.path.wantSpace(self)


class Path:
    """
    The way to one peer's HCA.

    @ivar fabric: The fabric that made this path.
    @ivar table: Who takes the records of which queue pair number.
    @ivar taker: Gives who takes the records of a queue pair number, from C{table}.
    @ivar peer: What is known of the peer (L{PeerIdentity} or the like).
    @ivar alive: Whether the peer can still be reached.
    @ivar waiting: Those who wait for room in the medium, first come first
        served, but connection management before all others; each has
        C{resume()}.  Who leaves is taken out.
    @ivar bell: Whether something was published that the peer was not told of.
    @ivar busy: Whether records are being taken: L{progress} does nothing then.
    @ivar unacknowledged: Pairs of position and work object, in order: whom to
        tell when the peer has taken the record before that position.
    @ivar requesters: By the peer's queue pair number: who is told that it does
        not exist.  Only requesters that keep what they sent are in here.
    @cvar retransmits: How often something was sent again; on fabrics of operations nothing is.
    @cvar messageBytes: The longest message of a stream that it carries well.
    @cvar inPackets: Whether what was refused comes again alone, and not its whole message.
    @ivar turns: Whose answers to the peer's READs have their turn, once there are any.
    @ivar twin: Of a path from an HCA to itself, the other end; else L{None}.
    """

    inPackets = False
    retransmits = 0
    messageBytes = limits.INLINE_RECORD

    __slots__ = (
        "absent",
        "alive",
        "bell",
        "busy",
        "fabric",
        "owed",
        "peer",
        "peerSocket",
        "requesters",
        "table",
        "taker",
        "turns",
        "twin",
        "unacknowledged",
        "waiting",
    )

    def __init__(self, fabric: Any, peer: Any) -> None:
        """
        Bind nobody yet.

        @param fabric: What the path belongs to.
        @param peer: The L{PeerIdentity} at its other end.
        """
        self.fabric = fabric
        self.peer = peer
        self.alive = True
        self.peerSocket: Any = None
        self.table: dict[int, Any] = {GSI_QPN: Management(self)}
        self.taker: Any = self.table.get
        self.absent: dict[int, None] = {}
        self.requesters: dict[int, Any] = {}
        self.twin: Any = None
        self.turns: Any = None
        self.waiting: OrderedDict[Any, None] = OrderedDict()
        self.unacknowledged: deque[tuple[int, Any]] = deque()
        self.owed: tuple[int, int, int] | None = None
        self.bell = self.busy = False

    # -- queue pairs

    @property
    def way(self) -> Path:
        """
        The path that was found for the queue pair whose path this is: this one, unless each has its own.
        """
        return self

    def bind(self, queuePair: Any, message: Any = None) -> Path:
        """
        From now on C{queuePair} takes the records of its number.  One that is connected
        to itself sends from this end and receives at the other one: its requests come
        there, and their refusals here.

        @param message: The REQ or REP of the peer, if it comes by one.
        @return: What the queue pair has as its path.
        """
        self._enter(queuePair)
        if self.twin is not None and queuePair.number == queuePair.remote:
            self.twin._enter(queuePair)
        return self

    def modified(self, queuePair: Any) -> None:
        """
        The state or the attributes of a queue pair that is bound have changed.
        """

    def prepareREQ(self, request: Any) -> None:
        """
        A REQ is about to be sent: say in it what a fabric of packets agrees on.

        @param request: the L{REQ<twisted_ib.hca.wire.cm.REQ>}, to be changed.
        """

    def prepareREP(self, reply: Any, request: Any) -> Any:
        """
        The same of a REP.

        @param reply: the L{REP<twisted_ib.hca.wire.cm.REP>}, to be changed.
        @param request: the REQ that it answers.
        @return: What it says, as a queue pair's C{proposal}; L{None} if that is nothing.
        """
        return None

    def _enter(self, queuePair: Any) -> None:
        number = queuePair.number
        if number in self.absent:
            # It refused as absent and the requester has not resumed yet.
            del self.absent[number]
            self.table[number] = Refusing(self, queuePair)
        else:
            self.table[number] = queuePair

    def unbind(self, queuePair: Any) -> None:
        """
        C{queuePair} takes nothing any more.
        """
        self.table.pop(queuePair.number, None)
        if self.twin is not None:
            self.twin.table.pop(queuePair.number, None)  # Numbers are an HCA's own.
        self.wantNoSpace(queuePair)
        remote = queuePair.remote
        if self.requesters.get(remote) is queuePair:
            del self.requesters[remote]
            if self.alive:
                _Parting(self, remote).resume()

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

    # -- down

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Publish one record.

        @param word: Operation and destination queue pair number.
        @param payload: Bytes-like, or a list of bytes-like objects.
        @param length: Bytes in C{payload}.
        @return: False if the medium has no room now.
        """
        raise NotImplementedError

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        """
        Publish a small record that may use the reserve.

        @param refusal: Whether it may use the last part of it too.
        @return: False if even the reserve has no room.
        """
        raise NotImplementedError

    def progress(self, budget: int) -> int:
        """
        Take what has arrived, let go on who waits for room, complete what the
        peer has taken.

        @param budget: How many records at most.
        @return: How many records were taken.
        @raise RingError: the peer broke the layout.
        """
        raise NotImplementedError

    def pending(self) -> bool:
        """
        @return: Whether L{progress} has something to do.
        """
        raise NotImplementedError

    def position(self) -> int:
        """
        @return: The position in the medium after the last record published.
        """
        raise NotImplementedError

    def offer(self, segment: Any) -> int:
        """
        Let the peer map a segment of registered memory, for reading.

        @return: The number that references name it by, or 0 if the bytes must
            travel in the records.
        """
        return 0

    def withdraw(self, segment: Any) -> None:
        """
        The peer need not map a segment any more; harmless if it was not offered.
        """

    def offered(self, number: int) -> memoryview | None:
        """
        @return: The segment that the peer offered under a number, or L{None}.
        """
        return None

    def rouse(self) -> bool:
        """
        Something may have happened to this path, which sleeps.

        @return: Whether there is something to do.
        """
        return self.pending()

    def wantSpace(self, waiter: Any) -> None:
        """
        Ask for C{waiter.resume()} when the medium has room again.
        """
        self.waiting[waiter] = None

    def wantNoSpace(self, waiter: Any) -> None:
        """
        C{waiter} leaves; harmless if it did not wait.
        """
        self.waiting.pop(waiter, None)

    def holdBack(self, held: bool) -> None:
        """
        Refuse what L{post} is given, or take it again.

        @param held: Whether connection management waits for room.
        """
        raise NotImplementedError

    def sendManagement(self, attribute: int, body: bytes) -> None:
        """
        Send a connection management message, now or when there is room.

        Beyond L{limits.MANAGEMENT_SENDS} it is lost, as it may be on a wire:
        connection management repeats what is not answered.

        @param body: The message without its MAD header, 232 bytes.
        """
        record = MANAGEMENT_HEADER.pack(attribute, 0) + body
        management = self.table.get(GSI_QPN)
        if management is None:
            return  # The path is lost.
        if management.waiting or not self.alive or not self.postReserved(MANAGEMENT, record, False):
            management.send(record)

    def unsent(self) -> bool:
        """
        @return: Whether connection management waits for room.
        """
        management = self.table.get(GSI_QPN)
        return management is not None and bool(management.waiting)

    def resumeWaiting(self) -> int:
        """
        Let those who wait go on, until one is refused: so would be the others.

        @return: How many there were.
        """
        n = 0
        waiting = self.waiting
        while waiting:
            waiter, _ = waiting.popitem(False)
            waiter.resume()
            n += 1
            if waiter in waiting:
                break
        return n

    def completeTo(self, position: int) -> int:
        """
        The peer has taken everything before C{position}: tell those who wait
        for that.

        @return: How many there were.
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
        Tell the requester that a record was not taken, and drop what it sent
        after it until it resumes.

        @param position: The position in the medium after that record.
        @return: Whether the refusal is published; if not, it is kept in
            C{owed} and nothing more may be taken before it is.
        """
        number = word & QPN_MASK
        entry = self.table.get(number)
        target = ABSENT_WORD
        if entry is not None:
            target = ACKNOWLEDGE << 24 | entry.remote
            # Not closed while it refused; who is connected to itself sends at the twin.
            if entry.path is self or (self.twin is not None and entry.path is self.twin):
                self.table[number] = Refusing(self, entry)
        elif syndrome == ABSENT:
            if number in self.absent:
                return True
            if len(self.absent) >= ABSENT_NUMBERS:
                del self.absent[next(iter(self.absent))]
            self.absent[number] = None
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

    def unknown(self, word: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record for a number that nobody has.

        @return: The syndrome to refuse it with, or 0.
        """
        if not self.alive:
            return 0  # Lost while records were being taken.
        opcode, number = word >> 24, word & QPN_MASK
        if opcode & UNRELIABLE:
            if isDatagram(opcode):
                self.fabric.owner.datagramReceived(self, opcode, number, buffer, start, stop)
            else:
                self.fabric.count("absent_queue_pair")
            return 0  # Nobody hears that these are lost.
        if opcode == ACKNOWLEDGE and number == 0 and stop - start == REFUSAL.size:
            _, remote, _ = REFUSAL.unpack_from(buffer, start)
            requester = self.requesters.get(remote)
            if requester is not None:
                requester.delivered(ACKNOWLEDGE, buffer, start, stop)
            return 0
        if opcode == RESUME:
            self.absent.pop(number, None)
            return 0
        self.fabric.count("absent_queue_pair")
        return 0 if opcode in RESPONSES or number < 2 else ABSENT

    # -- the end

    def drain(self) -> None:
        """
        The peer is gone: take everything that it has published, but no more
        than fits: it may live and go on.  One consumer's exception does not keep the others from what
        is theirs; the first is raised at the end.
        """
        failure: Exception | None = None
        # What progress counts: records of at least 64 bytes, completions, waiters.
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
        The peer is gone: fail every queue pair, those of refused requests too.
        One consumer's exception does not keep the others from hearing of it;
        the first is raised at the end.
        """
        self.alive = False
        failure: Exception | None = None
        for queuePair in self.queuePairs():
            try:
                queuePair.fail(reason)
            except Exception as error:
                failure = failure or error
        self.table.clear()
        self.waiting.clear()
        self.unacknowledged.clear()
        self.requesters.clear()
        self.twin = None
        if failure is not None:
            raise failure


class Forked:
    """
    Stands in a forked child for what is its parent's: a mapping, a
    socket, the other end of a path.
    """

    def _fail(self, *arguments: Any) -> Any:
        """
        @raise DeviceClosedError: always.
        """
        raise DeviceClosedError("this device belongs to the process that this one was forked from")

    __call__ = __getattr__ = __getitem__ = __setitem__ = _fail
