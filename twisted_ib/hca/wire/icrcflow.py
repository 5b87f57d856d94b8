"""
The invariant CRC of many packets, fast (IBTA vol. 1 annex A17; L{twisted_ib.hca.wire.icrc} says it
once).

What a packet has in front of its base transport header depends on its flow, its length and, of IPv4,
its identification only: the CRC of that is remembered.

A UDP socket does not show the identification of what it receives.  As a CRC is linear, the difference
between the CRC of a packet and that of the same packet with identification 0 says which it has, if
there is one with which the packet is right: 16 of the 32 bits still check the packet.

Who sends through such a socket too, as fabrics of packets do, has identifications that are known
beforehand.  A flow that begins with those is taken to be of that kind: then all 32 bits check a packet.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from twisted_ib import limits
from twisted_ib.hca.wire.headers import BTH, ICRC
from twisted_ib.hca.wire.opcodes import MTU_BYTES, OPCODES
from twisted_ib.hca.wire.rocev2 import PORT

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["LONGEST_PACKET", "ICRCState", "crc32", "identificationOf"]

#: The CRC of eight octets of ones.
_START: Final = 0x2144DF1C
_IPV4: Final = Struct(">BBHHHBBH4s4sHHHH")
_IPV6: Final = Struct(">IHBB16s16sHHHH")
_UDP_BYTES: Final = 8
_IPV4_BYTES: Final = 20
_DO_NOT_FRAGMENT: Final = 0x4000
_PROTOCOL: Final = 17
#: From the end of the identification to the base transport header.
_BEHIND_IDENTIFICATION: Final = _IPV4_BYTES - 6 + _UDP_BYTES
_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 0x80000000
_OCTETS: Final = 0xFFFF
#: Octets from the base transport header to the invariant CRC.
LONGEST_PACKET: Final = max(row.start for row in OPCODES.values()) + max(MTU_BYTES.values()) + ICRC.size
#: So many packets in a row as expected, from the first on, and no other one is believed; unless so many
#: come that are right otherwise, whatever comes between them: anybody can forge that.
_TRUST: Final = 2
_DOUBT: Final = 4
#: Segments of one call have identifications below this.
_SEGMENTS: Final = 64

#: Of the polynomial: what a step by one octet adds, and which one has which highest octet.
_TABLE: Final = [crc32(bytes((octet,)), 0xFFFFFFFF) ^ 0xFFFFFFFF for octet in range(256)]
_BY_HIGHEST: Final = {value >> 24: octet for octet, value in enumerate(_TABLE)}


def _before(register: int, octets: int) -> int:
    """
    @param octets: how many of zeros were fed.
    @return: What the register was before that.
    """
    for _ in range(octets):
        octet = _BY_HIGHEST[register >> 24]
        register = (register ^ _TABLE[octet]) << 8 & 0xFFFFFFFF | octet
    return register


#: What the octet of congestion bits, the fifth, is masked by: it is zero in nearly all packets, and
#: then the register may as well differ before the header begins.
_MASK: Final = _before(0xFF, 4)


class ICRCState:
    """
    Where packets come from and go to.

    @ivar isIPv4: Whether its packets have identifications.
    @ivar states: By size << 16 | identification, what L{state} has given.
    @ivar expected: Packets that had the identification expected, as long as all had.
    @ivar doubt: The others since.
    @ivar most: How many C{states} are remembered.
    """

    __slots__ = ("_port", "_source", "_target", "doubt", "expected", "isIPv4", "most", "states")

    def __init__(self, source: bytes, target: bytes, port: int, most: int = limits.PACKET_SIZES) -> None:
        """
        @param source: The GID that sends.
        @param target: The GID that receives.
        @param port: The UDP source port.
        @param most: How many C{states} are remembered.
        """
        self.most = most
        self.isIPv4 = source[:12] == target[:12] == b"\0" * 10 + b"\xff\xff"
        self._source, self._target = (source[12:], target[12:]) if self.isIPv4 else (source, target)
        self._port = port
        self.states: dict[int, int] = {}
        self.expected = self.doubt = 0

    def state(self, size: int, identification: int = 0) -> int:
        """
        @param size: Octets of the datagram, from its base transport header to its invariant CRC.
        @return: What the CRC of the rest goes on from, where the octet of congestion bits is zero.
        """
        key = size << 16 | identification
        found = self.states.get(key)
        if found is None:
            if len(self.states) >= self.most:
                self.states.clear()
            found = self.states[key] = self._state(size + _UDP_BYTES, identification)
        return found

    def _state(self, length: int, identification: int) -> int:
        """
        @param length: As UDP has it.
        """
        udp = self._port, PORT, length, 0xFFFF
        if self.isIPv4:
            head = _IPV4.pack(
                *(0x45, 0xFF, length + _IPV4_BYTES, identification, _DO_NOT_FRAGMENT),
                *(0xFF, _PROTOCOL, 0xFFFF, self._source, self._target, *udp),
            )
        else:
            head = _IPV6.pack(0x6FFFFFFF, length, _PROTOCOL, 0xFF, self._source, self._target, *udp)
        return int(crc32(head, _START)) ^ _MASK

    def sign(self, packet: bytes) -> bytes:
        """
        @param packet: From its base transport header to its pad.
        @return: The same with its invariant CRC.
        """
        return packet + ICRC.pack(crc32(packet, self.state(len(packet) + ICRC.size)))

    def identification(self, packet: bytes) -> int:
        """
        @param packet: From its base transport header to its invariant CRC.
        @return: The identification that it is right with; 0 if it has none, or is right with none.
        """
        end = len(packet) - ICRC.size
        if not self.isIPv4 or end < BTH.size:
            return 0
        head = bytearray(packet[: BTH.size])
        head[4] = 0
        found = crc32(packet[BTH.size : end], crc32(head, self.state(len(packet))))
        return identificationOf(found ^ ICRC.unpack_from(packet, end)[0], end) or 0

    def isRight(self, buffer: Any, start: int, stop: int, identification: int = 0) -> bool:
        """
        Check a datagram.

        @param buffer: A memoryview of what holds it.
        @param stop: Offset after its invariant CRC.
        @param identification: What it may well have.
        """
        end = stop - ICRC.size
        size = stop - start
        (told,) = ICRC.unpack_from(buffer, end)
        if not buffer[start + 4]:
            found = crc32(buffer[start:end], self.state(size, identification))
        else:
            head = bytearray(buffer[start : start + BTH.size])
            head[4] = 0
            found = crc32(buffer[start + BTH.size : end], crc32(head, self.state(size, identification)))
        if found == told:
            self.expected += 1
            return True
        return self.isIPv4 and self._isOther(identificationOf(found ^ told, end - start), identification)

    def _isOther(self, difference: int | None, identification: int) -> bool:
        """
        A packet has not the identification that it may well have.

        @param difference: Between the two, if there is one with which it is right.
        @return: Whether it is believed.
        """
        if difference is None:
            return False
        if difference ^ identification < _SEGMENTS:
            return True
        if self.expected >= _TRUST:
            self.doubt += 1
            if self.doubt < _DOUBT:
                return False
        # Somebody who counts: from now on any will do.
        self.expected = -1 << 62
        return True


def identificationOf(difference: int, octets: int) -> int | None:
    """
    Which identification makes a difference between two CRCs.

    @param difference: Between the CRCs of two packets that differ in nothing else.
    @param octets: From the base transport header to what the CRC ends with.
    @return: In what their identifications differ, L{None} if it cannot be by that alone.
    """
    found = 0
    for table in _undoing(octets):
        found ^= table[difference & 0xF]
        difference >>= 4
    # The two octets are fed into the lower half of the register.
    return None if found >> 16 else (found & 0xFF) << 8 | found >> 8


@lru_cache(maxsize=LONGEST_PACKET // 4 + 1)  # All lengths: whoever sends them chooses, and it is work.
def _undoing(octets: int) -> tuple[array[int], ...]:
    """
    What undoes the steps from the identification on: for each four bits of a register, from the lowest
    on, by their value.
    """
    power = _power(octets + _BEHIND_IDENTIFICATION + 2)
    images, image = [], power
    for _ in range(32):  # Of the highest bit first: one, x, x squared.
        images.append(image)
        image = image >> 1 ^ (_POLYNOMIAL if image & 1 else 0)
    images.reverse()
    tables = []
    for first in range(0, 32, 4):
        values = [0]
        for bit in range(4):
            values += [value ^ images[first + bit] for value in values]
        tables.append(array("I", values))
    return tuple(tables)


def _times(one: int, other: int) -> int:
    product = 0
    while other:
        if other & _ONE:
            product ^= one
        other = other << 1 & 0xFFFFFFFF
        one = one >> 1 ^ (_POLYNOMIAL if one & 1 else 0)
    return product


def _power(octets: int) -> int:
    """
    @return: What a register is multiplied by to undo steps by zeros.
    """
    power, square = _ONE, _before(_ONE, 1)
    while octets:
        if octets & 1:
            power = _times(power, square)
        square = _times(square, square)
        octets >>= 1
    return power
