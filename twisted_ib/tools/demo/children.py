"""
Child processes of C{ib-demo}, which it ends whatever happens to itself, and its folder, which goes with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from twisted_ib.tools.compare.processes import place
from twisted_ib.tools.program import ProgramError

#: A child that has not ended this long after SIGTERM gets SIGKILL.
PATIENCE_SECONDS = 3.0

#: After so long at a time the folder of one that was killed is removed again: a child may have written into
#: it meanwhile.
_AGAIN_SECONDS = 0.01

#: The last lines of a child's output, for the error if it fails.
_KEPT_LINES = 50


@contextmanager
def temporaryFolder(prefix: str) -> Iterator[str]:
    """
    Make a folder for the files of this process; it is removed when this process ends, be it by SIGKILL.

    To be called while there is one thread.
    """
    read, write = os.pipe()
    # Before there is a folder: a signal that ends both loses nothing.
    keeper = os.fork()
    if not keeper:
        os.close(write)
        _removeAfter(read)
    os.close(read)
    try:
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            os.write(write, os.fsencode(folder))
            yield folder
    finally:
        os.close(write)
        os.waitpid(keeper, 0)


def _removeAfter(read: int) -> NoReturn:
    # The end of the file is that of the other process, whose descriptor no program that it starts has.
    try:
        # Signals of the terminal and of the group are for the others, which end the orderly way.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        folder = b""
        while octets := os.read(read, 4096):
            folder += octets
        # Its children end meanwhile.
        end = time.monotonic() + PATIENCE_SECONDS
        while folder and os.path.lexists(folder) and time.monotonic() < end:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(_AGAIN_SECONDS)
    finally:
        os._exit(0)


class Child(ProcessProtocol):
    """
    A server process, ready once it has printed a marker a number of times.

    @ivar ready: fires when it is ready; fails if it ends before.
    @ivar ended: fires when it has ended.
    """

    def __init__(self, name: str, marker: str, times: int) -> None:
        """
        @param name: its name in errors.
        @param marker: the text in a line that reports readiness.
        @param times: how many such lines it takes: one for each port.
        """
        self._name = name
        self._marker = marker
        self._missing = times
        self._partial = b""
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.ready: Deferred[None] = Deferred()
        self.ended: Deferred[None] = Deferred()

    def place(self, cpus: set[int]) -> None:
        """
        Move the process to some CPUs: see L{place<twisted_ib.tools.compare.processes.place>}.
        """
        assert self.transport is not None
        place(self.transport.pid, cpus)

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        """
        Look for the marker in the child's output.
        """
        # Standard output and standard error arrive here alike; a line may come in pieces.
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._lines.append(line.decode("utf-8", "replace"))
            if self._missing and self._marker in self._lines[-1]:
                self._missing -= 1
                if not self._missing:
                    self.ready.callback(None)

    def processEnded(self, reason: Failure) -> None:
        if self._missing:
            self._missing = 0
            said = [line.strip() for line in self._lines if line.strip()]
            how = "" if reason.check(ProcessDone) else f" ({' '.join(str(reason.value).split())})"
            self.ready.errback(ProgramError(f"{self._name} ended{how}: {said[-1] if said else 'silently'}"))
        self.ended.callback(None)


class Children:
    """
    All child processes; the reactor does not stop before they have ended.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._running: list[tuple[Any, Child]] = []
        # IReactorCore.addSystemEventTrigger: the shutdown waits for the Deferred of a "before" trigger.
        reactor.addSystemEventTrigger("before", "shutdown", self.end)

    async def start(self, child: Child, command: Sequence[str]) -> None:
        """
        Start a child and wait until it is ready.
        """
        process = self._reactor.spawnProcess(child, command[0], command, env=dict(os.environ))
        self._running.append((process, child))
        # A child must not wait for a terminal that it shares with its siblings.
        process.closeStdin()
        await child.ready

    async def _end(self, process: Any, child: Child) -> None:
        if child.ended.called:
            return

        def signal(name: str) -> None:
            try:
                process.signalProcess(name)
            # The process has been reaped, but processEnded waits for its pipes to close.
            except ProcessExitedAlready:
                pass

        # An end before it was ready is no error now, and an unhandled failure would be logged as one.
        child.ready.addErrback(lambda _: None)
        signal("TERM")
        killing = self._reactor.callLater(PATIENCE_SECONDS, signal, "KILL")
        await child.ended
        if killing.active():
            killing.cancel()

    def end(self) -> Deferred[None]:
        """
        End all children; the Deferred fires when all have ended.
        """

        async def endAll() -> None:
            while self._running:
                await self._end(*self._running.pop())

        return Deferred.fromCoroutine(endAll())
