"""
Machines against each other over a simulated medium with a clock of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from ipaddress import ip_interface
from random import Random
from typing import Any

from zope.interface import implementer

from twisted_ib.ipoib.protocol.interfaces import Group, IMachineDriver, Settings
from twisted_ib.ipoib.protocol.ip import packIPv4, packIPv6
from twisted_ib.ipoib.protocol.machine import Machine
from twisted_ib.ipoib.protocol.wire import IPV4_HEADER, IPV6_HEADER, Buffer

#: The first GID of a medium; the others are counted on from it.
GID = 0xFE80 << 112 | 0x0002C90300000001
Q_KEY = 0xB1B
PROTOCOL = 253


def frameTo(source: str, destination: str, data: bytes, flags: int = 0) -> bytes:
    """
    @param source: an IPv4 or IPv6 address.
    @param flags: of IPv4: 0x4000 is Don't Fragment.
    @return: a frame with an IP packet of a protocol for experiments.
    """
    one, other = ip_interface(source).packed, ip_interface(destination).packed
    if len(one) == 4:
        return IPV4_HEADER + packIPv4(one, other, PROTOCOL, len(data), flags=flags) + data
    return IPV6_HEADER + packIPv6(one, other, PROTOCOL, len(data)) + data


@implementer(IMachineDriver)
class Node:
    """
    A machine and its driver.

    @ivar delivered: the packets that it has taken, C{bytes}.
    @ivar counters: what was counted.
    @ivar calls: the calls of its driver: their names and arguments.
    """

    def __init__(self, medium: Medium, gid: int, qpn: int, *addresses: str, **settings: Any) -> None:
        self.medium, self.gid, self.qpn = medium, gid, qpn
        self.delivered: list[bytes] = []
        self.counters: Counter[str] = Counter()
        self.calls: list[tuple[Any, ...]] = []
        self.answers: list[tuple[Any, ...]] = []
        #: Ends of connections: handle, and the peer's node and handle.
        self.ends: dict[Any, tuple[Node, Any]] = {}
        self.groups: set[int] = set()
        self.mtu = 0
        interfaces = tuple(ip_interface(each) for each in addresses)
        self.machine = Machine(self, Settings(gid, qpn, interfaces, **settings))
        medium.nodes[gid, qpn] = self
        self.machine.begin(medium.now)

    def send(self, destination: str, data: bytes, flags: int = 0) -> None:
        """
        Send a packet from the first address of the destination's version.
        """
        version = ip_interface(destination).version
        source = next(each for each in self.machine.addresses if each.version == version)
        self.machine.send(frameTo(str(source.ip), destination, data, flags), self.medium.now)

    def received(self) -> list[bytes]:
        """
        @return: the data of the packets delivered since the last call, without headers.
        """
        packets, self.delivered = self.delivered, []
        return [each[20 if each[0] >> 4 == 4 else 40 :] for each in packets]

    def stop(self) -> None:
        """
        End without a word, as a process that is killed.
        """
        del self.medium.nodes[self.gid, self.qpn]
        for peer, other in self.ends.values():
            peer.ends.pop(other, None)
            self.medium.later(0.0, peer, lambda peer=peer, other=other: peer.lost(other))
        self.ends.clear()

    def lost(self, handle: Any) -> None:
        """
        A connection has ended.
        """
        self.machine.connectionEnded(handle, self.medium.now)

    # -- IMachineDriver

    def resolve(self, gid: int) -> None:
        self.calls.append(("resolve", gid))
        if self.medium.paths is None:
            self.machine.pathResolved(gid, gid, self.medium.now)
        elif gid in self.medium.paths:
            self.medium.later(0.001, self, lambda: self.machine.pathResolved(gid, gid, self.medium.now))
        else:
            self.medium.later(0.001, self, lambda: self.machine.pathFailed(gid, self.medium.now))

    def join(self, mgid: int, isSendOnly: bool, template: Group | None) -> None:
        self.calls.append(("join", mgid, isSendOnly, template))
        if self.medium.refusedGroups(mgid):
            error = RuntimeError("no such group")
            self.medium.later(0.001, self, lambda: self.machine.joinFailed(mgid, error, self.medium.now))
            return
        if not isSendOnly:
            self.groups.add(mgid)
        group = Group(mgid, 0xC000, Q_KEY, self.medium.mtu, path=mgid)
        if self.medium.paths is None:
            self.machine.joined(mgid, group, self.medium.now)
        else:
            self.medium.later(0.001, self, lambda: self.machine.joined(mgid, group, self.medium.now))

    def leave(self, mgid: int) -> None:
        self.calls.append(("leave", mgid))
        self.groups.discard(mgid)

    def post(self, path: Any, qpn: int, frame: Buffer) -> None:
        assert len(frame) <= self.medium.mtu
        self.calls.append(("post", path, qpn, bytes(frame)))
        node = self.medium.nodes.get((path, qpn))
        if node is not None:
            self.medium.carry(self, node, bytes(frame))

    def postGroup(self, group: Group, frame: Buffer) -> None:
        assert len(frame) <= self.medium.mtu
        self.calls.append(("postGroup", group.mgid, bytes(frame)))
        for node in list(self.medium.nodes.values()):
            if group.mgid in node.groups:
                self.medium.carry(self, node, bytes(frame))

    def connect(self, gid: int, qpn: int, privateData: bytes) -> Any:
        self.medium.handles += 1
        handle = self.medium.handles
        self.calls.append(("connect", gid, qpn, privateData, handle))
        peer = self.medium.nodes.get((gid, qpn))
        if peer is None or self.medium.refusesConnections:
            self.medium.later(0.01, self, lambda: self.machine.connectFailed(handle, self.medium.now))
            return handle
        self.medium.handles += 1
        other = self.medium.handles
        self.ends[handle] = peer, other

        def ask() -> None:
            answer = peer.machine.connectionRequested(other, self.gid, privateData, self.medium.now)
            if answer is None:
                self.ends.pop(handle, None)
                self.medium.later(0.0, self, lambda: self.machine.connectFailed(handle, self.medium.now))
            elif handle in self.ends:
                peer.ends[other] = self, handle
                self.medium.later(
                    0.001, self, lambda: self.machine.connected(handle, answer, self.medium.now)
                )

        self.medium.later(0.001, peer, ask)
        return handle

    def postConnected(self, handle: Any, frame: Buffer) -> bool:
        self.calls.append(("postConnected", handle, bytes(frame)))
        if handle in self.ends:
            peer, other = self.ends[handle]
            data = bytes(frame)
            # Reliable, and in order.
            self.medium.later(
                0.001,
                peer,
                lambda: peer.machine.connectedReceived(other, data, 0, len(data), self.medium.now),
            )
        return not self.medium.isFull

    def disconnect(self, handle: Any) -> None:
        self.calls.append(("disconnect", handle))
        peer, other = self.ends.pop(handle, (None, None))
        if peer is not None and peer.ends.pop(other, None) is not None:
            self.medium.later(0.001, peer, lambda: peer.lost(other))

    def deliver(self, buffer: Buffer, start: int, stop: int) -> None:
        self.delivered.append(bytes(buffer[start:stop]))

    def interfaceUp(self, mtu: int) -> None:
        self.mtu = mtu

    def interfaceFailed(self, error: Exception) -> None:
        self.mtu = 0

    def found(self, address: bytes, hardwareAddress: bytes, path: Any) -> None:
        self.answers.append((address, hardwareAddress, path))

    def notFound(self, address: bytes) -> None:
        self.answers.append((address,))

    def deadlineChanged(self) -> None:
        """
        See L{IMachineDriver}.
        """

    def count(self, name: str) -> None:
        self.counters[name] += 1


class Medium:
    """
    Nodes that reach each other.

    @ivar now: the time, seconds.
    @ivar mtu: the IB MTU.
    @ivar paths: GIDs to which there are paths; L{None}: to all, and at once, as groups are then.
    @ivar loss: the part of datagrams that is lost.
    @ivar duplication: the part that arrives twice.
    @ivar delay: the longest time that one takes; with more than the shortest they overtake each other.
    """

    def __init__(self, seed: int = 1) -> None:
        self.random = Random(seed)
        self.now = 100.0
        self.mtu = 2048
        self.nodes: dict[tuple[int, int], Node] = {}
        self.paths: set[int] | None = None
        self.loss = self.duplication = 0.0
        self.delay = 0.001
        self.handles = 0
        self.isFull = self.refusesConnections = False
        self.refusedGroups: Callable[[int], bool] = lambda mgid: False
        self._events: list[tuple[float, int, Node, Callable[[], None]]] = []
        self._count = 0

    def node(self, number: int, *addresses: str, qpn: int = 0x55, **settings: Any) -> Node:
        """
        @param number: of its GID.
        @return: a new node.
        """
        return Node(self, GID + number, qpn, *addresses, **settings)

    def later(self, seconds: float, node: Node, event: Callable[[], None]) -> None:
        """
        Do something at a node, unless it has stopped.
        """
        self._count += 1
        heappush(self._events, (self.now + seconds, self._count, node, event))

    def carry(self, source: Node, node: Node, frame: bytes) -> None:
        """
        Take a datagram to a node, or lose it.
        """

        def arrive() -> None:
            node.machine.datagramReceived(source.gid, frame, 0, len(frame), self.now)

        if self.random.random() < self.loss:
            return
        for _ in range(1 + (self.random.random() < self.duplication)):
            self.later(self.random.uniform(0.001, self.delay) if self.delay > 0.001 else 0.001, node, arrive)

    def advance(self, seconds: float) -> None:
        """
        Let time pass.
        """
        end = self.now + seconds
        while True:
            due = [(each.machine.deadline(), number) for number, each in self.nodes.items()]
            times = [(when, number) for when, number in due if when is not None]
            when, number = min(times, default=(end + 1, None))
            if self._events and self._events[0][0] <= min(when, end):
                at, _, node, event = heappop(self._events)
                self.now = max(self.now, at)
                if self.nodes.get((node.gid, node.qpn)) is node:
                    event()
            elif number is not None and when <= end:
                self.now = max(self.now, when)
                self.nodes[number].machine.tick(self.now)
            else:
                self.now = end
                return


def pair(seed: int = 1, **settings: Any) -> tuple[Medium, Node, Node]:
    """
    @return: two nodes, 10.9.0.1 and 10.9.0.2, that have just begun.
    """
    medium = Medium(seed)
    nodes = medium.node(1, "10.9.0.1/24", **settings), medium.node(2, "10.9.0.2/24", **settings)
    medium.advance(0.1)
    return medium, *nodes
