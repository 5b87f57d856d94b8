"""
The end of private data over iWARP by which a side tells how many receives it has.

iWARP has no RNR NAK: a message that finds no receive ends the stream (RFC 5041).  An adapter takes what is
sent, whether its program keeps up or not, so that the peer has to know.  A side without an adapter stops
reading TCP instead, and says that it takes any number.

The form is this package's own: a program that does not know it sees longer private data, and answers without.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from attrs import frozen

if TYPE_CHECKING:
    from twisted_ib.structs import Packed

READY_BYTES: Final = 8
_MARK: Final = b"\xb1receive"
_FORM: Final[Packed[tuple[bytes, int, int, int]]] = Struct(">8sQII")


@frozen
class Receives:
    """
    Those of one side.

    @ivar count: how many it has posted before the connection was made; 0 for any number.
    @ivar address: where a READ finds how many it has posted in all, in 8 octets, the least first; behind them
        are L{READY_BYTES} that the side that has asked for the connection writes when it is ready, not all
        of them 0: siw takes what is sent to it before for an error.
    @ivar key: the STag for that; 0 for a side that reads no such number, and is told by RDMA WRITEs of no
        octets, of which each has that number as its address.
    """

    count: int = 0
    address: int = 0
    key: int = 0

    def behind(self, privateData: bytes) -> bytes:
        """
        @return: private data with this behind it.
        """
        return privateData + _FORM.pack(_MARK, self.address, self.key, self.count)


def toldIn(privateData: bytes) -> tuple[bytes, Receives | None]:
    """
    @return: private data without what L{Receives.behind} has added, and that; L{None} if it has not.
    """
    end = len(privateData) - _FORM.size
    if end < 0:
        return privateData, None
    mark, address, key, count = _FORM.unpack_from(privateData, end)
    if mark != _MARK:
        return privateData, None
    return privateData[:end], Receives(count, address, key)
