"""
Start child processes from a test, talk to them, and be sure that they end.

Nothing here sleeps: every wait is on a descriptor and has a time-out.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.programs.nursery import Forked
from tests.support.commands import stop
from tests.support.waiting import HANG_SECONDS

#: Where children import from, and run.
ROOT = Path(__file__).resolve().parent.parent.parent


#: The transport under test.  The tests that are not about SDP itself pass
#: with C{tcp} as well, which shows that they ask for nothing unusual.
SCHEME = os.environ.get("TWISTED_IB_TEST_SCHEME", "sdp")

#: The reactor of children that do not ask for one.
REACTOR = os.environ.get("TWISTED_IB_TEST_REACTOR", "ib")


#: What each of them runs.
_PROGRAM = "import sys; from tests.processes.programs.child import main; main(sys.argv[1:])"

#: How often a device is used to see that it holds nothing.
_USES = 3


class ChildError(Exception):
    """
    A child did not do what it was told.

    @ivar kind: the name of the exception in the child, or C{""}.
    """

    def __init__(self, kind: str, text: str) -> None:
        """
        @param kind: the name of the exception in the child.
        @param text: the exception's text.
        """
        super().__init__(f"{kind}: {text}" if kind else text)
        self.kind = kind


class Child:
    """
    One child process.

    @ivar pid: its process id.
    @ivar log: the file that holds its standard error.
    """

    def __init__(
        self,
        reactor: str,
        program: str,
        runDirectory: str,
        environment: dict[str, str] | None = None,
    ) -> None:
        """
        Start it, and wait until it is ready.

        @param reactor: the short name of its reactor.
        @param program: module and class of its L{tests.processes.programs.child.Program}.
        @param runDirectory: C{TWISTED_IB_RUN_DIR}.
        @param environment: further variables.
        """
        module, _, name = program.rpartition(".")
        variables = {**os.environ, "TWISTED_IB_RUN_DIR": runDirectory, **(environment or {})}
        descriptor, self.log = tempfile.mkstemp(prefix="log-", dir=runDirectory + ".logs")
        theirInput, self._input = os.pipe()
        self._output, theirOutput = os.pipe()
        theirs = [theirInput, theirOutput, descriptor]
        words = [sys.executable, "-c", _PROGRAM, reactor, module, name]
        pipes: dict[str, Any] = dict(zip(("stdin", "stdout", "stderr"), theirs, strict=True))
        self._process = Forked(words, text=True, cwd=ROOT, env=variables, **pipes)
        self.pid = self._process.pid
        self._alive = os.pidfd_open(self.pid)
        for each in theirs:
            os.close(each)
        self._pending = b""
        self._events: list[dict[str, Any]] = []
        self.event("ready")

    def ask(self, call: str, seconds: float = HANG_SECONDS, **arguments: object) -> Any:
        """
        Run a command and wait for its answer.

        @param call: the command's name.
        @param seconds: how long to wait.
        @param arguments: the command's arguments.

        @return: the answer.

        @raise ChildError: it failed, or there is no answer in time.
        """
        self.begin(call, **arguments)
        return self.answer(seconds)

    def begin(self, call: str, **arguments: object) -> None:
        """
        Send a command; L{answer} waits for its end.

        @param call: the command's name.
        @param arguments: the command's arguments.
        """
        line = json.dumps({"call": call, **arguments}).encode() + b"\n"
        try:
            os.write(self._input, line)
        except BrokenPipeError:
            raise ChildError("", f"{call}: the child has ended: {self.lastWords()}") from None

    def answer(self, seconds: float = HANG_SECONDS) -> Any:
        """
        Wait for the answer to the command under way.

        @param seconds: how long to wait.

        @return: the answer.

        @raise ChildError: the command failed, or there is no answer in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            message = self._next(deadline, "an answer")
            if "event" in message:
                self._events.append(message)
            elif "error" in message:
                raise ChildError(message["error"], message["text"])
            else:
                return message["answer"]

    def event(self, name: str, seconds: float = HANG_SECONDS, **details: object) -> dict[str, Any]:
        """
        Wait for an event; other ones are kept for later.

        @param name: the event's name.
        @param seconds: how long to wait.
        @param details: values that the event must have.

        @return: the event.

        @raise ChildError: it does not come in time.
        """
        wanted = {"event": name, **details}
        deadline = time.monotonic() + seconds
        seen = 0
        while True:
            while seen == len(self._events):
                self._events.append(self._next(deadline, f"the event {wanted}"))
            message = self._events[seen]
            seen += 1
            if wanted.items() <= message.items():
                self._events.remove(message)
                return message

    def _next(self, deadline: float, what: str) -> dict[str, Any]:
        """
        The next line.

        @param deadline: when to give up.
        @param what: what we wait for.

        @return: the line's content.

        @raise ChildError: the time is over, or the child.
        """
        while b"\n" not in self._pending:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._output], [], [], left)
            if not ready:
                raise ChildError("", f"no {what} in time; {self._events}; {self.lastWords()}")
            data = os.read(self._output, 65536)
            if not data:
                raise ChildError("", f"ended before {what}: {self.lastWords()}")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def lastWords(self) -> str:
        """
        @return: the end of what it wrote to standard error.
        """
        return Path(self.log).read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """
        C{kill -9}, and wait until it is dead.
        """
        signal.pidfd_send_signal(self._alive, signal.SIGKILL)
        self.died()

    def freeze(self) -> None:
        """
        Stop it; it lives on and does nothing.
        """
        stop(self.pid)

    def thaw(self) -> None:
        """
        Let it go on.
        """
        signal.pidfd_send_signal(self._alive, signal.SIGCONT)

    def died(self, seconds: float = HANG_SECONDS) -> None:
        """
        Wait until it is dead.

        @param seconds: how long to wait.

        @raise ChildError: it lives on.
        """
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ChildError("", f"the child does not end: {self.lastWords()}") from None

    def end(self, seconds: float = HANG_SECONDS) -> None:
        """
        Close its standard input and wait until it is dead.

        @param seconds: how long to wait before it is killed.

        @raise ChildError: it had to be killed.
        """
        if self._input < 0:
            return
        os.close(self._input)
        try:
            self.died(seconds)
        except ChildError:
            self.kill()
            raise
        finally:
            os.close(self._output)
            os.close(self._alive)
            self._input = -1


class ProcessTestCase(SynchronousTestCase):
    """
    A test with child processes.  They meet in a run directory of their own.

    @cvar reactor: the reactor of the children, unless they ask for another.
    @cvar program: the children's program.
    """

    reactor = REACTOR
    program = "tests.processes.programs.peer.Peer"

    def setUp(self) -> None:
        """
        Make the run directory.
        """
        # Not in _trial_temp: a socket's path may have 108 bytes at most.
        folder = tempfile.mkdtemp(prefix="tib-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        self.runDirectory = os.path.join(folder, "run")
        os.mkdir(self.runDirectory, 0o700)
        os.mkdir(self.runDirectory + ".logs")

    def spawn(
        self,
        reactor: str | None = None,
        program: str | None = None,
        environment: dict[str, str] | None = None,
    ) -> Child:
        """
        Start a child that ends with the test.

        @param reactor: the short name of its reactor.
        @param program: module and class of its program.
        @param environment: further variables.

        @return: the child.
        """
        child = Child(reactor or self.reactor, program or self.program, self.runDirectory, environment)
        self.addCleanup(child.end)
        return child

    def listen(self, child: Child, **arguments: object) -> str:
        """
        Have a child listen.

        @param child: the child.
        @param arguments: for its command C{listen}.

        @return: the endpoint string for a client.
        """
        port = child.ask("listen", endpoint=f"{SCHEME}:0:interface=127.0.0.1:backlog=1000", **arguments)
        return f"{SCHEME}:127.0.0.1:{port}"

    def assertSettles(self, child: Child, usage: dict[str, int]) -> None:
        """
        A child must hold no more than before.

        A device that nobody uses has left its reactor, and looks again who has
        died when it is used next: so use it, and again for what a slow peer says only then.

        @param child: who.
        @param usage: what it held.
        """
        for _ in range(_USES):
            error = self.assertRaises(ChildError, child.ask, "connect", endpoint=f"{SCHEME}:127.0.0.1:1")
            self.assertEqual(error.kind, "ConnectionRefusedError")
            found = child.ask("settle", usage=usage, limit=HANG_SECONDS / 2)
            more = {
                name: (value, usage.get(name, 0))
                for name, value in found.items()
                if value > usage.get(name, 0)
            }
            if not more:
                break
        self.assertEqual(more, {})
