"""
Runs of machines that lose, repeat and overtake packets, and that get damaged frames.
"""

from __future__ import annotations

from random import Random

from tests.ipoib.medium import GID, Medium, Node, frameTo
from tests.ipoib.protocol.test_wire import frames
from twisted_ib import limits
from twisted_ib.ipoib.protocol.interfaces import COUNTERS
from twisted_ib.ipoib.protocol.ip import ALL_NODES, NeighbourMessage, solicitedNode
from twisted_ib.ipoib.protocol.wire import (
    ARP_HEADER,
    IPV6_HEADER,
    NO_HARDWARE,
    ARPPacket,
    packHardwareAddress,
    packPrivateData,
)

#: Nodes of a run, and its steps.
NODES = 4
STEPS = 200
GROUP = "239.1.2.3"


class Run:
    """
    Nodes that do as a seed says: send, restart, lose their connections and their subnet.

    @ivar sent: what was sent to each node.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.medium = Medium(seed)
        self.medium.delay = 0.05
        self.medium.paths = {GID + number for number in range(1, NODES + 1)} if seed % 2 else None
        self.sent: dict[int, set[bytes]] = {number: set() for number in range(1, NODES + 1)}
        self.nodes: dict[int, Node] = {}
        self.data = 0
        for number in range(1, NODES + 1):
            self.start(number)
        self.medium.advance(1.0)

    def start(self, number: int) -> None:
        """
        Start a node, with another queue pair than before.
        """
        qpn = 0x100 + len(self.medium.nodes) + self.random.randrange(1 << 20)
        isConnected = self.random.random() < 0.7
        node = self.medium.node(number, f"10.9.0.{number}/24", qpn=qpn, isConnected=isConnected)
        self.nodes[number] = node
        node.machine.joinGroup(bytes((239, 1, 2, 3)))

    def go(self) -> None:
        """
        All steps, and then: no packet is at the wrong place or damaged, everybody reaches everybody at once,
        and nothing is kept.
        """
        for _ in range(STEPS):
            self.step()
            self.medium.advance(self.random.choice((0.0, 0.001, 0.1, 1.0)))
        self.medium.loss = self.medium.duplication = 0.0
        self.medium.refusesConnections = False
        self.medium.advance(3.0)
        for one in self.nodes:
            for other in self.nodes:
                self.send(one, other)
                self.medium.advance(3.0)
        self.check()
        for one in self.nodes:
            for other in self.nodes:
                self.send(one, other, 100)
        self.medium.advance(3.0)
        self.check(isWhole=True)
        self.close()

    def step(self) -> None:
        """
        One thing happens.
        """
        random, medium = self.random, self.medium
        one, other = random.sample(sorted(self.nodes), 2)
        kind = random.randrange(20)
        if kind < 14:
            self.send(one, other)
        elif kind < 16:
            self.nodes[one].send(GROUP, b"group")
        elif kind == 16:
            self.nodes[one].stop()
            self.start(one)
        elif kind == 17:
            medium.loss, medium.duplication = random.choice(((0.0, 0.0), (0.2, 0.2), (0.5, 0.0), (1.0, 0.0)))
        elif kind == 18:
            medium.refusesConnections = not medium.refusesConnections
        else:
            self.nodes[one].machine.subnetChanged(medium.now)
            for handle, (peer, _) in list(self.nodes[one].ends.items()):
                if peer is self.nodes[other]:
                    self.nodes[one].disconnect(handle)
                    medium.later(0.0, self.nodes[one], lambda handle=handle: self.nodes[one].lost(handle))

    def send(self, one: int, other: int, size: int | None = None) -> None:
        """
        A packet of its own from one node to another.
        """
        self.data += 1
        data = b"%d to %d: %d " % (one, other, self.data)
        data += bytes(self.random.choice((0, 100, 2000, 9000)) if size is None else size)
        if one != other:
            self.sent[other].add(data)
            self.nodes[one].send(f"10.9.0.{other}", data, 0x4000)

    def check(self, isWhole: bool = False) -> None:
        """
        What was delivered is what was sent to that node, or an ICMP error.

        @param isWhole: whether all of it must be there.
        """
        for number, node in self.nodes.items():
            packets = [each for each in node.delivered if each[9] == 253 and each[16] == 10]
            node.delivered.clear()
            received = {each[20:] for each in packets}
            assert received <= self.sent[number], received - self.sent[number]
            if isWhole:
                assert received == self.sent[number], self.sent[number] - received
            self.sent[number].clear()

    def close(self) -> None:
        """
        All ends, and nothing is left.
        """
        for node in self.nodes.values():
            node.machine.close(self.medium.now)
            assert node.machine.deadline() is None
            assert not node.groups and not node.ends and not node.machine._ready
            assert len(node.machine._peers) == len(node.machine._connections) == 0
            assert set(node.counters) <= set(COUNTERS), node.counters


def samples() -> list[bytes]:
    """
    @return: frames of each kind.
    """
    hardware = packHardwareAddress(0x80, 0x77, GID + 2)
    source, target = ALL_NODES[:-1] + b"\x02", ALL_NODES
    source, target = b"\xfe\x80" + source[2:], b"\xfe\x80" + bytes(6) + b"\x02\x02\xc9\x03" + b"\0\0\0\x02"
    made = frames()
    made += [frameTo("10.9.0.2", "10.9.0.1", b"data"), frameTo("fe80::1", "ff02::1", bytes(100))]
    for operation in (1, 2):
        packet = ARPPacket(operation, hardware, bytes((10, 9, 0, 2)), NO_HARDWARE, bytes((10, 9, 0, 1)))
        made.append(ARP_HEADER + packet.pack())
    for isSolicitation in (True, False):
        destination = solicitedNode(target) if isSolicitation else target
        about = target if isSolicitation else source
        message = NeighbourMessage(source, destination, about, hardware, isSolicitation, False, True)
        made.append(IPV6_HEADER + message.pack())
    return made


def damage(seed: int, count: int) -> Node:
    """
    Give a node damaged frames, private data and packets of its user.

    @param count: how many frames.
    @return: the node.
    """
    random, medium, good = Random(seed), Medium(seed), samples()
    node = medium.node(1, "10.9.0.1/16", "192.168.56.24/24")
    medium.node(2, "10.9.0.2/16")
    medium.advance(1.0)
    for number in range(count):
        frame = bytearray(random.choice(good))
        for _ in range(random.choice((1, 1, 2, 8))):
            frame[random.randrange(len(frame))] = random.randrange(256)
        if random.random() < 0.2:
            del frame[random.randrange(len(frame)) :]
        way = number % 8
        if way == 7:
            node.machine.send(bytes(frame), medium.now)
        elif way == 6:
            private = bytearray(packPrivateData(0x77, 65524))
            private[random.randrange(8)] = random.randrange(256)
            gid = GID + 2 + random.randrange(2 * limits.IPOIB_CONNECTIONS)
            handle = f"in {number}"
            if node.machine.connectionRequested(handle, gid, bytes(private), medium.now) is not None:
                node.machine.connectedReceived(handle, frame, 0, len(frame), medium.now)
        else:
            node.machine.datagramReceived(GID + 2, bytes(frame), 0, len(frame), medium.now)
        medium.advance(random.choice((0.0, 0.0, 0.01)))
        node.delivered.clear()
        node.calls.clear()
    return node
