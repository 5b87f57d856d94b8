"""
Asynchronous events: what happens to an object without anybody having asked.

Numbers are those of verbs (C{enum ibv_event_type}; IBTA vol. 1 11.6.3).
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Any

from twisted_ib import limits


class EventType(IntEnum):
    """
    What happened.
    """

    CQ_ERR = 0
    QP_FATAL = 1
    QP_REQ_ERR = 2
    QP_ACCESS_ERR = 3
    COMM_EST = 4
    SQ_DRAINED = 5
    PATH_MIG = 6
    PATH_MIG_ERR = 7
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
    The events of one program's objects that it has not fetched.

    An object that can have events has an attribute C{onEvent}: L{None}, or what to call
    with the L{EventType} and the object; L{AsyncEvents.add} is meant for that.

    @ivar lost: how many found no place.
    """

    __slots__ = ("_events", "lost")

    def __init__(self) -> None:
        self._events: deque[tuple[EventType, Any]] = deque()
        self.lost = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, kind: EventType, element: Any) -> None:
        """
        Something happened to an object.
        """
        if len(self._events) >= limits.ASYNC_EVENTS:
            self.lost += 1
        else:
            self._events.append((kind, element))

    def take(self) -> tuple[EventType, Any] | None:
        """
        The oldest event and its object, or L{None}.
        """
        return self._events.popleft() if self._events else None

    def forget(self, element: Any) -> None:
        """
        An object is destroyed: so are its events.
        """
        self._events = deque(event for event in self._events if event[1] is not element)
