"""
The rest of L{tests.processes.applications.test_ping_roce}.
"""

from __future__ import annotations

from tests.processes.applications.test_ping_roce import RoCETestCase
from tests.support.ownaddress import ownGroup


class RoCETests(RoCETestCase):
    """
    A server at one address and a client at another.
    """

    def test_killed(self) -> None:
        """
        A server dies: nobody tells its client, which finds out.
        """
        server, port = self.server("-s", "-v", "--device", "roce0", "-a", self.here)
        client = self.begun(*self.ends("-p", port))
        self.begins(server)
        server.kill()
        status, _, said = self.over(client)
        self.assertEqual((status, said), (1, f"ib-ping: {self.here} does not answer any more\n"))

    def test_mckey(self) -> None:
        """
        Datagrams to a group.
        """
        group = "--as", "mckey", "--device", "roce0", "-m", ownGroup(1), "-C", "3", "-S", "200", "-b"
        receiver = self.begun(*group, self.here)
        self.begins(receiver)
        self.assertEqual(self.over(self.begun(*group, self.there, "-s"))[::2], (0, ""))
        self.assertEqual(self.over(receiver)[::2], (0, ""))
