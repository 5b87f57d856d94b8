"""
Capture files: the three block types of pcapng that a capture of packets needs (draft-ietf-opsawg-pcapng:
section header, interface description, enhanced packet). Little endian, buffered.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: Bytes that are buffered before a write, so that a packet does not cost a system call.
CAPTURE_BUFFER = 256 * 1024
#: The longest time that they stay buffered while packets come, in nanoseconds.
CAPTURE_NANOSECONDS = 1_000_000_000

_SECTION: Final = 0x0A0D0D0A
_INTERFACE: Final = 1
_PACKET: Final = 6

_BLOCK: Final[Packed[tuple[int, int]]] = Struct("<II")
_TRAILER: Final[Packed[tuple[int]]] = Struct("<I")
#: Byte-order magic, version 1.0, section length; -1 is unknown (draft-ietf-opsawg-pcapng section 4.1).
_SECTION_BODY: Final[Packed[tuple[int, int, int, int]]] = Struct("<IHHq")
_BYTE_ORDER: Final = 0x1A2B3C4D
#: Link type, reserved, snap length; 0 is unlimited (section 4.2).
_INTERFACE_BODY: Final[Packed[tuple[int, int, int]]] = Struct("<HHI")
#: The registered link types of Ethernet, and of records of Endace's ERF, which is how files have InfiniBand
#: packets: there is a type of theirs too, 247, but Wireshark (4.0, wiretap/pcap-common.c) has no entry for
#: it, and knows InfiniBand from ERF.
ETHERNET: Final = 1
ERF: Final = 197
#: ERF: timestamp, in units of 2**-32 s, little endian; then big endian type, flags, length of the record,
#: loss counter, length of the packet.
_ERF_TIME: Final[Packed[tuple[int]]] = Struct("<Q")
_ERF_REST: Final[Packed[tuple[int, int, int, int, int]]] = Struct(">BBHHH")
_ERF_INFINIBAND: Final = 21
_ERF_VARYING: Final = 4
_SECOND: Final = 1_000_000_000
#: Interface, timestamp (upper and lower half), captured length, original length (section 4.3).
_PACKET_BODY: Final[Packed[tuple[int, int, int, int, int]]] = Struct("<IIIII")

_OPTION: Final[Packed[tuple[int, int]]] = Struct("<HH")
_NAME, _DESCRIPTION, _RESOLUTION = 2, 3, 9
_APPLICATION: Final = 4
_FLAGS: Final = 2
#: if_tsresol: 10**-9 s.
_NANO: Final = b"\x09"
#: epb_flags: inbound, outbound.
_INBOUND = b"\x01\0\0\0"
_OUTBOUND = b"\x02\0\0\0"


def _option(code: int, value: bytes) -> bytes:
    return _OPTION.pack(code, len(value)) + value + bytes(-len(value) & 3)


_END: Final = _option(0, b"")
_DIRECTIONS: Final = (_option(_FLAGS, _INBOUND) + _END, _option(_FLAGS, _OUTBOUND) + _END)


def _block(kind: int, *pieces: bytes) -> bytes:
    total = 12 + sum([len(piece) for piece in pieces])
    return b"".join((_BLOCK.pack(kind, total), *pieces, _TRAILER.pack(total)))


def _record(now: int, packet: bytes) -> bytes:
    size = len(packet)
    rest = _ERF_REST.pack(_ERF_INFINIBAND, _ERF_VARYING, _ERF_TIME.size + _ERF_REST.size + size, 0, size)
    return _ERF_TIME.pack((now << 32) // _SECOND) + rest + packet


class Writer:
    """
    A pcapng file that packets are appended to.

    @ivar fd: its descriptor, -1 once it is closed.
    @ivar eager: whether each packet is written at once.
    """

    def __init__(self, path: str, clock: Callable[[], int]) -> None:
        """
        @param path: file name; an existing file is overwritten.
        @param clock: returns the time in nanoseconds since 1970.
        @raise OSError: it cannot be written.
        """
        self._clock = clock
        self._blocks: list[bytes] = []
        self._size = 0
        self._interfaces: list[int] = []
        self._flushed = clock()
        self.eager = False
        # Readable by its owner only, and no symbolic link is followed: a capture contains all payloads, and
        # its name may be predictable.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self.fd = os.open(path, flags, 0o600)
        self._add(
            _block(
                _SECTION,
                _SECTION_BODY.pack(_BYTE_ORDER, 1, 0, -1),
                _option(_APPLICATION, b"twisted_ib"),
                _END,
            )
        )

    def interface(self, name: str, description: str, linkType: int) -> int:
        """
        Add an interface description block.

        @param linkType: L{ETHERNET} or L{ERF}, for InfiniBand packets.
        @return: the interface's number.
        """
        self._add(
            _block(
                _INTERFACE,
                _INTERFACE_BODY.pack(linkType, 0, 0),
                _option(_NAME, name.encode()),
                _option(_DESCRIPTION, description.encode()),
                _option(_RESOLUTION, _NANO),
                _END,
            )
        )
        self._interfaces.append(linkType)
        return len(self._interfaces) - 1

    def packet(self, interface: int, outbound: bool, frame: bytes) -> None:
        """
        Append a packet.

        @param outbound: whether the interface sent it.
        @raise OSError: the file cannot be written.
        """
        now = self._clock()
        if self._interfaces[interface] == ERF:
            frame = _record(now, frame)
        size = len(frame)
        head = _PACKET_BODY.pack(interface, now >> 32, now & 0xFFFFFFFF, size, size)
        self._add(_block(_PACKET, head, frame, bytes(-size & 3), _DIRECTIONS[outbound]))
        late = self.eager or now - self._flushed >= CAPTURE_NANOSECONDS
        if late or self._size >= CAPTURE_BUFFER:
            self.flush()

    def _add(self, block: bytes) -> None:
        self._blocks.append(block)
        self._size += len(block)

    def flush(self) -> None:
        """
        Write the buffer.

        @raise OSError: the file cannot be written.
        """
        blocks, self._blocks = self._blocks, []
        self._size = 0
        self._flushed = self._clock()
        rest = memoryview(b"".join(blocks))
        # os.write may be partial; a truncated block would make the rest of the file unreadable.
        while rest and self.fd >= 0:
            rest = rest[os.write(self.fd, rest) :]

    def drop(self) -> None:
        """
        Close the file without writing the buffer.
        """
        fd, self.fd = self.fd, -1
        self._blocks = []
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """
        Write the buffer and close the file.

        @raise OSError: it cannot be written; it is closed nevertheless.
        """
        try:
            self.flush()
        finally:
            self.drop()
