"""
What a communication manager reports, and where a program hears of it.

Source: rdma-core 65, C{pyverbs/cmid.pyx}; the man page C{rdma_get_cm_event(3)}.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import TYPE_CHECKING, Any

import attrs

from twisted_ib.hca.verbs.base.addr import AHAttr
from twisted_ib.hca.verbs.base.base import PyverbsObject, checked
from twisted_ib.hca.verbs.base.errors import PyverbsRDMAError, PyverbsUserError
from twisted_ib.hca.verbs.base.hub import hub
from twisted_ib.hca.verbs.base.verb import VerbsObject
from twisted_ib.hca.verbs.cm.connparam import ConnParam
from twisted_ib.hca.verbs.cm.negotiation import NegotiatedParameters, paramOf
from twisted_ib.hca.verbs.enums.cm import rdma_cm_event_type

if TYPE_CHECKING:
    from twisted_ib.hca.verbs.cm.identifier import Identifier


@attrs.frozen
class Target:
    """
    Where datagrams go.

    @ivar address: the address of the HCA, or of a group.
    @ivar number: the queue pair.
    @ivar key: its Q_Key.
    """

    address: AHAttr = attrs.field(factory=AHAttr)
    number: int = 0
    key: int = 0


@attrs.define(eq=False)
class Report:
    """
    One thing that happened to an identifier.

    @ivar kind: one of C{rdma_cm_event_type}.
    @ivar status: 0, or what went wrong: a negative errno, or what the peer gave as its reason.
    @ivar privateData: the whole area of the message, which has no length in it.
    @ivar terms: what the peer says of a connection, or None.
    @ivar target: where datagrams go, or None.
    @ivar child: the new identifier of a request, until somebody takes it.
    """

    kind: int
    identifier: Identifier
    status: int = 0
    privateData: bytes = b""
    terms: NegotiatedParameters | None = None
    target: Target | None = None
    child: Identifier | None = None

    def drop(self) -> None:
        """
        Nobody will take the request: refuse it.
        """
        child, self.child = self.child, None
        if child is not None:
            child.close()


class Reports:
    """
    What was reported and not heard yet.  Each identifier has few reports in its life, and how
    many requests wait is bounded by each listener.

    @ivar closed: nobody will hear of anything.
    @ivar signal: called with True when there is something, with False when there is nothing more.
    """

    __slots__ = ("_waiting", "closed", "signal")

    def __init__(self) -> None:
        self._waiting: deque[Report] = deque()
        self.closed = False
        self.signal: Any = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, report: Report) -> None:
        """
        Report.
        """
        if self.closed:
            report.drop()
            return
        if report.child is not None:
            report.identifier.requestsWaiting += 1
        self._waiting.append(report)
        if self.signal is not None and len(self._waiting) == 1:
            self.signal(True)
        hub.wake()

    def take(self) -> Report | None:
        """
        @return: the oldest, or None.
        """
        if not self._waiting:
            return None
        report = self._waiting.popleft()
        if report.child is not None:
            report.identifier.requestsWaiting -= 1
        if self.signal is not None and not self._waiting:
            self.signal(False)
        return report

    def withdraw(self, identifier: Identifier) -> list[Report]:
        """
        @return: what was about one identifier, which waits no more.
        """
        own = [report for report in self._waiting if report.identifier is identifier]
        if own:
            identifier.requestsWaiting = 0
            left = [report for report in self._waiting if report.identifier is not identifier]
            self._waiting = deque(left)
            if self.signal is not None and not left:
                self.signal(False)
        return own

    def drop(self) -> None:
        """
        Nobody will hear of any of it.
        """
        self.closed = True
        hub.wake()
        while (report := self.take()) is not None:
            report.drop()


class CMEventChannel(VerbsObject):
    """
    Where the events of identifiers come in, one after the other.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reports = reports = Reports()
        self._pipe: tuple[int, int] | None = None
        self._process = os.getpid()
        self._opened(reports.drop)

    def _check(self) -> None:
        """
        @raise PyverbsUserError: it is closed, or the channel of the process that this one was
            forked from.
        """
        super()._check()
        if self._process != os.getpid():
            raise PyverbsUserError("The event channel belongs to another process")

    def _closed(self) -> None:
        self._reports.signal = None
        pipe, self._pipe = self._pipe, None
        for fd in pipe or ():
            os.close(fd)

    def get_cm_event(self) -> CMEvent:
        """
        Wait for an event, and serve peers meanwhile.

        @return: the oldest event.
        """
        return CMEvent(self)

    @property
    def pending(self) -> bool:
        """
        Whether L{get_cm_event} has something to give at once.  Not in pyverbs.
        """
        self._check()
        return bool(len(self._reports))

    @property
    def fd(self) -> int:
        """
        A descriptor that is readable when L{get_cm_event} has something to give.
        """
        with hub:
            self._check()
            if self._pipe is None:
                self._pipe = os.pipe()
                if len(self._reports):
                    self._signal(True)
                self._reports.signal = self._signal
            return self._pipe[0]

    def _signal(self, any: bool) -> None:
        assert self._pipe is not None
        if any:
            os.write(self._pipe[1], b"!")
        else:
            os.read(self._pipe[0], 1)

    def __del__(self) -> None:
        if getattr(self, "_pipe", None) is not None:
            self._closed()
        super().__del__()


def nextReport(reports: Reports, timeout: float | None = None) -> Report | None:
    """
    Wait for something to be reported, and serve peers meanwhile.

    @param timeout: seconds, None for ever.
    @return: it, or None if nothing was, or nobody shall hear of it.
    """
    found: list[Report] = []

    def ready() -> bool:
        report = reports.take()
        if report is not None:
            found.append(report)
        return report is not None or reports.closed

    hub.wait(ready, timeout)
    return found[0] if found else None


class CMEvent(VerbsObject):
    """
    Something that happened.  It must be acknowledged, or closed, before the identifier that it is
    about is closed; a request that nobody made a CMID of is refused then.
    """

    def __init__(self, channel: CMEventChannel) -> None:
        """
        Wait for an event, and serve peers meanwhile.

        @param channel: where it is to come.

        @raise PyverbsUserError: the channel is closed.
        """
        super().__init__()
        checked(channel, CMEventChannel)._check()
        report = nextReport(channel._reports)
        if report is None:
            raise PyverbsUserError("The event channel is closed")
        self._take(report)

    def _take(self, report: Report) -> None:
        self._report: Report | None = report
        self._opened(report.drop)

    def _closed(self) -> None:
        self._report = None

    def _get(self) -> Report:
        """
        @raise PyverbsRDMAError: it is acknowledged already (EINVAL).
        """
        if self._report is None:
            raise PyverbsRDMAError("The event is acknowledged already", errno.EINVAL)
        return self._report

    @property
    def event_type(self) -> int:
        """
        What happened, one of C{rdma_cm_event_type}.
        """
        return self._get().kind

    @property
    def status(self) -> int:
        """
        0, or what went wrong: a negative errno, or the reason that the peer gave (IBTA vol. 1
        12.6.7.2).
        """
        return self._get().status

    @property
    def private_data(self) -> bytes:
        """
        The private data that came with it: the whole area of the message, zeros behind what the
        peer wrote.
        """
        return self._get().privateData

    @property
    def conn_param(self) -> ConnParam | None:
        """
        What the peer says of the connection, from this side's point of view; None if it says
        nothing.  Not in pyverbs.
        """
        terms = self._get().terms
        return None if terms is None else paramOf(terms)

    def ack_cm_event(self) -> None:
        """
        The program has seen it.

        @raise PyverbsRDMAError: for the second time (EINVAL).
        """
        if self._report is None:
            raise PyverbsRDMAError("Failed to Acknowledge Event - ", errno.EINVAL)
        self.close()

    def event_str(self) -> str:
        """
        @return: the name of what happened; nothing once it is acknowledged.
        """
        if self._report is None:
            return ""
        return rdma_cm_event_type(self._report.kind).name


class UDParam(PyverbsObject):
    """
    Where the datagrams of a service go, from the event that says so.
    """

    def __init__(self, cm_event: CMEvent) -> None:
        """
        @param cm_event: C{RDMA_CM_EVENT_ESTABLISHED} of a datagram service, or
            C{RDMA_CM_EVENT_MULTICAST_JOIN}; all zeros with others.
        """
        super().__init__()
        self._target = checked(cm_event, CMEvent)._get().target or Target()

    @property
    def qp_num(self) -> int:
        """
        The queue pair.
        """
        return self._target.number

    @property
    def qkey(self) -> int:
        """
        Its Q_Key.
        """
        return self._target.key

    @property
    def ah_attr(self) -> AHAttr:
        """
        A copy of the address.
        """
        return self._target.address.copy()
