"""
Messages of frames: what goes over a connection of C{ib:}.

An ib: message is one of these::

    FRAMES  kind, 3 reserved, number of frames
            for each frame: length, address, R_Key, pointer; without a key the frame is in this message
            the frames that are in this message, joined
    BODY    kind, 3 reserved, 0; length, address, R_Key, pointer: where FRAMES are that are too long
    READ    kind, 3 reserved, 0: the receiver has read all that the oldest message before has lent

The receiver READs what has a key into memory of its own, and then sends READ: the sender's memory is
deregistered.  The pointer, if it is not 0, is where the frame is in the sender's process: see
L{twisted_ib.dask.direct}.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

from attrs import frozen

from twisted_ib import limits
from twisted_ib.errors import WireError

if TYPE_CHECKING:
    from twisted_ib.structs import Packed

FRAMES, BODY, READ = 1, 2, 3
#: Kind, number of frames.
_HEAD: Packed[tuple[int, int]] = Struct(">B3xI")
#: Length, address, R_Key, pointer.
_PLACE: Packed[tuple[int, int, int, int]] = Struct(">QQIQ")
#: How long messages are of which it is known.
_LENGTHS = {BODY: _HEAD.size + _PLACE.size, READ: _HEAD.size}
#: An address has 64 bits.
_ADDRESSES = 1 << 64


@frozen
class Place:
    """
    Where the bytes of a frame are that is lent.

    @ivar length: Bytes.
    @ivar address: The address in the sender's memory.
    @ivar key: The R_Key, not 0.
    @ivar pointer: The address in the sender's process; 0 if the receiver shall READ all of it.
    """

    length: int
    address: int
    key: int
    pointer: int = 0

    def packed(self) -> bytes:
        """
        As in messages.
        """
        return _PLACE.pack(self.length, self.address, self.key, self.pointer)


#: A frame: its bytes, which are in the message, or where they are.
Frame: TypeAlias = bytes | bytearray | memoryview | Place


def lent(lengths: Sequence[int], most: int) -> list[int]:
    """
    Choose the frames that are lent.

    @param lengths: The bytes of each frame.
    @param most: The longest message.
    @return: Their numbers.
    """
    if _HEAD.size + len(lengths) * _PLACE.size + sum(lengths) <= most:
        return []
    large = [number for number, length in enumerate(lengths) if length >= limits.DASK_FRAME_BYTES]
    return large[: limits.DASK_FRAMES]


def frames(parts: Sequence[Frame]) -> bytes:
    """
    Make a message of frames.
    """
    head: list[bytes | bytearray | memoryview] = [_HEAD.pack(FRAMES, len(parts))]
    carried = []
    for part in parts:
        if isinstance(part, Place):
            head.append(part.packed())
        else:
            head.append(_PLACE.pack(len(part), 0, 0, 0))
            carried.append(part)
    return b"".join(head + carried)


def body(place: Place) -> bytes:
    """
    Make a message that says where a message of frames is.
    """
    return _HEAD.pack(BODY, 0) + place.packed()


def read() -> bytes:
    """
    Make a message that gives back what was lent.
    """
    return _HEAD.pack(READ, 0)


def kindOf(message: memoryview) -> int:
    """
    Return what a message is.

    @raise WireError: It is none of these.
    """
    if len(message) < _HEAD.size:
        raise WireError(f"a message of {len(message)} bytes is too short")
    kind, count = _HEAD.unpack_from(message)
    if kind != FRAMES and (count or len(message) != _LENGTHS.get(kind)):
        raise WireError(f"a message of kind {kind} has {len(message)} bytes and {count} frames")
    return kind


def placeOf(message: memoryview) -> Place:
    """
    Parse where a message of frames is.

    @param message: A BODY.
    @raise WireError: It is nowhere.
    """
    found = Place(*_PLACE.unpack_from(message, _HEAD.size))
    if not found.key:
        raise WireError("a message that is elsewhere has no key")
    _checkLent(found, _HEAD.size, limits.MESSAGE_BYTES)
    return found


def _checkLent(place: Place, least: int, most: int) -> None:
    if not least <= place.length <= most or max(place.address, place.pointer) + place.length > _ADDRESSES:
        raise WireError(f"no {place.length} bytes can be lent at {place.address:#x}")


def partsOf(message: memoryview) -> list[Place | memoryview]:
    """
    Parse a message of frames.

    @param message: FRAMES.
    @return: Of each frame the bytes, or where they are.
    @raise WireError: It is malformed.
    """
    kind, count = _HEAD.unpack_from(message) if len(message) >= _HEAD.size else (0, 0)
    if kind != FRAMES:
        raise WireError("these are no frames")
    at = _HEAD.size + count * _PLACE.size
    if at > len(message):
        raise WireError(f"a message of {len(message)} bytes has no {count} frames")
    parts: list[Place | memoryview] = []
    places = 0
    for length, address, key, pointer in _PLACE.iter_unpack(message[_HEAD.size : at]):
        if key:
            place = Place(length, address, key, pointer)
            _checkLent(place, 1, limits.DASK_FRAME_MOST)
            parts.append(place)
            places += 1
        else:
            parts.append(message[at : at + length])
            at += length
    if at != len(message):
        raise WireError(f"a message of {len(message)} bytes has frames of {at}")
    if places > limits.DASK_FRAMES:
        raise WireError(f"a message lends {places} frames")
    return parts
