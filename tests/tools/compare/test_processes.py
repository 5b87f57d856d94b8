"""
Tests for L{twisted_ib.tools.compare.processes}.
"""

from __future__ import annotations

import os
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from twisted_ib.tools.compare import processes
from twisted_ib.tools.compare.processes import Patience, Worker, WorkerError, cpusOf

#: A process that answers each line with itself, in a JSON object.
ECHO = "import sys, json\nfor line in sys.stdin: print(json.dumps({'line': json.loads(line)}), flush=True)"


class PatienceTests(SynchronousTestCase):
    """
    How long an answer is waited for.
    """

    def setUp(self) -> None:
        """
        Have a clock, and processes whose work is told.
        """
        self.now, self.used = 5.0, {1: 0, 2: 7}
        self.patch(processes, "monotonic", lambda: self.now)
        self.patch(processes, "cpuNanoseconds", self.work)
        self.patience = Patience(10, (1, 2))

    def work(self, numbers: list[int]) -> int:
        """
        @return: what processes have used; one may have ended.
        """
        (number,) = numbers
        if number not in self.used:
            raise OSError
        return self.used[number]

    def test_idle(self) -> None:
        """
        It ends when nobody has worked for so long.
        """
        self.assertEqual(self.patience.left(), 10)
        self.now += 8
        self.assertEqual(self.patience.left(), 2)
        self.now += 3
        self.assertEqual(self.patience.left(), 0)
        self.assertEqual(self.patience.over("client"), "no answer of the client, and nothing done for 10 s")

    def test_busy(self) -> None:
        """
        It lasts longer while one works, but not for ever.
        """
        for _ in range(processes.BUSY_TIMES - 1):
            self.now += 10
            self.used[2] += 100_000_000
            self.assertEqual(self.patience.left(), 10)
        self.now += 10
        self.used[2] += 100_000_000
        self.assertEqual(self.patience.left(), 0)
        self.assertEqual(
            self.patience.over("client"),
            "no answer of the client in 200 s of work; compare fewer --subjects at once",
        )

    def test_littleWork(self) -> None:
        """
        A timer now and then is no work.
        """
        self.now += 10
        self.used[2] += 99_000_000
        self.assertEqual(self.patience.left(), 0)

    def test_ended(self) -> None:
        """
        A process that has ended works no more, and the others do.
        """
        del self.used[1]
        self.now += 10
        self.used[2] += 100_000_000
        self.assertEqual(self.patience.left(), 10)


class WorkerTests(SynchronousTestCase):
    """
    One process.
    """

    def started(self, program: str) -> Worker:
        """
        @return: a process that runs a program.
        """
        folder = os.path.abspath(self.mktemp())
        os.mkdir(folder)
        worker = Worker([sys.executable, "-S", "-c", program], folder, "server")
        self.addCleanup(worker.end, isHard=True)
        return worker

    def error(self, program: str, seconds: float = HANG_SECONDS) -> str:
        """
        @return: why a process that runs a program gives no answer.
        """
        worker = self.started(program)
        return str(self.assertRaises(WorkerError, worker.hear, Patience(seconds, [worker.process.pid])))

    def test_answers(self) -> None:
        """
        It answers line by line, on the CPUs that it is given, and ends by itself.
        """
        self.patch(processes, "END_SECONDS", HANG_SECONDS)
        worker = self.started(ECHO)
        for number in range(2):
            worker.tell({"number": number})
            self.assertEqual(worker.hear(Patience(HANG_SECONDS, ())), {"line": {"number": number}})
        [cpu, *_] = os.sched_getaffinity(0)
        worker.place({cpu})
        self.assertEqual(os.sched_getaffinity(worker.process.pid), {cpu})
        worker.end()
        self.assertEqual(worker.process.returncode, 0)

    def test_errors(self) -> None:
        """
        Its last words are the error if it ends, and its own error is one.
        """
        self.assertEqual(self.error("raise SystemExit('one\\ntwo')"), "ended: two")
        self.assertEqual(self.error(""), "ended: it said nothing")
        self.assertEqual(self.error('print(\'{"error": "why"}\')'), "why")
        self.assertEqual(self.error("print('nonsense')"), "it said 'nonsense'")

    def test_silent(self) -> None:
        """
        Silence, and a line without an end, are errors.
        """
        self.assertEqual(
            self.error("input()", 0.01),
            "no answer of the server, and nothing done for 0.01 s: it said nothing",
        )
        self.patch(processes, "_ANSWER_BYTES", 4096)
        flood = "import sys\nwhile True: sys.stdout.write('x' * 4096)"
        self.assertEqual(self.error(flood), "no answer in 4096 bytes")

    def test_ended(self) -> None:
        """
        A process that has ended is told nothing any more, and gets no CPU.
        """
        worker = self.started("")
        worker.process.wait()
        self.assertRaises(WorkerError, worker.tell, {})
        self.assertRaises(WorkerError, worker.place, {0})
        worker.end()

    def test_stubborn(self) -> None:
        """
        One that does not end is killed.
        """
        self.patch(processes, "END_SECONDS", 0.01)
        worker = self.started("print('{}', flush=True)\nwhile True: pass")
        self.assertEqual(worker.hear(Patience(HANG_SECONDS, ())), {})
        worker.end()
        self.assertEqual(worker.process.returncode, -9)

    def test_cpus(self) -> None:
        """
        An index is one of the CPUs that there are, none is all of them.
        """
        self.assertEqual([cpusOf(index, [4, 6]) for index in (0, 1, 2, None)], [{4}, {6}, {4}, {4, 6}])
