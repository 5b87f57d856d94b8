"""
MPA's Request and Reply frames, its constants, and its CRC (RFC 5044 section 7.1, RFC 6581).

Each side of a new TCP connection sends one such frame; FPDUs follow (C{mpastream}). The rules of their
exchange are in C{startup}.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from twisted_ib.errors import HeaderError, LengthError
from twisted_ib.layouts import Codec, bits, fieldsOf, flag

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer


MPA_KEY_REQUEST: Final = b"MPA ID Req Frame"
MPA_KEY_REPLY: Final = b"MPA ID Rep Frame"
_KEY_BYTES: Final = 16

#: The most private data of a frame (RFC 5044 section 7.1.1); the word of revision 2 counts.
PRIVATE_BYTES: Final = 512
#: A frame without private data.
STARTUP_BYTES: Final = 20
#: The word of a revision 2 frame with flag S, at the begin of its private data.
DEPTHS_BYTES: Final = 4

#: In IRD or ORD: MPA does not negotiate the depth, each side uses its own (RFC 6581). Never sent.
NOT_NEGOTIATED: Final = 0x3FFF
#: The largest IRD or ORD.
MAX_DEPTH: Final = NOT_NEGOTIATED - 1

#: Flag S, in the first octet behind the key.
_ENHANCED = 0x10
#: Where the length of the private data is.
_LENGTH = slice(18, 20)


class MPAErrorCode(IntEnum):
    """
    MPA's errors, as a Terminate names them: layer 2, type 0 (RFC 5044 section 8, RFC 6581).
    """

    TCP_LOST = 1
    CRC = 2
    MARKER = 3
    STARTUP_FRAME = 4
    LOCAL_CATASTROPHIC = 5
    INSUFFICIENT_IRD = 6
    NO_MATCHING_RTR = 7


@cache
def _library() -> Callable[[bytes], int] | None:
    # On demand: only connections with a CRC need it.
    try:
        from google_crc32c import value
    except ImportError:
        return None
    found: Callable[[bytes], int] = value
    return found


def hasCRC32C() -> bool:
    """
    Whether C{google_crc32c} is installed; else MPA's CRC can be neither made nor checked here.
    """
    return _library() is not None


def crc32c(data: bytes) -> int:
    """
    @param data: C{bytes}: the library takes nothing else.
    @return: the CRC32C, 32 bits; little endian in an FPDU.
    """
    library = _library()
    assert library is not None, "startup has agreed to a CRC that cannot be computed"
    return library(data)


@frozen
class Depths:
    """
    The word of revision 2: depths for RDMA Reads, and the message that says "ready to receive" (RTR).

    @ivar ird: inbound reads that the sender holds, 14 bits.
    @ivar ord: outbound reads that it wants, 14 bits.
    @ivar isPeerToPeer: A: the initiator will send an RTR.
    @ivar zeroSend: B: it may be, or is, a Send of no octets.
    @ivar zeroWrite: C: an RDMA Write of none.
    @ivar zeroRead: D: an RDMA Read of none.
    """

    ird: int = bits(0, 14, 5)
    ord: int = bits(2, 14, 5)
    isPeerToPeer: bool = flag(0, 7)
    zeroSend: bool = flag(0, 6)
    zeroWrite: bool = flag(2, 7)
    zeroRead: bool = flag(2, 6)


_DEPTHS: Final = Codec(Depths, DEPTHS_BYTES)


@frozen
class StartupFrame:
    """
    A Request or a Reply.

    @ivar isReply: which of both.
    @ivar privateData: of the user: without the word of revision 2.
    @ivar revision: 1 or 2.
    @ivar markers: M: the sender wants markers in the FPDUs that it receives.
    @ivar crc: C: CRCs are used in both directions if either side sets it.
    @ivar isRejected: R: the connection is refused; in replies.
    @ivar depths: the word of revision 2; L{None} without flag S.
    @ivar largeFPDUs: the sender takes FPDUs that are longer than a TCP segment at no cost. As in Linux siw, a
        reserved flag says so.
    """

    isReply: bool
    privateData: bytes = b""
    revision: int = bits(1, 8, default=2)
    markers: bool = flag(0, 7)
    crc: bool = flag(0, 6)
    isRejected: bool = flag(0, 5)
    depths: Depths | None = None
    # Linux iwarp.h MPA_RR_FLAG_GSO_EXP, reserved in RFC 5044. siw ignores it, but copies it to its Reply.
    largeFPDUs: bool = flag(0, 3)

    def pack(self) -> bytes:
        """
        @return: the frame.
        @raise LengthError: the private data is too long.
        """
        private = self.privateData if self.depths is None else _DEPTHS.pack(self.depths) + self.privateData
        if len(private) > PRIVATE_BYTES:
            own = PRIVATE_BYTES - len(private) + len(self.privateData)
            raise LengthError(f"private data of {len(self.privateData)} octets; MPA carries {own}")
        key = MPA_KEY_REPLY if self.isReply else MPA_KEY_REQUEST
        flags, revision = _FLAGS.pack(self)
        flags |= (self.depths is not None) * _ENHANCED
        return key + bytes((flags, revision)) + len(private).to_bytes(2, "big") + private

    @staticmethod
    def parse(
        buffer: Buffer, start: int, stop: int, isReply: bool | None = None
    ) -> tuple[StartupFrame, int] | None:
        """
        Parse the frame that begins at C{start}. Reserved flags are ignored (RFC 5044 section 7.1.1).

        @param buffer: octets received.
        @param isReply: the only kind that is expected; L{None} for either.
        @return: the frame and the offset of its end; L{None} if it does not end before C{stop}.
        @raise WireError: it is no such frame, which is said as early as its octets show it.
        """
        have = stop - start
        key = bytes(buffer[start : min(start + _KEY_BYTES, stop)])
        keys = (MPA_KEY_REQUEST, MPA_KEY_REPLY)
        expected = keys if isReply is None else (keys[isReply],)
        if not any(each.startswith(key) for each in expected):
            raise HeaderError(f"{' or '.join(map(repr, expected))} was expected, not {key!r}")
        if have > _KEY_BYTES + 1 and buffer[start + _KEY_BYTES + 1] not in (1, 2):
            # Revision 0 is that of the RDMA Consortium, with other versions of DDP and RDMAP.
            raise HeaderError(f"MPA revision {buffer[start + _KEY_BYTES + 1]}; it is 1 or 2")
        if have < STARTUP_BYTES:
            return None
        head = bytes(buffer[start : start + STARTUP_BYTES])
        # The revision is a number, which C{bool} is too.
        fields: dict[str, bool] = _FLAGS.parse(head[_KEY_BYTES:])
        length = int.from_bytes(head[_LENGTH], "big")
        if length > PRIVATE_BYTES:
            raise LengthError(f"a frame says {length} octets of private data; {PRIVATE_BYTES} at most")
        # RFC 6581: flag S is reserved in revision 1.
        isEnhanced = bool(head[_KEY_BYTES] & _ENHANCED) and fields["revision"] > 1
        if isEnhanced and length < DEPTHS_BYTES:
            raise LengthError(f"a frame with flag S has {length} octets, of {DEPTHS_BYTES} at least")
        end = start + STARTUP_BYTES + length
        if end > stop:
            return None
        first = start + STARTUP_BYTES
        depths = _DEPTHS.parse(bytes(buffer[first : first + DEPTHS_BYTES])) if isEnhanced else None
        frame = StartupFrame(
            isReply=key == MPA_KEY_REPLY,
            privateData=bytes(buffer[first + DEPTHS_BYTES * isEnhanced : end]),
            depths=depths,
            **fields,
        )
        return frame, end


#: The octets behind the key: flags and revision.
_FLAGS: Final[Codec[Any]] = Codec(dict, 2, fieldsOf(StartupFrame))
