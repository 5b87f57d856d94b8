"""
Completion channels and completion queues.  Source: rdma-core 65, C{pyverbs/cq.pyx}.
"""

from __future__ import annotations

import errno
import os
import select
from collections import deque
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.base import attributes
from twisted_ib.hca.queues.completion import CompletionQueue, WorkCompletion
from twisted_ib.hca.queues.completion import WCFlags as CoreFlags
from twisted_ib.hca.verbs.base.base import checked, table
from twisted_ib.hca.verbs.base.errors import PyverbsRDMAError
from twisted_ib.hca.verbs.base.hub import hub
from twisted_ib.hca.verbs.base.verb import VerbsObject, invalid, verb, waitFor, within
from twisted_ib.hca.verbs.base.wc import WC
from twisted_ib.hca.verbs.base.wr import storedImmediate
from twisted_ib.hca.verbs.enums.queues import ibv_wc_flags
from twisted_ib.hca.verbs.objects.device import Context

_WITH_GRH = int(CoreFlags.GRH)
_WITH_IMM = int(CoreFlags.WITH_IMM)
_WITH_INV = int(CoreFlags.WITH_INV)
_FLAGS = {
    bits: sum(
        int(here)
        for there, here in (
            (_WITH_GRH, ibv_wc_flags.IBV_WC_GRH),
            (_WITH_IMM, ibv_wc_flags.IBV_WC_WITH_IMM),
            (_WITH_INV, ibv_wc_flags.IBV_WC_WITH_INV),
        )
        if bits & there
    )
    for bits in range(8)
}


def wcFlags(completion: WorkCompletion) -> int:
    """
    @return: bits of C{ibv_wc_flags}.
    """
    return _FLAGS[int(completion.flags)]


def wcImmediate(completion: WorkCompletion) -> int:
    """
    @return: the immediate data as they lie in memory, or the key that was invalidated.
    """
    if completion.flags & _WITH_IMM:
        return storedImmediate(completion.immediate)
    return completion.immediate if completion.flags & _WITH_INV else 0


class _Notices:
    """
    Completion queues that have something to say and were not heard.

    @ivar waiting: these.
    @ivar fd: a descriptor that is readable when there are any, or after L{wake}.
    """

    def __init__(self) -> None:
        """
        @raise OSError: no descriptor is free.
        """
        self.waiting: deque[CompletionQueue] = deque()
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        self._readable = False
        self._closed = False

    def add(self, queue: CompletionQueue) -> None:
        """
        A completion queue has something to say.
        """
        self.waiting.append(queue)
        self.wake()

    def wake(self) -> None:
        """
        Have the program call L{CompChannel.get_cq_event}.
        """
        if not self._readable and not self._closed:
            self._readable = True
            os.write(self._write, b"!")

    def take(self) -> CompletionQueue | None:
        """
        @return: the first that has something to say, or None.
        """
        queue = self.waiting.popleft() if self.waiting else None
        self._settle()
        return queue

    def _settle(self) -> None:
        if self._readable and not self.waiting:
            self._readable = False
            os.read(self.fd, 1)

    def forget(self, queue: CompletionQueue) -> None:
        """
        A completion queue is gone.
        """
        if queue in self.waiting:
            self.waiting = deque(other for other in self.waiting if other is not queue)
            self._settle()

    def close(self) -> None:
        """
        Give the descriptors back: others may have their numbers soon.
        """
        self._closed = True
        self._readable = False
        hub.watchers.discard(self)
        os.close(self.fd)
        os.close(self._write)


class CompChannel(VerbsObject):
    """
    A completion channel: where a program waits for completion queues to have something to say.

    @ivar context: the context that it belongs to.
    """

    rank = 20

    def __init__(self, context: Context) -> None:
        """
        Create a completion channel.

        @raise PyverbsRDMAError: there are too many (ENOMEM), or no descriptor is free (EMFILE).
        """
        super().__init__()
        self._create(checked(context, Context))

    @verb("Failed to create a completion channel")
    def _create(self, context: Context) -> None:
        context._check()
        self.context: Context | None = context
        self._device = device = context._device
        if device in _channels and _channels[device] >= limits.COMPLETION_CHANNELS:
            raise ResourceLimitError(f"a device has at most {limits.COMPLETION_CHANNELS} completion channels")
        self._notices = notices = _Notices()
        self._poller: Any = None
        _channels[device] = _channels.get(device, 0) + 1

        def close() -> None:
            _channels[device] -= 1
            if not _channels[device]:
                del _channels[device]
            notices.close()

        self._opened(close, context)

    def _closed(self) -> None:
        self.context = None
        if self._poller is not None:
            self._poller.close()
            self._poller = None

    @property
    def fd(self) -> int:
        """
        A descriptor that is readable when L{get_cq_event} may have something to give.  Who
        watches it has to call that, or C{poll}, when it is: nobody else serves the device.
        """
        with hub:
            self._check()
            if self._poller is None:
                self._poller = poller = select.epoll()
                poller.register(self._notices.fd, select.EPOLLIN)
                poller.register(self._device.fabric.fileno(), select.EPOLLIN)
                hub.watchers.add(self._notices)
            fd: int = self._poller.fileno()
            return fd

    def get_cq_event(self, expected_cq: Any) -> None:
        """
        Wait for a completion queue that was armed (C{req_notify}) to have something to say, and
        serve peers meanwhile.

        @param expected_cq: the completion queue that the caller thinks it is.

        @raise PyverbsRDMAError: it is another.
        """
        while True:
            waitFor(self._noticeOrEnd, "Failed to get CQ event")
            with hub:
                self._check()
                queue = self._notices.take()
                if queue is None:
                    continue  # Another thread has it.
                if queue is not expected_cq._core:
                    raise PyverbsRDMAError("Received event on an unexpected CQ", errno.EINVAL)
                expected_cq.num_events += 1
                return

    def _noticeOrEnd(self) -> bool:
        """
        Whether there is a notice, or nothing more to wait for.

        @raise DeviceClosedError: the device is the parent process's.
        """
        if self._closer is None:
            return True
        self._device.check()
        return bool(self._notices.waiting)


#: How many channels a device has.
_channels: dict[Any, int] = {}


class PolledQueue(VerbsObject):
    """
    What the two kinds of completion queues have in common.

    @ivar context: the context that it belongs to.
    @ivar num_events: events of it that were got and not acknowledged.
    """

    rank = 30
    _failed = "Failed to create a CQ"

    @verb()
    def _create(self, context: Context, cqe: Any, channel: CompChannel | None, comp_vector: int) -> None:
        """
        Create it.

        @param cqe: how many completions it shall hold at least.
        """
        context._check()
        size = within(cqe, 1, limits.COMPLETION_QUEUE_DEPTH, f"{self._failed}: cqe")
        within(comp_vector, 0, attributes.COMPLETION_VECTORS - 1, f"{self._failed}: comp_vector")
        self.context: Context | None = context
        self.num_events = 0
        self._device = device = context._device
        self._core = core = device.objects.createCompletionQueue(size)
        self._channel = channel
        self._events = events = context._events
        core.onEvent = events.add
        notices = None
        if channel is not None:
            channel._check()
            notices = channel._notices
            core.onCompletion = notices.add

        def close() -> None:
            if not device.closed:
                device.objects.destroyCompletionQueue(core)
            events.forget(core)
            if notices is not None:
                notices.forget(core)

        self._opened(close, context, channel)

    def _closed(self) -> None:
        self.context = self._channel = None

    @property
    def comp_channel(self) -> CompChannel | None:
        """
        The channel where it tells of completions, or None.
        """
        return self._channel

    @property
    def cqe(self) -> int:
        """
        How many completions it holds.
        """
        self._check()
        return self._core.depth

    @verb("Failed to resize CQ")
    def resize(self, cqe: int) -> None:
        """
        @param cqe: how many completions it shall hold.

        @raise PyverbsRDMAError: there cannot be so many, or more wait (EINVAL).
        """
        self._check()
        size = within(cqe, max(1, len(self._core)), limits.COMPLETION_QUEUE_DEPTH, "Failed to resize CQ: cqe")
        self._core.resize(size)

    @verb("Failed to modify CQ")
    def modify(self, cq_count: int = 0, cq_period: int = 0) -> None:
        """
        Moderate its events.

        @param cq_count: completions that one event may stand for; 0 is any number.
        @param cq_period: microseconds that the first of them may wait; 0 is any time.

        @raise PyverbsRDMAError: one of them is more than can be (EINVAL).
        """
        self._check()
        within(cq_count, 0, attributes.MODERATED_COMPLETIONS, "Failed to modify CQ: cq_count")
        within(cq_period, 0, attributes.MODERATION_PERIOD, "Failed to modify CQ: cq_period")
        self._core.modify(cq_count, cq_period)

    @verb("Request notify CQ failed")
    def req_notify(self, solicited_only: bool = False) -> None:
        """
        Ask for one event, when the next completion comes.

        @param solicited_only: only for a completion that the sender solicited, or for an error.
        """
        self._check()
        self._core.arm(bool(solicited_only))

    def ack_events(self, num_events: int) -> None:
        """
        @param num_events: of the events that were got, how many are done with.
        """
        with hub:
            self._check()
            self.num_events -= num_events


class CQ(PolledQueue):
    """
    A completion queue.
    """

    def __init__(
        self,
        context: Context,
        cqe: int,
        cq_context: object = None,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        """
        Create a completion queue.

        @param context: of the device.
        @param cqe: how many completions it shall hold at least.
        @param cq_context: whatever the program wants.
        @param channel: where it tells of completions, or None.
        @param comp_vector: 0.

        @raise PyverbsRDMAError: a parameter cannot be (EINVAL), or there are too many (ENOMEM).
        """
        super().__init__()
        if channel is not None:
            checked(channel, CompChannel)
        self.cq_context = cq_context
        self._create(checked(context, Context), cqe, channel, comp_vector)

    @property
    def cq(self) -> int:
        """
        A number that stands for it.
        """
        return id(self)

    @verb("Failed to poll CQ")
    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """
        Drive the devices, then take completions.

        @param num_entries: how many at most.

        @return: how many there were, and they.
        """
        self._check()
        self._device.check()
        if num_entries < 0:
            raise invalid("Failed to poll CQ")
        hub.drive()
        found = [_value(completion) for completion in self._core.poll(num_entries)]
        return len(found), found

    def __str__(self) -> str:
        """
        @return: a heading, then a line for each field.
        """
        return "CQ\n" + table([("Handle", self.handle), ("CQEs", self.cqe)])


def _value(completion: WorkCompletion) -> WC:
    return WC(
        wr_id=completion.workRequestID,
        status=int(completion.status),
        opcode=int(completion.opcode),
        byte_len=completion.byteLength,
        qp_num=completion.queuePairNumber,
        src_qp=completion.sourceQueuePair,
        imm_data=wcImmediate(completion),
        wc_flags=wcFlags(completion),
    )
