"""
Tests of L{twisted_ib.hca.base.traits}: the facts of each kind of fabric, and that devices behave by them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attrs import evolve
from zope.interface.verify import verifyObject

from tests.hca.device.everykind import ADDRESS, OTHER, EveryKindTestCase
from twisted_ib import limits
from twisted_ib.errors import NoRouteError, SharedGIDError
from twisted_ib.hca.base.interfaces import IAddressDirectory, IFabric, IHostDirectory, IPacketFabric
from twisted_ib.hca.base.traits import (
    ADAPTER,
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
from twisted_ib.hca.connection.rdmacm import gidNumber, gidText
from twisted_ib.hca.device.addressing.subnet import SubnetResolution
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
            {
                "loopback": LOCAL,
                "shm": SHARED,
                "ib": SUBNET,
                "roce": ROUTED,
                "iwarp": STREAM,
                "hardware": ADAPTER,
            },
        )
        self.assertEqual(self.each(lambda device: device.traits), [LOCAL, SHARED, ROUTED, STREAM])
        self.assertEqual([traitsOf(name) for name in self.devices], [LOCAL, SHARED, ROUTED, STREAM])
        self.assertIs(traitsOf("roce7"), ROUTED)

    def test_name(self) -> None:
        """
        A fabric is named as its row of the registry.
        """
        # Of those that every host has.
        names = [kind.name for kind in KINDS if kind.traits not in (SUBNET, ADAPTER)]
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
        # As the kernel's, which 127.0.0.2 is one of, too.
        self.assertEqual(
            self.each(lambda device: device.localAddressFor(OTHER)), [ADDRESS, ADDRESS, ADDRESS, STREAMS]
        )
        self.assertRaises(NoRouteError, self.devices["packets0"].localAddressFor, OTHER, OTHER)

    def test_gid(self) -> None:
        """
        Its GID is that address, one of packets has it in the slots 0 to 3; the others' is made of the GUID.
        """
        lo, shm, packets, streams = self.devices.values()
        self.assertEqual([lo.gid, shm.gid], [guidGID(lo.guid), guidGID(shm.guid)])
        for device, address, slots in ((packets, ADDRESS, 4), (streams, STREAMS, 1)):
            self.assertEqual((device.gid, device.gids()), (gidNumber(address), [address] * slots))

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


#: An address of a resolver's, one of its peers, and one that is nobody's.
OWN, PEER, STRANGER = "10.0.0.1", "10.0.0.2", "192.0.2.9"


class Resolver:
    """
    A resolver that knows one network.
    """

    gids: dict[str, int] = {PEER: 77}

    def isOwn(self, address: str) -> bool:
        """
        Return whether it is this host's.
        """
        return address == OWN

    def sourceFor(self, address: str) -> str:
        """
        Return the own address of the network that an address is in.
        """
        return OWN if address.startswith("10.") else ""

    def gidOf(self, address: str) -> int:
        """
        Return the GID that it has found, or 0.
        """
        return self.gids.get(address, 0)


class AddressTests(EveryKindTestCase):
    """
    Which addresses a device has, chooses and believes.
    """

    def kinds(self) -> tuple[Any, Any, Any]:
        """
        Return a device of processes, one with an address, and one of a subnet.
        """
        subnet = self.open("lo0")
        self.patch(subnet, "traits", evolve(subnet.traits, peers=Peers.SUBNET))
        subnet.resolveBy(SubnetResolution(subnet))
        return self.devices["lo0"], self.devices["packets0"], subnet

    def said(self, call: Any, *arguments: Any) -> Any:
        """
        Return what a call returns, or the type of its error.
        """
        try:
            return call(*arguments)
        except (NoRouteError, ValueError) as error:
            return type(error)

    def test_source(self) -> None:
        """
        The source of a connection is what the user bound, if the device may have it; else it is as the
        destination asks.
        """
        processes, packets, subnet = self.kinds()
        gid = gidText(subnet.gid)
        for device, resolver, destination, bound, expected in (
            (processes, None, ADDRESS, "", ADDRESS),
            (processes, None, ADDRESS, "0.0.0.0", ADDRESS),
            (processes, None, ADDRESS, "::", ADDRESS),
            (processes, None, ADDRESS, OTHER, OTHER),
            (processes, None, ADDRESS, STRANGER, NoRouteError),
            (processes, None, STRANGER, "", STRANGER),
            (packets, None, OTHER, "", ADDRESS),
            (packets, None, OTHER, "0.0.0.0", ADDRESS),
            (packets, None, OTHER, ADDRESS, ADDRESS),
            (packets, None, OTHER, OTHER, NoRouteError),
            (subnet, None, ADDRESS, "", ADDRESS),
            (subnet, None, STRANGER, "", gid),
            (subnet, None, STRANGER, ADDRESS, ADDRESS),
            (processes, Resolver(), PEER, "", OWN),
            (processes, Resolver(), PEER, "0.0.0.0", OWN),
            (processes, Resolver(), PEER, OWN, OWN),
            (processes, Resolver(), PEER, ADDRESS, ADDRESS),
            (processes, Resolver(), ADDRESS, "", ADDRESS),
            (processes, Resolver(), ADDRESS, OWN, OWN),
            (packets, Resolver(), OTHER, "", ADDRESS),
            (packets, Resolver(), PEER, "", OWN),
        ):
            device.resolver = resolver
            found = self.said(device.localAddressFor, destination, bound)
            self.assertEqual(found, expected, (device.name, destination, bound))

    def test_listening(self) -> None:
        """
        A device with an address listens there alone; a wildcard of the other version does not include it.
        """
        processes, packets, _ = self.kinds()
        six = self.open("packets1")
        self.patch(six, "address", "::1")
        for device, resolver, bound, expected in (
            (processes, None, "::", "::"),
            (processes, None, STRANGER, STRANGER),
            (packets, None, "::", ADDRESS),
            (packets, None, "0.0.0.0", ADDRESS),
            (packets, None, ADDRESS, ADDRESS),
            (packets, None, OTHER, ValueError),
            (packets, None, OWN, ValueError),
            (packets, Resolver(), OWN, OWN),
            (packets, Resolver(), OTHER, ValueError),
            (packets, Resolver(), "::", ADDRESS),
            (six, None, "::", "::1"),
            (six, None, "0:0::1%lo", "0:0::1%lo"),
            (six, None, "0.0.0.0", ValueError),
        ):
            device.resolver = resolver
            self.assertEqual(self.said(device.listeningAddress, bound), expected, (device.name, bound))
        self.assertEqual([each.isAt(None) for each in (processes, packets)], [True, False])

    def test_local(self) -> None:
        """
        Of this host are the host's addresses where peers are processes, the device's own where it has one,
        those of a subnet's port, and the resolver's; a GID likewise.
        """
        processes, packets, subnet = self.kinds()
        gid = gidText(subnet.gid)
        for device, local in (
            (processes, {ADDRESS, OTHER}),
            (packets, {ADDRESS}),
            (subnet, {ADDRESS, OTHER, gid}),
        ):
            for resolver in (None, Resolver()):
                device.resolver = resolver
                addresses = {ADDRESS, OTHER, OWN, PEER, STRANGER, gid, gidText(processes.gid)}
                found = {each for each in addresses if device.isLocal(each)}
                self.assertEqual(found, local | ({OWN} if resolver else set()), device.name)
            device.resolver = None
            self.assertIs(device.hasGID(device.gid), True)
            self.assertIs(device.hasGID(gidNumber(STRANGER)), False)
            self.assertIs(device.hasGID(gidNumber(OTHER)), device is processes)
            self.assertIs(device.hasGID(device.gid + 1), False)

    def test_claims(self) -> None:
        """
        A peer has the address that its packets come from, the GUID of its path, or the GID that was resolved;
        among processes each has all of the host's.
        """
        processes, packets, subnet = self.kinds()
        guid = 0x0002000000000005
        path = SimpleNamespace(peer=SimpleNamespace(address=OTHER, guid=guid))
        gid = gidText(subnet.port.subnetPrefix << 64 | guid)
        for device in (processes, packets, subnet):
            self.patch(device.paths, "gidOf", lambda path: 77)
        for device, resolver, address, expected in (
            (processes, None, ADDRESS, True),
            (processes, None, STRANGER, False),
            (processes, None, gid, False),
            (packets, None, OTHER, True),
            (packets, None, ADDRESS, False),
            (subnet, None, gid, True),
            (subnet, None, gidText(subnet.gid), False),
            (subnet, None, ADDRESS, True),
            (subnet, None, STRANGER, False),
            (processes, Resolver(), PEER, True),
            (processes, Resolver(), OWN, False),
            (processes, Resolver(), ADDRESS, True),
            (packets, Resolver(), PEER, True),
            (packets, Resolver(), OWN, False),
            (packets, Resolver(), OTHER, True),
        ):
            device.resolver = resolver
            self.assertIs(device.isPeers(path, address), expected, (device.name, resolver, address))
        self.patch(Resolver, "gids", {PEER: 78})
        self.assertEqual([each.isPeers(path, PEER) for each in (processes, packets)], [False, False])

    def test_guids(self) -> None:
        """
        Only in a subnet does an address without a zone have a GUID, and a node a name and a GUID of its own.
        """
        processes, packets, subnet = self.kinds()
        gid = gidText(subnet.gid)
        self.assertEqual([each.guidOf(gid) for each in (processes, packets, subnet)], [0, 0, subnet.guid])
        self.assertEqual([subnet.guidOf(each) for each in (f"{gid}%lo", ADDRESS)], [0, 0])
        self.assertEqual([each.guid - each.nodeGUID for each in (processes, packets, subnet)], [0, 0, 1])
        for device in (processes, subnet):
            self.patch(device, "fabric", SimpleNamespace(named={"known": 5}.get))
        found = [each.hostNamed("known") for each in (processes, subnet)]
        self.assertEqual(found, ["", gidText(subnet.port.subnetPrefix << 64 | 5)])
        self.patch(subnet, "fabric", SimpleNamespace(named={"known": 0}.get))
        self.assertEqual(subnet.hostNamed("known"), "")
        self.assertEqual([bool(each.unknownHost("x")) for each in (processes, packets, subnet)], [0, 0, 1])

    def test_early(self) -> None:
        """
        A packet before the RTU counts as that if it comes from the peer, and its PSN is one of the next.
        """
        device: Any = self.devices["packets0"]
        told: list[int] = []
        self.patch(device, "communicationEstablished", told.append)
        window = limits.TRANSPORT_WINDOW
        for expected, address, psn, isTaken in (
            (5, OTHER, 5, True),
            (5, OTHER, 4, False),
            (5, OTHER, 4 + window, True),
            (5, OTHER, 5 + window, False),
            (0xFFFFFF, OTHER, 0, True),
            (0, OTHER, 0xFFFFFF, False),
            (5, ADDRESS, 5, False),
            (None, OTHER, 5, False),
        ):
            proposal = None if expected is None else SimpleNamespace(expectedPSN=expected)
            user = SimpleNamespace(proposal=proposal)
            peer = SimpleNamespace(peer=SimpleNamespace(address=OTHER))
            device.cm.accepted[9] = SimpleNamespace(user=user, destination=peer)
            device.arrivedEarly(9, address, psn)
            device.arrivedEarly(8, address, psn)
            self.assertEqual(told, [9] if isTaken else [], (expected, address, psn))
            del told[:], device.cm.accepted[9]
