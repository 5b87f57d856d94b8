"""
Tests of L{twisted_ib.ipoib.protocol.machine}.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from ipaddress import ip_address, ip_network

from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.ipoib.medium import GID, Medium, Node, frameTo, pair
from tests.support.calls import called
from twisted_ib import limits
from twisted_ib.ipoib.protocol.interfaces import COUNTERS, Group, IMachineDriver
from twisted_ib.ipoib.protocol.wire import broadcastGID, multicastGID, packPrivateData

DO_NOT_FRAGMENT = 0x4000


class InterfaceTests(SynchronousTestCase):
    """
    The seam.
    """

    def test_provided(self) -> None:
        """
        The driver of these tests provides its interface.
        """
        _, node, _ = pair()
        verifyObject(IMachineDriver, node)

    def test_settings(self) -> None:
        """
        Hardware address, addresses and MTU follow from the settings.
        """
        medium = Medium()
        medium.mtu = 4096
        for isConnected, wanted, mtu, first in (
            (True, None, 65520, "80"),
            (True, 9000, 9000, "80"),
            (True, 70000, 65520, "80"),
            (False, None, 4092, "00"),
            (False, 1500, 1500, "00"),
            (False, 9000, 4092, "00"),
        ):
            node = medium.node(1, "10.9.0.1/24", isConnected=isConnected, mtu=wanted)
            self.assertEqual((node.mtu, node.machine.mtu), (mtu, mtu))
            self.assertEqual(node.machine.hardwareAddress.hex()[:8], f"{first}000055")
            self.assertEqual(
                [str(each) for each in node.machine.addresses], ["10.9.0.1/24", "fe80::202:c903:0:2/64"]
            )

    def test_announced(self) -> None:
        """
        A connection takes what the MTU says, and never less than RFC 4755 has.
        """
        for wanted, private in ((None, "fff4"), (9000, "232c"), (1500, "0800")):
            medium, one, _ = pair(mtu=wanted)
            one.send("10.9.0.2", b"")
            medium.advance(0.1)
            (connect,) = [each for each in one.calls if each[0] == "connect"]
            self.assertEqual(connect[3].hex(), f"000000550000{private}")


class BadInputTests(SynchronousTestCase):
    """
    Frames that are dropped and counted.
    """

    def setUp(self) -> None:
        """
        Two nodes.
        """
        self.medium, self.node, self.other = pair()
        self.node.counters.clear()

    def received(self, frame: bytes, name: str | None, gid: int = GID + 2) -> None:
        """
        A frame that arrives is dropped for a reason, or delivered.
        """
        self.node.machine.datagramReceived(gid, b"1" + frame + b"2", 1, 1 + len(frame), self.medium.now)
        self.assertEqual(self.node.counters, {} if name is None else {name: 1}, frame.hex())
        self.assertEqual(len(self.node.delivered), name is None, frame.hex())
        self.node.counters.clear()
        self.node.delivered.clear()

    def test_encapsulation(self) -> None:
        """
        Unknown EtherTypes, reserved bits, and less than a header.
        """
        good = frameTo("10.9.0.2", "10.9.0.1", b"data")
        self.received(good, None)
        for header in ("08010000", "80350000", "88cc0000", "00000000", "08000001", "08008000", "080600ff"):
            self.received(bytes.fromhex(header) + good[4:], "encapsulation")
        for length in range(4):
            self.received(good[:length], "encapsulation")

    def test_packets(self) -> None:
        """
        Versions, and packets shorter than their headers or than they say.
        """
        good4 = frameTo("10.9.0.2", "10.9.0.1", b"data")
        good6 = frameTo("fe80::1", "fe80::2", b"data")
        self.received(good6, None)
        for frame in (good4, good6):
            for length in range(4, len(frame)):
                self.received(frame[:length], "ip_malformed")
        self.received(good6[:4] + good4[4:], "ip_malformed")
        self.received(good4[:4] + good6[4:], "ip_malformed")
        self.received(good4[:4] + b"\x44" + good4[5:], "ip_malformed")

    def test_options(self) -> None:
        """
        A header with options is a good one.
        """
        frame = bytearray(frameTo("10.9.0.2", "10.9.0.1", bytes(8)))
        frame[4] = 0x46
        self.received(bytes(frame), None)

    def test_padding(self) -> None:
        """
        What follows a packet is cut off.
        """
        frame = frameTo("10.9.0.2", "10.9.0.1", b"data")
        self.node.machine.datagramReceived(0, frame + b"padding", 0, len(frame) + 7, self.medium.now)
        self.assertEqual(self.node.delivered, [frame[4:]])

    def test_own(self) -> None:
        """
        The own GID as a sender.
        """
        self.received(frameTo("10.9.0.2", "10.9.0.1", b"data"), "own_source", gid=GID + 1)

    def test_sent(self) -> None:
        """
        What the user sends is checked before it is looked at.
        """
        good4, good6 = frameTo("10.9.0.1", "10.9.0.2", b"1"), frameTo("fe80::1", "fe80::2", b"1")
        wrong = [good4[:length] for length in range(len(good4))]
        wrong += [good6[:length] for length in range(len(good6))]
        wrong += [
            b"\x08\x06" + good4[2:],
            b"\x86\xdd" + good4[2:] + bytes(40),
            b"\x08\x00\x00\x01" + good4[4:],
        ]
        wrong += [b"\x08\x00" + good6[2:], b"\x99\x99" + good6[2:], b"\x08\x00\x00\x01" + good4[4:]]
        for frame in wrong:
            for kind in (bytes, bytearray, memoryview):
                self.node.machine.send(kind(frame), self.medium.now)
        self.assertEqual(self.node.counters, {"send_malformed": 3 * len(wrong)})
        self.assertEqual(len(self.node.machine.neighbours.entries), 0)

    def test_named(self) -> None:
        """
        What the tests count is in the table.
        """
        self.assertEqual(sorted(COUNTERS), list(COUNTERS))


class SendTests(SynchronousTestCase):
    """
    Where packets go.
    """

    def setUp(self) -> None:
        """
        Two nodes.
        """
        self.medium, self.one, self.other = pair(isConnected=False)
        self.one.counters.clear()

    def error(self) -> tuple[str, str, str]:
        """
        @return: of the ICMP error that the user got: type and code, its 32 bits, source.
        """
        (packet,) = self.one.delivered
        self.one.delivered.clear()
        at, source = (20, packet[12:16]) if packet[0] >> 4 == 4 else (40, packet[8:24])
        return packet[at : at + 2].hex(), packet[at + 4 : at + 8].hex(), str(ip_address(source))

    def test_kinds(self) -> None:
        """
        A frame may be any buffer, may be overwritten when C{send} returns, and have more behind it.
        """
        for kind in (bytes, bytearray, memoryview):
            frame = bytearray(frameTo("10.9.0.1", "10.9.0.2", b"data") + b"padding")
            self.one.machine.send(kind(frame), self.medium.now)
            frame[:] = bytes(len(frame))
            self.medium.advance(0.1)
            self.assertEqual(self.other.received(), [b"data"])
            self.medium.advance(1000.0)

    def test_noRoute(self) -> None:
        """
        A packet to nowhere is answered by ICMP.
        """
        self.one.send("172.16.0.1", b"1")
        self.assertEqual(self.error(), ("0300", "00000000", "172.16.0.1"))
        self.one.send("2001:db8::1", b"1")
        self.assertEqual(self.error(), ("0100", "00000000", "2001:db8::1"))
        self.assertEqual(self.one.counters, {"no_route": 2})

    def test_gateway(self) -> None:
        """
        A packet to another network goes to its gateway.
        """
        gateways = ((ip_network("172.16.0.0/12"), bytes((10, 9, 0, 2))),)
        three = self.medium.node(3, "10.9.0.3/24", gateways=gateways, isConnected=False)
        three.send("172.16.0.1", b"1")
        self.medium.advance(0.1)
        self.assertEqual(self.other.received(), [b"1"])

    def test_noNeighbour(self) -> None:
        """
        A neighbour that does not answer: the packets that wait are answered by ICMP, the others are counted.
        """
        for number in range(279):
            self.one.send("10.9.0.9", b"%d" % number)
        self.assertEqual(self.one.counters, {"neighbour_waiting": 2})
        self.medium.advance(limits.IPOIB_RETRY_SECONDS * limits.IPOIB_TRIES)
        self.assertEqual(self.one.counters["neighbour_failed"], 277)
        self.one.delivered[1:] = []
        self.assertEqual(self.error(), ("0301", "00000000", "10.9.0.9"))

    def test_burst(self) -> None:
        """
        A first burst to an unknown neighbour arrives whole, in its order; of more than may wait the last.
        """
        for number in range(20):
            self.one.send("10.9.0.2", b"%d" % number)
        self.medium.advance(0.1)
        self.assertEqual(self.other.received(), [b"%d" % number for number in range(20)])
        three = self.medium.node(3, "10.9.0.3/24", isConnected=False)
        for number in range(300):
            self.one.send("10.9.0.3", b"%d" % number)
        self.medium.advance(0.1)
        self.assertEqual(three.received(), [b"%d" % number for number in range(23, 300)])

    def test_evicted(self) -> None:
        """
        Packets that wait for a neighbour that is forgotten are counted.
        """
        self.patch(limits, "IPOIB_NEIGHBOURS", 1)
        self.one.send("10.9.0.8", b"1")
        self.one.send("10.9.0.9", b"1")
        self.assertEqual(self.one.counters, {"neighbour_waiting": 1})

    def test_scan(self) -> None:
        """
        A program that sends to all addresses of a network fills the table, and no more.
        """
        medium = Medium()
        wide = medium.node(3, "10.0.0.1/8", isConnected=False)
        for number in range(limits.IPOIB_NEIGHBOURS + 500):
            wide.send(str(ip_address(0x0A100000 + number)), b"1")
        self.assertEqual(len(wide.machine.neighbours.entries), limits.IPOIB_NEIGHBOURS)

    def test_toSelf(self) -> None:
        """
        A packet to an own address comes back.
        """
        self.one.send("10.9.0.1", b"self")
        self.assertEqual(self.one.received(), [b"self"])

    def test_broadcast(self) -> None:
        """
        The network's broadcast address and 255.255.255.255 reach all but the sender.
        """
        third = self.medium.node(3, "10.9.0.3/24")
        for address in ("10.9.0.255", "255.255.255.255"):
            self.one.send(address, b"all")
            self.medium.advance(0.1)
            for node in (self.other, third):
                self.assertEqual(node.received(), [b"all"])
        self.assertEqual(self.one.received(), [])

    def test_multicast(self) -> None:
        """
        Who has joined a group gets each datagram once, the sender none.
        """
        third = self.medium.node(3, "10.9.0.3/24")
        for text in ("239.1.2.3", "ff05::1234"):
            group = ip_address(text).packed
            for node in (self.one, self.other):
                node.machine.joinGroup(group)
            self.one.send(text, b"many")
            third.send(text, b"third")
            self.medium.advance(0.1)
            self.assertEqual(self.one.received(), [b"third"])
            self.assertEqual(self.other.received(), [b"many", b"third"])
            self.assertEqual(third.received(), [])
            self.other.machine.leaveGroup(group)
            self.one.send(text, b"less")
            self.medium.advance(0.1)
            self.assertEqual(self.other.received(), [])

    def test_notGroup(self) -> None:
        """
        Only multicast addresses are groups.
        """
        for address in ("10.9.0.2", "255.255.255.255", "fe80::1"):
            self.assertRaises(ValueError, self.one.machine.joinGroup, ip_address(address).packed)

    def test_groupWaits(self) -> None:
        """
        Packets wait until their group is joined; those beyond are counted.
        """
        self.medium.paths = {GID + 1, GID + 2}
        self.other.machine.joinGroup(bytes((239, 1, 2, 3)))
        for number in range(limits.IPOIB_WAITING + 2):
            self.one.send("239.1.2.3", b"%d" % number)
        self.assertEqual(self.one.counters, {"group_waiting": 2})
        self.medium.advance(0.1)
        self.assertEqual(self.other.received(), [b"0", b"1", b"2"])

    def test_groupFailed(self) -> None:
        """
        Packets for a group that cannot be joined are counted, those that come later too.
        """
        self.medium.refusedGroups = lambda mgid: True
        self.one.send("239.1.2.3", b"1")
        self.medium.advance(0.1)
        self.one.send("239.1.2.3", b"2")
        self.assertEqual(self.one.counters, {"group_failed": 2})
        self.medium.refusedGroups = lambda mgid: False
        self.medium.advance(limits.IPOIB_BACKOFF_LEAST)
        self.other.machine.joinGroup(bytes((239, 1, 2, 3)))
        self.one.send("239.1.2.3", b"3")
        self.assertEqual(self.one.counters, {"group_failed": 2})
        self.medium.advance(0.1)
        self.assertEqual(self.other.received(), [b"3"])

    def test_groupsFull(self) -> None:
        """
        Where all groups are received from, others are not sent to.
        """
        self.patch(limits, "IPOIB_GROUPS", len(self.one.machine._groups))
        self.one.send("239.1.2.4", b"1")
        self.assertEqual(self.one.counters, {"group_waiting": 1})

    def test_tooLong(self) -> None:
        """
        Packets that are too long: IPv4 ones without Don't Fragment are cut, the others answered by ICMP.
        """
        linkLocal = str(self.other.machine.addresses[-1].ip)
        self.one.send("10.9.0.2", bytes(3000))
        self.medium.advance(0.1)
        self.assertEqual([len(each) for each in self.other.received()], [2024, 976])
        self.one.send("10.9.0.2", bytes(3000), DO_NOT_FRAGMENT)
        self.assertEqual(self.error(), ("0304", "000007fc", "10.9.0.2"))
        self.one.send(linkLocal, bytes(3000))
        self.medium.advance(0.1)
        self.assertEqual(self.error(), ("0200", "000007fc", linkLocal))

    def test_tooLongForGroup(self) -> None:
        """
        The same with groups; an error is made for IPv6 alone, from an address of the network.
        """
        self.other.machine.joinGroup(bytes((239, 1, 2, 3)))
        self.one.send("239.1.2.3", bytes(3000))
        self.medium.advance(0.1)
        self.assertEqual([len(each) for each in self.other.received()], [2024, 976])
        self.one.send("239.1.2.3", bytes(3000), DO_NOT_FRAGMENT)
        self.assertEqual((self.one.counters["fragmentation_needed"], self.one.delivered), (1, []))
        self.one.send("ff02::77", bytes(3000))
        self.assertEqual(self.error(), ("0200", "000007fc", "fe80::1"))


class MixedTests(SynchronousTestCase):
    """
    Interfaces with other modes and MTUs.
    """

    def test_modes(self) -> None:
        """
        A packet that is too long for the other end is reported with the MTU that it has.
        """
        for settings, mtu in (({"isConnected": False}, 2044), ({"mtu": 9000}, 9000), ({"mtu": 1500}, 2044)):
            medium = Medium()
            one = medium.node(1, "10.9.0.1/24")
            other = medium.node(2, "10.9.0.2/24", **settings)
            for size in (mtu - 20, mtu - 19):
                one.send("10.9.0.2", bytes(size), DO_NOT_FRAGMENT)
                medium.advance(0.1)
            self.assertEqual(other.received(), [bytes(mtu - 20)])
            (error,) = one.delivered
            self.assertEqual(error[20:22].hex(), "0304")
            self.assertEqual(int.from_bytes(error[24:28], "big"), mtu)


class PathTests(SynchronousTestCase):
    """
    Paths that take time, fail, and change.
    """

    def setUp(self) -> None:
        """
        Two nodes; paths and groups take a millisecond.
        """
        self.medium = Medium()
        self.medium.paths = {GID + 1, GID + 2}
        self.one = self.medium.node(1, "10.9.0.1/24", isConnected=False)
        self.other = self.medium.node(2, "10.9.0.2/24", isConnected=False)

    def resolved(self) -> int:
        """
        @return: how often paths were asked for since the last call.
        """
        count = [each[0] for each in self.one.calls].count("resolve")
        self.one.calls.clear()
        return count

    def test_notUp(self) -> None:
        """
        Before the broadcast group is joined, packets are counted.
        """
        self.one.send("10.9.0.2", b"1")
        self.assertEqual((self.one.mtu, self.one.counters), (0, {"not_up": 1}))
        self.medium.advance(0.1)
        self.assertEqual(self.one.mtu, 2044)

    def test_once(self) -> None:
        """
        A path is asked for once, though all the addresses of a port need it; packets wait for it.
        """
        self.medium.advance(0.1)
        self.one.send("10.9.0.2", b"1")
        self.one.send("10.9.0.2", b"2")
        self.one.send(str(self.other.machine.addresses[-1].ip), b"3")
        self.medium.advance(0.1)
        self.assertEqual(sorted(self.other.received()), [b"1", b"2", b"3"])
        self.assertEqual(self.resolved(), 1)

    def test_failedPath(self) -> None:
        """
        Packets to a port without a path are answered by ICMP; the path is asked for again after a while.
        """
        self.medium.advance(0.1)
        self.medium.paths = {GID + 1}
        self.other.send("10.9.0.1", b"asks")
        self.medium.advance(0.1)
        # The request of the other made it a neighbour, and the answer needed a path.
        self.assertEqual(self.resolved(), 1)
        self.one.send("10.9.0.2", b"1")
        self.assertEqual(self.one.counters["neighbour_failed"], 1)
        self.assertEqual(self.one.delivered[0][20:22].hex(), "0301")
        self.assertEqual(self.resolved(), 0)
        self.medium.paths = {GID + 1, GID + 2}
        self.medium.advance(limits.IPOIB_BACKOFF_LEAST)
        self.one.send("10.9.0.2", b"2")
        self.medium.advance(0.1)
        self.assertEqual(self.other.received(), [b"2"])

    def test_failedAtOnce(self) -> None:
        """
        C{resolve} may be answered before it returns.
        """
        self.medium.advance(0.1)
        self.other.send("10.9.0.1", b"asks")
        self.one.resolve = (  # type: ignore[method-assign]
            lambda gid: self.one.machine.pathFailed(gid, self.medium.now)
        )
        self.medium.advance(0.1)
        self.one.machine.lookup(bytes((10, 9, 0, 2)), self.medium.now)
        self.one.send("10.9.0.2", b"1")
        self.assertEqual(self.one.counters["neighbour_failed"], 1)
        self.assertEqual(self.one.answers, [(bytes((10, 9, 0, 2)),)])
        self.medium.advance(limits.IPOIB_BACKOFF_LEAST)
        self.one.machine.lookup(bytes((10, 9, 0, 2)), self.medium.now)
        self.assertEqual(self.one.answers, [(bytes((10, 9, 0, 2)),)] * 2)
        self.medium.advance(2 * limits.IPOIB_BACKOFF_LEAST)
        self.one.send("10.9.0.2", b"1")
        self.assertEqual(self.one.counters["neighbour_failed"], 2)

    def test_changed(self) -> None:
        """
        When the subnet has changed, paths are asked for again, and the ones that are known are used until
        there are others.
        """
        self.medium.advance(0.1)
        self.one.send("10.9.0.2", b"1")
        self.medium.advance(0.1)
        self.resolved()
        self.medium.paths = {GID + 1}
        self.one.machine.subnetChanged(self.medium.now)
        for seconds in (0.1, 1.0, 2.0, 4.0):
            self.medium.advance(seconds)
            self.one.send("10.9.0.2", b"%d" % seconds)
        self.medium.advance(0.1)
        self.assertEqual(self.other.received(), [b"1", b"0", b"1", b"2", b"4"])
        self.assertEqual(self.resolved(), 4)
        self.one.machine.pathResolved(GID + 2, "other", self.medium.now)
        self.one.send("10.9.0.2", b"1")
        self.assertEqual(self.one.calls[-1][:3], ("post", "other", 0x55))

    def test_changedMeanwhile(self) -> None:
        """
        A path that is being asked for when the subnet changes is asked for again when there is an answer.
        """
        asked: list[int] = []
        self.one.resolve = asked.append  # type: ignore[method-assign]
        self.medium.advance(0.1)
        self.one.send("10.9.0.2", b"1")
        self.medium.advance(0.1)
        self.one.machine.subnetChanged(self.medium.now)
        self.assertEqual(asked, [GID + 2])
        self.one.machine.pathFailed(GID + 2, self.medium.now)
        self.assertEqual(asked, [GID + 2] * 2)
        self.one.machine.subnetChanged(self.medium.now)
        self.one.machine.pathResolved(GID + 2, "old", self.medium.now)
        self.assertEqual(asked, [GID + 2] * 3)
        self.one.machine.pathResolved(GID + 2, "new", self.medium.now)
        self.one.send("10.9.0.2", b"2")
        self.assertEqual((len(asked), self.one.calls[-1][:3]), (3, ("post", "new", 0x55)))

    def test_changedUnseen(self) -> None:
        """
        A peer that answers only what all are asked may have another path, which no event has told.
        """
        self.medium.advance(0.1)
        self.one.send("10.9.0.2", b"1")
        self.medium.advance(0.1)
        self.one.machine.pathResolved(GID + 2, "old", self.medium.now)
        for _ in range(4):
            self.medium.advance(1.0)
            self.one.send("10.9.0.2", b"2")
        self.medium.advance(0.1)
        self.assertEqual(self.other.received()[-1], b"2")
        self.assertEqual(self.resolved(), 2)

    def test_restarted(self) -> None:
        """
        A peer that was restarted is at the same port: the path to it is known.
        """
        self.medium.advance(0.1)
        self.one.send("10.9.0.2", b"1")
        self.medium.advance(0.1)
        self.assertEqual(self.resolved(), 1)
        self.other.stop()
        other = self.medium.node(2, "10.9.0.2/24", qpn=0x56, isConnected=False)
        self.medium.advance(0.1)
        self.one.send("10.9.0.2", b"2")
        self.medium.advance(0.1)
        self.assertEqual(other.received(), [b"2"])
        self.assertEqual(self.resolved(), 0)
        self.assertEqual(len(self.one.machine._peers), 1)

    def test_late(self) -> None:
        """
        Answers about ports that are not known are ignored.
        """
        self.one.machine.pathResolved(GID + 9, "path", self.medium.now)
        self.one.machine.pathFailed(GID + 9, self.medium.now)
        self.assertEqual(len(self.one.machine._peers), 0)

    def test_bounds(self) -> None:
        """
        While a path is asked for, so many packets and so many requests wait; peers are no more than
        neighbours.
        """
        self.medium.advance(0.1)
        self.medium.paths = None
        self.one.resolve = lambda gid: None  # type: ignore[method-assign]
        self.other.send("10.9.0.1", b"1")
        self.medium.advance(5.0)
        for number in range(10):
            self.one.send("10.9.0.2", b"%d" % number)
        (port,) = self.one.machine._peers._ports.values()
        (peer,) = port.peers
        self.assertEqual(len(peer.waiting), 10)
        self.assertEqual(len(peer.requests), limits.IPOIB_WAITING)
        self.assertEqual(len(self.one.machine._peers), 1)


class LookupTests(SynchronousTestCase):
    """
    Resolution without a packet.
    """

    def setUp(self) -> None:
        """
        Two nodes; paths take a millisecond.
        """
        self.medium = Medium()
        self.medium.paths = {GID + 1, GID + 2}
        gateways = ((ip_network("172.16.0.0/12"), bytes((10, 9, 0, 2))),)
        self.one = self.medium.node(1, "10.9.0.1/24", gateways=gateways)
        self.other = self.medium.node(2, "10.9.0.2/24")
        self.medium.advance(0.1)

    def lookup(self, address: str, seconds: float = 0.1) -> list[tuple[object, ...]]:
        """
        @return: the answers without the address, which is right.
        """
        packed = ip_address(address).packed
        self.one.machine.lookup(packed, self.medium.now)
        self.medium.advance(seconds)
        answers, self.one.answers = self.one.answers, []
        self.assertEqual({each[0] for each in answers}, {packed})
        return [each[1:] for each in answers]

    def test_found(self) -> None:
        """
        A neighbour, one that is known already, and one behind a gateway.
        """
        found = [(self.other.machine.hardwareAddress, GID + 2)]
        self.assertEqual(self.lookup("10.9.0.2"), found)
        self.assertEqual(self.lookup("10.9.0.2", 0.0), found)
        self.medium.advance(10.0)
        self.assertEqual(self.lookup("10.9.0.2", 0.0), found)
        self.assertEqual(self.lookup("172.16.3.4"), found)
        self.assertEqual(self.lookup(str(self.other.machine.addresses[-1].ip)), found)
        self.assertEqual(self.lookup("10.9.0.1"), [(self.one.machine.hardwareAddress, None)])

    def test_notFound(self) -> None:
        """
        Nobody, no neighbour, and no path.
        """
        self.assertEqual(self.lookup("10.9.0.9", 0.1 + limits.IPOIB_RETRY_SECONDS * limits.IPOIB_TRIES), [()])
        for address in ("192.0.2.1", "10.9.0.255", "239.1.1.1", "2001:db8::1"):
            self.assertEqual(self.lookup(address, 0.0), [()])
        self.medium.paths = {GID + 1}
        self.assertEqual(self.lookup("10.9.0.2"), [()])
        self.assertEqual(self.lookup("10.9.0.2", 0.0), [()])

    def test_notUp(self) -> None:
        """
        Nobody is found before the interface is up.
        """
        three = self.medium.node(3, "10.9.0.3/24")
        three.machine.lookup(bytes((10, 9, 0, 2)), self.medium.now)
        self.assertEqual(three.answers, [(bytes((10, 9, 0, 2)),)])

    def test_bound(self) -> None:
        """
        So many addresses behind one neighbour are waited for.
        """
        addresses = [
            bytes((172, 16, number >> 8, number & 255)) for number in range(limits.IPOIB_LOOKUPS + 1)
        ]
        for each in addresses:
            self.one.machine.lookup(each, self.medium.now)
        self.assertEqual(self.one.answers, [(addresses[-1],)])

    def test_sameAddress(self) -> None:
        """
        One address is waited for once, whatever number of users ask for it.
        """
        for _ in range(limits.IPOIB_LOOKUPS + 1):
            self.one.machine.lookup(bytes((10, 9, 0, 2)), self.medium.now)
        self.medium.advance(0.1)
        found = (bytes((10, 9, 0, 2)), self.other.machine.hardwareAddress, GID + 2)
        self.assertEqual(self.one.answers, [found])


class LifeTests(SynchronousTestCase):
    """
    The interface over time.
    """

    def test_groups(self) -> None:
        """
        The broadcast group, all hosts, all nodes and the own solicited-node groups are joined.
        """
        medium = Medium()
        node = medium.node(1, "10.9.0.1/24", "2001:db8::5:6:7/64", pKey=0x8001)
        groups = [ip_address(each).packed for each in ("224.0.0.1", "ff02::1", "ff02::1:ff06:7")]
        groups.append(ip_address("ff02::1:ff00:2").packed)
        expected = {broadcastGID(0x8001)} | {multicastGID(each, 0x8001) for each in groups}
        self.assertEqual(node.groups, expected)

    def test_failed(self) -> None:
        """
        A broadcast group that is lost is joined again; meanwhile packets to neighbours are counted too.
        """
        medium, one, other = pair()
        one.send("10.9.0.2", b"1")
        medium.advance(0.1)
        one.machine.joinFailed(broadcastGID(0xFFFF), RuntimeError("lost"), medium.now)
        self.assertEqual(one.mtu, 0)
        one.send("10.9.0.2", b"2")
        one.machine.subnetChanged(medium.now)
        one.send("10.9.0.2", b"2")
        self.assertEqual(one.counters["not_up"], 2)
        medium.advance(limits.IPOIB_BACKOFF_LEAST)
        self.assertEqual(one.mtu, 65520)
        one.send("10.9.0.2", b"3")
        medium.advance(0.1)
        self.assertEqual(other.received(), [b"1", b"3"])

    def test_otherMTU(self) -> None:
        """
        Another MTU of the broadcast group is that of neighbours which are known.
        """
        medium, one, _ = pair(isConnected=False)
        one.send("10.9.0.2", bytes(2024), DO_NOT_FRAGMENT)
        medium.advance(0.1)
        mgid = broadcastGID(0xFFFF)
        one.machine.joined(mgid, Group(mgid, 0xC000, 1, 1024, path=mgid), medium.now)
        self.assertEqual(one.mtu, 1020)
        one.send("10.9.0.2", bytes(2024), DO_NOT_FRAGMENT)
        self.assertEqual(one.counters["fragmentation_needed"], 1)

    def test_closed(self) -> None:
        """
        Nothing is left: no groups, connections, neighbours or timers.
        """
        medium, one, other = pair()
        one.send("10.9.0.2", b"1")
        other.send("10.9.0.1", b"1")
        one.send("239.1.2.3", b"1")
        medium.advance(0.1)
        one.machine.lookup(bytes((10, 9, 0, 9)), medium.now)
        one.calls.clear()
        one.machine.close(medium.now)
        self.assertEqual({each[0] for each in one.calls}, {"disconnect", "leave"})
        self.assertEqual((one.groups, one.ends), (set(), {}))
        self.assertEqual(one.answers, [(bytes((10, 9, 0, 9)),)])
        self.assertIsNone(one.machine.deadline())
        self.assertEqual(len(one.machine._peers) + len(one.machine._connections), 0)
        self.assertEqual(one.machine._peers._ports, {})
        one.calls.clear()
        for address in ("10.9.0.2", "239.1.2.3", "10.9.0.255"):
            one.send(address, b"late")
        private = packPrivateData(0x55, 65524)
        self.assertIsNone(one.machine.connectionRequested("late", GID + 2, private, medium.now))
        self.assertEqual((one.calls, one.counters["not_up"]), ([], 3))
        self.assertIsNone(one.machine.deadline())

    def test_deadline(self) -> None:
        """
        The driver is told when the deadline becomes earlier than it knows, and only then.
        """
        medium, one, _ = pair()
        changes: list[float | None] = []
        timers = one.machine._timers
        timers.wanted = lambda: changes.append(timers.deadline())
        one.send("10.9.0.9", b"1")
        first = medium.now + limits.IPOIB_RETRY_SECONDS
        self.assertEqual(changes, [first])
        one.send("10.9.0.8", b"1")
        self.assertEqual(changes, [first])
        self.assertEqual(one.machine.deadline(), first)


class CostTests(SynchronousTestCase):
    """
    What one more packet costs.
    """

    def setUp(self) -> None:
        """
        Nodes that know each other, in both modes, and whose drivers do nothing.
        """
        self.nodes: list[tuple[Node, Medium]] = []
        for isConnected in (False, True):
            medium, one, other = pair(isConnected=isConnected)
            for _ in range(2):
                one.send("10.9.0.2", b"1")
                one.send(str(other.machine.addresses[-1].ip), b"1")
                medium.advance(0.1)
            machine = one.machine
            machine._post = _post
            machine._postConnected = _postConnected
            machine._deliver = _deliver
            self.nodes.append((one, medium))

    def acts(self) -> list[Callable[[], None]]:
        """
        @return: what sends and receives a packet, by IPv4 and IPv6, as datagrams and on connections.
        """
        acts: list[Callable[[], None]] = []
        for node, medium in self.nodes:
            machine, now = node.machine, medium.now
            for destination in ("10.9.0.2", "fe80::202:c903:0:3"):
                source = "10.9.0.1" if "." in destination else "fe80::202:c903:0:2"
                out, back = (
                    frameTo(*each, bytes(100)) for each in ((source, destination), (destination, source))
                )
                acts.append(lambda machine=machine, out=out, now=now: machine.send(out, now))
                acts.append(
                    lambda machine=machine, back=back, now=now: machine.datagramReceived(
                        GID + 2, back, 0, len(back), now
                    )
                )
        return acts

    def test_calls(self) -> None:
        """
        One of the machine, and one of the driver.
        """
        for act in self.acts():
            calls = called(act)
            del calls["<lambda>"]
            self.assertEqual(sum(calls.values()), 2, calls)

    def test_connectedCalls(self) -> None:
        """
        A packet that arrives on a connection costs one more.
        """
        medium, one, other = pair()
        one.send("10.9.0.2", b"1")
        medium.advance(0.1)
        one.send("10.9.0.2", b"1")
        medium.advance(0.1)
        (handle,) = other.machine._connections.incoming
        other.machine._deliver = _deliver
        frame = frameTo("10.9.0.1", "10.9.0.2", b"1")
        calls = called(lambda: other.machine.connectedReceived(handle, frame, 0, len(frame), medium.now))
        del calls["<lambda>"]
        self.assertEqual(calls, {"connectedReceived": 1, "datagramReceived": 1, "_deliver": 1})

    def test_objects(self) -> None:
        """
        Nothing is kept, and nothing that the collector would have to look at is made.
        """
        for act in self.acts():
            act()
            gc.collect()
            blocks, made = sys.getallocatedblocks(), gc.get_count()[0]
            for _ in range(100):
                act()
            self.assertLess(gc.get_count()[0] - made, 20)
            self.assertLess(sys.getallocatedblocks() - blocks, 20)


def _post(path: object, qpn: int, frame: bytes) -> None:
    pass


def _postConnected(handle: object, frame: bytes) -> bool:
    return True


def _deliver(buffer: bytes, start: int, stop: int) -> None:
    pass
