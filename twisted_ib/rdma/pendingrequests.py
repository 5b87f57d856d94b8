"""
What a connection was asked for and has not told the end of: a Deferred, and where the answer
comes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from twisted_ib.errors import WorkCompletionError
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus, WorkCompletion

#: What makes the result of where the answer came and the completed length.
Result = Callable[[bytes | bytearray, int], Any]


def nothing(buffer: bytes | bytearray, length: int) -> None:
    """
    There is no result but that it is done.
    """


def count(buffer: bytes | bytearray, length: int) -> int:
    """
    @return: How many bytes came.
    """
    return length


def content(buffer: bytes | bytearray, length: int) -> bytes:
    """
    @return: The bytes that came.
    """
    return bytes(buffer)


def integer(buffer: bytes | bytearray, length: int) -> int:
    """
    @return: The 64 bits that came.
    """
    return int.from_bytes(buffer, sys.byteorder)


class PendingRequest:
    """
    One request.

    @ivar deferred: Fires with the result; L{None} once cancelled or fired.
    @ivar opcode: What was asked for.
    @ivar buffer: Memory that is there for this request only.
    @ivar scratch: Its registration, or L{None}.
    """

    __slots__ = ("_result", "buffer", "deferred", "opcode", "scratch")

    def __init__(self, opcode: WCOpcode, result: Result = nothing, buffer: bytes | bytearray = b"") -> None:
        """
        It waits.

        @param result: Makes what the Deferred fires with.
        """
        self.deferred: Deferred[Any] | None = Deferred(self._cancelled)
        self.opcode = opcode
        self.buffer = buffer
        self.scratch: MemoryRegion | None = None
        self._result = result

    def _cancelled(self, deferred: Deferred[Any]) -> None:
        """
        Nobody waits for it any more; C{CancelledError} is the Deferred's own.
        """
        self.deferred = None

    def completed(self, completion: WorkCompletion) -> None:
        """
        It ended; tell.
        """
        status = WCStatus(completion.status)
        if status == WCStatus.SUCCESS:
            deferred, self.deferred = self.deferred, None
            if deferred is not None:
                deferred.callback(self._result(self.buffer, completion.byteLength))
        else:
            self.failed(status)

    def failed(self, status: WCStatus) -> None:
        """
        It ended badly; tell.
        """
        self.refused(WorkCompletionError(status, status.name, self.opcode.name))

    def refused(self, reason: Exception) -> None:
        """
        It could not even be posted; tell.
        """
        deferred, self.deferred = self.deferred, None
        if deferred is not None:
            deferred.errback(reason)
