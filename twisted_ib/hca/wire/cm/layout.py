"""
What all messages of the communication manager share, see L{twisted_ib.hca.wire.cm}.
"""

from __future__ import annotations

from struct import Struct
from struct import error as structError
from typing import Any, ClassVar

from twisted_ib.errors import WireError

BODY_BYTES = 232
ADDITIONAL_INFO_BYTES = 72
Buffer = bytes | bytearray | memoryview


def reservedMask(*spans: tuple[int, int]) -> int:
    """
    Where a message's reserved bits are.

    @param spans: pairs of octet and bits in it; the last pair has the length
        of the fixed part and 0.
    """
    length = spans[-1][0]
    return sum(bits << 8 * (length - 1 - octet) for octet, bits in spans[:-1])


def fits(width: int, *values: int) -> None:
    """
    Refuse to pack a value that would run into the field beside it.

    @param width: how many bits there are.
    @param values: what has to fit.
    @raise ValueError: a value is longer, or negative.
    """
    for value in values:
        if value >> width:
            raise ValueError(f"{value} does not fit into {width} bits")


def notWhole(start: int, stop: int) -> WireError:
    """
    The error for what is no whole message.

    @param start: offset of its first octet.
    @param stop: offset after its last one.
    """
    return WireError(f"a CM message has {BODY_BYTES} octets, not {stop - start}")


class CMMessage:
    """
    What the messages share.

    Those of a connection that comes and goes in order (REQ, REP, RTU, DREQ, DREP) do in
    C{pack} and C{parse} what L{packFields} and L{unpackFields} do for the others: each
    connection has them once, and calls are most of their cost.

    @cvar attribute: the MAD attribute that names this message.
    @cvar privateDataBytes: the size of the private data area.
    """

    __slots__ = ()
    attribute: ClassVar[int] = 0
    privateDataBytes: ClassVar[int] = 0
    _layout: ClassVar[Struct]
    _reservedMask: ClassVar[int] = 0
    _fixedBytes: ClassVar[int] = 0

    def pack(self) -> bytes:
        """
        Write the message.

        @return: 232 octets.
        @raise ValueError: a field does not fit.
        """
        raise NotImplementedError

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> CMMessage:
        """
        Read one message.

        @param buffer: what holds the body, 232 octets.
        @param start: offset of its first octet.
        @param stop: offset after its last one.
        @return: the message.
        @raise WireError: it has another length.
        """
        raise NotImplementedError

    @classmethod
    def unpackFields(cls, buffer: Buffer, start: int, stop: int) -> tuple[int, tuple[Any, ...]]:
        """
        Check the length, then take the fields of the layout.

        @param buffer: what holds the body.
        @param start: offset of its first octet.
        @param stop: offset after its last one.
        @return: the reserved bits and the fields.
        @raise WireError: it has not 232 octets, or the buffer has not.
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
        Put fields, private data and reserved bits together.

        @param privateData: at most C{privateDataBytes}; zeros follow it.
        @param reserved: bits that are kept as they came.
        @param fields: the others, in the order of the layout.
        @return: 232 octets.
        @raise ValueError: something does not fit.
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
        Write reserved bits into a message, and nowhere else.

        @param body: 232 octets.
        @param reserved: the bits.
        @return: 232 octets.
        """
        size = cls._fixedBytes
        fixed = int.from_bytes(body[:size], "big") | reserved & cls._reservedMask
        return fixed.to_bytes(size, "big") + body[size:]


def infoFits(info: bytes) -> None:
    """
    C{struct} would cut a longer one without a word.

    @param info: additional information of a REJ, SIDR_REP or APR.
    @raise ValueError: it has more than 72 octets.
    """
    if len(info) > ADDITIONAL_INFO_BYTES:
        raise ValueError(f"more than {ADDITIONAL_INFO_BYTES} octets of additional info")
