"""
A connection of frames over C{ib:}: what is read, what is lent, and the end.

Only here are memory regions: those of frames that this side has lent, until the peer has read them, and those
that a READ fills.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.dask import direct, messages
from twisted_ib.dask.memory import recycled
from twisted_ib.dask.messages import Place
from twisted_ib.errors import HCAError, WireError
from twisted_ib.hca.host.processmemory import addressOf
from twisted_ib.hca.memory.access import Access
from twisted_ib.interfaces import IRDMAProtocol

if TYPE_CHECKING:
    from twisted_ib.internet.region import RDMARegion
    from twisted_ib.rdma.transport import RDMATransport


@implementer(IRDMAProtocol, IPushProducer)
class FrameStream(Protocol):
    """
    A connection of frames.

    @ivar loss: Why it has ended; L{None} before.
    """

    transport: RDMATransport

    def __init__(self, events: asyncio.AbstractEventLoop, made: Callable[[FrameStream], object]) -> None:
        """
        @param made: Called once it is connected.
        """
        self.loss: BaseException | None = None
        self._events = events
        self._made = made
        self._paused = False
        self._closing = False
        # Messages that nobody has read yet; memory of each message that the peer has not read yet.
        self._unread: deque[memoryview] = deque()
        self._lent: deque[list[RDMARegion]] = deque()
        # At most a reader, a writer and a closer: see distributed.comm.Comm.
        self._waiters: set[asyncio.Future[None]] = set()

    # -- what happens

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)
        self._made(self)

    def messageReceived(self, view: memoryview) -> None:
        try:
            if messages.kindOf(view) == messages.READ:
                self._takeBack()
                return
            if self._closing:
                # Were it kept, the READ that close() waits for might be held up behind it.
                self._drop(view)
                return
        except WireError as error:
            self._end(error)
            return
        self._unread.append(view)
        if len(self._unread) == limits.DASK_UNREAD:
            self.transport.pauseProducing()
        self._wake()

    def _takeBack(self) -> None:
        if not self._lent:
            raise WireError("the peer gives back what nothing was lent for")
        for region in self._lent.popleft():
            region.close()
        self._wake()

    def _drop(self, message: memoryview) -> None:
        # The peer may close, too, and wait until what it has lent is read.
        isBody = messages.kindOf(message) == messages.BODY
        if isBody or any(isinstance(part, messages.Place) for part in messages.partsOf(message)):
            self.transport.write(messages.read())

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        # Nothing here may be written.
        self._end(WireError("the peer says that it has written memory"))

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        self._wake()

    def stopProducing(self) -> None:
        pass  # See C{connectionLost}.

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        # The regions were closed with the connection.
        self.loss = self.loss or reason.value
        self._lent.clear()
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self, reason: BaseException) -> None:
        self.loss = self.loss or reason
        self.transport.abortConnection()
        self._wake()

    # -- what its user does

    async def send(self, frames: Sequence[bytes | bytearray | memoryview]) -> None:
        """
        Send a message; its long frames must not change until the peer has read them.

        @param frames: Views are of bytes.
        @raise HCAError: The connection has ended, or closes, or there is no memory.
        """
        while (self._paused or len(self._lent) >= limits.DASK_LENT) and not self._isOver():
            await self._wait()
        self._check()
        if self._closing:
            raise HCAError("the connection was closed here")
        most = self.transport.maxMessageSize
        regions: list[RDMARegion] = []
        parts: list[messages.Frame] = list(frames)
        for number in messages.lent(list(map(len, frames)), most):
            parts[number] = self._lend(frames[number], regions)
        message = messages.frames(parts)
        if len(message) > most:
            message = messages.body(self._lend(message, regions))
        if regions:
            self._lent.append(regions)
        self.transport.write(message)

    def _lend(self, memory: bytes | bytearray | memoryview, regions: list[RDMARegion]) -> Place:
        region = self.transport.registerMemory(memory, Access.REMOTE_READ)
        regions.append(region)
        isNear = region.length >= direct.LEAST_BYTES and direct.processOf(self.transport)
        return Place(region.length, region.address, region.remoteKey, addressOf(memory) if isNear else 0)

    async def receive(self) -> list[memoryview]:
        """
        Return the frames of the next message, which can be written.

        @raise HCAError: The connection has ended, or the message is malformed.
        """
        while not self._unread:
            self._check()
            await self._wait()
        message = self._unread.popleft()
        if len(self._unread) == limits.DASK_UNREAD - 1:
            self.transport.resumeProducing()
        try:
            return await self._framesOf(message)
        except (MemoryError, ValueError) as error:
            raise WireError(f"there is no memory for what the peer lends: {error}") from error

    async def _framesOf(self, message: memoryview) -> list[memoryview]:
        # messageReceived() has looked at it.
        isLent = message[0] == messages.BODY
        if isLent:
            (message,) = await self._read([messages.placeOf(message)])
        parts = messages.partsOf(message)
        there = [part for part in parts if isinstance(part, Place)]
        found = iter(await self._read(there) if there else ())
        # As over TCP: an array that is made of a frame can be written, and keeps no other frame in memory.
        frames = [next(found) if isinstance(part, Place) else memoryview(bytearray(part)) for part in parts]
        if isLent or there:
            self.transport.write(messages.read())
        return frames

    async def _read(self, places: Sequence[Place]) -> list[memoryview]:
        self._check()
        transport, regions, asked = self.transport, [], []
        # Before any READ is asked, so that none is under way if there is no memory for another.
        views = [recycled.take(place.length) for place in places]
        process = direct.processOf(transport)
        copied = await direct.copied(process, places, views) if process else [False] * len(places)
        self._check()
        try:
            for place, view, isCopied in zip(places, views, copied, strict=True):
                region = transport.registerMemory(view, Access.LOCAL_WRITE)
                regions.append(region)
                # Of what is copied the last byte proves that it was lent all the time.
                for start in range(place.length - 1 if isCopied else 0, place.length, limits.DASK_READ):
                    count = min(place.length - start, limits.DASK_READ)
                    deferred = transport.rdmaRead(count, place.address + start, place.key, region, start)
                    asked.append(deferred.asFuture(self._events))
            await asyncio.gather(*asked)
        except BaseException:
            # Those that gather() has not seen yet.  The error of one that has ended counts as seen with it.
            for future in asked:
                future.cancel()
            raise
        finally:
            for region in regions:
                region.close()
        return views

    def _check(self) -> None:
        if self.loss is not None:
            raise HCAError(str(self.loss) or type(self.loss).__name__) from self.loss

    def _isOver(self) -> bool:
        return self._closing or self.loss is not None

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = self._events.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    async def close(self) -> None:
        """
        Close once the peer has read what was lent.
        """
        self._closing = True
        if self.loss is None:
            try:
                while self._unread:
                    self._drop(self._unread.popleft())
            except WireError as error:
                self._end(error)
            self.transport.resumeProducing()
            self._wake()
        while self._lent and self.loss is None:
            await self._wait()
        if self.loss is None:
            self.transport.unregisterProducer()
            self.transport.loseConnection()

    def abort(self) -> None:
        """
        End at once; from any thread.
        """
        if self.loss is None and not self._events.is_closed():
            if self.transport.thread == get_ident():
                self._end(HCAError("the connection was aborted here"))
            else:
                self._events.call_soon_threadsafe(self._end, HCAError("the connection was aborted here"))
