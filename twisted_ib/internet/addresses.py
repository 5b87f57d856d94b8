"""
IP addresses and port numbers as applications write them.

What an application gives to a transport, looked at before anything is sent: a wrong value that is
found later would be somebody else's trouble.
"""

from __future__ import annotations

import socket
from functools import lru_cache
from ipaddress import IPv6Address as IPv6AddressValue
from ipaddress import ip_address
from operator import index
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ServiceNameUnknownError

from twisted_ib import limits

#: What C{getHost} and C{getPeer} give.
Address = IPv4Address | IPv6Address

HIGHEST_PORT = 65535
#: The first of the port numbers that an active side takes (RFC 6335).
FIRST_EPHEMERAL_PORT = 49152


def servicePort(port: int | str) -> int:
    """
    Give the number of a port, which may have a service's name.

    @param port: what a user gave.
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
    Refuse what cannot be a port number.

    @param port: what a user gave.
    @param lowest: 0 where "any port" makes sense, else 1.
    @return: C{port}.
    @raise ValueError: C{port} is no integer, or out of range.
    """
    if not isinstance(port, int) or isinstance(port, bool):
        raise ValueError(f"port {port!r} is not a number")
    if not lowest <= port <= HIGHEST_PORT:
        raise ValueError(f"port {port} is not between {lowest} and {HIGHEST_PORT}")
    return port


def checkHost(host: str | bytes) -> str:
    """
    Refuse what cannot be the name or the address of a host.

    @param host: what a user gave.
    @return: it, as text.
    @raise ValueError: it is no text.
    """
    text = host.decode("ascii") if isinstance(host, bytes) else host
    if not isinstance(text, str):
        raise ValueError(f"host {host!r} is not an address or a name")
    return text


def checkTimeout(timeout: float | None) -> None:
    """
    Refuse what cannot be the time to wait.

    @param timeout: seconds, or L{None} for no end.
    @raise ValueError: it is no number, negative or endless.
    """
    try:
        good = timeout is None or 0 <= timeout < float("inf")
    except TypeError:
        good = False
    if not good:
        raise ValueError(f"timeout {timeout!r} is not a number of seconds from 0 up, or None")


@lru_cache(maxsize=limits.ADDRESSES_REMEMBERED)
def canonical(text: str) -> str | None:
    """
    Write an IP address in its one usual form.

    @return: The address, with its scope if it has one, or L{None} if C{text}
        is a name.
    """
    bare, mark, scope = text.partition("%")
    if mark and (":" not in bare or not scope):
        return None
    try:
        address = ip_address(bare)
    except ValueError:
        return None
    embedded = address.ipv4_mapped if isinstance(address, IPv6AddressValue) else None
    return f"{address if embedded is None else mapped(str(embedded))}{mark}{scope}"


def scopeOf(text: str) -> int:
    """
    Give the number of an address's scope; 0 for none or an unknown one.

    @param text: an address, perhaps with C{%} and a number or an interface's name.
    """
    scope = text.partition("%")[2]
    if not scope:
        return 0
    try:
        return int(scope) if scope.isdigit() else socket.if_nametoindex(scope)
    except (OSError, ValueError):
        return 0


def addressOf(host: str, port: int) -> Address:
    """
    Make the address object that a TCP transport would show.

    @param host: An IP address.
    @param port: its port.
    @return: it, with the number of its scope.
    """
    if ":" in host:
        return IPv6Address("TCP", host, port, 0, scopeOf(host))
    return IPv4Address("TCP", host, port)


@lru_cache(maxsize=limits.ADDRESSES_REMEMBERED)
def sharedAddress(host: str, port: int) -> Address:
    """
    The same for all who connect to one place, to keep and to compare: nobody else is given it.

    @param host: An IP address.
    @param port: its port.
    """
    return addressOf(host, port)


def mapped(host: str) -> str:
    """
    Write an IPv4 address as a socket bound to C{::} shows it.

    @param host: an IPv4 address.
    """
    return host if ":" in host else f"::ffff:{host}"


def reachable(host: str) -> str:
    """
    Give the address to go to when somebody connects to C{host}: a wildcard
    means this host, and an IPv4 address in the form of L{mapped} itself.
    """
    if host.startswith("::ffff:") and "." in host:
        host = host[len("::ffff:") :]
    return _HERE.get(host, host)


#: What a wildcard means to who connects.
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def withPort(host: str, port: int) -> str:
    """
    Write host and port as people do.

    @param host: an IP address or a name.
    @param port: its port.
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unbound(port: Any, interface: str = "") -> tuple[Any, str]:
    """
    Read what a listening call is given: a port, or a C{Binding} (C{IReactorTCP2}).  Whether addresses
    and ports are reused means nothing here.

    @param port: one or the other.
    @param interface: the address that goes with it; with a C{Binding} the same or none.
    @return: the port, and the address.
    @raise ValueError: two addresses were given.
    """
    if not isBinding(port):
        return port, interface
    address = port._address or ""
    if interface not in ("", address):
        raise ValueError("Inconsistent interface vs Binding specifiers")
    return port._port, address


def isBinding(value: Any) -> bool:
    """
    Say whether something is a C{Binding} of C{IReactorTCP2}.
    """
    return hasattr(value, "_address") and hasattr(value, "_reusePort")


def bindPair(bindAddress: Any) -> tuple[str, int]:
    """
    Read a C{bindAddress}.

    @param bindAddress: A host, a pair of host and port, a C{Binding}, or L{None}.
    @return: Host (empty for any) and port (0 for any).
    @raise ValueError: It is none of these.
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


def whole(name: str, value: Any) -> int:
    """
    Take an integer.

    @param name: What it is for, for the error's text.
    @raise TypeError: It is none.
    """
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None


def octets(data: Any) -> bytes:
    """
    Take bytes; what can change is copied.

    @raise TypeError: It is not bytes-like.
    """
    if isinstance(data, bytes):
        return data
    try:
        return bytes(memoryview(data))
    except TypeError:
        raise TypeError(f"data must be bytes-like, not {type(data).__name__}") from None


def immediateData(immediate: Any) -> int:
    """
    Take immediate data.

    @raise TypeError: It is no integer.
    @raise ValueError: It has more than 32 bits.
    """
    number = whole("immediate data", immediate)
    if not 0 <= number < _32_BITS:
        raise ValueError(f"immediate data has 32 bits, not {number:#x}")
    return number
