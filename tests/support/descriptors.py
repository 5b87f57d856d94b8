"""
Helpers of tests of the host side: counting descriptors, and child processes.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable

# The modules that are imported here are not garbage: a collection then takes a millisecond in place of a
# hundred, and tests that count descriptors collect before they count.
gc.collect()
gc.freeze()


def descriptors() -> int:
    """
    @return: how many descriptors this process has open.
    """
    return len(os.listdir("/proc/self/fd"))


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
