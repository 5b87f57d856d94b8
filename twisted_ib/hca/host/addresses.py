"""
IP addresses of this host, as text.

An HCA of the shared-memory fabric serves the addresses that reach this host, within one network namespace.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct

# Programs replace those of socket (win_inet_pton).
from _socket import inet_ntop, inet_pton
from collections.abc import Container, Iterator
from contextlib import suppress
from functools import lru_cache
from random import SystemRandom
from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.errors import NoRouteError, ServiceInUseError
from twisted_ib.hca.host.libc import KernelSocket

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


# Not the module secrets, with hashes and the library of OpenSSL.
_random = SystemRandom()
#: RFC 6335 section 6: dynamic ports, which are never assigned.
_FIRST_EPHEMERAL_PORT = 49152
_PORTS = 65536
#: Ports are drawn so often before the free ones are listed: half of them may be taken and nearly all calls do
#: not get there.
_DRAWS = 16
#: RFC 863.  Any port would do: connect(2) on a UDP socket sends nothing.
_DISCARD_PORT = 9
#: Linux connects a client of a wildcard to the loopback address (RFC 1122 section 3.2.1.3 allows no such
#: destination).
_THIS_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}

# rtnetlink(7), netlink(7).
_NETLINK_ROUTE = 0
_RTM_NEWADDR = 20
_RTM_GETADDR = 22
RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_NLM_F_REQUEST, _NLM_F_REQUEST_DUMP = 1, 0x301
#: The kind of a message that says that the kernel has failed.
NETLINK_ERROR = 2
_NLMSG_DONE = 3
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_SCOPE_LINK = 253
_RTA_DST, _RTA_SRC, RTA_OIF, _RTA_METRICS, _RTAX_MTU = 1, 2, 4, 8, 2
#: The route itself, and not what ICMP has made of it (Linux rtnetlink.h).
_RTM_F_FIB_MATCH = 0x2000
_MESSAGE: Packed[tuple[int, int, int, int, int]] = struct.Struct("=IHHII")  # struct nlmsghdr
_ADDRESS: Packed[tuple[int, int, int, int, int]] = struct.Struct(
    "=BBBBI"
)  # struct ifaddrmsg: family, prefix, flags, scope, index
#: C{struct rtmsg}: family, bits of both addresses, type of service, table, protocol, scope, type, flags.
ROUTE: Packed[tuple[int, int, int, int, int]] = struct.Struct("=BBB4xBI")
_ATTRIBUTE: Packed[tuple[int, int]] = struct.Struct("=HH")  # struct rtattr
NUMBER: Packed[tuple[int]] = struct.Struct("=I")
_NETLINK_BYTES = 65536
#: struct timeval: one second.
_NETLINK_TIMEOUT = struct.pack("@ll", 1, 0)


@lru_cache(maxsize=1024)
def normalise(text: str) -> str:
    """
    Give an address its one spelling: shortest form, IPv4-mapped as IPv4, scope id as interface number,
    C{""} as C{"0.0.0.0"}.

    @raise ValueError: it is not an IP address.
    """
    # RFC 5952 section 4: text forms of one IPv6 address differ; entries and tables are found by their text,
    # so there must be one.
    address = ipaddress.ip_address(text or "0.0.0.0")
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    mapped = address.ipv4_mapped
    # RFC 4291 section 2.5.5.2; a GID of IPv4 is such an address (IBTA vol. 1 annex A17).
    if mapped is not None:
        return str(mapped)
    scope = address.scope_id
    if scope is None:
        return str(address)
    # RFC 4007 section 11.2: a zone may be given by name or by number.  Interfaces can be renamed; numbers
    # stay.
    if not (scope.isascii() and scope.isdigit()):
        try:
            scope = str(socket.if_nametoindex(scope))
        except OSError as error:
            raise ValueError(f"{text} names an interface that is not there") from error
    return f"{str(address).partition('%')[0]}%{scope}"


def wildcard(address: str) -> str:
    """
    @return: The wildcard address of the same family.
    """
    return "::" if ":" in address else "0.0.0.0"


def isWildcard(address: str) -> bool:
    """
    @param address: normalised.
    @return: Whether it names no interface, but all of them.
    """
    return address in _THIS_HOST


def servedBy(address: str) -> list[str]:
    """
    @return: The addresses that a listener which serves C{address} may be bound to, best first: the address
        itself, then the wildcard of its family, for IPv4 then C{::}.
    """
    # RFC 3493 section 5.3: without IPV6_V6ONLY, the default on Linux, a socket on :: accepts IPv4 as well.
    wanted = [address, wildcard(address), "::"]
    # As for TCP: Linux net/ipv4/route.c, ip_route_output_key_hash_rcu, turns the destination 0.0.0.0 into
    # 127.0.0.1.
    if address in _THIS_HOST:
        wanted.insert(0, _THIS_HOST[address])
    return list(dict.fromkeys(wanted))


def conflict(one: str, other: str) -> bool:
    """
    @return: Whether listeners on two addresses exclude each other on one port, as in TCP.
    """
    # The same address, or the wildcard of a family and any address of it exclude each other (bind(2)).  Two
    # families never do: a server that listens on both is common.  Linux cma.c, cma_check_port, differs:
    # there they do unless both ids are for one family only (afonly).
    wild = wildcard(one)
    return wild == wildcard(other) and (one == other or wild in (one, other))


def freePort(taken: Container[int]) -> int:
    """
    Choose a free port from 49152 up.

    @param taken: the ports in use.
    @raise ServiceInUseError: none is free.
    """
    # RFC 6056 section 3.3.1: at random, so that others can neither predict the port nor be mistaken for its
    # former owner.
    # Section 3.3.2: a number that is taken is drawn again.
    for _ in range(_DRAWS):
        port = _FIRST_EPHEMERAL_PORT + _random.randrange(_PORTS - _FIRST_EPHEMERAL_PORT)
        if port not in taken:
            return port
    free = [port for port in range(_FIRST_EPHEMERAL_PORT, _PORTS) if port not in taken]
    if not free:
        raise ServiceInUseError(f"no port from {_FIRST_EPHEMERAL_PORT} up is free")
    return _random.choice(free)


def isFreeOfTCP(where: tuple[object, ...]) -> bool:
    """
    @param where: an IP address and a port, as sockets take them.
    @return: whether TCP lets a connection begin there.
    """
    family = socket.AF_INET6 if ":" in str(where[0]) else socket.AF_INET
    with KernelSocket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        # As the socket of the connection has it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
        except OSError:
            return False
    return True


def namespaceInode() -> int:
    """
    @return: The inode of this thread's network namespace (namespaces(7)), 0 if there are none.
    """
    try:
        # Of the thread, not the process: setns(2) and unshare(2) change one thread.
        return os.stat("/proc/thread-self/ns/net").st_ino
    except OSError:
        return 0


def isLocalAddress(text: str) -> bool:
    """
    Whether an address belongs to this host: loopback, wildcard, or of one of its interfaces.

    @raise ValueError: it is not an IP address.
    """
    address = normalise(text)
    # RFC 1122 section 3.2.1.3: all of 127/8 is this host.  RFC 4291 section 2.5.3: of IPv6 only ::1 is.
    if address.startswith("127.") or address in ("0.0.0.0", "::", "::1"):
        return True
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    host, _, scope = address.partition("%")
    # Linux lets a UDP socket bind a multicast address, so the test below would pass.
    if ipaddress.ip_address(host).is_multicast:
        return False
    where = (host, 0, 0, int(scope or 0)) if family == socket.AF_INET6 else (host, 0)
    try:
        with KernelSocket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.bind(where)
            # A broadcast address can be bound but not connected to without SO_BROADCAST (connect(2), EACCES).
            probe.connect((host, _DISCARD_PORT, *where[2:]))
    except OSError:
        return False
    return True


@lru_cache(maxsize=limits.LOCAL_ADDRESSES)
def isPeersAddress(address: str, second: int) -> bool:
    """
    Whether a local peer may claim an address.

    @param address: without a scope, as private data has it.
    @param second: the caller's clock in whole seconds: results are cached for one second.
    """
    # RFC 4291 section 2.5.6: a link-local address is unique on its link only.  The private data of annex
    # A11 has no room for the zone, so any interface will do.
    if address.startswith("fe80:"):
        return any(local.partition("%")[0] == address for local in localAddresses())
    return not isWildcard(address) and isLocalAddress(address)


def checkLocal(address: str) -> None:
    """
    Refuse addresses that are not of this host; its wildcards are.

    @raise NoRouteError: C{address} is not one of this host.
    """
    if not isLocalAddress(address):
        raise NoRouteError(f"{address} is not an address of this host, and this device reaches no other")


def sourceFor(address: str) -> str:
    """
    Find the address from which the kernel would connect to another.

    @param address: The destination.
    @return: One of this host.
    @raise NoRouteError: there is no route.
    @raise ValueError: it is not an IP address.
    """
    text = normalise(address)
    host, _, scope = text.partition("%")
    try:
        # connect(2) on a UDP socket looks up the route and binds the source address, and sends nothing.  In
        # the kernel rdma_resolve_addr does the same look-up (Linux drivers/infiniband/core/addr.c,
        # addr4_resolve).
        if ":" not in host:
            with KernelSocket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
                probe.connect((host, _DISCARD_PORT))
                return str(probe.getsockname()[0])
        with KernelSocket(socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.connect((host, _DISCARD_PORT, 0, int(scope or 0)))
            found = probe.getsockname()
            return normalise(f"{found[0].partition('%')[0]}%{found[3]}" if found[3] else found[0])
    except OSError as error:
        raise NoRouteError(f"no address of this host leads to {address}: {error.strerror}") from None


@lru_cache(maxsize=limits.LOCAL_ADDRESSES)
def sourceHere(address: str, second: int) -> str:
    """
    Find the address from which the kernel would connect to one of this host: 127.0.0.1 to 127.0.0.2, and to
    the second of an interface its first.

    @param address: normalised.
    @param second: as of L{isPeersAddress}.
    @return: C{address} itself if it is not of this host, or the kernel has no way to it, as where C{lo} is
        down.
    """
    try:
        return sourceFor(address) if isPeersAddress(address, second) else address
    except NoRouteError:
        return address


def localAddresses() -> list[str]:
    """
    @return: The addresses of all interfaces, in the kernel's order; link-local ones with the interface
        number as scope.
    """
    return [address for address, _ in _interfaceAddresses()]


def interfaceOf(address: str) -> int:
    """
    @param address: One of this host, normalised.
    @return: The index of its interface; 0 for an address like 127.0.0.2, which no interface has.
    """
    return dict(_interfaceAddresses()).get(address, 0)


def routeMTU(destination: str, source: str, interface: int = 0) -> int:
    """
    The MTU that the route to an address was given (C{ip route change ... mtu}).

    @param destination: the address, and C{source} the one of this host, both normalised and without a scope.
    @param interface: the index of the interface to leave by; 0 for any.
    @return: octets; 0 if it was given none, or the kernel does not tell.
    """
    kind, message = askedRoute(destination, source, interface, _RTM_F_FIB_MATCH)
    metrics = attributesOf(message, ROUTE.size).get(_RTA_METRICS, b"") if kind == RTM_NEWROUTE else b""
    value = attributesOf(metrics, 0).get(_RTAX_MTU)
    return 0 if value is None else NUMBER.unpack(value)[0]


def askedRoute(destination: str, source: str, interface: int, flags: int = 0) -> tuple[int, bytes]:
    """
    Ask the kernel for the route to an address.

    @param destination: the address, and C{source} the one of this host, both normalised and without a scope.
    @param interface: the index of the interface to leave by; 0 for any.
    @param flags: of C{struct rtmsg}.
    @return: as of L{asked}.
    """
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    values = [(_RTA_DST, inet_pton(family, destination)), (_RTA_SRC, inet_pton(family, source))]
    bits = 8 * len(values[0][1])
    if interface:
        values.append((RTA_OIF, NUMBER.pack(interface)))
    return asked(_RTM_GETROUTE, ROUTE.pack(family, bits, bits, 0, flags), values)


def asked(kind: int, request: bytes, values: list[tuple[int, bytes]]) -> tuple[int, bytes]:
    """
    Ask rtnetlink(7) for one thing.

    @param kind: of the request.
    @param request: what follows its header.
    @param values: kinds and values of the attributes behind that; all lengths are multiples of
        C{NLMSG_ALIGNTO}.
    @return: kind and octets of the one answer; kind 0 if the kernel cannot be asked, or does not answer.
    """
    attributes = (_ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), which) + value for which, value in values)
    # There may be no rtnetlink.
    with suppress(OSError):
        for answer in dumped(_NETLINK_ROUTE, kind, request + b"".join(attributes), _NLM_F_REQUEST):
            return answer
    return 0, b""


def dumped(
    protocol: int, kind: int, request: bytes, flags: int = _NLM_F_REQUEST_DUMP
) -> Iterator[tuple[int, bytes]]:
    """
    Ask the kernel for all that it has of something (netlink(7)).

    @param protocol: that of the socket, and C{kind} that of the request.
    @param request: what follows the request's header.
    @param flags: of the header; without those of a dump the answer is one message.
    @return: kind and octets of each message of the answer.
    @raise OSError: the kernel cannot be asked, or does not answer.
    """
    with KernelSocket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as asking:
        # The kernel answers at once; but it drops messages when memory is short, and a device must not hang
        # for that (netlink(7)).  In the kernel: a timeout of the interpreter's is a poll(2) before each call.
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _NETLINK_TIMEOUT)
        asking.send(_MESSAGE.pack(_MESSAGE.size + len(request), kind, flags, 1, 0) + request)
        while True:
            data, offset = asking.recv(_NETLINK_BYTES), 0
            while offset + _MESSAGE.size <= len(data):
                length, kind, *_ = _MESSAGE.unpack_from(data, offset)
                if kind == _NLMSG_DONE or length < _MESSAGE.size:
                    return
                yield kind, data[offset + _MESSAGE.size : offset + length]
                # netlink(3): NLMSG_ALIGNTO is 4.
                offset += (length + 3) & ~3


def attributesOf(message: bytes, offset: int) -> dict[int, bytes]:
    """
    @return: the attributes that a message of the kernel has from C{offset} on, by their kinds.
    """
    values: dict[int, bytes] = {}
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        if length < _ATTRIBUTE.size:
            break
        values[kind] = message[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return values


def _interfaceAddresses() -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    try:
        # struct ifaddrmsg, all zeros: of any family.
        for kind, message in dumped(_NETLINK_ROUTE, _RTM_GETADDR, bytes(_ADDRESS.size)):
            address = _parseAddress(message) if kind == _RTM_NEWADDR else None
            if address is not None:
                found.append(address)
            if kind == NETLINK_ERROR or len(found) == limits.LOCAL_ADDRESSES:
                break
    except (AttributeError, OSError):
        # There may be no rtnetlink.
        return []
    return found


def _parseAddress(message: bytes) -> tuple[str, int] | None:
    family, _, _, scope, index = _ADDRESS.unpack_from(message)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    values = attributesOf(message, _ADDRESS.size)
    # Linux include/uapi/linux/if_addr.h: on a point-to-point link IFA_ADDRESS is the other end's address.
    packed = values.get(_IFA_LOCAL, values.get(_IFA_ADDRESS))
    if packed is None or len(packed) not in (4, 16):
        return None
    text = inet_ntop(family, packed)
    return f"{text}%{index}" if family == socket.AF_INET6 and scope == _SCOPE_LINK else text, index
