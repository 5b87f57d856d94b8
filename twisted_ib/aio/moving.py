"""
A connection of asyncio's that moves to TCP, as its client asks, whose socket blocks and gains nothing over
SDP: the end that is asked (L{twisted_ib.blocking.moving} has the steps, and the other end).

L{StreamTransport<twisted_ib.aio.transport.StreamTransport>} stays, and has what is here in the place of its
stream: asyncio's own transport of the connection of TCP sends, and receives behind what still comes over SDP.
"""

from __future__ import annotations

import socket
from asyncio import Protocol
from asyncio.selector_events import BaseSelectorEventLoop
from typing import TYPE_CHECKING, Final

from twisted.python.failure import Failure

from twisted_ib.hca.host.fdpassing import LINGER_RESET
from twisted_ib.switch.serverclient import asOverSDP

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Transport
    from collections.abc import Callable

    from twisted_ib.aio.streamsocket import ServerStream
    from twisted_ib.aio.transport import StreamTransport

# The base of this package's loop, whose own would ask what it is told already.
_makeTransport: Callable[[AbstractEventLoop, socket.socket, Protocol], Transport]
_makeTransport = getattr(BaseSelectorEventLoop, "_make_socket_transport")  # noqa: B009


def move(transport: StreamTransport, stream: ServerStream, mine: socket.socket) -> None:
    """
    Have TCP carry a connection, as its client asks.

    @param stream: Its stream.
    @param mine: This end of TCP.
    """
    transport.carriedBy(MovedStream(transport, stream, mine), mine)


class MovedStream(Protocol):
    """
    The part of a stream for a connection that has moved; to the stream over SDP, until that has ended, the
    protocol, and to asyncio's transport likewise.

    @ivar halfCloses: Whether one direction can end before the other.
    """

    halfCloses: Final = True
    peerEnded: Final = False
    heldBytes: Final = 0

    def __init__(self, transport: StreamTransport, stream: ServerStream, mine: socket.socket) -> None:
        """
        Send by TCP from now on.

        @param stream: The stream over SDP.
        @param mine: This end of it.
        """
        self._transport, self._mine = transport, mine
        self._sdp: ServerStream | None = stream
        self._isReading, self._hasBegun = transport.is_reading(), False
        #: Octets that have come by TCP, and that the protocol could not take yet.
        self._held = b""
        self._old: ServerStream | None = stream
        stream.answerSuspend()
        stream.direct = 0
        self._redirect()
        mine.setblocking(False)
        asOverSDP(mine, stream)
        stream.moved(mine)
        loop = transport._loop
        self._plain = _makeTransport(loop, mine, self)
        self.write = self._plain.write
        # Behind what asyncio's own has to do at its begin, which reads then.
        loop.call_soon(self._begin)

    def _redirect(self) -> None:
        # A program that has kept the stream's own C{write} writes here, by AsyncioStream._writeSlowly().
        if self._old is not None:
            self._old.protocol = self

    def _begin(self) -> None:
        self._hasBegun = True
        self._read()

    def __repr__(self) -> str:
        return f"<{self.__class__.__name__} {self._plain!r}>"

    # -- reading

    def _read(self) -> None:
        if self._held and self._isReading:
            data, self._held = self._held, b""
            self.data_received(data)
        if self._hasBegun:
            isReading = self._sdp is None and self._isReading
            (self._plain.resume_reading if isReading else self._plain.pause_reading)()

    def startReading(self) -> None:
        """
        Deliver what arrives.
        """
        self._isReading = True
        if self._sdp is not None:
            self._sdp.startReading()
        else:
            # Never within a call of the application.
            self._transport._loop.call_soon(self._read)

    def stopReading(self) -> None:
        """
        Deliver nothing.
        """
        self._isReading = False
        if self._sdp is not None:
            self._sdp.stopReading()
        else:
            self._read()

    def holdAgain(self, data: bytes) -> None:
        """
        Deliver this again later, before all else.
        """
        if self._sdp is not None:
            self._sdp.holdAgain(data)
        else:
            self._held = data

    # -- writing

    @property
    def bufferSize(self) -> int:
        """
        How much may wait before the protocol is told.
        """
        return int(self._plain.get_write_buffer_limits()[1])

    @bufferSize.setter
    def bufferSize(self, high: int) -> None:
        self._plain.set_write_buffer_limits(high, min(high, self._transport._low_water))

    def unsent(self) -> int:
        """
        Return how many octets the kernel has not taken.
        """
        return int(self._plain.get_write_buffer_size())

    def sendNow(self) -> None:
        """
        Nothing: the kernel has what it had room for.
        """

    def failNow(self) -> None:
        """
        Nothing: the kernel tells.
        """

    def endWriting(self) -> None:
        """
        End this direction, behind what was written.
        """
        self._plain.write_eof()

    def shut(self, how: int) -> None:
        """
        See L{StreamTransport.shut<twisted_ib.aio.transport.StreamTransport.shut>}.

        @raise OSError: C{EBADF}: it has ended.
        """
        # The kernel says so.
        self._mine.getpeername()
        self._transport.shut(how)

    # -- the end

    def loseConnection(self) -> None:
        """
        End the connection, behind what was written.
        """
        self._plain.close()
        self._endSDP()

    closeNow = loseConnection

    def abortConnection(self) -> None:
        """
        Reset the connection.
        """
        if not self._plain.is_closing():
            self._mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        self._plain.abort()
        self._endSDP()

    def _endSDP(self) -> None:
        stream, self._sdp = self._sdp, None
        if stream is not None:
            stream.endNow()

    # -- from the stream over SDP

    def logPrefix(self) -> str:
        """
        Return the prefix of log lines about the stream.
        """
        return self._transport.logPrefix()

    def dataReceived(self, data: bytes) -> None:
        """
        Deliver what the client has sent before it moved.
        """
        self._transport.dataReceived(data)

    def raised(self) -> None:
        """
        The protocol's C{data_received} has raised.
        """
        self._transport.raised()

    def asked(self, stream: ServerStream, descriptor: int) -> bool:
        """
        Return False: it has moved.
        """
        return False

    def endReceived(self) -> None:
        """
        The client has moved: what comes behind comes by TCP.
        """
        self._endSDP()
        self._read()

    def connectionLost(self, reason: Failure) -> None:
        """
        The stream has ended: TCP has what is behind that, or an error.
        """
        self._sdp = None
        self._redirect()
        self._read()

    def filled(self) -> None:
        """
        Do nothing: nothing more is written there.
        """

    def sent(self) -> None:
        """
        Do nothing, likewise.
        """

    def drained(self) -> None:
        """
        Do nothing, likewise.
        """

    # -- from asyncio's transport

    def data_received(self, data: bytes) -> None:
        try:
            self._transport.dataReceived(data)
        except BaseException:
            self._transport.raised()

    def eof_received(self) -> bool:
        self._transport.endReceived()
        return not self._transport.is_closing()

    def pause_writing(self) -> None:
        self._transport.filled()

    def resume_writing(self) -> None:
        self._transport.drained()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._endSDP()
        self._old = None
        self._transport.ended(exc)
