"""
What stands before the payload of a datagram: the global route header and the datagram
extended transport header.

A record of an unreliable datagram is a GRH, a DETH, the immediate if it has one, and the
payload.  On a wire a base transport header lies between the two and an invariant CRC behind
the payload; the GRH counts them in its length, so that a program which looks at the 40 bytes
in front of what it receives finds what it would find there.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from attrs import frozen

from twisted_ib.errors import WireError
from twisted_ib.hca.wire import headers

#: GRH: version, traffic class and flow label; length; next header; hop limit; source and
#: destination, upper and lower halves (IBTA vol. 1 8.3).
_GRH: Final = Struct(">IHBB4Q")

GRH_BYTES: Final = _GRH.size
DETH_BYTES: Final = headers.DETH.size
#: Both, which every datagram has.
HEADER_BYTES: Final = GRH_BYTES + DETH_BYTES

_VERSION: Final = 6
#: What follows is a base transport header; of RoCEv2 a UDP header, and then one.
_BTH: Final = 0x1B
_UDP: Final = 17
_UDP_BYTES: Final = 8
#: IPv4 in the second half: version and header length, total length, protocol, source, destination.
_IPV4: Final = Struct(">20xBxH5xB2xII")
_IPV4_BYTES: Final = 20
_IPV4_VERSION: Final = 0x45
#: A BTH (12 bytes) and an ICRC (4), which the length counts though no record has them.
_UNSEEN: Final = headers.BTH.size + headers.ICRC.size
_LOW: Final = (1 << 64) - 1

#: The subnet prefix of GIDs that are made of a GUID (IBTA vol. 1 4.1.1).
LINK_LOCAL: Final = 0xFE80 << 112
#: The prefix C{::ffff:0.0.0.0/96} of GIDs that are IPv4 addresses.
IPV4_MAPPED: Final = 0xFFFF << 32
_IPV4_GROUPS: Final = 0xFFFFE


def guidGID(guid: int) -> int:
    """
    @return: The GID that an HCA has by its GUID.
    """
    return LINK_LOCAL | guid


def isMulticast(gid: int) -> bool:
    """
    @return: Whether a GID is the address of a group (IBTA vol. 1 4.1.1), perhaps of an IPv4 group as
        C{::ffff:224.0.0.0/100} (annex A17).
    """
    return gid >> 120 == 0xFF or gid >> 28 == _IPV4_GROUPS


@frozen
class GRH:
    """
    A global route header, 40 bytes.

    @ivar trafficClass: 8 bits, as in IPv6.
    @ivar flowLabel: 20 bits.
    @ivar payload: bytes that follow in a packet, up to and with the ICRC.
    @ivar hopLimit: how many routers may pass it on.
    @ivar source: GID of the sender.
    @ivar destination: GID of the receiver, or of a group.
    """

    trafficClass: int
    flowLabel: int
    payload: int
    hopLimit: int
    source: int
    destination: int

    def pack(self) -> bytes:
        """
        @return: 40 bytes.
        @raise WireError: a field does not fit.
        """
        for name, bits in _BITS:
            if getattr(self, name) >> bits:
                raise WireError(f"a GRH has no {name} {getattr(self, name):#x}")
        source, destination = self.source, self.destination
        return _GRH.pack(
            _VERSION << 28 | self.trafficClass << 20 | self.flowLabel,
            self.payload,
            _BTH,
            self.hopLimit,
            source >> 64,
            source & _LOW,
            destination >> 64,
            destination & _LOW,
        )

    @classmethod
    def parse(cls, buffer: bytes | bytearray | memoryview, start: int, stop: int) -> GRH:
        """
        Read one.

        @raise WireError: there is none, or it is of another version or before something
            else than a BTH.
        """
        if stop - start < GRH_BYTES:
            raise WireError(f"a GRH has {GRH_BYTES} bytes, not {stop - start}")
        first, payload, following, hopLimit, *halves = _GRH.unpack_from(buffer, start)
        if first >> 28 != _VERSION or following != _BTH:
            raise WireError(f"no GRH before a BTH: version {first >> 28}, next header {following:#x}")
        return cls(
            first >> 20 & 0xFF,
            first & 0xFFFFF,
            payload,
            hopLimit,
            halves[0] << 64 | halves[1],
            halves[2] << 64 | halves[3],
        )


_BITS: Final = (
    ("trafficClass", 8),
    ("flowLabel", 20),
    ("payload", 16),
    ("hopLimit", 8),
    ("source", 128),
    ("destination", 128),
)


@frozen
class DETH:
    """
    A datagram extended transport header, 8 bytes.

    @ivar key: the Q_Key.
    @ivar source: the sender's queue pair number.
    """

    key: int
    source: int

    def pack(self) -> bytes:
        """
        @return: 8 bytes.
        @raise WireError: a field does not fit.
        """
        if self.key >> 32 or self.source >> 24:
            raise WireError(f"a DETH has no Q_Key {self.key:#x} or source {self.source:#x}")
        return headers.DETH.pack(self.key, self.source)

    @classmethod
    def parse(cls, buffer: bytes | bytearray | memoryview, start: int, stop: int) -> DETH:
        """
        Read one; the reserved octet is ignored (IBTA vol. 1 9.3.3).

        @raise WireError: there is none.
        """
        if stop - start < DETH_BYTES:
            raise WireError(f"a DETH has {DETH_BYTES} bytes, not {stop - start}")
        key, source = headers.DETH.unpack_from(buffer, start)
        return cls(key, source & headers.QPN_MASK)


def ends(head: bytes, behind: int) -> tuple[int, int]:
    """
    Who sent a datagram, and to whom, by the 40 bytes before it: a GRH; or of a RoCEv2 packet the IPv6
    header, or 20 zero bytes and the IPv4 header (annex A17).

    @param head: these bytes at least.
    @param behind: bytes behind the DETH, an immediate included.
    @return: the GIDs of the sender and of the receiver.
    @raise WireError: there is no such header, or its length is another.
    """
    if len(head) < GRH_BYTES:
        raise WireError(f"a GRH has {GRH_BYTES} bytes, not {len(head)}")
    if head[0] >> 4 == _VERSION:
        _, payload, following, _, *halves = _GRH.unpack_from(head)
        expected = length(behind) + (_UDP_BYTES if following == _UDP else 0)
        if following in (_BTH, _UDP) and payload == expected:
            return halves[0] << 64 | halves[1], halves[2] << 64 | halves[3]
    elif not any(head[:_IPV4_BYTES]):
        version, total, protocol, source, destination = _IPV4.unpack_from(head)
        expected = _IPV4_BYTES + _UDP_BYTES + length(behind)
        if (version, total, protocol) == (_IPV4_VERSION, expected, _UDP):
            return IPV4_MAPPED | source, IPV4_MAPPED | destination
    raise WireError(f"no header of {behind} bytes in {head[:GRH_BYTES].hex()}")


def destination(head: bytes) -> int:
    """
    @param head: the 40 bytes before a datagram, as of L{ends}.
    @return: whom it is for, if it is well-formed.
    """
    if head[0] >> 4 == _VERSION:
        return int.from_bytes(head[24:GRH_BYTES], "big")
    return IPV4_MAPPED | int.from_bytes(head[36:GRH_BYTES], "big")


def length(behind: int) -> int:
    """
    What a GRH gives as its length.

    @param behind: bytes behind the DETH, an immediate included.

    @return: the same with BTH, DETH, pad and ICRC.
    """
    return _UNSEEN + DETH_BYTES + (behind + 3 & ~3)
