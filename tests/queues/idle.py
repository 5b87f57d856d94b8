"""
What processes that wait cost: context switches and CPU time, by the kernel's count.
"""

from __future__ import annotations

import os
import signal
import time
from operator import le, sub
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import PATH, interpreter
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits

#: A pair of processes, of which the other does what C{child} says; this one's end, C{here}, has sent.
PAIR = """
import os
from multiprocessing import Process
from twisted_ib.queues import Pipe

def wait(connection):
    {child}

here, there = Pipe()
Process(target=wait, args=(there,), daemon=True).start()
there.close()
other = here.recv()
here.send(bytes(1 << 20))
print(os.getpid(), other, flush=True)
"""
#: What a child says that receives once, and waits then.
WAITING = "connection.send(os.getpid()), connection.recv(), connection.recv()"
#: How long nothing may happen, seconds: longer than any period of the package's timers while nothing is due.
_IDLE = 2.0


def cost(process: int) -> tuple[int, int]:
    """
    @return: Of all threads of a process: how often they have gone to sleep, and clock ticks of CPU time.
    """
    switches = 0
    for each in Path(f"/proc/{process}/task").iterdir():
        # proc_pid_status(5).
        lines = dict(line.split(":", 1) for line in (each / "status").read_text().splitlines())
        switches += int(lines["voluntary_ctxt_switches"])
    # proc_pid_stat(5): utime and stime, the 14th and the 15th; the second is in parentheses.
    ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return switches, sum(map(int, ticks))


class IdleTestCase(SynchronousTestCase):
    """
    Runs a program that prints the numbers of its processes, which have all sent and received something by
    then and wait for more.
    """

    def assertIdle(self, program: str, waiters: int = 0) -> None:
        """
        Check that they fall asleep: then no thread runs, but those that look after peers that were killed.

        @param waiters: How many look each C{limits.QUEUE_LOOK_SECONDS}.
        """
        running = interpreter(self, "-c", PATH + program)
        processes = [int(each) for each in running.stdout.readline().split()]
        # Also the others: of a parent that is killed nobody tells them.
        for each in processes:
            self.addCleanup(os.kill, each, signal.SIGKILL)
        self.assertGreater(len(processes), 1)
        # One more than there are periods, and a tick may have been due to what was before.
        most = waiters * (int(_IDLE / limits.QUEUE_LOOK_SECONDS) + 1), int(waiters > 0)
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            before = [cost(each) for each in processes]
            time.sleep(_IDLE)
            after = [cost(each) for each in processes]
            found = tuple(map(sub, map(sum, zip(*after, strict=True)), map(sum, zip(*before, strict=True))))
            if all(map(le, found, most)):
                return
            self.assertLess(time.monotonic(), deadline, f"switches and ticks: {found}, not {most}")
