"""
One packet from the base transport header to the pad: what all carriers of packets have in
common.

Who handles many packets takes what it needs by the row of L{OPCODES
<twisted_ib.hca.wire.opcodes.OPCODES>} and the layouts of L{twisted_ib.hca.wire.headers}; a
L{Packet} is all of it as an object.
"""

from __future__ import annotations

from struct import error as structError
from typing import Any, Final

from attrs import frozen

from twisted_ib.errors import WireError
from twisted_ib.hca.wire.headers import BTH, ICRC, PSN_MASK, QPN_MASK
from twisted_ib.hca.wire.opcodes import OPCODES, Opcode

#: The default partition, as a full member (IBTA vol. 1 10.9.1.2).
DEFAULT_PARTITION: Final = 0xFFFF

# The second octet of the BTH
_SOLICITED = 0x80
_MIGRATED = 0x40
_PAD_SHIFT = 4
_VERSION_MASK = 0xF
# The third word, above the destination
_FORWARD = 0x80000000
_BACKWARD = 0x40000000
# The last word, above the PSN
_ACKNOWLEDGE = 0x80000000


@frozen
class Packet:
    """
    One packet.

    @ivar opcode: 8 bits, one of L{OPCODES<twisted_ib.hca.wire.opcodes.OPCODES>}.
    @ivar destination: the queue pair number that it is for.
    @ivar psn: its sequence number.
    @ivar extended: the numbers of its extended headers, in order;
        C{OPCODES[opcode].fields} are their names.
    @ivar payload: without pad.
    @ivar solicited: whether the receiver's completion is solicited.
    @ivar acknowledge: whether the sender asks for an acknowledgement.
    @ivar migrated: the state of path migration.
    @ivar forward: a router was congested (FECN).
    @ivar backward: the other direction was (BECN).
    @ivar partition: the P_Key.
    """

    opcode: int
    destination: int
    psn: int
    extended: tuple[int, ...] = ()
    payload: Any = b""
    solicited: bool = False
    acknowledge: bool = False
    migrated: bool = False
    forward: bool = False
    backward: bool = False
    partition: int = DEFAULT_PARTITION

    @property
    def row(self) -> Opcode:
        """
        What packets of this code have.

        @raise WireError: there is no such code.
        """
        row = OPCODES.get(self.opcode)
        if row is None:
            raise WireError(f"there is no operation code {self.opcode:#04x}")
        return row

    def __getitem__(self, name: str) -> int:
        """
        A number of the extended headers.

        @raise KeyError: this packet has none of that name.
        """
        fields = self.row.fields
        if name not in fields:
            raise KeyError(name)
        return self.extended[fields.index(name)]

    def pack(self) -> bytes:
        """
        @return: BTH, extended headers, payload and pad.
        @raise WireError: a field does not fit, or there is no such operation code.
        """
        row, payload = self.row, self.payload
        if self.destination >> 24 or self.psn >> 24 or self.partition >> 16:
            raise WireError(f"a packet has no field so long: {self}")
        pad = -len(payload) & 3
        flags = pad << _PAD_SHIFT
        if self.solicited:
            flags |= _SOLICITED
        if self.migrated:
            flags |= _MIGRATED
        destination = self.destination
        if self.forward:
            destination |= _FORWARD
        if self.backward:
            destination |= _BACKWARD
        psn = self.psn | _ACKNOWLEDGE if self.acknowledge else self.psn
        head = BTH.pack(self.opcode, flags, self.partition, destination, psn)
        try:
            return b"".join((head, row.layout.pack(*self.extended), payload, bytes(pad)))
        except structError as error:
            raise WireError(f"{row.name}: {error}") from None

    @classmethod
    def parse(cls, buffer: bytes | bytearray | memoryview, start: int, stop: int) -> Packet:
        """
        Read one.  Reserved bits, and what the pad is, are not looked at.

        @param buffer: what holds it; the payload is a slice of it.
        @param start: offset of its BTH.
        @param stop: offset after its invariant CRC.
        @return: the packet.
        @raise WireError: it is too short, or of another version, or its operation code has no
            meaning; on a wire it is dropped.
        """
        if start < 0 or stop > len(buffer) or stop - start < BTH.size + ICRC.size:
            raise WireError(f"a packet of {stop - start} octets is too short")
        code, flags, partition, destination, psn = BTH.unpack_from(buffer, start)
        if flags & _VERSION_MASK:
            raise WireError(f"a packet has version {flags & _VERSION_MASK}, not 0")
        row = OPCODES.get(code)
        if row is None:
            raise WireError(f"there is no operation code {code:#04x}")
        body = start + row.start
        end = stop - ICRC.size - (flags >> _PAD_SHIFT & 3)
        if end < body:
            raise WireError(f"{row.name}: a packet of {stop - start} octets is too short")
        return cls(
            code,
            destination & QPN_MASK,
            psn & PSN_MASK,
            row.layout.unpack_from(buffer, start + BTH.size),
            buffer[body:end],
            bool(flags & _SOLICITED),
            bool(psn & _ACKNOWLEDGE),
            bool(flags & _MIGRATED),
            bool(destination & _FORWARD),
            bool(destination & _BACKWARD),
            partition,
        )
