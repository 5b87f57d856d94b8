"""
Threads in the program's process: of this package's own, and whether the others work.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from threading import Thread, local
from time import process_time_ns, thread_time_ns
from typing import Final

#: Seconds between two looks at what other threads do: two intervals after which a thread of Python
#: gives up the interpreter that another waits for.
LOOK_SECONDS: Final = 1e-2
#: The others work if they have used more than one part in so many of a CPU since the look before.
WORKING_SHARE: Final = 64


def begin(target: Callable[..., None], *arguments: object, name: str) -> Thread:
    """
    Start a daemon thread that takes no signals.  Those of the process are for the program's threads: a
    program may read them by signalfd(2) or sigwait(3), with all of its threads blocking them, and in one of
    ours that did not they would end the process.

    @raise RuntimeError: there can be no thread.
    @raise MemoryError: likewise.
    """
    thread = Thread(target=target, args=arguments, name=name, daemon=True)
    # A new thread has its creator's mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread


class Others:
    """
    Whether threads beside the calling one work, of which each is to have the interpreter soon.  One that
    waits, in whatever call, uses no CPU.

    @ivar areWorking: Whether they did at the last look of any thread.
    @ivar until: When that is to be asked anew: the time of L{look}, seconds.
    """

    def __init__(self) -> None:
        self.areWorking = False
        self.until = 0.0
        self._own = local()
        # Of the last look: a thread that has not looked yet is as young as that, mostly.
        self._last = (0.0, 0)

    def look(self, now: float) -> None:
        """
        Compare what the process has used of CPUs, but for this thread, with the time since its look before.

        @param now: Seconds, of any clock that goes on while the process sleeps.
        """
        seen: dict[str, tuple[float, int, int]] = self._own.__dict__
        at, used, own = seen.get("last", (*self._last, 0))
        process, thread = process_time_ns(), thread_time_ns()
        others = (process - used) - (thread - own)
        self.areWorking = others * WORKING_SHARE > (now - at) * 1e9
        seen["last"], self._last = (now, process, thread), (now, process)
        self.until = now + LOOK_SECONDS
