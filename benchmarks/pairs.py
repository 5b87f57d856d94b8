"""
Server and client of one subject, their CPUs, and their neighbours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from benchmarks.rows import Row
from benchmarks.transports import Subject
from twisted_ib.tools.compare import processes, subjects
from twisted_ib.tools.compare.processes import START_SECONDS, Patience, WorkerError
from twisted_ib.tools.compare.subjects import CLIENT, Placement

#: The checkout: what the processes import from.
ROOT = Path(__file__).resolve().parent.parent
#: Runs a program of another tree's folder of this name, with what that lacks from this one: folder, program.
_BESIDE = """import benchmarks, runpy, sys
folder, program = sys.argv[1:3]
del sys.argv[1:3]
benchmarks.__path__.append(folder)
runpy.run_module(program, run_name="__main__", alter_sys=True)
"""

#: The placements by name; under C{contended} one busy process runs on every CPU besides.
PLACEMENTS: dict[str, Placement] = {
    each.name: each
    for each in (
        *subjects.PLACEMENTS,
        Placement("free", "both ends on any CPU", None, None),
        Placement("contended", "both ends on any CPU, all of them busy", None, None),
    )
}


def environmentFor(cache: str | None = None, tree: str = "") -> dict[str, str]:
    """
    The environment of every process that is measured.

    @param tree: The folder whose code it runs; this checkout by default, which also has what that one
        has not.
    @param cache: A directory for files of byte code, which are written even where this process is
        told to write none: users have them.
    """
    environment = dict(os.environ)
    paths = [tree, str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if cache is not None:
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = cache
    return environment


def isCompiled(tree: str) -> bool:
    """
    Whether a folder has the compiled form of the modules that each message passes.
    """
    code = "import twisted_ib.sdp.stream; print(twisted_ib.sdp.stream.__file__)"
    environment = environmentFor(tree=tree)
    # Python looks into the current directory first.
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=os.sep, env=environment, stdout=subprocess.PIPE, text=True
    )
    path = Path(ran.stdout.strip())
    return path.suffix != ".py" and path.is_relative_to(tree)


class Neighbours:
    """
    A busy process on every CPU, as long as the context lasts.
    """

    def __init__(self, wanted: bool) -> None:
        """
        @param wanted: There are any.
        """
        self._cpus = sorted(os.sched_getaffinity(0)) if wanted else []
        self._busy: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> None:
        """
        Start them.
        """
        for cpu in self._cpus:
            busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
            os.sched_setaffinity(busy.pid, {cpu})
            self._busy.append(busy)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """
        End them.
        """
        for busy in self._busy:
            busy.kill()
            busy.wait()


def workloadOf(row: Row, subject: Subject) -> str:
    """
    The workload of a subject in a row.
    """
    hasMemory = subject.messages or not subject.program
    return row.registered if row.registered and hasMemory else row.workload


def settings(subject: Subject, folder: str) -> dict[str, str]:
    """
    The rules and devices of a subject that has its own, as the environment of its processes names them.

    @param folder: One of its own, for the rules.
    """
    found = {}
    if subject.rules:
        found["TWISTED_IB_CONFIG"] = os.path.join(folder, "ib.conf")
        Path(found["TWISTED_IB_CONFIG"]).write_text(subject.rules)
    if subject.devices:
        found["TWISTED_IB_DEVICES"] = subject.devices
    return found


def commandOf(subject: Subject, role: str) -> list[str]:
    """
    The command of one of its processes.
    """
    reactor = (role == CLIENT and subject.clientReactor) or subject.reactor
    program = f"benchmarks.{subject.program}"
    tail = [role, reactor, subject.server, str(int(subject.noDelay))]
    if subject.tree:
        return [sys.executable, "-c", _BESIDE, str(ROOT / "benchmarks"), program, *tail]
    return [sys.executable, "-m", program, *tail]


class Pair(processes.Pair):
    """
    Server and client of one subject, which run its program of this folder.
    """

    _subject: Subject

    def __init__(self, subject: Subject, environment: dict[str, str] | None = None) -> None:
        """
        Start both.

        @param environment: See L{environmentFor}.
        """
        folder = tempfile.mkdtemp(prefix="compare-")
        super().__init__(subject, folder, {**(environment or environmentFor()), **settings(subject, folder)})
        self.start()
        try:
            self.ready(Patience(START_SECONDS, self.processes))
        except WorkerError:
            self.end()
            raise

    def _command(self, role: str) -> list[str]:
        return commandOf(self._subject, role)

    def run(self, row: Row, seconds: float, patience: float) -> dict[str, float]:
        """
        Run one row.

        @param patience: for how long both may do nothing, in seconds.
        """
        server, client = self._workers
        client.tell(
            {
                **self._places,
                "workload": workloadOf(row, self._subject),
                "size": row.size,
                "seconds": seconds,
                "noDelay": self._subject.noDelay,
                "count": row.count,
                "server": server.process.pid,
            }
        )
        return client.hear(Patience(patience, self.processes))

    def end(self, isHard: bool = False) -> None:
        """
        End both and clean up.
        """
        super().end(isHard)
        shutil.rmtree(self._folder, ignore_errors=True)
