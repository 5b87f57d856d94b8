"""
Commands that start many processes; C{tests} has one of each kind.
"""

from __future__ import annotations

import json

from tests.ci.test_functions import ONCE, RunTestCase, toy
from tests.support.waiting import HANG_SECONDS
from tests.tools.run import case, test_children, test_hosts


class ManyTests(RunTestCase):
    """
    How many tests may fail, and how they are told from those that end without a report.
    """

    def test_manyUnsteady(self) -> None:
        """
        More unsteady tests than the limit, of 10, are a failure.
        """
        self.assertEqual(self.module.MOST_UNSTEADY, 10)
        self.patch(self.module, "MOST_UNSTEADY", 1)
        self.step(toy(ONCE, ONCE))
        status, lines = self.report()
        self.assertEqual(status, 1)
        self.assertIn("2 tests failed and then passed: more than 1", lines)
        self.assertEqual(lines[-2:], ["unsteady: 2", "2 passed, 1 failed, 0 skipped"])

    def test_manyFailures(self) -> None:
        """
        Of very many failed tests only some run again; each is in the report, which has 150 lines at most.
        """
        self.patch(self.module, "MOST_AGAIN", 1)
        self.step(toy(*["self.fail('line\\n' * 60)"] * 60))
        status, lines = self.report()
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "0 passed, 60 failed, 0 skipped")
        self.assertEqual("".join(self.said).count("=== once more, alone"), 2)
        self.assertLessEqual(len(lines), 150)
        self.assertEqual(len([line for line in lines if line.startswith("--- toys: toy.ToyTests.")]), 60)

    def test_crash(self) -> None:
        """
        A runner that ends without a report is no accident.
        """
        self.step(toy("os._exit(0)"))
        self.step(toy("os.kill(os.getpid(), 9)"))
        status, lines = self.report()
        self.assertEqual(status, 1)
        self.assertIn("status 0, without a report of failed tests", lines)
        self.assertIn("status -9, without a report of failed tests", lines)
        self.assertEqual(lines[-1], "0 passed, 2 failed, 0 skipped")


class HostTests(test_hosts.CommandTests):
    """
    Hosts of C{ib-run}.
    """

    def test_commandAtAddress(self) -> None:
        """
        A host's program starts a command on the other, where hosts are addresses.
        """
        self.refuseNamespaces()
        said = ["0: 1 1 roce0=roce:127.77.0.2 a  b", "0: host 1"]
        self.assertEqual(self.both(test_hosts._STARTS), said)

    def test_commandWithoutLibraries(self) -> None:
        """
        So it is without the extra C{[c]}, and where they are adapters of a subnet.
        """
        super().test_commandWithoutLibraries()
        said = ["0: 1 subnet ib0=ib a  b", "0: host 1"]
        self.assertEqual(self.both(test_hosts._STARTS, "--subnet"), said)


class ChildrenTests(case.RunTestCase):
    """
    Processes that a program of C{ib-run} starts.
    """

    def test_summary(self) -> None:
        """
        Each says what carried its connections in JSON, if the first was asked to.
        """
        words = ("-q", "--summary", "--json", "-c", test_children.CONNECTING)
        lines = self.running(*words).communicate(timeout=HANG_SECONDS)[1].splitlines()
        self.assertEqual([json.loads(line)["sdp"] for line in lines], [2, 0])
