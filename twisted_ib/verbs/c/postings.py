"""
Requests that C programs post, in memory of C: a program records them without Python and its lock, by
C{building/postings.c}, and Python takes all that are there at once.

C records only what a queue is sure to take: each queue has a limit of requests, which follows its room.
Whatever else a program posts or calls comes to Python, which takes what was recorded before it.  So does the
end of the process.  A thread that posts takes the records itself, unless another is in Python to poll
or to post: that one does.  A receive in the place of one that a poll has found waits for the thread's next
poll, or for a message that needs it.  And a send amid a burst waits for the next one, or for a poll: all of
them are published at once.  If neither comes, the thread that serves peers takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from _twisted_ib_verbs import ffi, lib

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import HCAError, QueuePairError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.queues.receives import SGE, ReceiveRequest
from twisted_ib.hca.queues.requests import SendOpcode, SendRequest
from twisted_ib.hca.services.operations.message import PULL_LEAST
from twisted_ib.hca.services.operations.send import PostedSend
from twisted_ib.hca.services.operations.write import PostedWrite
from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.c.pointers import CData, addressOf
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.core.progress import HubProgress
from twisted_ib.verbs.pyverbs.base.posting import INLINE, INVALIDATING, OPCODES

if TYPE_CHECKING:
    from _cffi_backend import buffer as Buffer

#: C{struct twisted_ib_record}, without what few requests have, but with the C{struct ibv_sge} behind it, or
#: what else is there; the rest; and that alone.
_RECORD: Final = Struct("=2Q24xI4x3I8xIQII")
_REST: Final = Struct("=16x3Q4xI12x2I4x")
_PIECE: Final = Struct("=QII")
_readRecord: Final[Callable[[Buffer, int], tuple[int, ...]]] = _RECORD.unpack_from
_readRest: Final[Callable[[Buffer, int], tuple[int, ...]]] = _REST.unpack_from
_RECORD_BYTES: Final = _REST.size
_PIECE_BYTES: Final = _PIECE.size
#: The remote address and key of a record; and the flag of a short WRITE, as C{postings.c} has it.
_REMOTE: Final = Struct("=16xQ36xI")
_SHORT_WRITE: Final = 1 << 30
_readRemote: Final[Callable[[Buffer, int], tuple[int, int]]] = _REMOTE.unpack_from
_ERR: Final = QPState.ERR
_RESET: Final = QPState.RESET
_RTS: Final = QPState.RTS
#: More requests than any queue has taken.
_NEVER: Final = 1 << 64
#: Operations that C records, and those that want a right to READs.
_READING: Final = frozenset(
    (SendOpcode.RDMA_READ, SendOpcode.ATOMIC_CMP_AND_SWP, SendOpcode.ATOMIC_FETCH_AND_ADD)
)
_RECORDED: Final = _READING | {
    SendOpcode.RDMA_WRITE,
    SendOpcode.RDMA_WRITE_WITH_IMM,
    SendOpcode.SEND,
    SendOpcode.SEND_WITH_IMM,
    SendOpcode.SEND_WITH_INV,
}

#: The hub, as its compiled half knows it.
_hub: Final[HubProgress] = hub
_swap: Final[Callable[[], int]] = lib.twisted_ib_swap
#: The records; their C{fill} says whether there are any.
posting: Final[CData] = lib.twisted_ib_posting
# What is read of the last record may reach beyond its end.
_memory: Final = [ffi.new("unsigned char[]", limits.POSTED + _PIECE_BYTES) for _ in range(2)]
_buffers: Final[list[Buffer]] = [ffi.buffer(each) for each in _memory]
posting.buffers = _memory
posting.size, posting.least = limits.POSTED, PULL_LEAST


@mypyc_attr(allow_interpreted_subclasses=True)
class PostedQueue:
    """
    A work queue that C posts to.  In a C{with} statement it does not: the hub's lock is held, and all that
    was recorded is posted.

    @ivar taken: requests of it that Python has taken from the records, ever.
    @ivar renewal: at how many of these its limit is set anew.
    @ivar isShort: whether its limit lets C record no more than half as many.
    @ivar isFollowed: whether each of its completions sets the limit of a short queue anew: see L{completed}.
    @ivar suspensions: C{with} statements that are in force; a queue that is closed has one more, for ever.
    @ivar accept: accepts several requests; if it has not L{room} for all, or its state forbids them, none.
    """

    accept: Callable[[Any], None]

    def __init__(self, structure: CData, elements: int, depth: int) -> None:
        """
        @param structure: its C{struct twisted_ib_queue}.
        @param elements: of a request, at most.
        @param depth: how many requests it holds.
        """
        self._structure = structure
        structure.elements = elements
        # Of one request it is always short.
        self._few, self.isShort, self.isFollowed = (depth + 1) // 2, True, depth == 1
        self.taken = self.renewal = self.suspensions = 0
        _queues[addressOf(structure)] = self

    def room(self) -> int:
        """
        @return: how many requests it is sure to take now; below 0 if it has more than its depth.
        """
        raise NotImplementedError

    def open(self) -> None:
        """
        Let C record as many requests as there is room for, unless it is suspended.  The hub's lock is held.
        """
        if self.suspensions:
            return
        room = max(0, self.room())
        # That of a queue which is nearly full follows its completions: see rings.py.  Requests that are taken
        # do not change it, as they have the room that it was set by.
        self.isShort = isShort = room <= self._few
        self.renewal = _NEVER if isShort and self.isFollowed else self.taken + (room + 1) // 2
        self._structure.limit = self.taken + room

    def fail(self, error: HCAError) -> None:
        """
        A request that was recorded cannot be posted.
        """

    def __enter__(self) -> None:
        hub.enter()
        try:
            self._suspend()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            self.suspensions -= 1
            self.open()
        finally:
            hub.leave()

    def _suspend(self) -> None:
        # Before settle(), which opens what it has taken from.
        self.suspensions += 1
        lib.twisted_ib_suspend(self._structure)
        settle()

    def close(self) -> None:
        """
        C posts to it no more.
        """
        with hub:
            try:
                self._suspend()
            finally:
                _queues.pop(addressOf(self._structure), None)


#: The queues by the addresses of their structures.
_queues: Final[dict[int, PostedQueue]] = {}
#: And as completions have them: by a queue pair's number, and whether it is for receives.  Queue pairs of two
#: devices may have the same number: then the limit of one of both follows its room only when it posts.
completed: Final[dict[tuple[int, bool], PostedQueue]] = {}


@mypyc_attr(allow_interpreted_subclasses=True)
class _QueuePairQueue(PostedQueue):
    # One of a queue pair's.
    def __init__(self, qp: verbs.QP, structure: CData, elements: int, depth: int) -> None:
        super().__init__(structure, elements, depth)
        self._work = qp._work
        self.isFollowed = True

    def fail(self, error: HCAError) -> None:
        self._work.queuePair.fail(error)


@mypyc_attr(allow_interpreted_subclasses=True)
class SendQueue(_QueuePairQueue):
    """
    The send queue of a connection.
    """

    def __init__(self, qp: verbs.QP, structure: CData) -> None:
        sizes = qp._work.capabilities
        super().__init__(qp, structure, sizes.pieces, sizes.sends)
        structure.inlined = sizes.inline
        own = _RECORDED.intersection(qp._work.operations)
        self._plain = sum(1 << each for each in own - _READING)
        self._all = sum(1 << each for each in own)
        # As the structure has it, which takes longer to write to.
        self._operations = 0

    def room(self) -> int:
        work = self._work
        if work.queuePair.state < _RTS:
            return 0
        # A reset makes a new one.
        requester = work.requester
        self.accept = requester.enqueueSends
        self._enqueue = requester.enqueue
        operations = self._all if work.attributes.reads else self._plain
        if operations != self._operations:
            self._structure.operations = self._operations = operations
        return requester.room()

    def acceptOther(self, requests: Sequence[SendRequest]) -> None:
        """
        As L{accept}, with one that is no L{PostedSend}.
        """
        for each in requests:
            self._enqueue(each, True)


@mypyc_attr(allow_interpreted_subclasses=True)
class ReceiveQueue(_QueuePairQueue):
    """
    The receive queue of a queue pair, if that has its own.
    """

    def __init__(self, qp: verbs.QP, structure: CData) -> None:
        sizes = qp._work.capabilities
        super().__init__(qp, structure, sizes.receivePieces, sizes.receives)
        self.accept = qp._work.postReceives
        self._isUrgent = False

    def room(self) -> int:
        work = self._work
        state = work.queuePair.state
        isUrgent = state is _ERR
        if isUrgent is not self._isUrgent:
            self._structure.urgent = self._isUrgent = isUrgent
        if state is _RESET:
            return 0
        return work.responder.room()


class SharedQueue(PostedQueue):
    """
    A shared receive queue.
    """

    def __init__(self, srq: verbs.SRQ, structure: CData) -> None:
        self._core = core = srq._core
        super().__init__(structure, core.pieces, core.depth)
        self.accept = core.postPromised

    def room(self) -> int:
        # Of what is left to a poll the event of the limit knows nothing.
        self._structure.urgent = self._core.limit > 0
        return self._core.depth - len(self._core)


#: Requests that are posted at once, to which queue, and how; and what a receive is made of.
_Batch = tuple[PostedQueue, Callable[[Any], None], list[Any]]
_Later = tuple[PostedQueue, int, int, int, int, int, int]


def _failed(queue: PostedQueue, error: BaseException, first: BaseException | None) -> BaseException | None:
    # A request that was recorded is not posted; the error that the caller of settle() hears of, if any.
    try:
        queue.fail(QueuePairError(f"a posted request cannot be taken: {error}"))
    except BaseException as another:
        return first or another
    return first if isinstance(error, HCAError) else first or error


def _pieces(buffer: Buffer, record: int, count: int) -> list[SGE]:
    # Of a record: its elements, if they are not just one.
    start = record + _RECORD_BYTES
    return [SGE(*each) for each in _PIECE.iter_unpack(buffer[start : start + count * _PIECE_BYTES])]


def _sendRequest(buffer: Buffer, record: int, id: int, flags: int, count: int, length: int) -> SendRequest:
    # Of a record of any operation.
    remote, compare, swap, code, key, immediate = _readRest(buffer, record)
    request = SendRequest(id, OPCODES[code], (), flags, 0, remote, key, compare, swap)
    if flags & INLINE:
        start = record + _RECORD_BYTES
        request.inline = bytes(buffer[start : start + length])
    else:
        request.pieces = _pieces(buffer, record, count)
    if code in INVALIDATING:
        request.invalidateKey = immediate
    else:
        request.immediate = immediate
    return request


def _posted(
    buffer: Buffer, record: int, id: int, flags: int, length: int, place: int, octets: int, key: int
) -> PostedWrite:
    # Of the record of a short WRITE.
    remote = _readRemote(buffer, record)
    flags ^= _SHORT_WRITE
    if not flags & INLINE:
        return PostedWrite(id, flags, place, octets, key, None, remote)
    start = record + _RECORD_BYTES
    return PostedWrite(id, flags, 0, length, 0, buffer[start : start + length], remote)


def _received(buffer: Buffer, later: Iterable[_Later]) -> Iterator[_Batch]:
    # After the sends, for which a peer may wait: nothing is received meanwhile, and queues have no order.
    receives: dict[PostedQueue, list[ReceiveRequest]] = {}
    for queue, id, count, record, place, octets, key in later:
        pieces = [SGE(place, octets, key)] if count == 1 else _pieces(buffer, record, count)
        receives.setdefault(queue, []).append(ReceiveRequest(id, pieces))
    for queue, requests in receives.items():
        yield queue, queue.accept, requests


def settle() -> None:
    """
    Post what was recorded.  An error that no request can have is raised when all others are posted.
    """
    if not posting.fill:
        return
    depth = -1
    try:
        if not _hub.lock.acquire(False):
            _hub.lockQueue.acquire(_hub.lock)
        depth = _hub._depth
        _hub._depth = depth + 1
        if _hub._dead:
            _hub.closes.closePending()
        unexpected: BaseException | None = None
        buffer, end = _buffers[posting.turn], _swap()
        # What is posted at once, how, and to which queue.
        batches: list[_Batch] = []
        later: list[_Later] = []
        queue: PostedQueue | None = None
        run: list[Any]
        at = before = 0
        while at < end:
            address, id, size, flags, count, length, isWhole, place, octets, key = _readRecord(buffer, at)
            at += size
            if address != before:
                before, queue, run = address, _queues.get(address), []
            if queue is None:
                pass  # Another thread has closed it.
            elif isWhole:
                if not run:
                    batches.append((queue, queue.accept, run))
                if flags & INLINE:
                    start = at - size + _RECORD_BYTES
                    run.append(PostedSend(id, flags, 0, length, 0, buffer[start : start + length]))
                else:
                    run.append(PostedSend(id, flags, place, octets, key, None))
            elif isinstance(queue, SendQueue):
                if flags & _SHORT_WRITE:
                    if not run:
                        batches.append((queue, queue.accept, run))
                    run.append(_posted(buffer, at - size, id, flags, length, place, octets, key))
                    continue
                request = _sendRequest(buffer, at - size, id, flags, count, length)
                batches.append((queue, queue.acceptOther, [request]))
                run = []
            elif at < end or later:
                later.append((queue, id, count, at - size, place, octets, key))
            else:
                pieces = [SGE(place, octets, key)] if count == 1 else _pieces(buffer, at - size, count)
                batches.append((queue, queue.accept, [ReceiveRequest(id, pieces)]))
        for queue, accept, requests in chain(batches, _received(buffer, later)) if later else batches:
            n = len(requests)
            # Each has its own error where they have not room together.
            for part in (requests,) if n == 1 or n <= queue.room() else [[each] for each in requests]:
                taken = queue.taken = queue.taken + len(part)
                try:
                    accept(part)
                    if taken >= queue.renewal:
                        queue.open()
                # The buffer is no more: also an interrupt in a program that is Python loses no other.
                except BaseException as error:
                    unexpected = _failed(queue, error, unexpected)
        if unexpected is not None:
            raise unexpected
    finally:
        HubProgress.leaveTo(_hub, depth)


# The process may end before the thread that was to take it.
hub.settle = settle
