"""
Tests of a C program's signals: they are as without the libraries, and their handlers may call.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from tests.verbs.c.library import built, run
from tests.verbs.c.test_calls import ProgramTestCase
from twisted_ib.verbs.c.kept import VIEW

SOURCE = Path(__file__).with_name("dispositions.c")
WAITS = Path(__file__).with_name("waits.c")
#: The calls that wait: ibv_get_cq_event, ibv_get_async_event and rdma_get_cm_event.
KINDS = ("completion", "asynchronous", "connection")
#: What is destroyed, by ibv_destroy_qp, rdma_destroy_qp and rdma_destroy_id.
OBJECTS = ("queue pair", "its queue pair", "identifier")
#: All that the program says of one moment: signals, limits, and what else is of a process.
LINES = 64 + 16 + 1


class SignalTests(ProgramTestCase):
    """
    The stories of C{dispositions.c}.
    """

    def test_asWithout(self) -> None:
        """
        All 64 signals, the mask and the limits are as without C{ib-run}, before the first call and after.
        """
        if find_spec("elftools") is None:
            raise SkipTest("the extra [c] is not installed")
        program = self.compiled(SOURCE)
        without = run(program, "show", TWISTED_IB_DEVICE="shm0").stdout.splitlines()[:LINES]
        before = [line.removeprefix("before: ") for line in without]
        self.assertEqual(len({line for line in before if "signal" in line}), 65, before)
        command = [sys.executable, "-m", "twisted_ib.tools.run", "-q", "--device", "shm0", program, "show"]
        ours = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        self.assertEqual((ours.returncode, ours.stderr), (0, ""))
        expected = [f"{when}: {line}" for when in ("before", "after") for line in before]
        self.assertEqual(ours.stdout.splitlines(), expected)

    def test_interrupt(self) -> None:
        """
        SIGINT ends a program that has called.
        """
        result = run(self.compiled(SOURCE), "interrupt", TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.returncode, result.stdout), (-signal.SIGINT, ""), result.stderr)

    def test_handlers(self) -> None:
        """
        A call in a handler that has interrupted another call of the thread fails, and neither hangs; it never
        interrupts one of the data path.
        """
        result = run(self.compiled(SOURCE), "handlers", TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))

    def test_jumps(self) -> None:
        """
        A handler may leave the calls of the data path by siglongjmp(3).
        """
        result = run(self.compiled(SOURCE), "jumps", TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))

    def test_masking(self) -> None:
        """
        The data path blocks no signals while the program has no handler of one, if the library in front of it
        sees that; it does once there is one, and ever after.
        """
        program = self.compiled(SOURCE)
        for led in ({}, {"LD_PRELOAD": str(built() / VIEW)}):
            for how in ("signal", "sigaction", "before"):
                result = run(program, "masking", how, TWISTED_IB_DEVICE="shm0", **led)
                self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0), (led, how))

    def test_led(self) -> None:
        """
        Behind that library handlers may call, and leave calls, likewise.
        """
        program, view = self.compiled(SOURCE), str(built() / VIEW)
        for story in ("handlers", "jumps"):
            result = run(program, story, TWISTED_IB_DEVICE="shm0", LD_PRELOAD=view)
            self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0), story)

    def test_leaving(self) -> None:
        """
        A thread that waits hears nothing of the devices' end while another ends the process.
        """
        program = self.compiled(SOURCE)
        for kind in ((), ("asynchronous",)):
            result = run(program, "leaving", *kind, TWISTED_IB_DEVICE="shm0")
            self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 7), kind)

    def test_unmapped(self) -> None:
        """
        Memory that is unmapped while it is registered brings no SIGSEGV: requests fail.
        """
        result = run(self.compiled(SOURCE.with_name("unmapped.c")), TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))


class WaitTests(ProgramTestCase):
    """
    The stories of C{waits.c}.
    """

    def story(self, name: str, *kinds: str) -> None:
        """
        Run one.

        @param kinds: of calls, one after another in a process.
        """
        result = run(self.compiled(WAITS, "librdmacm.so.1"), name, *kinds, TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))

    def test_interrupted(self) -> None:
        """
        A signal whose handler has no SA_RESTART ends a wait with EINTR.
        """
        self.story("interrupted", *KINDS)

    def test_restarted(self) -> None:
        """
        One whose handler has SA_RESTART does not.
        """
        self.story("restarted", "connection")

    def test_left(self) -> None:
        """
        A handler may leave a wait by siglongjmp(3): later calls and waits of the thread work.
        """
        self.story("left", *KINDS)

    def test_called(self) -> None:
        """
        A handler that runs in a wait may call.
        """
        self.story("called", *KINDS)

    def test_destroying(self) -> None:
        """
        Signals come while a call waits for the acknowledgement of what it has destroyed: their handlers may
        call, and leave it by siglongjmp(3); else it goes on.
        """
        self.story("destroying", *OBJECTS)
        self.story("deserting", *OBJECTS)

    def test_nesting(self) -> None:
        """
        In that wait a handler may destroy, too, or ask for an event that there is not: the call waits all the
        same, and each of its sleeps takes time.
        """
        self.story("nesting", "destroy", "ask")

    def test_idle(self) -> None:
        """
        A server whose threads wait for connections, completions of two queues and asynchronous events takes a
        fiftieth of a processor at most, while nothing comes.
        """
        self.story("idle", "2")


class LimitTests(SynchronousTestCase):
    """
    L{run}.
    """

    def test_children(self) -> None:
        """
        A program that hangs is ended with its children: none has its pipe open any more.
        """
        built()
        path = self.mktemp()
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        # It is at its end from now on, unless one has it open.
        os.close(os.open(path, os.O_WRONLY))
        script = f"exec 3> {path}; sleep 100 & wait"
        self.assertRaises(subprocess.TimeoutExpired, run, "sh", "-c", script, seconds=1.0)
        ready, _, _ = select.select([reader], [], [], HANG_SECONDS)
        self.assertEqual((ready, os.read(reader, 1)), ([reader], b""))
