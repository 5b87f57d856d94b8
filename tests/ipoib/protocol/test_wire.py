"""
Tests of L{twisted_ib.ipoib.protocol.wire}.
"""

from __future__ import annotations

from ipaddress import IPv6Interface, ip_address
from pathlib import Path
from struct import unpack_from

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import WireError
from twisted_ib.ipoib.protocol.ip import checksum, packetLength, packIPv4
from twisted_ib.ipoib.protocol.wire import (
    ENCAPSULATION,
    ENCAPSULATION_BYTES,
    GROUP_QPN,
    RC_CAPABLE,
    ARPOperation,
    ARPPacket,
    EtherType,
    broadcastGID,
    findLinkLayerOption,
    linkLocalInterface,
    multicastGID,
    packHardwareAddress,
    packLinkLayerOption,
    packPrivateData,
    parseHardwareAddress,
    parsePrivateData,
    serviceID,
)

CAPTURE = Path(__file__).parent.parent.parent / "vectors/ipoib/tcpdump.pcap"
#: In front of each frame: 20 octets without a meaning, and the hardware address of the receiver.
PSEUDO_HEADER = 40

#: Of the capture.
HARDWARE = bytes.fromhex("8000004ffe800000000000000010e000014ad211")
PORT = 0xFE80000000000000_0010E000014AD211
REQUEST = bytes.fromhex(
    "0020080014040001"
    "8000004ffe800000000000000010e000014ad211c0a8380a"
    "00ffffffff10401b0000000000000000ffffffffc0a83818"
)


def frames() -> list[bytes]:
    """
    @return: the frames of the capture.
    """
    data = CAPTURE.read_bytes()
    found, at = [], 24
    while at < len(data):
        length = unpack_from(">I", data, at + 8)[0]
        found.append(data[at + 16 + PSEUDO_HEADER : at + 16 + length])
        at += 16 + length
    return found


class CaptureTests(SynchronousTestCase):
    """
    Frames of a Linux interface.
    """

    def repack(self, frame: bytes) -> bytes:
        """
        @return: a frame, made again from what is read of it.
        """
        etherType, reserved = ENCAPSULATION.unpack_from(frame)
        header = ENCAPSULATION.pack(etherType, reserved)
        if etherType == EtherType.ARP:
            return header + ARPPacket.parse(frame, ENCAPSULATION_BYTES, len(frame)).pack()
        length = packetLength(frame, ENCAPSULATION_BYTES, len(frame), 4)
        packet = frame[ENCAPSULATION_BYTES : ENCAPSULATION_BYTES + length]
        identification, flags = unpack_from(">HH", packet, 4)
        again = packIPv4(
            *(packet[12:16], packet[16:20], packet[9], length - 20, identification, flags, packet[8]),
            typeOfService=packet[1],
        )
        return header + again + packet[20:]

    def test_frames(self) -> None:
        """
        All are made again with the same octets.
        """
        self.assertEqual(len(frames()), 30)
        for frame in frames():
            self.assertEqual(self.repack(frame), frame)
            if frame[:2] == b"\x08\x00":
                self.assertEqual(checksum(frame[4:24]), 0)

    def test_receivers(self) -> None:
        """
        The hardware addresses in front of the frames are those that ARP tells.
        """
        data = CAPTURE.read_bytes()
        (reply,) = {frame[4:] for frame in frames() if frame[:2] == b"\x08\x06" and frame[11] == 2}
        packet = ARPPacket.parse(reply, 0, len(reply))
        self.assertEqual(data[24 + 16 + 20 : 24 + 16 + 40], packet.senderHardware)


class HardwareAddressTests(SynchronousTestCase):
    """
    Hardware addresses.
    """

    def test_octets(self) -> None:
        """
        Capabilities, queue pair, GID.
        """
        self.assertEqual(packHardwareAddress(RC_CAPABLE, 0x4F, PORT), HARDWARE)
        self.assertEqual(parseHardwareAddress(HARDWARE), (RC_CAPABLE, 0x4F, PORT))

    def test_broadcast(self) -> None:
        """
        The broadcast address of the default partition, as C{ipv4_bcast_addr} in Linux C{ipoib_main.c}.
        """
        self.assertEqual(
            packHardwareAddress(0, GROUP_QPN, broadcastGID(0xFFFF)).hex(),
            "00ffffffff12401bffff000000000000ffffffff",
        )

    def test_linkLocal(self) -> None:
        """
        The universal/local bit of the GUID is set.
        """
        self.assertEqual(linkLocalInterface(PORT), IPv6Interface("fe80::210:e000:14a:d211/64"))


class ARPTests(SynchronousTestCase):
    """
    ARP packets.
    """

    def test_octets(self) -> None:
        """
        A request of Linux, whose target hardware address is a template of the broadcast address.
        """
        packet = ARPPacket.parse(b"..." + REQUEST + b"padding", 3, 3 + len(REQUEST) + 7)
        self.assertEqual(
            packet,
            ARPPacket(
                ARPOperation.REQUEST,
                HARDWARE,
                bytes((192, 168, 56, 10)),
                bytes.fromhex("00ffffffff10401b0000000000000000ffffffff"),
                bytes((192, 168, 56, 24)),
            ),
        )
        self.assertEqual(packet.pack(), REQUEST)

    def test_cut(self) -> None:
        """
        A packet that is too short by any number of octets is refused.
        """
        for length in range(len(REQUEST)):
            self.assertRaises(WireError, ARPPacket.parse, REQUEST, 0, length)

    def test_kinds(self) -> None:
        """
        Hardware type 32, IPv4, and their lengths.
        """
        for at in range(6):
            for bit in range(8):
                wrong = bytearray(REQUEST)
                wrong[at] ^= 1 << bit
                self.assertRaises(WireError, ARPPacket.parse, wrong, 0, len(wrong))


class OptionTests(SynchronousTestCase):
    """
    Link-layer address options.
    """

    option = bytes.fromhex("01030000") + HARDWARE

    def test_octets(self) -> None:
        """
        Three units of eight octets, with two of padding.
        """
        self.assertEqual(packLinkLayerOption(1, HARDWARE), self.option)
        others = bytes.fromhex("0501000000000578")
        data = others + self.option
        self.assertEqual(findLinkLayerOption(data, 0, len(data), 1), HARDWARE)
        self.assertIsNone(findLinkLayerOption(data, 0, len(data), 2))
        self.assertIsNone(findLinkLayerOption(data, 0, 0, 1))

    def test_first(self) -> None:
        """
        The first of two counts.
        """
        data = self.option + packLinkLayerOption(1, bytes(20))
        self.assertEqual(findLinkLayerOption(data, 0, len(data), 1), HARDWARE)

    def test_wrong(self) -> None:
        """
        An option without a length or cut short, and an address of another length.
        """
        for wrong in ("0100", "01", "0103000000", "0101000000000000", "05000000000000000103"):
            data = bytes.fromhex(wrong)
            self.assertRaises(WireError, findLinkLayerOption, data, 0, len(data), 1)
        for length in range(1, len(self.option)):
            self.assertRaises(WireError, findLinkLayerOption, self.option, 0, length, 1)


class MulticastTests(SynchronousTestCase):
    """
    Multicast GIDs.
    """

    def check(self, group: str, pKey: int, mgid: str) -> None:
        """
        A group has an MGID.
        """
        number = multicastGID(ip_address(group).packed, pKey)
        self.assertEqual(number, int(ip_address(mgid)), ip_address(number))

    def test_ipv4(self) -> None:
        """
        The low 28 bits, and the P_Key of full members.
        """
        self.check("224.0.0.1", 0xFFFF, "ff12:401b:ffff::1")
        self.check("239.255.1.2", 0x0001, "ff12:401b:8001::fff:102")

    def test_ipv6(self) -> None:
        """
        The low 80 bits.
        """
        self.check("ff02::1", 0xFFFF, "ff12:601b:ffff::1")
        self.check("ff0e:1:2:3:4:5:6:7", 0x8002, "ff12:601b:8002:3:4:5:6:7")

    def test_broadcast(self) -> None:
        """
        All 32 bits.
        """
        self.assertEqual(broadcastGID(0x7FFF), int(ip_address("ff12:401b:ffff::ffff:ffff")))


class ConnectedTests(SynchronousTestCase):
    """
    Service ids and private data.
    """

    def test_service(self) -> None:
        """
        The queue pair in the low bits.
        """
        self.assertEqual(serviceID(0x55), 0x1000000000000055)

    def test_privateData(self) -> None:
        """
        The queue pair, whose upper octet is ignored, and the length with encapsulation; then zeros.
        """
        data = bytes.fromhex("000000550000fff4")
        self.assertEqual(packPrivateData(0x55, 65524), data)
        self.assertEqual(parsePrivateData(data + bytes(84)), (0x55, 65520))
        self.assertEqual(parsePrivateData(b"\x80" + data[1:]), (0x55, 65520))

    def test_bounds(self) -> None:
        """
        An MTU below 2044 is refused, one above 65532 is taken for that.
        """
        for size, mtu in ((2048, 2044), (65536, 65532), (65537, 65532), (0xFFFFFFFF, 65532)):
            self.assertEqual(parsePrivateData(packPrivateData(1, size)), (1, mtu))
        for size in (0, 3, 4, 2047):
            self.assertRaises(WireError, parsePrivateData, packPrivateData(1, size))
        for length in range(8):
            self.assertRaises(WireError, parsePrivateData, bytes.fromhex("000000550000fff4")[:length])
