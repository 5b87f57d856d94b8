"""
IPoIB interfaces of two processes in the subnet of C{ib-fabric}, with OpenSM as its master.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.opensm.lab import Programs
from tests.opensm.topologies import TOPOLOGIES
from tests.processes.ipoib.test_interfaces import HOSTS, InterfaceTestCase

#: Where the tools are attached.
HOST = "Hca3"
#: How often OpenSM is restarted, and how often one of the two processes.
MANAGERS, PROCESSES = 5, 20
#: The longest time, in seconds, until a process that was restarted is reached.
HEALS = 3.0
#: The Q_Key of OpenSM's broadcast group here, which is not the one that it has by default.
QUEUE_KEY = 0x5EED
MGID = "ff12:401b:ffff::ffff:ffff"


class InterfaceTests(InterfaceTestCase):
    """
    Two switches with two links between them, and an interface at each.
    """

    def setUp(self) -> None:
        """
        Bring the subnet up.
        """
        super().setUp()
        self.programs = programs = Programs(Path(self.mktemp()).resolve())
        self.addCleanup(programs.stop)
        file = programs.directory / "topology"
        file.write_text(TOPOLOGIES["trunks"])
        partitions = programs.directory / "partitions"
        partitions.write_text(f"Default=0x7fff, ipoib, mtu=4, Q_Key={QUEUE_KEY:#x} : ALL=full, SELF=full ;\n")
        self.options = (f"partition_config_file {partitions}",)
        self.host("--no-sm", "--topology", str(file), "--ibsim", programs.name)
        self.manager = programs.opensm("Hca1", *self.options)
        self.one, self.two = self.spawn(), self.spawn()
        self.groups = [self.open(end, "ib0", index) for index, end in enumerate((self.one, self.two))]

    def values(self, name: str) -> set[str]:
        """
        @return: those of C{saquery}'s records of the members of the broadcast group.
        """
        # With the SM_Key: others are not told who the members are.  All in one MAD, as the library of the
        # simulator has no RMPP.
        lid = str(self.groups[0]["mlid"])
        _, output = self.programs.run(HOST, "saquery", "--smkey", "1", "MCMR", "--mlid", lid)
        return set(re.findall(rf"{name}\.+(\S+)", output))

    def test_group(self) -> None:
        """
        Both are members of OpenSM's broadcast group, and use its MLID and its Q_Key.
        """
        self.assertEqual(self.values("MGID"), {MGID})
        self.assertEqual(self.values("PortGid"), {str(end.ask("gid")) for end in (self.one, self.two)})
        self.assertEqual(self.values("qkey"), {hex(group["qKey"]) for group in self.groups})
        self.assertEqual(self.values("mlid"), {hex(group["mlid"]) for group in self.groups})
        self.assertEqual(self.groups[0]["qKey"], QUEUE_KEY)
        self.exchange(self.one, 65520)

    def test_managerRestarted(self) -> None:
        """
        OpenSM is killed and started again: packets go on meanwhile, both are members again, and a process
        that takes the place of another is found by ARP.
        """
        for _ in range(MANAGERS):
            ends = {end.ask("gid") for end in (self.one, self.two)}
            self.one.ask("reach", peer=HOSTS[1])
            self.one.begin("flood", peer=HOSTS[1], count=2000, length=500)
            self.manager.kill()
            self.manager.wait()
            self.manager = self.programs.opensm("Hca1", *self.options)
            self.assertEqual(self.one.answer(), 2000)
            self.programs.until(lambda ends=ends: self.values("PortGid") >= ends)  # type: ignore[misc]
            self.two, seconds = self.restarted(self.one, self.two, "ib0")
            self.assertLess(seconds, HEALS)

    def test_processRestarted(self) -> None:
        """
        A process that takes the place of another, with another queue pair, is reached.
        """
        waits = []
        for _ in range(PROCESSES):
            self.one.ask("reach", peer=HOSTS[1])
            self.two, seconds = self.restarted(self.one, self.two, "ib0")
            waits.append(seconds)
        self.assertEqual([seconds for seconds in waits if seconds >= HEALS], [])
