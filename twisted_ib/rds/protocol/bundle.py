"""
Bundles: small datagrams of one socket to one other, of one turn, that are one message between
processes of this host.

A header, and what is kept for each message, cost more than a small datagram itself.  So what follows
the first of a turn is gathered, and leaves as a message with one header, one sequence number and the
flag 0x40.  Whoever gets it has all its datagrams or none.  Its payload, big endian::

    offset size
     0      4   how many datagrams, n
     4      4n  bytes of each
            the datagrams, one behind the other

Linux knows nothing of this, and is never sent one.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from twisted_ib import limits
from twisted_ib.rds.protocol.machine import RDSMessage

#: What the small datagrams count for that leave together, between processes of a host; each as below.
RDS_BUNDLE = 32 * 1024

#: The flag of a bundle.
BUNDLE = 0x40
#: What the datagrams of a bundle count for, at most.
MOST = RDS_BUNDLE
#: Longer ones go alone.
LONGEST = MOST // 4
#: How many there may be.
_COUNT = MOST // limits.RDS_DATAGRAM_OVERHEAD

_NUMBER = 4
_TABLES = [Struct(f">{count + 1}I") for count in range(_COUNT + 1)]


class Bundled(RDSMessage):
    """
    A bundle that is sent.
    """

    __slots__ = ("count",)

    def __init__(self, ports: tuple[int, int], owner: Any, pieces: list[bytes]) -> None:
        """
        @param ports: the sending socket's, and the receiving one's.
        @param pieces: the datagrams.
        """
        count = len(pieces)
        table = _TABLES[count].pack(count, *map(len, pieces))
        super().__init__(ports[0], ports[1], b"".join((table, *pieces)), owner, flags=BUNDLE)
        self.count = count


class Bundle:
    """
    A bundle that is being filled.

    @ivar room: what may still be added, each datagram counting for its bytes and
        L{RDS_DATAGRAM_OVERHEAD<limits.RDS_DATAGRAM_OVERHEAD>}.
    @ivar append: adds a datagram, once there was found to be room.
    @ivar path: what it leaves on.
    @ivar socket: whose datagrams they are.
    @ivar address: what they were written to.
    @ivar port: the receiving socket's.
    """

    __slots__ = ("_pieces", "address", "append", "path", "port", "room", "socket")

    def __init__(self, path: Any, socket: Any, address: Any, port: int) -> None:
        self.path = path
        self.room = MOST
        self.socket = socket
        self.address = address
        self.port = port
        self._pieces: list[bytes] = []
        self.append = self._pieces.append

    def message(self, port: int) -> RDSMessage:
        """
        @param port: the sending socket's.
        @return: the message to send.
        """
        pieces = self._pieces
        if len(pieces) == 1:
            return RDSMessage(port, self.port, pieces[0], self.socket)
        return Bundled((port, self.port), self.socket, pieces)


def lengthsOf(payload: bytes) -> tuple[int, ...]:
    """
    @return: bytes of each datagram of a bundle, which lie at its end; nothing if it is no bundle.
    """
    count = int.from_bytes(payload[:_NUMBER], "big")
    start = _NUMBER * (count + 1)
    if not 0 < count <= _COUNT or len(payload) < start:
        return ()
    lengths = _TABLES[count].unpack_from(payload)[1:]
    return lengths if start + sum(lengths) == len(payload) else ()
