"""
The common base of the messages of L{twisted_ib.hca.wire.cm}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from twisted_ib.errors import WireError
from twisted_ib.layouts import Codec, Record, octets

if TYPE_CHECKING:
    from typing_extensions import Self


# IBTA vol. 1 13.4: a MAD of 256 octets less its common header of 24.
BODY_BYTES = 232
# IBTA vol. 1 12.6.7: additional reject information; the areas of SIDR_REP and APR are as large.
ADDITIONAL_INFO_BYTES = 72
#: REQs, and REPs, with different values of other fields than their connection's own, that are remembered.
CM_ALIKE = 64
Buffer = bytes | bytearray | memoryview

_PARSE = f"""\
def parse(cls, buffer, start, stop):
 if stop - start != {BODY_BYTES} or start < 0 or stop > len(buffer):
  raise notWhole(start, stop)"""


def notWhole(start: int, stop: int) -> WireError:
    """
    The error for a message of a wrong length, from C{start} to C{stop}.
    """
    return WireError(f"a CM message has {BODY_BYTES} octets, not {stop - start}")


class CMMessage(Record):
    """
    Base class of the messages.

    @cvar attribute: the MAD attribute id.
    @cvar privateDataBytes: size of the private data area.
    @cvar own: the fields that differ from connection to connection, if there are many others.
    """

    __slots__ = ()
    privateData: bytes
    attribute: ClassVar[int] = 0
    privateDataBytes: ClassVar[int] = 0
    own: ClassVar[tuple[str, ...]] = ()

    def pack(self) -> bytes:
        """
        Serialize the message.

        @return: 232 octets.
        @raise ValueError: a field does not fit.
        """
        return self.made().pack(self)

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> Self:
        """
        Parse a message.

        @param buffer: holds the body, 232 octets.
        @param start: offset of its first octet.
        @param stop: offset of its end.
        @raise WireError: it has another length.
        """
        return cls.made().parse(buffer, start, stop)

    @classmethod
    def made(cls) -> type[Self]:
        """
        @return: the class, with a L{pack} and L{parse} that are made of its layout.
        """
        if "pack" not in vars(cls):
            made: Any = cls
            codec = Codec(cls, BODY_BYTES)
            made.pack = codec.packer(keeps=True)
            alike = cls.own and codec.likener(_PARSE, cls.own, CM_ALIKE, notWhole=notWhole)
            made.parse = classmethod(alike or codec.parser(_PARSE, keeps=True, notWhole=notWhole))
        return cls

    def packExact(self) -> bytes:
        """
        Serialize the message for a medium that carries the length of private data, as MPA does (RFC 5044
        section 7.1.1).

        @return: its octets up to the end of the private data, which it has behind all else.
        @raise ValueError: a field does not fit.
        """
        return self.pack()[: BODY_BYTES - self.privateDataBytes + len(self.privateData)]

    @classmethod
    def parseExact(cls, buffer: Buffer, start: int, stop: int) -> Self:
        """
        Parse what L{packExact} gives.

        @raise WireError: it ends before the private data, or is too long.
        """
        head = BODY_BYTES - cls.privateDataBytes
        if not head <= stop - start <= BODY_BYTES:
            raise notWhole(start, stop)
        message: Any = cls.parse(bytes(buffer[start:stop]).ljust(BODY_BYTES, b"\0"), 0, BODY_BYTES)
        message.privateData = message.privateData[: stop - start - head]
        return message


def lastOctets(size: int) -> bytes:
    """
    The area of private data, the last C{size} octets.
    """
    return octets(BODY_BYTES - size, size, default=b"")


def infoAt(octet: int) -> bytes:
    """
    Additional information of a REJ, SIDR_REP or APR.
    """
    return octets(octet, ADDITIONAL_INFO_BYTES, default=b"")
