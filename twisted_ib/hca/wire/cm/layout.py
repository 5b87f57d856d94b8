"""
The common base of the messages of L{twisted_ib.hca.wire.cm}.
"""

from __future__ import annotations

from struct import error as structError
from typing import TYPE_CHECKING, Any, ClassVar

from twisted_ib.errors import WireError

if TYPE_CHECKING:
    from typing_extensions import Self

    from twisted_ib.structs import Packed


# IBTA vol. 1 13.4: a MAD of 256 octets less its common header of 24.
BODY_BYTES = 232
# IBTA vol. 1 12.6.7: additional reject information; the areas of SIDR_REP and APR are as large.
ADDITIONAL_INFO_BYTES = 72
Buffer = bytes | bytearray | memoryview


def reservedMask(*spans: tuple[int, int]) -> int:
    """
    The reserved bits of a message's fixed part, as an integer.

    @param spans: pairs of octet offset and bits in it; the last pair is the length of the fixed part and 0.
    """
    length = spans[-1][0]
    return sum(bits << 8 * (length - 1 - octet) for octet, bits in spans[:-1])


def fits(width: int, *values: int) -> None:
    """
    Refuse a value that would run into the neighbouring field.

    @param width: bits.
    @param values: what has to fit.
    @raise ValueError: a value is wider, or negative.
    """
    for value in values:
        if value >> width:
            raise ValueError(f"{value} does not fit into {width} bits")


def notWhole(start: int, stop: int) -> WireError:
    """
    The error for a message of a wrong length, from C{start} to C{stop}.
    """
    return WireError(f"a CM message has {BODY_BYTES} octets, not {stop - start}")


class CMMessage:
    """
    Base class of the messages.

    @cvar attribute: the MAD attribute id.
    @cvar privateDataBytes: size of the private data area.
    """

    # REQ, REP, RTU, DREQ and DREP do in pack and parse themselves what packFields and unpackFields do for
    # the others: each connection needs them, and calls are most of their cost.
    __slots__ = ()
    privateData: bytes
    attribute: ClassVar[int] = 0
    privateDataBytes: ClassVar[int] = 0
    _layout: ClassVar[Packed[Any]]
    _reservedMask: ClassVar[int] = 0
    _fixedBytes: ClassVar[int] = 0

    def pack(self) -> bytes:
        """
        Serialize the message.

        @return: 232 octets.
        @raise ValueError: a field does not fit.
        """
        raise NotImplementedError

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> Self:
        """
        Parse a message.

        @param buffer: holds the body, 232 octets.
        @param start: offset of its first octet.
        @param stop: offset of its end.
        @raise WireError: it has another length.
        """
        raise NotImplementedError

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

    @classmethod
    def unpackFields(cls, buffer: Buffer, start: int, stop: int) -> tuple[int, tuple[Any, ...]]:
        """
        Check the length, then unpack the layout.

        @return: the reserved bits and the fields.
        @raise WireError: it does not have 232 octets, or exceeds the buffer.
        """
        if stop - start != BODY_BYTES or start < 0 or stop > len(buffer):
            raise notWhole(start, stop)
        reserved = 0
        if cls._reservedMask:
            fixed = buffer[start : start + cls._fixedBytes]
            reserved = int.from_bytes(fixed, "big") & cls._reservedMask
        return reserved, cls._layout.unpack_from(buffer, start)

    @classmethod
    def packFields(cls, privateData: bytes, reserved: int, *fields: object) -> bytes:
        """
        Pack fields, private data and reserved bits.

        @param privateData: at most C{privateDataBytes}; padded with zeros.
        @param reserved: reserved bits to restore.
        @param fields: the others, in the order of the layout.
        @return: 232 octets.
        @raise ValueError: a field does not fit.
        """
        if len(privateData) > cls.privateDataBytes:
            raise ValueError(f"more than {cls.privateDataBytes} octets of private data")
        try:
            body = cls._layout.pack(*fields, privateData)
        except structError as error:
            raise ValueError(f"{cls.__name__}: {error}") from None
        return cls.withReserved(body, reserved) if reserved else body

    @classmethod
    def withReserved(cls, body: bytes, reserved: int) -> bytes:
        """
        Set reserved bits in a message of 232 octets.
        """
        size = cls._fixedBytes
        # Masked: a wrong C{reserved} must not change a field.
        fixed = int.from_bytes(body[:size], "big") | reserved & cls._reservedMask
        return fixed.to_bytes(size, "big") + body[size:]


def infoFits(info: bytes) -> None:
    """
    Check additional information of a REJ, SIDR_REP or APR, which C{struct} would cut silently.

    @raise ValueError: it has more than 72 octets.
    """
    if len(info) > ADDITIONAL_INFO_BYTES:
        raise ValueError(f"more than {ADDITIONAL_INFO_BYTES} octets of additional info")
