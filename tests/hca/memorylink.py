"""
A wire in memory for fabrics of packets: for tests.

Each L{MemoryLink} is an L{ILink<twisted_ib.hca.fabric.base.link.ILink>} of one address on a L{Wire}.  A
datagram is in the receiver's queue at once; a wire's C{pass_} may change, repeat or lose it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from zope.interface import implementer

from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.base.link import ILink
from twisted_ib.hca.fabric.roce.packet import PacketFabric

#: Source and destination address, source port, traffic class, octets.
Datagram = tuple[str, str, int, int, bytes]


class Wire:
    """
    Where links meet.

    @ivar links: By address.
    @ivar groups: By multicast address, those who listen.
    @ivar pass_: Called with each datagram, gives those that come of it.
    @ivar log: All that were sent, if it is a list.
    """

    def __init__(self) -> None:
        """
        Nobody is there.
        """
        self.links: dict[str, MemoryLink] = {}
        self.groups: dict[str, list[MemoryLink]] = {}
        self.pass_: Callable[[Datagram], Iterable[Datagram]] = lambda datagram: (datagram,)
        self.log: list[Datagram] | None = None

    def carry(self, datagram: Datagram) -> None:
        """
        Carry a datagram, or what becomes of it.
        """
        if self.log is not None:
            self.log.append(datagram)
        for each in self.pass_(datagram):
            self.deliver(each)

    def deliver(self, datagram: Datagram) -> None:
        """
        Put a datagram where it is for.
        """
        link = self.links.get(datagram[1])
        for target in [link] if link is not None else self.groups.get(datagram[1], ()):
            target.put(datagram)


@implementer(ILink)
class MemoryLink:
    """
    One end.

    @ivar room: Datagrams that it sends before it has no room; L{None} for any number.
    @ivar coalesces: Whether datagrams that follow each other are given together, as UDP_GRO does it.
    """

    def __init__(self, wire: Wire, address: str, pathMTU: int = 1024) -> None:
        """
        Join a wire.
        """
        self.wire = wire
        self.address = address
        self.pathMTU = pathMTU
        self.burst = 1
        self.user: Any = None
        self.room: int | None = None
        self.coalesces = False
        self.queue: deque[Datagram] = deque()
        wire.links[address] = self

    def pathMTUTo(self, destination: str) -> int:
        return self.pathMTU

    routeMTUTo = pathMTUTo

    def sourcePort(self, wanted: int) -> int:
        """
        Any port is free.
        """
        return wanted

    def send(
        self,
        destination: str,
        port: int,
        pieces: list[Any],
        size: int,
        trafficClass: int = 0,
        hopLimit: int = 64,
    ) -> bool:
        if self.room is not None:
            if not self.room:
                return False
            self.room -= 1
        data = b"".join(pieces)
        assert 0 < len(data) <= size * self.burst
        for at in range(0, len(data), size):
            self.wire.carry((self.address, destination, port, trafficClass, data[at : at + size]))
        return True

    def put(self, datagram: Datagram) -> None:
        """
        A datagram arrives.
        """
        self.queue.append(datagram)
        if self.user.asleep:
            self.user.signal()

    def receive(self, budget: int) -> int:
        n = 0
        while self.queue and n < budget:
            source, destination, port, trafficClass, data = self.queue.popleft()
            n += 1
            size, kind = len(data), (source, destination, port, trafficClass)
            while self.coalesces and not len(data) % size and self.queue and self.queue[0][:4] == kind:
                if len(self.queue[0][4]) > size or len(data) >= size * self.burst:
                    break
                data += self.queue.popleft()[4]
                n += 1
            self.user.arrived(source, port, destination, data, 0, len(data), size, trafficClass)
        return n

    def waiting(self) -> int:
        """
        As Linux counts them: each datagram takes some memory besides.
        """
        return sum(512 + len(datagram[4]) for datagram in self.queue)

    def sift(self, program: bytes) -> None:
        pass

    def pending(self) -> bool:
        return bool(self.queue)

    def fileno(self) -> int:
        """
        There is none.
        """
        return -1

    def join(self, group: str) -> None:
        members = self.wire.groups.setdefault(group, [])
        if self not in members:
            members.append(self)

    def leave(self, group: str) -> None:
        members = self.wire.groups.get(group, [])
        if self in members:
            members.remove(self)

    def close(self) -> None:
        """
        Leave the wire.
        """
        self.wire.links.pop(self.address, None)
        for members in self.wire.groups.values():
            if self in members:
                members.remove(self)


def deviceOn(
    wire: Wire,
    address: str,
    clock: Callable[[], float],
    pathMTU: int = 1024,
    randomBits: Callable[[int], int] | None = None,
) -> Device:
    """
    @return: An HCA at an address of a wire.
    """

    def make(owner: Any, guid: int, clock: Callable[[], float]) -> PacketFabric:
        """
        Make its fabric.
        """
        link = MemoryLink(wire, address, pathMTU)
        if randomBits is None:
            return PacketFabric(owner, guid, clock, link)
        return PacketFabric(owner, guid, clock, link, randomBits)

    if randomBits is None:
        return Device("test", clock, make, capture="")
    return Device("test", clock, make, randomBits, capture="")
