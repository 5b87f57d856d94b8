"""
The ICRC of many packets of a flow, fast (IBTA vol. 1 annex A17; L{twisted_ib.hca.wire.icrc} is the plain
form).

All that precedes the BTH depends only on the flow, the length and, for IPv4, the identification, so the CRC
of it is cached.

A UDP socket does not show the identification of received packets. A CRC is linear: the difference between a
packet's ICRC and that computed with identification 0 reveals the identification, if any makes the packet
correct. 16 of the 32 bits still check the packet then.

A sender that uses a UDP socket itself, as this package does, has predictable identifications. A flow that
begins with those is held to them: then all 32 bits check its packets.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from twisted_ib import limits
from twisted_ib.hca.wire.headers import BTH, ICRC
from twisted_ib.hca.wire.icrc import crc32
from twisted_ib.hca.wire.opcodes import MTU_BYTES, OPCODES
from twisted_ib.hca.wire.rocev2 import PORT

__all__ = ["LONGEST_PACKET", "RIGHT", "ICRCState", "crc32", "identificationOf"]

#: The CRC of anything that ends with its own CRC, little endian as the ICRC is: the register then holds the
#: same, whatever preceded.
RIGHT: Final = 0x2144DF1C

#: The CRC of eight octets of ones, see L{twisted_ib.hca.wire.icrc}.
_START: Final = 0x2144DF1C
_IPV4: Final = Struct(">BBHHHBBH4s4sHHHH")
_IPV6: Final = Struct(">IHBB16s16sHHHH")
_UDP_BYTES: Final = 8
_IPV4_BYTES: Final = 20
_DO_NOT_FRAGMENT: Final = 0x4000
_PROTOCOL: Final = 17
#: Octets from the end of the identification to the BTH.
_BEHIND_IDENTIFICATION: Final = _IPV4_BYTES - 6 + _UDP_BYTES
# CRC-32 of Ethernet, bit-reflected: in a register the highest power of x is the lowest bit, and 1 is the
# highest.
_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 0x80000000
#: The longest packet, BTH to ICRC.
LONGEST_PACKET: Final = max(row.start for row in OPCODES.values()) + max(MTU_BYTES.values()) + ICRC.size
# A flow whose first _TRUST packets had the expected identification is held to it, until _DOUBT packets were
# correct with another one. An expected packet between those does not reset the count, since anybody can
# forge it.
_TRUST: Final = 2
_DOUBT: Final = 4
#: Segments of one UDP_SEGMENT call have identifications 0, 1, 2, ... below this.
_SEGMENTS: Final = 64

# The usual CRC table of single octets, derived from crc32 itself, and its inverse by the highest octet: no
# two entries share one, so a step can be undone.
_TABLE: Final = [crc32(bytes((octet,)), 0xFFFFFFFF) ^ 0xFFFFFFFF for octet in range(256)]
_BY_HIGHEST: Final = {value >> 24: octet for octet, value in enumerate(_TABLE)}


def _before(register: int, octets: int) -> int:
    """
    @param octets: how many zero octets were fed.
    @return: the register before that.
    """
    for _ in range(octets):
        octet = _BY_HIGHEST[register >> 24]
        register = (register ^ _TABLE[octet]) << 8 & 0xFFFFFFFF | octet
    return register


#: The ICRC takes the fifth octet of the BTH (FECN, BECN) as 0xFF, but it is 0 in nearly all packets. As a
#: CRC is linear, changing the register before the BTH has the same effect as changing that octet, and no
#: copy of the header is needed.
_MASK: Final = _before(0xFF, 4)


class ICRCState:
    """
    The ICRC state of one flow: source, destination and UDP source port.

    @ivar isIPv4: whether its packets have identifications.
    @ivar states: cache of L{state}: size << 16 | identification -> register.
    @ivar expected: packets that had the expected identification, while all had; far below 0 once the flow is
        not trusted.
    @ivar doubt: packets that were correct with another one since.
    @ivar most: limit of C{states}.
    @ivar key: what stands for the flow with whoever must not keep it itself: source, destination and port.
    """

    __slots__ = (
        "_port",
        "_registers",
        "_size",
        "_source",
        "_target",
        "doubt",
        "expected",
        "isIPv4",
        "key",
        "most",
        "states",
    )

    def __init__(
        self,
        source: bytes,
        target: bytes,
        port: int,
        most: int = limits.PACKET_SIZES,
        key: tuple[str, str, int] | None = None,
    ) -> None:
        """
        @param source: GID of the sender, 16 octets.
        @param target: GID of the receiver, 16 octets.
        @param port: the UDP source port.
        @param most: limit of C{states}.
        @param key: what stands for it.
        """
        self.most = most
        self.key = key
        self.isIPv4 = source[:12] == target[:12] == b"\0" * 10 + b"\xff\xff"
        self._source, self._target = (source[12:], target[12:]) if self.isIPv4 else (source, target)
        self._port = port
        self.states: dict[int, int] = {}
        self._size = 0
        self._registers: list[int] = []
        self.expected = self.doubt = 0

    def state(self, size: int, identification: int = 0) -> int:
        """
        @param size: octets from BTH to ICRC, both included.
        @param identification: of IPv4.
        @return: the CRC to continue from at the BTH, if its fifth octet is zero.
        """
        key = size << 16 | identification
        found = self.states.get(key)
        if found is None:
            # Cleared and not evicted one by one: a flow with so many sizes gains little by the cache, and a
            # peer chooses them.
            if len(self.states) >= self.most:
                self.states.clear()
            found = self.states[key] = self._state(size + _UDP_BYTES, identification)
        return found

    def registers(self, size: int, count: int) -> list[int]:
        """
        The same as L{state} for the packets of a batch, which have one size.

        @param count: of packets.
        @return: by identification, at least C{count} of them; not to be changed.
        """
        # Kept for the latest size only: bulk transfer has one.
        if size != self._size:
            self._size, self._registers = size, []
        registers = self._registers
        while len(registers) < count:
            registers.append(self._state(size + _UDP_BYTES, len(registers)))
        return registers

    def _state(self, length: int, identification: int) -> int:
        # All masked fields as ones: TOS or traffic class and flow label, TTL or hop limit, both checksums
        # (rxe_icrc.c).
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
        @param packet: from BTH to pad.
        @return: the same with its ICRC.
        """
        return packet + ICRC.pack(crc32(packet, self.state(len(packet) + ICRC.size)))

    def identification(self, packet: bytes) -> int:
        """
        @param packet: from BTH to ICRC.
        @return: the identification with which the packet is correct; 0 if there is none, or for IPv6.
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
        Check a datagram's ICRC.

        @param buffer: a memoryview of what holds it.
        @param stop: offset of the end of its ICRC.
        @param identification: the expected one.
        """
        end = stop - ICRC.size
        size = stop - start
        (told,) = ICRC.unpack_from(buffer, end)
        # The cached state stands for a zero octet here; with FECN or BECN set the header is copied and the
        # octet cleared.
        if not buffer[start + 4]:
            found = crc32(buffer[start:end], self.state(size, identification))
        else:
            head = bytearray(buffer[start : start + BTH.size])
            head[4] = 0
            found = crc32(buffer[start + BTH.size : end], crc32(head, self.state(size, identification)))
        if found == told:
            self.expected += 1
            return True
        if size > LONGEST_PACKET:
            return self.isIPv4 and self._isOfBatch(buffer[start:stop], identification)
        return self.isIPv4 and self._isOther(identificationOf(found ^ told, end - start), identification)

    def _isOfBatch(self, packet: bytes | memoryview, identification: int) -> bool:
        # One of a batch, as in _isOther: only ends with this package send packets of such lengths, few of
        # which fit into a batch, and tables for all lengths would take too much memory.
        # Wrong packets of many sizes do not fill the states.
        size = len(packet)
        return not packet[4] and any(
            each != identification and crc32(packet, register) == RIGHT
            for each, register in enumerate(self.registers(size, limits.PACKET_BURST_BYTES // size))
        )

    def _isOther(self, difference: int | None, identification: int) -> bool:
        if difference is None:
            return False
        # The identification is still one of a batch: segments were reordered or lost, or arrived one by one.
        if difference ^ identification < _SEGMENTS:
            return True
        if self.expected >= _TRUST:
            self.doubt += 1
            if self.doubt < _DOUBT:
                return False
        # The sender counts identifications, as rxe does (__ip_select_ident): any is accepted from now on.
        self.expected = -1 << 62
        return True


def identificationOf(difference: int, octets: int) -> int | None:
    """
    The identification that explains the difference between two CRCs.

    @param difference: XOR of the CRCs of two packets that differ in nothing else.
    @param octets: from the BTH to the end of what the CRC covers.
    @return: XOR of their identifications; L{None} if that alone cannot explain it.
    """
    found = 0
    for table in _undoing(octets):
        found ^= table[difference & 0xF]
        difference >>= 4
    # Two octets are fed into the lower half of the register: a correct packet leaves the upper half zero.
    return None if found >> 16 else (found & 0xFF) << 8 | found >> 8


@lru_cache(maxsize=LONGEST_PACKET // 4 + 1)  # All lengths, as the sender chooses them and each is costly.
def _undoing(octets: int) -> tuple[array[int], ...]:
    # Feeding zeros multiplies the register by a power of x; this divides by it. The product with each bit of
    # a register is put into eight tables, one per four bits.
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
    # Square and multiply: the power of 1/x**8 for so many octets.
    power, square = _ONE, _before(_ONE, 1)
    while octets:
        if octets & 1:
            power = _times(power, square)
        square = _times(square, square)
        octets >>= 1
    return power
