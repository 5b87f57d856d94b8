"""
Blocking sockets over TCP and over SDP, compared.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.suites.differential.known import KNOWN, MOST_KNOWN
from tests.suites.differential.record import Difference, Record, Scenarios
from tests.suites.differential.sockets import scenarios
from tests.support.waiting import HANG_SECONDS


class SocketTests(SynchronousTestCase):
    """
    A test for each scenario.
    """

    timeout = 4 * HANG_SECONDS


scenarios.addTests(SocketTests)


class ComparingTests(SynchronousTestCase):
    """
    What is compared.
    """

    def _scenarios(self, known: dict[str, str]) -> Scenarios:
        def play(function: Any, isSDP: bool) -> Record:
            record = Record()
            function(record, isSDP)
            return record

        made = Scenarios(play, known)
        made.add("same", lambda record, isSDP: record.say("x", 1))
        made.add("other", lambda record, isSDP: (record.part("a"), record.say("x", isSDP)))
        return made

    def test_difference(self) -> None:
        """
        A difference that is not known is a fault; a known one is not.
        """
        made = self._scenarios({})
        self.assertEqual(made.compared("same"), [])
        found = made.compared("other")
        self.assertEqual(found, [Difference("other/a", ("- x False", "+ x True"))])
        self.assertEqual(made.faults("other", found), ["other/a\n    - x False\n    + x True"])
        self.assertEqual(self._scenarios({"other/a": "why"}).faults("other", found), [])

    def test_gone(self) -> None:
        """
        A known difference that is none is a fault.
        """
        made = self._scenarios({"same": "why"})
        self.assertEqual(len(made.faults("same", made.compared("same"))), 1)

    def test_known(self) -> None:
        """
        The list is short, each entry has its reason, and those of sockets name scenarios.
        """
        entries = [entry for program in KNOWN.values() for entry in program.items()]
        self.assertLessEqual(len(entries), MOST_KNOWN)
        self.assertTrue(all(reason for _, reason in entries))
        self.assertEqual([each for each in KNOWN["socket"] if each.split("/")[0] not in scenarios.named], [])

    def test_form(self) -> None:
        """
        Errors are said by their classes and numbers, long data by its length, ports by their names.
        """
        record = Record(names={4711: "SERVER"})
        record.say("x", ConnectionResetError(104, "text"), ("127.0.0.1", 4711), bytes(100)[:3], [None, True])
        record.call("y", int, "z")
        record.say("long", bytes(100))
        lines = record.parts[""]
        self.assertEqual(
            lines[0], r"x ConnectionResetError 104 ('127.0.0.1', SERVER) b'\x00\x00\x00' (None, True)"
        )
        self.assertEqual(lines[1], "y: ValueError")
        self.assertTrue(lines[2].startswith("long 100 octets "))
