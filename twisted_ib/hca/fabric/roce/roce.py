"""
RoCEv2 over UDP sockets, without privileges (IBTA vol. 1 annex A17).

One socket, bound to the address and port 4791, receives; if processes share the port, it is one of their
L{group<twisted_ib.hca.fabric.roce.portgroup>}'s, and there is another that all of them read. Packets are sent
from further sockets of the same address, one per source port. Multicast groups have sockets of their own,
which other processes may bind too.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import socket
import struct
from contextlib import suppress
from typing import Any, Final

from zope.interface import classImplements

from twisted_ib import limits
from twisted_ib.drive.sleeper import unwatch
from twisted_ib.errors import DeviceError, NoRouteError, ResourceLimitError
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.fabric.base.link import SEVERAL_BYTES, ILink
from twisted_ib.hca.fabric.roce.portgroup import PortGroup, filterDatagrams, joinGroup, whyApart
from twisted_ib.hca.fabric.roce.slots import HANDED_ON, Handed
from twisted_ib.hca.host.addresses import interfaceOf, normalise, routeMTU
from twisted_ib.hca.host.libc import KernelEpoll, KernelSocket
from twisted_ib.hca.transport.parameters import TRANSPORT_LONG_BYTES
from twisted_ib.hca.wire.grh import HOP_LIMIT
from twisted_ib.hca.wire.icrcflow import LONGEST_PACKET
from twisted_ib.hca.wire.rocev2 import LONG_MTU_CODES, PORT, datagramPort

#: Sockets that one device sends from, so that a flow has a source port of its own; further flows share them.
PACKET_SOCKETS = 64
#: Socket buffer that a device asks for, in octets, each way.
PACKET_BUFFER = 8 * 1024 * 1024
#: The same for some two thousand requests: they come again, and more would be answered too late.
PACKET_REQUESTS = 1024 * 1024
#: Bytes of a receive buffer, as the kernel counts them, from which on packets fill whole UDP datagrams: of a
#: smaller one several senders would each need a third for the least window of two.  And the most without it.
_LARGE_BUFFER = 2 * 1024 * 1024
_WITHOUT = 8192
#: Datagrams of one UDP_SEGMENT call; Linux's UDP_MAX_SEGMENTS was 64 at first.
PACKET_BURST = 62
#: Multicast groups that one device joins, each with a socket.
PACKET_GROUPS = 256

# Constants of Linux (linux/in.h, in6.h, udp.h, sockios.h, asm-generic/socket.h) that not all versions of
# Python have.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
_IP_TOS, _IP_TTL, _IP_RECVERR, _IP_RECVTOS = 1, 2, 11, 13
_IPV6_RECVERR, _IPV6_HOPLIMIT, _IPV6_RECVTCLASS, _IPV6_TCLASS = 25, 52, 66, 67
_SOL_UDP, _UDP_NO_CHECK6_RX, _UDP_SEGMENT, _UDP_GRO = 17, 102, 103, 104
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE, _SO_MEMINFO = 32, 33, 55
_SIOCGIFMTU: Final = 0x8921
#: The path MTU of a connected socket (ip(7), ipv6(7)).
_IP_MTU, _IPV6_MTU = 14, 24
_IP, _IPV6 = socket.IPPROTO_IP, socket.IPPROTO_IPV6
#: C{struct ifreq} with an integer (netdevice(7)).
_IFREQ: Final = struct.Struct("=16si20x")
_INT: Final = struct.Struct("=i")
_SHORT: Final = struct.Struct("=H")
#: C{struct sock_filter} (linux/filter.h): BPF_RET with 0, which takes no datagram.
_NOTHING: Final = struct.pack("=HBBI", 0x06, 0, 0, 0)
_BUFFER_BYTES: Final = 65536
_ANCILLARY_BYTES: Final = 128
#: Most octets of a packet besides its payload: GRH, UDP, BTH, XRCETH, AtomicETH, ICRC (Linux ib_addr.h
#: iboe_get_mtu). The same sum as a Linux peer's, so that both choose the same path MTU for an interface.
_OVERHEAD: Final = 40 + 8 + 12 + 4 + 28 + 4
_LOOPBACK_MTU: Final = 65536
_ETHERNET_MTU: Final = 1500
#: A single datagram of at most so many octets is a small message, and seldom one of many. MADs are longer,
#: so strangers cannot cut batches short.
_SHORT_BYTES: Final = 256
#: Long packets count by their octets, so that half of a peer's window ends a turn: it has its acknowledgement
#: before it stands still.
_COUNTED_BYTES: Final = TRANSPORT_LONG_BYTES // 2 // limits.RECORDS_PER_TURN
#: Ports that are tried for a flow whose own is in use by another process; as many may share the address.
_PORT_ATTEMPTS: Final = 64
#: The socket buffer or the interface's queue is full, or the kernel has reported what ICMP says of an earlier
#: datagram (ip(7), IP_RECVERR) in the place of sending: try again later.
_FULL: Final = frozenset((errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ECONNREFUSED))
#: The flow of queue pair 1.
_MANAGEMENT: Final = datagramPort(GSI_QPN)
#: How often a datagram is sent again that met a report about another one.
_REPORTS: Final = 4
#: C{struct sock_extended_err} (ip(7)): errno, origin, and more.
_EXTENDED_ERROR: Final = struct.Struct("=IB")
_FROM_ICMP: Final = frozenset((2, 3))
_ERROR_BYTES: Final = 512
#: UDP_SEGMENT is not supported: an old kernel, or an interface without checksum offload (Linux udp_send_skb:
#: EIO).
_UNCUT: Final = frozenset((errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP))


def mtuOf(interface: int) -> int:
    """
    The MTU of an interface, in octets of an IP packet.

    @param interface: its index, 0 for loopback.
    """
    if not interface:
        return _LOOPBACK_MTU
    try:
        name = socket.if_indextoname(interface).encode()
        with KernelSocket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            answer = fcntl.ioctl(probe, _SIOCGIFMTU, _IFREQ.pack(name, 0))
        return int(_IFREQ.unpack(answer)[1])
    except OSError:
        return _ETHERNET_MTU


def pathMTUOf(octets: int) -> int:
    """
    The path MTU in bytes that fits into IP packets of so many octets.
    """
    sizes = (*MTU_CODES, *LONG_MTU_CODES)
    return max([mtu for mtu in sizes if mtu + _OVERHEAD <= octets], default=min(MTU_CODES))


def _portTaken(address: str) -> DeviceError:
    # Linux rxe_net.c rxe_setup_udp_tunnel binds the port on the wildcard address as soon as the module is
    # loaded.
    user = _ownerOf(address)
    if os.path.exists("/sys/module/rdma_rxe"):
        who = "the kernel's rdma_rxe has it (rmmod rdma_rxe, or use another network namespace)"
    elif user not in (-1, os.geteuid()):
        who = f"a process of user {user} has it, and only those of one user share an address (take another)"
    elif why := whyApart():
        who = f"another process has it, which this one cannot join: {why}"
    else:
        who = "another process has it (give each process an address of its own)"
    return DeviceError(f"UDP port {PORT} of {address} is taken: {who}")


def _ownerOf(address: str) -> int:
    # The user who has the port of an address, -1 if that is not known.
    isIPv6 = ":" in address
    packed = socket.inet_pton(socket.AF_INET6 if isIPv6 else socket.AF_INET, address.partition("%")[0])
    # proc(5), /proc/net/udp: the words of an address in hexadecimal, in the byte order of the host.
    words = struct.iter_unpack("=I", packed)
    wanted = "".join(f"{word:08X}" for (word,) in words) + f":{PORT:04X}"
    try:
        with open("/proc/net/udp6" if isIPv6 else "/proc/net/udp", encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if len(fields) > 7 and fields[1] == wanted:
                    return int(fields[7])
    except OSError:
        pass
    return -1


def _enlarge(made: socket.socket, forced: int, plain: int, size: int = PACKET_BUFFER) -> None:
    # socket(7): SO_RCVBUF is limited by net.core.rmem_max; SO_RCVBUFFORCE is not, but needs CAP_NET_ADMIN.
    for option in (plain, forced):
        with suppress(OSError):  # Only the privileged may force it.
            made.setsockopt(socket.SOL_SOCKET, option, size)


class RoCELink:
    """
    The UDP sockets of one address: see L{ILink}.

    @ivar address: the address, without a scope.
    @ivar pathMTU: the path MTU that its interface permits.
    @ivar burst: datagrams that the kernel accepts in one call.
    @ivar user: receives what arrives.
    @ivar group: the processes that share the port; L{None} if this has it alone.
    """

    def __init__(
        self,
        address: str,
        mtu: int | None = None,
        segments: bool = True,
        coalesces: bool = True,
        isShared: bool = False,
    ) -> None:
        """
        Open the sockets.

        @param address: an address of this host.
        @param mtu: the path MTU; by default what the interface permits.
        @param segments: whether to use UDP_SEGMENT where it is supported.
        @param coalesces: whether to use UDP_GRO.
        @param isShared: whether other processes of this user may share the port.
        @raise DeviceError: the address is not of this host, the port is in use, or this is not Linux.
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
        self._mostMTU = max(LONG_MTU_CODES)
        self.burst = PACKET_BURST if segments else 1
        self.user: Any = None
        self._coalesces = coalesces
        self._senders: dict[int, socket.socket] = {}
        #: Wanted source port -> the one in use for it; a flow that shares the main socket's keeps that.
        self._ports: dict[int, int] = {PORT: PORT}
        #: The sender of requests to connect, whose ICMP errors are read.
        self._management: socket.socket | None = None
        self._groups: dict[str, socket.socket] = {}
        #: Descriptor -> socket, and the destination address of its datagrams.
        self._receivers: dict[int, tuple[socket.socket, str]] = {}
        #: Result of the poll by L{pending} that L{receive} has not used yet.
        self._ready: list[tuple[int, int]] | None = None
        #: The ancillary data of a single datagram without a traffic class.
        self._plain = [(_IPV6, _IPV6_TCLASS, bytes(4)) if self._isIPv6 else (_IP, _IP_TOS, bytes(1))]
        #: Octets that the last recvmsg returned.
        self._length = 0
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)  # Slices of it are bytes.
        self._view = [memoryview(self._buffer)]
        self._poller = KernelEpoll()
        self._begin(address, text, isShared)

    def _begin(self, address: str, text: str, isShared: bool) -> None:
        self.group: PortGroup | None = None
        try:
            if isShared:
                self.group = joinGroup(text, self._member)
            self._main = self._open(self.address, PORT) if self.group is None else self.group.main
        except (DeviceError, OSError) as error:
            self._poller.close()
            if isinstance(error, DeviceError):
                raise
            if error.errno == errno.EADDRINUSE:
                raise _portTaken(address) from None
            if error.errno == errno.EADDRNOTAVAIL:
                raise DeviceError(f"{address} is not an address of this host") from None
            raise DeviceError(f"no UDP socket for {address}: {error.strerror}") from None
        if self.group is not None:
            # Nobody's slot; waking one process is enough (epoll_ctl(2)).
            self._receives(self.group.sockets[0], self.address, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        else:
            self._prepare(self._main)
        self._receives(self._main, self.address)
        if not self._isForced and self._main.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < _LARGE_BUFFER:
            self._mostMTU = _WITHOUT
            self.pathMTU = min(self.pathMTU, _WITHOUT)

    # -- sockets

    def _member(self, isFirst: bool) -> socket.socket:
        # Processes that share the port otherwise, or in other run directories, would join the first socket's
        # group, with numbers of slots of their own: it is bound as the only one, and open to others later.
        made = self._open(self.address, PORT, 0 if isFirst else socket.SO_REUSEPORT)
        if isFirst:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._prepare(made)
        return made

    def _open(self, host: str, port: int, reuse: int = 0) -> socket.socket:
        made = KernelSocket(self._family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            # Several processes may join one multicast group; the unicast port is exclusive but for the
            # processes of its group, so no other can take over its packets.
            if reuse:
                made.setsockopt(socket.SOL_SOCKET, reuse, 1)
            # IP_PMTUDISC_PROBE sets Don't Fragment but ignores the kernel's path MTU cache (ip(7)), which
            # anybody can lower by a forged ICMP message; the peers have agreed on a path MTU. With DF an
            # unconnected socket's IPv4 packets have identification 0, and the segments of one call 0, 1, 2,
            # ... (Linux net/ip.h ip_select_ident_segs). The sender must know that, since the ICRC covers it
            # (IBTA vol. 1 annex A17); RFC 6864 permits any value.
            if self._isIPv6:
                made.setsockopt(_IPV6, socket.IPV6_V6ONLY, 1)
                made.setsockopt(_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
                made.setsockopt(_IPV6, socket.IPV6_MULTICAST_HOPS, HOP_LIMIT)
                made.setsockopt(_IPV6, socket.IPV6_UNICAST_HOPS, HOP_LIMIT)
                if self._interface:
                    made.setsockopt(_IPV6, socket.IPV6_MULTICAST_IF, self._interface)
            else:
                made.setsockopt(_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
                made.setsockopt(_IP, socket.IP_MULTICAST_TTL, HOP_LIMIT)
                made.setsockopt(_IP, _IP_TTL, HOP_LIMIT)
                made.setsockopt(_IP, socket.IP_MULTICAST_IF, socket.inet_aton(self.address))
            made.bind(self._where(host, port))
        except BaseException:
            made.close()
            raise
        return made

    def _where(self, host: str, port: int) -> tuple[Any, ...]:
        if not self._isIPv6:
            return host, port
        # RFC 4007: link-local and interface-local addresses are ambiguous without a zone index.
        isOfLink = host.startswith(("fe80:", "ff02:", "ff01:"))
        return host, port, 0, self._interface if isOfLink else 0

    def _prepare(self, made: socket.socket) -> None:
        if self._isIPv6:
            made.setsockopt(_IPV6, _IPV6_RECVTCLASS, 1)
            # Linux rxe_net.c prepare_udp_hdr sends checksum 0 over IPv6 too; the kernel drops those unless
            # told that the protocol has its own check (RFC 6935).
            made.setsockopt(_SOL_UDP, _UDP_NO_CHECK6_RX, 1)
        else:
            # RFC 3168: the traffic class has the congestion mark.
            made.setsockopt(_IP, _IP_RECVTOS, 1)
        if self._coalesces:
            with suppress(OSError):  # Before Linux 5.0.
                made.setsockopt(_SOL_UDP, _UDP_GRO, 1)

    def _receives(self, made: socket.socket, destination: str, events: int = select.EPOLLIN) -> None:
        most = PACKET_BUFFER if events == select.EPOLLIN else PACKET_REQUESTS
        _enlarge(made, _SO_RCVBUFFORCE, socket.SO_RCVBUF, most)
        _enlarge(made, _SO_SNDBUFFORCE, socket.SO_SNDBUF)
        self._poller.register(made, events)
        self._receivers[made.fileno()] = made, destination

    def pathMTUTo(self, destination: str) -> int:
        # The MTU of the kernel's route.
        if self._isForced:
            return self.pathMTU
        try:
            with KernelSocket(self._family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
                probe.bind(self._where(self.address, 0))
                # A separate socket, as a connected one counts IPv4 identifications (net/ip.h
                # ip_select_ident_segs). Nothing is sent.
                probe.connect(self._where(destination, PORT))
                name = (_IPV6, _IPV6_MTU) if self._isIPv6 else (_IP, _IP_MTU)
                return min(self._mostMTU, pathMTUOf(probe.getsockopt(*name)))
        except OSError:
            return self.pathMTU

    def routeMTUTo(self, destination: str) -> int:
        octets = 0 if self._isForced else routeMTU(destination, self.address, self._scope)
        return min(self.pathMTU, pathMTUOf(octets)) if octets else self.pathMTU

    def sourcePort(self, wanted: int) -> int:
        # Beyond PACKET_SOCKETS flows share ports.
        if wanted in self._senders:
            return wanted
        found = self._ports.get(wanted)
        if found is None:
            found = self._ports[wanted] = self._another(wanted)
        return found

    def _another(self, wanted: int) -> int:
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
                # Only strays come to a send socket: in its receive buffer, which nobody reads, they would
                # leave no room for what ICMP says (Linux skbuff.c sock_queue_err_skb).
                filterDatagrams(made, _NOTHING)
                _enlarge(made, _SO_SNDBUFFORCE, socket.SO_SNDBUF)
                senders[port] = made
                if wanted == _MANAGEMENT:
                    made.setsockopt(*((_IPV6, _IPV6_RECVERR) if self._isIPv6 else (_IP, _IP_RECVERR)), 1)
                    self._poller.register(made, 0)  # Its errors only (epoll_ctl(2)).
                    self._management = made
                return port
        # All ports were in use: receivers know the port only once it has come, so the main socket's serves.
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
        hopLimit: int = HOP_LIMIT,
    ) -> bool:
        sender = self._senders.get(port, self._main)
        where = self._where(destination, PORT) if self._isIPv6 else (destination, PORT)
        if len(pieces) == 1 and not trafficClass and hopLimit == HOP_LIMIT:  # sendmsg costs more.
            try:
                sender.sendto(pieces[0], where)
            except OSError as error:
                return self._failed(error, sender, pieces, [], where)
            return True
        ancillary = self._marks(trafficClass, hopLimit) if trafficClass or hopLimit != HOP_LIMIT else []
        if size <= SEVERAL_BYTES and self.burst > 1 and len(pieces) > 1:
            ancillary.append((_SOL_UDP, _UDP_SEGMENT, _SHORT.pack(size)))
        try:
            sender.sendmsg(pieces, ancillary, 0, where)
        except OSError as error:
            return self._failed(error, sender, pieces, ancillary, where)
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

    def _failed(
        self, error: OSError, sender: socket.socket, pieces: list[Any], ancillary: list[Any], where: Any
    ) -> bool:
        if sender is self._management:
            # What ICMP says of an earlier datagram, perhaps to another host, is reported once, in the place
            # of sending this one (ip(7), IP_RECVERR).
            for _ in range(_REPORTS):
                try:
                    sender.sendmsg(pieces, ancillary, 0, where)
                except OSError as another:
                    error = another
                else:
                    return True
        if error.errno in _FULL:
            return False
        # These packets are lost, as on a wire; the transport retransmits them one by one.
        if error.errno in _UNCUT and any(each[1] == _UDP_SEGMENT for each in ancillary):
            self.burst = 1
        self.user.count("packets_unsendable")
        return True

    # -- receiving

    def receive(self, budget: int) -> int:
        n = 0
        poll, receivers = self._poller.poll, self._receivers
        ready, self._ready = self._ready, None
        while n < budget and receivers:  # The user may close this link.
            if ready is None:
                ready = poll(0)
            if not ready:
                break
            before = n
            for descriptor, _ in ready:
                found = receivers.get(descriptor)
                if found is not None:
                    n += self._take(*found)
                elif self._management is not None:
                    n += self._undelivered(self._management)
            if n == before + 1 and self._length <= _SHORT_BYTES:
                break  # Send its answer before polling again, which mostly finds nothing.
            if self._length > LONGEST_PACKET:
                n = before - (before - n) * self._length // _COUNTED_BYTES
            ready = None
        return n

    def _take(self, receiver: socket.socket, destination: str) -> int:
        try:
            length, ancillary, _, where = receiver.recvmsg_into(self._view, _ANCILLARY_BYTES)
        except OSError:
            return 1  # Readable, but nothing there, such as a datagram with a bad UDP checksum (select(2)).
        size = length
        trafficClass = 0
        if ancillary != self._plain:
            for level, kind, data in ancillary:
                if level == _SOL_UDP:
                    # UDP_GRO: the kernel joined several datagrams of one flow, all of this size but the last.
                    if kind == _UDP_GRO:
                        (size,) = _INT.unpack(data)
                elif (kind == _IP_TOS and level == _IP) or (kind == _IPV6_TCLASS and level == _IPV6):
                    trafficClass = data[0] if len(data) == 1 else _INT.unpack(data)[0]
        self._length = size
        if not length or size <= 0:
            self.user.count("packets_malformed")
            return 1
        if self._isIPv6:
            source, port, _, _ = where
            source = source.partition("%")[0]
        else:
            source, port = where
        if port == PORT and self._buffer[0] == HANDED_ON and self._isHanded(source, length, size):
            return 1
        self.user.arrived(source, port, destination, self._buffer, 0, length, size, trafficClass)
        return -(-length // size)

    def _undelivered(self, sender: socket.socket) -> int:
        try:
            data, ancillary, _, where = sender.recvmsg(_ERROR_BYTES, _ERROR_BYTES, socket.MSG_ERRQUEUE)
        except OSError:
            sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # Reset, or it would be reported for ever.
            return 1
        for _, _, error in ancillary:
            number, origin = _EXTENDED_ERROR.unpack_from(error)
            if number == errno.ECONNREFUSED and origin in _FROM_ICMP:
                self.user.undelivered(where[0].partition("%")[0], data)
        return 1

    def _isHanded(self, source: str, length: int, size: int) -> bool:
        group = self.group
        if group is None or source != self.address:
            return False
        for at in range(0, length, size):
            handed = Handed.parse(self._buffer[at : min(at + size, length)], group.secret)
            if handed is None:
                self.user.count("packets_malformed")
                continue
            data = handed.datagram
            self.user.count("packets_taken_over")
            group.isHandling = True
            try:
                self.user.arrived(
                    *(handed.source, handed.port, source, data, 0, len(data), len(data), handed.trafficClass)
                )
            finally:
                group.isHandling = False
        return True

    def pending(self) -> bool:
        self._ready = self._ready or self._poller.poll(0) or None
        return self._ready is not None

    def waiting(self) -> int:
        made = self._main, *(() if self.group is None else self.group.sockets[:1])
        return max(_INT.unpack(each.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 4))[0] for each in made)

    def sift(self, program: bytes) -> None:
        filterDatagrams(self._main if self.group is None else self.group.sockets[0], program)

    def fileno(self) -> int:
        return self._poller.fileno()

    # -- multicast

    def join(self, group: str) -> None:
        """
        See L{ILink}.

        @raise ResourceLimitError: L{PACKET_GROUPS} are joined.
        @raise NoRouteError: the interface has no multicast.
        """
        if group in self._groups:
            return
        if len(self._groups) >= PACKET_GROUPS:
            raise ResourceLimitError(f"{PACKET_GROUPS} multicast groups are joined")
        try:
            # Bound to the group's address, it receives that group only, and its datagrams' destination is
            # known.
            made = self._open(group, PORT, socket.SO_REUSEADDR)
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
            raise NoRouteError(f"group {group} not joined at {self.address}: {error.strerror}") from None
        self._prepare(made)
        self._receives(made, group)
        self._groups[group] = made

    def leave(self, group: str) -> None:
        made = self._groups.pop(group, None)
        if made is not None:
            unwatch(self._poller, made.fileno())
            del self._receivers[made.fileno()]
            made.close()

    # -- the end

    def close(self) -> None:
        for made in (self._main, *self._senders.values(), *self._groups.values()):
            if self.group is None or made is not self._main:
                made.close()
        if self.group is not None:
            self.group.close()
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
            pass  # Closed during a batch, whose slices still refer to it: freed with them.


classImplements(RoCELink, ILink)
