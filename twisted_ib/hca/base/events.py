"""
Asynchronous events: errors and state changes of objects that no call reports.

The numbers are those of verbs (C{libibverbs/verbs.h}, C{enum ibv_event_type}; IBTA vol. 1 11.6.3).
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Any

from twisted_ib import limits


class EventType(IntEnum):
    """
    The kinds of events.
    """

    # IBTA vol. 1 11.6.3.2: affiliated errors.
    CQ_ERR = 0
    QP_FATAL = 1
    QP_REQ_ERR = 2
    QP_ACCESS_ERR = 3
    # IBTA vol. 1 11.6.3.1: affiliated events.
    COMM_EST = 4
    SQ_DRAINED = 5
    PATH_MIG = 6
    PATH_MIG_ERR = 7
    # Unaffiliated: of the HCA and its port, except those of shared receive queues.
    DEVICE_FATAL = 8
    PORT_ACTIVE = 9
    PORT_ERR = 10
    LID_CHANGE = 11
    PKEY_CHANGE = 12
    SM_CHANGE = 13
    SRQ_ERR = 14
    SRQ_LIMIT_REACHED = 15
    QP_LAST_WQE_REACHED = 16
    CLIENT_REREGISTER = 17
    GID_CHANGE = 18
    WQ_FATAL = 19


class AsyncEvents:
    """
    The queue of one program's events.

    An object with events has an attribute C{onEvent}: L{None}, or a function of the L{EventType} and the
    object, such as L{AsyncEvents.add}.
    """

    __slots__ = ("_events", "lost")

    def __init__(self) -> None:
        self._events: deque[tuple[EventType, Any]] = deque()
        #: Events dropped because the queue was full.
        self.lost = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, kind: EventType, element: Any) -> None:
        """
        Append an event.
        """
        # The oldest stay: the first error explains those after it.  Peers can cause events, so the queue is
        # bounded.
        if len(self._events) >= limits.ASYNC_EVENTS:
            self.lost += 1
        else:
            self._events.append((kind, element))

    def take(self) -> tuple[EventType, Any] | None:
        """
        Remove and return the oldest event and its object, or L{None}.
        """
        return self._events.popleft() if self._events else None

    def forget(self, element: Any) -> None:
        """
        Remove the events of a destroyed object.
        """
        # Linux uverbs releases the events of a destroyed object too: no program may be handed a dead one.
        self._events = deque(event for event in self._events if event[1] is not element)
