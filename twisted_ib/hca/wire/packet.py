"""
One packet from BTH to pad, as a value: what all carriers of packets have in common.

Data paths do not use L{Packet}: they read single fields with L{OPCODES<twisted_ib.hca.wire.opcodes.OPCODES>}
and the layouts of L{twisted_ib.hca.wire.headers}.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import error as structError
from typing import Any, Final

from attrs import frozen

from twisted_ib.errors import HeaderError, LengthError, OpcodeError, WireError
from twisted_ib.hca.wire.extended import EXTENDED_HEADERS, ExtendedHeader
from twisted_ib.hca.wire.headers import BTH, ICRC
from twisted_ib.hca.wire.opcodes import OPCODES, Opcode
from twisted_ib.layouts import Codec, bits, flag, split

#: The default P_Key, as a full member (IBTA vol. 1 10.9.1.2).
DEFAULT_PARTITION: Final = 0xFFFF

# IBTA vol. 1 9.2: the second octet of the BTH.
_PAD_SHIFT: Final = 4
_VERSION_MASK: Final = 0xF
#: Where the pad count ends, in bits from the end of the BTH.
_PAD_END: Final = BTH.size * 8 - 16 + _PAD_SHIFT


def _rowOf(code: int) -> Opcode:
    row = OPCODES.get(code)
    if row is None:
        raise OpcodeError(f"there is no operation code {code:#04x}")
    return row


def _named(row: Opcode, numbers: Sequence[int]) -> tuple[ExtendedHeader, ...]:
    # Extended headers of the numbers of the row's layout, in order.
    found, at = [], 0
    for layout in row.headers:
        kind = EXTENDED_HEADERS[layout]
        found.append(kind(*numbers[at : at + len(kind._fields)]))
        at += len(kind._fields)
    return tuple(found)


@frozen
class BaseHeader:
    """
    The base transport header (BTH), without the pad count, which is computed, and the version, which is 0.

    @ivar opcode: 8 bits, one of L{OPCODES<twisted_ib.hca.wire.opcodes.OPCODES>}.
    @ivar destination: the destination QPN.
    @ivar psn: the packet sequence number.
    @ivar solicited: SE, solicited event.
    @ivar acknowledge: AckReq.
    @ivar migrated: MigReq, the state of path migration.
    @ivar forward: FECN.
    @ivar backward: BECN.
    @ivar partition: the P_Key.
    @ivar reserved: 13 bits, preserved: 6 above the destination, 7 above the PSN.
    """

    opcode: int = bits(0, 8)
    destination: int = bits(5, 24)
    psn: int = bits(9, 24)
    solicited: bool = flag(1, 7)
    acknowledge: bool = flag(8, 7)
    migrated: bool = flag(1, 6)
    forward: bool = flag(4, 7)
    backward: bool = flag(4, 6)
    partition: int = bits(2, 16, default=DEFAULT_PARTITION)
    reserved: int = split((4, 6, 5), (8, 7, 6))


_BASE: Final = Codec(BaseHeader, BTH.size)


@frozen
class Packet:
    """
    One packet.

    @ivar headers: the extended headers of the opcode, in order.
    @ivar payload: without pad.
    """

    bth: BaseHeader
    headers: tuple[ExtendedHeader, ...] = ()
    payload: Any = b""

    @classmethod
    def of(cls, bth: BaseHeader, numbers: Sequence[int] = (), payload: Any = b"") -> Packet:
        """
        Make a packet from the numbers of its extended headers, in order.

        @raise OpcodeError: the opcode is undefined.
        """
        return cls(bth, _named(_rowOf(bth.opcode), numbers), payload)

    @property
    def row(self) -> Opcode:
        """
        The description of the opcode.

        @raise OpcodeError: the opcode is undefined.
        """
        return _rowOf(self.bth.opcode)

    def __getitem__(self, name: str) -> int:
        """
        A field of the extended headers.

        @raise KeyError: this packet has no such field.
        """
        for header in self.headers:
            if name in header._fields:
                found: int = getattr(header, name)
                return found
        raise KeyError(name)

    def pack(self) -> bytes:
        """
        @return: BTH, extended headers, payload and pad.
        @raise WireError: a field does not fit, the headers are not those of the opcode, or it is undefined.
        """
        row, pad = self.row, -len(self.payload) & 3
        numbers = [number for header in self.headers for number in header]
        try:
            base = int.from_bytes(_BASE.pack(self.bth), "big") | pad << _PAD_END
            pieces = base.to_bytes(BTH.size, "big"), row.layout.pack(*numbers)
        except (structError, ValueError) as error:
            raise HeaderError(f"{row.name}: {error}") from None
        return b"".join((*pieces, self.payload, bytes(pad)))

    @classmethod
    def parse(cls, buffer: bytes | bytearray | memoryview, start: int, stop: int) -> Packet:
        """
        Parse a packet.

        @param buffer: holds it; the payload is a slice of it.
        @param start: offset of its BTH.
        @param stop: offset of the end of its ICRC, which is not checked here.
        @raise WireError: it is too short or not whole words, its pad is not zero, its version is not 0, or
            its opcode is undefined. A receiver drops it silently.
        """
        size = stop - start
        if start < 0 or stop > len(buffer) or size < BTH.size + ICRC.size or size & 3:
            raise LengthError(f"a packet has not {size} octets")
        flags = buffer[start + 1]
        # IBTA vol. 1 9.2: TVer is 0; Linux rxe_recv.c drops other packets too.
        if flags & _VERSION_MASK:
            raise HeaderError(f"a packet has version {flags & _VERSION_MASK}, not 0")
        row = _rowOf(buffer[start])
        body = start + row.start
        pad = flags >> _PAD_SHIFT & 3
        end = stop - ICRC.size - pad
        # An opcode's headers and the pad must fit before either is read (Linux rxe_recv.c rxe_rcv).
        if end < body:
            raise LengthError(f"{row.name}: a packet of {size} octets is too short")
        # Refused here, so that encodePacket reproduces every accepted packet; the fabric's receive path
        # ignores pad octets.
        if pad and any(buffer[end : end + pad]):
            raise WireError("a packet's pad is not zeros")
        bth = _BASE.parse(bytes(buffer[start : start + BTH.size]))
        return cls(bth, _named(row, row.layout.unpack_from(buffer, start + BTH.size)), buffer[body:end])
