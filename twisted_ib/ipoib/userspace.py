"""
IP, UDP and ICMP in user space: the consumer of one L{IPoIBInterface
<twisted_ib.ipoib.interface.IPoIBInterface>}, shared by all ports on it.

A datagram of a known flow costs a look-up, two comparisons and its checksum.  Everything else takes the slow
way: L{IPPacket<twisted_ib.ipoib.protocol.stack.packets.IPPacket>} and a table of ports.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from ipaddress import ip_address
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_ib import limits
from twisted_ib.errors import DeviceError, HeaderError, InterfaceClosedError, WireError
from twisted_ib.hca.memory.keys import DrawnAhead
from twisted_ib.internet.addressing.addresses import FIRST_EPHEMERAL_PORT
from twisted_ib.internet.logcontext import callInContext, callLogged
from twisted_ib.ipoib.interface import NOBODY
from twisted_ib.ipoib.protocol.ip import ICMP, ICMPV6, ErrorRate
from twisted_ib.ipoib.protocol.stack.icmp import PROTOCOL, ICMPMessage, portUnreachable
from twisted_ib.ipoib.protocol.stack.packets import IPPacket, Reassembly, fragments, isGroup
from twisted_ib.ipoib.protocol.stack.udp import UDP, ReceiveFlow, SendFlow, UDPSegment
from twisted_ib.ipoib.protocol.wire import IPV4_HEADER, IPV6_HEADER
from twisted_ib.ipoib.resolver import interfaceFor

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase
    from twisted.internet.interfaces import IDelayedCall

    from twisted_ib.ipoib.interface import IPoIBInterface
    from twisted_ib.ipoib.port import IPoIBPort, RawIPoIBPort, _Port
    from twisted_ib.structs import Packed


#: RFC 1122 section 3.2.1.7 and RFC 1700: what packets to one host begin with.
HOP_LIMIT: Final = 64
#: The least MTU of a path that an error may tell (Linux C{net/ipv4/route.c}, C{ip_rt_min_pmtu}; RFC 8200
#: section 5).
_LEAST_MTU: Final = {4: 552, 6: 1280}
#: RFC 6335 section 6: 49152 to 65535, 2^14 numbers.
_EPHEMERAL_BITS: Final = 14
#: More than the longest packet of either version.
_ANY_LENGTH: Final = 1 << 17
_BROADCAST: Final = b"\xff\xff\xff\xff"
_LOOPBACK_IPV6: Final = ip_address("::1").packed
#: All hosts on a link, of which everybody is a member (RFC 1112 section 4, RFC 4291 section 2.7.1).
_ALL_HOSTS: Final = frozenset((ip_address("224.0.0.1").packed, ip_address("ff02::1").packed))

#: The headers of IPv4 and UDP.
_LEAST_PACKET: Final = 28
_LENGTH_CHECKSUM: Final[Packed[tuple[int, int]]] = Struct("!HH")
_log = Logger()


class IPStack:
    """
    The stack of one interface: see L{IPacketConsumer<twisted_ib.ipoib.interface.IPacketConsumer>}.

    @ivar interface: the L{IPoIBInterface<twisted_ib.ipoib.interface.IPoIBInterface>}.
    @ivar mtu: of the interface, octets; 0 until it is up.
    @ivar addresses: the interface's addresses, packed.
    @ivar counters: the interface's.
    """

    def __init__(self, interface: IPoIBInterface, reactor: ReactorBase) -> None:
        self.interface = interface
        self.reactor = reactor
        self.mtu = 0
        self.counters = interface.counters
        self._ports: dict[int, list[IPoIBPort]] = {}
        self._rawPorts: list[RawIPoIBPort] = []
        self._groups: dict[bytes, list[_Port]] = {}
        self._flows: dict[bytes, ReceiveFlow] = {}
        self._pathMTUs: dict[bytes, int] = {}
        self._pathMTUTimer: IDelayedCall | None = None
        self._reassembly = Reassembly()
        self._identification = 0
        self._waiting: list[tuple[IPoIBPort, bytes, Any]] = []
        self._local: deque[bytes] = deque()
        self._localCall: IDelayedCall | None = None
        self._errorRate = ErrorRate(reactor.seconds)
        # RFC 6056 section 3.3.1: outsiders should not guess a port.
        self._draw = DrawnAhead(secrets.randbits, _EPHEMERAL_BITS)
        self._readAddresses()
        # This calls interfaceUp if the interface is up.
        interface.consumer = self

    # -- the interface's consumer

    def packetReceived(self, buffer: bytes | memoryview, start: int, stop: int) -> None:
        if type(buffer) is not bytes:
            # What is checked must be what is read: the peer may still write to its memory.
            buffer = bytes(buffer[start:stop])
            start, stop = 0, len(buffer)
        if stop - start >= _LEAST_PACKET:
            addresses, udp = (start + 12, start + 20) if buffer[start] == 0x45 else (start + 8, start + 40)
            flow = self._flows.get(buffer[addresses : udp + 4])
            if flow is not None and stop - start == flow.size and buffer[start:addresses] == flow.header:
                length, given = _LENGTH_CHECKSUM.unpack_from(buffer, udp + 4)
                payload = buffer[udp + 8 : stop]
                words = int.from_bytes(payload, "big")
                if length & 1:
                    words <<= 8
                # As in IPv4Flow.frame: a right checksum makes the sum 0 modulo 65535.
                isRight = not (flow.sum + 2 * length + given + words) % 0xFFFF
                if isRight and given and length == stop - udp:
                    callLogged(flow.port, flow.port.received, payload, flow.address)
                    return
        self._receive(buffer[start:stop])

    def interfaceUp(self, mtu: int) -> None:
        self.mtu = mtu
        self._readAddresses()
        self._forgetFlows()
        waiting, self._waiting = self._waiting, []
        for port, datagram, address in waiting:
            # It is the interface that calls; the port may have been connected elsewhere meanwhile.
            callLogged(port, port.write, datagram, address)

    def interfaceFailed(self, error: Exception) -> None:
        _log.error("packets do not pass on {interface}: {error}", interface=self.interface, error=error)
        if isinstance(error, InterfaceClosedError):
            ports: list[_Port] = [*chain.from_iterable(self._ports.values()), *self._rawPorts]
            for port in ports:
                port.connectionLost()

    def _readAddresses(self) -> None:
        self._networks = tuple(self.interface.addresses)
        self.addresses = frozenset(network.ip.packed for network in self._networks)
        # RFC 3021 section 2.2: a network of two addresses has no broadcast address.
        directed = [network.network for network in self._networks if network.version == 4]
        self._broadcasts = frozenset(
            [_BROADCAST] + [each.broadcast_address.packed for each in directed if each.prefixlen < 31]
        )

    # -- ports

    def bind(self, port: IPoIBPort, number: int, isShared: bool) -> int:
        """
        Give a port a number.

        @param number: 0 for any that is free.
        @param isShared: whether others may have it too that say the same.
        @return: the number; 0 if it is taken, or none is free.
        """
        if not number:
            # Bounded: with all numbers in use it fails, and does not hang the reactor.
            for _ in range(limits.PORT_ATTEMPTS):
                number = FIRST_EPHEMERAL_PORT + self._draw(_EPHEMERAL_BITS)
                if number not in self._ports:
                    break
            else:
                return 0
        for other in self._ports.get(number, ()):
            if other.version == port.version and not (isShared and other.isShared):
                if None in (port.address, other.address) or port.address == other.address:
                    return 0
        self._ports.setdefault(number, []).append(port)
        self._flows.clear()
        return number

    def addRawPort(self, port: RawIPoIBPort) -> None:
        """
        Give every packet to a port besides.
        """
        self._rawPorts.append(port)
        self._flows.clear()

    def remove(self, port: _Port) -> Deferred[None]:
        """
        Take everything from a port of either kind, and the interface from the process with its last user.

        @return: fires when that is done.
        """
        for group in [group for group, members in self._groups.items() if port in members]:
            self.leaveGroup(port, group)
        for number, ports in list(self._ports.items()):
            if port in ports:
                ports.remove(port)
                if not ports:
                    del self._ports[number]
        if port in self._rawPorts:
            self._rawPorts.remove(port)
        self._flows.clear()
        if not self._ports and not self._rawPorts:
            self._stop()
        return self.interface.close()

    def forgetReceived(self) -> None:
        """
        Look for the receivers of all datagrams anew.
        """
        self._flows.clear()

    def joinGroup(self, port: IPoIBPort, group: bytes) -> None:
        """
        Have a port receive what is sent to a group.  The interface joins it with the first.

        @raise ValueError: the port is a member already.
        @raise ResourceLimitError: the interface is in too many groups.
        """
        members = self._groups.setdefault(group, [])
        if port in members:
            raise ValueError("the port is a member already")
        members.append(port)
        if len(members) == 1:
            try:
                self.interface.join(str(ip_address(group)))
            except BaseException:
                del self._groups[group]
                raise

    def leaveGroup(self, port: _Port, group: bytes) -> None:
        """
        Undo L{joinGroup}.

        @raise ValueError: the port is no member.
        """
        members = self._groups.get(group, [])
        members.remove(port)
        if not members:
            del self._groups[group]
            self.interface.leave(str(ip_address(group)))

    def _stop(self) -> None:
        for call in (self._localCall, self._pathMTUTimer):
            if call is not None:
                call.cancel()
        self._localCall = self._pathMTUTimer = None
        self._local.clear()
        self._pathMTUs.clear()

    # -- sending

    def openFlow(self, port: IPoIBPort, destination: bytes, number: int) -> SendFlow:
        """
        Return what a port's datagrams to an address are sent by.
        """
        source = port.address or self._sourceFor(destination)
        addresses = (source, port.number, destination, number)
        if destination in self.addresses:
            return SendFlow(addresses, HOP_LIMIT, _ANY_LENGTH, self._sendLocal)
        if self.isBroadcast(destination):
            return SendFlow(addresses, HOP_LIMIT, self.mtu, self._sendBroadcast)
        mtu = self._pathMTUs.get(destination, self.mtu)
        if not isGroup(destination):
            return SendFlow(addresses, HOP_LIMIT, mtu, self.interface.send)

        def sendGroup(frame: bytes) -> None:
            # IP_MULTICAST_LOOP is the sender's (ip(7)); what comes back over the link is dropped below.
            if port.isLooping and destination in self._groups:
                self._sendLocal(frame)
            self.interface.send(frame)

        return SendFlow(addresses, port.hopLimit, mtu, sendGroup)

    def isBroadcast(self, destination: bytes) -> bool:
        """
        Return whether an address is 255.255.255.255, or that of all hosts of one of the interface's networks.
        """
        return destination in self._broadcasts

    def _sourceFor(self, destination: bytes) -> bytes:
        # RFC 6724 in small: the destination itself, then an address of its network, then the first.
        if destination in self.addresses:
            return destination
        value = ip_address(destination)
        own = [network for network in self._networks if network.version == value.version]
        if isGroup(destination):
            linkLocal = value.version == 6 and destination[1] & 15 == 2
            own.sort(key=lambda network: network.ip.is_link_local != linkLocal)
        else:
            own.sort(key=lambda network: value not in network.network)
        return own[0].ip.packed if own else bytes(len(destination))

    def sendLong(self, flow: SendFlow, payload: bytes) -> None:
        """
        Send a datagram in fragments.
        """
        source, _, destination, _ = flow.addresses
        packet = flow.frame(payload)
        segment = packet[4 + (20 if len(source) == 4 else 40) :]
        self._identification = (self._identification + 1) & 0xFFFFFFFF
        for frame in fragments(
            source, destination, UDP, flow.hopLimit, segment, flow.mtu, self._identification
        ):
            flow.send(frame)

    def sendPacket(self, packet: bytes) -> None:
        """
        Send a packet that somebody else has made.
        """
        isIPv6 = packet[:1] >= b"\x60"
        self.interface.send((IPV6_HEADER if isIPv6 else IPV4_HEADER) + packet)

    def wait(self, port: IPoIBPort, datagram: bytes, address: Any) -> None:
        """
        Keep a datagram until the interface is up.
        """
        if len(self._waiting) < limits.IPOIB_STARTING_DATAGRAMS:
            self._waiting.append((port, bytes(datagram), address))
        else:
            self.counters["not_up"] += 1

    def _send(self, source: bytes, destination: bytes, protocol: int, segment: bytes) -> None:
        # A packet of the stack's own.
        send, mtu = self.interface.send, self._pathMTUs.get(destination, self.mtu)
        if destination in self.addresses:
            send, mtu = self._sendLocal, _ANY_LENGTH
        self._identification = (self._identification + 1) & 0xFFFFFFFF
        for frame in fragments(source, destination, protocol, HOP_LIMIT, segment, mtu, self._identification):
            send(frame)

    def _sendBroadcast(self, frame: bytes) -> None:
        # Linux gives a broadcast to the sockets of its own host as well.
        self._sendLocal(frame)
        self.interface.send(frame)

    def _sendLocal(self, frame: bytes) -> None:
        # Not in the sender's call: no protocol expects a datagram while it writes one.
        if len(self._local) >= limits.IPOIB_LOCAL_PACKETS:
            self.counters["local_full"] += 1
            return
        self._local.append(frame[4:])
        if self._localCall is None:
            self._localCall = self.reactor.callLater(0, callInContext, self._receiveLocal)

    def _receiveLocal(self) -> None:
        self._localCall = None
        # What is sent meanwhile waits for the next turn: others must have theirs.
        for _ in range(len(self._local)):
            if self._local:
                self._receive(self._local.popleft(), isLocal=True)
        if self._local and self._localCall is None:
            self._localCall = self.reactor.callLater(0, callInContext, self._receiveLocal)

    # -- receiving, the slow way

    def _receive(self, packet: bytes, isLocal: bool = False) -> None:
        try:
            ip = IPPacket.parse(packet)
            if not isLocal and self._isNoSource(ip.source):
                self.counters["bad_source"] += 1
                return
            if ip.isFragment:
                whole = self._reassemble(ip)
                if whole is None:
                    return
                ip = whole
            for port in self._rawPorts:
                callLogged(port, port.received, ip.packet, None)
            if not self._isOurs(ip.destination):
                self.counters["not_for_us"] += 1
            elif ip.protocol == UDP:
                self._receiveUDP(ip, isLocal)
            elif ip.protocol == (ICMP if ip.version == 4 else ICMPV6):
                self._receiveICMP(ip, isLocal)
            else:
                self.counters["other_protocol"] += 1
        except WireError:
            self.counters["malformed"] += 1

    def _isOurs(self, destination: bytes) -> bool:
        return (
            destination in self.addresses
            or destination in self._groups
            or destination in _ALL_HOSTS
            or self.isBroadcast(destination)
        )

    def _isNoSource(self, source: bytes) -> bool:
        # RFC 1122 section 3.2.1.3, RFC 4291 section 2.5.3; a group is no source to the parser.
        return self.isBroadcast(source) or source == _LOOPBACK_IPV6 or (len(source) == 4 and source[0] == 127)

    def _reassemble(self, ip: IPPacket) -> IPPacket | None:
        segment = self._reassembly.add(ip, self.reactor.seconds())
        if segment is None:
            return None
        (frame,) = fragments(ip.source, ip.destination, ip.protocol, ip.hopLimit, segment, _ANY_LENGTH, 0)
        whole = IPPacket.parse(frame[4:])
        if whole.isFragment:
            raise HeaderError("fragments of a fragment")
        return whole

    def _receiveUDP(self, ip: IPPacket, isLocal: bool) -> None:
        if ip.source in self.addresses and not isLocal:
            self.counters["own_source"] += 1
            return
        segment = UDPSegment.parse(ip)
        payload = ip.packet[segment.start : segment.stop]
        address = (str(ip_address(ip.source)), segment.sourcePort)
        if ip.destination not in self.addresses:
            for port in self._receivers(ip, segment):
                callLogged(port, port.received, payload, address)
            return
        receiver = self._receiver(ip, segment)
        if receiver is None:
            self._portUnreachable(ip)
            return
        if not isLocal and not self._rawPorts:
            self._remember(ip, segment, receiver, address)
        callLogged(receiver, receiver.received, payload, address)

    def _receiver(self, ip: IPPacket, segment: UDPSegment) -> IPoIBPort | None:
        # The one that fits best, as Linux scores sockets (net/ipv4/udp.c, compute_score).
        best, most = None, -1
        for port in self._ports.get(segment.destinationPort, ()):
            if port.version != ip.version or port.address not in (None, ip.destination):
                continue
            if port.peer not in (None, (ip.source, segment.sourcePort)):
                continue
            score = 2 * (port.peer is not None) + (port.address is not None)
            if score > most:
                best, most = port, score
        return best

    def _receivers(self, ip: IPPacket, segment: UDPSegment) -> Iterator[IPoIBPort]:
        # Of a broadcast all that have the number, of a group those that have joined it.
        members = None if self.isBroadcast(ip.destination) else self._groups.get(ip.destination, ())
        for port in tuple(self._ports.get(segment.destinationPort, ())):
            if port.version == ip.version and (members is None or port in members):
                if port.peer in (None, (ip.source, segment.sourcePort)):
                    yield port

    def _remember(self, ip: IPPacket, segment: UDPSegment, port: IPoIBPort, address: tuple[str, int]) -> None:
        # Packets with options, and those whose datagram ends earlier, always take the slow way.
        at = 12 if ip.version == 4 else 8
        if ip.start != (20 if ip.version == 4 else 40) or segment.stop != len(ip.packet):
            return
        key = ip.packet[at : ip.start + 4]
        flow = self._flows.get(key)
        if flow is None:
            # The oldest is evicted: senders, which may be forged, must not use up memory.
            if len(self._flows) >= limits.IPOIB_FLOWS:
                del self._flows[next(iter(self._flows))]
            flow = self._flows[key] = ReceiveFlow(port, address, key)
        flow.header = ip.packet[:at]
        flow.size = len(ip.packet)

    # -- ICMP

    def _receiveICMP(self, ip: IPPacket, isLocal: bool) -> None:
        message = ICMPMessage.parse(ip)
        if message.isError:
            self._receiveError(ip, message)
        elif message.isEchoRequest:
            if ip.source in self.addresses and not isLocal:
                self.counters["own_source"] += 1
            elif ip.destination in self.addresses:
                self._echo(ip, message, ip.destination)
            elif ip.version == 6:
                # RFC 4443 section 4.2.  IPv4 is not answered, as Linux's icmp_echo_ignore_broadcasts.
                self._echo(ip, message, self._sourceFor(ip.source))

    def _echo(self, ip: IPPacket, message: ICMPMessage, source: bytes) -> None:
        reply = message.echoReply(source, ip.source)
        self._send(source, ip.source, PROTOCOL[ip.version], reply)

    def _receiveError(self, ip: IPPacket, message: ICMPMessage) -> None:
        about = message.quoted()
        # RFC 5927 section 4: an error counts only if it is about a datagram that may have been sent.
        port = None
        if about.source in self.addresses and about.ports is not None:
            local, remote = about.ports
            for each in self._ports.get(local, ()):
                if each.version == ip.version and each.sendsTo(about.destination, remote):
                    port = each
                    break
        if port is None:
            self.counters["stray_error"] += 1
            return
        if message.isPortUnreachable:
            if port.peer is not None:
                callLogged(port, port.refused)
        elif message.isTooBig:
            self._setPathMTU(about.destination, ip.version, message.pathMTU)

    def _setPathMTU(self, destination: bytes, version: int, mtu: int) -> None:
        mtu = max(mtu, _LEAST_MTU[version])
        if mtu >= self._pathMTUs.get(destination, self.mtu):
            return
        if len(self._pathMTUs) >= limits.IPOIB_PATH_MTUS and destination not in self._pathMTUs:
            del self._pathMTUs[next(iter(self._pathMTUs))]
        self._pathMTUs[destination] = mtu
        self._forgetFlows()
        if self._pathMTUTimer is None:
            self._pathMTUTimer = self.reactor.callLater(limits.IPOIB_PATH_MTU_SECONDS, self._forgetPathMTUs)

    def _forgetPathMTUs(self) -> None:
        # RFC 1191 section 6.3: the path may have become better.
        self._pathMTUTimer = None
        self._pathMTUs.clear()
        self._forgetFlows()

    def _forgetFlows(self) -> None:
        self._flows.clear()
        for ports in self._ports.values():
            for port in ports:
                port.forgetFlows()

    def _portUnreachable(self, ip: IPPacket) -> None:
        self.counters["no_port"] += 1
        # A raw port may have taken the datagram.  RFC 1122 section 3.2.2: no error to an address that is not
        # one host's.
        if self._rawPorts or not any(ip.source):
            return
        if not self._errorRate.take():
            self.counters["icmp_suppressed"] += 1
            return
        error = portUnreachable(ip, ip.destination)
        self._send(ip.destination, ip.source, PROTOCOL[ip.version], error)


def stackFor(reactor: ReactorBase, device: str, address: str) -> IPStack:
    """
    Return the stack of an interface, for one port more.

    @param address: as L{interfaceFor} has it; all of IPv4 if it is empty.
    @raise HCAError: the device or the interface cannot be had, or its packets go elsewhere.
    """
    interface = interfaceFor(reactor, device, address or "0.0.0.0")
    consumer = interface.consumer
    if isinstance(consumer, IPStack):
        return consumer
    if consumer is not NOBODY:
        interface.close()
        # Not ServiceInUseError, whose text CannotListenError does not tell.
        raise DeviceError(
            f"{interface} is in use by a {type(consumer).__name__}: end that, or take another address"
        )
    return IPStack(interface, reactor)
