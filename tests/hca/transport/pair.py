"""
Two connections of L{twisted_ib.hca.transport} on a wire of their own, in virtual time.

L{End} stands in for a queue pair: it receives messages, answers READs and atomics from a memory, at
once or on request, and records what was done and how often.  L{Pair} moves packets between two of
them; a C{fault} turns each packet into those that arrive.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from attrs import evolve

from twisted_ib.hca.transport.parameters import (
    ACKNOWLEDGE_REQUEST,
    SOLICITED_EVENT,
    ConnectionParameters,
    Packet,
)
from twisted_ib.hca.transport.reliable import ReliableConnection
from twisted_ib.hca.transport.unreliable import UnreliableConnection
from twisted_ib.hca.wire.headers import ATOMIC, ATOMIC_RESULT, NAK_INVALID_REQUEST, RETH, RNR
from twisted_ib.hca.wire.opcodes import (
    ATOMIC_ACKNOWLEDGE,
    ATOMIC_WRITE,
    COMPARE_SWAP,
    FETCH_ADD,
    OPCODES,
    READ_REQUEST,
    Kind,
)

#: A READ's responses by whether they are the first and the last.
ANSWERS = {(True, True): 0x10, (True, False): 0x0D, (False, False): 0x0E, (False, True): 0x0F}
RECORD = 65536
_MEMORY = bytes(i * 7 & 0xFF ^ i >> 8 & 0xFF for i in range(1 << 19))

#: The parameters of both ends, unless a test has its own.
TERMS = ConnectionParameters(
    256, 0xFFFFFE, 0xFFFFFE, retries=7, rnrRetries=7, timeout=0.5, reads=4, peerReads=4
)


class End:
    """
    The queue pair of one end.

    @ivar messages: what has come: kind, bytes, and the extended headers behind the RETH.
    @ivar done: positions that were acknowledged.
    @ivar refusals: positions and syndromes.
    @ivar answers: by position, what a READ or atomic brought.
    @ivar receives: how many messages find a receive; L{None} is all.
    @ivar isHolding: whether answers wait for L{answer}.
    @ivar atomics: how many were executed.
    @ivar syndrome: what every request is answered with, if not 0.
    @ivar refusing: of which kind those requests are; L{None} is all.
    """

    connection: Any

    def __init__(self) -> None:
        """
        Nothing has come.
        """
        self.messages: list[tuple[Kind, bytes, bytes]] = []
        self.done: list[int] = []
        self.refusals: list[tuple[int, int]] = []
        self.answers: dict[int, bytes] = {}
        self.counts: Counter[str] = Counter()
        self.records: list[tuple[int, bytes]] = []
        self.receives: int | None = None
        self.isHolding = False
        self.refusing: Kind | None = None
        self.atomics = self.resumptions = self.syndrome = 0
        self.memory = bytearray(_MEMORY)
        self._open: list[bytes] | None = None
        self._owed: deque[list[Any]] = deque()
        self._asked: deque[tuple[int, int]] = deque()
        self._got = b""

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record came.
        """
        code, data = opcode & 0x5F, bytes(buffer[start:stop])
        self.records.append((opcode, data))
        row = OPCODES.get(code)
        if row is None or row.kind is Kind.FLUSH:
            return NAK_INVALID_REQUEST
        if row.kind in (Kind.READ_RESPONSE, Kind.ATOMIC_ACKNOWLEDGE):
            self._answered(row.kind, code, data)
            return 0
        if self.syndrome and self.refusing in (None, row.kind):
            return self.syndrome
        if row.response is not None:
            self._owed.append([code, data, 0])
            if not self.isHolding:
                self.answer()
            return 0
        if row.takesReceive and self.receives is not None:
            if not self.receives:
                return RNR | 1
            self.receives -= 1
        extra = data[: row.layout.size]
        if row.begins:
            self._open = [extra]
        assert self._open is not None
        self._open.append(data[row.layout.size :])
        if row.ends:
            begin, *parts = self._open
            self.messages.append((row.kind, b"".join(parts), begin if row.begins else begin + extra))
            self._open = None
        return 0

    def continued(self, opcode: int, parts: list[Any], length: int) -> int:
        """
        Middle packets came.
        """
        if opcode == ANSWERS[False, False]:
            self._answered(Kind.READ_RESPONSE, opcode, b"".join(parts))
            return 0
        assert self._open is not None
        self._open += map(bytes, parts)
        return 0

    def answer(self) -> None:
        """
        Answer what is owed, as far as there is room.
        """
        while self._owed:
            code, data, sent = self._owed[0]
            if code == READ_REQUEST:
                address, _, length = RETH.unpack(data)
                count = min(RECORD, length - sent)
                ends = sent + count == length
                body = [memoryview(self.memory)[address + sent : address + sent + count]]
                if not self.connection.post(ANSWERS[not sent, ends], b"", body, count, 0, 0.0):
                    return
                self._owed[0][2] = sent + count
                if not ends:
                    continue
            elif code == ATOMIC_WRITE:
                address, _, _ = RETH.unpack(data[: RETH.size])
                self.memory[address : address + 8] = data[RETH.size :]
                self.atomics += 1
                self.connection.post(ANSWERS[True, True], b"", b"", 0, 0, 0.0)
            else:
                self._atomic(code, data)
            self._owed.popleft()

    def _atomic(self, code: int, data: bytes) -> None:
        """
        Execute an atomic and answer it.
        """
        address, _, operand, compare = ATOMIC.unpack(data)
        old = int.from_bytes(self.memory[address : address + 8], "big")
        new = old + operand if code == FETCH_ADD else operand if old == compare else old
        self.memory[address : address + 8] = (new & (1 << 64) - 1).to_bytes(8, "big")
        self.atomics += 1
        self.connection.post(ATOMIC_ACKNOWLEDGE, b"", ATOMIC_RESULT.pack(old), 8, 0, 0.0)

    def _answered(self, kind: Kind, code: int, data: bytes) -> None:
        """
        A part of an answer came; parts are as the core wants them.
        """
        position, length = self._asked[0]
        if kind is Kind.ATOMIC_ACKNOWLEDGE:
            self.answers[position] = data
            self._asked.popleft()
            return
        end = len(self._got) + len(data)
        assert code == ANSWERS[not self._got, end == length], (code, len(self._got), end, length)
        self._got += data
        if end == length:
            self.answers[position], self._got = self._got, b""
            self._asked.popleft()

    def acknowledged(self, position: int) -> None:
        assert not self.done or position > self.done[-1]
        self.done.append(position)

    def refused(self, position: int, syndrome: int) -> None:
        self.refusals.append((position, syndrome))

    def resumed(self) -> None:
        self.resumptions += 1
        self.answer()

    def count(self, name: str) -> None:
        self.counts[name] += 1

    def read(self, address: int, length: int, position: int) -> bool:
        """
        Post a READ.
        """
        header = RETH.pack(address, 7, length)
        if not self.connection.post(READ_REQUEST, header, b"", 0, position, 0.0):
            return False
        self._asked.append((position, length))
        return True

    def atomic(self, address: int, operand: int, position: int, compare: int | None = None) -> bool:
        """
        Post a fetch-and-add or a compare-and-swap.
        """
        code = FETCH_ADD if compare is None else COMPARE_SWAP
        header = ATOMIC.pack(address, 7, operand, compare or 0)
        if not self.connection.post(code, header, b"", 0, position, 0.0):
            return False
        self._asked.append((position, 8))
        return True

    def atomicWrite(self, address: int, value: bytes, position: int) -> bool:
        """
        Post an ATOMIC WRITE.
        """
        header = RETH.pack(address, 7, 8)
        if not self.connection.post(ATOMIC_WRITE, header, value, 8, position, 0.0):
            return False
        self._asked.append((position, 0))
        return True


#: The packets that arrive for one sent: how much later, and which.
Arrivals = list[tuple[float, Packet]]
#: By sender (0 or 1), how many it has sent before, and the packet.
Fault = Callable[[int, int, Packet], Arrivals]


def clean(sender: int, index: int, packet: Packet) -> Arrivals:
    """
    The packet arrives.
    """
    return [(0.0, packet)]


class Pair:
    """
    Two ends and the wire between them.

    @ivar now: the time in seconds.
    @ivar ends: the users.
    @ivar connections: their connections.
    @ivar sent: what each has sent, and when.
    @ivar delay: one way, in seconds.
    """

    def __init__(
        self,
        parameters: ConnectionParameters = TERMS,
        other: ConnectionParameters | None = None,
        unreliable: bool = False,
    ) -> None:
        """
        Connect two ends.
        """
        kind: Any = UnreliableConnection if unreliable else ReliableConnection
        self.now = 100.0
        self.ends = (End(), End())
        other = other or evolve(parameters, firstPSN=parameters.expectedPSN, expectedPSN=parameters.firstPSN)
        self.connections: tuple[Any, Any] = (
            kind(parameters, 18, self.ends[0]),
            kind(other, 17, self.ends[1]),
        )
        for end, connection in zip(self.ends, self.connections, strict=True):
            end.connection = connection
        self.sent: tuple[list[Packet], list[Packet]] = ([], [])
        self.times: tuple[list[float], list[float]] = ([], [])
        self.delay = 0.0001
        self.fault: Fault = clean
        self._wire: list[tuple[float, int, int, Packet]] = []
        self._order = 0

    def flush(self, side: int, budget: int = 64) -> None:
        """
        Put on the wire what an end has to send.
        """
        connection, sent = self.connections[side], self.sent[side]
        while connection.pending():
            out = connection.outputs(budget, self.now)
            assert len(out) <= budget
            assert out or not connection.pending()  # It may only have called its user.
            for packet in out:
                arrivals = self.fault(side, len(sent), packet)
                sent.append(packet)
                self.times[side].append(self.now)
                for late, what in arrivals:
                    self._order += 1
                    heapq.heappush(self._wire, (self.now + self.delay + late, self._order, 1 - side, what))

    def give(self, side: int, packet: Packet) -> None:
        """
        A packet arrives at an end.
        """
        code, flags, psn, header, body = packet
        data = b"\xee\xee" + header + bytes(body)
        self.connections[side].receive(
            code | flags & SOLICITED_EVENT,
            psn,
            bool(flags & ACKNOWLEDGE_REQUEST),
            data,
            2,
            len(data),
            self.now,
        )

    def step(self) -> bool:
        """
        Go on to the next thing that happens.

        @return: False if nothing will.
        """
        for side in (0, 1):
            self.flush(side)
        times = [at for connection in self.connections if (at := connection.deadline()) is not None]
        if self._wire:
            times.append(self._wire[0][0])
        if not times:
            return False
        self.now = max(self.now, min(times))
        while self._wire and self._wire[0][0] <= self.now:
            _, _, side, packet = heapq.heappop(self._wire)
            self.give(side, packet)
        for connection in self.connections:
            connection.tick(self.now)
        return True

    def run(self, seconds: float = 1000.0, steps: int = 200000) -> None:
        """
        Go on until nothing happens any more.
        """
        until = self.now + seconds
        for _ in range(steps):
            if not self.step() or self.now > until:
                break
        else:
            raise AssertionError("it does not come to rest")
