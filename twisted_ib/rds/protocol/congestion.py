"""
Which ports of an address take nothing at the moment: a bit for each of 65536.

TCP's window is one connection's; an RDS connection serves all sockets of two addresses, so a slow
one must not stop it.  Its port is marked instead, and the whole map is sent to every peer, who
holds back what is for that port and nothing else.  What is on its way is taken all the same.

Source: Linux 6.1 C{net/rds/cong.c}.
"""

from __future__ import annotations

PORTS = 1 << 16
MAP_BYTES = PORTS // 8


class CongestionMap:
    """
    The map of one address.

    @ivar version: how often it has changed.
    """

    __slots__ = ("_bits", "version")

    def __init__(self) -> None:
        self._bits = bytearray(MAP_BYTES)
        self.version = 0

    def __contains__(self, port: int) -> bool:
        """
        @return: whether a port is congested.
        """
        return bool(self._bits[port >> 3] & 1 << (port & 7))

    def mark(self, port: int) -> bool:
        """
        The port takes nothing more.

        @return: whether that is new.
        """
        return self._turn(port, True)

    def clear(self, port: int) -> bool:
        """
        It takes something again.

        @return: whether that is new.
        """
        return self._turn(port, False)

    def _turn(self, port: int, congested: bool) -> bool:
        if (port in self) is congested:
            return False
        self._bits[port >> 3] ^= 1 << (port & 7)
        self.version += 1
        return True

    def pack(self) -> bytes:
        """
        @return: the map as a message carries it, 8192 bytes.
        """
        return bytes(self._bits)

    def replace(self, packed: bytes | memoryview) -> bool:
        """
        A new map came.  What is in it is not looked at: a peer may send a new one each time.

        @param packed: 8192 bytes.
        @return: whether something has changed.
        """
        new = bytearray(packed)
        if new == self._bits:
            return False
        self._bits = new
        self.version += 1
        return True
