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

from attrs import frozen

from benchmarks.rows import Row
from benchmarks.subjects import Subject
from twisted_ib.tools.compare.processes import START_SECONDS, Worker, WorkerError, cpusOf

#: The checkout: what the processes import from.
ROOT = Path(__file__).resolve().parent.parent


@frozen
class Placement:
    """
    Where the two processes run.

    @ivar server: Index of the server's CPU among those that we may use, or
        None for all.
    @ivar neighbours: One busy process runs on every CPU besides.
    """

    name: str
    server: int | None
    client: int | None
    neighbours: bool = False


PLACEMENTS: dict[str, Placement] = {
    "split": Placement("split", 0, 1),
    "same": Placement("same", 0, 0),
    "free": Placement("free", None, None),
    "contended": Placement("contended", None, None, neighbours=True),
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


class Pair:
    """
    Server and client of one subject.
    """

    def __init__(self, subject: Subject, environment: dict[str, str] | None = None) -> None:
        """
        Start both.

        @param environment: See L{environmentFor}.
        """
        self._subject = subject
        self._folder = tempfile.mkdtemp(prefix="compare-")
        module = f"benchmarks.{subject.program}"
        tail = [subject.server, str(int(subject.noDelay))]
        reactors = subject.reactor, subject.clientReactor or subject.reactor
        environment = environment or environmentFor()
        program = [sys.executable, "-m", module]
        self._server, self._client = (
            Worker([*program, role, reactor, *tail], self._folder, role, environment)
            for role, reactor in zip(("server", "client"), reactors, strict=True)
        )
        try:
            self._places = self._server.hear(START_SECONDS)
            self._client.hear(START_SECONDS)
        except WorkerError:
            self.end()
            raise

    def place(self, placement: Placement) -> None:
        """
        Move both processes to their CPUs.
        """
        available = sorted(os.sched_getaffinity(0))
        for worker, index in (
            (self._server, placement.server),
            (self._client, placement.client),
        ):
            worker.place(cpusOf(index, available))

    def run(self, row: Row, seconds: float, patience: float) -> dict[str, float]:
        """
        Run one row.
        """
        endpoints = {
            name: self._subject.client.format(port=self._places[name], path=os.path.join(self._folder, name))
            for name in self._places
        }
        self._client.tell(
            {
                **endpoints,
                "workload": workloadOf(row, self._subject),
                "size": row.size,
                "seconds": seconds,
                "noDelay": self._subject.noDelay,
                "count": row.count,
                "server": self._server.process.pid,
            }
        )
        return self._client.hear(patience)

    def end(self, isHard: bool = False) -> None:
        """
        End both and clean up.

        @param isHard: At once: thousands of connections take long to close.
        """
        self._client.end(isHard)
        self._server.end(isHard)
        shutil.rmtree(self._folder, ignore_errors=True)
