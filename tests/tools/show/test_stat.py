"""
Tests for C{ib-stat}.
"""

from __future__ import annotations

import copy
from typing import Any
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.hcas import settle
from tests.subnet.port.subnets import LEAVES, SubnetTestCase
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import waitUntil
from twisted_ib.hca.host import libc
from twisted_ib.subnet.hosting import hostthread, link
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.tools.show import stat
from twisted_ib.tools.show.devicetext import heading
from twisted_ib.verbs.pyverbs.enums.device import ibv_port_state

MISSING = libc.available()

HCA = """\
CA 'test'
\tCA type: twisted_ib
\tNumber of ports: 1
\tFirmware version: 0.1.0
\tHardware version: 0
\tNode GUID: 0x0000000000100000
\tSystem image GUID: 0x0000000000100000"""
PORT = """
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 10
\t\tBase lid: 3
\t\tLMC: 0
\t\tSM lid: 1
\t\tCapability mask: 0x0251c048
\t\tPort GUID: 0x0000000000100001
\t\tLink layer: InfiniBand"""
ALONE = """\
CA: 'test'
Port 1:
State: Active
Physical state: LinkUp
Rate: 10
Base lid: 3
LMC: 0
SM lid: 1
Capability mask: 0x0251c048
Port GUID: 0x0000000000100001
Link layer: InfiniBand"""


class TextTests(SubnetTestCase):
    """
    The text of an HCA of a subnet.
    """

    topology = LEAVES

    def setUp(self) -> None:
        """
        Describe one.
        """
        super().setUp()
        (self.one,) = self.at("a")
        settle(self.one)
        self.answer = self.one.describe()

    def text(self, *arguments: str, **port: Any) -> str:
        """
        @param port: attributes of the port that are others.
        @return: what is printed.
        """
        answer = copy.deepcopy(self.answer)
        answer["port"].update(port)
        return "\n".join(stat.text([answer], stat.commandLine().parse_args(arguments)))

    def test_forms(self) -> None:
        """
        Whole, short, one port, names and port GUIDs.
        """
        self.assertEqual(self.text(), HCA + PORT)
        self.assertEqual(self.text("-s"), HCA)
        self.assertEqual(self.text("test", "1", "-s"), HCA)
        self.assertEqual(self.text("test", "1"), ALONE)
        self.assertEqual(self.text("-l"), "test")
        self.assertEqual(self.text("-p"), "0x0000000000100001")

    def test_names(self) -> None:
        """
        Two processes may have devices of one name.
        """
        options = stat.commandLine().parse_args(["-l"])
        other = {**self.answer, "hca_id": "shm0"}
        self.assertEqual(stat.text([self.answer, other, self.answer], options), ["shm0", "test"])

    def test_states(self) -> None:
        """
        States, rates and link layers have ibstat's words.
        """
        for changes, line in (
            ({"state": ibv_port_state.IBV_PORT_DOWN}, "State: Down"),
            ({"state": 2}, "State: Initializing"),
            ({"state": 3}, "State: Armed"),
            ({"state": 5}, "State: ???"),
            ({"phys_state": 2}, "Physical state: Polling"),
            ({"phys_state": 9}, "Physical state: ???"),
            ({"active_width": 1, "active_speed": 1}, "Rate: 2.5"),
            ({"active_width": 1, "active_speed": 16}, "Rate: 14"),
            ({"active_width": 8, "active_speed": 32}, "Rate: 300"),
            ({"active_width": 3}, "Rate: ???"),
            ({"active_speed": "fast"}, "Rate: ???"),
            ({"lmc": 3}, "LMC: 3"),
            ({"lid": "none"}, "Base lid: none"),
            ({"port_cap_flags": 0x10000}, "Capability mask: 0x00010000"),
            ({"link_layer": 2}, "Link layer: Ethernet"),
            ({"link_layer": 7}, "Link layer: ???"),
        ):
            self.assertIn(f"\t\t{line}", self.text(**changes).splitlines())  # type: ignore[arg-type]

    def test_guid(self) -> None:
        """
        The port GUID on Ethernet is the node's; one that is not said is left out, and what a terminal would
        obey is written out.
        """
        self.assertIn("Port GUID: 0x0000000000100000", self.text(link_layer=2))
        for gids in (["nonsense"], []):
            self.answer["gids"] = gids
            self.assertEqual("Port GUID" in self.text(), not gids)
        self.answer["attributes"] = {"fw_ver": "\x1b[31m", "node_guid": None}
        text = self.text()
        self.assertIn("Firmware version: \\x1b[31m", text)
        self.assertNotIn("Port GUID", text)
        self.assertEqual(self.text("-p"), "")

    def test_link(self) -> None:
        """
        The device's port has the width, speed and abilities of that of the subnet; its GIDs have no type.
        """
        port = self.port("a")
        port.linkWidthActive, port.linkSpeedActive, port.linkSpeedExtActive = 8, 4, 2
        self.manager.setPort(port, smSL=1)
        settle(self.one)
        self.answer = self.one.describe()
        self.assertIn("\t\tRate: 300", self.text())
        (gid,) = [line for line in heading(self.answer, True) if "GID[" in line]
        self.assertTrue(gid.endswith("\tfe80::10:1"))


class CommandTests(SynchronousTestCase):
    """
    The exit status.
    """

    def test_silent(self) -> None:
        """
        A process that does not answer is told of.
        """
        written: list[str] = []
        silent = {"hca_id": "shm0", "pid": 77, "program": None, "in_use": None}
        self.patch(stat, "devices", lambda name: [silent])
        self.patch(stat, "write", written.append)
        self.patch(stat, "complain", lambda program, error: written.append(str(error)))
        self.assertEqual((stat.main([]), written), (1, ["process 77 does not answer"]))

    def test_noPort(self) -> None:
        """
        An HCA has port 1 alone.
        """
        written: list[str] = []
        self.patch(stat, "devices", lambda name: [])
        self.patch(stat, "complain", lambda program, error: written.append(str(error)))
        self.assertEqual((stat.main(["shm0", "2"]), written), (1, ["device shm0 has no port 2"]))


@skipIf(bool(MISSING), f"missing: {MISSING}")
class OpenedTests(SynchronousTestCase):
    """
    A device that no process has: this one hosts its subnet.
    """

    def setUp(self) -> None:
        """
        A run directory of the test's own; the host ends soon after the command has closed the device.
        """
        ownRunDirectory(self)
        self.patch(hostthread, "LINGER_SECONDS", 0.02)
        self.addCleanup(waitUntil, lambda: not hostthread._hosts)
        self.written: list[str] = []
        self.patch(stat, "write", self.written.append)

    def test_manager(self) -> None:
        """
        It is shown when the subnet manager has configured its port.
        """
        self.assertEqual(stat.main(["ib0"]), 0)
        lines = self.written[0].splitlines()
        self.assertEqual((lines[0], lines[-1]), ("CA 'ib0'", "\t\tLink layer: InfiniBand"))
        self.assertIn("\t\tState: Active", lines)

    def test_noManager(self) -> None:
        """
        Without one it is shown after a while as it is.
        """
        self.patch(HostedSubnet, "manage", lambda subnet, options: None)
        self.patch(link, "ACTIVE_SECONDS", 0.01)
        self.assertEqual(stat.main(["ib0"]), 0)
        self.assertIn("\t\tState: Initializing\n", self.written[0])
