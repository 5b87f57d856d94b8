"""
A path over the pair's own SEQPACKET socket, where there is no shared memory.

One record is one packet: a header, then the record's bytes::

    length   bytes of the record
    word     operation and destination queue pair number
    flags    L{ASK}: tell me soon how far you are; L{NEWS}: no record, only that
    taken    how many of the reader's records the writer of this has taken

Positions count records.  C{taken} is the cumulative acknowledgement that HEAD is
on rings: what it passes was refused, if it was, in an earlier packet.  It rides
on whatever is sent; a packet of its own goes only to a peer that asked.

How much is on the way is the kernel's business: a packet counts against the
sender's buffer until the peer has read it.  Ordinary records stop at half of the
buffer, management at three quarters, L{NEWS} at seven eighths; the rest is for
refusals, so that two full directions cannot block each other.  The kernel calls
a socket writable when less than a quarter is in use: then those who wait go on.

No doorbell is needed: the fabric watches the socket.
"""

from __future__ import annotations

import errno
import mmap
import select
import socket
from struct import Struct
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import HandshakeError, PathLostError, RingError
from twisted_ib.hca.fabric.base.path import Forked, Path

#: Bytes of a socket's send buffer where sockets carry the records; Linux doubles
#: it for what it counts besides the data.
CARRIER_BUFFER = 256 * 1024

ASK, NEWS = 1, 2
#: length, word, flags, taken
HEADER = Struct("<IIIQ")
_START = HEADER.size
_PACKET = _START + limits.INLINE_RECORD

#: The kernel counts at most so much more than a packet's bytes: its own header,
#: and up to 16 KiB are rounded to a power of two.
_OVERHEAD, _ROUNDED = 1024, 16384
#: Pieces of a payload that are sent without joining them; a message has at most
#: 1024 (UIO_MAXIOV).
_PIECES = 64

_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_RECEIVE_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_READ = select.POLLIN | getattr(select, "POLLRDHUP", 0)


def sendBuffer(pair: socket.socket) -> int:
    """
    Have the kernel keep enough packets.

    @return: The size of the socket's send buffer, as the kernel counts.
    @raise HandshakeError: this host's limits are too small for one record.
    """
    pair.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CARRIER_BUFFER)
    size = pair.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    if size < 2 * _PACKET:
        raise HandshakeError(f"a socket buffer here has only {size} bytes (net.core.wmem_max)")
    return size


class SocketPath(Path):
    """
    The way to a peer's HCA through a socket.

    @ivar asleep: Whether the fabric looks here only when the socket says so.
    """

    __slots__ = (
        "_acknowledged",
        "_asked",
        "_buffer",
        "_ended",
        "_events",
        "_held",
        "_late",
        "_poll",
        "_posted",
        "_receive",
        "_send",
        "_size",
        "_socket",
        "_taken",
        "_told",
        "_used",
        "_wanted",
        "_writable",
        "asleep",
    )

    def __init__(self, fabric: Any, peer: Any, peerSocket: Any) -> None:
        """
        @param pairing: The pair, whose socket stays its own to close.
        @raise HandshakeError: see L{sendBuffer}.
        """
        super().__init__(fabric, peer)
        self.peerSocket = peerSocket
        self._socket: socket.socket = peerSocket.socket
        self._size = sendBuffer(self._socket)
        # Private, so that a forked child reads nothing that comes later.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._buffer: Any = mmap.mmap(-1, _PACKET, flags)
        self._send: Any = self._socket.sendmsg
        self._receive: Any = self._socket.recvmsg_into
        self._events = _READ
        self._poll, self._writable = select.poll(), select.poll()
        self._poll.register(self._socket, _READ)
        self._writable.register(self._socket, select.POLLOUT)
        # Of the kernel's buffer, at most.
        self._used = 0
        # Records that I sent; of those the peer has taken; was asked to tell.
        self._posted = self._acknowledged = self._asked = 0
        # Records that I took; the peer was told of; wants to be told of.
        self._taken = self._told = self._wanted = 0
        self._ended = self._late = self._held = self.asleep = False

    # -- down

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Send one record: see L{Path.post}.
        """
        if self._held:
            return False
        if payload.__class__ is not list:
            pieces = [header, payload]
        elif len(payload) < _PIECES:
            pieces = [header, *payload]
        else:
            pieces = [header, b"".join(payload)]
        return self._publish(word, pieces, len(header) + length, self._size // 2)

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        """
        Send a small record from the reserve: see L{Path.postReserved}.
        """
        most = self._used if refusal else self._size // 4 * 3
        return self._publish(word, [body], len(body), most)

    def holdBack(self, held: bool) -> None:
        """
        See L{Path.holdBack}.
        """
        self._held = held

    def _publish(self, word: int, pieces: list[Any], total: int, most: int) -> bool:
        """
        Send a record if no more than C{most} of the buffer may be in use.
        """
        if self._used > most and not self._hasRoom():
            return False
        # Whoever keeps what it sent until it is acknowledged needs an answer.
        flags = ASK if self.requesters else 0
        if not self._put(HEADER.pack(total, word, flags, self._taken), pieces, total):
            return False
        self._posted += 1
        if flags:
            self._asked = self._posted
        if not self.bell:
            self.bell = True
            self.fabric.ringLater(self)
        return True

    def _put(self, head: bytes, pieces: list[Any], total: int) -> bool:
        """
        Send a packet.

        @return: False if the kernel has no room for it.  What a dead peer does
            not take counts as sent, as on rings: its death is found elsewhere.
        """
        try:
            self._send([head, *pieces], (), _SEND_FLAGS)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (errno.ENOBUFS, errno.ENOMEM):
                return False
        self._used += total + min(total, _ROUNDED) + _OVERHEAD
        self._told = self._taken
        return True

    def _hasRoom(self) -> bool:
        """
        Ask the kernel whether three quarters of the buffer are free.
        """
        if self._writable.poll(0):
            self._used = self._size // 4
            return True
        return False

    def position(self) -> int:
        """
        @return: See L{Path.position}.
        """
        return self._posted

    def wantSpace(self, waiter: Any) -> None:
        """
        See L{Path.wantSpace}.
        """
        self.waiting[waiter] = None
        self._watch()

    # -- up

    def progress(self, budget: int) -> int:
        """
        Take what has arrived, wake who waits for room, complete what the peer
        has taken.

        @param budget: How many packets at most.
        @return: How many packets were taken, waiters woken and requests
            completed.
        @raise RingError: the peer sent what is no record.
        """
        if self.busy or self._ended:
            return 0
        n = 0
        if self.waiting and self._hasRoom():
            n = self.resumeWaiting()
        self.busy = True
        try:
            n += self._drain(budget)
            n += self.completeTo(self._acknowledged)
        finally:
            self.busy = False
            if self._late:
                self._tell()
            self._watch()
        return n

    def _drain(self, budget: int) -> int:
        n = 0
        if self.owed is not None:
            if not self.payOwed():
                return 0
            self._taken += 1
            n = 1
        while n < budget:
            size = self._next()
            if not size:
                break
            n += 1
            if not self._take(size):
                break
        return n

    def _next(self) -> int:
        """
        Read one packet.

        @return: Its size, 0 if there is none.
        @raise RingError: it is cut off, or brings descriptors.
        """
        while True:
            try:
                size, _, flags, _ = self._receive([self._buffer], 0, _RECEIVE_FLAGS)
            except BlockingIOError:
                return 0
            except ConnectionResetError:
                # The peer left with records unread.  Linux says so once, before
                # what the peer had sent.
                continue
            except OSError:
                size = flags = 0
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise RingError("the peer sent too long a packet, or descriptors")
            self._ended = not size
            found: int = size
            return found

    def _take(self, size: int) -> bool:
        """
        Deliver the record in the buffer.

        @param size: Bytes of the packet.
        @return: False if nothing more may be taken now.
        @raise RingError: it is none.
        """
        # Where there is no whole header, what is left of the last one cannot fit.
        length, word, flags, acknowledged = HEADER.unpack_from(self._buffer, 0)
        if length != size - _START or flags & ~(ASK | NEWS) or (flags & NEWS and length):
            raise RingError(f"the peer sent {length} bytes in a packet of {size}, flags {flags:#x}")
        if not self._acknowledged <= acknowledged <= self._posted:
            raise RingError(f"the peer claims to have taken {acknowledged} of {self._posted} records")
        self._acknowledged = acknowledged
        if flags & ASK:
            self._wanted = self._taken + 1 - (flags >> 1)
        return bool(flags & NEWS) or self._deliver(word, size)

    def _deliver(self, word: int, stop: int) -> bool:
        """
        Give a record to whom it is for.

        @return: False if its refusal found no room: it does not count as taken.
        """
        entry = self.taker(word & 0xFFFFFF)
        try:
            if entry is not None:
                syndrome = entry.delivered(word >> 24, self._buffer, _START, stop)
            else:
                syndrome = self.unknown(word, self._buffer, _START, stop)
            if syndrome and not self.refuse(word, syndrome, self._taken + 1):
                return False
        except BaseException:
            # A consumer failed; its record counts as taken.
            self._taken += 1
            raise
        self._taken += 1
        return True

    # -- sleeping and waking

    def pending(self) -> bool:
        """
        @return: Whether L{progress} has something to do.
        """
        if self._ended:
            return False
        waiting = self.unacknowledged
        if waiting and waiting[0][0] <= self._acknowledged:
            return True
        return bool(self._poll.poll(0))

    def _watch(self) -> None:
        """
        Have the socket watched for what there is to wait for.  Nothing is read
        while a refusal is owed.
        """
        owes = self.owed is not None
        events = 0 if owes else _READ
        if owes or self._late or self.waiting:
            events |= select.POLLOUT
        if events != self._events and self.alive:
            self._events = events
            self._poll.modify(self._socket, events)
            self.fabric.watch(self.peerSocket, events)

    def arm(self) -> None:
        """
        The socket says when there is something to do.
        """
        self.asleep = True

    def wake(self) -> None:
        """
        The path is looked at each turn.
        """
        self.asleep = False

    def ring(self) -> bool:
        """
        The batch ends: tell the peer how far I am, if it wants to know.

        @return: Whether it was told.
        """
        self.bell = False
        return self._tell()

    def _tell(self) -> bool:
        """
        Send L{NEWS} if the peer asked for it, or if it must be asked.
        """
        waiting = self.unacknowledged
        asks = bool(waiting) and waiting[-1][0] > self._asked
        self._late = self.alive and not self._ended and (asks or self._told < min(self._wanted, self._taken))
        if not self._late:
            return False
        flags = NEWS | ASK if asks else NEWS
        if (self._used <= self._size // 8 * 7 or self._hasRoom()) and self._put(
            HEADER.pack(0, 0, flags, self._taken), [], 0
        ):
            self._late = False
            if asks:
                self._asked = self._posted
            return True
        self._watch()
        return False

    def socketReadable(self, peerSocket: Any) -> None:
        """
        Packets came, which L{progress} reads, or their end.

        @raise PathLostError: the peer has hung up and left nothing to read, or
            sent an empty packet, which is an end: what follows is not read.
        """
        try:
            if not self._ended and self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return
        except (BlockingIOError, ConnectionResetError):
            return
        except OSError:
            pass
        raise PathLostError("the peer closed its HCA or died")

    # -- the end

    def forked(self) -> None:
        """
        In a forked child the socket is the parent's: make every use an error.
        """
        self._send = self._receive = Forked()

    def close(self) -> None:
        """
        The socket is the pair's to close.
        """
        self.alive = False
