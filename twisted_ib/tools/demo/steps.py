"""
The display of C{ib-demo} on a terminal while one of its steps takes time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from twisted.internet.task import LoopingCall

from twisted_ib.tools.progress import Progress


class Steps:
    """
    The steps of a demonstration, one after the other; each takes its bar back, so that lines stand between.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._bar: Progress | None = None
        # Also when a signal ends it: the terminal is the user's again.
        reactor.addSystemEventTrigger("before", "shutdown", self._close)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    @contextmanager
    def measuring(self, what: str) -> Iterator[Progress]:
        """
        A step that says itself how far it is, when that disturbs no measurement.
        """
        self._bar = bar = Progress(sys.stdout, 1)
        bar.next(what)
        try:
            yield bar
        finally:
            bar.close()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """
        A step of which nobody knows how far it is.
        """
        with self.measuring(what) as bar:
            turning = LoopingCall(bar.show, float)
            turning.clock = self._reactor
            turning.start(bar.interval)
            try:
                yield
            finally:
                turning.stop()
