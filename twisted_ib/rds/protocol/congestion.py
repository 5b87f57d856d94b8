"""
Congestion maps: which ports of an address accept no more data, one bit for each of 65536.

TCP's window belongs to one connection; an RDS connection serves all sockets of two addresses, so one slow
socket must not stop it.  Its port is marked congested instead, and the whole map is sent to every peer,
which holds back the messages for that port and no others.  Messages already on their way are still
accepted.

Source: Linux 6.1 C{net/rds/cong.c}; RDS_CONG_MAP_BYTES in C{net/rds/rds.h}.
"""

from __future__ import annotations

PORTS = 1 << 16
MAP_BYTES = PORTS // 8


class CongestionMap:
    """
    The congestion map of one address.

    @ivar version: the number of changes so far.
    @ivar marked: whether there may be a congested port.
    """

    __slots__ = ("_bits", "marked", "version")

    def __init__(self) -> None:
        self._bits = bytearray(MAP_BYTES)
        self.version = 0
        self.marked = False

    def __contains__(self, port: int) -> bool:
        # Linux cong.c: little-endian bit order (test_bit_le), whatever the host's byte order.
        return bool(self._bits[port >> 3] & 1 << (port & 7))

    def mark(self, port: int) -> bool:
        """
        Mark a port as congested.

        @return: whether that is a change.
        """
        return self._turn(port, True)

    def clear(self, port: int) -> bool:
        """
        Clear a port.

        @return: whether that is a change.
        """
        return self._turn(port, False)

    def _turn(self, port: int, congested: bool) -> bool:
        if (port in self) is congested:
            return False
        self._bits[port >> 3] ^= 1 << (port & 7)
        self.marked = True
        self.version += 1
        return True

    def ports(self) -> set[int]:
        """
        @return: the congested ports.
        """
        marked = [(at << 3, bits) for at, bits in enumerate(bytes(self._bits)) if bits]
        return {first + bit for first, bits in marked for bit in range(8) if bits >> bit & 1}

    def pack(self) -> bytes:
        """
        @return: the payload of a map message, 8192 bytes.
        """
        return bytes(self._bits)

    def replace(self, packed: bytes | memoryview) -> bool:
        """
        Replace the map by the one that a peer sent.

        @param packed: 8192 bytes.
        @return: whether it differs.
        """
        # The maps are compared whole: a peer may send one with each message, and a look at 65536 bits each
        # time would be a cheap attack.
        new = bytearray(packed)
        if new == self._bits:
            return False
        self._bits = new
        self.marked = new.count(0) < MAP_BYTES
        self.version += 1
        return True
