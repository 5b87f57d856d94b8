"""
The TCP sockets of this host that listen on a port, and which of them TCP would reach.

The kernel reports them over netlink (C{NETLINK_SOCK_DIAG}, Linux 3.3; C{struct inet_diag_req_v2}; Linux
C{tcp_diag.c}); where that is refused, C{/proc/net/tcp} and C{/proc/net/tcp6} do.  Either shows the network
namespace of the calling thread.
"""

from __future__ import annotations

import socket
import struct
import sys

# Programs replace those of socket (win_inet_pton).
from _socket import inet_ntop
from typing import TYPE_CHECKING

from twisted_ib.hca.host.addresses import NETLINK_ERROR, attributesOf, dumped
from twisted_ib.layouts import Shown
from twisted_ib.records import frozen

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: TCP sockets on one port that are looked at; with more of them TCP carries the connection.
TCP_LISTENERS = 1024
#: Lines that are read of the kernel's table of TCP sockets.
TCP_TABLE_LINES = 16384

# Numbers and structures of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h; states of tcp_states.h.
_SOCK_DIAG = 4
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
_LISTEN = 10  # TCP_LISTEN
_V6ONLY = 11  # INET_DIAG_SKV6ONLY
_REQUEST: Packed[tuple[int, int, int, int]] = struct.Struct(
    "=BBBxI"
)  # struct inet_diag_req_v2, up to its struct inet_diag_sockid
_PORT: Packed[tuple[int]] = struct.Struct(">H")
_SOCKID = 48
_FOUND = 72  # struct inet_diag_msg
_SOURCE, _INTERFACE = 8, 40
_OWNER: Packed[tuple[int, int, int]] = struct.Struct("=I20xII")  # its interface, user and inode
#: The kernel's tables as text.  "thread-self": a thread may be in another network namespace than its process.
_TABLES = {
    socket.AF_INET: "/proc/thread-self/net/tcp",
    socket.AF_INET6: "/proc/thread-self/net/tcp6",
}
_MAPPED = bytes(10) + b"\xff\xff"


class Unreadable(Exception):
    """
    Neither source shows the sockets, or there are too many.
    """


@frozen(repr=False)
class TCPListener(Shown):
    """
    A listening TCP socket.

    @ivar address: The bound address; an IPv4-mapped one as IPv4.
    @ivar isV6: Whether the socket's family is IPv6.
    @ivar uid: The user who made it.
    @ivar interface: The index of the interface that it is bound to, 0 for none; L{None} if unknown.
    @ivar v6only: Whether a socket on C{::} refuses IPv4; L{None} if unknown.
    """

    address: str
    isV6: bool
    inode: int
    uid: int
    interface: int | None = 0
    v6only: bool | None = False


def listeners(port: int) -> list[TCPListener]:
    """
    Return the sockets that listen on a port, of IPv4 and IPv6.

    @raise Unreadable: they cannot be determined.
    """
    found: list[TCPListener] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            found += _ask(family, port)
        except (OSError, struct.error, IndexError, ValueError):
            found += _read(family, port)
    return found


def _ask(family: int, port: int) -> list[TCPListener]:
    # linux/inet_diag.h: the mask of states asks for TCP_LISTEN (tcp_states.h) alone, so that established
    # connections are not dumped.
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << _LISTEN)
    request += _PORT.pack(port) + bytes(_SOCKID - _PORT.size)
    found: list[TCPListener] = []
    for kind, message in dumped(_SOCK_DIAG, _BY_FAMILY, request):
        if kind == NETLINK_ERROR:
            raise OSError("refused")
        listener = _parse(message, port) if kind == _BY_FAMILY else None
        if listener is not None:
            found.append(listener)
        if len(found) > TCP_LISTENERS:
            raise Unreadable(f"more than {TCP_LISTENERS} sockets listen on port {port}")
    return found


def _parse(message: bytes, port: int) -> TCPListener | None:
    family, state = message[0], message[1]
    # Old kernels dump more than the request asks for.
    if state != _LISTEN or _PORT.unpack_from(message, 4)[0] != port:
        return None
    interface, uid, inode = _OWNER.unpack_from(message, _INTERFACE)
    isV6 = family == socket.AF_INET6
    packed = message[_SOURCE : _SOURCE + (16 if isV6 else 4)]
    said = attributesOf(message, _FOUND).get(_V6ONLY) if isV6 else b"\0"
    v6only = bool(said[0]) if said else None
    return TCPListener(_text(packed), isV6, inode, uid, interface, v6only)


def _text(packed: bytes) -> str:
    if len(packed) == 4:
        return inet_ntop(socket.AF_INET, packed)
    # An IPv6 socket that is bound to an IPv4 address (RFC 4291 section 2.5.5.2, IPv4-mapped).
    if packed.startswith(_MAPPED):
        return inet_ntop(socket.AF_INET, packed[12:])
    return inet_ntop(socket.AF_INET6, packed)


def _read(family: int, port: int) -> list[TCPListener]:
    found: list[TCPListener] = []
    try:
        with open(_TABLES[socket.AddressFamily(family)], encoding="ascii") as table:
            table.readline()
            for count, line in enumerate(table):
                words = line.split()
                # Linux tcp_ipv4.c (tcp_seq_start) lists listening sockets first, so the first of another
                # state ends them.
                if int(words[3], 16) != _LISTEN:
                    break
                if count >= TCP_TABLE_LINES:
                    raise Unreadable(f"more than {TCP_TABLE_LINES} sockets listen")
                address, _, number = words[1].partition(":")
                if int(number, 16) == port:
                    isV6 = family == socket.AF_INET6
                    v6only = None if isV6 else False
                    found.append(TCPListener(_hex(address), isV6, int(words[9]), int(words[7]), None, v6only))
    except FileNotFoundError:
        if family == socket.AF_INET6:
            # A kernel without IPv6.
            return []
        raise Unreadable(f"there is no {_TABLES[socket.AF_INET]}") from None
    except (OSError, ValueError, IndexError) as e:
        raise Unreadable(str(e)) from None
    return found


def _hex(text: str) -> str:
    # Linux tcp_ipv4.c prints addresses as 32-bit words in the machine's byte order.
    raw = bytes.fromhex(text)
    if sys.byteorder == "little":
        raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return _text(raw)


def serving(found: list[TCPListener], address: str) -> list[TCPListener]:
    """
    Return the listeners that TCP would choose from, whatever interface they are bound to.

    @param found: All listeners on the port.
    @param address: The destination, an IP address of this host without scope; no wildcard.
    """
    # Linux inet_hashtables.c (inet_lookup_listener, compute_score): a listener on the address precedes one on
    # all addresses, and of these IPv4 precedes IPv6.
    best = [each for each in found if each.address == address]
    if best:
        return best
    if ":" in address:
        return [each for each in found if each.address == "::"]
    # As ipv6_only_sock() of Linux (include/linux/ipv6.h) decides it.  RFC 3493 section 5.3: IPV6_V6ONLY is
    # off by default there.
    return [each for each in found if each.address == "0.0.0.0" or (each.address == "::" and not each.v6only)]


def reached(found: list[TCPListener], address: str, scope: int = 0) -> list[TCPListener]:
    """
    Return the listeners to which TCP would give a connection; several with SO_REUSEPORT.

    @param found: All listeners on the port.
    @param address: The destination, an IP address of this host without scope; no wildcard.
    @param scope: The index of its interface, 0 for none.
    """
    best = serving(found, address)
    # A socket that is bound to an interface (SO_BINDTODEVICE) scores higher or not at all, by the route,
    # which is not known here: no answer is better than a wrong one.
    if any(each.interface not in (0, scope, None) for each in best):
        return []
    lowest = min((each.isV6 for each in best), default=False)
    best = [each for each in best if each.isV6 == lowest]
    # From /proc the interface is unknown, so that several cannot be told apart.
    return [] if len(best) > 1 and best[0].interface is None else best
