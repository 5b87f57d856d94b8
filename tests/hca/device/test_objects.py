"""
Tests of L{twisted_ib.hca.device.objects}: the tables of a device, and their bounds.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import NoRouteError, QueuePairError, ResourceBusyError, ResourceLimitError
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.device.objects import Objects
from twisted_ib.hca.memory.memory import ProtectionDomain
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.grh import guidGID


class ObjectsTests(SynchronousTestCase):
    """
    Objects of one device.
    """

    def setUp(self) -> None:
        """
        A device at an Ethernet port.
        """
        self.checked: list[int] = []
        self.device: Any = SimpleNamespace(
            timers=Timers(lambda: 0.0),
            port=SimpleNamespace(linkLayer=LinkLayer.ETHERNET),
            paths=SimpleNamespace(check=self.check),
            addressPaths=mock.Mock(),
        )
        self.objects = Objects(self.device)
        self.pd = ProtectionDomain(1)

    def check(self, key: int) -> None:
        """
        GIDs that are odd lead somewhere.
        """
        self.checked.append(key)
        if not key & 1:
            raise NoRouteError("even")

    def make(self, kind: str) -> Any:
        """
        @return: a new one.
        """
        if kind == "completion queues":
            return self.objects.createCompletionQueue(10)
        if kind == "shared receive queues":
            return self.objects.createSharedReceiveQueue(self.pd, 10, 1)
        return self.objects.createAddressHandle(self.pd, AddressVector(guidGID(5)))

    def test_bounds(self) -> None:
        """
        There are so many of each; one that is destroyed makes room.
        """
        for limit, table, destroy, kind in (
            ("COMPLETION_QUEUES", "completionQueues", "destroyCompletionQueue", "completion queues"),
            (
                "SHARED_RECEIVE_QUEUES",
                "sharedReceiveQueues",
                "destroySharedReceiveQueue",
                "shared receive queues",
            ),
            ("ADDRESS_HANDLES", "addressHandles", "destroyAddressHandle", "address handles"),
        ):
            self.patch(limits, limit, 2)
            made = [self.make(kind) for _ in range(2)]
            self.assertEqual(getattr(self.objects, table), set(made))
            error = self.assertRaises(ResourceLimitError, self.make, kind)
            self.assertIn(f"at most 2 {kind}", str(error))
            getattr(self.objects, destroy)(made[0])
            self.assertEqual(getattr(self.objects, table), {made[1]})
            self.make(kind)
        self.assertEqual(sum(self.pd.users.values()), 4)
        self.objects.close()
        self.assertEqual(
            [self.objects.completionQueues, self.objects.sharedReceiveQueues, self.objects.addressHandles],
            [set()] * 3,
        )
        self.assertEqual(self.pd.users, {})

    def test_busy(self) -> None:
        """
        What queue pairs use stays.
        """
        queue, shared = self.make("completion queues"), self.make("shared receive queues")
        for each in queue, shared:
            each.hold("qp")
        self.assertRaises(ResourceBusyError, self.objects.destroyCompletionQueue, queue)
        self.assertRaises(ResourceBusyError, self.objects.destroySharedReceiveQueue, shared)
        self.assertEqual(
            (self.objects.completionQueues, self.objects.sharedReceiveQueues), ({queue}, {shared})
        )

    def test_address(self) -> None:
        """
        An address is checked when its handle is made, but for that of a group, which may have no member.
        """
        self.assertRaises(NoRouteError, self.objects.createAddressHandle, self.pd, AddressVector(guidGID(4)))
        self.objects.createAddressHandle(self.pd, AddressVector(0xFF0E << 112 | 4))
        self.assertEqual(self.checked, [guidGID(4)])
        self.assertRaises(QueuePairError, self.objects.createAddressHandle, self.pd, AddressVector(0))
        self.assertEqual(len(self.objects.addressHandles), 1)
