"""
Registered memory that a peer of the same user may map, to copy from it.

A record then refers to such memory instead of carrying the bytes, and they are copied
once.  The memory's descriptor goes over the pair's socket before the first record that
refers to it, so it is there when that record is read.  One message is one packet::

    OFFER     number, size  + descriptor
    WITHDRAW  number

An offer says nothing about rights: those are asked for each operation, by the owner of
the memory that is written or by the owner of the memory that is read.  But what was
offered stays readable to that peer, in all its pages, until it is withdrawn and the
peer, by its own will, unmaps it.

What a peer offers is mapped only if it may be referred to: while no queue pair with
work queues is on the path, or the device maps as many as it may, an offer and what
follows it stay in the socket, which is then watched for its end only, until a record
refers to them.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from struct import Struct
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import HCAError, PathLostError, RingError
from twisted_ib.hca.fabric.shm.segment import Segment
from twisted_ib.hca.host.fdpassing import closeAll, receiveWithDescriptors, sendWithDescriptors

#: Regions that one end of a path offers the other to map.
OFFERED_SEGMENTS = 64
#: Offered regions that one device maps (Linux: 65530 mappings per process).
OFFERED_SEGMENTS_PER_DEVICE = 16384

_OFFER, _WITHDRAW = 1, 2
#: Kind, number, size.
_MESSAGE = Struct(">B3xIQ")


class SharedRegions:
    """
    What the two ends of one path have offered each other.

    @ivar next: The number of the next segment that is offered.
    """

    __slots__ = (
        "_deaf",
        "_gone",
        "_mine",
        "_mineBytes",
        "_path",
        "_socket",
        "_theirBytes",
        "_theirs",
        "next",
    )

    def __init__(self, path: Any, pair: socket.socket) -> None:
        """
        Nothing is offered.

        @param pair: the pair's socket, on which nothing else is sent.
        """
        self._path = path
        self._socket = pair
        self.next = 1
        self._mine: dict[Any, int] = {}
        # Withdrawn: the position after which the peer may be told, the number, the size.
        self._gone: deque[tuple[int, int, int]] = deque()
        self._mineBytes = self._theirBytes = 0
        # Whether the socket is watched for its end only.
        self._deaf = False
        self._theirs: dict[int, tuple[Segment, memoryview]] = {}

    # -- mine

    def offer(self, segment: Any) -> int:
        """
        Let the peer map a segment.

        @return: its number, or 0: there are too many, or the socket is full or gone.
        """
        number = self._mine.get(segment)
        if number is not None:
            return number
        if len(self._mine) + len(self._gone) >= OFFERED_SEGMENTS:
            return 0
        if self._mineBytes + segment.size > limits.OFFERED_BYTES:
            return 0
        if segment.fd < 0 or not self._send(_OFFER, self.next, segment.size, [segment.fd]):
            return 0
        number = self._mine[segment] = self.next
        self.next += 1
        self._mineBytes += segment.size
        return number

    def withdraw(self, segment: Any) -> None:
        """
        The peer shall unmap a segment, when it has read what is published now.
        """
        number = self._mine.pop(segment, None)
        if number is not None:
            position = self._path.position()
            self._gone.append((position, number, segment.size))
            self._path.unacknowledged.append((position, self))

    def acknowledged(self, position: int) -> None:
        """
        The peer has read everything before a position: tell it what it can unmap.  What
        the socket does not take is told with the next.
        """
        gone = self._gone
        while gone and gone[0][0] <= position and self._send(_WITHDRAW, gone[0][1], 0, []):
            self._mineBytes -= gone.popleft()[2]

    def _send(self, kind: int, number: int, size: int, descriptors: list[int]) -> bool:
        """
        Send a message.

        @return: whether the socket took it.
        """
        try:
            return sendWithDescriptors(self._socket, _MESSAGE.pack(kind, number, size), descriptors)
        except PathLostError:  # Whoever watches the socket hears of it.
            return False

    # -- the peer's

    def offered(self, number: int) -> memoryview | None:
        """
        What the peer offered under a number, for reading.

        @raise RingError: the peer does not keep to the rules.
        """
        if number not in self._theirs:
            self._listen(True)
            self._takeAll()
        found = self._theirs.get(number)
        return None if found is None else found[1]

    def readable(self) -> None:
        """
        Something came over the socket, or its end.

        @raise PathLostError: the peer has hung up.
        @raise RingError: the peer does not keep to the rules.
        """
        if not self._takeAll():
            raise PathLostError("the peer closed its HCA or died")

    def _isKeyed(self) -> bool:
        """
        Whether there is a queue pair whose records may refer to what is offered.
        """
        for entry in self._path.table.values():
            if getattr(getattr(entry, "queuePair", entry), "work", None) is not None:
                return True
        return False

    def _leave(self) -> bool:
        """
        Leave what has come in the socket.

        @return: False if the peer has hung up.
        """
        self._listen(False)
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return not poll.poll(0)

    def _mustWait(self, keyed: bool) -> bool:
        """
        Whether an offer comes next that nothing may refer to, or while the device maps
        as many as it may.
        """
        fabric = self._path.fabric
        if keyed and fabric.offeredSegments < OFFERED_SEGMENTS_PER_DEVICE:
            return False
        try:
            head = self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return False
        if not head or head[0] != _OFFER:
            return False
        fabric.count("offers_unread")
        return True

    def _listen(self, all_: bool) -> None:
        """
        Have the socket watched for messages too, or for its end only.
        """
        if self._deaf == all_:
            self._deaf = not all_
            events = select.EPOLLIN | select.EPOLLRDHUP if all_ else select.EPOLLRDHUP
            self._path.fabric.watch(self._path.peerSocket, events)

    def _takeAll(self) -> bool:
        """
        Take the messages that have come.

        @return: False if the peer has hung up.
        """
        keyed = self._isKeyed()
        for _ in range(2 * OFFERED_SEGMENTS):
            if self._mustWait(keyed):
                return self._leave()
            try:
                received = receiveWithDescriptors(self._socket, _MESSAGE.size, 1)
            except PathLostError:
                return False
            except HCAError as error:
                raise RingError(str(error)) from error
            if received is None:
                return True
            data, descriptors = received
            if not data:
                closeAll(descriptors)
                return False
            try:
                self._take(data, descriptors)
            finally:
                closeAll(descriptors)
        return True

    def _take(self, data: bytes, descriptors: list[int]) -> None:
        """
        Take one message; what stays in C{descriptors} is closed.
        """
        if len(data) != _MESSAGE.size:
            raise RingError(f"the peer sent {len(data)} bytes beside its ring")
        kind, number, size = _MESSAGE.unpack(data)
        theirs = self._theirs
        if kind == _WITHDRAW and not descriptors:
            self._unmap(number)
        elif kind != _OFFER or len(descriptors) != 1:
            raise RingError(f"the peer sent message {kind} with {len(descriptors)} descriptors")
        elif number in theirs or len(theirs) >= OFFERED_SEGMENTS:
            raise RingError("the peer offers more memory than it may")
        elif not 8 <= size <= min(limits.REGION_BYTES, limits.OFFERED_BYTES - self._theirBytes):
            raise RingError(f"the peer offers a segment of {size} bytes")
        else:
            try:
                segment = Segment.attach(descriptors[0], size)
            except HCAError as error:
                raise RingError(str(error)) from error
            descriptors.clear()
            segment.closeDescriptor()
            theirs[number] = segment, memoryview(segment.map)
            self._theirBytes += size
            self._path.fabric.offeredSegments += 1

    def _unmap(self, number: int) -> None:
        segment, view = self._theirs.pop(number, (None, None))
        if segment is not None and view is not None:
            view.release()
            segment.close()
            self._theirBytes -= segment.size
            self._path.fabric.offeredSegments -= 1

    def close(self) -> None:
        """
        Unmap everything.
        """
        for number in list(self._theirs):
            self._unmap(number)
        self._mine.clear()
        self._gone.clear()
