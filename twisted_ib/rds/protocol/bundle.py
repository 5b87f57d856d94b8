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

A bundle fills one record at most, so that it is never cut into fragments.

Linux does not know bundles and is never sent one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from twisted_ib import limits
from twisted_ib.rds.protocol.machine import RDSMessage

#: Size limit of a bundle; each datagram counts for its bytes and its overhead.
RDS_BUNDLE: Final = limits.INLINE_MESSAGE

#: The flag of a bundle.
BUNDLE: Final = 0x40
#: The same, as other modules know it.
MOST: Final = RDS_BUNDLE
#: Longer datagrams are sent alone: they cost more than the header that gathering would save.
LONGEST: Final = MOST // 3
#: Datagrams in one bundle: even empty ones count for their overhead.
_COUNT: Final = MOST // limits.RDS_DATAGRAM_OVERHEAD
#: Datagrams that are this long on average are not joined: a copy of them costs more than to put each into the
#: medium.
_PIECE: Final = 2048
#: Forms of bundles that are remembered: bytes of each datagram, and how many.
_FORMS: Final = 64

_NUMBER: Final = 4
_unpackNumber: Final = Struct(">I").unpack_from
# Precompiled: the cache of the struct module holds fewer formats than there are counts.
_TABLES: Final = [Struct(f">{count + 1}I") for count in range(_COUNT + 1)]


class Bundled(RDSMessage):
    """
    A bundle as a message to send.
    """

    __slots__ = ()

    def __init__(self, ports: tuple[int, int], owner: Any, pieces: list[bytes]) -> None:
        count = len(pieces)
        table = _TABLES[count].pack(count, *map(len, pieces))
        pieces.insert(0, table)
        size = sum(map(len, pieces))
        payload = pieces if size > count * _PIECE else b"".join(pieces)
        RDSMessage.__init__(self, ports[0], ports[1], payload, owner, flags=BUNDLE)
        self.size = size
        self.count = count


class Bundle:
    """
    A bundle that is being filled.

    @ivar room: the bytes left, each datagram counting for its bytes and
        L{RDS_DATAGRAM_OVERHEAD<limits.RDS_DATAGRAM_OVERHEAD>}.
    @ivar pieces: the datagrams; who adds one has checked C{room}.
    @ivar path: the path that will carry it.
    @ivar socket: the sending socket.
    @ivar address: the address that was given to C{write}.
    @ivar port: the receiving socket's port.
    """

    __slots__ = ("address", "path", "pieces", "port", "room", "socket")

    def __init__(self, path: Any, socket: Any, address: Any, port: int) -> None:
        self.path = path
        self.room = MOST
        self.socket = socket
        self.address = address
        self.port = port
        self.pieces: list[bytes] = []

    def message(self, port: int) -> RDSMessage:
        """
        @param port: the sending socket's port.
        @return: the message to send; an ordinary one if there is one datagram only.
        """
        pieces = self.pieces
        if len(pieces) == 1:
            return RDSMessage(port, self.port, pieces[0], self.socket)
        return Bundled((port, self.port), self.socket, pieces)


@lru_cache(_FORMS)
def _form(length: int, count: int) -> Callable[[Any, int], tuple[Any, ...]]:
    # Unpacks datagrams of one length, which is faster than a slice for each.
    return Struct(f"{length}s" * count).unpack_from


def datagramsOf(buffer: Any, start: int, stop: int) -> Sequence[bytes]:
    """
    @param buffer: the medium's own, or C{bytes}: has a bundle from C{start} to C{stop}.
    @return: its datagrams; empty if it is malformed.
    """
    if stop - start < _NUMBER:
        return ()
    # Each number is read once: a peer can still change them in the medium.
    count: int = _unpackNumber(buffer, start)[0]
    at = start + _NUMBER * (count + 1)
    # The count comes from the peer: it is checked before it selects a table.
    if not 0 < count <= _COUNT or at > stop:
        return ()
    lengths: tuple[int, ...] = _TABLES[count].unpack_from(buffer, start)[1:]
    if at + sum(lengths) != stop:
        return ()
    length = lengths[0]
    if lengths.count(length) == count:
        return _form(length, count)(buffer, at)
    datagrams = []
    for length in lengths:
        end = at + length
        datagrams.append(bytes(buffer[at:end]))
        at = end
    return datagrams
