"""
How long programs take to start: C{import twisted_ib}, and C{twistd} with each reactor.

Files of byte code are used as a user has them: the first start writes them.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from benchmarks.transports import BASELINE, Subject
from twisted_ib.tools.compare.measuring import Figures

#: Starts for one figure, of which the shortest counts.
STARTS_EACH = 4

#: An application that ends when the reactor runs.
_TAC = """
from twisted.application.service import Application, Service
from twisted.internet import reactor


class Quit(Service):
    def startService(self):
        reactor.callWhenRunning(reactor.stop)


application = Application("quit")
Quit().setServiceParent(application)
"""
#: The source of the C{twistd} program.
_TWISTD = "from twisted.scripts.twistd import run; run()"


def _import(subject: Subject) -> list[str]:
    """
    An interpreter that only imports the package, if the subject is of it.
    """
    return ["-c", "pass" if subject.name == BASELINE else "import twisted_ib"]


def _twistd(subject: Subject) -> list[str]:
    """
    C{twistd} with the subject's reactor.
    """
    return ["-c", _TWISTD, "-n", "--pidfile=", f"--reactor={subject.reactor}", "-y", "quit.tac"]


STARTS: dict[str, Callable[[Subject], list[str]]] = {"import": _import, "twistd": _twistd}


class StartError(Exception):
    """
    A program did not start, or did not end well.
    """


def start(workload: str, subject: Subject, folder: str, environment: dict[str, str]) -> Figures:
    """
    Start a program some times and wait until it has ended.

    @param workload: A key of L{STARTS}.
    @param folder: A directory for its files.
    @param environment: Says where files of byte code are.
    @return: The least milliseconds, of the clock and of the CPU.
    @raise StartError: it failed.
    """
    Path(folder, "quit.tac").write_text(_TAC)
    command = [sys.executable, *STARTS[workload](subject)]
    runs = []
    for _ in range(STARTS_EACH + 1):
        before, begun = _childSeconds(), perf_counter()
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        took = perf_counter() - begun
        if ended.returncode:
            raise StartError((ended.stderr or ended.stdout).strip().rpartition("\n")[2])
        runs.append((took * 1e3, (_childSeconds() - before) * 1e3))
    wall, cpu = (min(run[which] for run in runs[1:]) for which in (0, 1))
    return {"wall": wall, "CPU": cpu}


def _childSeconds() -> float:
    """
    CPU time of all ended children.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
