"""
Management datagrams: what all classes of management have in common (IBTA vol. 1 13.4).

A MAD is 256 octets, the payload of an unreliable datagram from and to queue pair 1: the common
header, what its class has behind that (L{twisted_ib.hca.wire.mad.classes}), and the attribute.
"""

from __future__ import annotations

from struct import Struct
from struct import error as structError
from typing import Final

from attrs import frozen

from twisted_ib.errors import HeaderError, LengthError
from twisted_ib.hca.wire.cm import AnyMessage, byAttribute
from twisted_ib.hca.wire.mad.classes import COMMUNICATION, ClassHeader, classHeader

#: Base version, class, class version, method; status, class specific; transaction;
#: attribute, reserved, modifier.
_HEADER: Final = Struct(">BBBBHHQHHI")

HEADER_BYTES: Final = _HEADER.size
MAD_BYTES: Final = 256
DATA_BYTES: Final = MAD_BYTES - HEADER_BYTES
#: The Q_Key of queue pair 1.
QUEUE_KEY: Final = 0x80010000

_BASE_VERSION: Final = 1
#: The bit of a method that makes it a response.
RESPONSE: Final = 0x80

#: The version of communication management.
CM_VERSION: Final = 2
#: Every message of the communication manager is sent, not asked for; answers too.
SEND: Final = 0x03


@frozen
class Mad:
    """
    One management datagram.

    @ivar managementClass: what it manages.
    @ivar classVersion: of the class's formats.
    @ivar method: what is asked for, or with L{RESPONSE} answered.
    @ivar transaction: chosen by who asks, 64 bits.
    @ivar attribute: what it is about, 16 bits.
    @ivar data: the attribute: a message of the communication manager, or octets; zeros behind them
        fill the place of the class.
    @ivar modifier: which one of those, 32 bits.
    @ivar status: of an answer.
    @ivar classSpecific: 16 bits, as the class says.
    @ivar reserved: 16 bits, kept as they came.
    @ivar header: what the class has around its attribute; L{None} for a class that has nothing,
        and for zeros.
    """

    managementClass: int
    classVersion: int
    method: int
    transaction: int
    attribute: int
    data: bytes | AnyMessage = b""
    modifier: int = 0
    status: int = 0
    classSpecific: int = 0
    reserved: int = 0
    header: ClassHeader | None = None

    def pack(self) -> bytes:
        """
        @return: 256 octets.
        @raise LengthError: the attribute is too long.
        @raise HeaderError: a field does not fit.
        """
        try:
            header = _HEADER.pack(
                *(_BASE_VERSION, self.managementClass, self.classVersion, self.method),
                *(self.status, self.classSpecific, self.transaction),
                *(self.attribute, self.reserved, self.modifier),
            )
            before, data, behind = self._parts()
        except (structError, OverflowError, ValueError) as error:
            raise HeaderError(f"a MAD cannot have this: {error}") from None
        octets = b"".join((header, before, data, behind))
        if len(octets) != MAD_BYTES:
            raise LengthError(f"a MAD has {MAD_BYTES} octets, not {len(octets)}")
        return octets

    def _parts(self) -> tuple[bytes, bytes, bytes]:
        """
        @return: what is in front of the attribute, the attribute, and what is behind it.
        """
        data = self.data if isinstance(self.data, bytes) else self.data.pack()
        row = classHeader(self.managementClass)
        if row is None:
            return b"", data.ljust(DATA_BYTES, b"\0"), b""
        kind, _, size = row
        header = kind() if self.header is None else self.header
        if type(header) is not kind:
            raise ValueError(f"class {self.managementClass:#04x} has no {type(header).__name__}")
        before, behind = header.around()
        return before, data.ljust(size, b"\0"), behind

    @classmethod
    def parse(cls, buffer: bytes | bytearray | memoryview, start: int, stop: int) -> Mad:
        """
        Read one.

        @param buffer: what holds it.
        @param start: offset of its first octet.
        @param stop: offset after its last one.
        @return: the MAD, which copies all.
        @raise LengthError: it has not 256 octets.
        @raise HeaderError: it has another base version.
        """
        if start < 0 or stop > len(buffer) or stop - start != MAD_BYTES:
            raise LengthError(f"a MAD has {MAD_BYTES} octets, not {stop - start}")
        base, class_, version, method, status, specific, transaction, attribute, reserved, modifier = (
            _HEADER.unpack_from(buffer, start)
        )
        if base != _BASE_VERSION:
            raise HeaderError(f"a MAD has base version {base}, not {_BASE_VERSION}")
        body = bytes(buffer[start + HEADER_BYTES : stop])
        data: bytes | AnyMessage = body
        header: ClassHeader | None = None
        row = classHeader(class_)
        if row is not None:
            kind, before, size = row
            header = kind.parse(body[:before], body[before + size :])
            data = body[before : before + size]
        elif (class_, version, method) == (COMMUNICATION, CM_VERSION, SEND):
            message = byAttribute.get(attribute)
            if message is not None:
                data = message.parse(body, 0, DATA_BYTES)
        return cls(
            *(class_, version, method, transaction, attribute, data),
            *(modifier, status, specific, reserved, header),
        )


def decodeMAD(data: bytes | bytearray | memoryview) -> Mad:
    """
    Read a management datagram of any class.

    @param data: its 256 octets.
    @return: it; the attribute is a message of L{twisted_ib.hca.wire.cm} if it is one, else octets.
        L{encodeMAD} makes the same octets of it.
    @raise LengthError: it has not 256 octets.
    @raise HeaderError: it has another base version.
    """
    return Mad.parse(data, 0, len(data))


def encodeMAD(mad: Mad) -> bytes:
    """
    Write a management datagram.

    @return: 256 octets.
    @raise LengthError: the attribute is too long.
    @raise HeaderError: a field does not fit.
    """
    return mad.pack()
