"""
Tests for the counters of ports.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.base.traits import NodeType
from twisted_ib.subnet.network.graph import Node, Port
from twisted_ib.subnet.network.smi import MAD_WORDS, Counters


class CountersTests(SynchronousTestCase):
    """
    Two nodes.
    """

    def setUp(self) -> None:
        """
        Make them.
        """
        self.counters = Counters()
        self.nodes = [Node(NodeType.CA, guid, 1, "") for guid in (0x10, 0x20)]
        self.near, self.far = (self.port(node) for node in self.nodes)

    def port(self, node: Node) -> Port:
        """
        @return: the port of a CA.
        """
        port = node.port(1)
        assert port is not None
        return port

    def test_passed(self) -> None:
        """
        A MAD counts at both ends of a link, in words of 4 octets.
        """
        for _ in range(2):
            self.counters.passed(self.near, self.far)
        self.assertEqual(
            self.counters.of(self.near),
            {
                **dict.fromkeys(("portXmitData", "xmtDataSL0"), 2 * MAD_WORDS),
                "portXmitPkts": 2,
                "portUnicastXmitPkts": 2,
            },
        )
        self.assertEqual(
            self.counters.of(self.far),
            {
                **dict.fromkeys(("portRcvData", "rcvDataSL0", "portOpRcvData"), 2 * MAD_WORDS),
                **dict.fromkeys(("portRcvPkts", "portOpRcvPkts", "portUnicastRcvPkts"), 2),
            },
        )

    def test_forget(self) -> None:
        """
        Nothing is kept of a node that is gone.
        """
        self.counters.add(self.near, "linkDownedCounter")
        self.counters.add(self.far, "linkDownedCounter", 3)
        self.counters.forget(self.nodes[0])
        self.assertEqual(self.counters.of(self.near), {})
        self.assertEqual(self.counters.of(self.far), {"linkDownedCounter": 3})
