"""
The protocol of rsockets, without I/O: work requests out, completions in.

Each side shows the other half of a receive buffer, by an entry of the other's I{target list}.  Data is
written there by RDMA WRITE with immediate data; the immediate data is a I{message}, three bits of which say
what it is.  A half that was read is shown again, by a write into the peer's target list.  Each message takes
a receive of the peer's, so a sender also needs I{credits}.

Programs may show memory of their own, too: by an entry of the peer's I{map}, which lies behind its target
list.  The peer writes there without a message.

Where no RDMA WRITE has immediate data, as over iWARP, a SEND behind the write brings the message, as four
octets in the host's order.  The streams here are the same: such a pair is one of their requests.

Source: rdma-core 44, C{librdmacm/docs/rsocket}; C{librdmacm/rsocket.c} for what that leaves open.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final

import attrs

from twisted_ib.errors import WireError

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: Work requests of each direction, and octets of each buffer: the defaults of librdmacm.  Programs change the
#: buffers by options.
DEPTH: Final = 384
BUFFER_BYTES: Final = 1 << 17
#: Entries of a target list.
TARGETS: Final = 2
#: Work requests that only control messages may take: credits must not wait for data.
CONTROL_REQUESTS: Final = 4
#: Octets of one entry of a target list, and of a map.
TARGET_BYTES: Final = 16
MAP_BYTES: Final = 24
#: Entries of a map at most: a greeting has more only in 256s.
MOST_MAPS: Final = 128
#: Nothing is written while the send buffer has less room: small writes cost as much as large ones.
LEAST_ROOM: Final = 2048
#: A write begins with this many octets and doubles, so that the peer reads while the rest is copied.
FIRST_WRITE: Final = 2048
MOST_WRITE: Final = 1 << 16

_VERSION: Final = 1
_SEQUENCE: Final = 0xFFFF
_HALF_SEQUENCE: Final = 0x8000
_DATA_BITS: Final = 29
_DATA_MASK: Final = (1 << _DATA_BITS) - 1
#: Addresses are the peer's word: a sum that is beyond 64 bits wraps, and the peer's key refuses it.
_ADDRESS_MASK: Final = (1 << 64) - 1

# Version, flags, credits; entries of the I/O map; address, key and length of the target list and of the first
# half of the receive buffer.
_GREETING: Final[Packed[tuple[int, int, int, int, int, int, int, int, int, int]]] = Struct("!BBH3xBQIIQII")
#: Octets of the greeting in private data.
GREETING_BYTES: Final = _GREETING.size
#: A flag of the greeting: the host is big endian, and so is what it writes into a target list.
_BIG_ENDIAN: Final = 1
#: A flag of the greeting: it says how many entries the map has.
_MAPS: Final = 2
_LITTLE_TARGET: Final[Packed[tuple[int, int, int]]] = Struct("<QII")
_BIG_TARGET: Final[Packed[tuple[int, int, int]]] = Struct(">QII")
# Of a map: the offset, and address, key and length of the memory there.
_LITTLE_MAP: Final[Packed[tuple[int, int, int, int]]] = Struct("<QQII")
_BIG_MAP: Final[Packed[tuple[int, int, int, int]]] = Struct(">QQII")


class Operation(IntEnum):
    """
    The upper three bits of a message.

    @cvar DIRECT: only of a work request's identifier: such a write has no message.
    """

    DATA = 0
    DIRECT = 2
    CREDITS = 4
    MAP = 6
    CONTROL = 7


class Control(IntEnum):
    """
    The rest of a control message.
    """

    DISCONNECT = 0
    KEEPALIVE = 1
    SHUTDOWN = 2


class Way:
    """
    The directions that are open: numbers, as each call looks at them, and of flags each operator makes a new
    object.
    """

    READ: Final = 1
    WRITE: Final = 2


@attrs.frozen
class Region:
    """
    Registered memory of this side.
    """

    address: int
    key: int
    length: int


@attrs.define
class Write:
    """
    A work request: an RDMA WRITE with immediate data.

    @ivar message: the immediate data, which is the request's identifier, too.
    @ivar pieces: parts of the send buffer, as offset and length.
    @ivar content: of a target or a map: what is written, if there are no pieces.
    @ivar isDirect: whether it has no immediate data, and the peer hears nothing of it.
    """

    message: int
    address: int = 0
    key: int = 0
    pieces: tuple[tuple[int, int], ...] = ()
    content: bytes = b""
    isDirect: bool = False


def _message(operation: Operation, data: int) -> int:
    return operation << _DATA_BITS | data & _DATA_MASK


class RSocketError(WireError):
    """
    The peer does not keep to the protocol.
    """


class Stream:
    """
    One connection.

    @ivar open: the directions that are open; both until a shutdown.
    @ivar isConnected: whether the peer's greeting was taken.
    @ivar isOver: whether the peer has disconnected, or a request has failed.
    """

    def __init__(
        self,
        receiving: Region,
        targets: Region,
        sendBytes: int = BUFFER_BYTES,
        depth: int = DEPTH,
        maps: int = 0,
        requests: int | None = None,
    ) -> None:
        """
        @param receiving: the receive buffer, of an even length.
        @param targets: the memory of L{TARGETS} entries that the peer writes, and behind them of the map.
        @param sendBytes: the length of the send buffer.
        @param depth: of each work queue.
        @param maps: entries of the map, at most L{MOST_MAPS}.
        @param requests: writes and messages at once, by default as many as the queue has; of pairs half.
        """
        self._receiving, self._targets, self._depth = receiving, targets, depth
        self._half = receiving.length // 2
        self.open: int = Way.READ | Way.WRITE
        self.isOver = False
        # The part for the peer to see, and where the next half begins: the greeting shows the first one.
        self._unshown, self._next = self._half, self._half
        # Messages with data that were not read, as their lengths, and where the first begins.
        self._unread: deque[int] = deque()
        self._at = 0
        #: Octets that can be read.
        self.waiting = 0
        # Messages that were read, and the number of them that brings credits even if no half is free.
        self._read, self._due = 0, depth // 2
        # Messages that were sent, and those that the peer has receives for.
        self._sent, self._credits = 0, 0
        self._most = (requests or depth) - CONTROL_REQUESTS
        self._requests, self._controls = self._most, CONTROL_REQUESTS
        self._sendBytes = self._room = sendBytes
        self._leastRoom = min(LEAST_ROOM, sendBytes)
        self._sendAt = 0
        # Where the peer's next octets go, how many are left there, and the entry that tells what follows.
        self._address = self._key = self._left = self._target = 0
        self._peerList = self._peerKey = self._peerLength = 0
        self._peerTarget = 1
        self._layout, self._mapLayout = _LITTLE_TARGET, _LITTLE_MAP
        self._maps = maps
        #: Entries of the peer's map.
        self.peerMaps = 0
        #: Entries that the peer is told of by L{updates}, by their index there: the memory, and by which
        #: offset the peer names its first octet.
        self.untold: dict[int, tuple[int, Region]] = {}
        self.isConnected = False

    # -- connecting

    def greeting(self) -> bytes:
        """
        @return: the private data of the request or its answer.
        """
        mine, first = self._targets, self._receiving
        # Targets that the peer writes are in this host's order; the flag says which that is.
        return _GREETING.pack(
            *(_VERSION, _MAPS, self._depth, self._maps, mine.address, mine.key, TARGETS),
            *(first.address, first.key, self._half),
        )

    def connect(self, greeting: bytes, shown: memoryview) -> None:
        """
        Take the peer's greeting.

        @param shown: the memory of C{targets}.
        @raise RSocketError: it is none.
        """
        if len(greeting) < GREETING_BYTES:
            raise RSocketError(f"{len(greeting)} octets are no greeting")
        version, flags, credits, maps, address, key, length, first, firstKey, firstLength = (
            _GREETING.unpack_from(greeting)
        )
        if version != _VERSION or not length:
            raise RSocketError(f"a greeting of version {version} with {length} targets")
        if flags & _BIG_ENDIAN:
            self._layout, self._mapLayout = _BIG_TARGET, _BIG_MAP
        # rsocket.c, rs_scale_to_value: beyond 128 these are 256s.
        self.peerMaps = (maps if maps <= MOST_MAPS else (maps - MOST_MAPS) << 8) if flags & _MAPS else 0
        self._peerList, self._peerKey, self._peerLength = address, key, length
        self._peerTarget %= length
        self._credits = credits
        self._shown = shown
        _LITTLE_TARGET.pack_into(shown, 0, first, firstKey, firstLength)
        self.isConnected = True

    # -- sending

    def room(self) -> int:
        """
        @return: how many octets can be written now.
        """
        room = self._room
        if not self._requests or room < self._leastRoom or self._sent == self._credits:
            return 0
        if self.untold and not self._controls:
            return 0
        left = self._left or self._turn()
        return left if left < room else room

    def _turn(self) -> int:
        # The next part that the peer shows; its entry is empty until the peer writes it anew.
        at = self._target * TARGET_BYTES
        # The length comes last: what is before it is read once it is there.
        if not self.isConnected or not _LITTLE_TARGET.unpack_from(self._shown, at)[2]:
            return 0
        self._address, self._key, self._left = _LITTLE_TARGET.unpack_from(self._shown, at)
        _LITTLE_TARGET.pack_into(self._shown, at, 0, 0, 0)
        self._target = (self._target + 1) % TARGETS
        return self._left

    def write(self, count: int) -> Write:
        """
        Send octets, which the caller copies into the pieces of the send buffer.

        @param count: at most L{room}, and not 0.
        """
        left = self._left or self._turn()
        assert 0 < count <= left and count <= self._room
        address = self._address
        self._address = address + count & _ADDRESS_MASK
        self._left = left - count
        self._sent = self._sent + 1 & _SEQUENCE
        # Operation.DATA is 0: the message is the count.
        return Write(count, address, self._key, self._taken(count))

    def _taken(self, count: int) -> tuple[tuple[int, int], ...]:
        self._requests -= 1
        self._room -= count
        at = self._sendAt
        first = self._sendBytes - at
        if count < first:
            self._sendAt = at + count
            return ((at, count),)
        self._sendAt = rest = count - first
        return ((at, first), (0, rest)) if rest else ((at, first),)

    def completed(self, message: int, isGood: bool) -> None:
        """
        A write is complete.

        @param message: its message.
        """
        if message >> _DATA_BITS <= Operation.DIRECT:
            self._requests += 1
            self._room += message & _DATA_MASK
        else:
            self._controls += 1
        if not isGood:
            self.isOver = True

    @property
    def isFlushed(self) -> bool:
        """
        Whether all writes are complete.
        """
        return self._requests == self._most and self._controls == CONTROL_REQUESTS

    # -- maps

    def directRoom(self) -> int:
        """
        @return: how many octets can be written into memory that the peer shows.
        """
        if not self.isConnected or not self._requests or self._room < self._leastRoom:
            return 0
        return self._room

    def direct(self, offset: int, count: int) -> Write | None:
        """
        Write into memory that the peer shows: as much as is contiguous there.

        @param offset: as the peer names it.
        @param count: at most L{directRoom}, and not 0.
        @return: None where the peer shows none.
        """
        for index in range(self._maps):
            at = TARGETS * TARGET_BYTES + index * MAP_BYTES
            begin, address, key, length = _LITTLE_MAP.unpack_from(self._shown, at)
            if begin <= offset < begin + length:
                count = min(count, begin + length - offset)
                address = address + offset - begin & _ADDRESS_MASK
                message = _message(Operation.DIRECT, count)
                return Write(message, address, key, self._taken(count), isDirect=True)
        return None

    # -- receiving

    def received(self, message: int) -> None:
        """
        A message of the peer has come.

        @raise RSocketError: there is no such message, or more data than the receive buffer has.
        """
        operation, data = message >> _DATA_BITS, message & _DATA_MASK
        if operation == Operation.DATA:
            if self.waiting + data > self._receiving.length or len(self._unread) >= self._depth:
                raise RSocketError("the peer sends more than it may")
            self._unread.append(data)
            self.waiting += data
        elif operation == Operation.CREDITS:
            self._credits = data & _SEQUENCE
        elif operation == Operation.CONTROL:
            if data == Control.DISCONNECT:
                self.isOver = True
            elif data == Control.SHUTDOWN:
                self.open &= ~Way.READ
                self.isOver = self.isOver or not self.open
        elif operation == Operation.MAP:
            # Its receive is free again.
            self._read = self._read + 1 & _SEQUENCE
        else:
            raise RSocketError(f"message {message:#x}")

    def read(self, count: int, peek: bool = False) -> list[tuple[int, int]]:
        """
        Read octets.

        @param peek: leave them.
        @return: parts of the receive buffer, as offset and length.
        """
        if count > self.waiting:
            count = self.waiting
        if not count:
            return []
        at, unread = self._at, self._unread
        first = self._receiving.length - at
        rest = count - first
        parts = [(at, count)] if rest <= 0 else [(at, first), (0, rest)]
        if not peek:
            self._at = at + count if rest < 0 else rest
            self._unshown += count
            self.waiting -= count
            while count:
                if unread[0] > count:
                    unread[0] -= count
                    break
                count -= unread.popleft()
                self._read = self._read + 1 & _SEQUENCE
        return parts

    def updates(self) -> list[Write]:
        """
        @return: writes that let the peer send more.
        """
        # Nearly always there are none, by L{_isDue}.
        if (
            self._unshown < self._half
            and (self._read - self._due & _SEQUENCE) >= _HALF_SEQUENCE
            and not self.untold
        ):
            return []
        writes: list[Write] = []
        while self.isConnected and not self.isOver and self._controls and self._isDue():
            self._controls -= 1
            self._due = self._read + self._depth // 2 & _SEQUENCE
            message = _message(Operation.CREDITS, self._read + self._depth)
            if self._unshown < self._half:
                writes.append(Write(message))
                continue
            content = self._layout.pack(self._receiving.address + self._next, self._receiving.key, self._half)
            address = self._peerList + self._peerTarget * TARGET_BYTES & _ADDRESS_MASK
            writes.append(Write(message, address, self._peerKey, content=content))
            self._unshown -= self._half
            self._next = (self._next + self._half) % (2 * self._half)
            self._peerTarget = (self._peerTarget + 1) % self._peerLength
        while self.untold and not self.isOver and self._controls and self._sent != self._credits:
            self._controls -= 1
            self._sent = self._sent + 1 & _SEQUENCE
            index = next(iter(self.untold))
            offset, region = self.untold.pop(index)
            content = self._mapLayout.pack(offset, region.address, region.key, region.length)
            at = self._peerList + self._peerLength * TARGET_BYTES + index * MAP_BYTES & _ADDRESS_MASK
            writes.append(Write(_message(Operation.MAP, index), at, self._peerKey, content=content))
        return writes

    def _isDue(self) -> bool:
        # Sequence numbers have 16 bits and wrap.
        return self._unshown >= self._half or (self._read - self._due & _SEQUENCE) < _HALF_SEQUENCE

    # -- the end

    def shutdown(self, way: int) -> list[Write]:
        """
        Close directions.

        @return: the message that says so, unless there is nothing to say or no request for it.
        """
        before, self.open = self.open, self.open & ~way
        if self.isOver or not self.isConnected or not before & way or not self._controls:
            return []
        if self.open == Way.WRITE:
            return []
        self._controls -= 1
        control = Control.SHUTDOWN if self.open else Control.DISCONNECT
        return [Write(_message(Operation.CONTROL, control))]
