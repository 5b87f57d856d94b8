"""
Packets that Linux's rxe has sent (6.1), from the IP header on; and what a packet's headers say.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import asdict, frozen

from twisted_ib.errors import InvariantCRCError
from twisted_ib.hca.mad.attributes.layouts import Attribute, bits
from twisted_ib.hca.wire.headers import ICRC
from twisted_ib.hca.wire.icrc import icrc
from twisted_ib.hca.wire.opcodes import Opcode
from twisted_ib.hca.wire.rocev2 import Octets, UDPDatagram, udpOf

#: rxe-rping, packet 3.
REQ = bytes.fromhex(
    "450001345fb540004011c5650a4d00020a4d0003d87212b7012000006400ffff0000000180000000"
    "8001000000000001010702030000000000000002d12dce2f00100000000000002fce2dd100000000"
    "0000000001061c06505400fffe77000200000000000000000000110100000001000000a04694baa7"
    "ffff37f0ffffffff00000000000000000000ffff0a4d000200000000000000000000ffff0a4d0003"
    "2f656000004000980000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000409bb00000000000000000000000000a4d00020000000000000000"
    "000000000a4d00030000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000097bca90e"
)

#: rxe-rping, packet 6.
SEND = bytes.fromhex(
    "4500003c5fbc40004011c6560a4d00020a4d0003f65d12b7002800000400ffff0000001180e1a6df"
    "00005583674c39e00000057e00000040114428c4"
)

#: rxe-rping, packet 7.
ACKNOWLEDGE = bytes.fromhex(
    "450000301f174000401107080a4d00030a4d0002f65d12b7001c00001100ffff0000001100e1a6df1f000001179faa6e"
)

#: rxe-rping, packet 8.
READ = bytes.fromhex(
    "4500003c1f184000401106fb0a4d00030a4d0002f65d12b7002800000c00ffff00000011804694ba"
    "00005583674c39e00000057e00000040d58a0b15"
)

#: rxe-rping, packet 9.
READ_RESPONSE = bytes.fromhex(
    "450000705fbd40004011c6210a4d00020a4d0003f65d12b7005c00001000ffff00000011004694ba"
    "1f00000172646d612d70696e672d303a204142434445464748494a4b4c4d4e4f5051525354555657"
    "58595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172006ae447bd"
)

#: rxe-rping, packet 14.
WRITE = bytes.fromhex(
    "4500007c1f1b4000401106b80a4d00030a4d0002f65d12b7006800000a00ffff00000011804694bc"
    "00005583674bfe80000004e00000004072646d612d70696e672d303a204142434445464748494a4b"
    "4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f70717200"
    "88362211"
)

#: rxe-atomic-fadd, packet 25.
FETCH_ADD = bytes.fromhex(
    "45000048772040004011aee60a4d00020a4d0003c2f412b7003400001400ffff0000001b8045952a"
    "0000562c52ab30000000114c00000000000000010000000000000000fb0f1aca"
)

#: rxe-atomic-fadd, packet 26.
ATOMIC_ACKNOWLEDGE = bytes.fromhex(
    "4500003834e840004011f12e0a4d00030a4d0002c2f412b7002400001200ffff0000001c0045952a"
    "1f0000010daf89d355d012d3be740198"
)

#: rxe-rping-ipv6, packet 8.
IPV6_SEND = bytes.fromhex(
    "6000000000281140fd770000000000000000000000000002fd770000000000000000000000000003"
    "c26f12b7002800000400ffff00000013803e886a000055ede63e6b1000000da20000004083219b6f"
)

#: rxe-rping-ipv6, packet 10.
IPV6_READ = bytes.fromhex(
    "6000000000281140fd770000000000000000000000000003fd770000000000000000000000000002"
    "c26f12b7002800000c00ffff0000001380d342d1000055ede63e6b1000000da2000000407d9b3d6a"
)

#: rxe-udaddy, packet 3.
DATAGRAM_IMMEDIATE = bytes.fromhex(
    "45000100795240004011abfc0a4d00020a4d0003dd5f12b700ec00006500ffff0000001d00000000"
    "012345670000001e0000001e00000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "000000000000000000000000005120b3"
)

#: rxe-nvme, packet 14.
SEND_INVALIDATE = bytes.fromhex(
    "45000040731140004011b2fd0a4d00030a4d0002e45812b7002c00001700ffff0000001180d18727"
    "000003ef01000000000000000100000000000000d7f0aac0"
)

#: rxe-rstream, packet 4.
WRITE_IMMEDIATE = bytes.fromhex(
    "4500005081b140004011a44d0a4d00020a4d0003df3912b7003c00000b00ffff00000020803494f6"
    "00007f4c9c0030100000176d00000010800001800040befc367f0000c21f000000000800d9de1980"
)

#: rxe-uc-pingpong, packet 14.
UC_LAST = bytes.fromhex(
    "450003e46d7840004011b4f20a4d00020a4d0003c1ce12b703d000002200ffff0000001500586f4c"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b"
    "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7bd5a86311"
)

#: rxe-atomic-cas, packet 23.
COMPARE_SWAP = bytes.fromhex(
    "4500004877eb40004011ae1b0a4d00020a4d0003c32c12b7003400001300ffff0000001c80bd86fb"
    "000055a908670000000012620000000000000000000000000000000098ec0f43"
)


@frozen
class _IPv4(Attribute):
    """
    RFC 791 section 3.1, without options.
    """

    OCTETS: ClassVar[int] = 20

    trafficClass: int = bits(1, 8)
    identification: int = bits(4, 16)
    hopLimit: int = bits(8, 8)
    source: int = bits(12, 32)
    destination: int = bits(16, 32)


@frozen
class _IPv6(Attribute):
    """
    RFC 8200 section 3.
    """

    OCTETS: ClassVar[int] = 40

    trafficClass: int = bits(0, 8, 3)
    flowLabel: int = bits(1, 20, 3)
    hopLimit: int = bits(7, 8)
    source: int = bits(8, 128)
    destination: int = bits(24, 128)


@frozen
class _UDP(Attribute):
    """
    RFC 768.
    """

    OCTETS: ClassVar[int] = 8

    port: int = bits(0, 16)
    checksum: int = bits(6, 16)


def parseDatagram(buffer: Octets, start: int, stop: int) -> UDPDatagram:
    """
    Parse a RoCEv2 packet and check its ICRC; Ethernet padding behind it is ignored.

    @raise WireError: it is not RoCEv2, or is corrupt.
    """
    udp, end = udpOf(buffer, start, stop)
    end -= ICRC.size
    if ICRC.unpack_from(buffer, end)[0] != icrc(buffer, start, end):
        raise InvariantCRCError("a packet's invariant CRC is wrong")
    four = udp - start == _IPv4.OCTETS
    octets, body = bytes(buffer[start:udp]), udp + _UDP.OCTETS
    fields = asdict(_IPv4.parse(octets) if four else _IPv6.parse(octets))
    for name in ("source", "destination"):
        # RFC 4291 section 2.5.5.2: IPv4-mapped addresses.
        fields[name] |= 0xFFFF << 32 if four else 0
    return UDPDatagram(body=buffer[body:end], **asdict(_UDP.parse(bytes(buffer[udp:body]))), **fields)


def fits(row: Opcode, length: int, mtu: int) -> bool:
    """
    @param length: of a payload, in bytes, without pad.
    @param mtu: the path MTU in bytes.
    @return: whether a packet may have it.
    """
    # Linux rxe_resp.c rxe_resp_check_length: First and Middle packets carry exactly the path MTU, Last ones 1
    # to that.
    least = mtu if row.least is None else row.least
    return least <= length <= (mtu if row.most is None else row.most)
