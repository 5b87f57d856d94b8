"""
Management datagrams: the common part of all management classes (IBTA vol. 1 13.4).

A MAD is 256 octets, the payload of an unreliable datagram from and to queue pair 1: the common header, a
class header (L{twisted_ib.hca.wire.mad.classes}), and the attribute.
"""

from __future__ import annotations

from struct import Struct
from struct import error as structError
from typing import TYPE_CHECKING, Final

from attrs import frozen

from twisted_ib.errors import HeaderError, LengthError
from twisted_ib.hca.wire.cm.messages import AnyMessage, byAttribute
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.classes import COMMUNICATION, ClassHeader, classHeader

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: IBTA vol. 1 13.4.3: base version, class, class version, method; status, class specific; transaction id;
#: attribute id, reserved, attribute modifier.
HEADER: Final[Packed[tuple[int, int, int, int, int, int, int, int, int, int]]] = Struct(">BBBBHHQHHI")
HEADER_BYTES: Final = HEADER.size
#: Offsets of the class, which the version follows, of the method, of the status and of the attribute id.
CLASS_AT: Final = 1
METHOD_AT: Final = 3
STATUS_AT: Final = 4
ATTRIBUTE_AT: Final = slice(16, 18)
DATA_BYTES: Final = MAD_BYTES - HEADER_BYTES

BASE_VERSION: Final = 1
# Methods of all classes (IBTA vol. 1 13.4.5); the reply to both Get and Set is GetResp.
GET: Final = 0x01
SET: Final = 0x02
GET_RESPONSE: Final = 0x81
TRAP: Final = 0x05
REPORT: Final = 0x06
TRAP_REPRESS: Final = 0x07
#: The response bit of a method. TrapRepress lacks it, though Linux mad.c ib_response_mad counts that as a
#: response.
RESPONSE: Final = 0x80

#: Status of a response: another queue pair serves this class (IBTA vol. 1 13.5.2).
REDIRECTED: Final = 0x02
# The same, bits 4 to 2 (IBTA vol. 1 13.4.7; Linux ib_mad.h IB_MGMT_MAD_STATUS_*).
BAD_VERSION: Final = 0x04
UNSUPPORTED_METHOD: Final = 0x08
UNSUPPORTED_METHOD_ATTRIBUTE: Final = 0x0C
INVALID_ATTRIBUTE_VALUE: Final = 0x1C
#: The direction bit in the status of a directed route SMP: it returns (Linux ib_smi.h IB_SMP_DIRECTION).
DIRECTION: Final = 0x8000
#: The attribute that every class has.
CLASS_PORT_INFO: Final = 0x0001

#: Class version of subnet management.
SM_VERSION: Final = 1
#: Class version of connection management (Linux cm_msgs.h IB_CM_CLASS_VERSION).
CM_VERSION: Final = 2
#: Method of all CM messages, answers included.
SEND: Final = 0x03


def communicationHeader(transaction: int, attribute: int) -> bytes:
    """
    @return: the common header of a message of connection management.
    """
    # IBTA vol. 1 12.6: all CM messages have method Send, answers included.
    return HEADER.pack(BASE_VERSION, COMMUNICATION, CM_VERSION, SEND, 0, 0, transaction, attribute, 0, 0)


@frozen
class Mad:
    """
    One management datagram.

    @ivar managementClass: 8 bits.
    @ivar classVersion: version of the class's formats.
    @ivar method: with L{RESPONSE} set in an answer.
    @ivar transaction: transaction id, chosen by the requester, 64 bits.
    @ivar attribute: attribute id, 16 bits.
    @ivar data: the attribute: a CM message, or octets, which are padded with zeros.
    @ivar modifier: attribute modifier, 32 bits.
    @ivar status: of an answer.
    @ivar classSpecific: 16 bits.
    @ivar reserved: 16 bits, preserved.
    @ivar header: the class header; L{None} for a class without one, or for one of zeros.
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
            header = HEADER.pack(
                *(BASE_VERSION, self.managementClass, self.classVersion, self.method),
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
        data = self.data if isinstance(self.data, bytes) else self.data.pack()
        row = classHeader(self.managementClass)
        # Class headers may stand in front of the attribute and behind it: SMPs have paths or reserved octets
        # there.
        if row is None:
            return b"", data.ljust(DATA_BYTES, b"\0"), b""
        kind, front, size, codec = row
        header = kind() if self.header is None else self.header
        if type(header) is not kind:
            raise ValueError(f"class {self.managementClass:#04x} has no {type(header).__name__}")
        around = codec.pack(header)
        return around[:front], data.ljust(size, b"\0"), around[front + size :]

    @classmethod
    def parse(cls, buffer: bytes | bytearray | memoryview, start: int, stop: int) -> Mad:
        """
        Parse a MAD; all octets are copied.

        @param buffer: holds it.
        @param start: offset of its first octet.
        @param stop: offset of its end.
        @raise LengthError: it does not have 256 octets.
        @raise HeaderError: it has another base version.
        """
        if start < 0 or stop > len(buffer) or stop - start != MAD_BYTES:
            raise LengthError(f"a MAD has {MAD_BYTES} octets, not {stop - start}")
        base, class_, version, method, status, specific, transaction, attribute, reserved, modifier = (
            HEADER.unpack_from(buffer, start)
        )
        if base != BASE_VERSION:
            raise HeaderError(f"a MAD has base version {base}, not {BASE_VERSION}")
        body = bytes(buffer[start + HEADER_BYTES : stop])
        data: bytes | AnyMessage = body
        header: ClassHeader | None = None
        row = classHeader(class_)
        if row is not None:
            _, front, size, codec = row
            header = codec.parse(body)
            data = body[front : front + size]
        elif (class_, version, method) == (COMMUNICATION, CM_VERSION, SEND):
            # An unknown CM attribute stays octets: decodeMAD must preserve every MAD, and the table counts
            # it.
            message = byAttribute.get(attribute)
            if message is not None:
                data = message.parse(body, 0, DATA_BYTES)
        return cls(
            *(class_, version, method, transaction, attribute, data),
            *(modifier, status, specific, reserved, header),
        )


def decodeMAD(data: bytes | bytearray | memoryview) -> Mad:
    """
    Parse a management datagram of any class.

    @param data: its 256 octets.
    @return: the MAD; C{data} is a message of L{twisted_ib.hca.wire.cm}, or octets. L{encodeMAD} makes the
        same octets of it.
    @raise LengthError: it does not have 256 octets.
    @raise HeaderError: it has another base version.
    """
    return Mad.parse(data, 0, len(data))


def encodeMAD(mad: Mad) -> bytes:
    """
    Serialize a management datagram.

    @return: 256 octets.
    @raise LengthError: the attribute is too long.
    @raise HeaderError: a field does not fit.
    """
    return mad.pack()
