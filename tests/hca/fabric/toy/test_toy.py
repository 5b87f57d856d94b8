"""
What a new fabric costs and gets: L{tests.hca.fabric.toy.toyfabric} is one row of the registry, keeps
the contracts of fabrics, and carries SDP, C{ib:} messages and verbs.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.trial.unittest import SynchronousTestCase

from tests.contracts.closing import ClosingContract
from tests.contracts.fabric import ReachContract
from tests.contracts.groups import GroupContract
from tests.contracts.pacing import PacingContract
from tests.contracts.path import FlowContract, RefusalContract
from tests.contracts.peers import DeathContract, ServiceContract, SleepContract
from tests.contracts.unreliable import UnreliableContract
from tests.contracts.workrequests import WorkRequestContract
from tests.hca.fabric.toy.toyconnector import ToyFabric
from tests.hca.fabric.toy.toyfabric import SocketPairFabric
from tests.hca.hcas import HCATestCase
from tests.internet.carriers import SDP
from tests.rdma.test_reactors import RDMATestsMixin
from tests.sdp.test_contract import IB
from tests.support.rundirectory import ownRunDirectory
from tests.verbs.pyverbs.qp import test_qp
from twisted_ib.errors import DeviceError
from twisted_ib.hca.base.traits import LOCAL
from twisted_ib.hca.device import registry
from twisted_ib.hca.device.registry import parseRules


class PathTests(ServiceContract, SleepContract, DeathContract, FlowContract, RefusalContract, HCATestCase):
    """
    Peers and paths.
    """

    fabric = SocketPairFabric


class Services(ReachContract, WorkRequestContract, GroupContract, UnreliableContract):
    """
    What runs over paths.
    """


class ServiceTests(Services, HCATestCase):
    """
    RC, UC and UD.
    """

    fabric = SocketPairFabric


#: The line that a new fabric is to the rest of the package.
ROW = registry.FabricKind("toy", SocketPairFabric, LOCAL)


#: The same of one that makes its connections itself.
CONNECTOR = registry.FabricKind("toyconnector", ToyFabric, LOCAL)


class ToyRow:
    """
    Makes C{toy0} a device, for one test.
    """

    row = ROW

    def setUp(self: Any) -> None:
        """
        The row.
        """
        super().setUp()
        ownRunDirectory(self)
        registry.addFabric(self.row)
        self.addCleanup(registry.KINDS.remove, self.row)
        self.addCleanup(registry.FABRICS.pop, self.row.name)
        registry.addDevice("toy0", self.row.name)
        self.addCleanup(registry.removeDevice, "toy0")


class VerbsTests(ToyRow, test_qp.RequestTests):
    """
    SEND, WRITE, READ and atomics by verbs.
    """

    device = "toy0"


class RowTests(ToyRow, SynchronousTestCase):
    """
    What the rest of the package knows of the fabric is its row.
    """

    def test_statement(self) -> None:
        """
        Rules take it in C{device} statements.
        """
        found = parseRules("device toy7 toy\nuse sdp connect * *:5000", "rules").devices
        self.assertEqual([(each.name, each.fabric, each.address) for each in found], [("toy7", "toy", None)])

    def test_again(self) -> None:
        """
        The same row may be added again, and no other of its name.
        """
        registry.addFabric(ROW)
        self.assertEqual(registry.KINDS.count(ROW), 1)
        error = self.assertRaises(DeviceError, registry.addFabric, evolve(ROW, device="toy7"))
        self.assertEqual(str(error), "there is a fabric toy already, and it is another")

    def test_device(self) -> None:
        """
        A device has the traits of its row.
        """
        self.assertIs(registry.traitsOf("toy0"), LOCAL)
        self.assertIn("toy0", registry.deviceNames())


def _make() -> dict[str, type]:
    """
    @return: The test cases of protocols on reactors, by name.
    """
    found: dict[str, type] = {}
    for name, contract, row in (
        ("Closing", ClosingContract, ROW),
        ("Pacing", PacingContract, ROW),
        ("RDMA", RDMATestsMixin, ROW),
        ("ConnectorClosing", ClosingContract, CONNECTOR),
        ("ConnectorRDMA", RDMATestsMixin, CONNECTOR),
    ):
        members = {"carrier": SDP("toy0"), "device": "toy0", "_reactors": [IB], "row": row}
        members["__module__"] = __name__
        kind: Any = type(f"{name}Tests", (ToyRow, contract, ReactorBuilder), members)
        found.update(kind.makeTestCaseClasses())
    return found


globals().update(_make())
