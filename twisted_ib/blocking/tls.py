"""
TLS over SDP for blocking sockets.

C{ssl.SSLSocket} gives a descriptor to OpenSSL, and a connection over SDP has none that carries bytes: here
OpenSSL works in memory, by C{ssl.SSLObject}, and its records go through the socket.  So do those of
pyOpenSSL's connections.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial, wraps
from select import POLLIN, POLLOUT
from socket import MSG_DONTWAIT
from threading import RLock
from typing import TYPE_CHECKING, Any, Concatenate, Final, NoReturn, ParamSpec, TypeAlias, TypeVar, cast
from weakref import ref

from twisted_ib import limits
from twisted_ib.blocking.connecting import secured
from twisted_ib.blocking.connection import SEND_BYTES, Connection, failure
from twisted_ib.blocking.descriptors import pollerOf
from twisted_ib.blocking.socket import AF_IB, MovedSocket, movedKind, socket, succeeded
from twisted_ib.drive.process import monotonic
from twisted_ib.switch.reason import isConnected

if TYPE_CHECKING:
    from OpenSSL import SSL

P = ParamSpec("P")
T = TypeVar("T")

#: The header of a record: type, version, and the length of the rest (RFC 8446 section 5.1).
_HEADER_BYTES: Final = 5
#: Bytes of answers to the peer's records (KeyUpdate, RFC 8446 section 4.6.3) that wait for a write which is
#: to be tried again; with more a read waits until the peer takes them.
ANSWER_BYTES: Final = 64 * 1024

#: The standard library's, a class method.
_createPlain: Final[Callable[..., ssl.SSLSocket]] = vars(ssl.SSLSocket)["_create"].__func__


def _secondsTo(deadline: float | None) -> float | None:
    # The time until a deadline as a timeout: None without one, 0.0 for a socket that does not block.
    if not deadline:
        return deadline
    seconds = deadline - monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


class _OpenSSLMemory:
    """
    The records of a connection of pyOpenSSL, as of C{ssl.MemoryBIO}: both those of its peer and those for it.
    """

    def __init__(self, connection: SSL.Connection) -> None:
        # Weakly, as the socket.
        self._connection = ref(connection)
        self._octets = b""

    @property
    def _its(self) -> SSL.Connection:
        connection = self._connection()
        assert connection is not None
        return connection

    @property
    def pending(self) -> int:
        from OpenSSL.SSL import WantReadError

        pieces = [self._octets]
        with suppress(WantReadError):
            while True:
                pieces.append(self._its.bio_read(SEND_BYTES))
        self._octets = b"".join(pieces)
        return len(self._octets)

    def read(self) -> bytes:
        octets = self._octets if self.pending else b""
        self._octets = b""
        return octets

    def write(self, octets: bytes) -> int:
        return self._its.bio_write(octets)

    def write_eof(self) -> None:
        self._its.bio_shutdown()


_BIO: TypeAlias = "ssl.MemoryBIO | _OpenSSLMemory"


class _Records:
    """
    The TLS of one socket: the methods of C{_ssl._SSLSocket}, with records that the socket carries.

    All else is C{ssl.SSLObject}'s.
    """

    def __init__(self, skt: socket, incoming: _BIO, outgoing: _BIO, found: Any = None) -> None:
        # Weakly, as the standard library's: a socket that nobody has any more is closed at once.
        self._owner = ref(skt)
        self._incoming, self._outgoing, self._object = incoming, outgoing, found
        #: The part of a record's header that has arrived, and how much of the rest has not.
        self._header = b""
        self._left = 0
        #: Records that the socket has not taken yet.
        self._unsent = b""
        #: So many octets of a write that did not end are among them: it is to be tried again.
        self._owed = 0
        # The locks may be taken again, by the handler of a signal.  One thread may read while another writes,
        # which has the first lock: records leave in their order.
        self._lock = RLock()
        self._isSending = False
        # OpenSSL and its records in memory are one thread's at a time: they let go of Python's lock.
        self._memory = RLock()
        # Of the threads that read one receives, and the others look again at what it has received.
        self._filling = RLock()
        self._filled = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._object, name)

    @property
    def _socket(self) -> socket:
        skt = self._owner()
        assert skt is not None
        return skt

    # -- records

    def _send(self, data: bytes | memoryview, deadline: float | None) -> int:
        skt = self._socket
        part = skt._sdp and skt._sdp.part
        connection = part if part.__class__ is Connection else skt._carrying()
        if connection is None:
            self._await(POLLOUT, deadline)
            return socket.send(skt, data, MSG_DONTWAIT if deadline == 0.0 else 0)
        isSent = connection.sendDirect(data, 0.0)
        return len(data) if isSent else connection.send(data, 0, _secondsTo(deadline))

    def _recv(self, size: int, deadline: float | None) -> bytes:
        skt = self._socket
        part = skt._sdp and skt._sdp.part
        connection = part if part.__class__ is Connection else skt._carrying()
        if connection is not None:
            data = connection.receive(size, 0, _secondsTo(deadline))
            if not self._left and len(data) == size and connection.inbox.size:
                # OpenSSL makes nothing of a header alone.  The handler of a signal may have the rest.
                with suppress(BlockingIOError):
                    data += connection.receive(int.from_bytes((self._header + data)[3:], "big"), 0, 0.0)
            return data
        self._await(POLLIN, deadline)
        return socket.recv(skt, size)

    def _await(self, event: int, deadline: float | None) -> None:
        # The kernel's sockets count their timeout from each call on.
        if seconds := _secondsTo(deadline):
            if not pollerOf([(self._socket.fileno(), event)]).poll(seconds * 1000):
                raise TimeoutError("timed out")

    def _flush(self, deadline: float | None) -> None:
        # A thread that only reads does not wait for one that writes: the peer may wait until this end reads.
        # That one looks again once it has let go.
        while (self._unsent or self._outgoing.pending) and self._lock.acquire(blocking=False):
            try:
                if self._isSending:
                    # This is the handler of a signal, amid a flush that sends this, too.
                    return
                self._isSending = True
                try:
                    self._sendAll(deadline)
                finally:
                    self._isSending = False
            finally:
                self._lock.release()

    def _sendAll(self, deadline: float | None) -> None:
        with self._memory:
            data: bytes | memoryview = self._unsent + self._outgoing.read()
        try:
            while data:
                # A handler that raises between two pieces of one call would have those sent again.
                piece = data if len(data) <= SEND_BYTES else memoryview(data)[:SEND_BYTES]
                count = self._send(piece, deadline)
                data = memoryview(data)[count:] if count < len(data) else b""
        except BlockingIOError:
            self._wantWrite()
        except ConnectionError:
            # The peer takes no more, and its last words may still be read.
            data = b""
            raise
        finally:
            self._unsent = bytes(data)

    def _fill(self, filled: int, deadline: float | None) -> None:
        seconds = _secondsTo(deadline)
        if self._filling.acquire(timeout=-1 if seconds is None else seconds):
            try:
                if self._filled == filled:
                    self._receive(deadline)
            finally:
                self._filling.release()
        elif deadline:
            raise TimeoutError("timed out")
        else:
            self._wantRead()

    def _wantWrite(self) -> NoReturn:
        raise ssl.SSLWantWriteError(ssl.SSL_ERROR_WANT_WRITE, "The operation did not complete") from None

    def _wantRead(self) -> NoReturn:
        raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "The operation did not complete") from None

    def _receive(self, deadline: float | None) -> None:
        # No more than the record: select() finds in the socket what is behind it.
        try:
            data = self._recv(self._left or _HEADER_BYTES - len(self._header), deadline)
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

    # -- calls

    def _check(self) -> None:
        if (part := self._socket.sdp) is not None and part.loop.forked:
            # A thread that had one of the locks is the parent's.  This is refused.
            socket.recv(self._socket, 1)

    def _deadline(self) -> float | None:
        # Of all that a call does, as the standard library's; 0.0 and None stand for themselves.  poll(2)
        # counts in milliseconds, and so looks once before any of them is over.
        timeout = self._socket.gettimeout()
        return monotonic() + max(timeout, 1e-3) if timeout else timeout

    def _call(self, call: Callable[P, T], deadline: float | None, *args: P.args, **named: P.kwargs) -> T:
        try:
            with self._memory:
                return call(*args, **named)
        except ssl.SSLWantReadError:
            # A write that is to be tried again sends its own: the peer may wait until this end reads.
            waits = self._outgoing.pending
            if (waits or self._unsent) and (waits > ANSWER_BYTES or not self._isOwed()):
                self._flush(deadline)
            raise
        except ssl.SSLError:
            # An alert says why to the peer.
            with suppress(OSError):
                self._flush(deadline)
            raise

    def _isOwed(self) -> bool:
        # Whether a write is to be tried again, which sends what there is.
        return bool(self._owed and self._unsent)

    def _reading(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        self._check()
        deadline = self._deadline()
        while True:
            filled = self._filled
            try:
                result = self._call(call, deadline, *args, **named)
            except ssl.SSLWantReadError:
                self._fill(filled, deadline)
            else:
                if self._outgoing.pending and not self._isOwed():
                    # The next call says what becomes of that: this one has its octets.
                    with suppress(OSError):
                        self._flush(0.0)
                return result

    def _writing(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        # Nobody else has to send what it makes.  It waits for the peer without the lock.
        self._check()
        deadline = self._deadline()
        while True:
            filled, seconds = self._filled, _secondsTo(deadline)
            if not self._lock.acquire(timeout=-1 if seconds is None else seconds):
                if deadline:
                    raise TimeoutError("timed out")
                self._wantWrite()
            try:
                if self._unsent or self._outgoing.pending:
                    self._flush(deadline)
                result = self._call(call, deadline, *args, **named)
                try:
                    self._flush(deadline)
                except BaseException:
                    # Of a write: SSL_shutdown's is no number of octets.
                    written: object = result
                    self._owed = written if type(written) is int else 0
                    raise
                return result
            except ssl.SSLWantReadError:
                pass
            finally:
                self._lock.release()
                if self._outgoing.pending:
                    # A thread that reads has left it.
                    with suppress(OSError):
                        self._flush(deadline)
            self._fill(filled, deadline)

    def do_handshake(self) -> None:
        try:
            self._writing(self._object.do_handshake)
        except TimeoutError:
            raise TimeoutError("The handshake operation timed out") from None
        except (BrokenPipeError, ConnectionResetError):
            # As OpenSSL (statem_srvr.c, ossl_statem_server_post_work): a client may have closed without these
            # tickets, and after octets that are to be read.
            if not self._object.server_side or self._object.version() != "TLSv1.3":
                raise

    def read(self, *arguments: Any) -> Any:
        try:
            return self._reading(self._object.read, *arguments)
        except TimeoutError:
            raise TimeoutError("The read operation timed out") from None

    def write(self, data: Any) -> int:
        try:
            return self._writing(self._write, data, self._object.write)
        except TimeoutError:
            raise TimeoutError("The write operation timed out") from None

    def _write(self, data: Any, write: Callable[[Any], int]) -> int:
        owed = self._owed
        if not owed:
            return write(data)
        # It is tried again, as of SSL_write(3), and has been sent by now.
        if memoryview(data).nbytes < owed:
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, "[SSL: BAD_WRITE_RETRY] bad write retry")
        self._owed = 0
        return owed

    def pending(self) -> int:
        self._check()
        with self._memory:
            return self._object.pending()

    def shutdown(self) -> socket:
        self._writing(self._object.unwrap)
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
        self, skt: SSLSocket, isServer: bool, hostname: str | None, owner: object = None, session: Any = None
    ) -> _Records:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        found = self.real.wrap_bio(incoming, outgoing, isServer, hostname, session)
        return _Records(skt, incoming, outgoing, found)


class SSLSocket(ssl.SSLSocket, socket):  # type: ignore[misc]
    """
    See C{ssl.SSLSocket}.
    """

    _connected: bool
    _session: ssl.SSLSession | None
    do_handshake_on_connect: bool
    suppress_ragged_eofs: bool

    @property
    def context(self) -> ssl.SSLContext:
        return self._context.real

    @context.setter
    def context(self, context: ssl.SSLContext) -> None:
        self._context = _Context(context)
        if self._sslobj is not None:
            self._sslobj.context = context

    def _real_connect(self, address: Any, isNumber: bool) -> int | None:
        if self.server_side:
            raise ValueError("can't connect in server-side mode")
        if self._connected or self._sslobj is not None:
            raise ValueError("attempt to connect already-connected SSLSocket!")
        context, name, session = self._context, self.server_hostname, self._session
        self._sslobj: Any = context._wrap_socket(self, False, name, session=session)
        connect: Callable[..., int | None] = socket.connect_ex if isNumber else socket.connect
        try:
            number = connect(self, address)
            if not number:
                self._connected = True
                secured(self, False, self.do_handshake_on_connect)
                if self.sdp is None:
                    # The kernel carries it: OpenSSL has the descriptor.
                    wrap = getattr(context.real, "_wrap_socket")  # noqa: B009
                    self._sslobj = wrap(self, False, name, owner=self, session=session)
                if self.do_handshake_on_connect:
                    self.do_handshake()
        except (OSError, ValueError):
            self._sslobj = None
            raise
        return number

    def mayMove(self) -> bool:
        return type(self) is SSLSocket  # What TLS holds is octets of records, and these go on.

    def accept(self) -> tuple[Any, Any]:
        made, address = socket.accept(self)
        does, suppresses = self.do_handshake_on_connect, self.suppress_ragged_eofs
        return wrap_socket(self.context, made, True, does, suppresses), address


SSLSocket.movedKind = movedKind(SSLSocket)


@lru_cache(maxsize=limits.GIVEN_CLASSES)
def _classOf(kind: type[ssl.SSLSocket]) -> type[ssl.SSLSocket]:
    # The class of the program's own (SSLContext.sslsocket_class), over these sockets.
    return type(kind.__name__, (kind, SSLSocket), {"__module__": kind.__module__})


def create(cls: type[ssl.SSLSocket], /, sock: Any, context: Any = None, **options: Any) -> ssl.SSLSocket:
    """
    See C{ssl.SSLSocket._create}, which is looked up when the socket is there, that may be a program's first:
    the standard library's, but for sockets that SDP may carry.
    """
    if getattr(sock, "family", None) == AF_IB:
        # The descriptor, which the standard library's would take, has no connection.
        raise failure(errno.EAFNOSUPPORT)
    kind: Any = cls
    if isOurs := issubclass(type(sock), socket):
        secured(sock, **options)
    if isOurs and (sock.sdp is not None or not isConnected(sock)):
        if not issubclass(cls, SSLSocket):
            cls = SSLSocket if cls is ssl.SSLSocket else _classOf(kind)
        context = _Context(context)
    elif isinstance(sock, MovedSocket):
        return succeeded(sock, partial(_createPlain, movedKind(kind), sock, context=context, **options))
    return _createPlain(cls, sock, context=context, **options)


def wrap_socket(
    context: ssl.SSLContext,
    sock: Any,
    server_side: bool = False,
    do_handshake_on_connect: bool = True,
    suppress_ragged_eofs: bool = True,
    server_hostname: str | None = None,
    session: ssl.SSLSession | None = None,
) -> ssl.SSLSocket:
    """
    See C{ssl.SSLContext.wrap_socket}: the standard library's, but for sockets that SDP may carry.
    """
    return create(
        context.sslsocket_class,
        sock,
        context,
        server_side=server_side,
        do_handshake_on_connect=do_handshake_on_connect,
        suppress_ragged_eofs=suppress_ragged_eofs,
        server_hostname=server_hostname,
        session=session,
    )


# -- pyOpenSSL


class _OpenSSLRecords(_Records):
    """
    The TLS of a C{Connection} of pyOpenSSL.
    """

    def __init__(self, skt: socket, connection: SSL.Connection) -> None:
        memory = _OpenSSLMemory(connection)
        super().__init__(skt, memory, memory)

    def _deadline(self) -> float | None:
        # pyOpenSSL knows nothing of timeouts: the descriptor of a socket that has one does not block.
        return None if self._socket.gettimeout() is None else 0.0

    def drive(self, call: Callable[P, T], isWriting: bool, *args: P.args, **named: P.kwargs) -> T:
        """
        Call what pyOpenSSL does in memory, and carry its records.

        @param isWriting: Whether its records are to leave before it returns.
        """
        from OpenSSL import SSL

        def called() -> T:
            try:
                return call(*args, **named)
            except SSL.WantReadError:
                raise ssl.SSLWantReadError from None
            except SSL.Error:
                # An alert says why to the peer.
                with suppress(OSError):
                    self._flush(0.0)
                raise

        try:
            return self._writing(called) if isWriting else self._reading(called)
        except ssl.SSLWantReadError:
            raise SSL.WantReadError from None
        except ssl.SSLWantWriteError:
            raise SSL.WantWriteError from None
        except ssl.SSLError:
            # Of _write().
            raise SSL.Error([("SSL routines", "", "bad write retry")]) from None
        except OSError as error:
            raise SSL.SysCallError(error.errno, errno.errorcode.get(error.errno or 0)) from None

    def send(self, data: Any, write: Callable[[Any], int]) -> int:
        return self.drive(self._write, True, data, write)


def _recordsOf(connection: SSL.Connection) -> _OpenSSLRecords | None:
    return cast("_OpenSSLRecords | None", vars(connection).get("_records"))


def _carrying(
    plain: Callable[Concatenate[SSL.Connection, P], T], isWriting: bool
) -> Callable[Concatenate[SSL.Connection, P], T]:
    @wraps(plain)
    def call(connection: SSL.Connection, /, *args: P.args, **named: P.kwargs) -> T:
        records = _recordsOf(connection)
        if records is None:
            return plain(connection, *args, **named)
        return records.drive(plain, isWriting, connection, *args, **named)

    return call


@lru_cache(maxsize=1)
def _replaceCalls(kind: type[SSL.Connection]) -> None:
    plain, plainAll = kind.send, kind.sendall

    @wraps(plain)
    def send(self: SSL.Connection, buf: Any, flags: int = 0) -> int:
        records = _recordsOf(self)
        return plain(self, buf, flags) if records is None else records.send(buf, partial(plain, self))

    @wraps(plainAll)
    def sendall(self: SSL.Connection, buf: Any, flags: int = 0) -> int:
        records = _recordsOf(self)
        if records is None:
            return plainAll(self, buf, flags)
        pieces = (buf[at : at + SEND_BYTES] for at in range(0, len(buf), SEND_BYTES))
        return sum(records.send(each, partial(plainAll, self)) for each in pieces)

    calls: dict[str, Callable[..., object]] = {
        "send": send,
        "write": send,
        "sendall": sendall,
        "recv": (recv := _carrying(kind.recv, False)),
        "read": recv,
        "recv_into": _carrying(kind.recv_into, False),
        "do_handshake": _carrying(kind.do_handshake, True),
        "shutdown": _carrying(kind.shutdown, True),
    }
    for name, call in calls.items():
        setattr(kind, name, call)


def carryOpenSSL(connection: SSL.Connection, skt: socket) -> None:
    """
    Have the records of a connection of pyOpenSSL, which was made without a socket, go through one.
    """
    from OpenSSL import SSL

    _replaceCalls(SSL.Connection)
    vars(connection).update(_socket=skt, _records=_OpenSSLRecords(skt, connection))
