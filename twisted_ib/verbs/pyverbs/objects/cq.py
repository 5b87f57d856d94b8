"""
Completion channels and completion queues.  Source: rdma-core 65, C{pyverbs/cq.pyx}.
"""

from __future__ import annotations

import errno
import select
from collections import deque
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import HCAError, ResourceLimitError
from twisted_ib.hca.base import attributes
from twisted_ib.hca.host.libc import KernelEpoll
from twisted_ib.hca.queues.completion import CompletionQueue
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.core.readable import Readable
from twisted_ib.verbs.pyverbs.base.base import checked, table
from twisted_ib.verbs.pyverbs.base.errors import PyverbsError, PyverbsRDMAError
from twisted_ib.verbs.pyverbs.base.verb import (
    VerbsObject,
    failure,
    invalid,
    verb,
    waitFor,
    within,
)
from twisted_ib.verbs.pyverbs.base.wc import WC, workCompletion
from twisted_ib.verbs.pyverbs.objects.device import Context


class _CQEvents:
    """
    Completion queues with an event that the program has not fetched, and a descriptor that is readable
    meanwhile.

    @ivar waiting: these queues, in the order of their events.
    @ivar readable: a descriptor that is readable while there are any, or from L{wake} to L{settle}.
    """

    def __init__(self) -> None:
        self.waiting: deque[CompletionQueue] = deque()
        self.readable = Readable()

    def add(self, queue: CompletionQueue) -> None:
        self.waiting.append(queue)
        self.readable.tell()
        # A verb of another thread makes completions too, as when it flushes the queue pair.
        hub.wake()

    def wake(self) -> None:
        self.readable.set()

    def take(self) -> CompletionQueue | None:
        queue = self.waiting.popleft() if self.waiting else None
        self.settle()
        return queue

    def settle(self) -> None:
        if not self.waiting:
            self.readable.clear()

    def forget(self, queue: CompletionQueue) -> None:
        # Else get_cq_event would return a queue that is destroyed.
        if queue in self.waiting:
            self.waiting = deque(other for other in self.waiting if other is not queue)
            self.settle()

    def close(self) -> None:
        # Before the descriptors are closed: others may get their numbers at once.
        hub.watchers.discard(self)
        self.readable.close()


class CompChannel(VerbsObject):
    """
    A completion channel: a program sleeps on it until a completion queue has an event.
    """

    rank = 20

    def __init__(self, context: Context) -> None:
        """
        @raise PyverbsRDMAError: there are too many channels (ENOMEM), or no descriptor is free (EMFILE).
        """
        super().__init__()
        self._create(checked(context, Context))

    @verb("Failed to create a completion channel")
    def _create(self, context: Context) -> None:
        context._check()
        self.context: Context | None = context
        self._device = device = context._device
        # Each takes a descriptor of the process.
        if device in _channels and _channels[device] >= limits.COMPLETION_CHANNELS:
            raise ResourceLimitError(f"a device has at most {limits.COMPLETION_CHANNELS} completion channels")
        self._notices = notices = _CQEvents()
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
        A descriptor that is readable when L{get_cq_event} may have an event.  The program must then call
        that, or C{poll}: nothing else drives the device.
        """
        with hub:
            self._check()
            if self._poller is None:
                # An epoll descriptor is readable while one of its members is: the program can watch this
                # single number for completions that are here and for doorbells that lead to some.  Made on
                # demand, as most programs block in get_cq_event.
                self._poller = poller = KernelEpoll()
                poller.register(self._notices.readable.fd, select.EPOLLIN)
                poller.register(self._device.fabric.fileno(), select.EPOLLIN)
                # From now on the hub arms the doorbells for this program, as for a thread in wait().
                hub.watchers.add(self._notices)
            fd: int = self._poller.fileno()
            return fd

    @property
    def event_fd(self) -> int:
        """
        A descriptor that is readable while there is an event, and at no other time: for programs with a
        thread that drives the devices.  Not in pyverbs.
        """
        self._check()
        return self._notices.readable.fd

    def get_cq_event(self, expected_cq: Any) -> None:
        """
        Wait for an event of a completion queue that C{req_notify} has armed; the devices are driven
        meanwhile.

        @param expected_cq: the queue that the program thinks it is.
        @raise PyverbsRDMAError: it is another.
        """
        # As pyverbs/cq.pyx: the event is consumed all the same.
        if self.next_event() is not expected_cq:
            raise PyverbsRDMAError("Received event on an unexpected CQ", errno.EINVAL)

    def next_event(self, timeout: float | None = None) -> PolledQueue | None:
        """
        Fetch the oldest event, of any queue of the channel.  Not in pyverbs.

        @param timeout: seconds to wait for one; None waits for ever, as L{get_cq_event}.
        @return: its queue; None if there is none in this time.
        """
        return waitFor(self.take_event, "Failed to get CQ event", timeout)

    def take_event(self) -> PolledQueue | None:
        """
        Fetch the oldest event, if there is one.  The hub's lock is held.  Not in pyverbs.
        """
        # Closed by another thread: this raises in the waiting one.
        self._check()
        self._device.check()
        while self._notices.waiting:
            core = self._notices.take()
            # A queue may have been dropped with its event.
            for queue in self._children:
                if isinstance(queue, PolledQueue) and queue._core is core:
                    queue.num_events += 1
                    return queue
        return None


#: The number of channels of each device.
_channels: dict[Any, int] = {}


class PolledQueue(VerbsObject):
    """
    Base of both kinds of completion queue.

    @ivar num_events: events that were fetched and not acknowledged.
    """

    rank = 30
    _failed = "Failed to create a CQ"

    @verb()
    def _create(self, context: Context, cqe: Any, channel: CompChannel | None, comp_vector: int) -> None:
        context._check()
        # man ibv_create_cq(3) allows more than asked for; here it is exactly cqe.
        size = within(cqe, 1, limits.COMPLETION_QUEUE_DEPTH, f"{self._failed}: cqe")
        within(comp_vector, 0, attributes.COMPLETION_VECTORS - 1, f"{self._failed}: comp_vector")
        self.context: Context | None = context
        self.num_events = 0
        self._device = device = context._device
        self._core = core = device.objects.createCompletionQueue(size)
        self._channel = channel
        self._events = events = context._events
        # IBTA vol. 1 11.6.3.2: an overrun is an asynchronous event of the queue, IBV_EVENT_CQ_ERR.
        core.onEvent = events.add
        notices = None
        if channel is not None:
            channel._check()
            notices = channel._notices
            core.onCompletion = notices.add

        # A plain function of core objects only: see VerbsObject._opened.
        def close() -> None:
            if not device.closed:
                device.objects.destroyCompletionQueue(core)
            events.forget(core)
            if notices is not None:
                notices.forget(core)

        # man ibv_get_cq_event(3): destroying a CQ waits until its events are acknowledged.  Not here: a
        # program that forgot one would hang in close().
        self._opened(close, context, channel)

    def _closed(self) -> None:
        self.context = self._channel = None

    @property
    def comp_channel(self) -> CompChannel | None:
        """
        The channel of its events, or None.
        """
        return self._channel

    @property
    def cqe(self) -> int:
        """
        The number of completions that it holds at most.
        """
        self._check()
        return self._core.depth

    @verb("Failed to resize CQ")
    def resize(self, cqe: int) -> None:
        """
        @param cqe: completions that it shall hold.
        @raise PyverbsRDMAError: too many, or fewer than are waiting (EINVAL).
        """
        self._check()
        # A resize must not lose completions that wait.
        self._core.recall()
        size = within(cqe, max(1, len(self._core)), limits.COMPLETION_QUEUE_DEPTH, "Failed to resize CQ: cqe")
        self._core.resize(size)

    @verb("Failed to modify CQ")
    def modify(self, cq_count: int = 0, cq_period: int = 0) -> None:
        """
        Moderate its events.

        @param cq_count: completions per event; 0 for any number.
        @param cq_period: microseconds that the first of them may wait; 0 for no limit.
        @raise PyverbsRDMAError: out of range (EINVAL).
        """
        self._check()
        within(cq_count, 0, attributes.MODERATED_COMPLETIONS, "Failed to modify CQ: cq_count")
        within(cq_period, 0, attributes.MODERATION_PERIOD, "Failed to modify CQ: cq_period")
        self._core.modify(cq_count, cq_period)

    @verb("Request notify CQ failed")
    def req_notify(self, solicited_only: bool = False) -> None:
        """
        Ask for one event, at the next completion.

        @param solicited_only: only for a solicited completion or an error.
        """
        self._check()
        # IBTA vol. 1 11.4.2.2: completions that wait already raise no event, so a program arms first and
        # polls once more.
        self._core.arm(bool(solicited_only))

    def ack_events(self, num_events: int) -> None:
        """
        @param num_events: fetched events that the program is done with.
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
        @param cqe: completions that it shall hold.
        @param cq_context: any object, for the program.
        @param channel: the channel of its events, or None.
        @param comp_vector: 0.
        @raise PyverbsRDMAError: a parameter is invalid (EINVAL), or there are too many queues (ENOMEM).
        """
        super().__init__()
        if channel is not None:
            checked(channel, CompChannel)
        self.cq_context = cq_context
        self._create(checked(context, Context), cqe, channel, comp_vector)

    @property
    def cq(self) -> int:
        """
        An integer in place of the C pointer.
        """
        return id(self)

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """
        Drive the devices, then fetch completions.

        @param num_entries: how many at most.
        @return: their number, and the completions, the oldest first.
        """
        if self._closer is None:
            self._check()
        if num_entries < 0:
            raise invalid("Failed to poll CQ")
        # Not decorated as the other verbs are, which would take a tenth of the time.
        try:
            found = hub.poll(self._device, self._core, num_entries)
        except PyverbsError:
            raise
        except (HCAError, OSError) as error:
            raise failure("Failed to poll CQ", error) from error
        if not found:
            return 0, []
        if num_entries == 1:
            return 1, [workCompletion(found[0])]
        return len(found), [workCompletion(each) for each in found]

    def __str__(self) -> str:
        return "CQ\n" + table([("Handle", self.handle), ("CQEs", self.cqe)])
