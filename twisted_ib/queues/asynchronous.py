"""
Connections for programs that never wait: on a Twisted reactor, whose calls give Deferreds, and, in
C{futures}, on a loop of asyncio.

There is no thread.  A call that finds no message, or no room, waits in a table, and the loop for the
connection's socket.  The other end may be of any kind: its reader sends the byte that says that there is room
(C{ring.POLLED}), its writer that which says that there is a message.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from twisted_ib import limits
from twisted_ib.queues.connection import Assembly, Connection, records
from twisted_ib.queues.pickling import Parts, Pickled, inBand, loads, pieces
from twisted_ib.queues.ring import Payload

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure
    from typing_extensions import Buffer, Protocol, Self

    class Timer(Protocol):
        """
        A call that is to come.
        """

        def cancel(self) -> object:
            """
            Forget it.
            """

    class _Reactor(Protocol):
        def addReader(self, reader: object) -> object: ...

        def removeReader(self, reader: object) -> object: ...

        def callLater(self, delay: float, callable: Callable[[], object]) -> Timer: ...


#: A Deferred or a future.
Waiter = TypeVar("Waiter")
_Call = TypeVar("_Call")

#: The share of a turn that one record takes besides its bytes.
_RECORD_COST: Final = 4096


class _Send(Generic[Waiter]):
    """
    A message that waits for room.

    @ivar hasBegun: whether a part of it is sent, so that the rest must be.
    """

    __slots__ = ("_records", "hasBegun", "record", "waiter")

    def __init__(self, waiter: Waiter, parts: Pickled) -> None:
        self.waiter = waiter
        self.hasBegun = False
        self._records: Iterator[tuple[int, Payload, int]] = records(parts)
        self.record: tuple[int, Payload, int] | None = next(self._records)

    def sent(self) -> None:
        self.hasBegun = True
        self.record = next(self._records, None)


def _parts(parts: Parts) -> Parts:
    return parts


def _object(parts: Parts) -> object:
    return loads(*parts)


def _bytes(parts: Parts) -> bytes:
    return inBand(*parts)


class Asynchronous(Generic[Waiter]):
    """
    The part that knows neither Twisted nor asyncio.  The connection belongs to it.

    A call that is cancelled is forgotten; but the rest of a message of which a part is sent follows it.
    """

    def __init__(self, connection: Connection) -> None:
        connection.checkOpen()
        self._connection = connection
        self._reader, self._writer, self._fd = connection.ends()
        self._assembly = Assembly()
        self._receives: deque[tuple[Waiter, Callable[[Parts], object]]] = deque()
        self._sends: deque[_Send[Waiter]] = deque()
        #: Messages of which nobody got to know, with their numbers: each was the answer of a call.
        self._returned: list[tuple[int, Parts]] = []
        self._isWatched = False
        self._hasEnded = False
        self._timer: Timer | None = None
        #: Whether it is for the next turn.
        self._isSoon = False
        #: Bytes that may still be moved in this turn of the loop.
        self._budget = limits.QUEUE_TURN_BYTES
        #: Calls that may still be over before they return.
        self._atOnce = limits.QUEUE_CALLS_AT_ONCE

    # -- of the loop

    def _waiter(self) -> Waiter:
        raise NotImplementedError

    def _succeed(self, waiter: Waiter, value: object, parts: Parts | None) -> None:
        raise NotImplementedError

    def _fail(self, waiter: Waiter, error: Exception) -> None:
        raise NotImplementedError

    def _abandon(self, waiter: Waiter, error: Exception) -> None:
        self._fail(waiter, error)

    def _isDone(self, waiter: Waiter) -> bool:
        raise NotImplementedError

    def _watch(self) -> None:
        raise NotImplementedError

    def _unwatch(self) -> None:
        raise NotImplementedError

    def _later(self, seconds: float, call: Callable[[], object]) -> Timer:
        raise NotImplementedError

    # -- calls

    @property
    def closed(self) -> bool:
        """
        Whether the connection is closed.
        """
        return self._connection.closed

    def recv(self) -> Waiter:
        """
        Receive an object.

        @return: what fires with it, or fails with C{EOFError} if there is none and the other end is closed.
            Where that has written what is no message, it is C{OSError}, and this end is closed.
        """
        return self._receive(_object)

    def recv_bytes(self) -> Waiter:
        """
        Receive the bytes of a message.

        @return: as of L{recv}.
        """
        return self._receive(_bytes)

    def send(self, obj: object) -> Waiter:
        """
        Send an object.  Its large buffers must stay as they are until it is sent.

        @return: what fires when it is sent, or fails with C{BrokenPipeError} if the other end is closed.
        """
        return self._send(lambda: pieces(obj))

    def send_bytes(self, buf: Buffer) -> Waiter:
        """
        Send bytes, which must stay as they are until they are sent.

        @return: as of L{send}.
        """
        return self._send(lambda: ([memoryview(buf).cast("B")], []))

    def close(self) -> None:
        """
        Close this end; calls that wait fail.  Harmless when repeated.
        """
        if self.closed:
            return
        self._setWatched(False)
        self._setTimer(None)
        self._connection.close()
        self._assembly = Assembly()
        self._returned.clear()
        waiters = [*(each.waiter for each in self._sends), *(waiter for waiter, _ in self._receives)]
        self._sends.clear()
        self._receives.clear()
        for waiter in waiters:
            if not self._isDone(waiter):
                self._abandon(waiter, OSError("handle is closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        # Loaded here: an C{EOFError} of a message is not the end.
        waiter: Any = self._receive(_parts)
        try:
            parts = await waiter
        except EOFError:
            raise StopAsyncIteration from None
        return _object(parts)

    # -- tables

    def _receive(self, form: Callable[[Parts], object]) -> Waiter:
        waiter = self._waiter()
        try:
            self._connection.checkReads()
            self._limit(self._receives, lambda each: self._isDone(each[0]))
        except OSError as error:
            self._fail(waiter, error)
            return waiter
        self._receives.append((waiter, form))
        if len(self._receives) == 1 and self._atOnce > 0:
            self._answer()
            if not self._receives:
                self._atOnce -= 1
        self._wait()
        return waiter

    def _send(self, given: Callable[[], Pickled]) -> Waiter:
        waiter = self._waiter()
        try:
            self._connection.checkWrites()
            self._limit(self._sends, lambda each: self._isDone(each.waiter) and not each.hasBegun)
            self._sends.append(_Send(waiter, given()))
        except Exception as error:
            self._fail(waiter, error)
            return waiter
        if len(self._sends) == 1 and self._atOnce > 0:
            self._publish()
            if not self._sends:
                self._atOnce -= 1
        self._wait()
        return waiter

    @staticmethod
    def _limit(calls: deque[_Call], isOver: Callable[[_Call], bool]) -> None:
        if len(calls) >= limits.QUEUE_CALLS:
            left = [each for each in calls if not isOver(each)]
            calls.clear()
            calls.extend(left)
            if len(calls) >= limits.QUEUE_CALLS:
                raise BlockingIOError(errno.EAGAIN, f"{len(calls)} calls wait already")

    # -- turns

    def _ready(self) -> None:
        # The socket can be read.
        if not self._receives and not self._sends:
            # The byte of a message that nobody waits for.
            self._setWatched(False)
            return
        if not self._reader.take():
            self._hasEnded = True
            self._setWatched(False)
        self._turn()

    def _turn(self) -> None:
        self._setTimer(None)
        self._budget = limits.QUEUE_TURN_BYTES
        self._atOnce = limits.QUEUE_CALLS_AT_ONCE
        self._publish()
        self._answer()
        self._wait()

    def _wait(self) -> None:
        if self.closed or not (self._receives or self._sends):
            return
        if not self._hasEnded:
            self._setWatched(True)
        if self._budget <= 0 or self._atOnce <= 0:
            if not self._isSoon:
                self._setTimer(0.0)
        elif self._sends and self._timer is None:
            # One of several readers may be killed before it says that there is room.
            self._setTimer(limits.QUEUE_LOOK_SECONDS)

    def _setWatched(self, isWatched: bool) -> None:
        if isWatched != self._isWatched:
            self._isWatched = isWatched
            if isWatched:
                self._watch()
            else:
                self._unwatch()

    def _setTimer(self, seconds: float | None) -> None:
        timer, self._timer = self._timer, None
        self._isSoon = seconds == 0.0
        if timer is not None:
            timer.cancel()
        if seconds is not None:
            self._timer = self._later(seconds, self._expired)

    def _expired(self) -> None:
        self._timer = None
        self._turn()

    def _publish(self) -> None:
        # A waiter may call anything here when it is told.
        while self._sends and not self.closed:
            call = self._sends[0]
            if self._isDone(call.waiter) and not call.hasBegun:
                self._sends.popleft()
                continue
            try:
                if not self._published(call):
                    return
            except OSError as error:
                self._sends.popleft()
                if not self._isDone(call.waiter):
                    self._fail(call.waiter, error)
            else:
                self._sends.popleft()
                if not self._isDone(call.waiter):
                    self._succeed(call.waiter, None, None)

    def _published(self, call: _Send[Waiter]) -> bool:
        writer = self._writer
        while call.record is not None:
            if self._hasEnded:
                raise BrokenPipeError(errno.EPIPE, "the other end is closed")
            if self._budget <= 0:
                return False
            flags, payload, length = call.record
            if not writer.write(flags, payload, length, False):
                writer.askForRoom()
                if not writer.write(flags, payload, length, False):
                    return False
            self._budget -= length + _RECORD_COST
            call.sent()
        return True

    def _answer(self) -> None:
        while self._receives and not self.closed:
            waiter, form = self._receives[0]
            if self._isDone(waiter):
                self._receives.popleft()
                continue
            try:
                parts = self._assembled()
            except Exception as error:
                self._receives.popleft()
                if not isinstance(error, EOFError):
                    # Nobody knows where the next message begins.  First: who is told may receive again.
                    self.close()
                if not self._isDone(waiter):
                    self._fail(waiter, error)
                continue
            if parts is None:
                return
            try:
                value = form(parts)
            except Exception as error:
                self._receives.popleft()
                self._fail(waiter, error)
            else:
                self._receives.popleft()
                self._succeed(waiter, value, parts)

    def giveBack(self, number: int, parts: Parts) -> None:
        """
        Give the next call a message which the one that has it cannot hand on.

        @param number: its place among those that are given back.
        """
        if not self.closed:
            heappush(self._returned, (number, parts))
            self._answer()
            self._wait()

    def _assembled(self) -> Parts | None:
        if self._returned:
            return heappop(self._returned)[1]
        reader = self._reader
        while self._budget > 0:
            if not reader.pending():
                if not self._hasEnded:
                    return None
                if self._assembly:
                    raise OSError("got end of file during message")
                raise EOFError
            flags, start, length, end = reader.next(False)
            with reader.view(start, length) as data:
                parts = self._assembly.add(flags, data)
            reader.consumed(end, False)
            self._budget -= length + _RECORD_COST
            if parts is not None:
                return parts
        return None


class DeferredConnection(Asynchronous["Deferred[Any]"]):
    """
    A connection on a Twisted reactor, whose calls return Deferreds: L{Connection.onReactor}.  See
    L{IReadDescriptor<twisted.internet.interfaces.IReadDescriptor>}.
    """

    def __init__(self, connection: Connection, reactor: object = None) -> None:
        """
        @param connection: which now belongs to this object.
        @param reactor: the reactor; by default the one that is installed.
        """
        from twisted.internet.defer import Deferred

        if reactor is None:
            from twisted.internet import reactor
        self._reactor: _Reactor = cast("_Reactor", reactor)
        self._deferred: Callable[[], Deferred[Any]] = Deferred
        super().__init__(connection)

    def _waiter(self) -> Deferred[Any]:
        return self._deferred()

    def _succeed(self, waiter: Deferred[Any], value: object, parts: Parts | None) -> None:
        waiter.callback(value)

    def _fail(self, waiter: Deferred[Any], error: Exception) -> None:
        waiter.errback(error)

    def _isDone(self, waiter: Deferred[Any]) -> bool:
        return bool(waiter.called)

    def _watch(self) -> None:
        self._reactor.addReader(self)

    def _unwatch(self) -> None:
        self._reactor.removeReader(self)

    def _later(self, seconds: float, call: Callable[[], object]) -> Timer:
        return self._reactor.callLater(seconds, call)

    # -- IReadDescriptor, which the reactor reads

    def fileno(self) -> int:
        return self._fd

    def doRead(self) -> None:
        self._ready()

    def connectionLost(self, reason: Failure) -> None:
        # The reactor stops.
        self.close()

    def logPrefix(self) -> str:
        return "Connection"
