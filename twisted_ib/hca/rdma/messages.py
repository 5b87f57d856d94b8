"""
One connection of messages without Twisted's faces: messages and requests out, messages in,
and the end.

A L{Messages} is the consumer of a queue pair with work queues, and the place where these
complete.  Receives are promises: while the protocol reads there are always some, and none
while it does not, so that the peer is answered RNR and asks again.  What the send queue has
no place for waits here, in order.

Nothing is told from within the core: what completed, what broke and what has room is
remembered, and told at the end of the batch.  What Twisted calls a transport stands on top
of it (L{twisted_ib.hca.rdma.transport}).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from twisted_ib import limits
from twisted_ib.errors import (
    HCAError,
    MemoryAccessError,
    MemoryRegionError,
    PathLostError,
    QueuePairError,
    ResourceLimitError,
)
from twisted_ib.hca.core.completion import WCStatus, WorkCompletion
from twisted_ib.hca.core.memory import LOCAL_WRITE, MemoryRegion
from twisted_ib.hca.core.requests import SGE, Capabilities, SendRequest
from twisted_ib.hca.core.work import WorkQueues
from twisted_ib.hca.rdma.asked import Asked
from twisted_ib.hca.rdma.region import RDMARegion

if TYPE_CHECKING:
    from twisted_ib.hca.channel import DeviceChannel
    from twisted_ib.hca.core.queuepair import QueuePair

_RECEIVES = limits.RDMA_RECEIVES
#: What the DREQ says of a connection that is not closed but given up.
ABORTED = b"aborted"
_ENDED = MemoryRegionError("the connection has ended")


class Ended(HCAError):
    """
    The peer closed the connection in order.
    """


class Messages:
    """
    Messages over one queue pair.

    @ivar channel: The device in its reactor.
    @ivar thread: The thread that may use it.
    @ivar maxMessageSize: The longest message each way, in bytes.
    @ivar privateData: What this end says in its REQ or REP.
    @ivar peerPrivateData: What the peer said in its own.
    @ivar connection: The CM's side of this connection.
    @ivar reading: Whether the application wants messages.
    @ivar attached: Whether there is an application at all.
    @ivar held: What came while it did not: pairs of the immediate (or L{None}) and the
        message, or how many bytes were written; L{None} when there is nothing.
    @ivar heldBytes: Bytes of those messages.
    @ivar corked: Whether this turn's C{endOfBatch} is still to come.
    @ivar stuck: Whether the medium or the peer does not take what was posted, for now.
    @ivar loss: Why the connection is over, until the application is told.
    @ivar asked: The requests whose end is not told, by number.
    @ivar waiting: What the send queue has no place for: tuples of a request or L{None}, the
        bytes of a message, their number, the immediate, and the number in C{asked} or L{None}.
        L{None} when there is nothing.
    """

    __slots__ = (
        "_completions",
        "_numbers",
        "_regions",
        "asked",
        "attached",
        "channel",
        "connection",
        "corked",
        "held",
        "heldBytes",
        "loss",
        "maxMessageSize",
        "pd",
        "peerPrivateData",
        "privateData",
        "queuePair",
        "reading",
        "stuck",
        "thread",
        "waiting",
        "work",
    )

    def __init__(self, channel: DeviceChannel, maxMessageSize: int, privateData: bytes) -> None:
        """
        Make the queue pair.

        @raise ResourceLimitError: There are too many.
        """
        device = channel.device
        self.channel = channel
        self.thread = device.thread
        self.maxMessageSize = maxMessageSize
        self.privateData = privateData
        self.peerPrivateData = b""
        self.connection: Any = None
        self.reading = False
        self.attached = True
        self.held: deque[tuple[int | None, bytes | int]] | None = None
        self.heldBytes = 0
        self.corked = self.stuck = False
        self.loss: Exception | None = None
        self.asked: dict[int, Asked] = {}
        self.waiting: deque[tuple[SendRequest | None, Any, int, int | None, int | None]] | None = None
        self._completions: deque[WorkCompletion] = deque()
        self._numbers = 0
        self._regions: set[RDMARegion] | None = None
        self.queuePair: QueuePair = device.createQueuePair(self)
        self.queuePair.maxMessage = maxMessageSize
        try:
            self.pd = device.memory.allocateDomain()
        except HCAError:
            self.queuePair.close()
            raise
        capabilities = Capabilities(limits.RDMA_SENDS, 0, 1, 0, 0)
        self.work = WorkQueues(self.queuePair, self.pd, self, self, device.timers, capabilities)  # type: ignore[arg-type]
        # What comes before there is a protocol is held for it.
        self.queuePair.posted = _RECEIVES

    # -- what the transport implements

    bufferSize: int

    def deliver(self, immediate: int | None, message: bytes | int) -> None:
        """
        Hand a message, or how many bytes were written, to the application.
        """
        raise NotImplementedError

    def lost(self, reason: Exception) -> None:
        """
        Tell the application that the connection is over: L{Ended}, or it broke.
        """
        raise NotImplementedError

    def drained(self) -> None:
        """
        Nothing waits, and the medium has taken everything.
        """
        raise NotImplementedError

    def filled(self) -> None:
        """
        The medium, or the peer, does not take more for now.
        """
        raise NotImplementedError

    def usable(self) -> bool:
        """
        @return: Whether the application may still ask for something.
        """
        raise NotImplementedError

    def discarding(self) -> bool:
        """
        @return: Whether the application has closed and takes no messages any more.
        """
        raise NotImplementedError

    def checkCaller(self) -> None:
        """
        @raise WrongThreadError: This is not the reactor's thread.
        """
        raise NotImplementedError

    def forked(self) -> None:
        """
        In a forked child: no thread may use this.
        """
        self.thread = 0

    # -- the batch

    def cork(self) -> None:
        """
        Have L{endOfBatch} called.
        """
        if not self.corked:
            self.corked = True
            self.channel.device.markDirty(self)

    def resume(self) -> None:
        """
        The send queue has room, or has taken everything, or is done: go on, but not from
        within it.
        """
        self.stuck = False
        self.cork()

    def endOfBatch(self) -> None:
        """
        The turn is over: tell what happened, send what waits.
        """
        self.corked = False
        if self._completions:
            self.tellCompletions()
        if self.held is not None and self.reading:
            self.read()
        if self.loss is not None:
            self._over()
        elif not self.corked and self.queuePair.path is not None:
            if self.waiting is not None:
                self.flush()
            if self.waiting is None and not self.stuck:
                self.drained()

    # -- sending

    def post(
        self, payload: Any, length: int, immediate: int | None = None, number: int | None = None
    ) -> None:
        """
        Send a message, or let it wait.

        @param payload: Bytes, or a list of them.
        @param length: How many.
        @param number: In C{asked}, if somebody waits for the end.
        """
        if self.waiting is None:
            try:
                if not self.work.postInline(payload, length, immediate, number):
                    self.stuck = True
                    self.filled()
                return
            except ResourceLimitError:
                pass
            except QueuePairError:
                self._unposted(number)
                return
        self._wait((None, payload, length, immediate, number))

    def _wait(self, entry: tuple[SendRequest | None, Any, int, int | None, int | None]) -> None:
        """
        Let something wait for a place in the send queue.
        """
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(entry)
        self.filled()

    def flush(self) -> None:
        """
        Post what waits, as far as there are places.
        """
        waiting = self.waiting
        assert waiting is not None
        left = limits.RDMA_SENDS_PER_FLUSH
        while waiting:
            if not left:
                self.cork()  # Others have a turn.
                return
            if not self.work.canPost():
                return
            left -= 1
            request, payload, length, immediate, number = waiting.popleft()
            if number is not None and self.asked[number].deferred is None:
                self._forget(number)  # Cancelled before it left.
                continue
            self.waiting = None
            try:
                if request is not None:
                    self._postRequest(request, number)
                else:
                    self.post(payload, length, immediate, number)
            finally:
                self.waiting = waiting
            if self.queuePair.path is None:
                return
        self.waiting = None

    def ask(self, asked: Asked, **fields: Any) -> Deferred[Any]:
        """
        Post a request whose end somebody wants to know.

        @param fields: Of its L{SendRequest}.
        @return: What fires then.
        @raise QueuePairError: One of them does not fit.
        """
        deferred = asked.deferred
        assert deferred is not None
        self._numbers = number = self._numbers + 1
        self.asked[number] = asked
        if not self.usable():
            self._unposted(number)
            return deferred
        try:
            request = SendRequest(number, **fields)
            request.check(1)
        except BaseException:
            self._forget(number)
            raise
        if self.waiting is not None or not self.work.canPost():
            self._wait((request, None, 0, None, number))
        else:
            self._postRequest(request, number)
        return deferred

    def askSend(self, asked: Asked, payload: bytes, immediate: int | None) -> Deferred[Any]:
        """
        Post a message whose end somebody wants to know.

        @return: What fires then.
        """
        deferred = asked.deferred
        assert deferred is not None
        self._numbers = number = self._numbers + 1
        self.asked[number] = asked
        if self.usable():
            self.post(payload, len(payload), immediate, number)
        else:
            self._unposted(number)
        return deferred

    def _postRequest(self, request: SendRequest, number: int | None) -> None:
        """
        Post a request for which there is a place.
        """
        try:
            self.work.postSend(request)
        except QueuePairError as error:
            self._refused(number, error)

    def _unposted(self, number: int | None) -> None:
        """
        Something could not be posted any more.
        """
        if number is not None:
            asked = self.asked[number]
            self._forget(number)
            asked.failed(WCStatus.WR_FLUSH_ERR)
        self.cork()

    def _refused(self, number: int | None, reason: Exception) -> None:
        """
        A request can not be posted on this connection at all.
        """
        assert number is not None
        asked = self.asked[number]
        self._forget(number)
        asked.refused(reason)

    def _forget(self, number: int) -> None:
        """
        A request is over.
        """
        scratch = self.asked.pop(number).scratch
        if scratch is not None and not self.channel.device.closed:
            self.channel.device.memory.deregister(scratch)

    def discard(self) -> None:
        """
        Send nothing of what waits; who waits for its end hears with all others.
        """
        self.waiting = None

    # -- completions (where the work queues complete)

    def push(self, completion: WorkCompletion, solicited: bool = False) -> bool:
        """
        A request ended; it is told at the end of the batch.
        """
        self._completions.append(completion)
        self.cork()
        return True

    def hold(self, kind: str) -> None:
        """
        The work queues complete here: see L{twisted_ib.hca.core.held.Held}.
        """

    def release(self, kind: str) -> None:
        """
        They do no more.
        """

    def tellCompletions(self) -> None:
        """
        Fire the Deferreds of what ended, in the order of posting.
        """
        completions = self._completions
        while completions:
            completion = completions.popleft()
            number = completion.workRequestID
            asked = self.asked.get(number)
            if asked is not None:
                self._forget(number)
                asked.completed(completion)

    def _failAll(self) -> None:
        """
        The connection is over: so is everything asked for, after what is known to have ended.
        """
        self.tellCompletions()
        self.waiting = None
        while self.asked:
            number = next(iter(self.asked))
            asked = self.asked[number]
            self._forget(number)
            asked.failed(WCStatus.WR_FLUSH_ERR)

    # -- memory

    def register(self, sizeOrBuffer: Any, access: int | None) -> RDMARegion:
        """
        Register memory: see L{twisted_ib.interfaces.IRDMATransport.registerMemory}.
        """
        device = self.channel.device
        if self.queuePair.device is None:
            raise _ENDED
        if isinstance(sizeOrBuffer, int):
            if sizeOrBuffer < 1:
                raise MemoryRegionError(f"there is no memory of {sizeOrBuffer} bytes")
            rights = LOCAL_WRITE if access is None else int(access)
            found = device.allocateMemory(sizeOrBuffer, rights, self.pd)
        else:
            if access is None:
                access = 0 if memoryview(sizeOrBuffer).readonly else LOCAL_WRITE
            found = device.memory.register(sizeOrBuffer, int(access), self.pd)
        region = RDMARegion(found, self._closeRegion)
        if self._regions is None:
            self._regions = set()
        self._regions.add(region)
        return region

    def _closeRegion(self, region: RDMARegion, found: MemoryRegion) -> None:
        """
        Take the rights on a region back.
        """
        self.checkCaller()
        if self._regions is not None:
            self._regions.discard(region)
        self.channel.device.deregisterMemory(found)

    def scratch(self, asked: Asked, access: int = 0) -> Sequence[SGE]:
        """
        Register the memory of one request.

        @return: Its name, if there is any of it.
        """
        length = len(asked.buffer)
        if not length or self.queuePair.path is None:
            return ()
        asked.scratch = region = self.channel.device.memory.register(asked.buffer, access, self.pd)
        return (SGE(region.address, length, region.localKey),)

    def pieces(self, region: RDMARegion, offset: int, length: int | None) -> Sequence[SGE]:
        """
        Name a part of a region.

        @raise MemoryAccessError: It is none of this connection, or has no such bytes.
        """
        if not region.closed and (self._regions is None or region not in self._regions):
            raise MemoryAccessError("this memory region belongs to another connection")
        piece = region.piece(offset, length)
        return (piece,) if piece.length else ()

    # -- receiving (consumer of the queue pair)

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        A message arrived: see L{QueuePair.delivered}.
        """
        self.immediateReceived(None, buffer, start, stop)

    def immediateReceived(self, immediate: int | None, buffer: Any, start: int, stop: int) -> None:
        """
        A message arrived, with immediate data.
        """
        message = buffer[start:stop]
        self._arrived(immediate, message if message.__class__ is bytes else bytes(message))

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        """
        The peer wrote, with immediate data.
        """
        self._arrived(immediate, length)

    def _arrived(self, immediate: int | None, message: bytes | int) -> None:
        """
        Deliver what arrived, or hold it.  What completed before it is told before it.
        """
        if self._completions:
            self.tellCompletions()
        if not self.reading:
            self._hold(immediate, message)
            return
        self.queuePair.posted = _RECEIVES
        if self.held is None:
            self.deliver(immediate, message)
        else:
            self._hold(immediate, message)

    def _hold(self, immediate: int | None, message: bytes | int) -> None:
        """
        Keep what the application does not want yet; after it has closed nobody will.
        """
        if not self.attached or self.discarding():
            self.queuePair.posted = _RECEIVES
            return
        if self.held is None:
            self.held = deque()
        self.held.append((immediate, message))
        if message.__class__ is bytes:
            self.heldBytes += len(message)
            self.channel.device.hold(self, len(message))

    def read(self) -> None:
        """
        Deliver what was held, while the application wants it.
        """
        held = self.held
        while held and self.reading:
            immediate, message = held.popleft()
            if message.__class__ is bytes:
                self.heldBytes -= len(message)
                self.channel.device.hold(self, -len(message))
            self.deliver(immediate, message)
        if not held and self.held is held:
            self.held = None

    def readAgain(self) -> None:
        """
        The application reads again: what was held comes at the end of the batch.
        """
        self.reading = True
        self.queuePair.posted = _RECEIVES
        if self.held is not None or self.loss is not None:
            self.cork()

    def overheld(self) -> None:
        """
        This connection holds most of what there is no more memory for.
        """
        self._broken(ResourceLimitError("too many bytes wait for a protocol that does not read"))

    def _dropHeld(self) -> None:
        """
        Forget what was held.
        """
        self.held = None
        if self.heldBytes:
            self.channel.device.hold(self, -self.heldBytes)
            self.heldBytes = 0

    # -- the end

    def peerDisconnected(self, connection: Any) -> None:
        """
        The CM says that the peer disconnected (DREQ), or confirmed ours.
        """
        if connection.farewell.startswith(ABORTED):
            self._broken(PathLostError("the peer aborted the connection"), False)
        else:
            self._broken(Ended("the peer closed the connection"), False)

    def rejected(self, connection: Any, rejection: Any) -> None:
        """
        The CM says that the peer does not want the REP.
        """
        self._broken(PathLostError("the peer did not want the connection after all"), False)

    def unreachable(self, connection: Any) -> None:
        """
        The CM says that the peer does not answer the REP.
        """
        self._broken(PathLostError("the peer did not answer"), False)

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in error: see L{QueuePair.fail}.
        """
        self._broken(reason, not isinstance(reason, PathLostError))

    def _broken(self, reason: Exception, disconnect: bool = True) -> None:
        """
        The connection is over; it is told at the end of the batch.

        @param disconnect: Whether the peer may not know.
        """
        if self.loss is None:
            self.loss = reason
        if not disconnect:
            self.connection = None
        self.cork()

    def _over(self) -> None:
        """
        Tell the end, behind what was held.  As with a stream, the application hears of a peer
        that closed when it reads, or when it sends or closes itself.
        """
        loss = self.loss
        assert loss is not None
        self._closeQueuePair()
        if not self.attached:
            return
        if self.held and self.reading:
            return  # It is too early, or the application paused again.
        if isinstance(loss, Ended) and not self.reading and not self.discarding():
            return
        self._dropHeld()
        self.lost(loss)

    def _closeQueuePair(self, farewell: bytes = ABORTED) -> None:
        """
        Nothing more is sent or taken; what was asked for fails, memory is given back, and the
        peer is told, if it may not know.
        """
        device, queuePair = self.channel.device, self.queuePair
        connection, self.connection = self.connection, None
        if queuePair.device is not None:
            queuePair.close()
            self._failAll()
            for region in list(self._regions or ()):
                region.close()
            device.memory.deallocateDomain(self.pd)
        if connection is not None:
            device.disconnect(connection, farewell)

    def reset(self) -> None:
        """
        End the connection so that the peer sees it as lost.
        """
        self._dropHeld()
        self._closeQueuePair()

    def detach(self) -> None:
        """
        The application's part is over: end the connection in order, or, if it broke, so that
        the peer knows.
        """
        self.attached = False
        self.reading = False
        self._dropHeld()
        self._closeQueuePair(b"" if self.loss is None else ABORTED)

    def giveBack(self) -> None:
        """
        The handshake failed: destroy the queue pair.
        """
        self.connection = None
        self._closeQueuePair()
