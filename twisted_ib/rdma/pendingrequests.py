"""
Requests of a connection that are not completed: a Deferred, and the memory for the result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from twisted_ib.errors import WorkCompletionError
from twisted_ib.hca.memory.regions import MemoryRegion
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus, WorkCompletion

#: Makes a request's result from its memory and the completed length.
Result = Callable[[bytes | bytearray, int], object]


def nothing(buffer: bytes | bytearray, length: int) -> None:
    """
    Return no result.
    """


def count(buffer: bytes | bytearray, length: int) -> int:
    """
    Return the number of bytes received.
    """
    return length


def content(buffer: bytes | bytearray, length: int) -> bytes:
    """
    Return the bytes received.
    """
    return bytes(buffer)


def integer(buffer: bytes | bytearray, length: int) -> int:
    """
    Return the 64 bits received.
    """
    # Atomics are big-endian on the wire and in host order in memory (IBTA vol. 1 9.4.5; Linux rxe_mr.c
    # rxe_mr_do_atomic_op).
    return int.from_bytes(buffer, sys.byteorder)


class PendingRequest:
    """
    A request that is not completed.

    @ivar deferred: Fires with the result; L{None} once it was cancelled or has fired.
    @ivar buffer: Memory of this request alone.
    @ivar scratch: Its registration, or L{None}.
    """

    __slots__ = ("_result", "buffer", "deferred", "opcode", "scratch")

    def __init__(self, opcode: WCOpcode, result: Result = nothing, buffer: bytes | bytearray = b"") -> None:
        self.deferred: Deferred[Any] | None = Deferred(self._cancelled)
        self.opcode = opcode
        self.buffer = buffer
        # Kept until the completion, also after a cancel: the HCA may write to it until then.
        self.scratch: MemoryRegion | None = None
        self._result = result

    def _cancelled(self, deferred: Deferred[Any]) -> None:
        # A posted request cannot be taken back; the Deferred itself fails with CancelledError.
        self.deferred = None

    def completed(self, completion: WorkCompletion) -> None:
        """
        Fire the Deferred for a completion.
        """
        status = WCStatus(completion.status)
        if status == WCStatus.SUCCESS:
            deferred, self.deferred = self.deferred, None
            if deferred is not None:
                # byteLength is what the responder sent, which for a READ is all that was asked for.
                deferred.callback(self._result(self.buffer, completion.byteLength))
        else:
            self.failed(status)

    def failed(self, status: WCStatus) -> None:
        """
        Fail the Deferred for an error completion.
        """
        self.refused(WorkCompletionError(status, status.name, self.opcode.name))

    def refused(self, reason: Exception) -> None:
        """
        Fail the Deferred of a request that could not be posted.
        """
        deferred, self.deferred = self.deferred, None
        if deferred is not None:
            deferred.errback(reason)
