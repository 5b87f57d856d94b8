"""
A fabric over socket pairs, between HCAs of one thread: all that it has of its own.

A record on a socket is a header, which has its size, its word and how many bytes its sender has read, and its
bytes.  A header alone only acknowledges.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from struct import Struct
from typing import Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.drive.process import Forked
from twisted_ib.errors import PathLostError
from twisted_ib.hca.base.interfaces import IFabric, IHostDirectory
from twisted_ib.hca.fabric.base.neighbours import Neighbours, PeerIdentity, ThreadDirectory
from twisted_ib.hca.fabric.base.path import RecordPath
from twisted_ib.hca.wire.headers import QPN_MASK

HEADER = Struct("=IIQ")
#: Bytes that may wait for the kernel: of records, with management, and with refusals.
ROOM = 2 * limits.INLINE_RECORD
REFUSAL_ROOM = ROOM + limits.RING_RESERVE
MANAGEMENT_ROOM = REFUSAL_ROOM - limits.REFUSAL_RESERVE


class SocketPairPath(RecordPath):
    """
    One end of a socket pair.
    """

    __slots__ = ("_arrived", "_owedEnd", "_read", "_room", "_told", "_unsent", "_written", "isOver", "socket")

    def __init__(self, fabric: Any, peer: PeerIdentity) -> None:
        super().__init__(fabric, peer)
        self.socket: Any = None
        self.isOver = False
        self._arrived, self._unsent, self._room = bytearray(), bytearray(), ROOM
        self._written = self._read = self._told = self._owedEnd = 0

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        size = HEADER.size + len(header) + length
        if len(self._unsent) + size > self._room:
            return False
        self._write(word, size, header, *(payload if payload.__class__ is list else (payload,)))
        self._written += size
        if not self.bell:
            self.bell = True
            self.fabric.ringLater(self)
        return True

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        room, self._room = self._room, REFUSAL_ROOM if refusal else MANAGEMENT_ROOM
        try:
            return self.post(word, b"", body, len(body))
        finally:
            self._room = room

    def holdBack(self, held: bool) -> None:
        self._room = -1 if held else ROOM

    def _write(self, word: int, size: int, *pieces: Any) -> None:
        self._unsent += b"".join((HEADER.pack(size, word, self._read), *pieces))
        self._told = self._read
        self._send()

    def _send(self) -> None:
        try:
            del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # The peer is gone, as the next read shows.

    def position(self) -> int:
        return self._written

    def ring(self) -> None:
        """
        The batch ends: acknowledge, and have the descriptor readable once there is something to do.
        """
        self.bell = False
        if self._told != self._read and not self._unsent:
            self._write(0, HEADER.size)
        # Behind a refusal that waits for room nothing is read.
        events = (select.EPOLLOUT if self._unsent else 0) | (select.EPOLLIN if self.owed is None else 0)
        self.fabric.poller.modify(self.socket, events)

    def pending(self) -> bool:
        return (self.owed is None and self._isWhole()) or bool(self.waiting and self._isLow())

    def _isLow(self) -> bool:
        return len(self._unsent) <= ROOM // 2

    def _isWhole(self) -> bool:
        arrived = self._arrived
        return len(arrived) >= HEADER.size and len(arrived) >= HEADER.unpack_from(arrived)[0]

    def progress(self, budget: int) -> int:
        if self.busy:
            return 0
        n, self.busy = 0, True
        try:
            if self._unsent:
                self._send()
            if self.owed is not None and self.payOwed():
                self._read, n = self._owedEnd, 1
            while n < budget and self.owed is None and (self._isWhole() or self._receive()):
                n += self._take()
        finally:
            self.busy = False
        if self.waiting and self._isLow():
            n += self.resumeWaiting()
        return n

    def _receive(self) -> bool:
        while not (self.isOver or self._isWhole()):
            try:
                data = self.socket.recv(limits.INLINE_RECORD)
            except BlockingIOError:
                return False
            except OSError:
                data = b""
            self._arrived += data
            self.isOver = not data
        return self._isWhole()

    def _take(self) -> int:
        size, word, read = HEADER.unpack_from(self._arrived)
        data = bytes(self._arrived[HEADER.size : size])
        del self._arrived[:size]
        n = 0
        if word:
            n, end = 1, self._read + size
            try:
                entry = self.taker(word & QPN_MASK)
                take = self.unknown if entry is None else entry.delivered
                syndrome = take(word if entry is None else word >> 24, data, 0, len(data))
                if syndrome and not self.refuse(word, syndrome, end):
                    self._owedEnd, end = end, self._read
            except BaseException:
                self._read = end
                raise
            self._read = end
        # After the record: a refusal is written before the position that passes the refused one.
        return n + self.completeTo(read)

    def lost(self, reason: PathLostError) -> None:
        try:
            super().lost(reason)
        finally:
            self.socket.close()


@implementer(IFabric, IHostDirectory)
class SocketPairFabric(ThreadDirectory):
    """
    The fabric of one HCA.
    """

    name = "toy"
    pathClass = SocketPairPath

    def __init__(
        self, owner: Any, guid: int, clock: Callable[[], float], neighbours: Neighbours | None = None
    ) -> None:
        super().__init__(owner, guid, neighbours)
        self.poller = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.poller.register(self._wake, select.EPOLLIN)

    def couple(self, path: SocketPairPath, other: SocketPairPath) -> None:
        path.socket, other.socket = socket.socketpair()
        for end in (path, other):
            end.socket.setblocking(False)
            end.fabric.poller.register(end.socket, select.EPOLLIN)

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        n = 0
        for path in self.paths():
            n += path.progress(budget) if path.alive else 0
            if path.isOver and not path.pending():
                self.lose(path, PathLostError("the peer closed its HCA"))
                n += 1
            elif path.alive and not path.bell:
                path.bell = True
                self.bells.append(path)
        return n

    def ringBells(self) -> None:
        bells, self.bells = self.bells, []
        for path in bells:
            if path.alive:
                path.ring()

    def pending(self) -> bool:
        ready = [fd for fd, _ in self.poller.poll(0) if fd != self._wake]
        return bool(ready) or any(path.pending() for path in self._ends)

    def fileno(self) -> int:
        return self.poller.fileno()

    def signal(self) -> None:
        os.eventfd_write(self._wake, 1)

    def attend(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass

    def forked(self) -> None:
        self.withdrawAll()
        for path in self.paths():
            path.socket.close()
            path.socket = path._unsent = Forked()

    def close(self) -> None:
        if not self.poller.closed:
            self.withdrawAll()
            for path in self.paths():
                self.lose(path, PathLostError("the device was closed"))
            self.poller.close()
            os.close(self._wake)
