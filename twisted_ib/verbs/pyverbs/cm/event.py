"""
Events of the communication manager, and the channel that delivers them.

Source: rdma-core 65, C{pyverbs/cmid.pyx}, C{librdmacm/cma.c}; the man page C{rdma_get_cm_event(3)}.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import TYPE_CHECKING

import attrs

from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.core.readable import Readable
from twisted_ib.verbs.pyverbs.base.addr import AHAttr
from twisted_ib.verbs.pyverbs.base.base import PyverbsObject, checked
from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError, PyverbsUserError
from twisted_ib.verbs.pyverbs.base.verb import VerbsObject
from twisted_ib.verbs.pyverbs.cm.negotiation import ConnParam, NegotiatedParameters, paramOf
from twisted_ib.verbs.pyverbs.enums.cm import rdma_cm_event_type

if TYPE_CHECKING:
    from twisted_ib.verbs.pyverbs.cm.identifier import Identifier


@attrs.frozen
class Target:
    """
    The destination of datagrams: address, queue pair number and Q_Key.
    """

    #: The address vector of the HCA or multicast group.
    address: AHAttr = attrs.field(factory=AHAttr)
    number: int = 0
    key: int = 0


@attrs.define(eq=False)
class CMEventRecord:
    """
    One event of an identifier.
    """

    #: One of C{rdma_cm_event_type}.
    kind: int
    identifier: Identifier
    #: 0, a negative errno, or the peer's reject reason.
    status: int = 0
    # IBTA vol. 1 12.6: private data areas have a fixed size and no length field, so the whole area is
    # reported, as Linux cma.c does.
    #: The whole private data area of the message.
    privateData: bytes = b""
    #: The peer's connection parameters, or None.
    terms: NegotiatedParameters | None = None
    #: The destination of datagrams, or None.
    target: Target | None = None
    #: The new identifier of a connect request, until the program accepts ownership of it.
    child: Identifier | None = None
    #: The program's context of a multicast group, or None.
    context: object = None
    #: Whether it was left to the program's next call.
    isLeft: bool = False

    def drop(self) -> None:
        """
        Reject the request that this event carries, if the program never fetched it.
        """
        child, self.child = self.child, None
        if child is not None:
            child.close()


class CMEventQueue:
    """
    The queue of events that the program has not fetched.
    """

    # The queue needs no bound of its own: an identifier has few events in its life, and each listener bounds
    # its waiting requests by its backlog.
    __slots__ = ("_readable", "_waiting", "closed")

    def __init__(self) -> None:
        self._waiting: deque[CMEventRecord] = deque()
        #: Whether events are discarded.
        self.closed = False
        self._readable: Readable | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, report: CMEventRecord) -> None:
        """
        Append an event.
        """
        if self.closed:
            # Without a reader the request would keep the peer's REQ half open until its timers expire.
            report.drop()
            return
        if report.child is not None:
            report.identifier.requestsWaiting += 1
        self._waiting.append(report)
        if self._readable is not None:
            self._readable.tell()
        hub.wake()

    def take(self) -> CMEventRecord | None:
        """
        Remove and return the oldest event, or None.
        """
        if not self._waiting:
            return None
        report = self._waiting.popleft()
        if report.child is not None:
            report.identifier.requestsWaiting -= 1
        self._emptied()
        return report

    def leave(self) -> bool:
        """
        Leave the end of a connection to the program's next call, once: the program polls its completions
        first.  The queue becomes readable anew.

        @return: whether the oldest event is left.
        """
        if not self._waiting or (oldest := self._waiting[0]).isLeft:
            return False
        oldest.isLeft = oldest.kind == rdma_cm_event_type.RDMA_CM_EVENT_DISCONNECTED
        if oldest.isLeft and self._readable is not None:
            self._readable.tell()
        return oldest.isLeft

    def withdraw(self, identifier: Identifier) -> list[CMEventRecord]:
        """
        Remove and return the events of one identifier.
        """
        own = [report for report in self._waiting if report.identifier is identifier]
        if own:
            # The listener's backlog counts what waits here; without this a migrated listener would stay full.
            identifier.requestsWaiting = 0
            left = [report for report in self._waiting if report.identifier is not identifier]
            self._waiting = deque(left)
            self._emptied()
        return own

    def attach(self, readable: Readable | None) -> None:
        """
        Keep a descriptor readable while there are events.
        """
        self._readable = readable
        if readable is not None and self._waiting:
            readable.set()

    def _emptied(self) -> None:
        if self._readable is not None and not self._waiting:
            self._readable.clear()

    def drop(self) -> None:
        """
        Discard all events and reject the requests among them.
        """
        self.closed = True
        hub.wake()
        while (report := self.take()) is not None:
            report.drop()


class CMEventChannel(VerbsObject):
    """
    A queue of events, in order of arrival, for any number of identifiers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reports = reports = CMEventQueue()
        self._readable: Readable | None = None
        # After a fork the descriptor and the device are the parent's: a child that read here would take the
        # parent's wake-ups.
        self._process = os.getpid()
        self._opened(reports.drop)

    def _check(self) -> None:
        super()._check()
        if self._process != os.getpid():
            raise PyverbsUserError("The event channel belongs to another process")

    def _closed(self) -> None:
        self._reports.attach(None)
        readable, self._readable = self._readable, None
        if readable is not None:
            readable.close()

    def get_cm_event(self) -> CMEvent:
        """
        Wait for the oldest event, and serve peers meanwhile.
        """
        return CMEvent(self)

    def take_event(self) -> CMEvent | None:
        """
        Fetch the oldest event, if there is one.  The hub's lock is held.  Not in pyverbs.

        @raise PyverbsUserError: the channel is closed.
        """
        self._check()
        report = self._reports.take()
        return None if report is None else CMEvent.of(report)

    def leave_event(self) -> bool:
        """
        See L{CMEventQueue.leave}.  The hub's lock is held.  Not in pyverbs.
        """
        return self._reports.leave()

    @property
    def pending(self) -> bool:
        """
        Whether L{get_cm_event} would return at once.  Not in pyverbs.
        """
        # Without the question which process this is, to the kernel.
        super()._check()
        return len(self._reports) > 0

    @property
    def fd(self) -> int:
        """
        A descriptor that is readable while L{get_cm_event} would return at once.
        """
        with hub:
            self._check()
            # Made on first use: most programs never poll, and a descriptor per channel would count.
            if self._readable is None:
                self._readable = Readable()
                self._reports.attach(self._readable)
            return self._readable.fd

    def __del__(self) -> None:
        if getattr(self, "_readable", None) is not None:
            self._closed()
        super().__del__()


def nextReport(reports: CMEventQueue, timeout: float | None = None) -> CMEventRecord | None:
    """
    Wait for an event, and serve peers meanwhile.

    @param timeout: seconds; None waits without limit.
    @return: the event, or None after the timeout or when the queue is closed.
    """
    # A closed channel ends the wait: another thread may close it while this one sleeps.
    found = hub.wait(lambda: reports.take() or reports.closed, timeout)
    return found if isinstance(found, CMEventRecord) else None


class CMEvent(VerbsObject):
    """
    An event.  It must be acknowledged, or closed, before its identifier is closed.  A connect request that no
    CMID was made of is rejected then.
    """

    def __init__(self, channel: CMEventChannel) -> None:
        """
        Wait for an event, and serve peers meanwhile.

        @raise PyverbsUserError: the channel is closed.
        """
        super().__init__()
        checked(channel, CMEventChannel)._check()
        report = nextReport(channel._reports)
        if report is None:
            raise PyverbsUserError("The event channel is closed")
        self._take(report)

    @classmethod
    def of(cls, report: CMEventRecord) -> CMEvent:
        """
        Make the event of a record that was taken from a channel.  Not in pyverbs.
        """
        made = cls.__new__(cls)
        VerbsObject.__init__(made)
        made._take(report)
        return made

    def _take(self, report: CMEventRecord) -> None:
        self._report: CMEventRecord | None = report
        # With librdmacm/cma.c a request that was acknowledged and never answered stays open until
        # rdma_destroy_id of its identifier; here closing the event rejects it.
        self._opened(report.drop)

    def _closed(self) -> None:
        self._report = None

    def _get(self) -> CMEventRecord:
        if self._report is None:
            raise PyverbsRDMAError("The event is acknowledged already", errno.EINVAL)
        return self._report

    @property
    def event_type(self) -> int:
        """
        One of C{rdma_cm_event_type}.
        """
        return self._get().kind

    @property
    def status(self) -> int:
        """
        0, a negative errno, or the peer's reject reason (IBTA vol. 1 12.6.7.2).
        """
        return self._get().status

    @property
    def private_data(self) -> bytes:
        """
        The whole private data area of the message, with zeros after the peer's data.
        """
        return self._get().privateData

    @property
    def conn_param(self) -> ConnParam | None:
        """
        The peer's connection parameters from this side's point of view, or None.  Not in pyverbs.
        """
        terms = self._get().terms
        return None if terms is None else paramOf(terms)

    @property
    def identifier(self) -> object:
        """
        The endpoint that the event is of: the C{identifier} of a C{CMID}, of the listening one for a connect
        request.  Not in pyverbs.
        """
        return self._get().identifier

    @property
    def context(self) -> object:
        """
        Of an event of a multicast group, the context that the program joined it with.  Not in pyverbs.
        """
        return self._get().context

    def ack_cm_event(self) -> None:
        """
        Acknowledge the event.

        @raise PyverbsRDMAError: it is acknowledged already (EINVAL).
        """
        if self._report is None:
            raise PyverbsRDMAError("Failed to Acknowledge Event - ", errno.EINVAL)
        # rdma-core librdmacm/cma.c, rdma_ack_cm_event: an event may be acknowledged once; librdmacm frees it.
        # Here the second call is an error instead of a use after free.
        self.close()

    def event_str(self) -> str:
        """
        @return: the name of the event type; empty once the event is acknowledged.
        """
        if self._report is None:
            return ""
        return rdma_cm_event_type(self._report.kind).name


class UDParam(PyverbsObject):
    """
    The destination of a datagram service or multicast group, taken from an event.
    """

    def __init__(self, cm_event: CMEvent) -> None:
        """
        @param cm_event: C{RDMA_CM_EVENT_ESTABLISHED} of a datagram service, or
            C{RDMA_CM_EVENT_MULTICAST_JOIN}; all values are 0 for other events.
        """
        super().__init__()
        self._target = checked(cm_event, CMEvent)._get().target or Target()

    @property
    def qp_num(self) -> int:
        """
        The queue pair number.
        """
        return self._target.number

    @property
    def qkey(self) -> int:
        """
        The Q_Key.
        """
        return self._target.key

    @property
    def ah_attr(self) -> AHAttr:
        """
        A copy of the address vector.
        """
        return self._target.address.copy()
