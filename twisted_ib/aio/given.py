"""
Sockets that a program makes itself and has its event loop connect, before it gives them to
C{create_connection}: aiohttp's client and whoever else chooses between addresses by itself.

C{loop.sock_connect} connects a stream beside the socket, which stays unconnected, and
C{create_connection(sock=)} takes the stream.  A program that reads, writes or asks for the descriptor instead
gets TCP at that moment: the stream ends, over which nothing was sent, and the loop leaves such sockets to TCP
from then on.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, WeakSet, ref

from twisted_ib import limits
from twisted_ib.aio.streamsocket import INTERNET
from twisted_ib.switch.reason import withdrawn

if TYPE_CHECKING:
    from twisted_ib.aio.loop import EventLoop
    from twisted_ib.aio.streamsocket import StreamSocket


#: The address of a socket.
Pair: TypeAlias = "tuple[str, int] | tuple[str, int, int, int]"


class _Given(NamedTuple):
    loop: EventLoop
    stream: StreamSocket
    address: Pair
    kind: type
    abandoned: ref[socket.socket]


#: What is connected in the place of a socket.
_given: WeakKeyDictionary[socket.socket, _Given] = WeakKeyDictionary()
#: Those that use TCP after all, and are counted so.
counted: WeakSet[socket.socket] = WeakSet()
#: Calls that need the kernel's connection.
_PLAIN: Final = (
    *("connect", "connect_ex", "detach", "dup", "fileno", "listen", "makefile", "recv", "recv_into"),
    *("recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into", "send", "sendall", "sendfile", "sendmsg"),
    *("sendto", "shutdown"),
)


def _plainly(name: str) -> Callable[..., object]:
    def call(self: socket.socket, *arguments: object, **named: object) -> object:
        _useTCP(self)
        use: Callable[..., object] = getattr(self, name)
        return use(*arguments, **named)

    return call


def _getsockname(self: socket.socket) -> object:
    return _given[self].stream.getsockname()


def _getpeername(self: socket.socket) -> object:
    return _given[self].stream.getpeername()


def _close(self: socket.socket) -> None:
    given = _take(self)
    _end(given.loop, given.stream)
    self.close()


@lru_cache(maxsize=limits.GIVEN_CLASSES)
def _classOf(kind: type) -> type:
    calls = {name: _plainly(name) for name in _PLAIN}
    more = {"getsockname": _getsockname, "getpeername": _getpeername, "close": _close}
    text = {"__repr__": object.__repr__, "__slots__": ()}
    return type(kind)(kind.__name__, (kind,), {**calls, **more, **text})


def canGive(sock: socket.socket) -> bool:
    """
    @return: whether a stream may stand for a socket: one of TCP that is neither bound nor connected.
    """
    if sock.family not in INTERNET or sock.type != socket.SOCK_STREAM or sock.gettimeout() != 0.0:
        return False
    if sock in _given or getattr(sock, "sdp", None) is not None or sock.getsockname()[1]:
        return False
    # One with calls of its own, as TLS has, uses itself.
    return type(sock).send is socket.socket.send and type(sock).recv is socket.socket.recv


def give(sock: socket.socket, loop: EventLoop, stream: StreamSocket, address: Pair) -> None:
    """
    Have a stream stand for a socket.
    """
    kind: type = type(sock)
    _given[sock] = _Given(loop, stream, address, kind, ref(sock, lambda _: _end(loop, stream)))
    setattr(sock, "__class__", _classOf(kind))  # noqa: B010


def _end(loop: EventLoop, stream: StreamSocket) -> None:
    # A closed loop has closed its streams.  The socket may be another thread's.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(stream.close)


def _take(sock: socket.socket) -> _Given:
    given = _given.pop(sock)
    setattr(sock, "__class__", given.kind)  # noqa: B010
    return given


def takeStream(sock: object) -> StreamSocket | None:
    """
    @return: the stream that stands for a socket, which is closed, or L{None}.
    """
    if not isinstance(sock, socket.socket) or sock not in _given:
        return None
    stream = _take(sock).stream
    sock.close()
    return stream


def _useTCP(sock: socket.socket) -> None:
    # The peer is a process of this host, and its port listens: this does not wait.
    given = _take(sock)
    given.loop.leaveGiven()
    _end(given.loop, given.stream)
    sock.settimeout(limits.GIVEN_SECONDS)
    try:
        sock.connect(given.address)
    finally:
        sock.settimeout(0.0)
    counted.add(sock)
    withdrawn()
