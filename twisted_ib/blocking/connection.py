"""
One SDP connection of a blocking socket: what has arrived, and what may be sent.

Calls of the socket come in under the lock of the L{loop<twisted_ib.blocking.loop>}; the transport's come in
while some thread drives it.
"""

from __future__ import annotations

import errno
import os
import socket as kernel
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import index
from select import epoll
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Literal

from twisted.internet import error
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.python.failure import Failure
from zope.interface import classImplements

from twisted_ib.blocking.descriptors import isUsed, movedSockets, offloaded
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.drive.process import monotonic
from twisted_ib.drive.waiter import handlers
from twisted_ib.reactor.loop import EPOLL_EVERY
from twisted_ib.sdp.inbox import Inbox, octetsOf
from twisted_ib.switch.handle import pairOf

if TYPE_CHECKING:
    from twisted_ib.blocking.moving import Move
    from twisted_ib.blocking.socket import socket
    from twisted_ib.switch.serverclient import RedirectedClient, RedirectedServer

#: Bytes that wait for C{recv} before the peer's credits run out: SO_RCVBUF of a connection over SDP.
RECEIVE_BYTES: Final = 1 << 20
#: Bytes that one C{send} of a non-blocking socket takes, and a blocking one writes at a time: SO_SNDBUF.
SEND_BYTES: Final = 256 * 1024
_BRIEF_TURNS: Final = EPOLL_EVERY - 1
_DONTWAIT: Final = int(kernel.MSG_DONTWAIT)
_PEEK: Final = int(kernel.MSG_PEEK)
_OOB, _TRUNC, _WAITALL = int(kernel.MSG_OOB), int(kernel.MSG_TRUNC), int(kernel.MSG_WAITALL)
#: It changes nothing in recv(2).  Any flag leads to L{Connection._receiveBy}, whose waits know the limit.
_NOSIGNAL: Final = int(kernel.MSG_NOSIGNAL)
#: Flags that ask for another call.  A stream ignores the others, as TCP does (MSG_EOR, MSG_CONFIRM).
_ERRQUEUE: Final = int(getattr(kernel, "MSG_ERRQUEUE", 0))
#: MSG_ZEROCOPY and MSG_FASTOPEN of Linux.
_NO_SEND_FLAGS: Final = 0x4000000 | 0x20000000
#: linux/tcp_states.h
_ESTABLISHED, _FIN_WAIT2, _CLOSE, _CLOSE_WAIT = 1, 5, 7, 8


def _deadline(timeout: float | None, limit: float | None) -> float | None:
    # The socket's timeout, else what SO_RCVTIMEO or SO_SNDTIMEO says.
    seconds = limit if timeout is None else timeout
    return None if seconds is None else monotonic() + seconds


def _expired(timeout: float | None) -> OSError:
    # socket(7): EAGAIN at the end of SO_RCVTIMEO and SO_SNDTIMEO.
    return failure(errno.EAGAIN) if timeout is None else TimeoutError("timed out")


# Now: the name may stand for another later (L{twisted_ib.blocking.patch}).
_Plain: Final = kernel.socket


class Moved(Exception):
    """
    The kernel carries these bytes: the call is made once more, there.
    """


def failure(number: int) -> OSError:
    """
    Return the error of a number, as a system call raises it.
    """
    return OSError(number, os.strerror(number))


class Connection:
    """
    The protocol of a transport over SDP, for a socket and its duplicates: see L{socket.socket} and
    L{IProtocol<twisted.internet.interfaces.IProtocol>}.

    @ivar loop: The loop that drives it.
    @ivar stream: The transport; L{None} before the connection, and after it.
    @ivar sockets: How many sockets have it; none once it is closed.
    @ivar inbox: Bytes that have arrived and were not received.
    @ivar ended: Whether nothing more will arrive; C{peerEnded}: as the peer sends no more; C{isShut}: whether
        this end sends no more over SDP.
    @ivar lost: The number of the error that ended it, until a call has reported it; else 0.
    @ivar isNew: Whether C{connect} has not said yet that an attempt that did not block has succeeded.
    @ivar over: Whether the connection has ended in both directions; C{refuses}: whether data is for nobody,
        as it is closed, or shut down in both.
    @ivar held: Tells whether a descriptor is still open, if no socket has the connection any more.
    @ivar kept: A descriptor of our own then, or -1; C{holder}: where another process has one, if it is known.
    @ivar forks: How often the process had been forked when the connection came to its descriptor;
        C{looked}: when no other process was found that has one.
    @ivar descriptor: A descriptor of it, and the C{inode} of its socket; C{isTrapped}: whether it is seen if
        others use that; C{isMarked}: whether a program has said there whether it blocks, behind its socket's
        timeout, or for how long; C{limits}: the seconds of SO_RCVTIMEO and SO_SNDTIMEO, or L{None}.
    @ivar move: Its move to the kernel's TCP, once one end has asked for that; else L{None}.  C{isGiven}:
        whether another process is about to be given it.
    @ivar local: The address of this end, as C{getsockname} returns it; C{peer} likewise.
    @ivar turns: Those of the loop when this end last sent, or tried to.
    """

    listens: Final[Literal[False]] = False

    def __init__(self, loop: BlockingLoop) -> None:
        self.loop = loop
        self.held: epoll | None = None
        self.isTrapped = self.isMarked = False
        self.limits: tuple[float | None, float | None] = (None, None)
        self.descriptor, self.inode, self.forks, self.looked = -1, 0, 0, 0
        self.kept, self.holder = -1, ""
        self.stream: RedirectedServer | RedirectedClient | None = None
        self.sockets, self.lost, self.inbox = 1, 0, Inbox()
        self.ended = self.peerEnded = self.over = self.isShut = self.refuses = False
        self.isNew = self.isGiven = False
        # Whether recv waits for bytes, and some are unread for the transport.
        self._awaits, self._isUnread, self.turns = False, False, 0
        self.move: Move | None = None
        self.local: tuple[Any, ...] = ()
        self.peer: tuple[Any, ...] = ()

    # -- IProtocol

    def makeConnection(self, transport: RedirectedServer | RedirectedClient) -> None:
        self.stream = transport
        self.local, self.peer = pairOf(transport.getHost()), pairOf(transport.getPeer())

    def logPrefix(self) -> str:
        """
        Return the prefix of log lines.
        """
        return "socket"

    def dataReceived(self, data: bytes) -> None:
        if self.refuses:
            self._refuse()
            return
        # Also after shutdown(SHUT_RD), as Linux does.
        inbox = self.inbox
        inbox.pieces.append(data)
        inbox.size += len(data)
        if not (self._awaits or self._isUnread):
            self._isUnread = True
            assert self.stream is not None
            self.stream.keeps = True
            self.stream.sayUnread(True)
        if inbox.size >= RECEIVE_BYTES:
            assert self.stream is not None
            self.stream.stopReading()

    def owned(self) -> RedirectedServer | RedirectedClient:
        """
        Return the transport, which there is, as the calling thread's: that has the lock, and drives it.
        """
        stream = self.stream
        assert stream is not None
        stream.thread = get_ident()
        return stream

    def _refuse(self) -> None:
        # As RFC 1122 section 4.2.2.13 has it: the peer learns that nobody reads.
        if self.sockets and self.stream is not None:
            self.lost = errno.ECONNRESET
            # Of whoever drives, which need not be who has shut it down.
            self.owned().abortConnection()

    def readConnectionLost(self) -> None:
        if self.move is not None and self.move.peerEnded():
            # The peer's end comes by TCP, behind what it sends there.
            return
        self.ended = self.peerEnded = True
        # Nothing more can be held back: as tcp(7), a reset that follows is told at once.
        if self.stream is not None:
            self.stream.startReading()

    def awaitMove(self) -> bool:
        """
        The descriptor is about to be duplicated or given away: wait until it is known whether the connection
        moves.

        @return: Whether the kernel has the descriptor now.
        """
        while (move := self.move) is not None:
            hasMoved = move.awaitAnswer()
            if move is self.move:
                return hasMoved
        return False

    def give(self) -> bool:
        """
        Another process is about to be given the descriptor.

        @return: Whether it may: the kernel has it now.
        """
        # Streams of AF_IB have none: there is no TCP.
        give: Callable[[Connection], bool] = getattr(self.stream, "give", Connection.awaitMove)
        return not self.loop.forked and give(self)

    def writeConnectionLost(self) -> None:
        pass  # The DisConn has left.

    def connectionLost(self, reason: Failure) -> None:
        # Behind an end of stream there is nothing that could be lost; a send is EPIPE then, as over TCP.
        if not isinstance(reason.value, error.ConnectionDone | error.ConnectionAborted):
            if self.sockets and not self.peerEnded:
                # Also after shutdown(SHUT_RD), which the end of a stream is not.
                self.lost = errno.ECONNRESET
            elif self.peerEnded and not self.isShut:
                # Linux's tcp_reset() in CLOSE_WAIT.
                self.lost = errno.EPIPE
        self.ended = self.over = True
        self.stream = None

    # -- conditions

    def readable(self) -> bool:
        """
        Return whether C{recv} does not block.
        """
        return self.inbox.size > 0 or self.ended or self.lost > 0

    def writable(self) -> bool:
        """
        Return whether C{send} does not block: what was written before is in the medium, or it fails.
        """
        stream = self.stream
        return (
            stream is None
            or (stream.buffer is None and stream.written is None and stream.queuePair.pending is None)
            or self.isShut
        )

    def hungUp(self) -> bool:
        """
        Return whether both directions have ended (POLLHUP, as of Linux's C{tcp_poll}).
        """
        return self.over or (self.ended and self.isShut)

    def sendsByTCP(self) -> bool:
        """
        Return whether the kernel carries what is sent from now on, at C{descriptor}.
        """
        return self.move is not None and self.move.sends()

    def connectAgain(self) -> int:
        """
        Return the number of C{connect}'s error, which is 0 once behind a connect that did not block.
        """
        if not self.isNew:
            return errno.EISCONN
        self.isNew = False
        return 0

    def closed(self) -> bool:
        """
        Return whether nothing is left of the connection: TCP would be in CLOSE.
        """
        return self.over or (self.peerEnded and self.isShut)

    def _await(
        self,
        ready: Callable[[], object],
        timeout: float | None,
        limit: float | None = None,
        until: float | None = None,
    ) -> None:
        loop = self.loop
        if timeout == 0.0:
            loop.poll()
            if not ready():
                raise failure(errno.EAGAIN)
        elif not loop.wait(ready, _deadline(timeout, limit) if until is None else until):
            raise _expired(timeout)

    def _timeoutNow(self, timeout: float | None) -> float | None:
        # O_NONBLOCK by fcntl(2): a socket without a timeout does as its descriptor.
        with suppress(OSError):
            return timeout if timeout is not None or os.get_blocking(self.descriptor) else 0.0
        return timeout

    # -- receiving

    def receive(self, size: int, flags: int, timeout: float | None) -> bytes:
        """
        See C{socket.recv}.

        @param timeout: The socket's, seconds; L{None} to block, 0.0 never to.
        """
        # Also refuses what is no integer.
        if size | 0 < 0:
            raise ValueError("negative buffersize in recv")
        if self.isMarked and (timeout := self._timeoutNow(timeout)) is None and self.limits[0]:
            flags = index(flags) | _NOSIGNAL
        loop, data = self.loop, b""
        try:
            try:
                with loop.lockQueue.held(loop.lock) if loop.lockQueue else loop.lock:
                    if loop.owner != get_ident():
                        loop.own()
                    if flags:
                        # As an integer: each look at a member of an enumeration is a function of Python's.
                        return (data := self._receiveBy(size, index(flags), timeout))
                    inbox, stream, pieces = self.inbox, self.stream, self.inbox.pieces
                    if not (pieces or stream is None or loop.leader or loop.followers or loop.inside):
                        driven, turns, path = loop.driven, loop.driven.turns + 1, stream.queuePair.path
                        # A turn that finds what it polls for, without all that the loop's asks first.
                        if turns & _BRIEF_TURNS and path is not None and monotonic() < loop.reactor._askAt:
                            driven.turns = turns
                            self._awaits = loop.inside = True
                            try:
                                if path.pending() or (
                                    (timeout != 0.0 and not self.ended)
                                    and driven.spin(loop.reactor, loop.reactor._channels, timeout)
                                ):
                                    for channel in loop.reactor._channels:
                                        channel.progress()
                                else:
                                    # What follows is the same turn, which polls no more.
                                    driven.turns, driven.quiet = turns - 1, timeout != 0.0 and not self.ended
                            finally:
                                self._awaits = loop.inside = False
                    if not pieces:
                        if timeout is not None or self.ended or self.lost:
                            if not self._awaitBytes(timeout):
                                return b""
                        else:
                            self._awaits = True
                            # As sleep() does, without a call more.
                            if loop.lead(self.readable, None) is None:
                                loop.follow(self.readable, None)
                            self._awaits = False
                        if not pieces:
                            return self._noBytes()
                    if inbox.start or not len(pieces[0]) == inbox.size <= size:
                        data = inbox.take(size)
                        self._mayRead()
                        return data
                    # All there is, as mostly.
                    data = pieces.popleft()
                    inbox.size = 0
                    if self._isUnread or ((stream := self.stream) is not None and not stream.reading):
                        self._mayRead()
                    return data
            finally:
                if loop.lockQueue or loop.interrupts:
                    handlers.left(loop)
        except Moved as moved:
            self._awaits = False
            return self._receiveRest(b"".join(moved.args), size, flags)
        except BaseException:
            self._giveBack(b"" if flags & _PEEK else data)
            raise

    def _giveBack(self, data: bytes) -> None:
        self._awaits = False
        if data:
            # A signal's handler has raised: the next call has them.
            with self.loop:
                self.inbox.giveBack(data)
                self._mayRead()

    def limit(self, isSend: bool, seconds: float) -> None:
        """
        A call of a socket that blocks waits for no longer (SO_RCVTIMEO and SO_SNDTIMEO, socket(7)).

        @param seconds: 0.0 for as long as it takes.
        """
        received, sent = self.limits
        self.limits = (received, seconds or None) if isSend else (seconds or None, sent)
        # It asks for these where it looks whether the descriptor blocks.
        self.isMarked = True

    def _receiveRest(self, head: bytes, size: int, flags: int) -> bytes:
        # The rest of a call that has begun over SDP.
        with self.loop:
            # The end over SDP: nobody may drive the loop after this.
            self.loop.changed()
        try:
            return head + _Plain.recv(self.kernelSocket(), size - len(head), flags)
        except OSError:
            if not head:
                raise
            return head

    def _awaitBytes(self, timeout: float | None) -> bool:
        loop = self.loop
        if self.ended or self.lost or timeout == 0.0:
            # After shutdown(SHUT_RD) more may have arrived.
            loop.poll()
        else:
            if not loop.sleep(self.readable, _deadline(timeout, self.limits[0])):
                raise _expired(timeout)
        if self.inbox.pieces:
            return True
        if not (self.ended or self.lost):
            raise failure(errno.EAGAIN)
        self._noBytes()
        return False

    def _raiseMoved(self, *taken: bytes) -> None:
        if self.move is not None and self.move.receives():
            self.move.settle()
            raise Moved(*taken)

    def _noBytes(self) -> bytes:
        self._raiseMoved()
        # The end of the stream, or what has broken it: an error that came behind the end is for who sends.
        if self.lost and not self.peerEnded:
            number, self.lost = self.lost, 0
            raise failure(number)
        if number := self._closedBeside():
            raise failure(number)
        return b""

    def _closedBeside(self) -> int:
        # EBADF if another thread has closed it meanwhile; 0 at the end of the process.
        return 0 if self.sockets or self.loop.closed else errno.EBADF

    def _receiveBy(self, size: int, flags: int, timeout: float | None) -> bytes:
        if flags & _OOB:
            raise failure(errno.EINVAL)
        if flags & _ERRQUEUE:
            # recvmsg(2) does not block for the queue of errors, which is empty.
            raise failure(errno.EAGAIN)
        if flags & _TRUNC:
            raise failure(errno.EOPNOTSUPP)
        if flags & _DONTWAIT and timeout is None:
            # A socket with a timeout waits in Python's own poll(2), whatever the flags say.
            timeout = 0.0
        inbox = self.inbox
        # recv(2): a descriptor that does not block, as that of a socket with a timeout, waits for no more.
        isAll = flags & _WAITALL and timeout is None
        limit = _deadline(timeout, self.limits[0])
        if flags & _PEEK:
            if isAll and limit is None:
                wanted = min(size, RECEIVE_BYTES)
                self._mayRead(wanted)
                self._await(lambda: inbox.size >= wanted or self.ended or self.lost, None)
                if not inbox.pieces:
                    return self._noBytes()
            elif not inbox.pieces:
                self._awaitBytes(timeout)
            elif inbox.size < size:
                # A program may look until all of a header is there.
                self.loop.poll()
            data = inbox.peek(size)
            if self.move is not None and self.move.receives() and len(data) < size:
                # The rest comes by TCP.
                with suppress(BlockingIOError):
                    data += _Plain.recv(self.kernelSocket(), size - len(data), _PEEK | _DONTWAIT)
            return data
        if not inbox.pieces and not self._awaitBytes(timeout):
            return b""
        left = size
        taken: list[bytes] = []
        while True:
            taken.append(inbox.take(left))
            self._mayRead()
            left -= len(taken[-1])
            if not left or not isAll:
                break
            self.loop.wait(self.readable, limit)
            if not inbox.pieces:
                self._raiseMoved(*taken)
                # The next call reports an error, if there is one.
                break
        return b"".join(taken)

    def _mayRead(self, below: int = RECEIVE_BYTES // 2) -> None:
        stream, size = self.stream, self.inbox.size
        if self._isUnread != (size > 0):
            # For the peer, in case that this process dies.
            self._isUnread = not self._isUnread
            if stream is not None:
                stream.keeps = self._isUnread
                stream.sayUnread(self._isUnread)
        if stream is not None and not stream.reading and size < below:
            stream.startReading()
            self.loop.flush(stream.channel.device)

    # -- sending

    def send(self, data: Any, flags: int, timeout: float | None, until: float | None = None) -> int:
        """
        See C{socket.send}, and L{receive}.

        @param until: C{monotonic()} at which SO_SNDTIMEO is over that began with another piece, or L{None}.
        """
        flags = index(flags)
        if self.isMarked:
            timeout = self._timeoutNow(timeout)
        if timeout is None and not flags & _DONTWAIT:
            # send(2): one that blocks takes all.
            if (len(data) if data.__class__ is bytes else memoryview(data).nbytes) > SEND_BYTES:
                return self._sendPieces(data, flags, None, False)
        loop = self.loop
        try:
            with loop:
                if flags & _NO_SEND_FLAGS:
                    raise failure(errno.EOPNOTSUPP)
                if flags & _DONTWAIT and timeout is None:
                    timeout = 0.0
                if self.turns == loop.driven.turns:
                    # Nobody has driven the loop since the last one: the peer may have gone.
                    loop.poll()
                self.turns = loop.driven.turns
                stream = self.stream
                if stream is None or self.isShut:
                    raise self._broken()
                if not self.writable():
                    self._await(self.writable, timeout, self.limits[1], until)
                    stream = self.stream
                    if stream is None or self.isShut:
                        raise self._broken()
                if data.__class__ is not bytes:
                    with octetsOf(data) as octets:
                        data = bytes(octets[:SEND_BYTES])
                elif len(data) > SEND_BYTES:
                    data = data[:SEND_BYTES]
                self.owned()
                within, loop.inside = loop.inside, True
                try:
                    if flags & _OOB and data:
                        stream.write(data[:-1])
                        stream.sendUrgent(data[-1:])
                    else:
                        stream.write(data)
                    loop.flush(stream.channel.device)
                finally:
                    loop.inside = within
                return len(data)
        except Moved:
            return _Plain.send(self.kernelSocket(), data, flags)

    def awaitRoom(self, timeout: float | None) -> None:
        """
        Wait until C{send} does not block.

        @raise OSError: It would fail, or there is no room yet.
        """
        with self.loop:
            self.loop.poll()
            self._await(self.writable, timeout, self.limits[1])
            if not self.sendsByTCP() and (self.stream is None or self.isShut):
                raise self._broken()

    def sendDirect(self, data: Any, timeout: float | None) -> bool:
        """
        Send what the medium can have at once, as most messages.

        @param timeout: As of L{receive}: the time to wait if the medium has no room after all; 0.0 not to.
        @return: Whether that is done; if not, nothing is.
        """
        loop = self.loop
        try:
            with loop.lockQueue.held(loop.lock) if loop.lockQueue else loop.lock:
                stream = self.stream
                # A stream is not direct while anything of it waits.
                if stream is None or not stream.direct or self.isShut or not data:
                    return False
                if data.__class__ is not bytes or stream.written is not None or loop.inside:
                    return False
                queuePair, size = stream.queuePair, len(data)
                if self.isMarked or size > SEND_BYTES or queuePair.pending is not None:
                    return False
                if loop.owner != get_ident():
                    loop.own()
                path = queuePair.path
                # The turns as in send().
                if self.turns == loop.driven.turns and not self._glance(stream):
                    return False
                if path is not None and path.peerSleep[0] & 1:
                    path.alert()  # It wakes up while this goes on.
                self.turns = loop.driven.turns
                loop.inside = True
                try:
                    # Of a batch of its own: Stream.write and DeviceProgress.flush, without what they ask.
                    if size > stream.direct:
                        stream.send(data)
                    else:
                        stream.written = data
                        stream.postWritten([stream])
                    if stream.corked or loop.sleeping:
                        loop.flush(stream.channel.device)
                    else:
                        stream.channel.device.fabric.ringBells()
                finally:
                    loop.inside = False
                # Not by the name above, of which mypyc remembers that nothing is pending.
                if timeout != 0.0 and (stream.queuePair.pending is not None or stream.corked):
                    self._await(self.writable, timeout)
                return True
        finally:
            if loop.lockQueue or loop.interrupts:
                handlers.left(loop)

    def _glance(self, stream: RedirectedServer | RedirectedClient) -> bool:
        # A turn before one more message to a peer that answers none, without all that the loop's asks first;
        # False if that is to be asked, or there is something now that the message comes behind.
        loop, path = self.loop, stream.queuePair.path
        turns = loop.driven.turns + 1
        if path is None or not turns & _BRIEF_TURNS or loop.leader or loop.followers:
            return False
        if monotonic() >= loop.reactor._askAt:
            return False
        loop.driven.turns = turns
        if path.pending():
            loop.inside = True
            try:
                for channel in loop.reactor._channels:
                    channel.progress()
            finally:
                loop.inside = False
        isSame = self.stream is stream and not self.isShut
        return isSame and bool(stream.direct) and stream.queuePair.pending is None

    def kernelSocket(self) -> socket:
        """
        Return the socket that the kernel carries.
        """
        skt = offloaded.get(self.descriptor) or movedSockets.get(self.descriptor)
        if skt is None:
            raise failure(errno.EBADF)
        return skt

    def _broken(self) -> Exception:
        if self.sendsByTCP():
            return Moved()
        number, self.lost = self.lost, 0
        return failure(number or self._closedBeside() or errno.EPIPE)

    def sendAll(self, data: Any, flags: int, timeout: float | None) -> None:
        """
        See C{socket.sendall}: it returns when the medium has all of it.
        """
        if self.isMarked:
            timeout = self._timeoutNow(timeout)
        if data.__class__ is bytes and len(data) <= SEND_BYTES:
            sent = self.send(data, flags, timeout)
            if sent < len(data):
                return _Plain.sendall(self.kernelSocket(), data[sent:], flags)
            # Without the lock: another thread's write is its own to wait for.
            if self.writable():
                return
        else:
            self._sendPieces(data, flags, timeout, True)
        if timeout != 0.0:
            with self.loop:
                isWritten = self.loop.wait(self.writable, _deadline(timeout, self.limits[1]))
            if not isWritten and timeout is not None:
                raise _expired(timeout)

    def _sendPieces(self, data: Any, flags: int, timeout: float | None, isAll: bool) -> int:
        deadline = monotonic() + timeout if timeout else None
        # socket(7): SO_SNDTIMEO is the time of one send(2), of which C{sendall} has many.
        until = None if isAll else _deadline(timeout, self.limits[1])
        with octetsOf(data) as octets:
            sent, count = 0, len(octets)
            while sent < count:
                try:
                    sent += self.send(octets[sent : sent + SEND_BYTES], flags, timeout, until)
                    if deadline is not None:
                        timeout = deadline - monotonic()
                        if timeout <= 0 and sent < count:
                            raise _expired(timeout)
                        timeout = max(timeout, 1e-9)
                except (BlockingIOError, BrokenPipeError, ConnectionResetError) as e:
                    if isAll or not sent:
                        raise
                    # send(2) returns how much it has sent; the next one says why it was no more.
                    if e.errno == errno.ECONNRESET:
                        self.lost = e.errno
                    break
            return sent

    # -- the end

    def shutdown(self, how: int) -> None:
        """
        See C{socket.shutdown}.
        """
        if not -(1 << 31) <= how < 1 << 31:
            raise OverflowError("how is no int of C")
        if how not in (kernel.SHUT_RD, kernel.SHUT_WR, kernel.SHUT_RDWR):
            raise failure(errno.EINVAL)
        with self.loop:
            self.loop.poll()
            stream = self.stream
            if self.sendsByTCP():
                _Plain.shutdown(self.kernelSocket(), how)
                self.ended = self.ended or how != kernel.SHUT_WR
                return
            if stream is None or self.closed():
                raise failure(errno.ENOTCONN)
            if isUsed(self):
                # Bytes are missing: no end of stream.
                self.ended = self.isShut = True
                self.owned().abortConnection()
                self.loop.changed()
                raise failure(errno.ECONNRESET)
            if how != kernel.SHUT_WR:
                self.ended = True
            if how != kernel.SHUT_RD and not self.isShut:
                self.isShut = True
                if self.move is not None:
                    self.move.shutdown()
                self.owned().loseWriteConnection()
                self.loop.flush(stream.channel.device)
            self.refuses = self.ended and self.isShut
            self.loop.disturb()

    def drop(self, isAborted: bool = False) -> None:
        """
        One socket has closed it; the last one closes the connection.

        @param isAborted: Reset it (SO_LINGER with no time).
        """
        if self.loop.forked:
            return
        with self.loop:
            if self.sockets > 1:
                self.sockets -= 1
            elif self.loop.isWithin():
                self.loop.abandon(partial(self.close, isAborted))
            else:
                self.close(isAborted)

    def close(self, isAborted: bool = False) -> None:
        """
        Close the connection, under the loop's lock.
        """
        if self.move is not None:
            self.move.drop()
        try:
            if self.stream is not None and not (self.inbox.size or isAborted or self.ended):
                # The device may hold unread bytes that nobody has taken from it.
                self.loop.poll()
        finally:
            # Also if the handler of a signal has raised.
            self._end(isAborted)

    def _end(self, isAborted: bool) -> None:
        unread, self.sockets = self.inbox.size > 0, 0
        self.ended = self.isShut = self.refuses = True
        self.inbox.clear()
        if self.stream is not None:
            # RFC 9293 section 3.10.4: as TCP does it, a close with unread bytes is a reset.
            if unread or isAborted:
                self.owned().abortConnection()
            else:
                self.owned().loseConnection()
        self.loop.changed()

    def takeError(self, length: int = 0) -> int | bytes:
        """
        Return the number of the error that no call has reported, and forget it, as C{getsockopt} does
        (SO_ERROR): an integer, or octets if there is a length.
        """
        self.look()
        number, self.lost = self.lost, 0
        return number.to_bytes(4, sys.byteorder)[:length] if length else number

    def look(self) -> None:
        """
        Serve what has arrived: whether the peer has gone is known then.
        """
        with (loop := self.loop):
            path = None if self.stream is None else self.stream.queuePair.path
            # As in receive(): for moments after a turn that asked for everything the peer's memory tells.
            if path is None or path.pending() or monotonic() >= loop.reactor._askAt:
                loop.poll()

    def state(self) -> int:
        """
        Return the state, as TCP names it (tcpi_state of TCP_INFO).
        """
        self.look()
        if self.sendsByTCP():
            found = _Plain.getsockopt(self.kernelSocket(), kernel.IPPROTO_TCP, kernel.TCP_INFO, 1)
            return int.from_bytes(found, sys.byteorder)
        if self.stream is None or self.closed():
            return _CLOSE
        return _CLOSE_WAIT if self.peerEnded else _FIN_WAIT2 if self.isShut else _ESTABLISHED

    def waiting(self) -> int:
        """
        Return the bytes that wait for C{recv} (FIONREAD).
        """
        self.look()
        return self.inbox.size

    def unsent(self) -> int:
        """
        Return the bytes that the medium has not taken (SIOCOUTQ).
        """
        return 0 if self.stream is None else self.stream.unsent()


# Not a decorator, with which mypyc would make no class of its own of it.
classImplements(Connection, IHalfCloseableProtocol)
