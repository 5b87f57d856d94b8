"""
A path over the peer's SEQPACKET socket, where there is no shared memory.

One record is one packet: a header, then the record's bytes::

    length   bytes of the record
    word     operation and destination queue pair number
    flags    L{ASK}: acknowledge soon; L{NEWS}: no record, only an acknowledgement
    taken    how many of the reader's records the writer of this has consumed

Positions count records.  C{taken} is the cumulative acknowledgement, as the HEAD cell is on rings: a record
that it passes was refused, if at all, in an earlier packet.  It rides on every packet; a packet of its own
goes only to a peer that asked.

The kernel does the flow control: a packet counts against the sender's buffer until the peer has read it.
Ordinary records stop at half of the buffer, management records at three quarters, L{NEWS} at seven eighths;
the rest is for refusals, so that two full directions cannot deadlock.

No doorbell is needed: the fabric watches the socket.
"""

from __future__ import annotations

import errno
import mmap
import select
import socket
from struct import Struct
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.drive.process import Forked
from twisted_ib.errors import HandshakeError, PathLostError, RingError
from twisted_ib.hca.fabric.shm.hotpaths import HostPath

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Waiter
    from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
    from twisted_ib.structs import Packed


#: SO_SNDBUF of a socket that carries records, in bytes; Linux doubles it for its bookkeeping (socket(7)).
CARRIER_BUFFER = 256 * 1024

ASK, NEWS = 1, 2
#: length, word, flags, taken
HEADER: Packed[tuple[int, int, int, int]] = Struct("<IIIQ")
_START = HEADER.size
_PACKET = _START + limits.INLINE_RECORD

#: The most that a packet's skb->truesize exceeds its bytes: struct sk_buff and its shared info, and up to
#: 16 KiB rounded up to a power of two by the slab allocator (Linux net/core/skbuff.c).
_OVERHEAD, _ROUNDED = 1024, 16384
#: Pieces of a payload that are sent without joining them; sendmsg(2) accepts at most 1024 (UIO_MAXIOV).
_PIECES = 64

_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_RECEIVE_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_READ = select.POLLIN | getattr(select, "POLLRDHUP", 0)


def sendBuffer(pair: socket.socket) -> int:
    """
    Size the socket's send buffer for records.

    @return: The size that the kernel grants, in its own accounting.
    @raise HandshakeError: net.core.wmem_max is too small for one record.
    """
    pair.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CARRIER_BUFFER)
    size = pair.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    if size < 2 * _PACKET:
        raise HandshakeError(f"a socket buffer here has only {size} bytes (net.core.wmem_max)")
    return size


class SocketPath(HostPath):
    """
    A path to a peer's HCA through a socket.

    """

    __slots__ = (
        "_acknowledged",
        "_asked",
        "_buffer",
        "_ended",
        "_events",
        "_held",
        "_late",
        "_octetsReceived",
        "_octetsSent",
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
    )

    def __init__(self, fabric: SharedMemoryFabric, peer: Any, peerSocket: Any) -> None:
        """
        @param peerSocket: The peer socket object; it closes the socket.
        @raise HandshakeError: see L{sendBuffer}.
        """
        super().__init__(fabric, peer)
        self.peerSocket = peerSocket
        self._socket: socket.socket = peerSocket.socket
        self._size = sendBuffer(self._socket)
        # fork(2): MAP_PRIVATE, so that a forked child does not see records that arrive later.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._buffer: Any = mmap.mmap(-1, _PACKET, flags)
        self._send: Any = self._socket.sendmsg
        self._receive: Any = self._socket.recvmsg_into
        self._events = _READ
        self._poll, self._writable = select.poll(), select.poll()
        self._poll.register(self._socket, _READ)
        self._writable.register(self._socket, select.POLLOUT)
        # An upper estimate of the bytes in use in the kernel's send buffer.
        self._used = 0
        # Records sent; those acknowledged; those for which an acknowledgement was requested.
        self._posted = self._acknowledged = self._asked = 0
        # Records consumed; those acknowledged to the peer; those that it wants acknowledged.
        self._taken = self._told = self._wanted = 0
        self._octetsSent = self._octetsReceived = 0
        self._ended = self._late = self._held = False

    # -- down

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        # A connection management record waits: nothing ordinary may overtake it (see Management).
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
        # A refusal is bounded by the kernel alone.
        most = self._used if refusal else self._size // 4 * 3
        return self._publish(word, [body], len(body), most)

    def holdBack(self, held: bool) -> None:
        self._held = held

    def _publish(self, word: int, pieces: list[Any], total: int, most: int) -> bool:
        if self._used > most and not self._hasRoom():
            return False
        # IBTA vol. 1 9.7.5: a requester keeps a request until it is acknowledged.  Streams and datagrams keep
        # nothing, so only with requesters is AckReq worth a packet in return.
        flags = ASK if self.requesters else 0
        if not self._put(HEADER.pack(total, word, flags, self._taken), pieces, total):
            return False
        self._posted += 1
        if flags:
            self._asked = self._posted
        if not self.bell:
            # In this order: see HotPaths.ringBells().
            self.fabric.ringLater(self)
            self.bell = True
        return True

    def _put(self, head: bytes, pieces: list[Any], total: int) -> bool:
        # False if the kernel has no room for it.
        try:
            self._send([head, *pieces], (), _SEND_FLAGS)
        except BlockingIOError:
            return False
        # A packet to a dead peer counts as sent, as it does on rings: the watch on the socket reports the
        # death.
        except OSError as error:
            if error.errno in (errno.ENOBUFS, errno.ENOMEM):
                return False
        # An estimate, which only grows until POLLOUT resets it: the exact figure would take a system call
        # for each packet (ioctl SIOCOUTQ, unix(7)).
        self._used += total + min(total, _ROUNDED) + _OVERHEAD
        self._told = self._taken
        self._octetsSent += _START + total
        return True

    def _hasRoom(self) -> bool:
        # Linux net/unix/af_unix.c, unix_writable: POLLOUT means that at most a quarter of SO_SNDBUF is in
        # use.
        if self._writable.poll(0):
            self._used = self._size // 4
            return True
        return False

    def position(self) -> int:
        return self._posted

    def published(self) -> int:
        return self._posted

    def octets(self) -> tuple[int, int]:
        return self._octetsSent, self._octetsReceived

    def wantSpace(self, waiter: Waiter) -> None:
        self.waiting[waiter] = None
        self._watch()

    # -- up

    def progress(self, budget: int) -> int:
        # An upcall may end up here again; records are delivered in order, so the outer call goes on with
        # them.
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
        while True:
            try:
                size, _, flags, _ = self._receive([self._buffer], 0, _RECEIVE_FLAGS)
            except BlockingIOError:
                return 0
            except ConnectionResetError:
                # Linux net/unix/af_unix.c, unix_release_sock: a peer that closes with records unread sets
                # ECONNRESET.  It is reported once, before the packets that the peer had sent.
                continue
            except OSError:
                size = flags = 0
            # recv(2): a SEQPACKET packet longer than the buffer is cut and the rest is lost.  Descriptors
            # that fit no control buffer are closed by the kernel (unix(7)).
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise RingError("the peer sent too long a packet, or descriptors")
            self._ended = not size
            found: int = size
            return found

    def _take(self, size: int) -> bool:
        # A packet shorter than a header leaves the rest of an older one in the buffer, whose length does
        # not match.
        length, word, flags, acknowledged = HEADER.unpack_from(self._buffer, 0)
        if length != size - _START or flags & ~(ASK | NEWS) or (flags & NEWS and length):
            raise RingError(f"the peer sent {length} bytes in a packet of {size}, flags {flags:#x}")
        # A peer may neither take back an acknowledgement nor acknowledge what was not sent: requests would
        # complete that it never saw.
        if not self._acknowledged <= acknowledged <= self._posted:
            raise RingError(f"the peer claims to have taken {acknowledged} of {self._posted} records")
        self._acknowledged = acknowledged
        self._octetsReceived += size
        if flags & ASK:
            self._wanted = self._taken + 1 - (flags >> 1)
        try:
            # The record may be the answer to what it acknowledges, and comes also where a completion raises.
            if self.unacknowledged:
                self.completeTo(acknowledged)
        finally:
            isTaken = bool(flags & NEWS) or self._deliver(word, size)
        return isTaken

    def _deliver(self, word: int, stop: int) -> bool:
        entry = self.taker(word & 0xFFFFFF)
        try:
            if entry is not None:
                syndrome = entry.delivered(word >> 24, self._buffer, _START, stop)
            else:
                syndrome = self.unknown(word, self._buffer, _START, stop)
            # The refusal found no room.  The record must not count as consumed before it goes out: a
            # cumulative acknowledgement that passed it would complete the refused request.
            if syndrome and not self.refuse(word, syndrome, self._taken + 1):
                return False
        except BaseException:
            # A consumer raised an exception; its record counts as consumed, or it would be delivered for
            # ever.
            self._taken += 1
            raise
        self._taken += 1
        return True

    # -- sleeping and waking

    def pending(self) -> bool:
        if self._ended:
            return False
        waiting = self.unacknowledged
        if waiting and waiting[0][0] <= self._acknowledged:
            return True
        return bool(self._poll.poll(0))

    def _watch(self) -> None:
        # Nothing is read while a refusal is owed, and level-triggered EPOLLIN would spin meanwhile
        # (epoll(7)).
        owes = self.owed is not None
        events = 0 if owes else _READ
        if owes or self._late or self.waiting:
            events |= select.POLLOUT
        if events != self._events and self.alive:
            self._events = events
            self._poll.modify(self._socket, events)
            self.fabric.watch(self.peerSocket, events)

    def arm(self) -> None:
        # Epoll reports the socket when there is work.
        self.asleep = True

    def wake(self) -> None:
        # The path is polled each turn.
        self.asleep = False

    def ring(self) -> bool:
        # Acknowledge to the peer if it asked for that.
        self.bell = False
        return self._tell()

    def _tell(self) -> bool:
        # Send NEWS if the peer asked for an acknowledgement, or if it must be asked for one.
        # IBTA vol. 1 9.7.5: ACKs may be coalesced.  One NEWS acknowledges all records so far.
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
        Notice the end of the socket; packets are left to L{progress}.

        @raise PathLostError: the peer has hung up with nothing left to read, or sent an empty packet.
        """
        try:
            # recv(2): an empty SEQPACKET packet cannot be told from the end of the connection, so both end
            # the path.
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
        # The peer socket object closes the socket.
        self.alive = False
