"""
Devices of a subnet and the administration of its manager, beyond the contract of its client.
"""

from __future__ import annotations

from typing import Any

from tests.subnet.port.subnets import LEAVES, SubnetTestCase
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.mad.attributes.administration import (
    MCMemberRecord,
    NodeRecord,
    SLtoVLMappingTableRecord,
)
from twisted_ib.subnet.sm.manager import Options

CREATE = {"qKey": 5, "pKey": 0xFFFF, "sl": 0, "flowLabel": 0, "tClass": 0}


class DeviceTests(SubnetTestCase):
    """
    Two devices, of which the first is at the manager's port.
    """

    topology = LEAVES
    isManaged = False

    def setUp(self) -> None:
        """
        Let the manager sweep.
        """
        super().setUp()
        self.first, self.second = self.at("a", "c")
        self.subnet.manage(Options())
        self.settle()
        self.assertEqual([device.port.state for device in (self.first, self.second)], [PortState.ACTIVE] * 2)
        self.said: list[Any] = []

    def settle(self, seconds: float = 0.1) -> None:
        """
        Let time pass.
        """
        self.run_(seconds, self.first, self.second)

    def taken(self) -> Any:
        """
        @return: the one answer that has come since.
        """
        self.settle()
        (found,) = self.said
        self.said.clear()
        return found

    def administration(self) -> Any:
        """
        @return: the agent.
        """
        assert self.subnet.manager is not None
        return self.subnet.manager.manager.administration

    def test_table(self) -> None:
        """
        Tables of one MAD and of many.
        """
        for here in (self.first, self.second):
            here.sa.query(NodeRecord, self.said.append)
            names = {each.nodeDescription.text for each in self.taken()}
            self.assertEqual(names, {"a", "b", "c", "d", "s", "t"})
            here.sa.query(NodeRecord, self.said.append, {"lid": 99})
            self.assertEqual(self.taken(), [])
            here.sa.query(SLtoVLMappingTableRecord, self.said.append)
            self.assertEqual(len(self.taken()), 4 + 2 * 5 * 5)
        self.assertEqual(len(self.administration().transfers), 0)

    def test_group(self) -> None:
        """
        A group that one makes and both join has the way of its packets in the switches.
        """
        made = self.first.sa.join(0, self.said.append, **CREATE)
        record = self.taken()
        self.assertEqual((type(record), record.mgid >> 96, record.mlid), (MCMemberRecord, 0xFF12A01B, 0xC001))
        joined = self.second.sa.join(record.mgid, self.said.append)
        self.assertEqual(self.taken().mlid, 0xC001)
        self.settle()
        ways = [self.port(name).node.switch.replicated(0xC001, -1) for name in ("s", "t")]
        self.assertEqual(ways, [[1, 3], [1, 3]])
        for each in (made, joined):
            each.close()
        self.settle()
        self.assertEqual(len(self.administration().groups), 1)
        self.assertEqual(
            [self.port(name).node.switch.replicated(0xC001, -1) for name in ("s", "t")], [[], []]
        )
