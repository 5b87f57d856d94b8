"""
Each program once on each device, and on C{roce0} beside other processes; when a server is taken for one that
waits for its clients.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import field, frozen
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.cprograms.lab import (
    Here,
    Lab,
    LabError,
    Running,
    activity,
    denied,
    isBound,
    lacking,
    missing,
    sides,
)
from tests.cprograms.programs import DEVICES, IWARP, PROGRAMS, REFUSED_IWARP, Program
from tests.support.commands import PATH, running
from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS, waitUntil

#: A thread that is busy, while the main thread sleeps.
_BUSY = """
from threading import Thread
def work():
    while True:
        pass
Thread(target=work).start()
"""

#: Has an address, and does nothing.
_NEIGHBOUR = """
import signal
from twisted_ib.hca.fabric.roce.roce import RoCELink
link = RoCELink(sys.argv[1], isShared=True)
print(link.group.slot, flush=True)
signal.pause()
"""


class ActivityTests(SynchronousTestCase):
    """
    L{activity}.
    """

    def started(self, *words: str) -> int:
        """
        A process, killed after the test.
        """
        process = subprocess.Popen(words)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process.pid

    def test_sleeps(self) -> None:
        """
        A process whose only thread sleeps.
        """
        pid = self.started("sleep", "1000")
        waitUntil(lambda: activity(pid)[0])

    def test_works(self) -> None:
        """
        One whose main thread sleeps, while another works: it does not sleep, and takes a processor.
        """
        pid = self.started(sys.executable, "-S", "-c", _BUSY)
        stat = Path(f"/proc/{pid}/stat")
        waitUntil(lambda: activity(pid)[1] >= 0.1 and stat.read_text().rpartition(") ")[2].startswith("S"))
        self.assertFalse(activity(pid)[0])

    def test_denied(self) -> None:
        """
        Of two that work on one processor each waits for it, and one that sleeps does not.
        """
        one = min(os.sched_getaffinity(0))
        pids = [self.started(sys.executable, "-S", "-c", _BUSY) for _ in range(2)]
        for pid in pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {one})
        waitUntil(lambda: min(map(denied, pids)) >= 0.1)
        asleep = self.started("sleep", "1000")
        waitUntil(lambda: activity(asleep)[0])
        before = denied(asleep)
        waitUntil(lambda: denied(pids[0]) >= before + 0.3)
        self.assertLess(denied(asleep), denied(pids[0]))

    def test_bound(self) -> None:
        """
        A process has a port that is bound by itself, and not by another one of its network.
        """
        pid = self.started("sleep", "1000")
        with socket.socket(type=socket.SOCK_DGRAM) as bound:
            bound.bind((ownAddress(1), 0))
            port = bound.getsockname()[1]
            found = [isBound(each, "udp", port, address=ownAddress(1)) for each in (os.getpid(), pid)]
        self.assertEqual(found, [True, False])


class ProgramTests(SynchronousTestCase):
    """
    Both processes end with status 0, and the client says that all was right.
    """

    timeout = 3 * HANG_SECONDS
    skip = lacking()

    def test_refused(self) -> None:
        """
        A client that wants datagrams over iWARP ends at once, with the errno that Linux's siw has for it.
        """
        for program in REFUSED_IWARP:
            reason = missing(program)
            if reason is not None:
                raise SkipTest(reason)
            with self.assertRaises(LabError) as caught:
                Lab(*sides("iwarp0")).run(program)
            self.assertIn("unable to create QP: Operation not supported", str(caught.exception))


@frozen
class _Beside(Here):
    # A process that has a neighbour, which was there before it.
    case: SynchronousTestCase = field(kw_only=True)

    def start(self, command: Sequence[str], directory: str) -> Running:
        assert self.runDirectory is not None
        environment = {**os.environ, "TWISTED_IB_RUN_DIR": self.runDirectory}
        neighbour = running(self.case, "-c", PATH + _NEIGHBOUR, self.address, env=environment)
        assert neighbour.stdout is not None
        self.case.assertEqual(neighbour.stdout.readline(), "1\n")
        return super().start(command, directory)


def _test(program: Program, device: str, isShared: bool) -> Callable[[ProgramTests], None]:
    def test(self: ProgramTests) -> None:
        reason = missing(program)
        if reason is not None:
            raise SkipTest(reason)
        server, client = sides(device)
        if isShared:
            # The neighbours end with the test.
            folder = Path(self.mktemp()).resolve()
            folder.mkdir(mode=0o700)
            server, client = (
                _Beside(device, each.address, runDirectory=str(folder), case=self)
                for each in (server, client)
            )
        try:
            Lab(server, client).run(program)
        except LabError as error:
            self.fail(str(error))

    test.__doc__ = f"{program.name} on {device}{', beside others' if isShared else ''}."
    return test


for _program in PROGRAMS:
    for _device in DEVICES:
        setattr(ProgramTests, f"test_{_program.name}_{_device}", _test(_program, _device, False))
    setattr(ProgramTests, f"test_{_program.name}_roce0_shared", _test(_program, "roce0", True))
for _program in IWARP:
    setattr(ProgramTests, f"test_{_program.name}_iwarp0", _test(_program, "iwarp0", False))
