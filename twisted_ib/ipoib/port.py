"""
UDP ports and raw ports over IPoIB, for programs that run without privileges.

L{listenIPoIB} is Twisted's C{listenMulticast} with a port on an IPoIB interface.
"""

from __future__ import annotations

import errno
import os
import socket
from ipaddress import ip_address, ip_interface
from typing import Any

from attrs import frozen
from twisted.internet import error
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress, IListeningPort, ILoggingContext, IMulticastTransport
from twisted.python import log
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.internet.addressing.addresses import checkPort
from twisted_ib.internet.failures import listenError
from twisted_ib.ipoib.protocol.stack.udp import LONGEST_IPV4, LONGEST_IPV6
from twisted_ib.ipoib.protocol.wire import EtherType
from twisted_ib.ipoib.userspace import IPStack, stackFor

_ANY = {4: "0.0.0.0", 6: "::"}
_ETHER_TYPES = {4: EtherType.IPV4, 6: EtherType.IPV6}


@implementer(ILoggingContext)
class _Port:
    """
    The common part of both kinds of ports: a protocol, and a stack while they are open.

    @ivar reactor: where it is open.
    @ivar protocol: receives what arrives.
    @ivar interface: the address that was asked for.
    @ivar device: the HCA's name.
    @ivar connected: whether it is open.
    """

    _TYPE = ""

    port = 0
    _stack: IPStack | None = None
    _stopped: Deferred[None] | None = None
    _closing: Any = None

    def __init__(self, reactor: Any, protocol: Any, interface: str, device: str) -> None:
        self.reactor = reactor
        self.protocol = protocol
        self.interface = interface
        self.device = device
        self.connected = False

    def logPrefix(self) -> str:
        return f"{self._protocolPrefix()} ({self._TYPE})"

    def _protocolPrefix(self) -> str:
        if ILoggingContext.providedBy(self.protocol):
            return str(self.protocol.logPrefix())
        return type(self.protocol).__name__

    def startListening(self) -> None:
        """
        Open the port.

        @raise CannotListenError: the number is taken, or the interface cannot be had.
        """
        try:
            stack = stackFor(self.reactor, self.device, self.interface)
        except (HCAError, ValueError) as e:
            raise listenError(self.interface, self.port, self.device, e) from None
        self.openOn(stack)

    def openOn(self, stack: IPStack) -> None:
        """
        Open the port on a stack.

        @raise CannotListenError: the number is taken, or the address is not the interface's.
        """
        raise NotImplementedError

    def stopListening(self) -> Deferred[None]:
        """
        Close the port in the next turn of the reactor.

        @return: fires with L{None} when it is closed.
        """
        if self._stopped is None:
            if not self.connected:
                return succeed(None)
            self._stopped = Deferred()
            self._closing = self.reactor.callLater(0, self.connectionLost)
        # One for each caller, who may add callbacks of its own.
        answer: Deferred[None] = Deferred()
        self._stopped.addCallback(lambda result: answer.callback(None))
        return answer

    def connectionLost(self, reason: Any = None) -> None:
        """
        Close the port now.
        """
        stack = self._stack
        if stack is None:
            return
        log.msg(self._closedMessage())
        self._stack, self.connected = None, False
        closing, stopped = self._closing, self._stopped
        self._closing = self._stopped = None
        if closing is not None and closing.active():
            closing.cancel()
        released = stack.remove(self)
        try:
            self.protocol.doStop()
        finally:
            if stopped is not None:
                released.addCallback(stopped.callback)

    def _closedMessage(self) -> str:
        return f"({self._TYPE} Port {self.interface} Closed)"


@implementer(IListeningPort, IMulticastTransport)
class IPoIBPort(_Port):
    """
    A UDP port on an IPoIB interface.

    @ivar port: the number that was asked for.
    @ivar maxPacketSize: octets of a datagram that the protocol gets; what is behind them is lost, as with
        C{recvfrom}.
    @ivar version: of IP.
    @ivar addressFamily: the same for the socket API.
    @ivar address: the local address, packed; L{None} for all of the interface.
    @ivar peer: address and number that it is connected to, or L{None}.
    @ivar isShared: whether other ports may have the number that say so, too.
    @ivar isLooping: whether multicast datagrams also go to members on this interface.
    @ivar hopLimit: of multicast datagrams.
    """

    _TYPE = "UDP"

    address: bytes | None = None
    peer: tuple[bytes, int] | None = None
    isLooping = True
    # RFC 1112 section 6.1.
    hopLimit = 1
    _realPortNumber: int | None = None
    _connectedAddr: tuple[str, int] | None = None
    _isBroadcasting = False
    _outgoing: str | int

    def __init__(
        self,
        port: int,
        protocol: Any,
        interface: str = "",
        maxPacketSize: int = 8192,
        reactor: Any = None,
        device: str = "ib0",
        listenMultiple: bool = False,
    ) -> None:
        """
        Open nothing before C{startListening}.

        @raise InvalidAddressError: the interface is no address.
        @raise ValueError: another argument is invalid.
        """
        _Port.__init__(self, reactor, protocol, interface, device)
        self.version = _versionOf(interface)
        self.addressFamily = socket.AF_INET if self.version == 4 else socket.AF_INET6
        self._outgoing = _ANY[4] if self.version == 4 else 0
        self.port = checkPort(port, 0)
        if not isinstance(maxPacketSize, int) or maxPacketSize < 0:
            raise ValueError(f"maxPacketSize is a number of octets, not {maxPacketSize!r}")
        self.maxPacketSize = maxPacketSize
        self.isShared = listenMultiple
        self._flows: dict[tuple[str, int] | None, Any] = {}
        self._destinations: dict[tuple[bytes, int], Any] = {}

    def __repr__(self) -> str:
        if self._realPortNumber is None:
            return f"<{self.protocol.__class__} not connected>"
        return f"<{self.protocol.__class__} on {self._realPortNumber}>"

    # -- opening and closing

    def openOn(self, stack: IPStack) -> None:
        host = self.interface.partition("/")[0] or _ANY[self.version]
        self.address = None if host in _ANY.values() else ip_address(host).packed
        number = 0
        reason = errno.EADDRNOTAVAIL
        if self.address is None or self.address in stack.addresses:
            reason = errno.EADDRINUSE
            number = stack.bind(self, self.port, self.isShared)
        if not number:
            stack.remove(self)
            raise error.CannotListenError(self.interface, self.port, OSError(reason, os.strerror(reason)))
        self._stack = stack
        self._realPortNumber = number
        self.connected = True
        log.msg(f"{self._protocolPrefix()} starting on {number}")
        self.protocol.makeConnection(self)

    def _closedMessage(self) -> str:
        return f"(UDP Port {self._realPortNumber} Closed)"

    def connectionLost(self, reason: Any = None) -> None:
        self.forgetFlows()
        _Port.connectionLost(self, reason)
        self._realPortNumber = None

    @property
    def number(self) -> int:
        """
        The number that it is open on.
        """
        return self._realPortNumber or 0

    def getHost(self) -> IPv4Address | IPv6Address:
        host = _ANY[self.version] if self.address is None else str(ip_address(self.address))
        return (IPv4Address if self.version == 4 else IPv6Address)("UDP", host, self.number)

    # -- sending

    def write(self, datagram: bytes, addr: tuple[str, int] | None = None) -> None:
        """
        Send a datagram, or lose it.

        @param datagram: bytes-like.
        @param addr: IP address and number; L{None}, or the same, on a connected port.
        @raise MessageLengthError: it is longer than UDP can carry.
        @raise InvalidAddressError: C{addr} has no IP address of the port's version.
        @raise PermissionError: it is a broadcast address, and broadcasts are not allowed.
        """
        flow = self._flows.get(addr)
        if flow is None:
            flow = self._open(datagram, addr)
            if flow is None:
                return
        if len(datagram) > flow.most:
            self._writeLong(flow, datagram)
        else:
            flow.send(flow.frame(datagram))

    def _open(self, datagram: bytes, addr: tuple[str, int] | None) -> Any:
        # The flow to an address; None if the datagram waits, or is lost.
        if self._connectedAddr is not None:
            if addr not in (None, self._connectedAddr):
                raise ValueError(f"the port is connected to {self._connectedAddr}, not {addr}")
            host, number = self._connectedAddr
        elif addr is None:
            raise ValueError("there is no destination: the port is not connected")
        else:
            host, number = addr
        destination = self._destination(host)
        checkPort(number, 0)
        stack = self._stack
        if stack is None:
            return None
        if stack.isBroadcast(destination) and not self._isBroadcasting:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), host)
        if not stack.mtu and destination not in stack.addresses:
            if len(datagram) > (LONGEST_IPV4 if self.version == 4 else LONGEST_IPV6):
                raise error.MessageLengthError("message too long")
            stack.wait(self, datagram, addr)
            return None
        if len(self._flows) >= limits.IPOIB_SEND_FLOWS:
            oldest = self._flows.pop(next(iter(self._flows)))
            # A newer flow may go to the same address, written otherwise.
            if self._destinations[oldest.addresses[2:]] is oldest:
                del self._destinations[oldest.addresses[2:]]
        flow = self._flows[addr] = stack.openFlow(self, destination, number)
        self._destinations[destination, number] = flow
        return flow

    def _destination(self, host: str) -> bytes:
        if host == "<broadcast>":
            host = "255.255.255.255"
        version = 4 if isIPAddress(host) else 6 if isIPv6Address(host) else 0
        if not version:
            raise error.InvalidAddressError(host, "write() only accepts IP addresses, not hostnames")
        if version != self.version:
            raise error.InvalidAddressError(host, f"IPv{self.version} port called with IPv{version} address")
        return ip_address(host.partition("%")[0]).packed

    def _writeLong(self, flow: Any, datagram: bytes) -> None:
        if len(datagram) > flow.longest:
            raise error.MessageLengthError("message too long")
        if self._stack is not None:
            self._stack.sendLong(flow, datagram)

    def writeSequence(self, seq: Any, addr: tuple[str, int] | None = None) -> None:
        """
        Send the parts of one datagram.
        """
        self.write(b"".join(seq), addr)

    def connect(self, host: str, port: int) -> None:
        """
        Send to, and receive from, one address only.

        @raise InvalidAddressError: C{host} is no IP address of the port's version.
        @raise RuntimeError: the port is connected already.
        """
        if self._connectedAddr is not None:
            raise RuntimeError("already connected, reconnecting is not currently supported")
        self.peer = (self._destination(host), checkPort(port, 0))
        self._connectedAddr = (host, port)
        self.forgetFlows()
        if self._stack is not None:
            self._stack.forgetReceived()

    def sendsTo(self, destination: bytes, number: int) -> bool:
        """
        Return whether a datagram to an address may have been sent lately.
        """
        return (destination, number) in self._destinations

    def forgetFlows(self) -> None:
        """
        The interface, or a path, has changed.
        """
        self._flows.clear()
        self._destinations.clear()

    # -- receiving

    def received(self, payload: bytes, address: tuple[str, int]) -> None:
        """
        A datagram arrived.
        """
        # After stopListening() the protocol gets nothing more, as from a socket that is not read.
        if self._stopped is None:
            if len(payload) > self.maxPacketSize:
                payload = payload[: self.maxPacketSize]
            self.protocol.datagramReceived(payload, address)

    def refused(self) -> None:
        """
        Nothing receives at the address that the port is connected to.
        """
        if self._stopped is None:
            self.protocol.connectionRefused()

    # -- broadcast and multicast

    def setBroadcastAllowed(self, enabled: bool) -> None:
        self._isBroadcasting = bool(enabled)
        self.forgetFlows()

    def getBroadcastAllowed(self) -> bool:
        return self._isBroadcasting

    def getOutgoingInterface(self) -> str | int:
        return self._outgoing

    def setOutgoingInterface(self, addr: str | int) -> Deferred[int]:
        """
        Check and remember an interface: there is no other than the port's.

        @param addr: one of its addresses, or a name of it; for IPv6 a number, which means nothing.
        @return: fires with 1; fails with C{OSError}.
        """

        async def set() -> int:
            if isinstance(addr, str) == (self.version == 6):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), addr)
            if isinstance(addr, str):
                self._outgoing = await self._checkInterface(addr)
            else:
                self._outgoing = addr
            return 1

        return Deferred.fromCoroutine(set())

    def getLoopbackMode(self) -> bool:
        return self.isLooping

    def setLoopbackMode(self, mode: bool) -> None:
        self.isLooping = bool(mode)

    def getTTL(self) -> int:
        """
        @return: the time to live, or hop limit, of multicast datagrams: 1 at first.
        """
        return self.hopLimit

    def setTTL(self, ttl: int) -> None:
        """
        Set what L{getTTL} returns.

        @raise ValueError: it is not from 0 to 255.
        """
        if not 0 <= ttl <= 255:
            raise ValueError(f"a time to live is from 0 to 255, not {ttl!r}")
        self.hopLimit = ttl
        self.forgetFlows()

    def joinGroup(self, addr: str, interface: str = "") -> Deferred[None]:
        """
        Receive what is sent to a group: the interface joins it by subnet administration.

        @param interface: one of the interface's addresses, or none.
        @return: fails with C{MulticastJoinError}.
        """
        return Deferred.fromCoroutine(self._membership(addr, interface, True))

    def leaveGroup(self, addr: str, interface: str = "") -> Deferred[None]:
        """
        Undo L{joinGroup}.

        @return: fails with C{MulticastJoinError}.
        """
        return Deferred.fromCoroutine(self._membership(addr, interface, False))

    async def _membership(self, addr: str, interface: str, isJoin: bool) -> None:
        try:
            group = ip_address(await self._resolved(addr))
            if interface:
                await self._checkInterface(interface)
            stack = self._stack
            if stack is None:
                raise ValueError("the port is closed")
            if group.version != self.version or not group.is_multicast:
                raise ValueError(f"{addr} is no multicast address of IPv{self.version}")
            if isJoin:
                stack.joinGroup(self, group.packed)
            else:
                stack.leaveGroup(self, group.packed)
        except (HCAError, OSError, ValueError) as e:
            raise error.MulticastJoinError(addr, interface, str(e)) from e

    async def _checkInterface(self, addr: str) -> str:
        host = await self._resolved(addr)
        value = ip_address(host)
        known = self._stack is None or value.packed in self._stack.addresses
        if value.version != self.version or not (known or host in _ANY.values()):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL), addr)
        return host

    async def _resolved(self, host: str) -> str:
        if isIPAddress(host) or isIPv6Address(host):
            return host
        return str(await self.reactor.resolve(host))


@implementer(IAddress)
@frozen
class InterfaceAddress:
    """
    The address of a raw port.

    @ivar device: the HCA's name.
    @ivar host: the interface's address.
    """

    device: str
    host: str


@implementer(IListeningPort)
class RawIPoIBPort(_Port):
    """
    A port for whole IP packets, as C{twisted.pair} has them.
    """

    _TYPE = "IPoIB"

    def openOn(self, stack: IPStack) -> None:
        stack.addRawPort(self)
        self._stack = stack
        self.connected = True
        log.msg(f"{self._protocolPrefix()} starting on {self.interface}")
        self.protocol.makeConnection(self)

    def getHost(self) -> InterfaceAddress:
        return InterfaceAddress(self.device, self.interface)

    def write(self, packet: bytes) -> None:
        """
        Send an IP packet as it is, or lose it.

        @param packet: bytes-like, at most the interface's MTU.
        """
        if self._stack is not None:
            self._stack.sendPacket(bytes(packet))

    def received(self, packet: bytes, address: Any) -> None:
        """
        A packet arrived.
        """
        if self._stopped is None:
            # The hardware addresses of IPoIB have no place in an IP packet, and are not known here.
            self.protocol.datagramReceived(packet, 0, None, None, _ETHER_TYPES[packet[0] >> 4])


def _versionOf(interface: str) -> int:
    if not interface:
        return 4
    try:
        return ip_interface(interface).version
    except ValueError:
        raise error.InvalidAddressError(interface, "not an IPv4 or IPv6 address.") from None


def listenIPoIB(
    reactor: Any,
    port: int,
    protocol: Any,
    interface: str = "",
    device: str = "ib0",
    maxPacketSize: int = 8192,
    listenMultiple: bool = False,
) -> IListeningPort:
    """
    Open a UDP port on an IPoIB interface.

    @param reactor: provides C{IReactorFDSet} and C{IReactorTime}.
    @param port: 0 for any that is free.
    @param protocol: a C{DatagramProtocol}; its transport provides C{IMulticastTransport}.
    @param interface: the local address, with the length of its network if this process has no interface with
        it yet: C{"10.9.0.1/24"}; by default all of IPv4 of the interface that there is.
    @param device: the HCA's name.
    @param maxPacketSize: octets of a datagram that the protocol gets; what is behind them is lost.
    @param listenMultiple: whether other ports may have the number that say so, too.
    @raise InvalidAddressError: C{interface} is no address.
    @raise ValueError: another argument is invalid.
    @raise CannotListenError: the number is taken, or the interface cannot be had.
    """
    opened = IPoIBPort(port, protocol, interface, maxPacketSize, reactor, device, listenMultiple)
    opened.startListening()
    return opened


def ipoibPort(reactor: Any, device: str, address: str, proto: Any) -> IListeningPort:
    """
    Open a port for the IP packets of an IPoIB interface, beside its UDP ports: while it is open, no port
    unreachable errors are sent.

    @param reactor: provides C{IReactorFDSet} and C{IReactorTime}.
    @param device: the HCA's name.
    @param address: the interface's address, as C{listenIPoIB} has it.
    @param proto: an C{IRawPacketProtocol<twisted.pair.raw.IRawPacketProtocol>}; its transport has
        C{write(packet)}.
    @raise InvalidAddressError: C{address} is no address.
    @raise CannotListenError: the interface cannot be had.
    """
    _versionOf(address)
    opened = RawIPoIBPort(reactor, proto, address, device)
    opened.startListening()
    return opened
