"""
TLS over SDP for blocking sockets.

C{ssl.SSLSocket} gives a descriptor to OpenSSL, and a connection over SDP has none that carries bytes: here
OpenSSL works in memory, by C{ssl.SSLObject}, and its records go through the socket.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable
from threading import Lock, RLock
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
        # One thread may read while another writes; records leave in their order.
        self._lock = RLock()
        # OpenSSL and its records in memory are one thread's at a time: they let go of Python's lock.
        self._memory = Lock()
        # Of the threads that read one receives, and the others look again at what it has received.
        self._filling = Lock()
        self._filled = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._object, name)

    @property
    def _socket(self) -> SSLSocket:
        skt = self._owner()
        assert skt is not None
        return skt

    def _flush(self) -> None:
        with self._lock:
            with self._memory:
                data, self._unsent = self._unsent + self._outgoing.read(), b""
            try:
                while data:
                    data = data[socket.send(self._socket, data) :]
            finally:
                self._unsent = data

    def _fill(self, filled: int) -> None:
        timeout = self._socket.gettimeout()
        part = self._socket.sdp
        if part is not None and part.loop.forked:
            # The thread that had the lock is the parent's; this is refused.
            self._receive()
        elif self._filling.acquire(timeout=-1 if timeout is None else timeout):
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
        if self._left:
            self._left -= len(data)
        else:
            self._header += data
            if len(self._header) == _HEADER_BYTES:
                self._left = int.from_bytes(self._header[3:], "big")
                self._header = b""

    def _run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        if self._unsent:
            self._flushAll()
        while True:
            try:
                with self._memory:
                    filled = self._filled
                    result = call(*arguments)
            except ssl.SSLWantReadError:
                self._flushAll()
                self._fill(filled)
            except ssl.SSLError:
                # An alert says why to the peer.
                self._flushQuietly()
                raise
            else:
                self._flushQuietly(isRaising=True)
                return result

    def _flushAll(self) -> None:
        if not (self._unsent or self._outgoing.pending):
            # A thread that reads does not wait for one that writes: the peer may wait for it to read.
            return
        try:
            self._flush()
        except BlockingIOError:
            raise ssl.SSLWantWriteError(ssl.SSL_ERROR_WANT_WRITE, "The operation did not complete") from None

    def _flushQuietly(self, isRaising: bool = False) -> None:
        if not (self._unsent or self._outgoing.pending):
            return
        try:
            self._flush()
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
            count: int = self._run(self._object.write, data)
        except TimeoutError:
            raise TimeoutError("The write operation timed out") from None
        return count

    def pending(self) -> int:
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
