"""
Completions in memory of C: a program polls them without Python and its lock, by C{building/completions.c}.

The ring of a queue has copies of its first completions, and the queue forgets those that were taken when it
next looks.  So its bound, its order and what a reset discards are as ever.  Whoever has changed a queue fills
its ring before the hub's lock is released: an event comes after its completion, as taking an event needs the
lock.
"""

from __future__ import annotations

import platform
from functools import partial
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Final

from _twisted_ib_verbs import ffi, lib

from twisted_ib import limits
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.queues.completion import CompletionQueue, WCOpcode, WorkCompletion
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.pointers import CData, addressOf
from twisted_ib.verbs.c.postings import completed, posting, settle
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.core.progress import HubProgress
from twisted_ib.verbs.pyverbs.base.wc import wcFlags, wcImmediate

if TYPE_CHECKING:
    from _cffi_backend import buffer as Buffer

#: C{struct ibv_wc}: one call writes it, where cffi takes one for each field.
_WC: Final = Struct("=QiiIIIIIIHHBB2x")
_pack: Final = _WC.pack_into
_WC_BYTES: Final = _WC.size
#: The same of one without what datagrams and immediate data have.
_packPlain: Final = Struct("=Qii4xI4xII12x").pack_into
_ENTRIES: Final = limits.COMPLETION_RING
#: Queues by their structures, with their devices: any pointer to one finds it, and no number is made of that.
polled: Final[dict[CData, tuple[Device, CompletionQueue]]] = {}
#: The hub, as its compiled half knows it.
_hub: Final[HubProgress] = hub
#: Operations from it on are of receives.
_RECEIVES: Final = WCOpcode.RECV
#: Whether the processor keeps stores in their order (Intel SDM vol. 3, "Memory Ordering").
_KEEPS_ORDER: Final = platform.machine() == "x86_64"


class CompletionRing:
    """
    The ring of a completion queue.  All methods are called with the hub's lock held.

    @ivar wanted: see L{Mirror<twisted_ib.hca.queues.completion.Mirror>}.
    @ivar shown: see there.
    """

    def __init__(self, device: Device, queue: CompletionQueue, structure: CData) -> None:
        """
        @param device: the queue's.
        @param queue: the queue, which tells it of completions from now on.
        @param structure: its C{struct twisted_ib_cq}.
        """
        self._queue = queue
        # The pointer does not keep it.
        self._structure = structure
        self._ring = ring = ffi.addressof(structure, "ring")
        self._entries = entries = ffi.new("struct ibv_wc[]", limits.COMPLETION_RING)
        self._buffer: Buffer = ffi.buffer(entries)
        ring.entries, ring.mask = entries, limits.COMPLETION_RING - 1
        ring.eager, ring.seldom = limits.EAGER_POLLS, limits.POLL_PAUSE
        # Completions that it has got, ever; and whether the queue has more, as the ring says.
        self._tail, self._hasMore = 0, False
        ring.more = 0
        self.shown = 0
        self.wanted = partial(hub.unshown.add, self)
        queue.reflect(self)
        polled[structure] = device, queue
        structure.self = addressOf(structure)

    def settle(self) -> None:
        left = self._tail - self._ring.head
        # As _keep(), without a call.
        taken = self.shown - left
        if taken == 1:
            self._queue.completions.popleft()
            self.shown = left
        elif taken:
            self._keep(left)

    def _keep(self, left: int) -> None:
        popleft = self._queue.completions.popleft
        for _ in range(self.shown - left):
            popleft()
        self.shown = left

    def show(self) -> None:
        if self.shown:
            self.settle()
        queue, shown = self._queue, self.shown
        completions, tail, buffer = queue.completions, self._tail, self._buffer
        number = opcode = -1
        for each in islice(completions, shown, _ENTRIES):
            flags = each.flags
            if each.queuePairNumber != number or each.opcode is not opcode or each.status:
                number, opcode = each.queuePairNumber, each.opcode
                # It has made room, or its queue pair is in ERR.
                posted = completed.get((number, opcode >= _RECEIVES))
                if posted is not None and (posted.isShort or each.status):
                    posted.open()
            at = tail % _ENTRIES * _WC_BYTES
            tail += 1
            if not flags and each.__class__ is WorkCompletion:
                length, source = each.byteLength, each.sourceQueuePair
                _packPlain(buffer, at, each.workRequestID, each.status, opcode, length, number, source)
                continue
            _pack(
                buffer,
                at,
                each.workRequestID,
                each.status,
                opcode,
                0,
                each.byteLength,
                wcImmediate(each) if flags else 0,
                number,
                each.sourceQueuePair,
                wcFlags(each) if flags else 0,
                0,
                each.sourceLID,
                each.serviceLevel,
                each.pathBits,
            )
        if not _KEEPS_ORDER:
            lib.twisted_ib_fence()
        ring = self._ring
        # They become visible here.  What is taken from now on still counts as shown.
        ring.tail = tail
        self.shown = shown = shown + tail - self._tail
        self._tail = tail
        hasMore = len(completions) > shown
        if hasMore is not self._hasMore:
            self._hasMore = ring.more = hasMore
        queue.quiet = 0

    def recall(self) -> None:
        self._keep(lib.twisted_ib_recall(self._ring))
        self.shown = 0
        self.wanted()

    def more(self) -> bool:
        if not posting.fill:
            return False
        settle()
        return True

    def close(self) -> None:
        """
        The queue is destroyed: the program finds nothing any more.
        """
        self._structure.polling = self._structure.self = 0
        polled.pop(self._structure, None)
        self.recall()
        hub.unshown.discard(self)
        self._queue.reflect(None)


def poll_cq(cq: CData, count: int, wc: CData) -> int:
    """
    Make progress, as a handler; after this completions are fetched in C.

    @raise HandleError: there is no such queue, or the count is negative (EINVAL).
    """
    try:
        device, queue = polled[cq]
    except KeyError:
        raise HandleError("There is no ibv_cq") from None
    if count < 0:
        raise HandleError(f"There are no {count} completions")
    if posting.fill:
        settle()
    HubProgress.poll(_hub, device, queue, count)
    return 0
