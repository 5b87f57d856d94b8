"""
The process that hosts a subnet is killed.
"""

from __future__ import annotations

from tests.processes.subnet.fabrics import FabricTestCase
from twisted_ib.settings import SUBNET


class KilledTests(FabricTestCase):
    """
    The first of three processes hosts; the others are connected.

    @cvar rounds: how often.
    """

    rounds = 2

    def round(self, name: str) -> None:
        """
        Kill it: the connection carries data all the time, LIDs stay, and another process may join.
        """
        host, one, two = (self.spawn(environment={SUBNET: name}) for _ in range(3))
        self.assertEqual(self.hostOf(name), host.pid)
        lids = self.connect(one, two)
        host.kill()
        while self.hostOf(name) not in (one.pid, two.pid):
            self.assertEqual(one.ask("send"), "SUCCESS")
        for end in (one, two) * 3:
            self.assertEqual(end.ask("send"), "SUCCESS")
        self.assertEqual([end.ask("active")["lid"] for end in (one, two)], lids)
        three = self.spawn(environment={SUBNET: name})
        self.assertNotIn(three.ask("active")["lid"], lids)
        self.assertEqual(one.ask("send"), "SUCCESS")
        for child in (host, one, two, three):
            child.end()

    def test_killed(self) -> None:
        """
        So it is each time.
        """
        for number in range(self.rounds):
            self.round(f"round{number}")
