"""
Tests of two subnet managers of ours in one subnet.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.opensm.topologies import TOPOLOGIES
from tests.subnet.sm.subnets import Managed
from twisted_ib import limits
from twisted_ib.hca.mad.attributes.node import SMState
from twisted_ib.subnet.hosting.manager import HostedManager
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.sm.manager import Options
from twisted_ib.subnet.sma.agent import setSM

MASTER, STANDBY = SMState.MASTER, SMState.STANDBY


class Other(HostedManager):
    """
    A manager at C{Hca4}, which tells the master that it is there.
    """

    def __init__(self, managed: Managed, options: Options) -> None:
        self.managed = managed
        self.graph = managed.subnet.graph
        self.exchange = managed.subnet.exchange
        super().__init__(self, options, lambda bits: 0x5555, managed.count, managed.clock)

    def markSM(self, port: Any, isSM: bool) -> None:
        self.managed.subnet._report(setSM(port, isSM))

    def _first(self) -> Any:
        return self.managed.port("Hca4")


class TwoTests(SynchronousTestCase):
    """
    One at C{Hca1} with priority 5, which has the lower GUID; and the other one, behind two switches.
    """

    def setUp(self) -> None:
        """
        Bring the subnet up with the first.
        """
        self.managed = Managed(TOPOLOGIES["trunks"], Options(priority=5))
        self.lids = self.managed.lids()

    def begin(self, priority: int, key: int = 1) -> Other:
        """
        @return: the other one, which has begun.
        """
        other = Other(self.managed, Options(priority=priority, key=key))
        before = self.managed.subnet.take

        def take(port: Any, packet: Packet) -> bytes | None:
            return None if other.take(port, packet) else before(port, packet)

        self.patch(self.managed.subnet, "take", take)
        other.start()
        self.managed.settle(limits.SM_SWEEP_SECONDS)
        return other

    def states(self, other: Other) -> tuple[SMState, SMState]:
        """
        @return: those of both.
        """
        return self.managed.manager.state, other.manager.state

    def managers(self) -> set[int]:
        """
        @return: the LIDs of subnet managers that ports know.
        """
        ports = self.managed.subnet.graph.ports()
        return {port.smLID for port in ports if port.isEnd and (port.peer or port.isManagement)}

    def test_lower(self) -> None:
        """
        One that goes behind the master stays a standby, of lower priority or of the same with a higher GUID.
        """
        for priority in (4, 5):
            self.setUp()
            other = self.begin(priority)
            self.managed.settle(10 * limits.SM_POLL_SECONDS)
            self.assertEqual(self.states(other), (MASTER, STANDBY), priority)
            self.assertEqual(self.managers(), {self.lids["Hca1"]})

    def test_higher(self) -> None:
        """
        To one that goes before it the master hands over.  When that is silent it comes back, and ports keep
        their LIDs all the time.
        """
        other = self.begin(6)
        self.assertEqual(self.states(other), (STANDBY, MASTER))
        self.assertEqual((self.managers(), self.managed.lids()), ({self.lids["Hca4"]}, self.lids))
        self.managed.settle(10 * limits.SM_POLL_SECONDS)
        self.assertEqual(self.states(other), (STANDBY, MASTER))
        other.close()
        self.managed.settle((limits.SM_POLLS + 1) * limits.SM_POLL_SECONDS)
        self.assertEqual(self.managed.manager.state, MASTER)
        self.assertEqual((self.managers(), self.managed.lids()), ({self.lids["Hca1"]}, self.lids))
        self.assertEqual(self.managed.notActive(), [])

    def test_otherKey(self) -> None:
        """
        One with another SM_Key does not take what is handed over to it.
        """
        other = self.begin(6, key=2)
        self.assertEqual(self.states(other), (MASTER, STANDBY))
        self.assertGreater(self.managed.lost["sm_not_permitted"], 0)
        self.assertEqual(self.managers(), {self.lids["Hca1"]})

    def test_together(self) -> None:
        """
        When both begin at the same time one is the master in the end.
        """
        own = self.managed.subnet.manager
        assert own is not None
        own.manager.resign()
        own.start()
        other = self.begin(6)
        self.managed.settle(10 * limits.SM_POLL_SECONDS)
        self.assertEqual(self.states(other), (STANDBY, MASTER))
        self.assertEqual((self.managers(), self.managed.lids()), ({self.lids["Hca4"]}, self.lids))
