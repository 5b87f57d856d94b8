"""
A message for a consumer that comes in several records.
"""

from __future__ import annotations

from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.queues.queuepair import QueuePair


class Reassembly:
    """
    The records so far.  What waits here for its end counts as memory that the device holds,
    of which one peer must not take all.

    @ivar queuePair: whose message it is.
    @ivar dropped: whether it was given up.
    """

    __slots__ = ("_bytes", "dropped", "queuePair")

    def __init__(self, queuePair: QueuePair) -> None:
        self.queuePair = queuePair
        self.dropped = False
        # The first record is the message, most of the time.
        self._bytes: bytes | bytearray = b""

    def add(self, source: memoryview) -> None:
        """
        Keep a copy of a record's payload.
        """
        parts = self._bytes
        if not parts:
            self._bytes = bytes(source)
        else:
            if not isinstance(parts, bytearray):
                parts = self._bytes = bytearray(parts)
            parts += source
        self._hold(len(source))

    def take(self) -> bytes:
        """
        The whole message, which is kept no longer.
        """
        parts = self._bytes
        self.drop()
        return bytes(parts)

    def drop(self) -> None:
        """
        Keep nothing any more; harmless when repeated.
        """
        self.dropped = True
        parts, self._bytes = self._bytes, b""
        self._hold(-len(parts))

    def _hold(self, count: int) -> None:
        device = self.queuePair.device
        if device is not None and count:
            device.hold(self, count)

    def budgetExceeded(self) -> None:
        """
        Of what there is no more memory for, most is here.
        """
        queuePair = self.queuePair
        text = f"too many bytes of messages wait for their end, most at queue pair {queuePair.number}"
        queuePair.fail(ResourceLimitError(text))
