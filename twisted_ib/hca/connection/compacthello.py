"""
SDP's Hello in a request of RDMA-CM's port space TCP.

Linux's rdma_cm has no port space of SDP, so that a stream through an adapter begins with a request for the
service id C{0x106pppp} in place of C{0x1pppp}.  Of its 92 octets of private data RDMA-CM's header (IBTA
vol. 1 annex A11) takes 36, which the kernel writes; it has both addresses, and behind it is the rest of Hello
(annex A4).  A mark between them tells such a request from all others for the number.  The answer is a
HelloAck, in the octets that it always has.

The form is this package's own.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twisted_ib.errors import WireError
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES, PortSpace

if TYPE_CHECKING:
    from twisted_ib.structs import Packed

#: Behind RDMA-CM's header.
MARK: Final = b"\xb2streams"
#: Private data of a refusal by software, which is no adapter, of a service id of SDP's: there is no use in
#: asking again in the other form.
SOFTWARE: Final = b"\xb2software"
#: Hello: its base header and what is before its addresses, both addresses, and the extended MaxAdverts.
_HELLO: Final[Packed[tuple[bytes, bytes, int]]] = Struct(">32s32s2xH24x")
#: In the first of these: message id, length, IP version and capabilities, the source's port.
_START: Final[Packed[tuple[int, int, int, int]]] = Struct(">B3xI9xB10xH2x")
#: RDMA-CM's header: version, IP version, port and both addresses; then the mark, and the rest of Hello.
_COMPACT: Final[Packed[tuple[int, int, int, bytes, bytes, bytes, int]]] = Struct(">BBH32s8s32sH")


def isMarked(privateData: bytes, at: int = HEADER_BYTES) -> bool:
    """
    @param privateData: of a request in the port space TCP.
    @param at: where RDMA-CM's header ends; 0 if the kernel has taken it away.
    @return: whether it asks for a stream.
    """
    return privateData[at : at + len(MARK)] == MARK


def compact(hello: bytes) -> bytes:
    """
    @return: the same in the port space TCP, with RDMA-CM's header.
    @raise WireError: it is none.
    """
    if len(hello) != _HELLO.size:
        raise WireError(f"a Hello has {_HELLO.size} octets, not {len(hello)}")
    start, ends, adverts = _HELLO.unpack(hello)
    ipVersion, port = _checked(start)
    return _COMPACT.pack(0, ipVersion << 4, port, ends, MARK, start, adverts)


def expand(privateData: bytes) -> bytes:
    """
    @param privateData: what L{compact} has made, and zeros behind it.
    @return: the Hello.
    @raise WireError: it is not.
    """
    if len(privateData) < _COMPACT.size:
        raise WireError(f"{len(privateData)} octets are too short for a Hello behind RDMA-CM's header")
    version, ip, _, ends, mark, start, adverts = _COMPACT.unpack_from(privateData)
    # The port is Hello's: the kernel may have begun at another.
    if version or mark != MARK or ip >> 4 != _checked(start)[0]:
        raise WireError("no Hello behind RDMA-CM's header")
    return _HELLO.pack(start, ends, adverts)


def _checked(start: bytes) -> tuple[int, int]:
    # The IP version and the port; all else is SDP's to check.
    mid, length, ip, port = _START.unpack(start)
    if mid or length != _HELLO.size or ip >> 4 not in (4, 6):
        raise WireError("no Hello of SDP")
    return ip >> 4, port


def streamService(serviceID: int) -> int:
    """
    @param serviceID: of a marked request.
    @return: that of the stream service of the same number.
    """
    return PortSpace.SDP << 16 | serviceID & 0xFFFF


def refusal(serviceID: int) -> bytes:
    """
    @return: the private data by which software refuses a request for a service that nobody serves.
    """
    return SOFTWARE if serviceID >> 16 == PortSpace.SDP else b""
