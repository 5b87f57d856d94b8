"""
Capture files: the three block types of pcapng that a capture of packets needs
(draft-ietf-opsawg-pcapng: section header, interface description, enhanced packet).

Integers are in little endian.  What is written waits in a buffer of bounded size, so that a
packet does not cost a call of the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import Struct
from typing import Final

#: Bytes of a capture file that wait to be written.
CAPTURE_BUFFER = 256 * 1024
#: How long they wait at most, while packets come, in nanoseconds.
CAPTURE_NANOSECONDS = 1_000_000_000

_SECTION: Final = 0x0A0D0D0A
_INTERFACE: Final = 1
_PACKET: Final = 6

_BLOCK: Final = Struct("<II")
_TRAILER: Final = Struct("<I")
#: Byte order, version 1.0, length of the section: unknown.
_SECTION_BODY: Final = Struct("<IHHq")
_BYTE_ORDER: Final = 0x1A2B3C4D
#: Link type, reserved, longest packet: no bound.
_INTERFACE_BODY: Final = Struct("<HHI")
_ETHERNET: Final = 1
#: Interface, time (upper and lower half), bytes here, bytes on the wire.
_PACKET_BODY: Final = Struct("<IIIII")

_OPTION: Final = Struct("<HH")
_NAME, _DESCRIPTION, _RESOLUTION = 2, 3, 9
_APPLICATION: Final = 4
_FLAGS: Final = 2
#: Time is in nanoseconds.
_NANO: Final = b"\x09"
#: Direction: to this host, from it.
_INBOUND = b"\x01\0\0\0"
_OUTBOUND = b"\x02\0\0\0"


def _option(code: int, value: bytes) -> bytes:
    return _OPTION.pack(code, len(value)) + value + bytes(-len(value) & 3)


_END: Final = _option(0, b"")
_DIRECTIONS: Final = (_option(_FLAGS, _INBOUND) + _END, _option(_FLAGS, _OUTBOUND) + _END)


def _block(kind: int, *pieces: bytes) -> bytes:
    total = 12 + sum([len(piece) for piece in pieces])
    return b"".join((_BLOCK.pack(kind, total), *pieces, _TRAILER.pack(total)))


class Writer:
    """
    A file that packets are appended to.

    @ivar fd: its descriptor, -1 when it is closed.
    @ivar eager: whether nothing waits to be written.
    """

    def __init__(self, path: str, clock: Callable[[], int]) -> None:
        """
        Begin the file.  It is its owner's alone: a capture has all that was said.

        @param path: its name; what is there is overwritten.
        @param clock: gives the time in nanoseconds since 1970.
        @raise OSError: it cannot be written.
        """
        self._clock = clock
        self._blocks: list[bytes] = []
        self._size = self._interfaces = 0
        self._flushed = clock()
        self.eager = False
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

    def interface(self, name: str, description: str) -> int:
        """
        Describe an interface.

        @return: its number.
        """
        self._add(
            _block(
                _INTERFACE,
                _INTERFACE_BODY.pack(_ETHERNET, 0, 0),
                _option(_NAME, name.encode()),
                _option(_DESCRIPTION, description.encode()),
                _option(_RESOLUTION, _NANO),
                _END,
            )
        )
        self._interfaces += 1
        return self._interfaces - 1

    def packet(self, interface: int, outbound: bool, frame: bytes) -> None:
        """
        Append a packet.

        @param outbound: whether the interface has sent it.
        @raise OSError: the file cannot be written.
        """
        now, size = self._clock(), len(frame)
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
        Write what waits.

        @raise OSError: the file cannot be written.
        """
        blocks, self._blocks = self._blocks, []
        self._size = 0
        self._flushed = self._clock()
        rest = memoryview(b"".join(blocks))
        while rest and self.fd >= 0:
            rest = rest[os.write(self.fd, rest) :]

    def drop(self) -> None:
        """
        Close the file without what waits: it is another process's.
        """
        fd, self.fd = self.fd, -1
        self._blocks = []
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """
        Write what waits and close the file.

        @raise OSError: it cannot be written; it is closed all the same.
        """
        try:
            self.flush()
        finally:
            self.drop()
