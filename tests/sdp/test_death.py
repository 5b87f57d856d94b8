"""
What one end of a connection hears of the death of the other's process: as over TCP the end of the stream
where nothing is missing, else a reset.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import interpreter, running
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ("-m", "tests.sdp.dying")


class DeathTests(SynchronousTestCase):
    """
    Two processes, one of which dies, by C{os._exit} and by SIGKILL.

    @cvar cases: The kinds of survivors and of deaths; C{tests/soak/killed/test_deaths.py} has all.
    """

    cases: tuple[tuple[str, str], ...] = (("blocking", "exit"), ("twisted", "kill"))
    timeout = 4 * HANG_SECONDS

    def setUp(self) -> None:
        """
        Let the processes meet where no other does.
        """
        ownRunDirectory(self)
        self.environment = dict(os.environ, TWISTED_IB_CONFIG=os.devnull)

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        """
        Return a process of the program.
        """
        return running(self, *PROGRAM, *arguments, cwd=ROOT, env=self.environment)

    def line(self, process: subprocess.Popen[str]) -> str:
        """
        Return the next line that a process prints.
        """
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        self.assertTrue(line)
        return line

    def outcomes(self, what: str, dying: str = "dead") -> list[str]:
        """
        Return what the survivor of each case says.
        """
        living = [(self.started(survivor), how) for survivor, how in self.cases]
        deaths = [(one, self.started(dying, self.line(one), how, what), how) for one, how in living]
        said = []
        for one, dead, how in deaths:
            self.line(dead)
            if how == "kill":
                dead.kill()
            said.append(one.communicate(timeout=HANG_SECONDS)[0].strip())
            dead.wait(HANG_SECONDS)
        return said

    def test_idle(self) -> None:
        """
        One that has sent everything and received nothing: the end.
        """
        self.assertEqual(self.outcomes("idle"), ["1 end"] * len(self.cases))

    def test_read(self) -> None:
        """
        One that has read all: the end.
        """
        self.assertEqual(self.outcomes("read"), ["5 end"] * len(self.cases))

    def test_unread(self) -> None:
        """
        One that has read a part: a reset.
        """
        self.assertEqual(self.outcomes("unread"), ["5 ConnectionResetError"] * len(self.cases))

    def test_pending(self) -> None:
        """
        One whose bytes wait behind a full ring: a reset, behind whole messages.
        """
        for each in self.outcomes("pending"):
            self.assertTrue(each.endswith(" ConnectionResetError"), each)

    def test_callback(self) -> None:
        """
        One that has read all, within the callback that got it: the end.
        """
        self.assertEqual(self.outcomes("read", "callback"), ["5 end"] * len(self.cases))

    def test_written(self) -> None:
        """
        One that has written in the callback in which it dies: a reset.
        """
        self.assertEqual(self.outcomes("written", "callback"), ["5 ConnectionResetError"] * len(self.cases))


class LateTests(SynchronousTestCase):
    """
    Two processes, one of which sends when the other has ended in order.
    """

    timeout = 4 * HANG_SECONDS
    setUp = DeathTests.setUp
    line = DeathTests.line

    def test_sent(self) -> None:
        """
        As over TCP: the end of the stream, one more C{send}, which draws a reset, and then EPIPE, whether the
        process has closed, or only shut down, its connection before it is killed, exits or ends.
        """
        for living, module, how, what in (
            ("plain", "socket", "order", "closed"),
            ("late", "twisted_ib.socket", "order", "closed"),
            ("late", "twisted_ib.socket", "exit", "idle"),
            ("late", "twisted_ib.socket", "kill", "shut"),
        ):
            one = interpreter(self, *PROGRAM, living, cwd=ROOT, env=self.environment, stdin=subprocess.PIPE)
            command = ("dead", self.line(one), how, what, module)
            dead = interpreter(self, *PROGRAM, *command, cwd=ROOT, env=self.environment)
            self.line(dead)
            if how == "kill":
                dead.kill()
            dead.wait(HANG_SECONDS)
            said = one.communicate("gone\n", timeout=HANG_SECONDS)[0].split()
            count = "1" if what == "idle" else "5"
            self.assertEqual(
                said, [count, "b''", "4", "BrokenPipeError", "b''", "BrokenPipeError"], how + what
            )

    def test_early(self) -> None:
        """
        As over TCP: one that has read a part of what was there before it looked at all leaves a reset.
        """
        for module in "socket", "twisted_ib.socket":
            one = interpreter(self, *PROGRAM, "early", module, cwd=ROOT, env=self.environment)
            command = ("dead", self.line(one), "kill", "early", module)
            dead = interpreter(
                self, *PROGRAM, *command, cwd=ROOT, env=self.environment, stdin=subprocess.PIPE
            )
            self.assertEqual(self.line(one), "sent")
            assert dead.stdin is not None
            dead.stdin.write("look\n")
            dead.stdin.flush()
            self.line(dead)
            dead.kill()
            dead.wait(HANG_SECONDS)
            said = one.communicate(timeout=HANG_SECONDS)[0].strip()
            self.assertEqual(said, "ConnectionResetError", module)

    def test_halfOpen(self) -> None:
        """
        As over TCP, of which nobody reads any more then, a protocol of asyncio that has stayed open hears of
        it with the second write.
        """
        for provider, module in (("tcp", "socket"), ("sdp", "twisted_ib.socket")):
            one = interpreter(
                self, *PROGRAM, "halfOpen", provider, cwd=ROOT, env=self.environment, stdin=subprocess.PIPE
            )
            command = ("dead", self.line(one), "order", "closed", module)
            dead = interpreter(self, *PROGRAM, *command, cwd=ROOT, env=self.environment)
            self.line(dead)
            dead.wait(HANG_SECONDS)
            said = one.communicate("gone\n", timeout=HANG_SECONDS)[0].split()
            self.assertEqual(said, ["False", "False", "BrokenPipeError"], provider)
