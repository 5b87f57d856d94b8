"""
The result of C{getHandle()} where there is no socket: the part of its methods that makes sense.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from twisted.internet.address import IPv4Address, IPv6Address

if TYPE_CHECKING:
    from twisted_ib.switch.serverclient import RedirectedClient, RedirectedServer

_TCP = socket.IPPROTO_TCP
_SOCKET = socket.SOL_SOCKET
#: Options that are stored and have no effect, with their initial values: an error would end programs that
#: merely tune TCP. A reliable connection has neither TCP's segments nor its timers. SO_LINGER is among them:
#: a program resets a connection by abortConnection().
_REMEMBERED = {
    (_SOCKET, socket.SO_RCVBUF): 1 << 20,
    (_SOCKET, socket.SO_SNDBUF): 1 << 20,
    (_SOCKET, socket.SO_REUSEADDR): 1,
    (_SOCKET, socket.SO_OOBINLINE): 0,
    (_SOCKET, socket.SO_LINGER): 0,
    (_SOCKET, socket.SO_RCVLOWAT): 1,
    (socket.IPPROTO_IP, socket.IP_TOS): 0,
}
for _level, _name in (
    (_SOCKET, "SO_REUSEPORT"),
    (_SOCKET, "SO_PRIORITY"),
    (_TCP, "TCP_KEEPIDLE"),
    (_TCP, "TCP_KEEPINTVL"),
    (_TCP, "TCP_KEEPCNT"),
    (_TCP, "TCP_USER_TIMEOUT"),
    (_TCP, "TCP_QUICKACK"),
    (_TCP, "TCP_CORK"),
    (socket.IPPROTO_IPV6, "IPV6_TCLASS"),
):
    if hasattr(socket, _name):
        _REMEMBERED[_level, getattr(socket, _name)] = 0


def _noOption() -> OSError:
    # As getsockopt(2) for an option that is unknown at its level.
    return OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))


def pairOf(address: IPv4Address | IPv6Address) -> tuple[Any, ...]:
    """
    Return the address as a socket's methods do.
    """
    if isinstance(address, IPv6Address):
        return address.host, address.port, address.flowInfo, int(address.scopeID)
    return address.host, address.port


class Handle:
    """
    Socket methods of a connection or port over SDP.
    """

    type = socket.SOCK_STREAM
    proto = _TCP

    def __init__(self, local: IPv4Address | IPv6Address) -> None:
        self._local = local
        self.family = socket.AF_INET6 if isinstance(local, IPv6Address) else socket.AF_INET
        self._set: dict[tuple[int, int], int | bytes] = {}

    def fileno(self) -> int:
        """
        Return -1, as a closed socket does.
        """
        # There is no descriptor per connection; a duplicated or inherited one could not work, as RDMA
        # connections do not cross a fork (librdmacm/preload.c).
        return -1

    def getsockname(self) -> tuple[Any, ...]:
        """
        Return the address of this end.
        """
        return pairOf(self._local)

    def getpeername(self) -> tuple[Any, ...]:
        """
        Return the address of the other end.

        @raise OSError: C{ENOTCONN}: there is none, or the connection has ended.
        """
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    def setsockopt(self, level: int, option: int, value: Any, optlen: int | None = None) -> None:
        """
        Set an option.

        @raise OSError: C{ENOPROTOOPT}: unknown option.
        """
        if (level, option) not in _REMEMBERED:
            raise _noOption()
        self._set[level, option] = value if isinstance(value, bytes) else int(value)

    def getsockopt(self, level: int, option: int, buflen: int = 0) -> int | bytes:
        """
        Return an option's value.

        @param buflen: The size of the answer in bytes; 0 for a number.
        @raise OSError: C{ENOPROTOOPT}: unknown option.
        """
        value = self._get(level, option)
        if buflen and isinstance(value, int):
            return value.to_bytes(max(buflen, 4), sys.byteorder)[:buflen]
        return value

    def _get(self, level: int, option: int) -> int | bytes:
        constant = {
            (_SOCKET, socket.SO_ERROR): 0,
            (_SOCKET, socket.SO_TYPE): int(socket.SOCK_STREAM),
            (_SOCKET, socket.SO_PROTOCOL): int(_TCP),
            (_SOCKET, socket.SO_DOMAIN): int(self.family),
            (_SOCKET, socket.SO_ACCEPTCONN): 0,
        }.get((level, option))
        if constant is not None:
            return constant
        if (level, option) not in _REMEMBERED:
            raise _noOption()
        return self._set.get((level, option), _REMEMBERED[level, option])

    def gettimeout(self) -> float:
        """
        Return 0.0: the handle never blocks.
        """
        return 0.0

    def getblocking(self) -> bool:
        """
        Return False.
        """
        return False

    def setblocking(self, flag: bool) -> None:
        """
        Do nothing: the handle never blocks.
        """


class ListeningHandle(Handle):
    """
    The handle of a port that listens over SDP alone.
    """

    def _get(self, level: int, option: int) -> int | bytes:
        if (level, option) == (_SOCKET, socket.SO_ACCEPTCONN):
            return 1
        return super()._get(level, option)

    def shutdown(self, how: int) -> None:
        """
        Do nothing: the port closes its listeners itself.
        """

    def close(self) -> None:
        """
        Do nothing: the port closes its listeners itself.
        """


class ConnectionHandle(Handle):
    """
    The handle of a connection over SDP.

    @ivar moved: The socket of TCP that carries it since it has moved, or L{None}.
    """

    moved: socket.socket | None = None

    def __init__(self, transport: RedirectedServer | RedirectedClient) -> None:
        super().__init__(transport.getHost())
        self._transport = transport

    def send(self, data: Any, flags: int = 0) -> int:
        """
        @raise OSError: C{EBADF}, as of a closed socket: data goes through the transport only.
        """
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def recv(self, size: int, flags: int = 0) -> bytes:
        """
        @raise OSError: C{EBADF}, as of a closed socket: data comes through the transport only.
        """
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def movedTo(self, skt: socket.socket) -> None:
        """
        TCP carries the connection: the socket gets the options that were set here, and those that are.
        """
        self.moved = skt
        for (level, option), value in self._set.items():
            # One may be of another version of IP than that of TCP's connection.
            with suppress(OSError):
                skt.setsockopt(level, option, value)

    def getpeername(self) -> tuple[Any, ...]:
        if self.moved is not None:
            # An error, if it has ended.
            self.moved.getpeername()
        elif not self._transport.connected or self._transport.queuePair.path is None:
            # As of CLOSE, also if the protocol has not heard of it yet.
            return super().getpeername()
        return pairOf(self._transport.getPeer())

    def getsockopt(self, level: int, option: int, buflen: int = 0) -> int | bytes:
        if self.moved is not None:
            return self.moved.getsockopt(level, option, buflen)
        return super().getsockopt(level, option, buflen)

    def setsockopt(self, level: int, option: int, value: Any, optlen: int | None = None) -> None:
        if self.moved is not None:
            self.moved.setsockopt(level, option, value)
            return
        # TCP_NODELAY and SO_KEEPALIVE are the transport's.
        on = any(value) if isinstance(value, bytes) else bool(value)
        # TCP_NODELAY is remembered only: a stream has no Nagle delay.  SO_KEEPALIVE starts probes by an RDMA
        # WRITE of no bytes, whose retries find a dead peer (OFED sdp_bcopy.c; RFC 1122 section 4.2.3.6 for
        # TCP).
        if (level, option) == (_TCP, socket.TCP_NODELAY):
            self._transport.setTcpNoDelay(on)
        elif (level, option) == (_SOCKET, socket.SO_KEEPALIVE):
            self._transport.setTcpKeepAlive(on)
        else:
            super().setsockopt(level, option, value, optlen)

    def _get(self, level: int, option: int) -> int | bytes:
        if (level, option) == (_TCP, socket.TCP_NODELAY):
            return int(self._transport.getTcpNoDelay())
        if (level, option) == (_SOCKET, socket.SO_KEEPALIVE):
            return int(self._transport.getTcpKeepAlive())
        return super()._get(level, option)
