"""
Processes that C{ib-demo} starts, and ends whatever happens to itself.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from twisted_ib.tools.program import ProgramError

# A child that has not ended this long after SIGTERM gets SIGKILL.
PATIENCE_SECONDS = 3.0

_KEPT_LINES = 50


def pythonProgram(text: str, arguments: Sequence[str]) -> list[str]:
    """
    Make a command line for a Python program that imports from where this
    process does, installed or not.

    @param text: the program.
    @param arguments: its command line.

    @return: the whole command line.
    """
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {text}", *arguments]


class Child(ProcessProtocol):
    """
    A server in a process of its own, ready once it has printed a text some
    times.

    @ivar ready: fires when it is ready; fails if it ends before.
    @ivar ended: fires when it has ended.
    """

    def __init__(self, name: str, marker: str, times: int) -> None:
        """
        @param name: what to call it in errors.
        @param marker: a line that contains this says that a part is ready.
        @param times: how many such lines it takes.
        """
        self._name = name
        self._marker = marker
        self._missing = times
        self._partial = b""
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.ready: Deferred[None] = Deferred()
        self.ended: Deferred[None] = Deferred()

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        """
        Look for the marker in what the child prints.

        @param childFD: where it prints.
        @param data: what it prints.
        """
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._lines.append(line.decode("utf-8", "replace"))
            if self._missing and self._marker in self._lines[-1]:
                self._missing -= 1
                if not self._missing:
                    self.ready.callback(None)

    def processEnded(self, reason: Failure) -> None:
        """
        The child has ended.

        @param reason: how.
        """
        if self._missing:
            self._missing = 0
            said = [line.strip() for line in self._lines if line.strip()]
            how = "" if reason.check(ProcessDone) else f" ({' '.join(str(reason.value).split())})"
            self.ready.errback(ProgramError(f"{self._name} ended{how}: {said[-1] if said else 'silently'}"))
        self.ended.callback(None)


class Children:
    """
    All children: the reactor does not stop before they have ended.
    """

    def __init__(self, reactor: Any) -> None:
        """
        @param reactor: the reactor that starts them.
        """
        self._reactor = reactor
        self._running: list[tuple[Any, Child]] = []
        reactor.addSystemEventTrigger("before", "shutdown", self.end)

    async def start(self, child: Child, command: Sequence[str]) -> None:
        """
        Start a child and wait until it is ready.

        @param child: the child.
        @param command: its command line.
        """
        process = self._reactor.spawnProcess(child, command[0], command, env=dict(os.environ))
        self._running.append((process, child))
        process.closeStdin()
        await child.ready

    async def _end(self, process: Any, child: Child) -> None:
        """
        End one child, in good order if it can.

        @param process: its process.
        @param child: the child.
        """
        if child.ended.called:
            return

        def signal(name: str) -> None:
            try:
                process.signalProcess(name)
            except ProcessExitedAlready:
                pass

        # Nobody waits for it any more.
        child.ready.addErrback(lambda _: None)
        signal("TERM")
        killing = self._reactor.callLater(PATIENCE_SECONDS, signal, "KILL")
        await child.ended
        if killing.active():
            killing.cancel()

    def end(self) -> Deferred[None]:
        """
        End all children.

        @return: fires when all have ended.
        """

        async def endAll() -> None:
            while self._running:
                await self._end(*self._running.pop())

        return Deferred.fromCoroutine(endAll())
