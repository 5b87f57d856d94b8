"""
Stories of two machines and more over a simulated medium.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from struct import pack
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.ipoib.medium import pair
from tests.ipoib.protocol.simulation import Run, damage
from tests.support.captures import TSHARK, tshark
from twisted_ib.ipoib.protocol.interfaces import COUNTERS
from twisted_ib.ipoib.protocol.wire import IPV4_HEADER, IPV6_HEADER


class DeliveryTests(SynchronousTestCase):
    """
    Packets between two nodes.
    """

    isConnected = False
    mtu = 2044

    def setUp(self) -> None:
        """
        Two nodes.
        """
        self.medium, self.one, self.other = pair(isConnected=self.isConnected)

    def test_sizes(self) -> None:
        """
        The shortest packet and the longest one arrive, by IPv4 and by IPv6 link-local.
        """
        self.assertEqual(self.one.mtu, self.mtu)
        linkLocal = str(self.other.machine.addresses[-1].ip)
        for address, header in (("10.9.0.2", 20), (linkLocal, 40)):
            for size in (0, 1, self.mtu - header):
                self.one.send(address, bytes(size), flags=0x4000)
                self.medium.advance(0.1)
                self.assertEqual(self.other.received(), [bytes(size)])
        self.assertEqual(self.one.delivered, [])

    def test_restarted(self) -> None:
        """
        A node that was restarted has another queue pair: packets reach it in less than three seconds, though
        its announcement is lost.
        """
        self.one.send("10.9.0.2", b"before")
        self.medium.advance(0.1)
        self.other.stop()
        self.medium.loss = 1.0
        other = self.medium.node(2, "10.9.0.2/24", qpn=0x56, isConnected=self.isConnected)
        self.medium.advance(0.1)
        self.medium.loss = 0.0
        for number in range(29):
            self.one.send("10.9.0.2", b"%d" % number)
            self.medium.advance(0.1)
        self.assertEqual(other.received()[-1:], [b"28"])


class ConnectedDeliveryTests(DeliveryTests):
    """
    The same in connected mode.
    """

    isConnected = True
    mtu = 65520


class SimulationTests(SynchronousTestCase):
    """
    Runs by seeds; C{tests.soak.test_packets} has more.
    """

    def test_runs(self) -> None:
        """
        Loss, repetition, overtaking, restarts and lost connections.
        """
        for seed in range(6):
            Run(seed).go()

    def test_damaged(self) -> None:
        """
        300 damaged frames: nothing is raised, and no table is larger than its bound.
        """
        node = damage(1, 300)
        self.assertLessEqual(set(node.counters), set(COUNTERS))
        self.assertGreater(len(node.counters), 6)


#: LINKTYPE_IPOIB (C{www.tcpdump.org/linktypes}): 40 octets, the second half of which is the receiver's
#: hardware address, and the frame.
LINK_TYPE = 242
#: What tshark shows of each frame.
FIELDS = ("_ws.malformed", "_ws.expert.severity", "arp.opcode", "icmp.type", "icmpv6.type")
CHECKSUMS = ("ip.checksum.status", "icmp.checksum.status", "icmpv6.checksum.status")


class WiresharkTests(SynchronousTestCase):
    """
    What another program reads of our frames.
    """

    @skipIf(TSHARK is None, "no tshark")
    def test_frames(self) -> None:
        """
        ARP, neighbour discovery, ICMP errors and fragments: nothing is malformed, all checksums are right.
        """
        medium, one, other = pair(isConnected=False)
        linkLocal = str(other.machine.addresses[-1].ip)
        for address in ("10.9.0.2", linkLocal, "10.9.0.9", "172.16.0.1", "2001:db8::1"):
            one.send(address, bytes(5000))
        medium.advance(10.0)
        frames = [each[-1] for node in (one, other) for each in node.calls if each[0].startswith("post")]
        frames += [(IPV4_HEADER if each[0] >> 4 == 4 else IPV6_HEADER) + each for each in one.delivered]
        path = Path(self.mktemp())
        with path.open("wb") as file:
            file.write(pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, LINK_TYPE))
            for frame in frames:
                file.write(pack("<IIII", 0, 0, 40 + len(frame), 40 + len(frame)) + bytes(40) + frame)
        rows = tshark(path, "frame", *FIELDS, *CHECKSUMS)
        self.assertEqual(len(rows), len(frames))
        seen: Counter[str] = Counter()
        for malformed, severity, *kinds, ip, icmp, icmpv6 in rows:
            self.assertEqual((malformed, severity), ("", ""))
            # 1: good. An error quotes a header, whose status follows.
            self.assertLessEqual({each for text in (ip, icmp, icmpv6) for each in text.split(",")}, {"", "1"})
            seen.update(f"{name} {kind}" for name, kind in zip(FIELDS[2:], kinds, strict=True) if kind)
        for kind in ("arp.opcode 1", "arp.opcode 2", "icmp.type 3", "icmpv6.type 135", "icmpv6.type 136"):
            self.assertGreater(seen[kind], 0, seen)
        for kind in ("icmpv6.type 1", "icmpv6.type 2"):
            self.assertGreater(seen[kind], 0, seen)
