"""
OpenSM's own test of subnet administration, and queries, with the manager that a subnet has itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.opensm.diagnostics.commands import masked
from tests.opensm.lab import Lab, lab
from tests.opensm.master import active
from tests.opensm.topologies import TOPOLOGIES
from twisted_ib.subnet.sm.manager import Options

#: Where osmtest and saquery are attached.
HOST = "Hca2"
ROUNDS = 3
TRIES = 5
#: Forms of saquery.  LIDs 1 and 3 are CAs, 2 is a switch.
QUERIES = (
    *("-s", "-g", "-m", "-N", "-N 3", "-x", "-S", "-I", "-U Hca1", "-G Hca2", "-L Hca2", "-O 1"),
    *("NR 3", "LR", "MCMR", "SR", "IIR", "LFTR 2", "MFTR", "VLAR 1", "VLAR 2/1/1", "SL2VL 2/1/2"),
    *("--src-to-dst 1:3", "--sgid-to-dgid fe80::10:1-fe80::10:4", "-p --slid 1 --dlid 3"),
)


class OsmtestTests(SynchronousTestCase):
    """
    C{osmtest}.
    """

    @contextmanager
    def managed(self) -> Iterator[Lab]:
        """
        A lab whose subnet has been swept by its own manager.
        """
        with lab(TOPOLOGIES["trunks"], Path(self.mktemp()).resolve()) as made:
            manage(made)
            yield made

    def passes(self, made: Lab, flow: str) -> bool:
        """
        @return: whether a flow passes.
        """
        status, output = made.run(HOST, "osmtest", "-f", flow)
        return status == 0 and output.rstrip().endswith("PASS")

    def test_flows(self) -> None:
        """
        It takes an inventory, subscribes to events and asks for tables of QoS.
        """
        with self.managed() as made:
            for flow in "ceq" * ROUNDS:
                self.assertTrue(self.passes(made, flow), flow)
            self.assertEqual(made.lost, {})

    def test_flood(self) -> None:
        """
        100,000 queries.
        """
        with self.managed() as made:
            self.assertTrue(self.passes(made, "f"))
            self.assertEqual(made.lost, {})

    def test_multicast(self) -> None:
        """
        Joins and leaves with all that can be wrong with them.  The first time it fails: it cannot see all
        groups that it has made, as tables are cut to what one MAD has room for.
        """
        with self.managed() as made:
            for _ in range(ROUNDS):
                self.assertTrue(any(self.passes(made, "m") for _ in range(TRIES)))


class QueryTests(SynchronousTestCase):
    """
    C{saquery}.
    """

    def answers(self, isOwn: bool) -> dict[str, tuple[int, str]]:
        """
        @param isOwn: whether the subnet has its own manager, or OpenSM.
        @return: exit status and output of all forms.
        """
        with lab(TOPOLOGIES["star2"], Path(self.mktemp()).resolve()) as made:
            if isOwn:
                manage(made)
            else:
                made.opensm()
                made.until((made.directory / "opensm-subnet.lst").exists)
            found = {}
            for query in QUERIES:
                status, output = made.run(HOST, "saquery", *query.split())
                found[query] = status, masked(output)
            return found

    def test_saquery(self) -> None:
        """
        It prints what it prints with OpenSM.
        """
        expected, found = self.answers(False), self.answers(True)
        self.assertEqual([query for query in QUERIES if found[query] != expected[query]], [])
        self.assertEqual({status for status, _ in found.values()}, {0})
        self.assertIn("PathRecord dump", found["--src-to-dst 1:3"][1])


def manage(made: Lab) -> None:
    """
    Let a subnet's own manager sweep it.
    """
    made.subnet.manage(Options())
    made.until(lambda: active(made))
