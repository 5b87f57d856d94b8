"""
The asyncio transport over SDP, with the behaviour of asyncio's own over TCP sockets.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from asyncio import Server, constants, futures, protocols, transports
from asyncio.log import logger
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.python.failure import Failure

from twisted_ib.aio.moving import move
from twisted_ib.aio.streamsocket import bytesOf
from twisted_ib.internet.failures import osError
from twisted_ib.switch.reason import EXPLICIT, Reason

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable

    from twisted_ib.aio.streamsocket import ServerStream, StreamSocket

    class _Protocol(Protocol):
        # asyncio's Protocol or BufferedProtocol.
        def connection_made(self, transport: transports.Transport) -> None: ...

        def data_received(self, data: bytes) -> None: ...

        def get_buffer(self, sizehint: int) -> bytearray: ...

        def buffer_updated(self, nbytes: int) -> None: ...

        def eof_received(self) -> bool | None: ...

        def connection_lost(self, exc: BaseException | None) -> None: ...

    class _Server(Protocol):
        # asyncio's own; since Python 3.13 with the transport.
        def _attach(self, *transport: transports.Transport) -> None: ...

        def _detach(self, *transport: transports.Transport) -> None: ...

    class _FlowControl(transports.Transport):
        _extra: dict[str, Any]
        _loop: AbstractEventLoop
        _high_water: int
        _low_water: int
        _protocol_paused: bool

        def __init__(self, extra: dict[str, Any] | None, loop: AbstractEventLoop) -> None: ...

        def _maybe_pause_protocol(self) -> None: ...

        def _maybe_resume_protocol(self) -> None: ...

else:
    # The base of asyncio's own transports; sendfile()'s fall-back asks for it.
    from asyncio.transports import _FlowControlMixin as _FlowControl

_READ_FAILED = "Fatal read error on socket transport"
#: Whether servers know their transports (Server.close_clients()).
_SERVERS_KNOW = hasattr(Server, "close_clients")


class StreamTransport(_FlowControl):
    """
    One SDP connection as asyncio sees it, and the Twisted protocol of that connection: see
    L{asyncio.WriteTransport}.

    C{write} is the stream's own method until a half-close or close.

    @ivar dataReceived: Called with what has arrived.
    """

    # As of asyncio's own: loop.start_tls() and loop.sendfile() ask for these.
    _start_tls_compatible = True
    _sendfile_compatible = constants._SendfileMode.TRY_NATIVE

    def __init__(
        self,
        loop: AbstractEventLoop,
        sock: StreamSocket,
        protocol: Any,
        waiter: Future[None] | None,
        extra: dict[str, Any] | None,
        server: Any,
    ) -> None:
        """
        @param sock: The connected stream; this object takes it over.
        @param waiter: A future that is done when C{connection_made} was called, or L{None}.
        @param extra: Of C{get_extra_info}, or L{None}.
        @param server: The server that has accepted it, or L{None}.
        """
        super().__init__(extra, loop)
        self._stream = stream = sock.stream
        self._socket = sock
        sock.taken = True
        first = sock.first
        #: Whether the peer's end, of which the transport before this one was told, is to be told.
        self._owesEnd = first.hasEnded
        self._closing = self._paused = self._eof = self._over = self._drops = self._shut = False
        #: Whether the stream has ended by itself.
        self._hasLost = False
        self._shutReading = False
        self._error: BaseException | None = None
        #: The part of a C{BufferedProtocol} that is under way.
        self._failing = ""
        self._describe(sock)
        # As with asyncio's readers all calls have one copy of the context, but for what follows a close().
        self._context = self._lastContext = copy_context()
        self.set_protocol(protocol)
        self._server: _Server | None = server
        if server is not None:
            server._attach(*((self,) if _SERVERS_KNOW else ()))
        stream.protocol = self
        self._limit()
        vars(self)["write"] = stream.write
        loop.call_soon(protocol.connection_made, self)
        if waiter is not None:
            loop.call_soon(futures._set_result_unless_cancelled, waiter, None)  # type: ignore[attr-defined]
        # Nothing is read before connection_made(), nor before the caller of create_connection() has what it
        # returns, which is in the turn after that of the waiter.
        loop.call_soon(loop.call_soon, self._begin, first.lost)

    def _describe(self, sock: StreamSocket) -> None:
        extra = self._extra
        extra["socket"] = sock
        stream = self._stream
        # As of asyncio's own.
        stream.setTcpNoDelay(True)
        # Without a switch it was asked for by name.
        named = Reason(EXPLICIT, stream.provider, stream.provider, stream.channel.device.name)
        extra["why"] = getattr(stream, "why", named)
        extra["sockname"] = sock.getsockname()
        try:
            extra.setdefault("peername", sock.getpeername())
        except OSError:
            extra.setdefault("peername", None)

    def _begin(self, lost: Failure | None) -> None:
        if lost is not None:
            self.connectionLost(lost)
        elif self.is_reading():
            self._stream.startReading()
            self._tellEnd()

    def _tellEnd(self) -> None:
        self._stream.refuses = self._shutReading and (self._shut or self._eof)
        if self._owesEnd and self.is_reading():
            if self._stream.heldBytes:
                self._loop.call_soon(self._tellEnd)
                return
            self.endReceived()

    def __repr__(self) -> str:
        state = "closed" if self._over else "closing" if self._closing else "open"
        return f"<{self.__class__.__name__} {state} {self._stream!r}>"

    # -- reading

    def set_protocol(self, protocol: Any) -> None:
        self._protocol: _Protocol | None = protocol
        self._failing = ""
        isBuffered = isinstance(protocol, protocols.BufferedProtocol)
        feed: Any = self._fill if isBuffered else self._deliver
        if self._loop.get_debug():
            feed = partial(self._timed, feed)
        self._feed = feed
        self.dataReceived: Any = partial(self._context.run, feed)

    def _deliver(self, data: bytes) -> None:
        # Looked up each time, as asyncio's own do: a protocol may set the method on itself.
        protocol = self._protocol
        assert protocol is not None
        protocol.data_received(data)

    def _fill(self, data: bytes) -> None:
        # The stream keeps, in order, the bytes that the protocol cannot take yet, or leaves unread.
        protocol, left = self._protocol, memoryview(data)
        assert protocol is not None
        try:
            while left and self.is_reading() and protocol is self._protocol:
                self._failing = "Fatal error: protocol.get_buffer() call failed."
                room = protocol.get_buffer(len(left))
                size = min(len(room), len(left))
                if not size:
                    raise RuntimeError("get_buffer() returned an empty buffer")
                self._failing = _READ_FAILED
                room[:size] = left[:size]
                self._failing = "Fatal error: protocol.buffer_updated() call failed."
                left = left[size:]
                protocol.buffer_updated(size)
        except BaseException:
            self._stream.holdAgain(bytes(left))
            raise
        if left and protocol is not self._protocol:
            self._feed(bytes(left))
        elif left:
            self._stream.holdAgain(bytes(left))

    def _timed(self, feed: Callable[[bytes], None], data: bytes) -> None:
        loop = self._loop
        begin = loop.time()
        feed(data)
        seconds = loop.time() - begin
        if seconds >= loop.slow_callback_duration:
            asked = getattr(self._protocol, "data_received", feed)
            logger.warning("Executing %r of %r took %.3f seconds", asked, self, seconds)

    def get_protocol(self) -> Any:
        return self._protocol

    def is_reading(self) -> bool:
        return not self._closing and not self._paused

    def pause_reading(self) -> None:
        if self.is_reading():
            self._paused = True
            self._stream.stopReading()

    def resume_reading(self) -> None:
        if self._paused and not self._closing:
            self._paused = False
            # As asyncio's own, which reads again, and finds the end again.
            hasEnded = self._socket.first.hasEnded
            self._owesEnd = self._owesEnd or hasEnded
            # Behind an end that the peer has sent there is nothing.
            if not hasEnded or self._stream.heldBytes or not self._stream.peerEnded:
                self._stream.startReading()
            if self._owesEnd:
                self._loop.call_soon(self._tellEnd)

    # -- writing

    def write(self, data: object) -> None:
        """
        See C{asyncio.WriteTransport}; this one is called after a half-close or close only.
        """
        data = bytesOf(data)
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data:
            return
        if self._shut and not self._closing:
            # As send(2) after shutdown(SHUT_WR), which knows of an error before.
            self._stream.failNow()
            self._fatal(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)), "")
        elif not self._drops:
            self._stream.write(data)

    def _limit(self) -> None:
        # The stream calls filled() above it.
        self._stream.bufferSize = self._high_water

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        super().set_write_buffer_limits(high, low)
        self._limit()

    def get_write_buffer_size(self) -> int:
        if self._over:
            return 0
        if self._stream.halfCloses:
            # As the kernel has what asyncio's own write, as far as there was room.
            self._stream.sendNow()
        return int(self._stream.unsent())

    def can_write_eof(self) -> bool:
        return bool(self._stream.halfCloses)

    def shut(self, how: int) -> None:
        """
        C{shutdown} of the socket behind the transport's back.

        @param how: As of C{socket.shutdown}.
        """
        if how != socket.SHUT_RD:
            self._shut = True
            vars(self).pop("write", None)
            self._stream.endWriting()
        if how != socket.SHUT_WR:
            # Behind what has arrived: once it is resumed.
            self._shutReading = True
            self._owesEnd = not self._socket.first.hasEnded
        if self._shutReading:
            self._loop.call_soon(self._tellEnd)

    def write_eof(self) -> None:
        """
        See C{asyncio.WriteTransport}.

        @raise NotImplementedError: There is no half-close.
        """
        if not self.can_write_eof():
            raise NotImplementedError("a stream of messages ends in both directions at once")
        if not self._closing and not self._eof:
            self._eof = True
            vars(self).pop("write", None)
            if not self.get_write_buffer_size():
                # As of shutdown(2), ENOTCONN: there is no connection any more, which nobody has heard yet.
                self._socket.getpeername()
            self._stream.endWriting()
            if self._shutReading:
                self._stream.refuses = not self._owesEnd
                self._loop.call_soon(self._tellEnd)

    # -- a connection that moves to TCP

    def mayMove(self) -> bool:
        """
        Return whether it may: neither end has ended, and no duplicate of its socket has it.
        """
        isOpen = not (self._closing or self._eof or self._shut or self._over)
        return isOpen and self._socket.first.mayMove()

    def asked(self, stream: ServerStream, descriptor: int) -> bool:
        """
        The client asks to move to a connection of TCP.

        @param stream: The stream.
        @param descriptor: This end of it.
        @return: Whether that is taken care of, and the descriptor with it.
        """
        if not self.mayMove():
            return False
        stream.moveTo(descriptor, self.mayMove, partial(move, self, stream))
        return True

    def carriedBy(self, stream: Any, mine: socket.socket) -> None:
        """
        The connection has moved.

        @param stream: The object in the place of its stream from now on.
        @param mine: This end of TCP.
        """
        self._stream = stream
        self._socket.first.movedTo(mine)
        self._limit()
        vars(self)["write"] = stream.write

    def ended(self, exc: BaseException | None) -> None:
        """
        A connection that has moved has ended.

        @param exc: The error; L{None} for the end of a stream.
        """
        if self._error is None:
            self._error = exc
        self.connectionLost(Failure(ConnectionDone()))

    # -- the end

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        vars(self).pop("write", None)
        if not self.get_write_buffer_size():
            self._closeSoon(None)
        elif not self._leave():
            self._stream.loseConnection()

    def _closeSoon(self, exc: BaseException | None) -> None:
        # With nothing to wait for it is closed already, and the socket behind connection_lost().
        self._drops = True
        self._lastContext = copy_context()
        self._stream.stopReading()
        self._end(exc)

    def _leave(self) -> bool:
        # A socket that was duplicated: the connection is open as long as another one is.
        if not self._socket.leave():
            return False
        stream, first = self._stream, self._socket.first
        if stream.protocol is self:
            # Of the call that this is within.
            setattr(first, "raised", self.raised)  # noqa: B010
            stream.stopReading()
            stream.protocol = first
        self._drops = self._hasLost = True
        self._end(None)
        return True

    def _closeSocket(self) -> None:
        if self._hasLost:
            self._socket.leave()
        elif not self._leave():
            self._socket.first.over()
            if self._socket.resets():
                self._stream.connectionLost(Failure(ConnectionAborted()))
            else:
                self._stream.closeNow()

    def abort(self) -> None:
        self._force_close(None)

    def _force_close(self, exc: BaseException | None) -> None:
        # Under this name TLS (asyncio.sslproto) calls it.
        if self._over:
            return
        if self._error is None:
            self._error = exc
        self._closing = True
        vars(self).pop("write", None)
        stream = self._stream
        if stream.halfCloses and not self.get_write_buffer_size():
            # Nothing is missing at the peer: as asyncio's own it is closed in order.
            self._closeSoon(self._error)
        elif not self._leave():
            self._lastContext = copy_context()
            stream.abortConnection()

    def _fatal(self, exc: BaseException, message: str) -> None:
        if isinstance(exc, SystemExit | KeyboardInterrupt):
            # They end the event loop, as those of its own callbacks do, but not in the midst of a batch.
            self._loop.call_soon(_raise, exc)
        elif not isinstance(exc, OSError):
            self._loop.call_exception_handler(
                {
                    "message": message,
                    "exception": exc,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
        self._force_close(exc)

    # -- from the stream

    def logPrefix(self) -> str:
        """
        Return the prefix of log lines about the stream.
        """
        return type(self._protocol).__name__

    def raised(self) -> None:
        """
        The protocol's C{data_received} has raised.
        """
        exc = sys.exc_info()[1]
        assert exc is not None
        self._fatal(exc, self._failing or "Fatal error: protocol.data_received() call failed.")

    def filled(self) -> None:
        """
        More than the high-water mark waits.
        """
        self._maybe_pause_protocol()

    def sent(self) -> None:
        """
        Some of what was written has been sent.
        """
        if self._protocol_paused and self._stream.unsent() <= self._low_water:
            # Not amidst the stream's own work.
            self._loop.call_soon(self._maybe_resume_protocol, context=self._context)

    def drained(self) -> None:
        """
        Everything written has been sent.
        """
        if self._protocol_paused:
            self._context.run(self._maybe_resume_protocol)

    def endReceived(self) -> None:
        """
        The peer sends no more.
        """
        if self._over:
            return
        self._owesEnd = False
        self._socket.endReceived()
        protocol = self._protocol
        assert protocol is not None
        try:
            keepOpen = self._context.run(protocol.eof_received)
        except BaseException as e:
            self._fatal(e, "Fatal error: protocol.eof_received() call failed.")
            return
        if keepOpen:
            self._stream.stopReading()
        else:
            self._context.run(self.close)

    def connectionLost(self, reason: Failure) -> None:
        """
        The stream has ended.
        """
        self._hasLost = True
        self._socket.connectionLost(reason)
        if self._over:
            return
        exc, why = self._error, reason.value
        isOrderly = self._drops or why is None or isinstance(why, ConnectionDone | ConnectionAborted)
        if exc is None and not isOrderly:
            # Linux's tcp_reset() in CLOSE_WAIT.
            hasEnded = self._stream.peerEnded
            exc = osError(OSError(errno.EPIPE, os.strerror(errno.EPIPE)) if hasEnded else why)
        self._end(exc)

    def _end(self, exc: BaseException | None) -> None:
        if self._over:
            return
        self._over = self._closing = True
        vars(self).pop("write", None)
        # Never within a call of the application, as asyncio's own.
        self._loop.call_soon(self._tellLost, exc, context=self._lastContext)

    def _tellLost(self, exc: BaseException | None) -> None:
        protocol = self._protocol
        assert protocol is not None
        try:
            protocol.connection_lost(exc)
        finally:
            self._protocol = None
            self._closeSocket()
            server, self._server = self._server, None
            if server is not None:
                server._detach(*((self,) if _SERVERS_KNOW else ()))


def _raise(exc: BaseException) -> None:
    raise exc
