"""
Tests of L{twisted_ib.ipoib.protocol.neighbours}, by what a machine does with ARP and ND.
"""

from __future__ import annotations

from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from tests.ipoib.medium import GID, Medium
from twisted_ib.ipoib.protocol.ip import ALL_NODES, UNSPECIFIED, NeighbourMessage, solicitedNode
from twisted_ib.ipoib.protocol.wire import (
    ARP_HEADER,
    IPV6_HEADER,
    NO_HARDWARE,
    ARPPacket,
    broadcastGID,
    multicastGID,
    packHardwareAddress,
)

OWN, OTHER = bytes((10, 9, 0, 1)), bytes((10, 9, 0, 2))
HARDWARE = packHardwareAddress(0, 0x77, GID + 2)
RESTARTED = packHardwareAddress(0, 0x78, GID + 2)
OTHER6 = ip_address("fe80::2:2:2").packed
BROADCAST = broadcastGID(0xFFFF)


class DiscoveryTestCase(SynchronousTestCase):
    """
    One node, and frames that others send.
    """

    def setUp(self) -> None:
        """
        A node, 10.9.0.1.
        """
        self.medium = Medium()
        self.node = self.medium.node(1, "10.9.0.1/24", isConnected=False)
        self.medium.advance(0.1)
        self.own6 = self.node.machine.addresses[-1].packed
        self.sent()
        self.node.counters.clear()

    def sent(self) -> list[tuple[int, bytes]]:
        """
        @return: what it has sent since the last call: queue pair or group, frame.
        """
        posts = [each for each in self.node.calls if each[0] in ("post", "postGroup")]
        self.node.calls.clear()
        return [(each[-2], each[-1]) for each in posts]

    def receive(self, frame: bytes) -> None:
        """
        A frame arrives.
        """
        self.node.machine.datagramReceived(GID + 2, frame, 0, len(frame), self.medium.now)

    def arp(
        self, operation: int, sender: bytes, target: bytes, hardware: bytes = HARDWARE, kind: str = ""
    ) -> None:
        """
        An ARP packet arrives.

        @param kind: in place of its first octets, in hexadecimal digits.
        """
        packet = ARPPacket(operation, hardware, sender, NO_HARDWARE, target).pack()
        self.receive(ARP_HEADER + bytes.fromhex(kind) + packet[len(kind) // 2 :])

    def message(
        self,
        target: bytes,
        hardware: bytes | None,
        isSolicitation: bool,
        source: bytes = OTHER6,
        flags: tuple[bool, bool] = (False, True),
    ) -> None:
        """
        A solicitation or an advertisement arrives.
        """
        destination = solicitedNode(target) if isSolicitation else self.own6
        message = NeighbourMessage(source, destination, target, hardware, isSolicitation, *flags)
        self.receive(IPV6_HEADER + message.pack())

    def known(self) -> dict[bytes, tuple[str, bytes]]:
        """
        @return: the neighbours: states, hardware addresses.
        """
        entries = self.node.machine.neighbours.entries
        return {each.address: (each.state.name, each.hardware) for each in entries.values()}


class ARPTests(DiscoveryTestCase):
    """
    ARP.
    """

    def test_request(self) -> None:
        """
        A request is answered to its sender, who is known then.
        """
        self.arp(1, OTHER, OWN)
        reply = ARPPacket(2, self.node.machine.hardwareAddress, OWN, HARDWARE, OTHER)
        self.assertEqual(self.sent(), [(0x77, ARP_HEADER + reply.pack())])
        self.assertEqual(self.known(), {OTHER: ("STALE", HARDWARE)})

    def test_asked(self) -> None:
        """
        All are asked, with no target hardware address, and the answer makes a neighbour.
        """
        self.node.send("10.9.0.2", b"1")
        request = ARPPacket(1, self.node.machine.hardwareAddress, OWN, NO_HARDWARE, OTHER)
        self.assertEqual(self.sent(), [(BROADCAST, ARP_HEADER + request.pack())])
        self.arp(2, OTHER, OWN)
        self.assertEqual(self.known(), {OTHER: ("REACHABLE", HARDWARE)})
        self.assertEqual([each[0] for each in self.sent()], [0x77])

    def test_unasked(self) -> None:
        """
        Answers that were not asked for, requests for others and announcements make no neighbours.
        """
        third = bytes((10, 9, 0, 3))
        for operation, target in ((2, OWN), (2, third), (1, third), (1, OTHER)):
            self.arp(operation, OTHER, target)
        self.assertEqual(self.known(), {})
        self.assertEqual(self.sent(), [])

    def test_changed(self) -> None:
        """
        They change one that is known: its new address is asked to confirm that if it is in use.
        """
        self.test_asked()
        self.arp(1, OTHER, OTHER, RESTARTED)
        self.assertEqual(self.known(), {OTHER: ("PROBE", RESTARTED)})
        request = ARPPacket(1, self.node.machine.hardwareAddress, OWN, NO_HARDWARE, OTHER)
        self.assertEqual(self.sent(), [(0x78, ARP_HEADER + request.pack())])

    def test_probe(self) -> None:
        """
        Senders without an address (RFC 5227) are answered each alone, and take one place among neighbours.
        """
        for number in range(2, 100):
            self.arp(1, bytes(4), OWN, packHardwareAddress(0, number, GID + 2))
            ((to, frame),) = self.sent()
            self.assertEqual((to, frame[10:12]), (number, b"\x00\x02"))
        self.assertEqual(list(self.known()), [bytes(4)])

    def test_otherPort(self) -> None:
        """
        A sender that tells the hardware address of another port, and is known by its GRH, is not heard.
        """
        self.arp(1, OTHER, OWN, packHardwareAddress(0, 0x77, GID + 3))
        self.assertEqual(self.node.counters, {"source_mismatch": 1})
        self.assertEqual((self.sent(), self.known()), ([], {}))

    def test_offLink(self) -> None:
        """
        A sender of another network is not answered, and is no neighbour.
        """
        for sender in (bytes((10, 9, 1, 2)), bytes((10, 9, 0, 255)), bytes((224, 0, 0, 1))):
            self.arp(1, sender, OWN)
        self.assertEqual((self.sent(), self.known()), ([], {}))

    def test_malformed(self) -> None:
        """
        Other hardware types, protocols and lengths, groups as senders, and packets cut short.
        """
        for kind in ("0001", "00200806", "0020080006", "002008001406"):
            self.arp(1, OTHER, OWN, kind=kind)
        for hardware in (
            packHardwareAddress(0, 0xFFFFFF, BROADCAST),
            packHardwareAddress(0, 0x77, BROADCAST),
            packHardwareAddress(0, 0xFFFFFF, GID + 2),
            packHardwareAddress(0, 1, GID + 2),
            packHardwareAddress(0, 0x77, 0),
        ):
            self.arp(1, OTHER, OWN, hardware)
        self.receive(ARP_HEADER + bytes(55))
        self.assertEqual(self.node.counters, {"arp_malformed": 10})
        self.assertEqual((self.sent(), self.known()), ([], {}))

    def test_queuePairs(self) -> None:
        """
        All numbers but those of management and of groups.
        """
        for number in (2, 0xFFFFFE):
            self.arp(1, OTHER, OWN, packHardwareAddress(0, number, GID + 2))
            self.assertEqual([each[0] for each in self.sent()], [number])

    def test_otherOperations(self) -> None:
        """
        RARP and inverse ARP are not answered.
        """
        for operation in (0, 3, 4, 8, 9, 0xFFFF):
            self.arp(operation, OTHER, OWN)
        self.assertEqual((self.sent(), self.known()), ([], {}))

    def test_own(self) -> None:
        """
        Own requests that come back, and others with an own address, change nothing.
        """
        self.arp(1, OTHER, OWN, packHardwareAddress(0, 0x77, GID + 1))
        self.arp(1, OWN, OWN)
        self.arp(2, OWN, OWN)
        self.assertEqual(self.node.counters, {"own_source": 1, "address_conflict": 2})
        self.assertEqual((self.sent(), self.known()), ([], {}))


class MessageTests(DiscoveryTestCase):
    """
    Neighbour discovery.
    """

    def test_solicited(self) -> None:
        """
        A solicitation is answered to its sender, who is known then.
        """
        self.message(self.own6, HARDWARE, True)
        hardware = self.node.machine.hardwareAddress
        answer = NeighbourMessage(self.own6, OTHER6, self.own6, hardware, False, True, True)
        self.assertEqual(self.sent(), [(0x77, IPV6_HEADER + answer.pack())])
        self.assertEqual(self.known(), {OTHER6: ("STALE", HARDWARE)})
        self.message(self.own6, None, True)
        self.assertEqual(self.sent(), [(0x77, IPV6_HEADER + answer.pack())])

    def test_unknownSource(self) -> None:
        """
        One without an address of a sender that is not known cannot be answered.
        """
        self.message(self.own6, None, True)
        self.assertEqual((self.sent(), self.known()), ([], {}))

    def test_duplicateDetection(self) -> None:
        """
        A solicitation from nowhere is answered to all nodes.
        """
        self.message(self.own6, None, True, UNSPECIFIED)
        ((group, frame),) = self.sent()
        self.assertEqual(group, multicastGID(ALL_NODES, 0xFFFF))
        hardware = self.node.machine.hardwareAddress
        answer = NeighbourMessage(self.own6, ALL_NODES, self.own6, hardware, False, False, True)
        self.assertEqual(NeighbourMessage.parse(frame, 4, len(frame)), answer)

    def test_asked(self) -> None:
        """
        The solicited-node group is asked; a solicited advertisement makes a neighbour.
        """
        self.node.send(str(ip_address(OTHER6)), b"1")
        ((group, frame),) = self.sent()
        self.assertEqual(group, multicastGID(solicitedNode(OTHER6), 0xFFFF))
        self.assertEqual(NeighbourMessage.parse(frame, 4, len(frame)).target, OTHER6)
        self.message(OTHER6, HARDWARE, False, flags=(True, True))
        self.assertEqual(self.known(), {OTHER6: ("REACHABLE", HARDWARE)})
        self.assertEqual([each[0] for each in self.sent()], [0x77])

    def test_unasked(self) -> None:
        """
        Advertisements and solicitations for others make no neighbours.
        """
        self.message(OTHER6, HARDWARE, False)
        self.message(ip_address("fe80::3").packed, HARDWARE, True)
        self.assertEqual((self.sent(), self.known()), ([], {}))

    def test_override(self) -> None:
        """
        Without the override flag a known address stays, and is to be confirmed.
        """
        self.test_asked()
        self.message(OTHER6, RESTARTED, False, flags=(False, False))
        self.assertEqual(self.known(), {OTHER6: ("PROBE", HARDWARE)})
        self.message(OTHER6, RESTARTED, False)
        self.assertEqual(self.known(), {OTHER6: ("PROBE", RESTARTED)})
        self.message(OTHER6, None, False, flags=(True, False))
        self.assertEqual(self.known(), {OTHER6: ("REACHABLE", RESTARTED)})

    def test_withoutAddress(self) -> None:
        """
        An advertisement without an address makes no neighbour of one that has none.
        """
        self.node.send(str(ip_address(OTHER6)), b"1")
        self.message(OTHER6, None, False, flags=(True, True))
        self.assertEqual(self.known(), {OTHER6: ("INCOMPLETE", b"")})

    def test_own(self) -> None:
        """
        Own messages that come back, and others with an own address, change nothing.  Nor do those that tell
        the hardware address of another port.
        """
        for isSolicitation in (False, True):
            self.message(self.own6, packHardwareAddress(0, 0x77, GID + 3), isSolicitation)
        self.assertEqual(self.node.counters.pop("source_mismatch"), 2)
        self.message(self.own6, HARDWARE, False)
        self.message(OTHER6, packHardwareAddress(0, 0x77, GID + 1), False)
        self.message(self.own6, packHardwareAddress(0, 1, GID + 2), True)
        self.assertEqual(self.node.counters, {"own_source": 1, "address_conflict": 1, "nd_malformed": 1})
        self.assertEqual((self.sent(), self.known()), ([], {}))

    def test_notDelivered(self) -> None:
        """
        The user gets none, not even malformed ones, and its own are not sent.
        """
        message = NeighbourMessage(OTHER6, ALL_NODES, OTHER6, HARDWARE, False)
        wrong = bytearray(IPV6_HEADER + message.pack())
        wrong[-1] ^= 1
        self.receive(bytes(wrong))
        self.message(OTHER6, HARDWARE, False)
        self.assertEqual(self.node.delivered, [])
        self.node.machine.send(IPV6_HEADER + message.pack(), self.medium.now)
        self.assertEqual(self.sent(), [])
        self.assertEqual(self.node.counters, {"nd_malformed": 1, "nd_of_user": 1})


class AnnouncementTests(DiscoveryTestCase):
    """
    What is said unasked.
    """

    def test_begun(self) -> None:
        """
        Each address is announced when the interface is up.
        """
        node = self.medium.node(3, "10.9.0.3/24", "2001:db8::3/64")
        posts = [each[1:] for each in node.calls if each[0] == "postGroup"]
        self.assertEqual([each[0] for each in posts[:1]], [BROADCAST])
        request = ARPPacket.parse(posts[0][1], 4, 60)
        self.assertEqual((request.sender, request.target), (bytes((10, 9, 0, 3)),) * 2)
        messages = [NeighbourMessage.parse(frame, 4, len(frame)) for _, frame in posts[1:]]
        self.assertEqual(
            {str(ip_address(each.target)) for each in messages},
            {"2001:db8::3", str(node.machine.addresses[-1].ip)},
        )
        for each in messages:
            self.assertTrue(each.isOverride and not each.isSolicited)
