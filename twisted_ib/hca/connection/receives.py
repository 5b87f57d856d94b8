"""
The end of private data over iWARP by which a side tells how many receives it has.

iWARP has no RNR NAK: a message that finds no receive ends the stream (RFC 5041).  An adapter takes what is
sent, whether its program keeps up or not, so that the peer has to know.  A side without an adapter stops
reading TCP instead, and says that it takes any number.

The form is this package's own: a program that does not know it sees longer private data, and answers without.
A Hello of SDP has as many reserved octets at its end (IBTA vol. 1 annex A4), and keeps its length.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from attrs import frozen

from twisted_ib.hca.connection.rdmacm import PortSpace

if TYPE_CHECKING:
    from twisted_ib.hca.connection.request import ConnectRequest
    from twisted_ib.structs import Packed

#: More receives than any number of 64 bits.
ANY: Final = 1 << 64
_MARK: Final = b"\xb2receive"
_FORM: Final[Packed[tuple[bytes, int, int, int]]] = Struct(">8sQII")
#: The private data of a request of InfiniBand (IBTA vol. 1 12.6.5), which are a Hello's length.
_REQUEST_BYTES: Final = 92
#: The last address that has the number's octets.
_LAST_ADDRESS: Final = (1 << 64) - 8


@frozen
class Receives:
    """
    Those of one side.

    Where both have a key, the one that has asked for the connection begins with a SEND of no octets, which
    says that it is ready and is no message: siw takes what is sent to it before for an error.

    @ivar count: how many it has posted before the connection was made; 0 for any number.
    @ivar address: where a READ finds how many it has posted in all, in 8 octets, the least first.
    @ivar key: the STag for that; 0 for a side that takes any number and reads none, and is told by RDMA
        WRITEs of no octets, of which each has that number as its address.
    """

    count: int = 0
    address: int = 0
    key: int = 0

    def behind(self, privateData: bytes, isHello: bool = False) -> bytes:
        """
        @param isHello: whether it is a Hello of SDP.
        @return: private data with this at its end.
        """
        told = _FORM.pack(_MARK, self.address, self.key, self.count)
        return (privateData[: -len(told)] if isHello else privateData) + told


def sendsHello(serviceID: int) -> bool:
    """
    @return: whether private data of requests for a service are a Hello of SDP.
    """
    return serviceID >> 16 == PortSpace.SDP


def isTold(request: ConnectRequest) -> bool:
    """
    @return: whether the side that asks tells of its receives.  A program of verbs knows its peer's by itself,
        and a peer that does not know the form takes no longer private data than InfiniBand has.
    """
    data = request.privateData
    if sendsHello(request.serviceID):
        return len(data) == _REQUEST_BYTES and not any(data[-_FORM.size :])
    return bool(request.vendorID) and len(data) + _FORM.size <= _REQUEST_BYTES


def toldIn(privateData: bytes, isHello: bool = False) -> tuple[bytes, Receives | None]:
    """
    @param isHello: whether it is a Hello of SDP.
    @return: private data without what L{Receives.behind} has added, and that; L{None} if it has not.
    """
    end = len(privateData) - _FORM.size
    if end < 0:
        return privateData, None
    mark, address, key, count = _FORM.unpack_from(privateData, end)
    if mark != _MARK or address > _LAST_ADDRESS or (count and not key):
        return privateData, None
    return privateData[:end] + bytes(_FORM.size if isHello else 0), Receives(count, address, key)
