"""
Queue pair 1 of a path: the general services interface, here connection management alone.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.hca.base.operation import GSI_QPN, MANAGEMENT, MANAGEMENT_HEADER

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.base.path import RecordPath


class Management:
    """
    Queue pair 1 of a path: passes connection management to the device.

    @ivar waiting: Records that found no room in the medium.
    """

    __slots__ = ("path", "waiting")

    def __init__(self, path: RecordPath) -> None:
        self.path = path
        self.waiting: deque[bytes] = deque()

    def send(self, record: bytes) -> None:
        """
        Publish a management record, or keep it until there is room.
        """
        path, waiting = self.path, self.waiting
        if not path.alive:
            return
        if waiting or not path.postReserved(MANAGEMENT, record, False):
            if len(waiting) >= limits.MANAGEMENT_SENDS:
                # A MAD is an unreliable datagram, so one may be lost: the CM repeats its messages until
                # they are answered (IBTA vol. 1 12.9.7; Linux cm.c, ib_send_cm_req).
                path.fabric.count("management_dropped")
                return
            if not waiting:
                self._wait()
            waiting.append(record)

    def resume(self) -> None:
        """
        Publish what waits, as far as there is room.
        """
        path, waiting = self.path, self.waiting
        while waiting:
            if not path.postReserved(MANAGEMENT, waiting[0], False):
                self._wait()
                return
            waiting.popleft()
        path.holdBack(False)
        path.fabric.delayed.pop(path, None)

    def _wait(self) -> None:
        path = self.path
        # Nothing ordinary may overtake a waiting record.  IBTA vol. 1 12.9.8: the first message of a
        # passive side may follow its REP at once, and would find no queue pair that is ready if it came
        # first.
        path.holdBack(True)
        path.fabric.delayed[path] = None
        path.wantSpace(self)
        # First in the queue of waiters: all others are held back by this one.
        path.waiting.move_to_end(self, False)

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        Receive a management record; a malformed one is counted and dropped.
        """
        path = self.path
        # IBTA vol. 1 13.4: queue pair 1 drops what is no MAD of a class that is served, without an answer.
        if opcode << 24 | GSI_QPN != MANAGEMENT or stop - start < 4:
            path.fabric.count("bad_management_record")
            return 0
        attribute, _ = MANAGEMENT_HEADER.unpack_from(buffer, start)
        path.fabric.owner.managementReceived(path, attribute, buffer, start + 4, stop)
        return 0


__all__ = ["Management"]
