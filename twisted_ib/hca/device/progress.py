"""
The progress of a device: batches of what is sent and of what has arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr

if TYPE_CHECKING:
    from twisted_ib.hca.device.addressing.resolution import IDeviceFabric


@mypyc_attr(allow_interpreted_subclasses=True)
class DeviceProgress:
    """
    The part of a L{Device<twisted_ib.hca.device.device.Device>} that each message passes.

    @ivar fabric: Carries its operations.
    @ivar turns: Calls of L{progress}.
    @ivar batch: an 8-bit epoch: different before, within and after L{progress}.  It wraps, so that a stale
        holder may match.
    @ivar writers: streams that wrote in this batch and are to send that: each has C{postWritten(writers)},
        which sends for all, and C{cork()}.
    @ivar updates: Messages sent that answer nothing, and that nothing answers: credit updates.
    @ivar wanted: Called when there is something to do outside of L{progress}, or L{None}.
    """

    fabric: IDeviceFabric

    def __init__(self) -> None:
        self.turns = self.updates = 0
        self.batch = 0
        self.writers: list[Any] = []
        self.wanted: Callable[[], None] | None = None
        self._dirty: list[Any] = []

    def markDirty(self, owner: Any) -> None:
        """
        Have C{owner.endOfBatch()} called at the end of this batch.
        """
        self._dirty.append(owner)
        if self.wanted is not None:
            self.wanted()

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        """
        Send what is pending and process what has arrived.

        @param budget: records per path at most.
        @return: how much was done; 0 if there was nothing to do.
        """
        self.turns += 1
        # Eight bits suffice to tell neighbouring batches apart, and keep the number one of Python's cached
        # small integers.
        self.batch = self.batch + 1 & 0xFF
        n = 0
        if self.writers:
            n = DeviceProgress._postWritten(self)
        if self._dirty:
            n += DeviceProgress._endOfBatch(self)
        n += self.fabric.progress(budget)
        self.batch = self.batch + 1 & 0xFF
        if self.writers:
            n += DeviceProgress._postWritten(self)
        if self._dirty:
            n += DeviceProgress._endOfBatch(self)
        # Once for all that was published: a doorbell is a system call and wakes a process.
        self.fabric.ringBells()
        return n

    def sent(self) -> int:
        """
        @return: A number that changes when something is sent that a peer may answer; always 0 if that is not
            known.
        """
        published = self.fabric.published()
        return published and published - self.updates

    def flush(self) -> None:
        """
        Send what was written and process nothing that has arrived, for a driver that sends between its turns.
        """
        self.turns += 1
        self.batch = self.batch + 1 & 0xFF
        if self.writers:
            DeviceProgress._postWritten(self)
        if self._dirty:
            DeviceProgress._endOfBatch(self)
        self.fabric.ringBells()

    def _postWritten(self) -> int:
        writers, self.writers = self.writers, []
        try:
            writers[0].postWritten(writers)
        except BaseException:
            # One writer's exception must not lose the others' sends.
            for writer in writers:
                writer.cork()
            raise
        return len(writers)

    def _endOfBatch(self) -> int:
        # Swapped first: an owner that becomes dirty meanwhile belongs to the next batch.
        owners, self._dirty = self._dirty, []
        k = 0
        try:
            for owner in owners:
                k += 1
                owner.endOfBatch()
        except BaseException:
            # One owner's exception must not lose the others' sends.
            self._dirty = owners[k:] + self._dirty
            raise
        return len(owners)

    def ringBells(self) -> None:
        """
        Wake the peers in the middle of a large batch.
        """
        self.fabric.ringBells()

    def busy(self) -> bool:
        """
        Whether L{progress} has something to do.
        """
        return bool(self._dirty or self.writers) or self.fabric.pending()

    def arm(self) -> bool:
        """
        Ask to be woken through the descriptor.

        @return: False if there is work after all.
        """
        # With sends pending there is no sleep to prepare for.
        return not (self._dirty or self.writers) and self.fabric.arm()
