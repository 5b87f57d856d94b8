"""
C{ib-fabric} hosts the devices of other processes.
"""

from __future__ import annotations

from pathlib import Path

from tests.processes.subnet.fabrics import FabricTestCase
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.settings import SUBNET

#: Two leaves, of which each has an adapter, and a spine.
TOPOLOGY = """\
Switch 4 "spine"
[1] "leaf1"[1]
[2] "leaf2"[1]

Switch 4 "leaf1"
[1] "spine"[1]
[2] "a"[1]

Switch 4 "leaf2"
[1] "spine"[2]
[2] "b"[1]

Ca 1 "a"
[1] "leaf1"[2]

Ca 1 "b"
[1] "leaf2"[2]
"""


class FabricTests(FabricTestCase):
    """
    Two processes, and the one that hosts.
    """

    def test_hosted(self) -> None:
        """
        Their devices are at different leaves, and connect through the spine.  When that is gone from the
        file, messages do not arrive, and when it is there again a new connection works.  The host is killed:
        the connection carries data, LIDs stay, and one of the two hosts.
        """
        file = Path(self.runDirectory + ".logs", "topology")
        file.write_text(TOPOLOGY)
        host = self.host("--topology", str(file), "--name", "lab")
        one, two = ends = [self.spawn(environment={SUBNET: "lab"}) for _ in range(2)]
        lids = self.connect(one, two)
        self.assertEqual(one.ask("send"), "SUCCESS")
        file.write_text(TOPOLOGY.replace('[2] "leaf2"[1]\n', "").replace('[1] "spine"[2]\n', ""))
        self.assertEqual(self.reload(host), "nodes: 7, links: 5\n")
        # Each port learns it by itself, and the receiver's is the one that drops.
        for end, lid in zip(ends, lids[::-1], strict=True):
            end.ask("reaches", lid=lid, isReached=False)
        self.assertEqual(one.ask("send"), "RETRY_EXC_ERR")
        file.write_text(TOPOLOGY)
        self.assertEqual(self.reload(host), "nodes: 7, links: 6\n")
        self.assertEqual(self.connect(one, two), lids)
        self.assertEqual(one.ask("send"), "SUCCESS")
        host.kill()
        for end in ends * 5:
            self.assertEqual(end.ask("send"), "SUCCESS")
        # Its lock is free when it has ended, and then one of the two takes it.
        host.wait(HANG_SECONDS)
        waitUntil(lambda: self.hostOf("lab") in [end.pid for end in ends])
        self.assertEqual([end.ask("active")["lid"] for end in ends], lids)
