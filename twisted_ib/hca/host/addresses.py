"""
IP addresses of this host, as text.

An HCA of the shared-memory fabric serves the addresses that reach this very
host, in this very network namespace.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import struct
from collections.abc import Container
from functools import lru_cache

from twisted_ib import limits
from twisted_ib.errors import NoRouteError, ServiceInUseError

_FIRST_EPHEMERAL_PORT = 49152
_PORTS = 65536
_DISCARD_PORT = 9
_THIS_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}

_NETLINK_ROUTE = 0
_RTM_NEWADDR = 20
_RTM_GETADDR = 22
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_SCOPE_LINK = 253
_MESSAGE = struct.Struct("=IHHII")  # struct nlmsghdr
_ADDRESS = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefix, flags, scope, index
_ATTRIBUTE = struct.Struct("=HH")  # struct rtattr
_NETLINK_BYTES = 65536
_NETLINK_SECONDS = 1.0


@lru_cache(maxsize=1024)
def normalise(text: str) -> str:
    """
    The one spelling of an address: shortest form, IPv4-mapped as IPv4, scope
    id as interface number, C{""} as C{"0.0.0.0"}.

    @raise ValueError: it is not an IP address.
    """
    address = ipaddress.ip_address(text or "0.0.0.0")
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    mapped = address.ipv4_mapped
    if mapped is not None:
        return str(mapped)
    scope = address.scope_id
    if scope is None:
        return str(address)
    if not (scope.isascii() and scope.isdigit()):
        try:
            scope = str(socket.if_nametoindex(scope))
        except OSError as error:
            raise ValueError(f"{text} names an interface that is not there") from error
    return f"{str(address).partition('%')[0]}%{scope}"


def wildcard(address: str) -> str:
    """
    The address that stands for every address of the same family.
    """
    return "::" if ":" in address else "0.0.0.0"


def servedBy(address: str) -> list[str]:
    """
    What a listener that serves C{address} may be bound to, the one to ask
    first at the front: the address itself, then all of its family; for IPv4
    then C{::}, as a Linux socket there serves both.
    """
    wanted = [address, wildcard(address), "::"]
    if address in _THIS_HOST:  # as TCP
        wanted.insert(0, _THIS_HOST[address])
    return list(dict.fromkeys(wanted))


def conflict(one: str, other: str) -> bool:
    """
    Whether two listeners on one port exclude each other, as in TCP: bound to
    the same address, or one of them to all of the other's family.
    """
    wild = wildcard(one)
    return wild == wildcard(other) and (one == other or wild in (one, other))


def freePort(taken: Container[int]) -> int:
    """
    A port from 49152 up, at random, that is not in C{taken}.

    @raise ServiceInUseError: there is none.
    """
    free = [port for port in range(_FIRST_EPHEMERAL_PORT, _PORTS) if port not in taken]
    if not free:
        raise ServiceInUseError(f"no port from {_FIRST_EPHEMERAL_PORT} up is free")
    return secrets.choice(free)


def namespaceInode() -> int:
    """
    A number for the network namespace of this process, 0 if there are none.
    """
    try:
        return os.stat("/proc/thread-self/ns/net").st_ino
    except OSError:
        return 0


def isLocalAddress(text: str) -> bool:
    """
    Whether an address means this host: loopback, wildcard, or an address of
    one of its interfaces.

    @raise ValueError: it is not an IP address.
    """
    address = normalise(text)
    if address.startswith("127.") or address in ("0.0.0.0", "::", "::1"):
        return True
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    host, _, scope = address.partition("%")
    if ipaddress.ip_address(host).is_multicast:
        return False
    where = (host, 0, 0, int(scope or 0)) if family == socket.AF_INET6 else (host, 0)
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.bind(where)
            # A broadcast address can be bound, but not connected to.
            probe.connect((host, _DISCARD_PORT, *where[2:]))
    except OSError:
        return False
    return True


@lru_cache(maxsize=limits.LOCAL_ADDRESSES)
def isPeersAddress(address: str, second: int) -> bool:
    """
    Whether a peer may have an address.  The host is asked once in a second: it
    costs a socket, and what a peer says is asked for each connection.

    @param address: without a scope, as private data has it.
    @param second: of whoever asks.
    """
    if address.startswith("fe80:"):
        return any(local.partition("%")[0] == address for local in localAddresses())
    return address not in ("0.0.0.0", "::") and isLocalAddress(address)


def checkLocal(address: str, wildcards: bool = False) -> None:
    """
    Let only addresses of this host pass.

    @param wildcards: whether those that mean all of them pass.
    @raise NoRouteError: C{address} is not one of them.
    """
    if wildcards and address in ("", "0.0.0.0", "::"):
        return
    if not isLocalAddress(address):
        raise NoRouteError(f"{address} is not an address of this host, and this device reaches no other")


def sourceFor(address: str) -> str:
    """
    Ask the kernel from which address it would connect to another.

    @param address: Where to.
    @return: One of this host.
    @raise NoRouteError: it knows no way there.
    @raise ValueError: it is not an IP address.
    """
    text = normalise(address)
    host, _, scope = text.partition("%")
    try:
        if ":" not in host:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
                probe.connect((host, _DISCARD_PORT))
                return str(probe.getsockname()[0])
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.connect((host, _DISCARD_PORT, 0, int(scope or 0)))
            found = probe.getsockname()
            return normalise(f"{found[0].partition('%')[0]}%{found[3]}" if found[3] else found[0])
    except OSError as error:
        raise NoRouteError(f"no address of this host leads to {address}: {error.strerror}") from None


def localAddresses() -> list[str]:
    """
    The addresses of all interfaces, in the kernel's order; link-local ones
    with the interface number as scope id.
    """
    return [address for address, _ in _interfaceAddresses()]


def interfaceOf(address: str) -> int:
    """
    @param address: One of this host, normalised.
    @return: The number of the interface that has it; 0 if none has, as many that reach this host.
    """
    return dict(_interfaceAddresses()).get(address, 0)


def _interfaceAddresses() -> list[tuple[str, int]]:
    if not hasattr(socket, "AF_NETLINK"):
        return []
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as route:
            route.settimeout(_NETLINK_SECONDS)
            request = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
            size = _MESSAGE.size + len(request)
            route.send(_MESSAGE.pack(size, _RTM_GETADDR, _NLM_F_REQUEST_DUMP, 1, 0) + request)
            return _readDump(route)
    except OSError:
        return []


def _readDump(route: socket.socket) -> list[tuple[str, int]]:
    """
    The addresses that the kernel lists.
    """
    found: list[tuple[str, int]] = []
    while len(found) < limits.LOCAL_ADDRESSES:
        data = route.recv(_NETLINK_BYTES)
        offset = 0
        while offset + _MESSAGE.size <= len(data):
            length, kind, _, _, _ = _MESSAGE.unpack_from(data, offset)
            if kind in (_NLMSG_DONE, _NLMSG_ERROR) or length < _MESSAGE.size:
                return found
            if kind == _RTM_NEWADDR:
                address = _parseAddress(data[offset + _MESSAGE.size : offset + length])
                if address is not None:
                    found.append(address)
            offset += (length + 3) & ~3
    return found[: limits.LOCAL_ADDRESSES]


def _parseAddress(message: bytes) -> tuple[str, int] | None:
    family, _, _, scope, index = _ADDRESS.unpack_from(message)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    values: dict[int, bytes] = {}
    offset = _ADDRESS.size
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        if length < _ATTRIBUTE.size:
            break
        values[kind] = message[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    # On a point-to-point link IFA_ADDRESS is the other end.
    packed = values.get(_IFA_LOCAL, values.get(_IFA_ADDRESS))
    if packed is None or len(packed) not in (4, 16):
        return None
    text = socket.inet_ntop(family, packed)
    return f"{text}%{index}" if family == socket.AF_INET6 and scope == _SCOPE_LINK else text, index


__all__ = [
    "checkLocal",
    "conflict",
    "freePort",
    "interfaceOf",
    "isLocalAddress",
    "localAddresses",
    "namespaceInode",
    "normalise",
    "servedBy",
    "sourceFor",
    "wildcard",
]
