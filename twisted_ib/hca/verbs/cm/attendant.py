"""
A thread that serves peers while the program is busy with something else.

On hardware the communication manager and the HCA answer peers by themselves, and programs of
connection identifiers rely on it: they wait in a lock, or for a child, with a connection open.  So
a process has such a thread as long as it has identifiers that are bound to a device; what it may
do, it does with the hub's lock held.  A thread of the program that polls or waits is faster:
while one does this one only looks, now and then, whether it still does.
"""

from __future__ import annotations

import os
from threading import Event, Thread

from twisted_ib.hca.verbs.base.hub import Sleeper, hub

#: How long it waits before it looks again, in seconds: the least, and the most.
LEAST_PAUSE = 0.001
MOST_PAUSE = 0.016


class Attendant:
    """
    The thread.
    """

    def __init__(self) -> None:
        """
        Begin to serve.

        @raise OSError: no descriptor is free.
        """
        self._over = Event()
        self._sleeper: Sleeper | None = Sleeper()
        Thread(target=self._run, args=(self._sleeper,), name="verbs-attendant", daemon=True).start()

    def stop(self) -> None:
        """
        Serve no more.  The thread ends soon; it is not waited for, as it may wait for the lock.
        """
        self._over.set()
        with hub:
            if self._sleeper is not None:
                self._sleeper.wake()

    def _run(self, sleeper: Sleeper) -> None:
        """
        Serve whenever nobody else does.
        """
        pause, seen = LEAST_PAUSE, hub.drives
        try:
            while not self._over.wait(pause):
                if hub.isAwaited or hub.drives != seen:
                    seen = hub.drives
                    pause = min(2 * pause, MOST_PAUSE)
                    continue
                pause = LEAST_PAUSE
                while not self._over.is_set() and hub.attend(sleeper):
                    pass
                seen = hub.drives
        finally:
            with hub:
                self._sleeper = None
                sleeper.close()


class Attendance:
    """
    Who needs the thread.
    """

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """
        In a forked child: the thread is the parent's.
        """
        self._attendant: Attendant | None = None
        self._users = 0

    def begin(self) -> Attendant:
        """
        Somebody does.

        @return: what L{end} takes.
        """
        if self._attendant is None:
            self._attendant = Attendant()
        self._users += 1
        return self._attendant

    def end(self, attendant: Attendant) -> None:
        """
        Somebody does not any more.
        """
        if attendant is self._attendant:
            self._users -= 1
            if not self._users:
                self._attendant = None
                attendant.stop()


attendance = Attendance()
"""
Of this process.
"""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=attendance.forked)
