"""
Waits that need no turn: of a thread of a process whose devices have nothing to do but to answer.

Between two waits of a server whose clients all come over TCP nobody drives the devices: they stay armed, and
their deadline holds.  So the next wait is the kernel's alone, for one descriptor more.  No lock is taken: a
thread sleeps while it is C{inside}, and whoever takes the devices (L{Idle.take}) makes it the one that drives
them and sleeps, as it is otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import get_ident
from typing import ClassVar, Final, Protocol, TypeVar

_Socket = TypeVar("_Socket")
_Accepted = TypeVar("_Accepted")

#: A result of the kernel's C{poll}.
Found = list[tuple[int, int]]
#: Milliseconds of a second.
_MILLI: Final = 1e3


class Served(Protocol):
    """
    The reactor of the devices.
    """

    @property
    def _newTimedCalls(self) -> Collection[object]: ...


class Idle:
    """
    The devices of a process while nobody drives them.

    @ivar holds: Whether that is so: they are armed, nothing else is to be done until C{until}, by
        C{monotonic}, and all that clients come to is what the kernel has, too.
    @ivar inside: The thread that sleeps, or 0.
    @ivar bell: The event that C{poll} finds if the devices have something to do.
    @ivar found: The events that the last sleep has found, until one is accepted; C{thread}: whose that was.
    @cvar last: The one that has begun last, unless it was taken.
    """

    last: ClassVar[Idle | None] = None

    __slots__ = ("_left", "_served", "bell", "found", "holds", "inside", "thread", "until")

    def __init__(self, served: Served, bell: tuple[int, int], left: Callable[[], object]) -> None:
        """
        @param left: Called by a thread that has slept, if the devices were taken meanwhile.
        """
        self._served, self.bell, self._left = served, bell, left
        self.holds, self.inside, self.thread, self.until = False, 0, 0, 0.0
        self.found: Found | tuple[()] = ()

    def begin(self, until: float, found: Found) -> None:
        """
        Nobody drives them from now on.

        @param found: The events that the sleep of the calling thread has found, which is over now.
        """
        self.until, self.found, self.thread = until, found, get_ident()
        Idle.last, self.holds = self, True

    def take(self) -> int:
        """
        The devices are driven again.

        @return: The thread that sleeps, or 0.
        """
        Idle.last, self.holds, self.found = None, False, ()
        return self.inside

    def wait(self, poll: Callable[[float], Found], timeout: float | None, now: float) -> Found | None:
        """
        Sleep.

        @param poll: The kernel's, which waits for C{bell}, too.
        @param timeout: Milliseconds, as C{poll} has it.
        @return: The events; L{None} if the devices have something to do, or are driven.
        """
        limit = (self.until - now) * _MILLI
        if isOwn := timeout is not None and 0 <= timeout < limit:
            limit = timeout or 0
        if self.inside or self._served._newTimedCalls or limit < 0:
            return None
        found = None
        try:
            # In this order: who takes them looks at the one after the other has changed.
            self.inside = self.thread = get_ident()
            if self.holds:
                found = poll(limit)
        finally:
            self.inside = 0
            if not self.holds:
                self._left()
        if found:
            if self.bell in found:
                return None
            if self.holds:
                self.found = found
        return found if found or isOwn else None

    def accept(self, accept: Callable[[_Socket], _Accepted], skt: _Socket) -> _Accepted | None:
        """
        Accept at once, as the last wait of this thread has found somebody: no other one of the process has
        waited since, or does so now.  The caller has looked at C{found}.

        @param accept: The kernel's.
        @return: Its result; L{None} if there may be nobody.
        """
        if self.thread != get_ident() or self.inside or not self.holds:
            return None
        self.found = ()
        try:
            self.inside = self.thread
            return accept(skt) if self.holds else None
        except BlockingIOError:
            return None
        finally:
            self.inside = 0
            if not self.holds:
                self._left()
