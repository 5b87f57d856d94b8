"""
IP addresses and port numbers as applications write them.

Arguments are checked before anything is sent, so that the caller of C{listen} or C{connect} gets the error.
"""

from __future__ import annotations

import socket
from functools import lru_cache
from ipaddress import IPv6Address as IPv6AddressValue
from ipaddress import ip_address
from math import inf
from operator import index
from typing import Any, NamedTuple

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ServiceNameUnknownError

from twisted_ib import limits

#: The type that C{getHost} and C{getPeer} return.
Address = IPv4Address | IPv6Address


class End(NamedTuple):
    """
    The same for this package alone, without the checks of Twisted's classes, which each connect would pay.
    """

    host: str
    port: int


HIGHEST_PORT = 65535
#: The first port that an active side draws.  RFC 6335 section 6: 49152 to 65535 are the dynamic ports, which
#: IANA assigns to no service.
FIRST_EPHEMERAL_PORT = 49152


def servicePort(port: int | str) -> int:
    """
    Return a port's number, which may be given as a service name (C{/etc/services}, protocol tcp).

    @raise ServiceNameUnknownError: there is no such service.
    """
    if not isinstance(port, str):
        return port
    try:
        return socket.getservbyname(port, "tcp")
    except OSError as e:
        raise ServiceNameUnknownError(string=f"{e} ({port!r})") from None


def checkPort(port: int, lowest: int) -> int:
    """
    Check a port number and return it.

    @param lowest: 0 where "any port" makes sense, else 1.
    @raise ValueError: C{port} is no integer, or out of range.
    """
    # True is an int in Python, and would listen on port 1.
    if not isinstance(port, int) or isinstance(port, bool):
        raise ValueError(f"port {port!r} is not a number")
    if not lowest <= port <= HIGHEST_PORT:
        raise ValueError(f"port {port} is not between {lowest} and {HIGHEST_PORT}")
    return port


def checkHost(host: str | bytes) -> str:
    """
    Return the name or address of a host as text.

    @raise ValueError: C{host} is not text, or not ASCII.
    """
    text = host.decode("ascii") if isinstance(host, bytes) else host
    if not isinstance(text, str):
        raise ValueError(f"host {host!r} is not an address or a name")
    return text


def checkTimeout(timeout: float | None) -> None:
    """
    Check a connect timeout.

    @param timeout: seconds, or L{None} for no timeout.
    @raise ValueError: it is not a number, negative or infinite.
    """
    try:
        # NaN fails this comparison too; a delayed call for it would never be sorted right.
        good = timeout is None or 0 <= timeout < inf
    except TypeError:
        good = False
    if not good:
        raise ValueError(f"timeout {timeout!r} is not a number of seconds from 0 up, or None")


@lru_cache(maxsize=limits.ADDRESSES_REMEMBERED)
def canonical(text: str) -> str | None:
    """
    Return the canonical text of an IP address, with its scope; L{None} if C{text} is a name.
    """
    bare, mark, scope = text.partition("%")
    # RFC 4007 section 11: only an IPv6 address has a zone, and the text after % may not be empty.
    if mark and (":" not in bare or not scope):
        return None
    try:
        address = ip_address(bare)
    except ValueError:
        return None
    # RFC 5952 section 5 recommends the mixed notation (::ffff:192.0.2.1), which the sockets of Linux show;
    # C{ipaddress} may write the last 32 bits in hexadecimal.
    embedded = address.ipv4_mapped if isinstance(address, IPv6AddressValue) else None
    return f"{address if embedded is None else mapped(str(embedded))}{mark}{scope}"


def scopeOf(text: str) -> int:
    """
    Return the scope id of an address; 0 for none or an unknown interface.
    """
    scope = text.partition("%")[2]
    if not scope:
        return 0
    try:
        # RFC 4007 section 11.2: the zone may be a number, whatever names of interfaces the system has.
        return int(scope) if scope.isdigit() else socket.if_nametoindex(scope)
    except (OSError, ValueError):
        return 0


def addressOf(host: str, port: int) -> Address:
    """
    Return the address object that a TCP transport would show, with its scope id.
    """
    if ":" in host:
        return IPv6Address("TCP", host, port, 0, scopeOf(host))
    return IPv4Address("TCP", host, port)


@lru_cache(maxsize=limits.ADDRESSES_REMEMBERED)
def sharedAddress(host: str, port: int) -> Address:
    """
    The same from a cache, for peers that many connect to: only for comparison and storage inside this
    package.
    """
    # Applications never get this object: they may change what getPeer() returned.
    return addressOf(host, port)


def mapped(host: str) -> str:
    """
    Return an IPv4 address as a socket bound to C{::} shows it.
    """
    # RFC 4291 section 2.5.5.2: the IPv4-mapped form, which RFC 3493 section 3.7 prescribes for getpeername().
    return host if ":" in host else f"::ffff:{host}"


def reachable(host: str) -> str:
    """
    Return the address to connect to for C{host}.

    A wildcard becomes the loopback address, an IPv4-mapped one the IPv4 address itself.
    """
    if host.startswith("::ffff:") and "." in host:
        host = host[len("::ffff:") :]
    return _HERE.get(host, host)


#: Wildcards as a destination mean this host: connect(2) of Linux does so, and rdma_resolve_addr() as well
#: (Linux cma.c, cma_resolve_loopback).
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def withPort(host: str, port: int) -> str:
    """
    Return C{host:port}, with brackets around an IPv6 address.
    """
    # RFC 5952 section 6: brackets, as ":" both divides an address and precedes the port.
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def splitBinding(port: Any, interface: str = "") -> tuple[Any, str]:
    """
    Split the port argument of a listening call, which may be a C{Binding} (C{IReactorTCP2}).

    The C{Binding}'s options about reuse of addresses and ports are ignored: only TCP has a TIME_WAIT that
    needs them.

    @param interface: the address; with a C{Binding} the same or empty.
    @return: the port, and the address.
    @raise ValueError: two different addresses were given.
    """
    if not isBinding(port):
        return port, interface
    address = port._address or ""
    if interface not in ("", address):
        raise ValueError("Inconsistent interface vs Binding specifiers")
    return port._port, address


def isBinding(value: Any) -> bool:
    """
    Return whether a value is a C{Binding} of C{IReactorTCP2}.
    """
    # By its attributes, not by isinstance(): releases of Twisted without IReactorTCP2 have no class to
    # import.
    return hasattr(value, "_address") and hasattr(value, "_reusePort")


def parseBindAddress(bindAddress: Any) -> tuple[str, int]:
    """
    Read a C{bindAddress}: a host, a pair of host and port, a C{Binding}, or L{None}.

    @return: host (empty for any) and port (0 for any).
    @raise ValueError: it is none of these.
    """
    if bindAddress is None:
        return "", 0
    if isBinding(bindAddress):
        bindAddress = (bindAddress._address or "", bindAddress._port)
    try:
        host, port = (bindAddress, 0) if isinstance(bindAddress, str | bytes) else bindAddress
        host = host.decode("ascii") if isinstance(host, bytes) else host
        if not isinstance(host, str):
            raise TypeError
    except (TypeError, ValueError):
        raise ValueError(f"bindAddress {bindAddress!r} is not a pair of host and port") from None
    return host, checkPort(port, 0)


_32_BITS = 1 << 32


def checkInteger(name: str, value: Any) -> int:
    """
    Return C{value} as an integer.

    @param name: the argument's name, for the error text.
    @raise TypeError: it is not an integer.
    """
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None


def toBytes(data: Any) -> bytes:
    """
    Return bytes-like data as bytes.

    @raise TypeError: it is not bytes-like.
    """
    if isinstance(data, bytes):
        return data
    try:
        # ibv_post_send(3): a buffer belongs to the HCA until its completion.  The copy frees the application
        # of that.
        return bytes(memoryview(data))
    except TypeError:
        raise TypeError(f"data must be bytes-like, not {type(data).__name__}") from None


def immediateData(immediate: Any) -> int:
    """
    Check the immediate data of a Send or RDMA Write.

    @raise TypeError: it is not an integer.
    @raise ValueError: it has more than 32 bits.
    """
    number = checkInteger("immediate data", immediate)
    # libibverbs/verbs.h: C{imm_data} is a C{__be32}.  A wider number must not be cut off silently.
    if not 0 <= number < _32_BITS:
        raise ValueError(f"immediate data has 32 bits, not {number:#x}")
    return number
