"""
Helpers of tests of the host side: counting descriptors, what comes from a socket, and child processes.
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
from twisted_ib.switch.reason import kept


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


def received(skt: Any, size: int) -> bytes:
    """
    Receive so many octets, or what there is until the end.
    """
    data = b""
    while len(data) < size and (piece := skt.recv(size - len(data))):
        data += piece
    return data


def exactly(skt: Any, size: int) -> bytes:
    """
    Receive so many octets.
    """
    data = received(skt, size)
    if len(data) < size:
        raise EOFError(f"{len(data)} bytes, not {size}")
    return data


def moves(skt: Any) -> None:
    """
    Have the end of a connection over SDP that has connected ask to move to TCP.
    """
    connection = skt.sdp
    if connection is None:
        raise AssertionError(f"{skt!r} goes over TCP: {kept.get(skt)}")
    with connection.loop:
        connection.stream.sleeps()
