"""
The processes of C{ib-perf compare}: a server and a client for each subject, and their CPUs.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from twisted_ib.drive.sleeper import awaitReady
from twisted_ib.tools.compare.measuring import WARM, Figures, cpuNanoseconds
from twisted_ib.tools.compare.subjects import CLIENT, SERVER, Placement, Subject
from twisted_ib.tools.program import pythonProgram

#: How long processes may do nothing, if nothing else is asked, until one has started, or answers, beyond the
#: time that it measures; and how long one may take to end by itself.
START_SECONDS = 30.0
END_SECONDS = 3.0

#: They may take so many times as long where they work: many processes on a slow CPU.
BUSY_TIMES = 20
#: They work if they have used this share of one CPU.
_BUSY_SHARE = 0.01

#: How many times longer than asked for a measurement may take: it warms up first, and compares contents.
_LONGER = 8

#: The longest answer.
_ANSWER_BYTES = 65536


class WorkerError(Exception):
    """
    A process did not do what it was told.
    """


def cpusOf(index: int | None, available: list[int]) -> set[int]:
    """
    @return: the CPUs for one process: one of those that are available, or L{None} for all.
    """
    return set(available) if index is None else {available[index % len(available)]}


def place(process: int, cpus: set[int]) -> None:
    """
    Move a process, with all of its threads, to some CPUs.

    @raise OSError: it has ended.
    """
    for thread in os.listdir(f"/proc/{process}/task"):
        os.sched_setaffinity(int(thread), cpus)


class Patience:
    """
    How long an answer is waited for: until its processes have done nothing for a time, or L{BUSY_TIMES} as
    long.
    """

    def __init__(self, seconds: float, processes: Iterable[int]) -> None:
        """
        Begin to wait.

        @param seconds: how long they may do nothing.
        @param processes: their ids.
        """
        self._seconds = seconds
        self._processes = tuple(processes)
        self._begun = monotonic()
        self._deadline, self._used = self._begun + seconds, self._cpu()

    def _cpu(self) -> int:
        used = 0
        for process in self._processes:
            try:
                used += cpuNanoseconds([process])
            except OSError:
                # It has ended, as whoever waits for it sees.
                pass
        return used

    def left(self) -> float:
        """
        @return: how long to wait now, in seconds; 0 if it is over.
        """
        now, used = monotonic(), self._cpu()
        if now >= self._deadline and used - self._used >= _BUSY_SHARE * self._seconds * 1e9:
            most = self._begun + BUSY_TIMES * self._seconds
            self._deadline, self._used = min(now + self._seconds, most), used
        return max(0.0, self._deadline - now)

    def over(self, name: str) -> str:
        """
        @param name: of the process that did not answer.
        @return: why it is not waited for any longer, and what to do.
        """
        if monotonic() < self._begun + BUSY_TIMES * self._seconds:
            return f"no answer of the {name}, and nothing done for {self._seconds:g} s"
        seconds = BUSY_TIMES * self._seconds
        return f"no answer of the {name} in {seconds:g} s of work; compare fewer --subjects at once"


class Worker:
    """
    One process that answers JSON lines.  It ends when its standard input is closed, also by our own end.
    """

    def __init__(
        self, command: list[str], folder: str, name: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """
        Start it.

        @param folder: its current directory, where its standard error goes into a file.
        @param environment: by default this process's.
        """
        self._name = name
        self._log = os.path.join(folder, f"{name}.log")
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._pending = b""

    def tell(self, command: Mapping[str, object]) -> None:
        """
        Write one line.

        @raise WorkerError: the process has ended.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise WorkerError(f"ended: {self._lastWords()}") from None

    def hear(self, patience: Patience) -> dict[str, Any]:
        """
        Read one line, once it is there.

        @raise WorkerError: none came, or it says that something failed.
        """
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._pending:
            if len(self._pending) >= _ANSWER_BYTES:
                raise WorkerError(f"no answer in {_ANSWER_BYTES} bytes")
            # Not select(2): whoever measures may have more descriptors than that takes.
            left = patience.left()
            if not awaitReady(descriptor, left):
                if left:
                    continue
                raise WorkerError(f"{patience.over(self._name)}: {self._lastWords()}")
            data = os.read(descriptor, _ANSWER_BYTES)
            if not data:
                raise WorkerError(f"ended: {self._lastWords()}")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise WorkerError(f"it said {line.decode(errors='replace')!r}") from None
        if "error" in answer:
            raise WorkerError(str(answer["error"]))
        return answer

    def place(self, cpus: set[int]) -> None:
        """
        Move the process to some CPUs: see L{place}.

        @raise WorkerError: the process has ended.
        """
        try:
            place(self.process.pid, cpus)
        except OSError:
            raise WorkerError(f"ended: {self._lastWords()}") from None

    def _lastWords(self) -> str:
        lines = Path(self._log).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def end(self, isHard: bool = False) -> None:
        """
        Let it end, or make it.

        @param isHard: make it at once.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        if isHard:
            self.process.kill()
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Pair:
    """
    Server and client of one subject.
    """

    def __init__(
        self,
        subject: Subject,
        folder: str,
        environment: Mapping[str, str] | None = None,
        patience: float = START_SECONDS,
    ) -> None:
        """
        Start nothing yet.

        @param folder: an empty one of their own.
        @param environment: by default this process's.
        @param patience: seconds for which they may do nothing.
        """
        self._patience = patience
        self._subject = subject
        self._folder = folder
        self._environment = environment
        self._places: dict[str, str] = {}
        self._workers: list[Worker] = []

    def start(self) -> None:
        """
        Start both.
        """
        for role in (SERVER, CLIENT):
            self._workers.append(Worker(self._command(role), self._folder, role, self._environment))

    def _command(self, role: str) -> list[str]:
        subject = self._subject
        module = f"twisted_ib.tools.compare.{subject.program}"
        program = f"import {module} as program; program.main(sys.argv[1:])"
        serving = [subject.server, str(int(subject.noDelay))] if subject.server and role == SERVER else []
        return pythonProgram(program, [role, subject.reactor, *serving])

    @property
    def processes(self) -> list[int]:
        """
        Their ids.
        """
        return [each.process.pid for each in self._workers]

    def ready(self, patience: Patience) -> None:
        """
        Wait until both are ready: many start at the same time.

        @raise WorkerError: one is not.
        """
        ports, _ = (worker.hear(patience) for worker in self._workers)
        for name, port in ports.items():
            self._places[name] = self._subject.client.format(port=port, folder=self._folder, name=name)

    def warm(self) -> None:
        """
        Have both use all memory that they share, which is slow at first.

        @raise WorkerError: it failed.
        """
        self.measure(WARM, 0, 0)

    def place(self, placement: Placement) -> None:
        """
        Move both to their CPUs.
        """
        available = sorted(os.sched_getaffinity(0))
        for worker, index in zip(self._workers, (placement.server, placement.client), strict=True):
            worker.place(cpusOf(index, available))

    def measure(self, measure: str, size: int, seconds: float) -> Figures:
        """
        Measure once.

        @param measure: C{latency} or C{throughput}.
        @param size: bytes of a message, or of a write.
        @raise WorkerError: it failed.
        """
        server, client = self._workers
        client.tell(
            {
                "measure": measure,
                "size": size,
                "seconds": seconds,
                "places": self._places,
                "noDelay": self._subject.noDelay,
                "server": server.process.pid,
            }
        )
        return client.hear(Patience(seconds * _LONGER + self._patience, self.processes))

    def end(self, isHard: bool = False) -> None:
        """
        End both, or what was started of them.

        @param isHard: at once: thousands of connections take long to close.
        """
        for worker in reversed(self._workers):
            worker.end(isHard)
