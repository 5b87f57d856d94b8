"""
Queue pair 1 of a path: connection management.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.hca.base.operation import GSI_QPN, MANAGEMENT, MANAGEMENT_HEADER

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.base.path import Path


class Management:
    """
    Queue pair 1 of a path: hands connection management to the device.

    @ivar waiting: Records that found no room.
    """

    __slots__ = ("path", "waiting")

    def __init__(self, path: Path) -> None:
        """
        Keep nothing.

        @param path: The path.
        """
        self.path = path
        self.waiting: deque[bytes] = deque()

    def send(self, record: bytes) -> None:
        """
        Publish a management record or keep it until there is room.
        """
        path, waiting = self.path, self.waiting
        if not path.alive:
            return
        if waiting or not path.postReserved(MANAGEMENT, record, False):
            if len(waiting) >= limits.MANAGEMENT_SENDS:
                path.fabric.count("management_dropped")
                return
            if not waiting:
                self._wait()
            waiting.append(record)

    def resume(self) -> None:
        """
        There is room again.
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
        """
        The medium is full.  Nothing ordinary overtakes what waits here: the
        first message of a connection must not come before its REP.
        """
        path = self.path
        path.holdBack(True)
        path.fabric.delayed[path] = None
        path.wantSpace(self)
        path.waiting.move_to_end(self, False)

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        Take a management record; a malformed one is counted and dropped.
        """
        path = self.path
        if opcode << 24 | GSI_QPN != MANAGEMENT or stop - start < 4:
            path.fabric.count("bad_management_record")
            return 0
        attribute, _ = MANAGEMENT_HEADER.unpack_from(buffer, start)
        path.fabric.owner.managementReceived(path, attribute, buffer, start + 4, stop)
        return 0


__all__ = ["Management"]
