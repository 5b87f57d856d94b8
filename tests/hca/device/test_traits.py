"""
Tests of L{twisted_ib.hca.base.traits}: the facts of each kind of fabric, and that devices behave by them.
"""

from __future__ import annotations

from zope.interface.verify import verifyObject

from tests.hca.device.everykind import ADDRESS, OTHER, EveryKindTestCase
from twisted_ib import limits
from twisted_ib.errors import NoRouteError, SharedGIDError
from twisted_ib.hca.base.interfaces import IAddressDirectory, IFabric, IHostDirectory, IPacketFabric
from twisted_ib.hca.base.traits import LOCAL, ROUTED, SHARED, SUBNET, NodeType, Peers, Proof, TransportType
from twisted_ib.hca.connection.rdmacm import gidNumber
from twisted_ib.hca.device.registry import KINDS, traitsOf
from twisted_ib.hca.wire.grh import guidGID


class TraitTests(EveryKindTestCase):
    """
    A device of each kind.
    """

    def test_table(self) -> None:
        """
        Every kind of fabric has a row, and its devices have the row's traits before and after they are open.
        """
        self.assertEqual(
            {kind.name: kind.traits for kind in KINDS},
            {"loopback": LOCAL, "shm": SHARED, "ib": SUBNET, "roce": ROUTED},
        )
        self.assertEqual(self.each(lambda device: device.traits), [LOCAL, SHARED, ROUTED])
        self.assertEqual([traitsOf(name) for name in self.devices], [LOCAL, SHARED, ROUTED])
        self.assertIs(traitsOf("roce7"), ROUTED)

    def test_name(self) -> None:
        """
        A fabric is named as its row of the registry.
        """
        names = [kind.name for kind in KINDS if kind.traits.peers is not Peers.SUBNET]
        self.assertEqual(self.each(lambda device: device.fabric.name), names)

    def test_verbsNumbers(self) -> None:
        """
        The numbers are those of C{enum ibv_transport_type} and C{enum ibv_node_type}.
        """
        self.assertEqual({each.name: each.value for each in TransportType}, {"IB": 0, "IWARP": 1})
        self.assertEqual(
            {each.name: each.value for each in NodeType}, {"CA": 1, "SWITCH": 2, "ROUTER": 3, "RNIC": 4}
        )

    def test_interfaces(self) -> None:
        """
        Each has the directory that its traits say, and all that the interfaces name.
        """
        hosts = IFabric, IHostDirectory
        for device, interfaces in zip(self.devices.values(), (hosts, hosts, (IPacketFabric,)), strict=True):
            for each in interfaces:
                verifyObject(each, device.fabric)
            self.assertIs(IHostDirectory.providedBy(device.fabric), device.traits.peers is Peers.PROCESSES)
            self.assertIs(IAddressDirectory.providedBy(device.fabric), device.traits.hasAddress)

    def test_ownAddress(self) -> None:
        """
        A device of hosts has an IP address of its own and no other; the others have the host's.
        """
        self.assertEqual(self.each(lambda device: device.address), [None, None, ADDRESS])
        self.assertEqual(self.each(lambda device: device.localAddressFor(OTHER)), [OTHER, OTHER, ADDRESS])
        self.assertRaises(NoRouteError, self.devices["packets0"].localAddressFor, OTHER, OTHER)

    def test_gid(self) -> None:
        """
        Its GID is that address; the others' is made of the GUID.
        """
        lo, shm, packets = self.devices.values()
        self.assertEqual([lo.gid, shm.gid], [guidGID(lo.guid), guidGID(shm.guid)])
        self.assertEqual(packets.gid, gidNumber(ADDRESS))
        self.assertEqual(packets.gids(), [ADDRESS])

    def test_pathKnown(self) -> None:
        """
        An address names one HCA among hosts, so its path is known; among processes all HCAs share it, and
        only the GUID's GID leads to one.
        """
        gid = gidNumber(ADDRESS)
        lo, shm, packets = self.devices.values()
        for device in (lo, shm):
            self.assertIs(device.traits.peers, Peers.PROCESSES)
            self.assertRaises(SharedGIDError, device.paths.check, gid)
        self.assertIs(packets.traits.peers, Peers.ADDRESSES)
        self.assertEqual(packets.paths.check(gid), 0)

    def test_packets(self) -> None:
        """
        Packets have a path MTU, and counters by rxe's names; records are as long as a datagram may be.
        """
        self.assertEqual(self.each(lambda device: device.traits.packets), [False, False, True])
        self.assertEqual(self.each(lambda device: device.pathMTU), [limits.DATAGRAM_BYTES] * 2 + [1024])

    def test_halfOpen(self) -> None:
        """
        A peer that has not answered at its address is not proven: half-open connections are bounded by
        address.
        """
        self.assertEqual(
            self.each(lambda device: device.traits.proof), [Proof.DIRECTORY] * 2 + [Proof.ANSWER]
        )
        rooms = self.each(lambda device: device.cm._halfOpenLimit)
        self.assertEqual(
            [(room._perSource, room._inAll) for room in rooms],
            [(limits.CM_HALF_OPEN_PER_PATH, limits.CM_HALF_OPEN_PATHS)] * 2
            + [(limits.CM_HALF_OPEN_PER_ADDRESS, limits.CM_HALF_OPEN_ADDRESSES)],
        )

    def test_zeroCopy(self) -> None:
        """
        Only processes that share memory can map each other's.
        """
        self.assertEqual(self.each(lambda device: device.traits.zeroCopy), [False, True, False])

    def test_runDirectory(self) -> None:
        """
        HCAs that share memory have entries in the run directory, where commands find them; that of packets
        is asked through a socket of its own, and one within a process by nobody.
        """
        self.assertEqual(self.each(lambda device: device.traits.inRunDirectory), [False, True, False])
        self.assertEqual(self.each(lambda device: device.isAsked), [False, True, True])
