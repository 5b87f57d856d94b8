"""
TLS over SDP for blocking sockets.

C{ssl.SSLSocket} gives a descriptor to OpenSSL, and a connection over SDP has none that carries bytes: here
OpenSSL works in memory, by C{ssl.SSLObject}, and its records go through the socket.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable
from threading import RLock
from typing import Any, Final, NoReturn
from weakref import ref

from twisted_ib.blocking.connection import failure
from twisted_ib.blocking.socket import AF_IB, socket

#: The header of a record: type, version, and the length of the rest (RFC 8446 section 5.1).
_HEADER_BYTES: Final = 5

_wrapPlain = ssl.SSLContext.wrap_socket


class _Records:
    """
    The TLS of one socket: the methods of C{_ssl._SSLSocket}, with records that the socket carries.

    All else is C{ssl.SSLObject}'s.
    """

    def __init__(
        self, skt: SSLSocket, context: ssl.SSLContext, isServer: bool, hostname: str | None, session: Any
    ) -> None:
        # Weakly, as the standard library's: a socket that nobody has any more is closed at once.
        self._owner = ref(skt)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, isServer, hostname, session)
        #: What has arrived of a record's header, and how much of the rest has not.
        self._header = b""
        self._left = 0
        #: Records that a non-blocking socket did not take.
        self._unsent = b""
        # Each may be taken again, by the handler of a signal.  One thread may read while another writes;
        # records leave in their order.
        self._lock = RLock()
        # OpenSSL and its records in memory are one thread's at a time: they let go of Python's lock.
        self._memory = RLock()
        # Of the threads that read one receives, and the others look again at what it has received.
        self._filling = RLock()
        self._filled = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._object, name)

    @property
    def _socket(self) -> SSLSocket:
        skt = self._owner()
        assert skt is not None
        return skt

    def _flush(self, isWriting: bool) -> None:
        # Who only reads does not wait for one that writes: the peer may wait until this end reads.  That one
        # looks again once it has let go.
        while (self._unsent or self._outgoing.pending) and self._lock.acquire(blocking=isWriting):
            try:
                with self._memory:
                    data, self._unsent = memoryview(self._unsent + self._outgoing.read()), b""
                try:
                    while data:
                        data = data[socket.send(self._socket, data) :]
                finally:
                    self._unsent = bytes(data)
            finally:
                self._lock.release()

    def _fill(self, filled: int) -> None:
        timeout = self._socket.gettimeout()
        if self._filling.acquire(timeout=-1 if timeout is None else timeout):
            try:
                if self._filled == filled:
                    self._receive()
            finally:
                self._filling.release()
        elif timeout:
            raise TimeoutError
        else:
            self._wantRead()

    def _wantRead(self) -> NoReturn:
        raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "The operation did not complete") from None

    def _receive(self) -> None:
        # No more than the record: what is behind it stays in the socket, where select() finds it.
        try:
            data = socket.recv(self._socket, self._left or _HEADER_BYTES - len(self._header))
        except BlockingIOError:
            self._wantRead()
        with self._memory:
            self._filled += 1
            if not data:
                self._incoming.write_eof()
                return
            self._incoming.write(data)
            # It may be more than was wanted, if the handler of a signal has read meanwhile.
            while data:
                if self._left:
                    count = min(self._left, len(data))
                    self._left -= count
                else:
                    count = _HEADER_BYTES - len(self._header)
                    self._header += data[:count]
                    if len(self._header) == _HEADER_BYTES:
                        self._left = int.from_bytes(self._header[3:], "big")
                        self._header = b""
                data = data[count:]

    def _check(self) -> None:
        part = self._socket.sdp
        if part is not None and part.loop.forked:
            # A thread that had one of the locks is the parent's.  This is refused.
            socket.recv(self._socket, 1)

    def _run(self, call: Callable[..., Any], *arguments: Any, isWriting: bool = False) -> Any:
        self._check()
        if not isWriting:
            return self._repeat(call, *arguments, isWriting=False)
        # Nobody else has to send what it makes.
        with self._lock:
            result = self._repeat(call, *arguments, isWriting=True)
        self._flushQuietly(False)
        return result

    def _repeat(self, call: Callable[..., Any], *arguments: Any, isWriting: bool) -> Any:
        if self._unsent:
            self._flushAll(isWriting)
        while True:
            try:
                with self._memory:
                    filled = self._filled
                    result = call(*arguments)
            except ssl.SSLWantReadError:
                self._flushAll(isWriting)
                self._fill(filled)
            except ssl.SSLError:
                # An alert says why to the peer.
                self._flushQuietly(isWriting)
                raise
            else:
                self._flushQuietly(isWriting, isRaising=True)
                return result

    def _flushAll(self, isWriting: bool) -> None:
        try:
            self._flush(isWriting)
        except BlockingIOError:
            raise ssl.SSLWantWriteError(ssl.SSL_ERROR_WANT_WRITE, "The operation did not complete") from None

    def _flushQuietly(self, isWriting: bool, isRaising: bool = False) -> None:
        try:
            self._flush(isWriting)
        except BlockingIOError:
            # The next call sends the rest.
            pass
        except OSError:
            if isRaising:
                raise

    def do_handshake(self) -> None:
        self._run(self._object.do_handshake)

    def read(self, *arguments: Any) -> Any:
        try:
            return self._run(self._object.read, *arguments)
        except TimeoutError:
            raise TimeoutError("The read operation timed out") from None

    def write(self, data: Any) -> int:
        try:
            count: int = self._run(self._object.write, data, isWriting=True)
        except TimeoutError:
            raise TimeoutError("The write operation timed out") from None
        return count

    def pending(self) -> int:
        self._check()
        with self._memory:
            return self._object.pending()

    def shutdown(self) -> SSLSocket:
        self._run(self._object.unwrap)
        return self._socket


class _Context:
    """
    The context of a socket, whose TLS is in memory.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.real = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def _wrap_socket(
        self, skt: SSLSocket, isServer: bool, hostname: str | None, owner: Any = None, session: Any = None
    ) -> _Records:
        return _Records(skt, self.real, isServer, hostname, session)


class SSLSocket(ssl.SSLSocket, socket):  # type: ignore[misc]
    """
    See C{ssl.SSLSocket}.
    """

    # Set by the standard library's.
    _connected: bool
    _session: Any
    do_handshake_on_connect: bool
    suppress_ragged_eofs: bool

    @property
    def context(self) -> ssl.SSLContext:
        real: ssl.SSLContext = self._context.real
        return real

    @context.setter
    def context(self, context: ssl.SSLContext) -> None:
        self._context = _Context(context)
        if self._sslobj is not None:
            self._sslobj.context = context

    def _real_connect(self, address: Any, isNumber: bool) -> int | None:
        # As the standard library's, with TLS in memory.
        if self.server_side:
            raise ValueError("can't connect in server-side mode")
        if self._connected or self._sslobj is not None:
            raise ValueError("attempt to connect already-connected SSLSocket!")
        self._sslobj: Any = self._context._wrap_socket(
            self, False, self.server_hostname, session=self._session
        )
        number: int | None = None
        try:
            if isNumber:
                number = socket.connect_ex(self, address)
            else:
                socket.connect(self, address)
            if not number:
                self._connected = True
                if self.do_handshake_on_connect:
                    self.do_handshake()
        except (OSError, ValueError):
            self._sslobj = None
            raise
        return number

    def accept(self) -> tuple[Any, Any]:
        made, address = socket.accept(self)
        wrapped = wrap_socket(
            self.context,
            made,
            server_side=True,
            do_handshake_on_connect=self.do_handshake_on_connect,
            suppress_ragged_eofs=self.suppress_ragged_eofs,
        )
        return wrapped, address


def wrap_socket(
    context: ssl.SSLContext,
    sock: Any,
    server_side: bool = False,
    do_handshake_on_connect: bool = True,
    suppress_ragged_eofs: bool = True,
    server_hostname: str | None = None,
    session: Any = None,
) -> ssl.SSLSocket:
    """
    See C{ssl.SSLContext.wrap_socket}: the standard library's, but for sockets that SDP may carry.
    """
    arguments = (server_side, do_handshake_on_connect, suppress_ragged_eofs, server_hostname)
    if getattr(sock, "family", None) == AF_IB:
        # The descriptor, which the standard library's would take, has no connection.
        raise failure(errno.EAFNOSUPPORT)
    if type(sock) is not socket or (sock.sdp is None and _isConnected(sock)):
        return _wrapPlain(context, sock, *arguments, session)
    create: Any = SSLSocket._create  # type: ignore[attr-defined]
    made: ssl.SSLSocket = create(sock, *arguments, _Context(context), session)
    return made


def _isConnected(skt: socket) -> bool:
    try:
        skt.getpeername()
    except OSError:
        return False
    return True
