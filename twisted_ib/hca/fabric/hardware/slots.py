"""
Slots for what the streams of an adapter receive, in one shared receive queue: a connection that is idle has
none of its own.

A peer that meets no free slot waits and sends again (IBTA vol. 1 9.7.7.2.1, RNR NAK).  An RNIC ends the
connection instead, so that what one peer uses up would end another's: there each connection has slots of its
own, as with an adapter that has no shared receive queues.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted_ib.hca.base.states import QPAttribute, QPState
from twisted_ib.hca.fabric.hardware.provider import keep
from twisted_ib.hca.memory.access import LOCAL_WRITE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric
    from twisted_ib.hca.fabric.hardware.provider import (
        AdapterDomain,
        AdapterQueuePair,
        AdapterReceives,
        AdapterRegion,
        Completion,
    )

#: Slots are made so many at a time, and there are at most so many.
CHUNK: Final = 32
MOST_SLOTS: Final = 512
#: Slots are given back to the adapter so many at a time; and where it has fewer, at once, and more are made.
REFILL: Final = 8
#: How long a queue pair that is done is kept until what it has taken is back, in seconds.
RETIRED_SECONDS: Final = 0.5
#: In the id of a receive, besides that it is one: the slot is one of these.
SHARED: Final = 1 << 62
SHARED_RECEIVE: Final = 1 << 63 | SHARED


class _Chunk:
    """
    Slots in a piece of memory.
    """

    __slots__ = ("base", "key", "memory", "region")

    def __init__(self, domain: AdapterDomain, length: int) -> None:
        self.memory = mmap.mmap(-1, length)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.region: AdapterRegion = domain.reg_mr(self.base, length, LOCAL_WRITE)
        self.key = self.region.lkey


class SharedSlots:
    """
    Those of one device.

    @ivar domain: the adapter's protection domain of the slots, and of all queue pairs that take them: rxe and
        siw look for a receive's memory in that of the queue pair (Linux rxe_resp.c, send_data_in()).
    @ivar queue: the adapter's shared receive queue.
    @ivar count: how many slots there are.
    @ivar posted: how many of them the adapter has.
    """

    def __init__(self, fabric: HardwareFabric, slotBytes: int, head: int) -> None:
        """
        @param slotBytes: of each slot, of which the adapter leaves the first C{head}.
        @raise OSError: the adapter has no shared receive queue, or no memory.
        """
        self._verbs: object = fabric.verbs
        self._slotBytes, self._head = slotBytes, head
        self._chunks: list[_Chunk] = []
        self._given: list[int] = []
        self.count = self.posted = 0
        self._isClosed = False
        self.domain: AdapterDomain = fabric.context.alloc_pd()
        self.queue: AdapterReceives | None = None
        try:
            self.queue = self.domain.create_srq(max_wr=MOST_SLOTS)
            self._grow()
        except OSError:
            self.close()
            raise

    def _grow(self) -> None:
        self._chunks.append(_Chunk(self.domain, CHUNK * self._slotBytes))
        first, self.count = self.count, self.count + CHUNK
        self._post(range(first, self.count))

    def _post(self, slots: Sequence[int]) -> None:
        if self.queue is None:
            return
        self.queue.post_recv([self._receive(slot) for slot in slots])
        self.posted += len(slots)

    def _receive(self, slot: int) -> object:
        chunk = self._chunks[slot // CHUNK]
        verbs: Any = self._verbs
        place = verbs.SGE(chunk.base + self.startOf(slot), self._slotBytes - self._head, chunk.key)
        made: object = verbs.RecvWR(SHARED_RECEIVE | slot, [place])
        return made

    def memoryOf(self, slot: int) -> mmap.mmap:
        """
        @return: the memory that a slot is in.
        """
        return self._chunks[slot // CHUNK].memory

    def startOf(self, slot: int) -> int:
        """
        @return: where in that the adapter begins to write.
        """
        return slot % CHUNK * self._slotBytes + self._head

    def taken(self, count: int) -> None:
        """
        The adapter has written into so many.
        """
        self.posted -= count
        if not count or self.posted >= REFILL:
            return
        self._refill()
        if self.posted < REFILL and self.count < MOST_SLOTS:
            try:
                self._grow()
            except OSError:
                # Without more memory peers wait until there are free ones.
                pass

    def giveBack(self, slot: int) -> None:
        """
        A slot is free.
        """
        self._given.append(slot)
        if len(self._given) >= REFILL or self.posted < REFILL:
            self._refill()

    def _refill(self) -> None:
        given, self._given = self._given, []
        if given and self.queue is not None:
            self._post(given)

    def forked(self) -> None:
        """
        In a forked child: they are the parent's.
        """
        keep(self, self.domain, self.queue, *(chunk.region for chunk in self._chunks))

    def close(self) -> None:
        """
        Destroy the queue, behind all queue pairs that use it; harmless if repeated.
        """
        if self._isClosed:
            return
        self._isClosed = True
        queue, self.queue = self.queue, None
        if queue is not None:
            queue.close()
        chunks, self._chunks = self._chunks, []
        for chunk in chunks:
            chunk.region.close()
        self.domain.close()


class StreamSlots:
    """
    The shared slots of a device's streams, if there are any, and the queue pairs that are done, but for what
    they have taken of these.

    @ivar retired: those queue pairs, by number.
    """

    def __init__(self, fabric: HardwareFabric, isWanted: bool, slotBytes: int, head: int) -> None:
        """
        @param isWanted: whether to share.
        @param slotBytes: of each slot, of which the adapter leaves the first C{head}.
        """
        self._fabric, self._isWanted = fabric, isWanted
        self._slotBytes, self._head = slotBytes, head
        self.shared: SharedSlots | None = None
        self.retired: dict[int, AdapterQueuePair] = {}

    def get(self) -> SharedSlots | None:
        """
        @return: the slots; L{None} where each stream has its own.
        """
        if self.shared is None and self._isWanted:
            try:
                self.shared = SharedSlots(self._fabric, self._slotBytes, self._head)
            except OSError:
                self._isWanted = False
        return self.shared

    def found(self, completions: list[Completion]) -> None:
        """
        The adapter has completed these.
        """
        if self.shared is not None:
            # All at once, as the adapter has none of these slots now.
            self.shared.taken(sum(each.wr_id >= SHARED_RECEIVE for each in completions))

    def unclaimed(self, completion: Completion) -> None:
        """
        A completion is of a queue pair that is done.
        """
        slot = completion.wr_id - SHARED_RECEIVE
        if slot >= 0 and self.shared is not None:
            self.shared.giveBack(slot)

    def retire(self, made: AdapterQueuePair) -> None:
        """
        Destroy a queue pair that takes them: in the error state first, where one into which a message is
        coming is given back (IBTA vol. 1 10.3.1.6).
        """
        try:
            made.modify(int(QPAttribute.STATE), None, qp_state=int(QPState.ERR))
        except OSError:
            # Its adapter is gone.
            made.close()
            return
        self.retired[made.qp_num] = made
        self._fabric.timers.start(RETIRED_SECONDS, partial(self._destroy, made.qp_num))

    def _destroy(self, number: int) -> None:
        made = self.retired.pop(number, None)
        if made is not None:
            made.close()

    def forked(self) -> None:
        """
        In a forked child: they are the parent's.
        """
        keep(self, self.retired)
        if self.shared is not None:
            self.shared.forked()

    def close(self) -> int:
        """
        Destroy everything, when the streams have ended.

        @return: the identity of their protection domain.
        """
        for number in list(self.retired):
            self._destroy(number)
        if self.shared is None:
            return 0
        domain = id(self.shared.domain)
        self.shared.close()
        return domain
