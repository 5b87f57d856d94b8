"""
The TCP ports and connections of a process, for C{ib-ss}.

Those that read or write are known to the reactor.  Others, that an application has paused, are found
among the descriptors of the process, with what is TCP and not Twisted's.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterable, Iterator
from typing import Any

from twisted.internet import tcp

from twisted_ib.hca.base.socketrows import CONNECTION, LISTEN, LISTENER, Row, WhyOf, values
from twisted_ib.internet.addresses import withPort

#: The kernel's states by number (linux/tcp_states.h), in its words; what is closed, or only bound, has none.
_STATES = {
    1: "ESTABLISHED",
    2: "SYN_SENT",
    3: "SYN_RECV",
    4: "FIN_WAIT1",
    5: "FIN_WAIT2",
    6: "TIME_WAIT",
    8: "CLOSE_WAIT",
    9: "LAST_ACK",
    10: LISTEN,
    11: "CLOSING",
}
#: The first byte of C{struct tcp_info} is the state; C{tcpi_total_retrans} comes so many bytes later.
_RETRANSMITS = 100
_INFO_BYTES = 104
_INTEGER = struct.Struct("=I")
_FAMILIES = (socket.AF_INET, socket.AF_INET6)

_DESCRIPTORS = "/proc/self/fd"


def isTCP(selectable: Any) -> bool:
    """
    @return: Whether something in a reactor is a port or connection of TCP: UNIX ones are made of the
        same classes, and a port over SDP alone has no socket.
    """
    if not isinstance(selectable, tcp.Port | tcp.Connection):
        return False
    skt = getattr(selectable, "socket", None)
    return isinstance(skt, socket.socket) and skt.family in _FAMILIES


def tcpRows(selectables: Iterable[Any], whyOf: WhyOf, whyOfSocket: WhyOf) -> Iterator[list[Any] | None]:
    """
    @param selectables: What is in the reactor, each once.
    @param whyOf: Gives the C{Why} of a port or connection.
    @param whyOfSocket: Gives that of a socket that nothing more is known of.
    @return: The rows of the process's TCP ports and connections; L{None} for each that has none.
    """
    known = set()
    for selectable in selectables:
        try:
            known.add(selectable.fileno())
            yield _row(selectable.socket, whyOf, selectable) if isTCP(selectable) else None
        except Exception:
            yield None  # It is the application's: a question may not break anything.
    for number in _descriptors():
        if number not in known:
            yield _found(number, whyOfSocket)


def _descriptors() -> list[int]:
    """
    @return: The descriptors of this process, where the system says.
    """
    try:
        return [int(name) for name in os.listdir(_DESCRIPTORS)]
    except OSError:
        return []


def _found(number: int, whyOf: WhyOf) -> list[Any] | None:
    """
    @return: The row of a descriptor if it is a socket of TCP.
    """
    try:
        skt = socket.socket(fileno=number)
    except OSError:
        return None  # No socket, or closed meanwhile by another thread.
    try:
        if skt.family not in _FAMILIES or skt.proto != socket.IPPROTO_TCP:
            return None
        return _row(skt, whyOf, skt)
    except OSError:
        return None
    finally:
        skt.detach()


def _row(skt: socket.socket, whyOf: WhyOf, owner: Any) -> list[Any] | None:
    """
    @param owner: Whose C{Why} is asked for.
    @return: The row of a socket, or L{None} if it neither listens nor is connected.
    @raise OSError: it is closed.
    """
    info = skt.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    state = _STATES.get(info[0])
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
    return values(row, None, whyOf(owner))


def _peer(skt: socket.socket, owner: Any) -> str | None:
    """
    @return: The other end of a socket; that of one that is not connected yet is what it asked for.
    """
    try:
        return _address(skt.getpeername())
    except OSError:
        asked = getattr(owner, "realAddress", None)
        return _address(asked) if isinstance(asked, tuple) else None


def _address(name: tuple[Any, ...]) -> str:
    """
    @return: A socket's address as people write it, with the scope if it has one.
    """
    host = str(name[0])
    if len(name) == 4 and name[3] and "%" not in host:
        host = f"{host}%{name[3]}"
    return withPort(host, name[1])


def _unsent(skt: socket.socket) -> int | None:
    """
    @return: How many bytes the kernel has that the peer has not acknowledged.
    """
    try:
        found = fcntl.ioctl(skt.fileno(), termios.TIOCOUTQ, bytes(_INTEGER.size))
    except OSError:
        return None
    count: int = _INTEGER.unpack(found)[0]
    return count


__all__ = ["isTCP", "tcpRows"]
