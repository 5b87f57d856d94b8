"""
Two queue pairs with work queues, joined by a medium in memory: for tests.

The medium is a L{RecordPath} whose records lie in a list; it has a capacity, and knobs to hold
records back.  Refusals, resuming and acknowledging are the same as on rings.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from twisted.internet.task import Clock

from twisted_ib.errors import PathLostError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.fabric.base.path import RecordPath
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.memory.memory import Memory, MemoryRegion
from twisted_ib.hca.queues.completion import CompletionQueue, WCStatus, WorkCompletion
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.queues.receives import SGE, ReceiveRequest, SharedReceiveQueue
from twisted_ib.hca.queues.requests import Capabilities, SendFlags, SendOpcode, SendRequest
from twisted_ib.hca.services.work import WorkQueues

ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC | Access.MW_BIND

#: The attributes for RTR and for RTS, besides the path and the peer's number.
RTR = {"path_mtu": 5, "rq_psn": 0, "max_dest_rd_atomic": 4, "min_rnr_timer": 12}
RTS = {"sq_psn": 0, "timeout": 14, "retry_cnt": 3, "rnr_retry": 7, "max_rd_atomic": 4}


def climb(
    queuePair: QueuePair,
    state: QPState,
    steps: list[tuple[QPState, dict[str, Any]]],
    changes: Mapping[str, int] | None = None,
) -> None:
    """
    Climb from RESET to a state.

    @param steps: the states above, with the attributes of each.
    @param changes: attributes that are others.
    """
    if state == QPState.RESET:
        return
    if state == QPState.ERR:
        queuePair.modify(QPState.ERR)
        return
    others = changes or {}
    for step, attributes in steps:
        queuePair.modify(step, **{name: others.get(name, attributes[name]) for name in attributes})
        if step == state:
            return


class MemoryPath(RecordPath):
    """
    One end of the medium.

    @ivar other: the other end.
    @ivar records: what this end published and the other has not taken: position after
        it, word, bytes.
    @ivar capacity: bytes that may lie in C{records}.
    @ivar copied: bytes that were copied into the medium.
    @ivar offers: segments that this end offered, by number.
    @ivar offering: whether it offers any.
    """

    other: MemoryPath

    def __init__(self, fabric: Any, capacity: int) -> None:
        """
        An empty end.
        """
        super().__init__(fabric, None)
        self.records: deque[tuple[int, int, bytes]] = deque()
        self.capacity = capacity
        self.tail = self.taken = self.used = self.copied = 0
        self.offers: dict[int, Any] = {}
        self.offering = False
        self._ackHead = self._ackTail = 0

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        pieces = payload if isinstance(payload, list) else [payload]
        data = header + b"".join(pieces)
        assert len(data) == len(header) + length
        size = len(data) + 8
        if self.used + size > self.capacity:
            return False
        self.tail += size
        self.used += size
        self.copied += length
        self.records.append((self.tail, word, data))
        return True

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        """
        See L{RecordPath.postReserved}; the reserve has no end.
        """
        capacity, self.capacity = self.capacity, 1 << 60
        try:
            return self.post(word, b"", body, len(body))
        finally:
            self.capacity = capacity

    def position(self) -> int:
        return self.tail

    def offer(self, segment: Any) -> int:
        if not self.offering:
            return 0
        for number, known in self.offers.items():
            if known is segment:
                return number
        self.offers[len(self.offers) + 1] = segment
        return len(self.offers)

    def offered(self, number: int) -> memoryview | None:
        segment = self.other.offers.get(number)
        return None if segment is None else memoryview(segment).toreadonly()

    def progress(self, budget: int = 64) -> int:
        """
        Take what the other end published, complete what it took.
        """
        n, records = 0, self.other.records
        while records and n < budget:
            end, word, data = records.popleft()
            self.other.used -= len(data) + 8
            # Something before and behind, so that a wrong bound shows.
            buffer = b"\xee" * 5 + data + b"\xee" * 7
            entry = self.table.get(word & 0xFFFFFF)
            if entry is not None:
                syndrome = entry.delivered(word >> 24, buffer, 5, 5 + len(data))
            else:
                syndrome = self.unknown(word, buffer, 5, 5 + len(data))
            if syndrome:
                assert self.refuse(word, syndrome, end)
            self.taken = end
            n += 1
        self._acknowledge()
        if self.waiting and self.used <= self.capacity // 2:
            self.resumeWaiting()
        return n

    def _acknowledge(self) -> None:
        """
        The rule of rings: up to a head, once what was there after it is taken.
        """
        if self.taken >= self._ackTail:
            head = self._ackHead
            while self.unacknowledged and self.unacknowledged[0][0] <= head:
                position, requester = self.unacknowledged.popleft()
                requester.acknowledged(position)
        self._ackHead, self._ackTail = self.other.taken, self.other.tail


class Fabric:
    """
    Counts what a path has to count.
    """

    def __init__(self) -> None:
        """
        Nothing is counted yet.
        """
        self.counters: Counter[str] = Counter()

    def count(self, name: str) -> None:
        self.counters[name] += 1


class Consumer:
    """
    Remembers why its queue pair failed, and what came to it.

    @ivar got: messages, each with its immediate or L{None}; for a WRITE its length.
    @ivar resumed: how often it was told to go on.
    """

    def __init__(self) -> None:
        """
        It has not failed.
        """
        self.failures: list[Exception] = []
        self.got: list[tuple[bytes | int, int | None]] = []
        self.resumed = 0

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        A message came.
        """
        self.got.append((bytes(buffer[start:stop]), None))

    def immediateReceived(self, immediate: int, buffer: Any, start: int, stop: int) -> None:
        """
        A message with an immediate came.
        """
        self.got.append((bytes(buffer[start:stop]), immediate))

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        """
        The peer wrote to memory.
        """
        self.got.append((length, immediate))

    def resume(self) -> None:
        """
        The event that was waited for has come.
        """
        self.resumed += 1

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in ERR.
        """
        self.failures.append(reason)

    def forked(self) -> None:
        """
        A child of this process has nothing of it.
        """


class Side:
    """
    One side of a connection: a queue pair with its queues and memory.

    @ivar qp: the queue pair.
    @ivar work: its work queues.
    @ivar path: its way to the other side.
    @ivar events: the asynchronous events of the queue pair.
    """

    path: Any
    memory: Memory
    pd: ProtectionDomain
    timers: Timers
    qp: QueuePair
    work: WorkQueues
    consumer: Consumer
    sends: CompletionQueue
    receives: CompletionQueue
    shared: SharedReceiveQueue | None

    def equip(self, depth: int, shared: int = 0, signalAll: bool = False) -> None:
        """
        Give the queue pair its work queues.

        @param shared: the depth of its shared receive queue, if it shall have one.
        """
        self.sends, self.receives = CompletionQueue(depth), CompletionQueue(depth)
        sizes = Capabilities(sends=128, receives=128, pieces=4, receivePieces=4)
        self.shared = SharedReceiveQueue(self.pd, shared, 4) if shared else None
        self.work = WorkQueues(
            self.qp, self.pd, self.sends, self.receives, self.timers, sizes, self.shared, signalAll
        )
        self.events: list[EventType] = []
        self.qp.onEvent = lambda kind, element: self.events.append(kind)

    def to(self, state: QPState, peer: int, access: int = int(ALL), **changes: int) -> None:
        """
        Climb from RESET to a state.

        @param changes: attributes other than L{RTR} and L{RTS} have them.
        """
        path: Any = self.path
        steps: list[tuple[QPState, dict[str, Any]]] = [
            (QPState.INIT, {"pkey_index": 0, "port_num": 1, "qp_access_flags": access}),
            (QPState.RTR, {"ah_attr": path, "dest_qp_num": peer, **RTR}),
            (QPState.RTS, dict(RTS)),
            (QPState.SQD, {}),
        ]
        climb(self.qp, state, steps, changes)

    def register(self, size: int | bytes, access: int = int(ALL), segment: bool = False) -> MemoryRegion:
        """
        Register new memory.
        """
        buffer = bytearray(size)
        return self.memory.register(buffer, access, self.pd, segment=buffer if segment else None)

    def statuses(self) -> list[tuple[int, WCStatus]]:
        """
        Take the completions of sends: number and status.
        """
        return [(c.workRequestID, c.status) for c in self.sends.poll(1 << 20)]

    def received(self) -> list[WorkCompletion]:
        """
        Take the completions of receives.
        """
        return self.receives.poll(1 << 20)

    def receive(self, id: int, *pieces: SGE) -> None:
        """
        Post a receive.
        """
        if self.shared is not None:
            self.shared.post(ReceiveRequest(id, pieces))
        else:
            self.work.postReceive(ReceiveRequest(id, pieces))

    def send(self, id: int, opcode: SendOpcode, *pieces: SGE, **fields: Any) -> None:
        """
        Post a send.
        """
        fields.setdefault("flags", int(SendFlags.SIGNALED))
        self.work.postSend(SendRequest(id, opcode, pieces, **fields))


class End(Side):
    """
    One side on a medium in memory.
    """

    def __init__(
        self,
        number: int,
        clock: Clock,
        capacity: int,
        seed: int,
        depth: int = 512,
        shared: int = 0,
        signalAll: bool = False,
    ) -> None:
        """
        In RESET.
        """
        self.path = MemoryPath(Fabric(), capacity)
        self.memory = Memory(random.Random(seed).getrandbits)
        self.pd = self.memory.allocateDomain()
        self.timers = Timers(clock.seconds)
        self.consumer = Consumer()
        self.qp = QueuePair(number, self.consumer)
        self.equip(depth, shared, signalAll)


class DeviceSide(Side):
    """
    One side on a device.

    @ivar device: the device.
    """

    def __init__(self, device: Any, path: Any, depth: int = 512) -> None:
        """
        In RESET.
        """
        self.device, self.path = device, path
        self.memory, self.timers = device.memory, device.timers
        self.pd = self.memory.allocateDomain()
        self.consumer = Consumer()
        self.qp = device.createQueuePair(self.consumer, pd=self.pd)
        self.equip(depth)

    def allocate(self, size: int | bytes, access: int = int(ALL)) -> MemoryRegion:
        """
        Register new memory that the peer may be able to map.
        """
        data = bytes(size)
        region: MemoryRegion = self.device.allocateMemory(len(data), access, self.pd)
        region.view[:] = data
        return region


class Pair:
    """
    Two ends, connected unless told otherwise.

    @ivar a: one end, queue pair 17.
    @ivar b: the other, queue pair 18.
    @ivar clock: their time.
    """

    def __init__(
        self,
        capacity: int = 1 << 18,
        connect: bool = True,
        depth: int = 512,
        shared: int = 0,
        signalAll: bool = False,
        **changes: int,
    ) -> None:
        """
        @param shared: of the end C{b}: see L{Side.equip}.
        @param signalAll: of the end C{a}.
        @param changes: see L{End.to}.
        """
        self.clock = Clock()
        self.a = End(17, self.clock, capacity, 1, depth, 0, signalAll)
        self.b = End(18, self.clock, capacity, 2, depth, shared)
        self.a.path.other, self.b.path.other = self.b.path, self.a.path
        if connect:
            self.a.to(QPState.RTS, 18, **changes)
            self.b.to(QPState.RTS, 17, **changes)

    def turn(self) -> int:
        """
        Each end makes progress once.
        """
        return self.a.path.progress() + self.b.path.progress()

    def flow(self) -> None:
        """
        Make progress until nothing moves, without time passing.
        """
        quiet = 0
        for _ in range(100000):
            quiet = 0 if self.turn() else quiet + 1
            if quiet > 4:
                return
        raise AssertionError("the pair does not come to rest")

    def pass_(self, seconds: float) -> None:
        """
        Let time pass, and make progress.
        """
        self.clock.advance(seconds)
        self.a.timers.tick(self.clock.seconds())
        self.b.timers.tick(self.clock.seconds())
        self.flow()

    def settle(self, most: int = 200) -> None:
        """
        Make progress and let timers run until none is left.
        """
        self.flow()
        for _ in range(most):
            due = [t for t in (self.a.timers.deadline(), self.b.timers.deadline()) if t is not None]
            if not due:
                return
            self.pass_(max(0.0, min(due) - self.clock.seconds()))
        raise AssertionError("timers never end")

    def die(self, end: End) -> None:
        """
        An end's process dies; the other receives what was published and is notified.
        """
        other = self.b if end is self.a else self.a
        while other.path.progress():
            pass
        other.path.progress()
        other.path.lost(PathLostError("the peer's process died"))


def piece(region: MemoryRegion, offset: int = 0, length: int | None = None) -> SGE:
    """
    A piece of a region: by default all from C{offset} on.
    """
    if length is None:
        length = region.length - offset
    return SGE(region.address + offset, length, region.localKey)
