"""
The part of a socket in asyncio's calls, for streams over SDP: what is connected and has no transport yet.
"""

from __future__ import annotations

import errno
import os
import socket
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ConnectionAborted
from twisted.python.failure import Failure

from twisted_ib.aio.moving import MovedStream
from twisted_ib.errors import PeerResetError, UnheardError, WrongThreadError
from twisted_ib.hca.host.fdpassing import LINGER_RESET
from twisted_ib.internet.failures import osError
from twisted_ib.sdp.protocol.machine import Input
from twisted_ib.switch.handle import ConnectionHandle
from twisted_ib.switch.serverclient import RedirectedClient, RedirectedServer

if TYPE_CHECKING:
    from twisted_ib.aio.transport import StreamTransport
    from twisted_ib.internet.serverclient import ConnectedTransport
    from twisted_ib.sdp.extensions import Extensions
    from twisted_ib.sdp.protocol.machine import Action, Machine
    from twisted_ib.sdp.zerocopyreceive import FilledBuffer

    class _Transport(ConnectedTransport):
        # Those of streams and of messages.
        write: Any
        extensions: Extensions | None
        heldBytes: int
        machine: Machine
        _writeDisconnecting: bool

        def _writeSlowly(self, data: Any) -> None: ...

        def drained(self) -> None: ...

        def flush(self) -> None: ...

        def act(self, action: Action) -> None: ...

        def endNow(self) -> None: ...

        def hold(self, data: bytes | FilledBuffer) -> None: ...

        def loseWriteConnection(self) -> None: ...

        def sendNow(self) -> None: ...

        def _closeQueuePair(self) -> None: ...

        def _ended(self) -> None: ...

        def _proceedWithout(self) -> None: ...

        def _resetByPeer(self, reason: Exception, writes: bool) -> None: ...

        def _sendEnd(self) -> bool: ...

else:
    #: Beside a transport among the bases of a class.
    _Transport = object


def bytesOf(data: object) -> bytes:
    """
    Return what was given to C{write} as L{bytes}.

    @raise TypeError: It holds no bytes.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
    return bytes(data)


class AsyncioStream(_Transport):
    """
    The calls of an SDP transport to its user that differ for asyncio; a base before the transport's own.
    """

    __slots__ = ()

    protocol: StreamSocket | StreamTransport | MovedStream
    #: Whether one direction can end before the other.
    halfCloses = True
    resetsUnread = True
    #: Whether it is shut down in both directions: data resets it.
    refuses = False
    #: Whether the peer sends no more, also if the protocol has not heard of it yet.
    peerEnded = False

    def _writeSlowly(self, data: Any) -> None:
        if data.__class__ is not bytes:
            self.write(bytesOf(data))
            return
        protocol = self.protocol
        if isinstance(protocol, MovedStream):
            # The method was kept from before.
            protocol.write(data)
            return
        try:
            super()._writeSlowly(data)
        except WrongThreadError:
            raise WrongThreadError(
                "a transport was used outside its event loop's thread; use loop.call_soon_threadsafe()"
            ) from None
        if data:
            # As send(2), which fails within the call.
            self.failNow(False)

    def filled(self) -> None:
        """
        More than the high-water mark waits.
        """
        self.protocol.filled()

    def drained(self) -> None:
        """
        Everything written has been sent.
        """
        protocol = self.protocol
        if protocol is not None and self.disconnecting:
            # Told before the end.
            protocol.sent()
        super().drained()
        protocol = self.protocol
        if protocol is not None:
            protocol.drained()

    def flush(self) -> None:
        """
        Send what is queued, as far as that goes now.
        """
        super().flush()
        protocol = self.protocol
        if protocol is not None:
            protocol.sent()

    def endOfStream(self) -> None:
        """
        The peer sends no more.
        """
        if not self._aborting:
            self.protocol.endReceived()

    def _ended(self) -> None:
        self.peerEnded = True
        super()._ended()

    def hold(self, data: bytes | FilledBuffer) -> None:
        """
        Hold what nobody reads yet, or refuse it.
        """
        if self.refuses:
            # Linux's tcp_rcv_state_process() in FIN_WAIT2: both ends find a reset.
            self.act(self.machine.feed(Input.ABORT))
            self._closeQueuePair()
            self._resetByPeer(PeerResetError("data for an end that is shut down"), False)
        else:
            super().hold(data)

    def failNow(self, isUsed: bool = True) -> None:
        """
        Tell the protocol of a loss that it has not heard of.

        @param isUsed: Whether that is for a call which says nothing else of it.
        """
        if self.queuePair.path is None and self.held:
            loss = self.held[-1]
            if isinstance(loss, UnheardError):
                loss.unheard = min(loss.unheard, -isUsed)
            self._proceedWithout()

    def endWriting(self) -> None:
        """
        As shutdown(2): the end is sent within the call, if all that was written before is.
        """
        if self._writeDisconnecting:
            return
        self.loseWriteConnection()
        if self.connected and self.extensions is None:
            self.sendNow()
            if not self.unsent():
                self._writeDisconnected = self._sendEnd()

    def closeNow(self) -> None:
        """
        As close(2): in order, or by a reset where octets are unread (RFC 9293 section 3.10.4).
        """
        if self.heldBytes and not self._writeDisconnecting:
            self.connectionLost(Failure(ConnectionAborted()))
        else:
            self.endNow()

    def _raised(self) -> None:
        # The transport's own calls of the protocol say which of them raised.
        self.protocol.raised()


class ServerStream(AsyncioStream, RedirectedServer):
    """
    The transport of a passive side.
    """

    __slots__ = ()

    def asked(self, descriptor: int) -> bool:
        return self.protocol.asked(self, descriptor)


class ClientStream(AsyncioStream, RedirectedClient):
    """
    The transport of an active side.
    """

    __slots__ = ()


class StreamSocket(ConnectionHandle):
    """
    A connected stream, as asyncio's calls hand on a connected socket; the stream's protocol until there is a
    transport of asyncio's.

    Duplicates are as those of a descriptor: the stream ends with the last one that is closed.  They have what
    they share in the first, which is the stream's protocol again while none of them has a transport.

    @ivar stream: The stream.
    @ivar lost: Why it ended before there was a transport, or L{None}; of the first one.
    @ivar taken: Whether there is a transport.
    @ivar hasEnded: Whether the peer sends no more; of the first one, as C{moved}.
    """

    lost: Failure | None = None
    taken = hasEnded = False
    _first: StreamSocket | None = None
    _isClosed = False
    #: Of the first one: whether the stream has ended, and how many of these are not closed.
    _isOver = False
    _open = 1
    _descriptor = -1
    stream: ServerStream | ClientStream

    def __init__(self, connected: Callable[[StreamSocket], object]) -> None:
        """
        @param connected: Called when the stream is connected.
        """
        self._connected = connected

    @property
    def first(self) -> StreamSocket:
        """
        The one of which this is a duplicate, or this one.
        """
        return self if self._first is None else self._first

    def makeConnection(self, transport: ServerStream | ClientStream) -> None:
        """
        The stream is connected; nothing is read yet.
        """
        super().__init__(transport)
        self.stream = transport
        transport.stopReading()
        self._connected(self)

    def logPrefix(self) -> str:
        """
        Return the prefix of log lines about the stream.
        """
        return "asyncio"

    def filled(self) -> None:
        """
        Do nothing: nothing is written yet.
        """

    def drained(self) -> None:
        """
        Do nothing, likewise.
        """

    def sent(self) -> None:
        """
        Do nothing, likewise.
        """

    def raised(self) -> None:
        """
        C{connected} has raised.
        """
        self.close()

    def connectionLost(self, reason: Failure) -> None:
        """
        The stream has ended.
        """
        first = self.first
        first.lost = reason
        first.over()

    def fileno(self) -> int:
        """
        Return a descriptor that is readable from the end of the peer's bytes on, for who asks whether an idle
        connection is still good, as pools do; -1 when the stream has ended.

        It is made when it is asked for, and nothing else can be done with it.
        """
        first = self.first
        if self._isClosed:
            return -1
        if first._descriptor < 0 and not first._isOver:
            first._descriptor = os.eventfd(first.hasEnded, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return first._descriptor

    def endReceived(self) -> None:
        """
        The peer sends no more.
        """
        first = self.first
        first.hasEnded = True
        if first._descriptor >= 0:
            os.eventfd_write(first._descriptor, 1)

    def over(self) -> None:
        """
        The stream has ended.
        """
        self._isOver = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def shutdown(self, how: int) -> None:
        """
        See C{socket.shutdown}; without a transport the stream ends in order, whichever part is meant.

        @raise OSError: C{ENOTCONN}: it has ended.
        """
        self._checkOpen()
        if how not in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        # Of a transport that has not told its protocol yet, too.
        self.getpeername()
        protocol: Any = self.stream.protocol
        if isinstance(protocol, StreamSocket):
            self.stream.loseConnection()
        else:
            protocol.shut(how)

    def _checkOpen(self) -> None:
        if self._isClosed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def getsockname(self) -> tuple[Any, ...]:
        self._checkOpen()
        return super().getsockname()

    def getpeername(self) -> tuple[Any, ...]:
        self._checkOpen()
        return super().getpeername()

    def getsockopt(self, level: int, option: int, buflen: int = 0) -> int | bytes:
        self._checkOpen()
        return super().getsockopt(level, option, buflen)

    def setsockopt(self, level: int, option: int, value: Any, optlen: int | None = None) -> None:
        self._checkOpen()
        super().setsockopt(level, option, value, optlen)

    def resets(self) -> bool:
        """
        Return whether its close is a reset: SO_LINGER of no seconds (socket(7)).
        """
        value = self._set.get((socket.SOL_SOCKET, socket.SO_LINGER), 0)
        return self.moved is None and isinstance(value, bytes) and value == LINGER_RESET

    def mayMove(self) -> bool:
        """
        Return whether the connection may move to TCP: the first one alone has it, and its peer sends.
        """
        return self._open == 1 and not (self._isClosed or self._isOver or self.hasEnded or self.moved)

    def asked(self, stream: ServerStream, descriptor: int) -> bool:
        """
        Return False: without a transport it does not move.
        """
        return False

    def leave(self) -> bool:
        """
        Close this one for its transport.

        @return: Whether others have the stream, which goes on.
        """
        first = self.first
        if not self._isClosed:
            self._isClosed = True
            first._open -= 1
        return first._open > 0

    def close(self) -> None:
        """
        Close this one, unless it has a transport already; the stream, if no other one has it.
        """
        if not self.taken and not self.leave() and not self.first._isOver:
            if getattr(self.stream, "heldBytes", 0):
                # RFC 9293 section 3.10.4: as TCP does it, a close with unread octets is a reset; messages of
                # RDMA have none of that kind.
                self.stream.abortConnection()
            else:
                self.stream.loseConnection()

    def dup(self) -> StreamSocket:
        """
        See C{socket.dup}: what C{create_connection(sock=)} takes, and has the stream when the transport of
        this one is closed.  Programs begin TLS so in the midst of a connection (aiomysql).

        @raise OSError: C{EBADF}: this one is closed, or the stream has ended.
        """
        first = self.first
        if first._isOver or first.moved or self._isClosed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        made = StreamSocket(self._connected)
        ConnectionHandle.__init__(made, self.stream)
        made.stream, made._set, made._first = self.stream, self._set, first
        first._open += 1
        return made

    def __del__(self) -> None:
        first = self._first
        if first is None or first._isOver or self._isClosed or self.taken:
            return
        # As of a socket that nobody has closed; this may be any thread, amid anything.  A closed loop has
        # closed its streams.
        with suppress(RuntimeError):
            self.stream.reactor.callFromThread(first.forgotten)
        # It may raise.
        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def forgotten(self) -> None:
        """
        Nobody has one of the duplicates any more.
        """
        self._open -= 1
        if not self._open and not self._isOver:
            self.stream.loseConnection()

    def get_inheritable(self) -> bool:
        """
        Return False: RDMA does not cross a fork.
        """
        return False


INTERNET = (socket.AF_INET, socket.AF_INET6)

__all__ = ["INTERNET", "AsyncioStream", "ClientStream", "ServerStream", "StreamSocket", "osError"]
