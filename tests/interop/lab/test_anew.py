"""
Tests for guests that fall silent: L{tests.interop.lab.machine}, C{lab} and C{anew}, without a kernel.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

from twisted.trial.reporter import TestResult
from twisted.trial.unittest import SynchronousTestCase

from tests.interop.lab.anew import limit, runWithRepetition
from tests.interop.lab.lab import ATTEMPTS, Lab
from tests.interop.lab.machine import Lines


class LinesTests(SynchronousTestCase):
    """
    L{Lines}, with a guest that is a socket.
    """

    def setUp(self) -> None:
        """
        Connect them.
        """
        path = Path(self.mktemp())
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            self.lines = Lines(path)
            self.guest = listener.accept()[0]
        self.addCleanup(self.guest.close)
        self.addCleanup(self.lines.close)

    def test_answer(self) -> None:
        """
        A guest that answers is not silent; what is no line of JSON is passed over.
        """
        self.lines.say({"id": 1})
        self.assertEqual(json.loads(self.guest.recv(100)), {"id": 1})
        self.guest.sendall(b'noise\n{"id": 1}\n')
        self.assertEqual(self.lines.hear(60), {"id": 1})
        self.assertIsNone(self.lines.silence)

    def test_silent(self) -> None:
        """
        One that does not answer in its time is asked nothing more, and nobody waits for it again.
        """
        self.assertRaises(TimeoutError, self.lines.hear, 0.01)
        self.assertIn("does not answer", str(self.lines.silence))
        self.assertRaises(ConnectionError, self.lines.say, {})
        self.assertRaises(ConnectionError, self.lines.hear, 3600)

    def test_ended(self) -> None:
        """
        One that ends answers nothing more, either.
        """
        self.guest.close()
        self.assertRaises(ConnectionError, self.lines.hear, 3600)
        self.assertIsNotNone(self.lines.silence)


class Guest:
    """
    A guest without a kernel.
    """

    words = "oops"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.silence: str | None = None
        self.closed = False

    def must(self, command: str) -> str:
        """
        Succeed.
        """
        return ""

    def close(self) -> None:
        """
        Be switched off.
        """
        self.closed = True


class LabTests(SynchronousTestCase):
    """
    L{Lab}.
    """

    def setUp(self) -> None:
        """
        Make one, with no network.
        """
        self.works = True
        self.booted: list[Guest] = []
        network: Any = None
        self.lab = Lab(network, self.boot)
        self.addCleanup(shutil.rmtree, self.lab.directory)

    def boot(self, directory: Path) -> Any:
        """
        Boot a guest.
        """
        self.booted.append(Guest(directory))
        if not self.works:
            raise TimeoutError
        return self.booted[-1]

    def test_anew(self) -> None:
        """
        A guest stays while it answers; a silent one is closed, and another is booted, in a folder of its own.
        """
        first: Any = self.lab.awake()
        self.lab.mtu = 9000
        self.assertIs(self.lab.awake(), first)
        self.assertIsNone(self.lab.silence)
        first.silence = "it hangs"
        self.assertIn("oops", str(self.lab.silence))
        second: Any = self.lab.awake()
        self.assertIsNot(second, first)
        self.assertEqual((first.closed, second.closed, self.lab.mtu), (True, False, 0))
        self.assertNotEqual(first.directory, second.directory)

    def test_bound(self) -> None:
        """
        After some guests that did not come up no more is booted.
        """
        self.works = False
        for _ in range(ATTEMPTS):
            self.assertRaises(TimeoutError, self.lab.awake)
            self.assertIsNotNone(self.lab.silence)
        self.assertRaises(RuntimeError, self.lab.awake)
        self.assertEqual(len(self.booted), ATTEMPTS)


class RepetitionTests(SynchronousTestCase):
    """
    L{runWithRepetition}, L{limit}.
    """

    def setUp(self) -> None:
        """
        Have a test that fails as often as C{failing} says, and take what is printed.
        """
        self.failing, self.silence, self.runs = 0, "it hangs", 0
        self.printed = StringIO()
        self.patch(sys, "stderr", self.printed)
        outer = self

        class Case(SynchronousTestCase):
            def run(self, result: Any) -> None:
                runWithRepetition(self, super().run, outer.reason, result)

            def test_it(self) -> None:
                outer.runs += 1
                self.assertGreater(outer.runs, outer.failing)

            def test_long(self) -> None:
                limit(self, 0.01)
                time.sleep(60)

        self.case = Case
        self.result = TestResult()

    def reason(self) -> str | None:
        """
        @return: why the guest is silent, which it is while the test fails.
        """
        return self.silence if self.runs <= self.failing else None

    def test_repeated(self) -> None:
        """
        The test is repeated, counts once, and is said to be repeated.
        """
        self.failing = 1
        self.case("test_it").run(self.result)
        self.assertEqual((self.runs, self.result.testsRun, self.result.successes), (2, 1, 1))
        self.assertEqual(self.result.failures, [])
        self.assertIn("it hangs: the guest is booted anew, and the test repeated", self.printed.getvalue())

    def test_told(self) -> None:
        """
        How it failed before is said, too: a guest that does not boot has no other words.
        """
        self.failing = 1
        self.case("test_it").run(self.result)
        self.assertIn("1 not greater than 1", self.printed.getvalue())

    def test_once(self) -> None:
        """
        It is repeated once.
        """
        self.failing = 9
        self.case("test_it").run(self.result)
        self.assertEqual((self.runs, len(self.result.failures)), (2, 1))

    def test_answered(self) -> None:
        """
        A test that fails while the guest answers is not repeated.
        """
        self.failing = 1
        self.patch(self, "silence", None)
        self.case("test_it").run(self.result)
        self.assertEqual((self.runs, len(self.result.failures), self.printed.getvalue()), (1, 1, ""))

    def test_limit(self) -> None:
        """
        A test that does not end fails where it waits.
        """
        self.failing = -1
        self.case("test_long").run(self.result)
        self.assertIn("has not ended", self.result.failures[0][1].getErrorMessage())
