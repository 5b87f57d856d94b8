"""
Tests for L{twisted_ib.tools.compare.processes}.
"""

from __future__ import annotations

import os
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from twisted_ib.tools.compare import processes
from twisted_ib.tools.compare.processes import Worker, WorkerError, cpusOf

#: A process that answers each line with itself, in a JSON object.
ECHO = "import sys, json\nfor line in sys.stdin: print(json.dumps({'line': json.loads(line)}), flush=True)"


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
        worker = Worker([sys.executable, "-S", "-c", program], folder, "it")
        self.addCleanup(worker.end, isHard=True)
        return worker

    def error(self, program: str, seconds: float = HANG_SECONDS) -> str:
        """
        @return: why a process that runs a program gives no answer.
        """
        return str(self.assertRaises(WorkerError, self.started(program).hear, seconds))

    def test_answers(self) -> None:
        """
        It answers line by line, on the CPUs that it is given, and ends by itself.
        """
        worker = self.started(ECHO)
        for number in range(2):
            worker.tell({"number": number})
            self.assertEqual(worker.hear(HANG_SECONDS), {"line": {"number": number}})
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
        self.assertEqual(self.error("input()", 0.01), "no answer in time: it said nothing")
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
        self.assertEqual(worker.hear(HANG_SECONDS), {})
        worker.end()
        self.assertEqual(worker.process.returncode, -9)

    def test_cpus(self) -> None:
        """
        An index is one of the CPUs that there are, none is all of them.
        """
        self.assertEqual([cpusOf(index, [4, 6]) for index in (0, 1, 2, None)], [{4}, {6}, {4}, {4, 6}])
