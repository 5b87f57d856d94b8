"""
The part of a socket in asyncio's calls, for streams over SDP: what is connected and has no transport yet.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from twisted.python.failure import Failure

from twisted_ib.errors import WrongThreadError
from twisted_ib.internet.failures import osError
from twisted_ib.switch.handle import ConnectionHandle
from twisted_ib.switch.serverclient import RedirectedClient, RedirectedServer

if TYPE_CHECKING:
    from twisted_ib.aio.transport import StreamTransport
    from twisted_ib.internet.serverclient import ConnectedTransport

    class _Transport(ConnectedTransport):
        # Those of streams and of messages.
        write: Any

        def _writeSlowly(self, data: Any) -> None: ...

        def drained(self) -> None: ...

        def flush(self) -> None: ...

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

    # Before it is a L{StreamSocket}, which is told less.
    protocol: StreamTransport
    #: Whether one direction can end before the other.
    halfCloses = True

    def _writeSlowly(self, data: Any) -> None:
        if data.__class__ is not bytes:
            self.write(bytesOf(data))
            return
        try:
            super()._writeSlowly(data)
        except WrongThreadError:
            raise WrongThreadError(
                "a transport was used outside its event loop's thread; use loop.call_soon_threadsafe()"
            ) from None

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

    def _raised(self) -> None:
        # The transport's own calls of the protocol say which of them raised.
        self.protocol.raised()


class ServerStream(AsyncioStream, RedirectedServer):
    """
    The transport of a passive side.
    """

    __slots__ = ()


class ClientStream(AsyncioStream, RedirectedClient):
    """
    The transport of an active side.
    """

    __slots__ = ()


class StreamSocket(ConnectionHandle):
    """
    A connected stream, as asyncio's calls hand on a connected socket; the stream's protocol until there is a
    transport of asyncio's.

    @ivar stream: The stream.
    @ivar lost: Why it ended before there was a transport, or L{None}.
    @ivar taken: Whether there is one.
    @ivar waits: Whether it was duplicated, and the stream is still that of the other one's transport.
    @ivar hasEnded: Whether the peer sends no more.
    """

    lost: Failure | None = None
    taken = waits = hasEnded = False
    _isOver = False
    _copy: ref[StreamSocket] | None = None
    _descriptor = -1
    stream: ServerStream | ClientStream

    def __init__(self, connected: Callable[[StreamSocket], object]) -> None:
        """
        @param connected: Called when the stream is connected.
        """
        self._connected = connected

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
        self.lost = reason
        copy = self.copy()
        if copy is not None and copy.waits:
            copy.connectionLost(reason)
        self.over()

    def fileno(self) -> int:
        """
        Return a descriptor that is readable from the end of the peer's bytes on, for who asks whether an idle
        connection is still good, as pools do; -1 when the stream has ended.

        It is made when it is asked for, and nothing else can be done with it.
        """
        if self._descriptor < 0 and not self._isOver:
            self._descriptor = os.eventfd(self.hasEnded, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return self._descriptor

    def ended(self) -> None:
        """
        The peer sends no more.
        """
        self.hasEnded = True
        if self._descriptor >= 0:
            os.eventfd_write(self._descriptor, 1)

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
        protocol = self.stream.protocol
        if not self.taken:
            self.close()
        elif protocol is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        else:
            protocol.shut(how)

    def close(self) -> None:
        """
        Close the stream, unless it has a transport already, or is not this one's yet.
        """
        if self.waits:
            self.waits = False
        elif not self.taken:
            self.stream.loseConnection()

    def dup(self) -> StreamSocket:
        """
        See C{socket.dup}: what C{create_connection(sock=)} takes, and has the stream when the transport of
        this one is closed.  Programs begin TLS so in the midst of a connection (aiomysql).

        @raise OSError: C{EBADF}: the stream has ended.
        """
        if self._isOver:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        made = StreamSocket(self._connected)
        ConnectionHandle.__init__(made, self.stream)
        made.stream, made._set = self.stream, self._set
        made.waits, made.hasEnded = True, self.hasEnded
        self._copy = ref(made)
        return made

    def copy(self) -> StreamSocket | None:
        """
        Return the last duplicate that has the stream, or waits for it.
        """
        made = None if self._copy is None else self._copy()
        return made if made is not None and (made.taken or made.waits) else None

    def get_inheritable(self) -> bool:
        """
        Return False: RDMA does not cross a fork.
        """
        return False


INTERNET = (socket.AF_INET, socket.AF_INET6)

__all__ = ["INTERNET", "AsyncioStream", "ClientStream", "ServerStream", "StreamSocket", "osError"]
