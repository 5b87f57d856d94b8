"""
Tests of L{twisted_ib.hca.device.addressing} on devices of each kind: what an address leads to.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tests.hca.device.everykind import ADDRESS, OTHER, EveryKindTestCase
from tests.hca.hcas import User
from tests.hca.queues.keyed_pair import Consumer
from twisted_ib.errors import NoRouteError, QueuePairError
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.base.traits import LinkLayer, Peers
from twisted_ib.hca.connection.rdmacm import gidNumber
from twisted_ib.hca.device.addressing.addresses import AddressResolution
from twisted_ib.hca.device.addressing.processes import MulticastGroup, ProcessResolution
from twisted_ib.hca.device.device import RESOLUTIONS
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.grh import guidGID

GROUP = 0xFF12 << 112 | 0xABCD
IPV4_GROUP = gidNumber("239.1.2.3")


class AddressTests(EveryKindTestCase):
    """
    Resolution by what names the peers.
    """

    def test_kinds(self) -> None:
        """
        Processes are found by their GUIDs, hosts by their addresses: each kind that a fabric has now has its
        class.
        """
        self.assertEqual(
            self.each(lambda device: type(device.paths)), [ProcessResolution] * 2 + [AddressResolution]
        )
        self.assertEqual(set(RESOLUTIONS), set(Peers))
        # So a GID of a GUID leads to a process; to a host it is an address like others.
        self.assertEqual(self.each(lambda device: device.paths.isOfGUID("fe80::7")), [True] * 2 + [False])

    def test_vectors(self) -> None:
        """
        On Ethernet, which all kinds have now, a LID leads nowhere, for datagrams and for a queue pair.
        """
        local = AddressVector(0, lid=5, isGlobal=False)
        for device in self.devices.values():
            pd = device.memory.allocateDomain()
            for vector in (local, evolve(local, gid=guidGID(5)), AddressVector(0)):
                self.assertRaises(QueuePairError, device.objects.createAddressHandle, pd, vector)
            queuePair = device.createQueuePair(Consumer(), QPType.UC)
            queuePair.modify(QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=0)
            ready = {"path_mtu": 1, "dest_qp_num": 5, "rq_psn": 0}
            self.assertRaises(QueuePairError, queuePair.modify, QPState.RTR, ah_attr=local, **ready)
            self.assertEqual((queuePair.state, queuePair.vector), (QPState.INIT, None))

    def test_linkLayer(self) -> None:
        """
        Where the port says InfiniBand a LID is an address: it is looked up, and keys the paths of datagrams.
        """
        for device in self.devices.values():
            device.port = evolve(device.port, linkLayer=LinkLayer.INFINIBAND)
            looked: list[int] = []
            self.patch(device.paths, "check", looked.append)
            pd = device.memory.allocateDomain()
            make = device.objects.createAddressHandle
            gid = guidGID(0x1234)
            vectors = [
                AddressVector(0, lid=5, isGlobal=False),
                AddressVector(0, lid=5, serviceLevel=3, isGlobal=False),
                AddressVector(gid, lid=5),
                AddressVector(0, lid=0xC001, isGlobal=False),
            ]
            handles = [make(pd, vector) for vector in vectors]
            # A group is joined, not looked up.
            self.assertEqual(looked, [5, 5, 5])
            self.assertEqual(len(device.addressPaths), 2)
            for handle in handles:
                device.objects.destroyAddressHandle(handle)
            self.assertEqual(len(device.addressPaths), 0)

    def test_reach(self) -> None:
        """
        A device reaches another of its kind, and groups; among hosts a path needs no answer.
        """
        for a, b in self.pairs():
            user: Any = User()
            a.reach(b.gid, user)
            for _ in range(4):
                for device in (a, b):
                    device.fabric.attend()
                    device.progress()
            self.assertEqual(user.path.peer.gid, b.gid, user.error)
            a.reach(GROUP if a.traits.peers is Peers.PROCESSES else IPV4_GROUP, user)
            isGroup = isinstance(user.path, MulticastGroup)
            self.assertEqual(isGroup, a.traits.peers is Peers.PROCESSES)

    def test_connectedByAddress(self) -> None:
        """
        A queue pair has its path among hosts as soon as it is in RTR; an address of no host is refused.
        """
        device = self.devices["packets0"]
        queuePair = device.createQueuePair(Consumer(), QPType.UC)
        queuePair.modify(QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=0)
        ready = {"path_mtu": 1, "dest_qp_num": 5, "rq_psn": 0}
        for gid in (IPV4_GROUP, guidGID(5)):
            vector = AddressVector(gid)
            self.assertRaises(NoRouteError, queuePair.modify, QPState.RTR, ah_attr=vector, **ready)
        queuePair.modify(QPState.RTR, ah_attr=AddressVector(gidNumber(OTHER)), **ready)
        self.assertEqual(queuePair.path.peer.address, OTHER)
        self.assertEqual(device.gid, gidNumber(ADDRESS))
        device.paths.leave(queuePair)
        self.assertTrue(device.paths.isProven(queuePair.path))
