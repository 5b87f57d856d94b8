"""
Tests of L{twisted_ib.hca.base.traits}: the facts of each kind of fabric, and that devices behave by them.
"""

from __future__ import annotations

from typing import Any

from zope.interface.verify import verifyObject

from tests.hca.device.everykind import ADDRESS, OTHER, EveryKindTestCase
from twisted_ib import limits
from twisted_ib.errors import NoRouteError, SharedGIDError
from twisted_ib.hca.base.interfaces import IAddressDirectory, IFabric, IHostDirectory, IPacketFabric
from twisted_ib.hca.base.traits import (
    LOCAL,
    ROUTED,
    SHARED,
    STREAM,
    SUBNET,
    NodeType,
    Peers,
    Proof,
    TransportType,
)
from twisted_ib.hca.connection.rdmacm import gidNumber
from twisted_ib.hca.device.registry import KINDS, addDevice, traitsOf
from twisted_ib.hca.fabric.base.streams import IStreamFabric
from twisted_ib.hca.wire.grh import guidGID

#: The address of the device of streams: it has TCP sockets, which no other has.
STREAMS = "127.0.0.1"


class TraitTests(EveryKindTestCase):
    """
    A device of each kind.
    """

    def setUp(self) -> None:
        """
        One of streams beside the others.
        """
        super().setUp()
        addDevice("streams0", "iwarp", STREAMS)
        self.devices["streams0"] = self.open("streams0")

    def test_table(self) -> None:
        """
        Every kind of fabric has a row, and its devices have the row's traits before and after they are open.
        """
        self.assertEqual(
            {kind.name: kind.traits for kind in KINDS},
            {"loopback": LOCAL, "shm": SHARED, "ib": SUBNET, "roce": ROUTED, "iwarp": STREAM},
        )
        self.assertEqual(self.each(lambda device: device.traits), [LOCAL, SHARED, ROUTED, STREAM])
        self.assertEqual([traitsOf(name) for name in self.devices], [LOCAL, SHARED, ROUTED, STREAM])
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
        kinds: Any = hosts, hosts, (IPacketFabric,), (IStreamFabric, IAddressDirectory)
        for device, interfaces in zip(self.devices.values(), kinds, strict=True):
            for each in interfaces:
                verifyObject(each, device.fabric)
            self.assertIs(IHostDirectory.providedBy(device.fabric), device.traits.peers is Peers.PROCESSES)
            self.assertIs(IAddressDirectory.providedBy(device.fabric), device.traits.hasAddress)

    def test_ownAddress(self) -> None:
        """
        A device of hosts has an IP address of its own and no other; the others have the host's.
        """
        self.assertEqual(self.each(lambda device: device.address), [None, None, ADDRESS, STREAMS])
        self.assertEqual(
            self.each(lambda device: device.localAddressFor(OTHER)), [OTHER, OTHER, ADDRESS, STREAMS]
        )
        self.assertRaises(NoRouteError, self.devices["packets0"].localAddressFor, OTHER, OTHER)

    def test_gid(self) -> None:
        """
        Its GID is that address; the others' is made of the GUID.
        """
        lo, shm, packets, streams = self.devices.values()
        self.assertEqual([lo.gid, shm.gid], [guidGID(lo.guid), guidGID(shm.guid)])
        for device, address in ((packets, ADDRESS), (streams, STREAMS)):
            self.assertEqual((device.gid, device.gids()), (gidNumber(address), [address]))

    def test_unknownHost(self) -> None:
        """
        Where the resolver alone knows names, there is nothing to be said of one that it does not.
        """
        self.assertEqual(self.each(lambda device: device.unknownHost("nobody")), [""] * 4)

    def test_pathKnown(self) -> None:
        """
        An address names one HCA among hosts, so its path is known; among processes all HCAs share it, and
        only the GUID's GID leads to one.
        """
        gid = gidNumber(ADDRESS)
        lo, shm, packets, streams = self.devices.values()
        for device in (lo, shm):
            self.assertIs(device.traits.peers, Peers.PROCESSES)
            self.assertRaises(SharedGIDError, device.paths.check, gid)
        for device in (packets, streams):
            self.assertIs(device.traits.peers, Peers.ADDRESSES)
            self.assertEqual(device.paths.check(gid), 0)

    def test_packets(self) -> None:
        """
        Packets have a path MTU, and counters by rxe's names; records are as long as a datagram may be.
        """
        self.assertEqual(self.each(lambda device: device.traits.packets), [False, False, True, False])
        most = limits.DATAGRAM_BYTES
        self.assertEqual(self.each(lambda device: device.pathMTU), [most, most, 1024, most])

    def test_halfOpen(self) -> None:
        """
        A peer that has not answered at its address is not proven: half-open connections are bounded by
        address.
        """
        self.assertEqual(
            self.each(lambda device: device.traits.proof),
            [Proof.DIRECTORY, Proof.DIRECTORY, Proof.ANSWER, Proof.CONNECTION],
        )
        ofPaths = limits.CM_HALF_OPEN_PER_PATH, limits.CM_HALF_OPEN_PATHS
        rooms = self.each(lambda device: device.cm._halfOpenLimit)
        self.assertEqual(
            [(room._perSource, room._inAll) for room in rooms],
            [ofPaths, ofPaths, (limits.CM_HALF_OPEN_PER_ADDRESS, limits.CM_HALF_OPEN_ADDRESSES), ofPaths],
        )

    def test_zeroCopy(self) -> None:
        """
        Only processes that share memory can map each other's.
        """
        self.assertEqual(self.each(lambda device: device.traits.zeroCopy), [False, True, False, False])

    def test_runDirectory(self) -> None:
        """
        HCAs that share memory have entries in the run directory, where commands find them; that of packets
        is asked through a socket of its own, and one within a process by nobody.
        """
        self.assertEqual(self.each(lambda device: device.traits.inRunDirectory), [False, True, False, False])
        self.assertEqual(self.each(lambda device: device.isAsked), [False, True, True, True])
