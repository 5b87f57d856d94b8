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

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import TYPE_CHECKING

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
#: An address has 64 bits.
_ADDRESSES = 1 << 64


@frozen
class Place:
    """
    Where the bytes of a frame are.

    @ivar length: Bytes.
    @ivar address: The address in the sender's memory.
    @ivar key: The R_Key; 0 if the frame is in the message itself.
    @ivar pointer: The address in the sender's process; 0 if the receiver shall READ all of it.
    """

    length: int
    address: int = 0
    key: int = 0
    pointer: int = 0

    def packed(self) -> bytes:
        """
        As in messages.
        """
        return _PLACE.pack(self.length, self.address, self.key, self.pointer)


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


def frames(places: Sequence[Place], carried: Iterable[bytes | memoryview]) -> bytes:
    """
    Make a message of frames.

    @param places: Where each is.
    @param carried: The bytes of those without a key.
    """
    head = [_HEAD.pack(FRAMES, len(places))]
    head += [each.packed() for each in places]
    return b"".join((*head, *carried))


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
    kind, count = _HEAD.unpack_from(message, 0)
    length = {FRAMES: len(message), BODY: _HEAD.size + _PLACE.size, READ: _HEAD.size}.get(kind)
    if len(message) != length or (count and kind != FRAMES):
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


def isLending(message: memoryview) -> bool:
    """
    Return whether the sender of a message waits for a READ.

    @param message: FRAMES or a BODY.
    @raise WireError: It is malformed.
    """
    return kindOf(message) == BODY or any(place.key for place in placesOf(message)[0])


def placesOf(message: memoryview) -> tuple[list[Place], list[memoryview]]:
    """
    Parse a message of frames.

    @param message: FRAMES.
    @return: Where each frame is, and the bytes of those that are in the message.
    @raise WireError: It is malformed.
    """
    if kindOf(message) != FRAMES:
        raise WireError("these are no frames")
    _, count = _HEAD.unpack_from(message, 0)
    at = _HEAD.size + count * _PLACE.size
    if at > len(message):
        raise WireError(f"a message of {len(message)} bytes has no {count} frames")
    found = [Place(*_PLACE.unpack_from(message, start)) for start in range(_HEAD.size, at, _PLACE.size)]
    carried = []
    for each in found:
        if each.key:
            _checkLent(each, 1, limits.DASK_FRAME_MOST)
        else:
            carried.append(message[at : at + each.length])
            at += each.length
    if at != len(message):
        raise WireError(f"a message of {len(message)} bytes has frames of {at}")
    if len(found) - len(carried) > limits.DASK_FRAMES:
        raise WireError(f"a message lends {len(found) - len(carried)} frames")
    return found, carried
