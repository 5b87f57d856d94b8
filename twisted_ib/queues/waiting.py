"""
C{multiprocessing.connection.wait}, also for connections through shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable

# By its name: ib-run --queues may put this module's in its place.
from multiprocessing.connection import wait as kernelWait
from typing import Any

from twisted_ib.drive.process import monotonic
from twisted_ib.queues.connection import Connection


def wait(object_list: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """
    Wait until connections, sockets or descriptors can be read, or processes have ended.

    @param timeout: in seconds; None is for ever.
    @return: Those that are ready.
    """
    objects = list(object_list)
    end = None if timeout is None else monotonic() + timeout
    while True:
        left = timeout if end is None else max(0.0, end - monotonic())
        ready = kernelWait(objects, left)
        # A wake-up may be late: its message was read before it.
        found = [
            each for each in ready if not isinstance(each, Connection) or not each.readable or each.poll()
        ]
        if found or not ready:
            return found
