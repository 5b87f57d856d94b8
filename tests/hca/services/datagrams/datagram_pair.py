"""
HCAs with datagram queue pairs, joined by media in memory: for tests.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from twisted.internet.task import Clock

from tests.hca.queues.keyed_pair import Consumer, MemoryPath, Side, climb
from twisted_ib import limits
from twisted_ib.errors import NoListenerError
from twisted_ib.hca.base.partition import PartitionTable
from twisted_ib.hca.base.port import Port
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.base.traits import LOCAL
from twisted_ib.hca.fabric.base.neighbours import PeerIdentity
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.memory.memory import Memory
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.queues.receives import SharedReceiveQueue
from twisted_ib.hca.queues.requests import Capabilities, Destination, SendOpcode
from twisted_ib.hca.services.address import AddressHandle, AddressPaths, AddressVector
from twisted_ib.hca.services.datagramform import FORMS
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.hca.wire.grh import guidGID

KEY = 0x11111111
GROUP = 0xFF12 << 112 | 0xABCD


class DatagramPath(MemoryPath):
    """
    One end of a medium that takes datagrams to the HCA.
    """

    def unknown(self, word: int, buffer: Any, start: int, stop: int) -> int:
        self.fabric.datagramReceived(self, word >> 24, word & 0xFFFFFF, buffer, start, stop)
        return 0


class HCA:
    """
    As much of a device as datagrams need; its own fabric.

    @ivar paths: the ways that it finds, by GID.
    @ivar attached: the queue pairs of a group.
    """

    def __init__(self, guid: int) -> None:
        """
        It knows no peer.
        """
        self.guid = guid
        self.gid = guidGID(guid)
        self.pathMTU = limits.DATAGRAM_BYTES
        self.counters: Counter[str] = Counter()
        self.partitions = PartitionTable()
        self.traits = LOCAL
        self.datagramForm = FORMS[LOCAL.linkLayer]
        self.port = Port(gids=(self.gid,), partitions=self.partitions)
        self.addressPaths = AddressPaths(self)
        self.queuePairs: dict[int, QueuePair] = {}
        self.paths: dict[int, Any] = {}
        self.attached: dict[int, list[QueuePair]] = {}

    def count(self, name: str) -> None:
        self.counters[name] += 1

    def stepDatagrams(self, number: int, state: object, attributes: object) -> None:
        """
        No effect: it is no adapter.
        """

    def hasGID(self, gid: int) -> bool:
        """
        Whether an address is one of this HCA.
        """
        return gid == guidGID(self.guid)

    def reach(self, gid: int, user: Any) -> None:
        """
        Find the path to an address.
        """
        if gid not in self.paths:
            raise NoListenerError("nobody is there")
        user.pathReady(self.paths[gid])

    def queuePairClosed(self, queuePair: QueuePair) -> None:
        """
        A queue pair was destroyed.
        """
        del self.queuePairs[queuePair.number]

    def datagramReceived(
        self, path: Any, opcode: int, number: int, buffer: Any, start: int, stop: int
    ) -> None:
        """
        Give a datagram to those that it is for.
        """
        gid = int.from_bytes(buffer[start + 24 : start + 40], "big")
        if gid >> 120 == 0xFF:
            found = self.attached.get(gid, [])
        else:
            found = [self.queuePairs[number]] if number in self.queuePairs else []
        for queuePair in found:
            queuePair.work.responder.received(path, opcode, buffer, start, stop)


class DatagramSide(Side):
    """
    A datagram queue pair of an HCA.

    @ivar hca: the HCA.
    """

    path = None

    def __init__(self, hca: HCA, number: int, clock: Clock, depth: int = 512) -> None:
        """
        In RESET.
        """
        self.hca = hca
        self.memory = Memory(random.Random(number).getrandbits)
        self.pd = self.memory.allocateDomain()
        self.timers = Timers(clock.seconds)
        self.consumer = Consumer()
        self.qp = hca.queuePairs[number] = QueuePair(number, self.consumer, hca, QPType.UD)
        self.equip(depth)

    def share(self, depth: int = 16, pd: ProtectionDomain | None = None) -> SharedReceiveQueue:
        """
        Make the queue pair anew, with a shared receive queue, and bring it to RTS.

        @param pd: the domain of the shared receive queue, if it is another.
        """
        self.qp.close()
        shared = SharedReceiveQueue(pd or self.pd, depth, 4)
        number = self.qp.number
        self.qp = self.hca.queuePairs[number] = QueuePair(number, self.consumer, self.hca, QPType.UD)
        self.work = WorkQueues(
            self.qp, self.pd, self.sends, self.receives, self.timers, Capabilities(), shared
        )
        self.to(QPState.RTS)
        return shared

    def to(self, state: QPState, peer: int = 0, access: int = 0, **changes: int) -> None:
        """
        Climb from RESET to a state; UD has no peer.
        """
        steps: list[tuple[QPState, dict[str, Any]]] = [
            (QPState.INIT, {"pkey_index": 0, "port_num": 1, "qkey": KEY}),
            (QPState.RTR, {}),
            (QPState.RTS, {"sq_psn": 0}),
            (QPState.SQD, {}),
        ]
        climb(self.qp, state, steps, changes)

    def handle(self, gid: int, **fields: int) -> AddressHandle:
        """
        A handle of an address.
        """
        return AddressHandle(self.pd, AddressVector(gid, **fields), self.hca)

    def datagram(
        self,
        id: int,
        to: Any,
        *pieces: Any,
        opcode: SendOpcode = SendOpcode.SEND,
        number: int | None = None,
        key: int = KEY,
        **fields: Any,
    ) -> None:
        """
        Send a datagram.

        @param to: another side, or an address handle.
        """
        if isinstance(to, DatagramSide):
            number = to.qp.number if number is None else number
            to = self.handle(guidGID(to.hca.guid), flowLabel=0x12345, trafficClass=0xA5, hopLimit=63)
        destination = Destination(to, 0xFFFFFF if number is None else number, key)
        self.send(id, opcode, *pieces, destination=destination, **fields)


class DatagramPair:
    """
    Two HCAs, each with a datagram queue pair.

    @ivar a: one, queue pair 17 of the HCA with GUID 0xA1.
    @ivar b: the other, queue pair 18 of the HCA with GUID 0xB1.
    """

    def __init__(self, capacity: int = 1 << 18, state: QPState = QPState.RTS, depth: int = 512) -> None:
        """
        @param state: of both.
        @param depth: of the completion queues.
        """
        clock = Clock()
        one, other = HCA(0xA1), HCA(0xB1)
        self.ends = DatagramPath(one, capacity), DatagramPath(other, capacity)
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]
        for hca, peer, path in ((one, other, self.ends[0]), (other, one, self.ends[1])):
            path.peer = PeerIdentity(peer.guid, 1, 1, "test")
            hca.paths[guidGID(peer.guid)] = path
        self.a, self.b = DatagramSide(one, 17, clock, depth), DatagramSide(other, 18, clock, depth)
        self.a.to(state)
        self.b.to(state)

    def flow(self) -> None:
        """
        Make progress until nothing moves.
        """
        while self.ends[0].progress() + self.ends[1].progress():
            pass
