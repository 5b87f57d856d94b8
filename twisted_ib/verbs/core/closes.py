"""
Objects that a program has dropped instead of closing them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted_ib.errors import HCAError, ResourceBusyError

if TYPE_CHECKING:
    from twisted_ib.verbs.core.hub import Hub


class DeferredCloses:
    """
    The objects that were dropped without being closed, until it is safe to close them.

    @ivar dead: functions that close them.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.dead: deque[Callable[[], None]] = deque()

    def closeLater(self, close: Callable[[], None]) -> None:
        """
        Close a dropped object now, or when the next verb begins.

        @param close: closes it; must not refer to the object, which could never be collected then.
        """
        # Runs from __del__, which may interrupt this very thread inside a verb with the lock held: an RLock
        # would let it in.  deque.append is atomic, so that even a thread without the lock can add to it.
        self.dead.append(close)
        if self._hub.enterIfFree():
            try:
                self.closePending()
            finally:
                self._hub.leave()

    def closePending(self) -> None:
        """
        Close the dropped objects; one that another still uses stays.  The lock is held.
        """
        while self.dead:
            # Garbage comes in no order: a PD may be found before its MRs.  Each pass closes what has become
            # free; a pass that closes nothing ends it.
            dead = [self.dead.popleft() for _ in range(len(self.dead))]
            busy = [close for close in dead if not self._close(close)]
            self.dead.extend(busy)
            if len(busy) == len(dead):
                return

    @staticmethod
    def _close(close: Callable[[], None]) -> bool:
        try:
            close()
        except ResourceBusyError:
            return False
        except (HCAError, OSError):
            # The device was closed before, and its objects with it.
            pass
        return True

    def forget(self) -> None:
        """
        Drop everything, in a forked child: the objects are the parent's.
        """
        self.dead.clear()
