"""
Watches of files, of which the kernel has but so many for all processes of a user.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import waitUntil
from twisted_ib.hca.host import libc


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


__all__ = ["awaitWatches"]
