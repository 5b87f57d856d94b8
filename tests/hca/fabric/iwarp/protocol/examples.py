"""
FPDUs literally, as tshark and Linux siw understand them: CRC on and no markers, unless said; and their
headers as values, by the tables of RFC 5040 and RFC 5041.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from twisted_ib.hca.mad.attributes.layouts import Attribute, bits

SINK = "00010203 0000000000001000"
SOURCE = "aabbcc01 00007f0000001000"
ONES = "ff" * 8

#: Name -> hexadecimal octets of the FPDU, from its length to its CRC.
EXAMPLES = {
    "RTR write, no CRC": "000e c140 00000001 0000000000000000 00000000",
    "RTR write": "000e c140 00000001 0000000000000000 ebd34c5f",
    "Send hi!": "0015 4143 00000000 00000000 00000001 00000000 686921 00 46b1498b",
    "Send hey, no CRC": "0015 4143 00000000 00000000 00000001 00000000 686579 00 00000000",
    "Send abcd": "0016 4143 00000000 00000000 00000002 00000000 61626364 5868e28b",
    "Send empty": "0012 4143 00000000 00000000 00000003 00000000 00a4cab4",
    "SendInv": "0016 4144 11223344 00000000 00000004 00000000 61626364 39629f0a",
    "SendSE": "0016 4145 00000000 00000000 00000005 00000000 61626364 2caabf62",
    "SendSEInv": "0016 4146 11223344 00000000 00000006 00000000 61626364 82431afd",
    "Write data": f"0012 c140 {SOURCE} 64617461 46b4daf5",
    "Read Request": f"002e 4141 00000000 00000001 00000001 00000000 {SINK} 00000004 {SOURCE} 13f8e43d",
    "Read Response": f"0012 c142 {SINK} 64617461 f6845cb6",
    "Send of two, first": "001a 0143 00000000 00000000 00000007 00000000 4142434445464748 36f36860",
    "Send of two, last": "0016 4143 00000000 00000000 00000007 00000008 494a4b4c a533fbd4",
    "Immediate": "001a 4148 00000000 00000000 00000008 00000000 0001020304050607 00ec227a",
    "FetchAdd": f"0046 414a 00000000 00000001 00000002 00000000 00000000 00000077 {SOURCE}"
    f" 0000000000000005 {'00' * 24} 51eb7bca",
    "Atomic Response": "001e 414b 00000000 00000003 00000001 00000000 00000077 0000000000000029 556671a6",
    "CmpSwap": f"0046 414a 00000000 00000001 00000003 00000000 00000002 00000078 {SOURCE}"
    f" 0000000000000009 {ONES} 000000000000002e {ONES} 3521c81e",
    "Terminate tagged": "0026 4147 00000000 00000002 00000001 00000000 1100 c000 0012"
    " c140dead00010000000000000010 617e160a",
    "Terminate MPA, no CRC": "0016 4147 00000000 00000002 00000001 00000000 2002 0000 00000000",
}


def fpdu(name: str) -> bytes:
    """
    @return: an example's octets.
    """
    return bytes.fromhex(EXAMPLES[name])


def ulpdu(name: str) -> bytes:
    """
    @return: the same without length, PAD and CRC.
    """
    octets = fpdu(name)
    return octets[2 : 2 + int.from_bytes(octets[:2], "big")]


@frozen
class TaggedHeader(Attribute):
    """
    Of an RDMA Write or a Read Response (RFC 5041 section 4.2).
    """

    OCTETS: ClassVar[int] = 14

    opcode: int = bits(1, 4, 3)
    isLast: int = bits(0, 1, 6)
    stag: int = bits(2, 32)
    offset: int = bits(6, 64)
    isTagged: int = bits(0, 1, default=1)
    ddpVersion: int = bits(0, 2, 1, default=1)
    rdmapVersion: int = bits(1, 2, default=1)


@frozen
class UntaggedHeader(Attribute):
    """
    Of a Send, a Read Request or a Terminate (RFC 5041 section 4.3).
    """

    OCTETS: ClassVar[int] = 18

    opcode: int = bits(1, 4, 3)
    isLast: int = bits(0, 1, 6)
    invalidate: int = bits(2, 32)
    queue: int = bits(6, 32)
    sequence: int = bits(10, 32)
    offset: int = bits(14, 32)
    isTagged: int = bits(0, 1)
    ddpVersion: int = bits(0, 2, 1, default=1)
    rdmapVersion: int = bits(1, 2, default=1)


@frozen
class ReadRequestHeader(Attribute):
    """
    Of a Read Request, behind its L{UntaggedHeader} (RFC 5040 section 4.4).
    """

    OCTETS: ClassVar[int] = 28

    sinkSTag: int = bits(0, 32)
    sinkOffset: int = bits(4, 64)
    size: int = bits(12, 32)
    sourceSTag: int = bits(16, 32)
    sourceOffset: int = bits(20, 64)
