"""
Connections on a loop of asyncio, whose calls give futures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from twisted_ib.queues.asynchronous import Asynchronous
from twisted_ib.queues.connection import Connection
from twisted_ib.queues.pickling import Parts

if TYPE_CHECKING:
    from twisted_ib.queues.asynchronous import Timer

    _Future = asyncio.Future[Any]
else:
    _Future = asyncio.Future


class _Answer(_Future):
    # A task may be cancelled between its message and its next step: then the message is given back.

    def __init__(self, connection: AsyncConnection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._connection = connection
        self._tasks = 0
        self.message: tuple[int, Parts] | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        self._tasks += 1
        try:
            value = yield from super().__await__()
        except asyncio.CancelledError:
            message = self.message
            if message is not None and self._tasks == 1:
                self.message = None
                self._connection.giveBack(*message)
            raise
        finally:
            self._tasks -= 1
        self.message = None
        return value

    __iter__ = __await__


class AsyncConnection(Asynchronous[_Answer]):
    """
    A connection on a loop of asyncio, whose calls return futures: L{Connection.onLoop}.
    """

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """
        @param connection: which now belongs to this object.
        @param loop: the loop; by default the one that runs.
        """
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self._count = 0
        super().__init__(connection)

    def _waiter(self) -> _Answer:
        return _Answer(self, self._loop)

    def _succeed(self, waiter: _Answer, value: object, parts: Parts | None) -> None:
        if parts is not None:
            self._count += 1
            waiter.message = self._count, parts
        waiter.set_result(value)

    def _fail(self, waiter: _Answer, error: Exception) -> None:
        waiter.set_exception(error)

    def _abandon(self, waiter: _Answer, error: Exception) -> None:
        self._fail(waiter, error)
        # Nobody need await it: asyncio would report that.
        waiter.exception()

    def _isDone(self, waiter: _Answer) -> bool:
        return waiter.done()

    def _watch(self) -> None:
        self._loop.add_reader(self._fd, self._ready)

    def _unwatch(self) -> None:
        self._loop.remove_reader(self._fd)

    def _later(self, seconds: float, call: Callable[[], object]) -> Timer:
        return self._loop.call_later(seconds, call)
