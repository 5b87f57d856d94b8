"""
What C{getHandle()} gives where there is no socket: the part of one that makes sense.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address

_TCP = socket.IPPROTO_TCP
_SOCKET = socket.SOL_SOCKET
#: Options that change nothing; what is set is remembered.
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
    """
    @return: The error for an option that there is none of.
    """
    return OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))


def _pair(address: IPv4Address | IPv6Address) -> tuple[Any, ...]:
    if isinstance(address, IPv6Address):
        return address.host, address.port, address.flowInfo, int(address.scopeID)
    return address.host, address.port


class Handle:
    """
    What is like a socket about a connection or a port over SDP.

    @ivar family: C{AF_INET} or C{AF_INET6}.
    @ivar type: C{SOCK_STREAM}.
    @ivar proto: C{IPPROTO_TCP}.
    """

    type = socket.SOCK_STREAM
    proto = _TCP

    def __init__(self, local: IPv4Address | IPv6Address) -> None:
        """
        @param local: The address of this end.
        """
        self._local = local
        self.family = socket.AF_INET6 if isinstance(local, IPv6Address) else socket.AF_INET
        self._set: dict[tuple[int, int], int | bytes] = {}

    def fileno(self) -> int:
        """
        @return: -1, as of a closed socket: there is no descriptor.
        """
        return -1

    def getsockname(self) -> tuple[Any, ...]:
        """
        @return: The address of this end.
        """
        return _pair(self._local)

    def getpeername(self) -> tuple[Any, ...]:
        """
        @raise OSError: C{ENOTCONN}.
        """
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    def setsockopt(self, level: int, option: int, value: Any, optlen: int | None = None) -> None:
        """
        Set an option.

        @raise OSError: C{ENOPROTOOPT}: there is no such thing here.
        """
        if (level, option) not in _REMEMBERED:
            raise _noOption()
        self._set[level, option] = value if isinstance(value, bytes) else int(value)

    def getsockopt(self, level: int, option: int, buflen: int = 0) -> int | bytes:
        """
        Get an option.

        @param buflen: The size of the answer in bytes; 0 for a number.
        @raise OSError: C{ENOPROTOOPT}: there is no such thing here.
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
        @return: 0.0: it never waits.
        """
        return 0.0

    def getblocking(self) -> bool:
        """
        @return: False.
        """
        return False

    def setblocking(self, flag: bool) -> None:
        """
        Nothing: it never waits.
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
        Nothing: the port closes by itself.
        """

    def close(self) -> None:
        """
        Nothing: the port closes by itself.
        """


class ConnectionHandle(Handle):
    """
    The handle of a connection over SDP.
    """

    def __init__(self, transport: Any) -> None:
        """
        @param transport: The connection's.
        """
        super().__init__(transport.getHost())
        self._transport = transport

    def send(self, data: Any, flags: int = 0) -> int:
        """
        Bytes go through the transport only.

        @raise OSError: C{EBADF}, as of a closed socket: there is no descriptor.
        """
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def recv(self, size: int, flags: int = 0) -> bytes:
        """
        Bytes come through the transport only.

        @raise OSError: C{EBADF}, as of a closed socket: there is no descriptor.
        """
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def getpeername(self) -> tuple[Any, ...]:
        """
        @return: The address of the other end.
        @raise OSError: C{ENOTCONN}: the connection is over.
        """
        if not self._transport.connected:
            return super().getpeername()
        return _pair(self._transport.getPeer())

    def setsockopt(self, level: int, option: int, value: Any, optlen: int | None = None) -> None:
        """
        Set an option; C{TCP_NODELAY} and C{SO_KEEPALIVE} are the transport's.
        """
        on = any(value) if isinstance(value, bytes) else bool(value)
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


__all__ = ["ConnectionHandle", "Handle", "ListeningHandle"]
