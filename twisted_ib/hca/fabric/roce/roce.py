"""
RoCEv2 over UDP sockets, without privileges (IBTA vol. 1 annex A17).

One socket receives, bound to the address and port 4791.  What is sent leaves from sockets of the same
address, each with the source port of some flows.  None is connected, and all set Don't Fragment: then
Linux gives an IPv4 packet the identification 0, and the segments of one call 0, 1, 2 and so on, which
the sender of an invariant CRC must know.

Multicast groups have sockets of their own, which other processes may bind too.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import socket
import struct
from typing import Any, Final

from zope.interface import implementer

from twisted_ib.errors import DeviceError, NoRouteError, ResourceLimitError
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.base.interfaces import ILink
from twisted_ib.hca.host.addresses import interfaceOf, normalise
from twisted_ib.hca.wire.rocev2 import PORT

#: Sockets that one device sends from, so that a flow has a source port of its own; more flows share them.
PACKET_SOCKETS = 64
#: Octets that such a device asks the kernel to keep for it, each way.
PACKET_BUFFER = 8 * 1024 * 1024
#: Datagrams of one call, and octets.
PACKET_BURST = 62
#: Multicast groups that one device listens to, each by a socket.
PACKET_GROUPS = 256

# Linux's numbers (C{linux/in.h}, C{in6.h}, C{udp.h}, C{sockios.h}, C{asm-generic/socket.h}), which
# not all versions of Python have.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
_IP_TOS, _IP_TTL, _IP_RECVTOS = 1, 2, 13
_IPV6_HOPLIMIT, _IPV6_RECVTCLASS, _IPV6_TCLASS = 52, 66, 67
_SOL_UDP, _UDP_NO_CHECK6_RX, _UDP_SEGMENT, _UDP_GRO = 17, 102, 103, 104
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_SIOCGIFMTU: Final = 0x8921
#: Of C{linux/in.h} and C{linux/in6.h}: the path MTU of a connected socket.
_IP_MTU, _IPV6_MTU = 14, 24
_IP, _IPV6 = socket.IPPROTO_IP, socket.IPPROTO_IPV6
#: C{struct ifreq} with a number.
_IFREQ: Final = struct.Struct("=16si20x")
_INT: Final = struct.Struct("=i")
_SHORT: Final = struct.Struct("=H")
_HOP_LIMIT: Final = 64
#: A send socket gets nothing but what strangers send.
_SMALL: Final = 2304
_BUFFER_BYTES: Final = 65536
_ANCILLARY_BYTES: Final = 128
#: What a packet has at most besides its payload: GRH, UDP, base transport header, XRC and atomic
#: headers, invariant CRC (Linux's C{iboe_get_mtu}).
_OVERHEAD: Final = 40 + 8 + 12 + 4 + 28 + 4
_LOOPBACK_MTU: Final = 65536
_ETHERNET_MTU: Final = 1500
#: A datagram of so many octets that comes alone is a small message, and seldom one of many; those of
#: management are longer, which strangers send.
_SHORT_BYTES: Final = 256
#: Ports that are tried for a flow whose own is somebody else's.
_PORT_ATTEMPTS: Final = 8
_LOWEST_PORT: Final = 0xC000
#: The socket has no room, or the device.
_FULL: Final = frozenset((errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM))
#: The kernel, or the device, does not cut into segments.
_UNCUT: Final = frozenset((errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP))


def mtuOf(interface: int) -> int:
    """
    The longest IP packet of an interface, in octets.

    @param interface: Its number, 0 for that of the host itself.
    """
    if not interface:
        return _LOOPBACK_MTU
    try:
        name = socket.if_indextoname(interface).encode()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            answer = fcntl.ioctl(probe, _SIOCGIFMTU, _IFREQ.pack(name, 0))
        return int(_IFREQ.unpack(answer)[1])
    except OSError:
        return _ETHERNET_MTU


def pathMTUOf(octets: int) -> int:
    """
    The path MTU that fits into IP packets of so many octets.
    """
    return max([mtu for mtu in MTU_CODES if mtu + _OVERHEAD <= octets], default=min(MTU_CODES))


def _portTaken(address: str) -> DeviceError:
    """
    Say who may have the port, and what to do.
    """
    if os.path.exists("/sys/module/rdma_rxe"):
        who = "the kernel's rdma_rxe has it (rmmod rdma_rxe, or use another network namespace)"
    else:
        who = "another process has it (give each process an address of its own)"
    return DeviceError(f"UDP port {PORT} of {address} is taken: {who}")


def _enlarge(made: socket.socket, forced: int, plain: int) -> None:
    """
    Give a socket as large a buffer as is permitted.
    """
    for option in (plain, forced):
        try:
            made.setsockopt(socket.SOL_SOCKET, option, PACKET_BUFFER)
        except OSError:
            pass  # Only the privileged may force it.


@implementer(ILink)
class RoCELink:
    """
    UDP sockets of one address.

    @ivar address: The address, without a scope.
    @ivar pathMTU: What fits into the packets of its interface.
    @ivar burst: How many datagrams the kernel takes in one call.
    @ivar user: Who takes what arrives.
    """

    def __init__(
        self,
        address: str,
        mtu: int | None = None,
        segments: bool = True,
        coalesces: bool = True,
    ) -> None:
        """
        Open the sockets.

        @param address: One of this host.
        @param mtu: The path MTU; by default what the interface permits.
        @param segments: Whether many datagrams go to the kernel at a time, where it can.
        @param coalesces: Whether many come from it.
        @raise DeviceError: The address is not of this host, somebody has the port, or this is not Linux.
        """
        if not hasattr(select, "epoll"):
            raise DeviceError("RoCEv2 needs Linux")
        try:
            text = normalise(address)
        except ValueError as error:
            raise DeviceError(f"{address} is not an IP address: {error}") from None
        self.address, _, scope = text.partition("%")
        self._isIPv6 = ":" in text
        self._family = socket.AF_INET6 if self._isIPv6 else socket.AF_INET
        interface = interfaceOf(text)
        self._scope = int(scope or 0)
        self._interface = interface or self._scope
        self.pathMTU = pathMTUOf(mtuOf(self._interface)) if mtu is None else mtu
        self._isForced = mtu is not None
        self.burst = PACKET_BURST if segments else 1
        self.user: Any = None
        self._coalesces = coalesces
        self._senders: dict[int, socket.socket] = {}
        #: Wanted port -> the one of a sender.
        self._ports: dict[int, int] = {}
        self._groups: dict[str, socket.socket] = {}
        #: Descriptor -> socket, and what its datagrams are for.
        self._receivers: dict[int, tuple[socket.socket, str]] = {}
        #: What a look has found and nobody has taken.
        self._ready: list[tuple[int, int]] | None = None
        #: Octets that the last call gave.
        self._length = 0
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)  # Slices of it are bytes.
        self._view = [memoryview(self._buffer)]
        self._poller = select.epoll()
        try:
            self._main = self._open(self.address, PORT)
        except OSError as error:
            self._poller.close()
            if error.errno == errno.EADDRINUSE:
                raise _portTaken(address) from None
            if error.errno == errno.EADDRNOTAVAIL:
                raise DeviceError(f"{address} is not an address of this host") from None
            raise DeviceError(f"no UDP socket for {address}: {error.strerror}") from None
        self._receives(self._main, self.address)

    # -- sockets

    def _open(self, host: str, port: int, isShared: bool = False) -> socket.socket:
        """
        @param isShared: Whether others may bind it too.
        @return: A socket that sends as an invariant CRC needs it.
        @raise OSError: It cannot be had.
        """
        made = socket.socket(self._family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if isShared:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._isIPv6:
                made.setsockopt(_IPV6, socket.IPV6_V6ONLY, 1)
                made.setsockopt(_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
                made.setsockopt(_IPV6, socket.IPV6_MULTICAST_HOPS, _HOP_LIMIT)
                made.setsockopt(_IPV6, socket.IPV6_UNICAST_HOPS, _HOP_LIMIT)
                if self._interface:
                    made.setsockopt(_IPV6, socket.IPV6_MULTICAST_IF, self._interface)
            else:
                made.setsockopt(_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
                made.setsockopt(_IP, socket.IP_MULTICAST_TTL, _HOP_LIMIT)
                made.setsockopt(_IP, _IP_TTL, _HOP_LIMIT)
                made.setsockopt(_IP, socket.IP_MULTICAST_IF, socket.inet_aton(self.address))
            made.bind(self._where(host, port))
        except BaseException:
            made.close()
            raise
        return made

    def _where(self, host: str, port: int) -> tuple[Any, ...]:
        if not self._isIPv6:
            return host, port
        isOfLink = host.startswith(("fe80:", "ff02:", "ff01:"))
        return host, port, 0, self._interface if isOfLink else 0

    def _receives(self, made: socket.socket, destination: str) -> None:
        """
        Take what a socket gets.

        @param destination: What its datagrams are for.
        """
        _enlarge(made, _SO_RCVBUFFORCE, socket.SO_RCVBUF)
        _enlarge(made, _SO_SNDBUFFORCE, socket.SO_SNDBUF)
        if self._isIPv6:
            made.setsockopt(_IPV6, _IPV6_RECVTCLASS, 1)
            # What rxe sends has no checksum but the invariant CRC.
            made.setsockopt(_SOL_UDP, _UDP_NO_CHECK6_RX, 1)
        else:
            made.setsockopt(_IP, _IP_RECVTOS, 1)
        if self._coalesces:
            try:
                made.setsockopt(_SOL_UDP, _UDP_GRO, 1)
            except OSError:
                pass  # Before Linux 5.0.
        self._poller.register(made, select.EPOLLIN)
        self._receivers[made.fileno()] = made, destination

    def pathMTUTo(self, destination: str) -> int:
        """
        See L{ILink}: what the kernel knows of the route, which to an address of this host leads by no
        other interface than its own.
        """
        if self._isForced:
            return self.pathMTU
        try:
            with socket.socket(self._family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
                probe.bind(self._where(self.address, 0))
                probe.connect(self._where(destination, PORT))
                name = (_IPV6, _IPV6_MTU) if self._isIPv6 else (_IP, _IP_MTU)
                return pathMTUOf(probe.getsockopt(*name))
        except OSError:
            return self.pathMTU

    def sourcePort(self, wanted: int) -> int:
        """
        See L{ILink}: beyond L{PACKET_SOCKETS} flows share the ports that there are.
        """
        if wanted in self._senders:
            return wanted
        found = self._ports.get(wanted)
        if found is None:
            found = self._ports[wanted] = self._another(wanted)
        return found

    def _another(self, wanted: int) -> int:
        """
        @return: A port to send from, the wanted one if it can be had.
        """
        senders = self._senders
        if len(senders) < PACKET_SOCKETS:
            for step in range(_PORT_ATTEMPTS):
                port = wanted ^ step
                if port in senders:
                    return port
                try:
                    made = self._open(self.address, port)
                except OSError:
                    continue
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
                _enlarge(made, _SO_SNDBUFFORCE, socket.SO_SNDBUF)
                senders[port] = made
                return port
        if not senders:
            return PORT
        return list(senders)[wanted % len(senders)]

    # -- sending

    def send(
        self,
        destination: str,
        port: int,
        pieces: list[Any],
        size: int,
        trafficClass: int = 0,
        hopLimit: int = _HOP_LIMIT,
    ) -> bool:
        """
        See L{ILink}.
        """
        sender = self._senders.get(port, self._main)
        where = self._where(destination, PORT) if self._isIPv6 else (destination, PORT)
        isMarked = trafficClass or hopLimit != _HOP_LIMIT
        try:
            if len(pieces) == 1 and not isMarked:
                sender.sendto(pieces[0], where)
                return True
            ancillary: list[Any] = []
            if self.burst > 1 and len(pieces) > 1:
                ancillary.append((_SOL_UDP, _UDP_SEGMENT, _SHORT.pack(size)))
            if isMarked:
                ancillary += self._marks(trafficClass, hopLimit)
            sender.sendmsg(pieces, ancillary, 0, where)
        except OSError as error:
            return self._failed(error)
        return True

    def _marks(self, trafficClass: int, hopLimit: int) -> list[Any]:
        if self._isIPv6:
            level, first, second = _IPV6, _IPV6_TCLASS, _IPV6_HOPLIMIT
        else:
            level, first, second = _IP, _IP_TOS, _IP_TTL
        marks = [(level, first, _INT.pack(trafficClass))]
        if hopLimit:
            marks.append((level, second, _INT.pack(hopLimit)))
        return marks

    def _failed(self, error: OSError) -> bool:
        """
        Nothing was sent.

        @return: False if that may be otherwise soon.
        """
        if error.errno in _FULL:
            return False
        if error.errno in _UNCUT:
            self.burst = 1
        self.user.count("packets_unsendable")
        return True

    # -- receiving

    def receive(self, budget: int) -> int:
        """
        See L{ILink}.
        """
        n = 0
        poll, receivers = self._poller.poll, self._receivers
        ready, self._ready = self._ready, None
        while n < budget and receivers:  # Who takes something may close this.
            if ready is None:
                ready = poll(0)
            if not ready:
                break
            before = n
            for descriptor, _ in ready:
                found = receivers.get(descriptor)
                if found is not None:
                    n += self._take(*found)
            if n == before + 1 and self._length <= _SHORT_BYTES:
                break  # Its answer had better leave than wait for a look that is mostly in vain.
            ready = None
        return n

    def _take(self, receiver: socket.socket, destination: str) -> int:
        """
        Take what one call gives.

        @return: How many datagrams that was.
        """
        try:
            length, ancillary, _, where = receiver.recvmsg_into(self._view, _ANCILLARY_BYTES)
        except OSError:
            return 1  # Nothing after all, such as one with a bad checksum.
        self._length = length
        size, trafficClass = length, 0
        for level, kind, data in ancillary:
            if level == _SOL_UDP:
                if kind == _UDP_GRO:
                    (size,) = _INT.unpack(data)
            elif (kind == _IP_TOS and level == _IP) or (kind == _IPV6_TCLASS and level == _IPV6):
                trafficClass = data[0] if len(data) == 1 else _INT.unpack(data)[0]
        if not length or size <= 0:
            self.user.count("packets_malformed")
            return 1
        source = where[0]
        if self._isIPv6:
            source = source.partition("%")[0]
        self.user.arrived(source, where[1], destination, self._buffer, 0, length, size, trafficClass)
        return -(-length // size)

    def pending(self) -> bool:
        """
        See L{ILink}.
        """
        self._ready = ready = self._poller.poll(0) or None
        return ready is not None

    def fileno(self) -> int:
        """
        See L{ILink}.
        """
        return self._poller.fileno()

    # -- multicast

    def join(self, group: str) -> None:
        """
        See L{ILink}.

        @raise ResourceLimitError: There are L{PACKET_GROUPS}.
        @raise NoRouteError: The interface has no multicast.
        """
        if group in self._groups:
            return
        if len(self._groups) >= PACKET_GROUPS:
            raise ResourceLimitError(f"{PACKET_GROUPS} multicast groups are joined")
        try:
            made = self._open(group, PORT, True)
        except OSError as error:
            raise NoRouteError(f"no UDP socket for group {group}: {error.strerror}") from None
        try:
            if self._isIPv6:
                request = socket.inet_pton(socket.AF_INET6, group) + _INT.pack(self._interface)
                made.setsockopt(_IPV6, socket.IPV6_JOIN_GROUP, request)
            else:
                request = socket.inet_aton(group) + socket.inet_aton(self.address)
                made.setsockopt(_IP, socket.IP_ADD_MEMBERSHIP, request)
        except OSError as error:
            made.close()
            text = f"group {group} cannot be joined at {self.address}: {error.strerror}"
            raise NoRouteError(text) from None
        self._receives(made, group)
        self._groups[group] = made

    def leave(self, group: str) -> None:
        """
        See L{ILink}.
        """
        made = self._groups.pop(group, None)
        if made is not None:
            self._poller.unregister(made)
            del self._receivers[made.fileno()]
            made.close()

    # -- the end

    def close(self) -> None:
        """
        See L{ILink}; harmless if it is closed.
        """
        for made in (self._main, *self._senders.values(), *self._groups.values()):
            made.close()
        self._senders.clear()
        self._groups.clear()
        self._receivers.clear()
        self._poller.close()
        for view in self._view:
            view.release()
        self._view.clear()
        try:
            self._buffer.close()
        except BufferError:
            pass  # Who closes is in the middle of a batch: it goes with that.


__all__ = ["RoCELink", "mtuOf", "pathMTUOf"]
