"""
Tests of L{twisted_ib.ipoib.subnetaccess}: one contract, of constants and of subnet administration.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from tests.ipoib.pairs import BROADCAST, PKEY, OnLoopback, OnPackets, OnSharedMemory, OnSubnet
from twisted_ib.errors import DeviceError, HCAError, SAResponseError, SAStatusError
from twisted_ib.hca.base.port import PortChange
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.registry import addDevice
from twisted_ib.hca.mad.attributes.administration import JoinState
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.ipoib.protocol.interfaces import Group
from twisted_ib.ipoib.subnetaccess import IMembership, ISubnetAccess, groupVector, subnetAccess

OTHER = 0xFF12401BFFFF << 80 | 0x1020304


class AccessContract:
    """
    Two devices of one subnet, C{one} and C{two}.
    """

    def setUp(self: Any) -> None:
        """
        Make their accesses.
        """
        super().setUp()  # type: ignore[misc]
        self.said: list[Any] = []
        self.here, self.there = subnetAccess(self.one, PKEY), subnetAccess(self.two, PKEY)

    def taken(self: Any) -> Any:
        """
        @return: the one answer that has come since.
        """
        self.settle()
        (found,) = self.said
        self.said.clear()
        return found

    def joined(self: Any, mgid: int, template: Group | None = None, isSendOnly: bool = False) -> Any:
        """
        @return: the membership of C{one}, and the group.
        """
        membership = self.here.join(mgid, isSendOnly, template, self.said.append)
        verifyObject(IMembership, membership)
        return membership, self.taken()

    def test_path(self: Any) -> None:
        """
        A path to a port's GID is an address to which a handle can be made.
        """
        verifyObject(ISubnetAccess, self.here)
        self.here.path(self.two.gid, self.said.append)
        vector = self.taken()
        self.assertIsInstance(vector, AddressVector)
        self.assertIn(self.two.gid, (vector.gid, vector.gid or self.two.gid))
        pd = self.one.memory.allocateDomain()
        self.one.objects.createAddressHandle(pd, vector)

    def test_groups(self: Any) -> None:
        """
        The broadcast group exists, with values that other groups are made with; both ends get the same.
        """
        _, group = self.joined(BROADCAST)
        self.assertIsInstance(group, Group)
        self.assertEqual((group.mgid, group.qKey, group.pKey, group.path), (BROADCAST, 0xB1B, PKEY, None))
        self.assertIn(group.mtu, (1024, 2048))
        _, other = self.joined(OTHER, group)
        self.there.join(OTHER, True, group, self.said.append)
        same = self.taken()
        names = ("mgid", "mlid", "qKey", "mtu", "sl", "rate", "pKey")
        values = [[getattr(each, name) for name in names] for each in (group, other, same)]
        self.assertEqual(values[1], values[2])
        self.assertEqual(values[0][2:], values[1][2:])
        self.assertTrue(groupVector(other).isMulticast)

    def test_left(self: Any) -> None:
        """
        A membership that is closed reports nothing more but that it is.
        """
        membership, group = self.joined(BROADCAST)
        for _ in range(2):
            membership.close(lambda: self.said.append("left"))
            self.assertEqual(self.taken(), "left")
        before = self.here.join(OTHER, False, group, lambda outcome: None)
        before.close(lambda: self.said.append("left"))
        self.assertEqual(self.taken(), "left")


class LoopbackTests(AccessContract, OnLoopback):
    """
    HCAs of one thread.
    """


class SharedMemoryTests(AccessContract, OnSharedMemory):
    """
    HCAs of one host.
    """


class PacketTests(AccessContract, OnPackets):
    """
    Hosts.
    """

    def test_addresses(self) -> None:
        """
        Groups of IPv6 cannot be reached from an IPv4 address.
        """
        addDevice("four", "roce", "127.0.0.1")
        device = Device("four", Clock().seconds)
        self.addCleanup(device.close)
        error = self.assertRaises(DeviceError, subnetAccess, device, PKEY)
        self.assertIn("four has 127.0.0.1", str(error))


class AdministrationTests(AccessContract, OnSubnet):
    """
    Ports of a subnet with a manager.
    """

    def test_pathAgain(self) -> None:
        """
        A path that is asked for again is not one that was remembered: it is in doubt.
        """
        self.here.path(self.two.gid, self.said.append)
        vector = self.taken()
        self.here.path(self.two.gid, self.said.append)
        self.assertEqual(self.said, [])
        self.assertEqual(self.taken(), vector)

    def test_values(self) -> None:
        """
        The address of a port has its LID, and no GRH in its own subnet; that of a group has its LID and GID.
        """
        self.here.path(self.two.gid, self.said.append)
        vector = self.taken()
        self.assertEqual((vector.lid, vector.isGlobal), (self.two.port.lid, False))
        _, group = self.joined(BROADCAST)
        self.assertGreaterEqual(group.mlid, 0xC000)
        vector = groupVector(group)
        self.assertEqual((vector.lid, vector.gid, vector.isGlobal), (group.mlid, BROADCAST, True))

    def test_errors(self) -> None:
        """
        Nothing leads to a GID that nobody has, and a group that does not exist needs values to be made with.
        """
        self.here.path(self.two.gid + 77, self.said.append)
        self.assertIsInstance(self.taken(), HCAError)
        membership, error = self.joined(OTHER)
        self.assertIsInstance(error, SAStatusError)
        membership.close(lambda: self.said.append("left"))
        self.assertEqual(self.taken(), "left")

    def test_noManager(self) -> None:
        """
        Without a subnet manager requests wait for one.
        """
        lid = self.one.port.smLID
        self.one.changePort(PortChange(smLID=0))
        self.here.path(self.two.gid, self.said.append)
        self.here.join(BROADCAST, False, None, self.said.append)
        self.settle()
        self.assertEqual(self.said, [])
        self.one.changePort(PortChange(smLID=lid))
        self.settle()
        self.assertEqual({type(each) for each in self.said}, {AddressVector, Group})

    def test_sendOnly(self) -> None:
        """
        A sender is a full member of those that only send, or a non-member if subnet administration does not
        know that state.
        """
        asked: list[JoinState] = []
        join = self.one.sa.join

        def known(mgid: int, answered: Any, changed: Any, joinState: JoinState, **values: Any) -> Any:
            asked.append(joinState)
            if joinState is JoinState.SEND_ONLY_FULL_MEMBER and len(asked) > 1:
                self.one.timers.start(0.0, lambda: answered(SAStatusError("refused", 0x0200, "REQ_INVALID")))
                return None
            return join(mgid, answered, changed, joinState, **values)

        _, group = self.joined(BROADCAST)
        self.patch(self.one.sa, "join", known)
        for _ in range(2):
            _, found = self.joined(OTHER, group, isSendOnly=True)
            self.assertEqual(found.mgid, OTHER)
        states = [JoinState.SEND_ONLY_FULL_MEMBER] * 2 + [JoinState.SEND_ONLY_NON_MEMBER]
        self.assertEqual(asked, states)

    def test_mtu(self) -> None:
        """
        A group whose MTU is reserved, or longer than the port's, cannot be joined.
        """
        join = self.one.sa.join
        for code, longest in ((0, 2048), (6, 2048), (63, 2048), (4, 1024), (5, 2048)):

            def said(mgid: int, answered: Any, *rest: Any, code: int = code, **values: Any) -> Any:
                return join(mgid, lambda record: answered(evolve(record, mtu=code)), *rest, **values)

            self.patch(self.one, "pathMTU", longest)
            self.patch(self.one.sa, "join", said)
            membership, error = self.joined(BROADCAST)
            self.assertIsInstance(error, SAResponseError)
            membership.close(lambda: None)
            self.settle()

    def test_changed(self) -> None:
        """
        A group that has other values after all ports have registered again is lost; it can be joined anew.
        """
        self.joined(BROADCAST)
        groups = self.subnet.manager.manager.administration.groups._groups
        groups[BROADCAST].base = evolve(groups[BROADCAST].base, qKey=0x77)
        self.one.changePort(PortChange(reregister=True))
        self.assertIsInstance(self.taken(), SAStatusError)
        self.assertEqual(self.joined(BROADCAST)[1].qKey, 0x77)
