"""
IPoIB interfaces without a device: what one sends, the others on its wire receive.
"""

from __future__ import annotations

from collections import Counter, deque
from ipaddress import ip_address, ip_interface
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import DatagramProtocol
from twisted.internet.task import Clock

from twisted_ib.ipoib.port import IPoIBPort
from twisted_ib.ipoib.userspace import IPStack

#: Addresses of interfaces, each on a network of its length.
FIRST, SECOND = ("10.9.0.1/24", "fd00::1/64", "fe80::1/64"), ("10.9.0.2/24", "fd00::2/64", "fe80::2/64")


class FakeInterface:
    """
    An interface as L{IPStack} uses it.

    @ivar sent: the frames that it has sent.
    @ivar counters: of what the stack drops.
    @ivar groups: how often each group was joined.
    @ivar closed: how often it was closed: each port does it once.
    """

    def __init__(self, wire: Wire, *addresses: str, mtu: int = 2044) -> None:
        """
        Join a wire.
        """
        self.wire = wire
        self.addresses = tuple(map(ip_interface, addresses))
        self.mtu = mtu
        self._consumer: Any = None
        self.counters: Counter[str] = Counter()
        self.sent: list[bytes] = []
        self.groups: Counter[str] = Counter()
        self.closed = 0
        wire.interfaces.append(self)

    @property
    def consumer(self) -> Any:
        """
        Who gets what arrives.
        """
        return self._consumer

    @consumer.setter
    def consumer(self, consumer: Any) -> None:
        self._consumer = consumer
        if self.mtu:
            consumer.interfaceUp(self.mtu)

    def send(self, frame: bytes) -> None:
        """
        Send a frame.
        """
        self.sent.append(bytes(frame))
        self.wire.frames.append((self, bytes(frame)))

    def join(self, group: str) -> None:
        """
        Join a group.
        """
        self.groups[group] += 1

    def leave(self, group: str) -> None:
        """
        Leave it.
        """
        self.groups[group] -= 1

    def close(self) -> Deferred[None]:
        """
        One user less.
        """
        self.closed += 1
        return succeed(None)

    def takes(self, destination: str) -> bool:
        """
        @return: whether packets to an address are for it.
        """
        return (
            destination == "255.255.255.255"
            or self.groups[destination] > 0
            or any(
                destination in (str(each.ip), str(each.network.broadcast_address)) for each in self.addresses
            )
        )


class Wire:
    """
    Carries frames when it is asked to.

    @ivar frames: that are on their way, with the interface that sent each.
    """

    def __init__(self) -> None:
        """
        Nobody is on it.
        """
        self.interfaces: list[FakeInterface] = []
        self.frames: deque[tuple[FakeInterface, bytes]] = deque()

    def pump(self) -> int:
        """
        Carry all that is on its way, and what that brings forth.

        @return: how many frames there were.
        """
        count = 0
        while self.frames:
            sender, frame = self.frames.popleft()
            count += 1
            version = frame[4] >> 4
            destination = str(ip_address(frame[20:24] if version == 4 else frame[28:44]))
            for interface in self.interfaces:
                if interface is not sender and interface.takes(destination):
                    # Between other octets, in memory that changes afterwards, and also as bytes.
                    buffer = bytearray(b"..." + frame + b"..")
                    interface.consumer.packetReceived(memoryview(buffer), 7, len(buffer) - 2)
                    buffer[:] = bytes(len(buffer))
        return count


class Stacks:
    """
    Two stacks on one wire.
    """

    def __init__(self, *interfaces: tuple[str, ...], mtu: int = 2044) -> None:
        """
        @param interfaces: the addresses of each.
        """
        self.clock = Clock()
        self.wire = Wire()
        self.interfaces = [
            FakeInterface(self.wire, *addresses, mtu=mtu) for addresses in interfaces or (FIRST, SECOND)
        ]
        self.stacks = [IPStack(interface, self.clock) for interface in self.interfaces]

    def settle(self) -> None:
        """
        Carry all, on the wire and within a stack.
        """
        while self.wire.pump() or any(call.getTime() <= self.clock.seconds() for call in self.clock.calls):
            self.clock.advance(0)

    def open(self, at: int, port: int = 0, interface: str | None = None, **options: Any) -> Recorder:
        """
        Open a port on one stack.

        @param interface: the first address by default.
        @return: its protocol.
        """
        protocol = Recorder()
        host = str(self.interfaces[at].addresses[0].ip) if interface is None else interface
        IPoIBPort(port, protocol, host, reactor=self.clock, **options).openOn(self.stacks[at])
        return protocol


class Recorder(DatagramProtocol):
    """
    Notes what it receives.
    """

    transport: Any

    def __init__(self) -> None:
        """
        Nothing has come.
        """
        self.received: list[tuple[bytes, tuple[str, int]]] = []
        self.refusals = self.stops = 0

    @property
    def address(self) -> tuple[str, int]:
        """
        Its host and port.
        """
        host = self.transport.getHost()
        return host.host, host.port

    def datagramReceived(self, datagram: bytes, addr: tuple[str, int]) -> None:
        self.received.append((datagram, addr))

    def connectionRefused(self) -> None:
        self.refusals += 1

    def stopProtocol(self) -> None:
        self.stops += 1
