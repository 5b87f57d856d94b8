"""
Devices of two processes in the subnet of C{ib-fabric}, with OpenSM as its master.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.opensm import dumps
from tests.opensm.lab import Programs
from tests.opensm.topologies import TOPOLOGIES
from tests.processes.subnet.fabrics import FabricTestCase
from twisted_ib.subnet.network.switch import NO_PORT

#: Where the tools are attached.
HOST = "Hca3"
#: How often a way goes, and comes back.
ROUNDS = 10


class AttachedTests(FabricTestCase):
    """
    Two switches with two links between them, and a device at each.
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
        self.host("--no-sm", "--topology", str(file), "--ibsim", programs.name)
        programs.opensm()
        programs.until((programs.directory / "opensm-subnet.lst").exists)
        self.one, self.two = self.spawn(), self.spawn()
        self.lids = self.connect(self.one, self.two)

    def run_(self, *command: str) -> str:
        """
        @return: the output of a program, which has to succeed.
        """
        status, output = self.programs.run(HOST, *command)
        self.assertEqual(status, 0, output)
        return output

    def isGone(self) -> None:
        """
        A request finds no way.
        """
        self.one.ask("reaches", lid=self.lids[1], isReached=False)
        self.assertEqual(self.one.ask("send"), "RETRY_EXC_ERR")

    def isBack(self) -> None:
        """
        A new connection has one.
        """
        self.assertEqual(self.connect(self.one, self.two), self.lids)
        self.assertEqual(self.one.ask("send"), "SUCCESS")

    def switch(self) -> dumps.End:
        """
        @return: the port of a switch that the second device is at.
        """

        def found() -> list[dumps.End]:
            links = dumps.subnet(self.programs.directory)
            return [near for near, (far, state) in links.items() if (far.lid, state) == (self.lids[1], "ACT")]

        # OpenSM writes the file after its sweep.
        self.programs.until(found)
        (switch,) = found()
        return switch

    def test_ways(self) -> None:
        """
        OpenSM has given the LIDs.  An entry of a forwarding table that an SMP sets to 255 ends a connection
        with RETRY_EXC_ERR; when it is as before a new one works.
        """
        switch = self.switch()
        for _ in range(ROUNDS):
            self.assertEqual(self.one.ask("send"), "SUCCESS")
            number = self.one.ask("route", switch=switch.lid, lid=self.lids[1], number=NO_PORT)
            self.assertEqual(number, switch.number)
            self.isGone()
            self.one.ask("route", switch=switch.lid, lid=self.lids[1], number=number)
            self.isBack()

    def test_link(self) -> None:
        """
        C{ibportstate} takes the link of a device down, and up: OpenSM makes it Active again, with its LID.
        """
        switch = self.switch()
        for _ in range(3):
            self.run_("ibportstate", str(switch.lid), str(switch.number), "disable")
            self.two.ask("state", name="DOWN")
            self.isGone()
            self.run_("ibportstate", str(switch.lid), str(switch.number), "enable")
            self.isBack()

    def test_diagnostics(self) -> None:
        """
        infiniband-diags show the devices by their descriptions, and their own counters.
        """
        found = self.run_("ibnetdiscover")
        for end, lid in zip((self.one, self.two), map(str, self.lids), strict=True):
            name = str(end.ask("active")["name"])
            self.assertIn(f'"{name}"', found)
            self.assertIn(name, self.run_("smpquery", "nodedesc", lid))
            self.assertIn(name, self.run_("saquery", lid))
            self.assertIn("100 received, 0% packet loss", self.run_("ibping", "-c", "100", "-f", lid))
        for _ in range(3):
            self.assertEqual(self.one.ask("send"), "SUCCESS")
        counters = self.one.ask("counters")
        output = self.run_("perfquery", "-x", str(self.lids[0]), "1")
        values = dict(re.findall(r"(\w+):\.+(\d+)", output))
        self.assertEqual(
            [values[name] for name in ("PortXmitPkts", "PortRcvPkts")],
            [str(counters[name]) for name in ("sent_pkts", "rcvd_pkts")],
        )
        self.assertGreaterEqual(counters["sent_pkts"], 3)
