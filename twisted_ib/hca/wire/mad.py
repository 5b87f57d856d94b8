"""
Management datagrams: what all classes of management have in common (IBTA vol. 1 13.4).

A MAD is 256 octets, the payload of an unreliable datagram from and to queue pair 1.
"""

from __future__ import annotations

from struct import Struct
from struct import error as structError
from typing import Final

from attrs import frozen

from twisted_ib.errors import WireError

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


@frozen
class MAD:
    """
    One management datagram.

    @ivar managementClass: what it manages.
    @ivar classVersion: of the class's formats.
    @ivar method: what is asked for, or with L{RESPONSE} answered.
    @ivar transaction: chosen by who asks, 64 bits.
    @ivar attribute: what it is about, 16 bits.
    @ivar modifier: which one of those, 32 bits.
    @ivar status: of an answer.
    @ivar classSpecific: 16 bits, as the class says.
    @ivar data: the L{DATA_BYTES} behind the header; what is missing is zeros.
    @ivar reserved: 16 bits, kept as they came.
    """

    managementClass: int
    classVersion: int
    method: int
    transaction: int
    attribute: int
    data: bytes = b""
    modifier: int = 0
    status: int = 0
    classSpecific: int = 0
    reserved: int = 0

    def pack(self) -> bytes:
        """
        @return: 256 octets.
        @raise WireError: a field does not fit.
        """
        if len(self.data) > DATA_BYTES:
            raise WireError(f"a MAD has {DATA_BYTES} octets of data, not {len(self.data)}")
        try:
            header = _HEADER.pack(
                *(_BASE_VERSION, self.managementClass, self.classVersion, self.method),
                *(self.status, self.classSpecific, self.transaction),
                *(self.attribute, self.reserved, self.modifier),
            )
        except structError as error:
            raise WireError(f"a MAD can not have this: {error}") from None
        return header + self.data.ljust(DATA_BYTES, b"\0")

    @classmethod
    def parse(cls, buffer: bytes | bytearray | memoryview, start: int, stop: int) -> MAD:
        """
        Read one.

        @param buffer: what holds it.
        @param start: offset of its first octet.
        @param stop: offset after its last one.
        @return: the MAD; its data is a copy.
        @raise WireError: it has not 256 octets, or another base version.
        """
        if start < 0 or stop > len(buffer) or stop - start != MAD_BYTES:
            raise WireError(f"a MAD has {MAD_BYTES} octets, not {stop - start}")
        base, class_, version, method, status, specific, transaction, attribute, reserved, modifier = (
            _HEADER.unpack_from(buffer, start)
        )
        if base != _BASE_VERSION:
            raise WireError(f"a MAD has base version {base}, not {_BASE_VERSION}")
        return cls(
            *(class_, version, method, transaction, attribute),
            bytes(buffer[start + HEADER_BYTES : stop]),
            *(modifier, status, specific, reserved),
        )
