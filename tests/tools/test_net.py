"""
Tests for C{ib-net}.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attrs import evolve
from twisted.internet.defer import Deferred

from tests.subnet.port.subnets import SubnetTestCase
from tests.support.commands import CommandTestCase, programOf
from twisted_ib import limits
from twisted_ib.errors import UnknownDeviceError
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.mad.attributes.node import NodeDescription, NodeInfo, SwitchInfo
from twisted_ib.hca.mad.attributes.port import Capability, PortInfo
from twisted_ib.hca.wire.mad.classes import SUBNET_DIRECTED
from twisted_ib.hca.wire.mad.mad import CLASS_AT
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.sm.manager import Options
from twisted_ib.subnet.sm.model import Node, Port, Switch
from twisted_ib.tools import net
from twisted_ib.tools.program import ProgramError

#: Two switches with two links between them, and a CA at each.
TOPOLOGY = """\
vendid=0x2c9
devid=0xc738
switchguid=0xb0
Switch 4 "near" # "near switch"
[1] "ib0"[1]
[2] "far"[2]  w=3
[3] "far"[1]

Switch 4 "far"
[1] "near"[3]
[2] "near"[2]  w=3
[4] "other"[2]

caguid=0xa0
Ca 1 "ib0"
[1] "near"[1]

Ca 2 "other"
[2] "far"[4]
"""
DATE = "today"
TEXT = """\
#
# Topology file: generated on today
#
# Initiated from node 00000000000000a0 port 00000000000000a1

vendid=0x0
devid=0x0
sysimgguid=0xb1
switchguid=0xb1(b1)
Switch\t4 "S-00000000000000b1"\t\t# "far" base port 0 lid 3 lmc 0
[1]\t"S-00000000000000b0"[3]\t\t# "near switch" lid 2 4xSDR
[2]\t"S-00000000000000b0"[2]\t\t# "near switch" lid 2 4xSDR
[4]\t"H-00000000000000a2"[2](a4) \t\t# "other" lid 4 4xSDR

vendid=0x2c9
devid=0xc738
sysimgguid=0xb0
switchguid=0xb0(b0)
Switch\t4 "S-00000000000000b0"\t\t# "near switch" base port 0 lid 2 lmc 0
[1]\t"H-00000000000000a0"[1](a1) \t\t# "ib0" lid 1 4xSDR
[2]\t"S-00000000000000b1"[2]\t\t# "far" lid 3 4xSDR
[3]\t"S-00000000000000b1"[1]\t\t# "far" lid 3 4xSDR

vendid=0x0
devid=0x0
sysimgguid=0xa2
caguid=0xa2
Ca\t2 "H-00000000000000a2"\t\t# "other"
[2](a4) \t"S-00000000000000b1"[4]\t\t# lid 4 lmc 0 "far" lid 3 4xSDR

vendid=0x0
devid=0x0
sysimgguid=0xa0
caguid=0xa0
Ca\t1 "H-00000000000000a0"\t\t# "ib0"
[1](a1) \t"S-00000000000000b0"[1]\t\t# lid 1 lmc 0 "near switch" lid 2 4xSDR"""
#: The first port of an initial path.
PATH = 129
#: Longer than all attempts.
LONG = 5.0


class SubnetTests(SubnetTestCase):
    """
    C{ib-net} on a subnet of this thread.
    """

    topology = TOPOLOGY
    isManaged = False

    def setUp(self) -> None:
        """
        Keep what is written.
        """
        super().setUp()
        (self.one,) = self.at("ib0")
        self.written: list[str] = []
        self.complaints: list[str] = []
        self.used: list[Any] = []
        channel = SimpleNamespace(device=self.one, acquire=self.used.append, release=self.used.remove)
        self.patch(net, "channelFor", lambda reactor, name: channel)
        self.patch(net, "write", self.written.append)
        self.patch(net, "complain", lambda program, error: self.complaints.append(str(error)))
        self.patch(net.time, "ctime", lambda: DATE)

    def begun(self, *arguments: str) -> Deferred[int]:
        """
        @return: the exit status of the command, when it ends.
        """
        options = net.parseArguments(arguments)
        return Deferred.fromCoroutine(net.run(self.clock, options))

    def text(self, *arguments: str) -> str:
        """
        @return: the output of the command on a managed subnet.
        """
        if self.subnet.manager is None:
            self.subnet.manage(Options())
        done = self.begun(*arguments)
        self.assertEqual(len(self.used), 1)
        self.run_(0.2, self.one)
        self.assertEqual(self.successResultOf(done), 0)
        self.assertEqual((self.complaints, self.used), ([], []))
        return "\n".join(self.written)

    def drop(self, path: bytes = b"") -> None:
        """
        Lose those SMPs of the device whose initial path begins with some ports.
        """
        send = self.one.fabric.port.send

        def lossy(_: Any, packet: Packet) -> None:
            if packet.octets[CLASS_AT] != SUBNET_DIRECTED or not packet.octets[PATH:].startswith(path):
                send(packet)

        self.patch(type(self.one.fabric.port), "send", lossy)

    def test_topology(self) -> None:
        """
        The text of ibnetdiscover, which waits until ports have LIDs.
        """
        self.assertEqual(self.text(), TEXT)

    def test_again(self) -> None:
        """
        The same subnet can be made of the text.
        """
        made = {node.guid: node for node in parse(self.text(), "text").nodes}
        for node in parse(TOPOLOGY, "topology").nodes:
            again = made[node.guid]
            self.assertEqual(
                (again.kind, again.numberOfPorts, again.description, again.vendid, again.devid),
                (node.kind, node.numberOfPorts, node.description, node.vendid, node.devid),
            )
            self.assertEqual(set(again.ports), set(node.ports))

    def test_lists(self) -> None:
        """
        A line for each node, of some types.
        """
        adapters = [
            'Ca\t : 0x00000000000000a2 ports 2 devid 0x0 vendid 0x0 "other"',
            'Ca\t : 0x00000000000000a0 ports 1 devid 0x0 vendid 0x0 "ib0"',
        ]
        switches = [
            'Switch\t : 0x00000000000000b1 ports 4 devid 0x0 vendid 0x0 "far"',
            'Switch\t : 0x00000000000000b0 ports 4 devid 0xc738 vendid 0x2c9 "near switch"',
        ]
        for letters, lines in (("-l", adapters + switches), ("-H", adapters), ("-S", switches), ("-R", [])):
            self.assertEqual(self.text(letters), "\n".join(lines))
            self.written.clear()
        self.assertEqual(self.text("-S", "-H"), "\n".join(adapters + switches))

    def test_looks(self) -> None:
        """
        It changes nothing: the changes of switches are the manager's.
        """
        self.text()
        switch = self.port("near").node.switch
        assert switch is not None
        switch.stateChange = True
        self.text()
        self.assertTrue(switch.stateChange)

    def test_window(self) -> None:
        """
        Requests wait for each other beyond the window.
        """
        self.patch(limits, "SM_WINDOW", 2)
        self.assertEqual(self.text(), TEXT)

    def test_noManager(self) -> None:
        """
        Without a manager the nodes are found all the same.
        """
        done = self.begun()
        self.run_(LONG, self.one)
        self.assertEqual(self.successResultOf(done), 0)
        self.assertEqual(self.complaints, ["ib0 has no subnet manager, so that LIDs may be missing"])
        self.assertIn('"far" base port 0 lid 0 lmc 0', self.written[0])

    def test_refused(self) -> None:
        """
        SMPs that nobody answers.
        """
        self.drop()
        done = self.begun("--timeout", "0.1")
        self.run_(1.0, self.one)
        error = self.failureResultOf(done, ProgramError).value
        self.assertEqual(
            str(error),
            "the subnet of ib0 answers no SMPs, as its host is another user's process or its ports have an"
            " M_Key: see ib-sa nodes and ib-sa links",
        )
        self.assertEqual((self.written, self.used), ([], []))

    def test_part(self) -> None:
        """
        A switch that does not answer any more: the rest is shown, and the exit status tells.
        """
        self.drop(b"\1\2")
        done = self.begun("--timeout", "0.1", "-l")
        self.run_(1.0, self.one)
        self.assertEqual(self.successResultOf(done), 1)
        self.assertEqual(
            self.complaints[1:],
            ["the subnet may have more nodes and links: not all SMPs were answered"],
        )
        self.assertIn('"near switch"', self.written[0])

    def test_foreign(self) -> None:
        """
        Answers that are none, and a GUID that is there twice.
        """
        other = self.port("other")
        other.node.guid = self.port("ib0").node.guid
        done = self.begun("--timeout", "0.1", "-H")
        self.run_(1.0, self.one)
        self.assertEqual(self.successResultOf(done), 1)
        self.assertEqual(self.complaints[1:], ["the subnet may have more nodes and links: sm_duplicate_guid"])

    def test_devices(self) -> None:
        """
        A device that is at no port of a subnet, and one that there is not.
        """
        done = self.begun("--device", "shm0")
        self.assertEqual(
            str(self.failureResultOf(done, ProgramError).value),
            "shm0 is at no port of an InfiniBand subnet: say --device ib0",
        )
        self.failureResultOf(self.begun("--device", "nothing"), UnknownDeviceError)


class TextTests(SubnetTestCase):
    """
    Nodes and links that are seldom.
    """

    def linked(self, kind: NodeType, description: bytes, info: PortInfo, capabilities: int = 0) -> list[str]:
        """
        @return: the lines of a node with one link to itself.
        """
        node = Node(
            NodeInfo(nodeType=kind, numPorts=2, guid=0xC0, portGuid=0xC1),
            NodeDescription(description=description.ljust(64, b"\0")),
        )
        one, other = (Port(node, number, 0xC0 + number, info=info) for number in (1, 2))
        one.peer, other.peer = other, one
        node.ports = {1: one, 2: other}
        if kind is NodeType.SWITCH:
            node.switch = Switch(SwitchInfo(enhancedPort0=1))
            node.ports[0] = Port(node, 0, info=PortInfo(lid=7, lmc=2, capMask=capabilities))
        return list(net._lines(node))

    def test_router(self) -> None:
        """
        A router, an adapter's link to another adapter, and no system image GUID.
        """
        info = PortInfo(lid=9, linkWidthActive=8, linkSpeedActive=4)
        self.assertEqual(
            self.linked(NodeType.ROUTER, b"way out", info),
            [
                *("", "vendid=0x0", "devid=0x0", "rtguid=0xc0", 'Rt\t2 "R-00000000000000c0"\t\t# "way out"'),
                '[1](c1) \t"R-00000000000000c0"[2] (c2) \t\t# lid 9 lmc 0 "way out" lid 9 12xQDR',
                '[2](c2) \t"R-00000000000000c0"[1] (c1) \t\t# lid 9 lmc 0 "way out" lid 9 12xQDR',
            ],
        )

    def test_speeds(self) -> None:
        """
        Widths and speeds; extended ones are those of nodes that have them, and there are others.
        """
        able = Capability.EXTENDED_SPEEDS
        for width, speed, extended, capabilities, text in (
            (1, 1, 0, 0, "1xSDR"),
            (16, 2, 0, able, "2xDDR"),
            (4, 4, 1, able, "8xFDR"),
            (2, 4, 2, able, "4xEDR"),
            (2, 4, 4, able, "4xHDR"),
            (2, 4, 8, able, "4xNDR"),
            (2, 4, 8, 0, "4xQDR"),
            (3, 3, 0, 0, "?????"),
            (2, 4, 3, able, "4x???"),
        ):
            info = PortInfo(
                linkWidthActive=width,
                linkSpeedActive=speed,
                linkSpeedExtActive=extended,
                capMask=capabilities,
            )
            for kind in (NodeType.SWITCH, NodeType.CA):
                lines = self.linked(kind, b"x", info, capabilities)
                self.assertEqual(lines[-1].split()[-1], text)

    def test_descriptions(self) -> None:
        """
        What a terminal would obey is a space, and the file can be read.
        """
        lines = self.linked(NodeType.SWITCH, b'a\x1b[31m\n"b"\xff', evolve(PortInfo(), linkWidthActive=2))
        self.assertIn('# "a [31m "b" " enhanced port 0 lid 7 lmc 2', lines[4])
        self.assertEqual(lines[5], '[1]\t"S-00000000000000c0"[2]\t\t# "a [31m "b" " lid 7 4x???')
        (node,) = parse("\n".join(lines), "text").nodes
        self.assertEqual((node.guid, set(node.ports)), (0xC0, {1, 2}))


class ProcessTests(CommandTestCase):
    """
    C{ib-net} as a process, which hosts the subnet where no other does.
    """

    program = programOf("net")

    def test_nodes(self) -> None:
        """
        The nodes of the subnet, its own among them.
        """
        self.assertRegex(
            self.said("-l"),
            r"Ca\t : 0x0000000000100000 ports 1 devid 0x0 vendid 0x0 \"manager\"\n"
            r"Ca\t : 0x[0-9a-f]{16} ports 1 devid 0x0 vendid 0x0 \".* ib0 [0-9]+\"\n"
            r"Switch\t : 0x0000000000200000 ports 36 devid 0x0 vendid 0x0 \"switch\"\n",
        )
