"""
Helpers of tests of the host side: counting descriptors, and child processes.
"""

from __future__ import annotations

import errno
import gc
import os
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import waitUntil
from twisted_ib.hca.host import libc


def closeWakers(reactor: Any) -> None:
    """
    Close the descriptors by which threads and signals wake a reactor, of one that does not run any more.
    """
    for reader in list(reactor._internalReaders):
        reactor.removeReader(reader)
        reader.connectionLost(Failure(RuntimeError("the reactor is over")))


def descriptors() -> int:
    """
    @return: how many descriptors this process has open, but for those of inotify that are kept for another
        use.
    """
    return len(os.listdir("/proc/self/fd")) - len(libc._spare)


def descriptorsBefore() -> int:
    """
    @return: the same, when what earlier tests left to the garbage collector is gone.
    """
    gc.collect()
    return descriptors()


def isOpen(descriptor: int) -> bool:
    """
    @return: whether a descriptor is.
    """
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def fork(child: Callable[[], object]) -> int:
    """
    Run C{child} in a forked process; its exit status is 0 if it returns and 1
    if it raises.

    @return: its process number, to be waited for.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        child()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def runForked(child: Callable[[], object]) -> int:
    """
    Run C{child} in a forked process until its end.

    @return: 0, 1 if it raised, or the negative number of the signal that
        killed it.
    """
    _, status = os.waitpid(fork(child), 0)
    return os.waitstatus_to_exitcode(status)


def awaitWatches(test: SynchronousTestCase) -> None:
    """
    Have HCAs of a test wait for an instance of inotify as long as other processes hold them all: there are
    128 for a user (inotify(7), C{max_user_instances}). An HCA without one works too, but has a timer.
    """
    free = libc.inotify

    def wait(watches: Iterable[tuple[str, int]]) -> int:
        rows = tuple(watches)
        found: list[int] = []

        def isFree() -> bool:
            try:
                found.append(free(rows))
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
            return bool(found)

        waitUntil(isFree)
        return found[0]

    test.patch(libc, "inotify", wait)
