"""
Bundles: small datagrams from one socket to one other, written in one reactor turn, sent as one message
between processes of this host.

A header and its bookkeeping cost more than a small datagram.  So the datagrams after the first of a turn
are gathered into a message with one header, one sequence number and the flag 0x40; the receiver gets all
of them or none.  The payload, big endian::

    offset size
     0      4   number of datagrams, n
     4      4n  bytes of each
            the datagrams, one behind the other

Linux does not know bundles and is never sent one.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from twisted_ib import limits
from twisted_ib.rds.protocol.machine import RDSMessage

#: Size limit of a bundle; each datagram counts for its bytes and its overhead.
RDS_BUNDLE = 32 * 1024

#: The flag of a bundle.
BUNDLE = 0x40
#: The same, as other modules know it.
MOST = RDS_BUNDLE
#: Longer datagrams are sent alone: they cost more than the header that gathering would save.
LONGEST = MOST // 4
#: Datagrams in one bundle: even empty ones count for their overhead.
_COUNT = MOST // limits.RDS_DATAGRAM_OVERHEAD

_NUMBER = 4
# Precompiled: the cache of the struct module holds fewer formats than there are counts.
_TABLES = [Struct(f">{count + 1}I") for count in range(_COUNT + 1)]


class Bundled(RDSMessage):
    """
    A bundle as a message to send.

    @ivar count: the number of datagrams.
    """

    __slots__ = ("count",)

    def __init__(self, ports: tuple[int, int], owner: Any, pieces: list[bytes]) -> None:
        count = len(pieces)
        table = _TABLES[count].pack(count, *map(len, pieces))
        super().__init__(ports[0], ports[1], b"".join((table, *pieces)), owner, flags=BUNDLE)
        self.count = count


class Bundle:
    """
    A bundle that is being filled.

    @ivar room: the bytes left, each datagram counting for its bytes and
        L{RDS_DATAGRAM_OVERHEAD<limits.RDS_DATAGRAM_OVERHEAD>}.
    @ivar append: adds a datagram; the caller has checked C{room}.
    @ivar path: the path that will carry it.
    @ivar socket: the sending socket.
    @ivar address: the address that was given to C{write}.
    @ivar port: the receiving socket's port.
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
        @param port: the sending socket's port.
        @return: the message to send; an ordinary one if there is one datagram only.
        """
        pieces = self._pieces
        if len(pieces) == 1:
            return RDSMessage(port, self.port, pieces[0], self.socket)
        return Bundled((port, self.port), self.socket, pieces)


def lengthsOf(payload: bytes) -> tuple[int, ...]:
    """
    @return: the length of each datagram of a bundle, which fill the end of the payload; empty if it is
        malformed.
    """
    count = int.from_bytes(payload[:_NUMBER], "big")
    start = _NUMBER * (count + 1)
    # The count comes from the peer: it is checked before it selects a table or is multiplied into an
    # offset.
    if not 0 < count <= _COUNT or len(payload) < start:
        return ()
    lengths = _TABLES[count].unpack_from(payload)[1:]
    return lengths if start + sum(lengths) == len(payload) else ()
