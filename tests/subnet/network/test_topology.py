"""
Tests for topology files.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import TopologyError
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.limits import TOPOLOGY_LINE, TOPOLOGY_LINES, TOPOLOGY_NODES
from twisted_ib.subnet.network.topology import (
    NodeSpecification,
    PortSpecification,
    parse,
)

PAIR = """
# two CAs
Ca 2 "a"
[1] "b"[2]

Hca 2 "b"
[2] "a"[1]
"""

BACK_TO_BACK = """\
Ca\t1 "a"
[1](100001) \t"b"[1] (100003) \t\t# lid 1 lmc 0 "b" lid 2 4xSDR

Ca\t1 "b"
[1](100003) \t"a"[1] (100001)
"""

#: As ibnetdiscover of infiniband-diags 44.0 writes one switch with two CAs.
DISCOVERED = """\
#
# Topology file: generated on Sat Nov 21 14:31:16 2026
#
# Initiated from node 0000000000100000 port 0000000000100001

vendid=0x2c9
devid=0xc738
sysimgguid=0x200009
switchguid=0x200000(200000)
Switch\t8 "S-0000000000200000"\t\t# "Switch1" base port 0 lid 2 lmc 0
[1]\t"H-0000000000100000"[1](100001) \t\t# "Hca1" lid 1 4xQDR
[2]\t"H-0000000000100003"[1](100004) \t\t# "Hca2 HCA-1" lid 5 12xEDR

vendid=0x0
devid=0x0
sysimgguid=0x100003
caguid=0x100003
Ca\t2 "H-0000000000100003"\t\t# "Hca2 HCA-1"
[1](100004) \t"S-0000000000200000"[2]\t\t# lid 5 lmc 0 "Switch1" lid 2 12xEDR

caguid=0x100000
Ca\t2 "H-0000000000100000"\t\t# "Hca1"
[1](100001) \t"S-0000000000200000"[1]\t\t# lid 1 lmc 0 "Switch1" lid 2 4xQDR
"""


class ReadTests(SynchronousTestCase):
    """
    Nodes and links are read from a file.
    """

    def test_pair(self) -> None:
        """
        Nodes have the GUIDs that ibsim gives them, and their names as descriptions.
        """
        a = NodeSpecification(NodeType.CA, "a", 2, 0x100000, "a", {1: PortSpecification("b", 2)})
        b = NodeSpecification(NodeType.CA, "b", 2, 0x100003, "b", {2: PortSpecification("a", 1)})
        self.assertEqual(parse(PAIR, "pair").nodes, (a, b))

    def test_discovered(self) -> None:
        """
        The output of ibnetdiscover gives GUIDs, identities, descriptions, widths and speeds.
        """
        switch, second, first = parse(DISCOVERED, "found").nodes
        self.assertEqual(
            switch,
            NodeSpecification(
                *(NodeType.SWITCH, "S-0000000000200000", 8, 0x200000, "Switch1"),
                {
                    1: PortSpecification("H-0000000000100000", 1, 3, 7, 0),
                    2: PortSpecification("H-0000000000100003", 1, 11, 7, 3),
                },
                *(0x2C9, 0xC738, 0x200009),
            ),
        )
        self.assertEqual((second.guid, second.description), (0x100003, "Hca2 HCA-1"))
        self.assertEqual((first.guid, first.devid, first.sysimgguid), (0x100000, 0, 0))

    def test_options(self) -> None:
        """
        Values of all ports, and options of one.
        """
        text = 'width=8\nspeed=7\nSwitch 3 "s"\n[1] "s"[2] w=9 e=1\n[2] "s"[1]\n'
        [node] = parse(text, "options").nodes
        self.assertEqual(
            node.ports, {1: PortSpecification("s", 2, 9, 7, 1), 2: PortSpecification("s", 1, 8, 7, 0)}
        )

    def test_backToBack(self) -> None:
        """
        ibnetdiscover writes a space in front of the port GUID of two linked CAs.
        """
        text = BACK_TO_BACK.replace("[1] (100001)", "[1] (100001)\tw=3")
        first, _ = parse(text, "pair").nodes
        self.assertEqual(first.ports, {1: PortSpecification("b", 1, 3)})

    def test_defaultPort(self) -> None:
        """
        A link without a port number leads to port 1; routers have GUIDs of their own.
        """
        first, second = parse('Rt 1 "r"\n[1] "a"\n\nCa 1 "a"\n[1] "r"\n', "router").nodes
        self.assertEqual(
            (first.kind, first.guid, first.ports), (NodeType.ROUTER, 0x300000, {1: PortSpecification("a", 1)})
        )
        self.assertEqual(second.ports, {1: PortSpecification("r", 1)})


class WriteTests(SynchronousTestCase):
    """
    A topology that is written is read as the same.
    """

    def test_text(self) -> None:
        """
        The text of a topology.
        """
        self.assertEqual(
            parse(PAIR, "pair").text(),
            'caguid=0x100000\nCa\t2 "a"\t\t# "a"\n[1]\t"b"[2]\n\n'
            'caguid=0x100003\nCa\t2 "b"\t\t# "b"\n[2]\t"a"[1]\n\n',
        )

    def test_same(self) -> None:
        """
        Options, identities and descriptions are kept.
        """
        for text in (
            PAIR,
            DISCOVERED,
            'Switch 2 "s" # two words base port 0 lid 7 lmc 0\n[1] "s"[2] w=1\n[2] "s" w=1',
        ):
            topology = parse(text, "first")
            self.assertEqual(parse(topology.text(), "second"), topology)


#: Reason, line, text.
ERRORS = (
    ("there is no node", 1, "# nothing"),
    ("neither a node, a port nor a value: 'include \"x\"'", 2, 'Ca 1 "a"\ninclude "x"'),
    ("colour is not known here", 1, "colour=3"),
    ("caguid is from 1 to", 1, "caguid=0"),
    ("vendid is from 0 to 0xffffff, not 0x1000000", 1, "vendid=0x1000000"),
    ("width is from 1 to 0x1f, not 0x20", 1, "width=32"),
    ("speed is from 1 to 0x7, not 0x0", 1, "speed=0"),
    ("extspeed is from 0 to 0xf, not 0x10", 1, "extspeed=16"),
    ("the number of ports is from 1 to 0xfe, not 0xff", 1, 'Switch 255 "s"'),
    ("the number of ports is from 1 to 0xfe, not 0x0", 1, 'Ca 0 "a"'),
    ("a name has 1 to 64 octets", 1, 'Ca 1 ""'),
    ("a name has 1 to 64 octets", 1, 'Ca 1 "%s"' % ("ä" * 33)),
    ("a name has 1 to 64 octets", 1, 'Ca 1 "a" # %s' % ("b" * 65)),
    ("a name has 1 to 64 octets", 1, 'Ca 1 "a\x1b"'),
    ('there is a node "a" already', 3, 'Ca 1 "a"\n\nCa 1 "a"'),
    ("GUID 0x7 or one of the node's ports is taken", 4, 'caguid=6\nCa 1 "a"\nswitchguid=7\nSwitch 1 "s"'),
    ("GUID 0xffffffffffffffff or one", 2, 'caguid=0xffffffffffffffff\nCa 1 "a"'),
    ("a port without a node: an empty line ends a node", 3, 'Ca 1 "a"\n\n[1] "a"[1]'),
    ("a port is from 1 to 0x1, not 0x2", 2, 'Ca 1 "a"\n[2] "a"[1]'),
    ("a port is from 1 to 0x1, not 0x0", 2, 'Switch 1 "a"\n[0] "a"[1]'),
    ("port 1 has a link already", 3, 'Ca 1 "a"\n[1] "b"[1]\n[1] "b"[1]'),
    ("not an option of a port: 'x=1'", 2, 'Ca 1 "a"\n[1] "b"[1] x=1'),
    ("not an option of a port: 'w=0x1'", 2, 'Ca 1 "a"\n[1] "b"[1] w=0x1'),
    ("width is from 1 to 0x1f, not 0x63", 2, 'Ca 1 "a"\n[1] "b"[1] w=99'),
    ('there is no node "b"', 2, 'Ca 1 "a"\n[1] "b"[1]'),
    ('"b"[1] is not linked with "a"[1]', 2, 'Ca 1 "a"\n[1] "b"[1]\n\nCa 1 "b"'),
    ("a port cannot be linked with itself", 2, 'Ca 1 "a"\n[1] "a"[1]'),
    ("have no width or speed in common", 2, 'Ca 2 "a"\n[1] "a"[2] w=1\n[2] "a"[1] w=2'),
    (f"a line of more than {TOPOLOGY_LINE} characters", 1, "#" * (TOPOLOGY_LINE + 1)),
    (f"more than {TOPOLOGY_LINES} lines", TOPOLOGY_LINES + 1, "\n" * (TOPOLOGY_LINES + 1)),
    (
        f"more than {TOPOLOGY_NODES} nodes",
        TOPOLOGY_NODES + 1,
        "\n".join(f'Ca 1 "{number}"' for number in range(TOPOLOGY_NODES + 1)),
    ),
)


class ErrorTests(SynchronousTestCase):
    """
    A file that is not valid is refused with its name and the line.
    """

    def test_errors(self) -> None:
        """
        Each error, at its line.
        """
        for reason, line, text in ERRORS:
            error = self.assertRaises(TopologyError, parse, text, "some.net")
            self.assertIn(f"some.net:{line}: ", str(error), reason)
            self.assertIn(reason, str(error))

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(st.text(st.sampled_from('CaHSwitchRt 012[]()"#=xe\n\t'), max_size=60))
    def test_anything(self, text: str) -> None:
        """
        Any text is read or refused.
        """
        try:
            parse(text, "any")
        except TopologyError:
            pass
