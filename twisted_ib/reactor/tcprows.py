"""
The TCP ports and connections of a process, for C{ib-ss}; and the reasons of its ports and clients, in its
socket page: the kernel tells the rest of them, also while the process is busy.

The reactor knows those that read or write.  Those that an application has paused are found among the
process's descriptors, together with TCP sockets that are not Twisted's.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any
from weakref import ref

from attrs import frozen
from twisted.internet import tcp

from twisted_ib import limits
from twisted_ib.hca.base.socketrows import ANY, CONNECTION, LISTEN, LISTENER, TCP_STATES, Row, WhyOf, values
from twisted_ib.hca.host.libc import KernelSocket
from twisted_ib.hca.host.socketpage.page import SocketPage
from twisted_ib.internet.addressing.addresses import withPort
from twisted_ib.switch.reason import Reason

if TYPE_CHECKING:
    from typing import Protocol, TypeGuard

    from twisted_ib.structs import Packed

    class _WithSocket(Protocol):
        socket: socket.socket


#: C{struct tcp_info} (include/uapi/linux/tcp.h): the first byte is the state; the offsets of C{tcpi_rtt}, in
#: microseconds, C{tcpi_total_retrans}, C{tcpi_bytes_acked} and C{tcpi_bytes_received}.
_ROUND_TRIP = 68
_RETRANSMITS = 100
_BYTES = 120
_INFO_BYTES = 136
_INTEGER: Packed[tuple[int]] = struct.Struct("=I")
_TWO_LONG: Packed[tuple[int, int]] = struct.Struct("=QQ")
_FAMILIES = (socket.AF_INET, socket.AF_INET6)

_DESCRIPTORS = "/proc/self/fd"


def isTCP(selectable: object) -> TypeGuard[tcp.Port | tcp.Connection]:
    """
    Return whether an object of a reactor is a port or connection of TCP with a socket.
    """
    # UNIX ports and connections are subclasses of TCP's, and a port over SDP alone has no socket.
    if not isinstance(selectable, tcp.Port | tcp.Connection):
        return False
    return hasSocket(selectable)


def hasSocket(port: object) -> TypeGuard[_WithSocket]:
    """
    Return whether a port of the switch has a socket of TCP.
    """
    skt = getattr(port, "socket", None)
    return isinstance(skt, socket.socket) and skt.family in _FAMILIES


def tcpRows(selectables: Iterable[Any], whyOf: WhyOf, whyOfSocket: WhyOf) -> Iterator[list[Any] | None]:
    """
    Yield the rows of the process's TCP ports and connections; L{None} for each that has none.

    @param selectables: The reactor's readers and writers, each once.
    @param whyOf: Returns the C{Reason} of a port or connection.
    @param whyOfSocket: Returns that of a socket of which nothing more is known.
    """
    # Of the sockets, not of the descriptors: a program may keep others of a socket that it had adopted.
    known = set()
    for selectable in selectables:
        try:
            known.add(identityOf(selectable.fileno()))
            yield _row(selectable.socket, whyOf, selectable) if isTCP(selectable) else None
        except Exception:
            # An object of the application may raise anything; a query by ib-ss must break nothing.
            yield None
    for number in _descriptors():
        identity = identityOf(number)
        if identity is not None and identity not in known:
            known.add(identity)
            yield _found(number, whyOfSocket)


def identityOf(descriptor: int) -> tuple[int, int] | None:
    """
    Return what all descriptors of one socket have in common; L{None} if it is closed.
    """
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _descriptors() -> list[int]:
    try:
        # proc(5); systems without it show what the reactor knows.
        return [int(name) for name in os.listdir(_DESCRIPTORS)]
    except OSError:
        return []


def _found(number: int, whyOf: WhyOf) -> list[Any] | None:
    try:
        skt = KernelSocket(fileno=number)
    except OSError:
        # No socket, or another thread has closed it meanwhile.
        return None
    try:
        if skt.family not in _FAMILIES or skt.proto != socket.IPPROTO_TCP:
            return None
        return _row(skt, whyOf, skt)
    except OSError:
        return None
    finally:
        # The descriptor is the application's; collecting this object would close it.
        skt.detach()


def _row(skt: socket.socket, whyOf: WhyOf, owner: Any) -> list[Any] | None:
    # tcp(7), TCP_INFO: old kernels return a shorter structure, hence the check of the length below.
    info = skt.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    state = TCP_STATES.get(info[0])
    if state is None:
        return None
    local = _address(skt.getsockname())
    if state == LISTEN:
        row = Row(LISTENER, "tcp", local, None, state)
    else:
        row = Row(CONNECTION, "tcp", local, _peer(skt, owner), state)
        row.inFlight = _unsent(skt)
        if len(info) >= _RETRANSMITS + _INTEGER.size:
            row.retransmits = _INTEGER.unpack_from(info, _RETRANSMITS)[0]
            row.roundTrip = _INTEGER.unpack_from(info, _ROUND_TRIP)[0] / 1e6 or None
        if len(info) >= _BYTES + _TWO_LONG.size:
            row.bytesSent, row.bytesReceived = _TWO_LONG.unpack_from(info, _BYTES)
    return values(row, None, whyOf(owner))


def _peer(skt: socket.socket, owner: Any) -> str | None:
    try:
        return _address(skt.getpeername())
    except OSError:
        # Not connected yet: the address that the client asked for.
        asked = getattr(owner, "realAddress", None)
        return _address(asked) if isinstance(asked, tuple) else None


def _address(name: tuple[Any, ...]) -> str:
    host = str(name[0])
    # RFC 4007 section 11: the scope of a link-local address, which the name's fourth element holds (RFC 3493
    # section 3.3).
    if len(name) == 4 and name[3] and "%" not in host:
        host = f"{host}%{name[3]}"
    return withPort(host, name[1])


def _unsent(skt: socket.socket) -> int | None:
    try:
        # tcp(7), SIOCOUTQ: bytes sent or queued that the peer has not acknowledged (Linux tcp.c, tcp_ioctl).
        found = fcntl.ioctl(skt.fileno(), termios.TIOCOUTQ, bytes(_INTEGER.size))
    except OSError:
        return None
    count: int = _INTEGER.unpack(found)[0]
    return count


@frozen
class _Entry:
    why: Reason | None
    provider: str = "tcp"


class TCPReasons:
    """
    The rows of one socket page that are about TCP.  A row goes with its port or client.
    """

    def __init__(self, page: SocketPage, why: Reason | None) -> None:
        self._page = page
        self._offsets: dict[ref[Any], int] = {}
        #: Rows that are about all connections to a peer, or a port: the reason of each, and where it is.
        self._peers: dict[tuple[str, int, str, int], tuple[str, int]] = {}
        page.add(None, [(_Entry(why), *ANY, *ANY)])

    def show(self, user: object, why: Reason | None) -> None:
        """
        Write the reason of a port or client; harmless when repeated, and for anything else.

        Connections that a port has accepted have the port's reason and need no row.
        """
        if ref(user) in self._offsets or not hasSocket(user) or isinstance(user, tcp.Server):
            return
        with suppress(OSError):
            # Closed, or not connected yet.
            peer = user.socket.getpeername() if isinstance(user, tcp.Connection) else ("", 0)
            self._add(user, user.socket.getsockname(), peer, why)

    def showSocket(self, skt: socket.socket, why: Reason) -> None:
        """
        Write the reason of a connected socket of the program.
        """
        with suppress(OSError):
            # The kernel's addresses, whatever it says that it has.
            self._add(skt, KernelSocket.getsockname(skt), KernelSocket.getpeername(skt), why)

    def _add(self, user: object, here: tuple[Any, ...], there: tuple[Any, ...], why: Reason | None) -> None:
        [offset] = self._page.add(None, [(_Entry(why), *here[:2], *there[:2])])
        if offset is not None:
            self._offsets[ref(user, self._gone)] = offset

    def showPeer(self, host: str, port: int, why: Reason, listens: bool = False) -> None:
        """
        Write the reason of the connections to a peer that no other row is about, once for each reason.

        @param listens: It is that of a port of this process instead.
        """
        peers, text = self._peers, str(why)
        ends = (host, port, "", 0) if listens else (*ANY, host, port)
        known, gone = peers.get(ends), []
        if known is not None and known[0] == text:
            return
        if known is not None or len(peers) >= limits.PEERS_SHOWN:
            gone.append(peers.pop(ends if known is not None else next(iter(peers)))[1])
        # Of all of them: not when one was asked.
        whole = copy(why)
        whole.asked = whole.decided = None
        [offset] = self._page.add(None, [(_Entry(whole), *ends)], gone)
        if offset is not None:
            peers[ends] = text, offset

    def _gone(self, user: ref[Any], isFinalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # The page's module may have gone before what a program leaves in its own one.
        if not isFinalizing():
            self._page.remove(self._offsets.pop(user))
