"""
A thread that serves peers while the program is busy elsewhere.

On hardware the communication manager and the HCA answer peers by themselves, and programs rely on that: they
wait on a lock, or for a child process, with a connection open.  So a process has this thread while it has
identifiers bound to a device.  All its work happens with the hub's lock held.  A thread of the program that
polls or waits is faster; while there is one, this thread only checks now and then whether it is still active.
One that calls a verb now and then, and looks at its memory in between for what a peer writes there, is not.
"""

from __future__ import annotations

from threading import Event

from twisted_ib.drive import threads
from twisted_ib.drive.process import life, perf_counter
from twisted_ib.drive.sleeper import Sleeper
from twisted_ib.verbs.core.hub import hub

#: The shortest and longest pause, in seconds, before the thread checks again whether another thread serves
#: the device: it does while its last drive is no older than the shortest, or there were more than so many.
LEAST_PAUSE = 0.0002
MOST_PAUSE = 0.016
FEW_DRIVES = 16


class ProgressThread:
    """
    The thread.
    """

    def __init__(self) -> None:
        """
        Start the thread.

        @raise OSError: no descriptor is free.
        """
        self._over = Event()
        self._sleeper: Sleeper | None = Sleeper()
        threads.begin(self._run, self._sleeper, name="verbs-attendant")

    def stop(self) -> None:
        """
        Stop serving.  The thread ends soon, and is not joined.
        """
        # No join: the caller may hold the hub's lock, which the thread needs before it can end.
        self._over.set()
        with hub:
            if self._sleeper is not None:
                self._sleeper.wake()

    def _run(self, sleeper: Sleeper) -> None:
        pause, seen = LEAST_PAUSE, hub.drives
        try:
            while True:
                served: int | None = None
                # A thread that sleeps in wait() is woken for what comes.
                if hub.watch is None or hub.isAwaited:
                    if hub.unwatch is not None:
                        hub.unwatch()
                    self._over.wait(pause)
                else:
                    served = hub.watch(pause)
                if self._over.is_set():
                    break
                # Another thread waits or polls: leave the lock to it, and back off exponentially.
                before, seen = seen, hub.drives
                n = seen - before
                isServed = n > FEW_DRIVES or (n and perf_counter() - hub.driven < LEAST_PAUSE)
                # One that shares its processor with its peer drives seldom.
                isServed = isServed or hub.isPolled
                if hub.isAwaited or (isServed and served is None):
                    pause = min(2 * pause, MOST_PAUSE)
                    continue
                pause = LEAST_PAUSE
                # More of it comes soon, as an answer to what was served: the next pause is one in C, too.
                if served:
                    continue
                while not self._over.is_set() and hub.attend(sleeper):
                    pass
                seen = hub.drives
        finally:
            with hub:
                self._sleeper = None
                sleeper.close()


class ProgressThreadUsers:
    """
    Starts the thread with the first user and stops it with the last.
    """

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """
        Forget the thread in a forked child.
        """
        # fork(2) copies only the calling thread, so the child has no such thread.
        self._attendant: ProgressThread | None = None
        self._users = 0

    def begin(self) -> ProgressThread:
        """
        Register a user.

        @return: the argument for L{end}.
        """
        if self._attendant is None:
            self._attendant = ProgressThread()
        self._users += 1
        return self._attendant

    def end(self, attendant: ProgressThread) -> None:
        """
        Unregister a user.
        """
        # After a fork a user of the parent's thread may still call this; its count is not ours.
        if attendant is self._attendant:
            self._users -= 1
            if not self._users:
                self._attendant = None
                attendant.stop()


#: The instance of this process.
attendance = ProgressThreadUsers()

life.atFork(__name__, inChild=attendance.forked)
