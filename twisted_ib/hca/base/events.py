"""
Asynchronous events: errors and state changes of objects that no call reports.

The numbers are those of verbs (C{libibverbs/verbs.h}, C{enum ibv_event_type}; IBTA vol. 1 11.6.3).
L{notifyAll} tells several users of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum


def notifyAll(calls: Iterable[Callable[[], object]]) -> None:
    """
    Call users.  An exception from one keeps no other from its call; the first is raised at the end.
    """
    failure: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure


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
