"""
The socket module of the standard library, whose stream sockets go over SDP where the rules and the peer have
it.

L{socket} is a socket of the kernel until a connection over SDP carries it: then its bytes go through the
device, and the kernel's socket keeps its number, its options and its descriptor, by which
L{twisted_ib.select} knows it. The rules are those of the C{ib} reactor (L{twisted_ib.switch.rules}).
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import socket as kernel
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from operator import index
from struct import Struct
from types import FunctionType
from typing import Any, Final, TypeVar

from twisted_ib import limits
from twisted_ib.blocking import descriptors
from twisted_ib.blocking.connecting import (
    Connecting,
    SwitchedConnecting,
    acceptedDirect,
    connectTCP,
    countAgain,
    decidedBefore,
    isTCP,
    target,
)
from twisted_ib.blocking.connection import Connection, failure
from twisted_ib.blocking.descriptors import Offloaded, offloaded
from twisted_ib.blocking.files import sendFile
from twisted_ib.blocking.listening import Listening, awaitsAgain
from twisted_ib.blocking.loop import BlockingLoop, theLoop
from twisted_ib.blocking.select import pollers
from twisted_ib.configuration.words import CONNECT, LISTEN
from twisted_ib.drive.process import monotonic
from twisted_ib.drive.waiter import handlers
from twisted_ib.errors import ForkedSocketError
from twisted_ib.sdp.inbox import octetsOf
from twisted_ib.switch.reason import Fallback, Reason, keep, kept, outcomes
from twisted_ib.switch.switch import Switch

T = TypeVar("T")

# Now: the names may stand for others later (L{twisted_ib.blocking.patch}).
_Plain = kernel.socket
_poll = select.poll
_closePlain: Final[Callable[[kernel.socket], None]] = _socket.socket.close
_acceptPlain: Final[Callable[[kernel.socket], tuple[int, object]]] = vars(_Plain.__base__)["_accept"]
#: The options that limit the time of calls, and the time (struct timeval).
_LIMITS: Final = (int(kernel.SO_RCVTIMEO), int(kernel.SO_SNDTIMEO))
_TIMEVAL: Final = Struct("ll")
#: Of one C{sendmsg} (UIO_MAXIOV of linux/uio.h), and SCM_RIGHTS and SCM_CREDENTIALS.
_MOST_PIECES: Final = 1024
_IGNORED: Final = (1, 2)
#: linux/tcp_states.h
_LISTEN: Final = 10
_INET, _STREAM = int(kernel.AF_INET), int(kernel.SOCK_STREAM)
_connectPlain: Final[Callable[[kernel.socket, Any], None]] = _socket.socket.connect
_new: Final[Callable[[type[Any]], Any]] = _socket.socket.__new__
_begin: Final[Callable[..., None]] = _socket.socket.__init__
#: Linux's number of addresses that are GIDs (bits/socket.h); the kernel is never asked for it.
AF_IB: Final = 27
#: The methods that a L{KernelSocket} has from the standard library.
_DIRECT: Final = (
    *("connect", "connect_ex"),
    *("recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into"),
    *("send", "sendall", "sendto", "_sendfile_use_sendfile"),
    *("getsockname", "getpeername", "setsockopt", "getsockopt", "shutdown", "dup"),
)
#: The classes of sockets whose family is none of the kernel's (L{twisted_ib.blocking.families.gids}).
families: dict[int, type[socket]] = {}


def addFamily(family: int, kind: type[socket]) -> None:
    """
    Have C{socket(family)} make sockets of a class.
    """
    families[family] = kind
    # Not before: each socket would be made by a function of Python.
    type.__setattr__(socket, "__new__", staticmethod(_newOfFamily))


def _newOfFamily(cls: type[socket], family: int = -1, *arguments: Any, **named: Any) -> socket:
    if cls is socket and family not in families:
        made: socket = _new(cls)
        return made
    return super(socket, cls).__new__(families.get(family, cls) if cls is socket else cls)


class _Sockets(type):
    """
    Every socket of the standard library is an instance of L{socket}: programs that are patched ask for that.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        if cls is socket:
            return isinstance(instance, _Plain)
        return super().__instancecheck__(instance)

    def __setattr__(cls, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if cls is socket and name in _DIRECT:
            # A method that a program replaces (a mock, a tracer) is that of the kernel's sockets, too, until
            # it puts it back.
            setattr(KernelSocket, name, getattr(_Plain, name) if value is _own[name] else value)


class socket(kernel.socket, metaclass=_Sockets):
    """
    See C{socket.socket}.

    @ivar isDirect: Whether the kernel has it, whatever the rules say.
    @cvar stays: Returns why a socket stays with the kernel beside what else the process has, or L{None}.
    @cvar kernelKind: The class of those that the kernel has connected, as a rule one that costs less; this
        one where a program takes nothing that is derived from it.
    @cvar movedKind: The class of those of this class whose connection has moved to TCP.
    """

    __slots__ = ("_connecting", "_names", "_sdp", "isDirect")

    _sdp: Offloaded | None
    _connecting: Connecting | None
    _names: tuple[Any, Any]
    _io_refs: int
    _closed: bool
    # Whether a socket may have SO_RCVTIMEO or SO_SNDTIMEO before it connects.
    _mayLimit = False
    stays: Callable[[kernel.socket], Fallback | None] = staticmethod(lambda skt: None)
    kernelKind: type[socket]
    movedKind: type[socket]

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        self._sdp = self._connecting = None
        if family == AF_IB:
            # Not this class, nor one derived from it.
            raise failure(errno.EAFNOSUPPORT)
        self.isDirect = False
        # As the standard library's has it, without a call more.
        if fileno is None:
            if family == -1:
                family = _INET
            if type == -1:
                type = _STREAM
            if proto == -1:
                proto = 0
        _begin(self, family, type, proto, fileno)
        self._io_refs, self._closed = 0, False
        if fileno is not None:
            # Another program may have set its options.
            socket._mayLimit = True
            self._sdp = descriptors.found(self, self.fileno())

    # -- what it is

    def useTCP(self) -> None:
        """
        Leave the socket to the kernel, whatever the rules say: its descriptor will cross a fork, or be given
        to code that knows of no SDP.  One that listens does so over TCP alone from now on.
        """
        self.isDirect = True
        if isinstance(self.sdp, Listening):
            self._drop()

    @property
    def sdp(self) -> Connection | Listening | None:
        """
        The connection over SDP, or the listeners; L{None} while the kernel alone has the socket.
        """
        return None if self._sdp is None else self._sdp.part

    @property
    def attempt(self) -> Connecting | None:
        """
        The attempts over SDP of a non-blocking C{connect}, while they last.
        """
        return self._connecting

    def _connection(self) -> Connection | None:
        if self._connecting is not None:
            self.settle()
        sdp = self._sdp
        part = sdp and sdp.part
        return part if part.__class__ is Connection else None

    def _carrying(self) -> Connection | None:
        # As _connection(), for calls with bytes; the most usual inline it for a connection.
        connection = self._connection()
        if connection is None and self._connecting is not None:
            # connect(2): it is in progress.
            raise failure(errno.EAGAIN)
        return connection

    def _carry(self, part: Connection | Listening) -> None:
        self._sdp = descriptors.offload(self, part)

    def _switch(self, role: str) -> Switch | None:
        if self.isDirect or not isTCP(self) or self.fileno() < 0 or self.stays(self) is not None:
            return None
        switch: Switch = (loop := theLoop()).reactor.switch
        return None if loop.closed or switch.configuration.tcpOnly(role) else switch

    # -- connecting

    def connect(self, address: Any, /) -> None:
        known = decidedBefore(self, address) if self._connecting is None and self._sdp is None else None
        if known is None:
            number = self._connect(address, True)
            if number:
                raise failure(number)
        elif self.__class__ is not socket:
            self._connectTCP(address, True, known.why)
        else:
            # The same, in one step.
            try:
                _connectPlain(self, address)
            except BlockingIOError:
                countAgain(self, known)
                raise
            countAgain(self, known)
            self.__class__ = socket.kernelKind

    def connect_ex(self, address: Any, /) -> int:
        known = decidedBefore(self, address) if self._connecting is None and self._sdp is None else None
        if known is not None:
            return self._connectTCP(address, False, known.why)
        return self._connect(address, False)

    def _connect(self, address: Any, isRaising: bool) -> int:
        if (before := self._connecting) is not None:
            before.drive()
            return self._concluded(before, address, isRaising) if before.isOver else errno.EALREADY
        if self._sdp is not None:
            part = self._sdp.part
            return part.connectAgain() if isinstance(part, Connection) else errno.EISCONN
        where = self._target(address) if self._switch(CONNECT) is not None else None
        if where is not None:
            loop, timeout = theLoop(), self.gettimeout()
            with loop:
                made = self._connecting = self._attempts(loop, where, timeout or None)
                if timeout == 0.0 and not made.isOver:
                    offloaded[self.fileno()] = self
                    return errno.EINPROGRESS
                try:
                    deadline = None if timeout is None else monotonic() + timeout
                    if not made.wait(deadline):
                        raise TimeoutError("timed out")
                except BaseException:
                    self._connecting = None
                    made.cancel()
                    raise
            return self._concluded(made, address, isRaising)
        return self._connectTCP(address, isRaising, None)

    def _connectTCP(self, address: Any, isRaising: bool, why: Reason | None) -> int:
        number = connectTCP(self, super().connect if isRaising else super().connect_ex, address, why)
        if not number and type(self) is socket:
            self.__class__ = socket.kernelKind
        return number

    def _attempts(self, loop: BlockingLoop, where: tuple[Any, ...], timeout: float | None) -> Connecting:
        name = super().getsockname()
        return SwitchedConnecting(loop, where, (name[0], name[1]) if name[1] else ("", 0), timeout)

    def _refused(self, reason: OSError, isRaising: bool) -> int:
        if isRaising:
            raise reason
        return reason.errno or errno.ECONNREFUSED

    def _isConnected(self, made: Connecting, isNew: bool = False) -> bool:
        if made.connection is None:
            self._connecting = None
            return False
        with made.loop:
            self._connecting = None
            made.connection.isNew = isNew
            if self._sdp is None:
                # Else another thread's call has found it.
                self._carry(made.connection)
        self._takeLimits(made.connection)
        return True

    def _concluded(self, made: Connecting, address: Any, isRaising: bool) -> int:
        if self._isConnected(made):
            return 0
        try:
            if made.error is not None:
                return self._refused(made.error, isRaising)
            return self._connectTCP(address, isRaising, made.why)
        finally:
            self._giveBack()

    def _giveBack(self) -> None:
        # The attempt has led to no connection over SDP: the descriptor is the kernel's, and its number may be
        # another file's later, of which this socket says nothing.
        number = self.fileno()
        if number in descriptors.held:
            descriptors.returning.add(number)
            try:
                offloaded.pop(number, None)
                pollers.giveBack(number, False)
            finally:
                descriptors.returning.discard(number)

    def settle(self) -> None:
        """
        Take over what a non-blocking connect has reached: SDP's connection, or the kernel's attempt.
        """
        made = self._connecting
        if made is None:
            return
        made.drive()
        # An error stays until SO_ERROR or connect() reports it.
        if not made.isOver or made.error is not None or self._isConnected(made, True):
            return
        try:
            with suppress(BlockingIOError):
                self._connectTCP(made.realAddress, True, made.why)
        finally:
            self._giveBack()

    def _target(self, address: Any) -> tuple[Any, ...] | None:
        return target(address, self.family)

    # -- listening

    def bind(self, address: Any, /) -> None:
        connection = self._connection()
        if connection is not None and not connection.closed():
            # bind(2): EINVAL, the socket has an address, which Linux takes from it when the connection ends.
            raise failure(errno.EINVAL)
        super().bind(address)

    def listen(self, backlog: int = min(kernel.SOMAXCONN, 128), /) -> None:
        if self._connection() is not None:
            raise failure(errno.EINVAL)
        if self._sdp is None and self._switch(LISTEN) is not None:
            self._listen(max(index(backlog), 0))
            if isinstance(self.sdp, Listening) and self.sdp.alone:
                return
        try:
            super().listen(backlog)
        except BaseException:
            self._drop()
            raise

    def _listen(self, backlog: int) -> None:
        if not super().getsockname()[1]:
            # listen(2) of a socket that was not bound draws a number.
            super().bind(("::" if self.family == kernel.AF_INET6 else "0.0.0.0", 0))
        loop = theLoop()
        with loop:
            # Before the kernel's: no client is to find TCP alone.
            listening = Listening(loop, self, backlog)
            if listening.join(self):
                self._carry(listening)
                loop.disturb()
            elif listening.why.fallback is not None:
                keep(self, listening.why)

    def accept(self) -> tuple[kernel.socket, Any]:
        listening = self._sdp and self._sdp.part
        if listening.__class__ is Listening:
            idle, event = listening.loop.idling, listening.event
            if event:
                if event not in idle.found and not descriptors.connected:
                    listening.awaitClient(self)
                plain = idle.accept(event, _acceptPlain, self)
                if plain is not None:
                    # As the last one, whose decision holds while nobody has driven the devices.
                    outcomes[listening.outcome] += 1
                    return _made(listening.kind, plain, self)
        if not isinstance(listening, Listening):
            try:
                plain = _acceptPlain(self)
            except BlockingIOError:
                if not awaitsAgain(self):
                    raise
                return self.accept()
            made, address = _made((self.family, self.type, self.proto), plain, self)
            acceptedDirect(self, made)
            return made, address
        if not listening.isServed:
            listening.serve()
        timeout = self.gettimeout()
        deadline = None if timeout is None else monotonic() + timeout
        poller = _poll()
        descriptor = self.fileno()
        # Another thread may have closed it.
        if descriptor >= 0 and not listening.alone:
            poller.register(descriptor, select.POLLIN)
        try:
            while True:
                with listening.loop:
                    # Most programs have waited in select() before.
                    if timeout == 0.0 or not (listening.ready() or poller.poll(0)):
                        timeout = listening.timeoutOf(self)
                        limit = self._limit(kernel.SO_RCVTIMEO) if timeout is None else 0.0
                        if timeout == 0.0:
                            listening.loop.poll()
                        elif not listening.loop.sleep(
                            listening.ready, monotonic() + limit if limit else deadline, poller
                        ):
                            raise failure(errno.EAGAIN) if limit else TimeoutError("timed out")
                    if listening.accepted:
                        return self._accepted(listening)
                    if not listening.connected:
                        # accept(2): EINVAL, the socket does not listen.
                        isClosed = self.fileno() < 0 and not listening.isShut
                        raise failure(errno.EBADF if isClosed else errno.EINVAL)
                    try:
                        if listening.alone:
                            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                        found = listening.acceptTCP(self)
                    except BlockingIOError:
                        # Another thread or process was quicker.
                        if timeout == 0.0:
                            raise
                        continue
                listening.acceptedTCP()
                return _made(listening.kind, found, self)
        except ForkedSocketError:
            # A signal's handler has forked amid that, and this is the child: the kernel alone has the socket.
            if self.sdp is not None:
                raise
            return self.accept()

    def _accepted(self, listening: Listening) -> tuple[kernel.socket, Any]:
        # Before the connection is taken: it would be lost where there is no descriptor left.
        options, made = listening.inherited(self), socket(*listening.kind)
        connection = listening.take()
        made._carry(connection)
        for option in options:
            made.setsockopt(*option)
        if kernel.getdefaulttimeout() is None and self.gettimeout():
            made.setblocking(True)
        return made, connection.peer

    # -- receiving

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        sdp = self._sdp
        part = sdp and sdp.part
        connection = part if part.__class__ is Connection else self._carrying()
        if connection is None:
            return super().recv(bufsize, flags)
        # As the standard library's, which calls nothing for no bytes.
        return connection.receive(bufsize, flags, self.gettimeout()) if bufsize else bytes(index(bufsize))

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        part = self._sdp and self._sdp.part
        connection = part if part.__class__ is Connection else self._carrying()
        if connection is None:
            return super().recv_into(buffer, nbytes, flags)
        if nbytes < 0:
            raise ValueError("negative buffersize in recv_into")
        with octetsOf(buffer, True) as octets:
            if nbytes > len(octets):
                raise ValueError("buffer too small for requested bytes")
            size = nbytes or len(octets)
            data = connection.receive(size, flags, self.gettimeout()) if size else b""
            octets[: len(data)] = data
            return len(data)

    def recvfrom(self, bufsize: int, flags: int = 0, /) -> tuple[bytes, Any]:
        # A stream has no address.
        connection = self._carrying()
        if connection is None:
            return super().recvfrom(bufsize, flags)
        return connection.receive(bufsize, flags, self.gettimeout()), None

    def recvfrom_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> tuple[int, Any]:
        if self._carrying() is None:
            return super().recvfrom_into(buffer, nbytes, flags)
        return self.recv_into(buffer, nbytes, flags), None

    def recvmsg(
        self, bufsize: int, ancbufsize: int = 0, flags: int = 0, /
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        # There is no ancillary data.
        connection = self._carrying()
        if connection is None:
            return super().recvmsg(bufsize, ancbufsize, flags)
        if bufsize < 0 or ancbufsize < 0:
            raise ValueError("negative buffer size in recvmsg()")
        return connection.receive(bufsize, flags, self.gettimeout()), [], 0, None

    def recvmsg_into(
        self, buffers: Iterable[Any], ancbufsize: int = 0, flags: int = 0, /
    ) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        connection = self._carrying()
        if connection is None:
            return super().recvmsg_into(buffers, ancbufsize, flags)
        views = [octetsOf(each, True) for each in buffers]
        if index(ancbufsize) < 0:
            raise ValueError("invalid ancillary data buffer length")
        flags = index(flags)
        data = connection.receive(sum(map(len, views)), flags, self.gettimeout())
        done = 0
        for view in views:
            piece = data[done : done + len(view)]
            view[: len(piece)] = piece
            done += len(piece)
        return len(data), [], 0, None

    # -- sending

    def send(self, data: Any, flags: int = 0, /) -> int:
        sdp = self._sdp
        part = sdp and sdp.part
        connection = part if part.__class__ is Connection else self._carrying()
        if connection is None:
            return super().send(data, flags)
        if not flags and connection.sendDirect(data, 0.0):
            return len(data)
        return connection.send(data, flags, self.gettimeout())

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        sdp = self._sdp
        part = sdp and sdp.part
        connection = part if part.__class__ is Connection else self._carrying()
        if connection is None:
            super().sendall(data, flags)
            return
        if flags or not connection.sendDirect(data, self.gettimeout()):
            connection.sendAll(data, flags, self.gettimeout())

    def sendto(self, data: Any, *arguments: Any) -> int:
        # A stream that is connected takes no address.
        connection = self._carrying()
        if connection is None:
            return super().sendto(data, *arguments)
        if len(arguments) not in (1, 2):
            raise TypeError("sendto() takes 2 or 3 arguments")
        if not isinstance(arguments[-1], tuple):
            raise TypeError(f"sendto(): the address must be a tuple, not {type(arguments[-1]).__name__}")
        return connection.send(data, arguments[0] if len(arguments) > 1 else 0, self.gettimeout())

    def sendmsg(
        self, buffers: Iterable[Any], ancdata: Iterable[Any] = (), flags: int = 0, address: Any = None, /
    ) -> int:
        # There is no ancillary data.
        ancdata = list(ancdata)
        connection = self._carrying()
        if connection is None:
            descriptors.keepRights(ancdata)
            return super().sendmsg(buffers, ancdata, flags, address)
        pieces = list(buffers)
        data = b"".join(pieces)
        for item in ancdata:
            if len(tuple(item)) != 3:
                raise TypeError("sendmsg(): an item of ancillary data is (level, type, bytes)")
            level, kind, value = item
            index(level), index(kind), memoryview(value)
        if address is not None and not isinstance(address, tuple):
            raise TypeError(f"sendmsg(): the address must be a tuple, not {type(address).__name__}")
        if len(pieces) > _MOST_PIECES:
            raise failure(errno.EMSGSIZE)
        # As over TCP, which asks nobody else about it, and ignores what is UNIX's (Linux's sock_cmsg_send).
        if any(level == kernel.SOL_SOCKET and kind not in _IGNORED for level, kind, _ in ancdata):
            raise failure(errno.EINVAL)
        return connection.send(data, index(flags), self.gettimeout())

    def _sendfile_use_sendfile(self, file: Any, offset: int = 0, count: int | None = None) -> int:
        # The part of C{socket.sendfile} that gives the descriptor to the kernel.
        if self._carrying() is None:
            return super()._sendfile_use_sendfile(file, offset, count)  # type: ignore[misc]
        self._check_sendfile_params(file, offset, count)  # type: ignore[attr-defined]
        return sendFile(self, file, offset, count)

    # -- names and options

    def getsockname(self) -> Any:
        connection = self._connection()
        return super().getsockname() if connection is None else connection.local

    def getpeername(self) -> Any:
        connection = self._connection()
        if connection is None:
            return super().getpeername()
        connection.look()
        if connection.closed():
            raise failure(errno.ENOTCONN)
        return connection.peer

    def setsockopt(self, level: int, optname: int, value: Any, *optlen: Any) -> None:
        # The kernel's socket checks the option and keeps its value.
        super().setsockopt(level, optname, value, *optlen)
        connection = self._connection()
        if connection is None and isinstance(part := self.sdp, Listening):
            with part.loop:
                part.options = None
        if level == kernel.SOL_SOCKET and optname in _LIMITS:
            socket._mayLimit = True
        if connection is None or level != kernel.SOL_SOCKET:
            return
        if optname == kernel.SO_KEEPALIVE:
            with connection.loop:
                if connection.stream is not None:
                    connection.stream.setTcpKeepAlive(bool(super().getsockopt(level, optname)))
        elif optname in _LIMITS:
            connection.limit(optname == kernel.SO_SNDTIMEO, self._limit(optname))

    def _limit(self, option: int) -> float:
        # In seconds; 0.0 for none.
        seconds, microseconds = _TIMEVAL.unpack(super().getsockopt(kernel.SOL_SOCKET, option, _TIMEVAL.size))
        return float(seconds + microseconds / 1e6)

    def _takeLimits(self, connection: Connection) -> None:
        # A program has set them before there was a connection.
        for option in _LIMITS if socket._mayLimit else ():
            if seconds := self._limit(option):
                connection.limit(option == kernel.SO_SNDTIMEO, seconds)

    def getsockopt(self, level: int, optname: int, *buflen: int) -> Any:
        if (level, optname) == (kernel.SOL_SOCKET, kernel.SO_ERROR):
            connection = self._connection()
            if connection is not None:
                return connection.takeError(*buflen)
            made = None if buflen else self._connecting
            if made is not None and made.error is not None:
                self._connecting = None
                self._giveBack()
                return made.error.errno
        if (level, optname) == (kernel.SOL_SOCKET, kernel.SO_ACCEPTCONN) and not buflen:
            if isinstance(self.sdp, Listening):
                return 1
        found: Any = super().getsockopt(level, optname, *buflen)
        if (level, optname) != (kernel.IPPROTO_TCP, kernel.TCP_INFO):
            return found
        if isinstance(self.sdp, Listening):
            return _infoOf(found, _LISTEN)
        connection = self._connection()
        return found if connection is None else _infoOf(found, connection.state())

    # -- the end

    def shutdown(self, how: int, /) -> None:
        connection = self._connection()
        if connection is not None:
            connection.shutdown(how)
            return
        listening = self.sdp
        if isinstance(listening, Listening) and how in (kernel.SHUT_RD, kernel.SHUT_RDWR):
            # Linux: the socket listens no more, and accept() fails.  SHUT_WR leaves it as it is.
            listening.isShut = True
            self._drop()
            if listening.alone:
                return
        super().shutdown(how)

    def _drop(self) -> None:
        made, self._connecting = self._connecting, None
        sdp, self._sdp = self._sdp, None
        if made is not None:
            offloaded.pop(self.fileno(), None)
            if not made.loop.forked:
                with made.loop:
                    made.cancel()
        part = descriptors.close(sdp) if sdp else None
        if part is not None:
            part.drop(not part.listens and descriptors.isReset(self.fileno()))

    def _real_close(self) -> None:
        if not isinstance(self.sdp, Connection) and (self._sdp or self._connecting):
            self._drop()
        connection = self._connection()
        if connection is not None and connection.move is not None:
            connection.move.closing(self)
        with handlers.keep():
            sdp, self._sdp = self._sdp, None
            with descriptors.leaving(self.fileno(), sdp):
                super()._real_close()  # type: ignore[misc]

    def take(self) -> None:
        """
        Another file has its descriptor now (dup2(2)): the socket has what that one has.
        """
        part = self.sdp
        if part is not None and part.loop.forked:
            # Its parent's, of which a forked child has nothing but the kernel's files.
            offloaded.pop(self.fileno(), None)
            self._sdp = None
        else:
            self._drop()
            self._sdp = descriptors.found(self, self.fileno())

    def detach(self) -> int:
        # A socket made of the descriptor has the connection again, but no attempt.
        self._stay()
        if self._connecting is not None:
            self._drop()
        sdp, self._sdp = self._sdp, None
        if sdp is not None:
            descriptors.detach(self, sdp)
        return super().detach()

    def _stay(self) -> bool:
        # Whether the connection, if there is one, does not move before the descriptor is duplicated.
        connection = self._connection()
        return connection is None or not connection.awaitMove()

    def mayMove(self) -> bool:
        """
        Return whether its connection may move to TCP: those of other classes have more than its bytes.
        """
        return type(self) is socket

    def moved(self, connection: Connection) -> None:
        """
        The kernel has all that a connection still brings.
        """
        self._sdp, self._names = None, (connection.local, connection.peer)
        self.__class__ = self.movedKind
        descriptors.movedSockets[self.fileno()] = self
        pollers.giveBack(self.fileno(), True)

    def dup(self) -> socket:
        # Both have the connection.
        self.settle()
        return _Plain.dup(self) if self._stay() else self.dup()


def _infoOf(found: int | bytes, state: int) -> int | bytes:
    # TCP_INFO as the kernel says it of its own socket, with a connection's state, which is the first octet.
    isNumber = isinstance(found, int)
    octets = found.to_bytes(4, sys.byteorder, signed=True) if isinstance(found, int) else found
    octets = bytes((state,)) + octets[1:]
    return int.from_bytes(octets, sys.byteorder, signed=True) if isNumber else octets


class KernelSocket(socket):
    """
    A socket that the kernel has connected: its calls are the standard library's own, at the same cost.
    """

    __slots__ = ()

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        self._sdp = self._connecting = None
        self.isDirect = False
        _Plain.__init__(self, family, type, proto, fileno)

    def _real_close(self) -> None:
        # A descriptor of SDP may have been duplicated to its number (dup2(2)).
        if self.fileno() in descriptors.known:
            super()._real_close()
        else:
            _closePlain(self)


socket.kernelKind = KernelSocket


def _made(
    kind: tuple[int, int, int], accepted: tuple[int, object], listener: kernel.socket
) -> tuple[socket, object]:
    # As C{kernelKind(*kind, descriptor)} of a descriptor that the kernel has accepted, in one step.
    made = _new(socket.kernelKind)
    _begin(made, *kind, accepted[0])
    made._io_refs, made._closed = 0, False
    made._sdp = made._connecting = None
    made.isDirect = False
    if listener.gettimeout() and kernel.getdefaulttimeout() is None:
        made.setblocking(True)
    return made, accepted[1]


#: The methods of L{socket} by these names.
_own: Final = {_name: getattr(socket, _name) for _name in _DIRECT}
for _name in _DIRECT:
    setattr(KernelSocket, _name, getattr(_Plain, _name))


class MovedSocket(KernelSocket):
    """
    A socket whose connection has moved to TCP: it keeps its addresses.
    """

    __slots__ = ()

    def getsockname(self) -> Any:
        name = _Plain.getsockname(self)
        # Not yet of one with TLS, while the standard library makes it.
        return getattr(self, "_names", (name, None))[0]

    def getpeername(self) -> Any:
        name = _Plain.getpeername(self)
        return getattr(self, "_names", (None, name))[1]

    def dup(self) -> MovedSocket:
        made: Any = super().dup()
        made._names = self._names
        return made


socket.movedKind = MovedSocket


@lru_cache(maxsize=limits.GIVEN_CLASSES)
def movedKind(kind: Any) -> Any:
    """
    Return the class of sockets of a class whose connection has moved.
    """
    names = {each: vars(MovedSocket)[each] for each in ("getsockname", "getpeername")}
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, **names})


def succeeded(skt: MovedSocket, make: Callable[[], T]) -> T:
    """
    Make a socket of a L{movedKind} that takes over the descriptor of another one, its addresses, and why the
    kernel has it.
    """
    names, why = skt._names, kept.pop(skt, None)
    made: Any = make()
    made._names = names
    if why is not None:
        keep(made, why)
    return made


def _rebound(function: Any) -> Any:
    # The standard library's own, that makes these sockets.
    made = FunctionType(
        function.__code__, {**vars(kernel), "socket": socket}, function.__name__, function.__defaults__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__doc__ = f"See C{{socket.{function.__name__}}}."
    return made


create_connection = _rebound(kernel.create_connection)
create_server = _rebound(kernel.create_server)
fromfd = _rebound(kernel.fromfd)
