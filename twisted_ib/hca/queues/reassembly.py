"""
Reassembly of a message for a consumer that comes in several records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_ib.errors import ResourceLimitError

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import BoundQueuePair, Buffer


class Reassembly:
    """
    The records so far.  They count as memory that the device holds; one peer must not take all of it.

    @ivar queuePair: the receiving queue pair.
    @ivar dropped: whether it was dropped.
    """

    __slots__ = ("_bytes", "dropped", "queuePair")

    def __init__(self, queuePair: BoundQueuePair) -> None:
        self.queuePair = queuePair
        self.dropped = False
        # One bytes object for the first record: usually it is the whole message.
        self._bytes: bytes | bytearray = b""

    def add(self, source: Buffer) -> None:
        """
        Append a copy of a record's payload.
        """
        parts = self._bytes
        if not parts:
            # A copy, as the record's space in the medium is reused after the call.
            self._bytes = bytes(source)
        else:
            if not isinstance(parts, bytearray):
                parts = self._bytes = bytearray(parts)
            parts += source
        self._hold(len(source))

    @property
    def size(self) -> int:
        """
        How many bytes there are so far.
        """
        return len(self._bytes)

    def take(self) -> bytes:
        """
        Return the whole message, and release it.
        """
        parts = self._bytes
        self.drop()
        return bytes(parts)

    def drop(self) -> None:
        """
        Release everything; harmless if repeated.
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
        The device's budget is used up, and this message has the largest share: its queue pair fails.
        """
        # Largest first: a peer that begins messages and never ends them must not have others'
        # messages dropped.
        queuePair = self.queuePair
        text = f"too many bytes of messages wait for their end, most at queue pair {queuePair.number}"
        queuePair.fail(ResourceLimitError(text))
