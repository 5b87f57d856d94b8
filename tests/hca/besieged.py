"""
The objects that L{tests.hca.siege} attacks, and the attacker's at the other end.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.hca.hostile import ALL, Target
from tests.hca.queues.keyed_pair import piece
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.base.operation import ABSENT, LATER, RESPONSES
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.connection import SIDRStatus
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.hca.memory.windows import MemoryWindow, WindowType
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus
from twisted_ib.hca.queues.receives import ReceiveRequest
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.queues.streamqueuepair import RecordReceiver
from twisted_ib.hca.wire.cm import messages as cm
from twisted_ib.hca.wire.headers import RETH

if TYPE_CHECKING:
    from tests.hca.siege import SiegeTestCase

GROUP = 0xFF12 << 112 | 0xABCD
SIZE, GUARD = 40000, 64
#: Bytes that no peer may read or write.
SECRET = b"\xa5"
SYNDROMES = (0, 0x20, 0x2C, 0x3F, ABSENT, LATER, 0x60, 0x61, 0x62, 0x63, 0x7F, 0xFF)
_SENDS = (
    *(SendOpcode.SEND, SendOpcode.SEND_WITH_IMM, SendOpcode.SEND_WITH_INV, SendOpcode.RDMA_WRITE),
    *(SendOpcode.RDMA_READ, SendOpcode.RDMA_READ, SendOpcode.ATOMIC_CMP_AND_SWP),
    *(SendOpcode.ATOMIC_FETCH_AND_ADD, SendOpcode.RDMA_WRITE_WITH_IMM),
)
_ASKS = (SendOpcode.RDMA_READ, SendOpcode.ATOMIC_CMP_AND_SWP, SendOpcode.ATOMIC_FETCH_AND_ADD)


class Besieged:
    """
    One queue pair, and what it has posted.

    @ivar number: what the peer's queue pair is said to be.
    @ivar begun: of a message that the liar has begun: the code that goes on, and bytes left.
    @ivar posted: the numbers of sends that were posted and have not completed.
    """

    def __init__(self, siege: SiegeTestCase, kind: QPType, number: int, mixed: bool) -> None:
        """
        @param mixed: whether its consumer promises to take messages.
        """
        self.siege, self.kind, self.number, self.mixed = siege, kind, number, mixed
        self.posted: set[int] = set()
        self.begun: tuple[int, int] | None = None
        self.target: Any = None
        self.begin()

    def begin(self) -> None:
        """
        Make the queue pair, or make it anew.
        """
        siege = self.siege
        self.target = Target(siege.device_, self.kind, siege.other, self.number)
        if self.mixed:
            self.target.qp.maxMessage = 70000
        self.memory = bytearray(SECRET * GUARD + bytes(SIZE) + SECRET * GUARD)
        self.region = self.register(self.memory, ALL)
        self.secret = bytearray(SECRET * GUARD + bytes(GUARD) + SECRET * GUARD)
        self.closed = self.register(self.secret, int(Access.LOCAL_WRITE) | int(Access.MW_BIND), 0)
        self.window = self.bound(self.target)
        if self.kind == QPType.UD:
            siege.device_.paths.attach(self.target.qp, GROUP)

    def register(self, memory: bytearray, access: int, guard: int = GUARD) -> MemoryRegion:
        """
        Register what is between the guards.
        """
        view = memoryview(memory)[guard : len(memory) - guard]
        found: MemoryRegion = self.target.memory.register(view, access, self.target.pd)
        return found

    def bound(self, target: Any) -> MemoryWindow:
        """
        @return: a window of type 2 on what is open of memory that is closed.
        """
        memory = target.memory
        window: MemoryWindow = memory.allocateWindow(target.pd, WindowType.TYPE_2)
        access = int(Access.REMOTE_READ | Access.REMOTE_WRITE)
        closed = self.closed
        memory.windows.bind(window, closed, closed.address + GUARD, GUARD, access, window.key ^ 1, target.qp)
        return window

    def post(self, dice: random.Random) -> None:
        """
        Post some receives and a send.
        """
        target, region = self.target, self.region
        if self.mixed:
            target.qp.posted = dice.randrange(4)
        for _ in range(dice.randrange(3)):
            length = dice.choice((0, 40, 100, 5000, SIZE))
            try:
                target.work.postReceive(ReceiveRequest(length, (piece(region, 0, length),)))
            except ResourceLimitError:
                pass
        if self.kind == QPType.UD or len(self.posted) > 60:
            return
        self.siege.next += 1
        opcode = dice.choice(_SENDS)
        if self.kind == QPType.UC and (opcode in _ASKS or opcode == SendOpcode.SEND_WITH_INV):
            opcode = SendOpcode.SEND
        length = 8 if opcode in _ASKS[1:] else dice.choice((0, 1, 8, 100, 20000, SIZE))
        self.posted.add(self.siege.next)
        target.send(self.siege.next, opcode, piece(region, 0, length), remoteAddress=dice.choice((0, 8)))

    def check(self) -> None:
        """
        Check its invariants.
        """
        test, target = self.siege, self.target
        for id, status in target.statuses():
            test.assertIn(id, self.posted, "completed twice")
            self.posted.remove(id)
            test.statuses[status] += 1
        for completion in target.received():
            test.statuses[completion.status] += 1
            if completion.status == WCStatus.SUCCESS and completion.opcode == WCOpcode.RECV:
                test.assertLessEqual(completion.byteLength, completion.workRequestID)
        for memory in (self.memory, self.secret):
            test.assertEqual((memory[:GUARD], memory[-GUARD:]), (SECRET * GUARD,) * 2)
        target.consumer.got.clear()
        if target.qp.state == QPState.ERR:
            test.assertEqual(self.posted, set())
            target.qp.close()
            target.memory.windows.deallocate(self.window)
            target.memory.deregister(self.region)
            target.memory.deregister(self.closed)
            target.memory.deallocateDomain(target.pd)
            self.begin()
            self.begun = None
            if test.path.alive:
                test.sinks[self.number] = Sink(test, test.path, self.number, self.target.qp.number)


class Listener:
    """
    Is asked for connections and for queue pairs of datagrams, and does this or that.
    """

    def __init__(self, dice: random.Random, clock: Any) -> None:
        """
        Nobody asks.
        """
        self.dice, self.clock = dice, clock

    def connectionRequested(self, connection: Any, request: Any) -> None:
        """
        A REQ came.
        """
        kind, now = self.dice.randrange(4), self.clock.seconds()
        if kind == 0:
            connection.reject(28, b"", now)
        elif kind == 1:
            connection.ignore(now)
        elif kind == 2:
            connection.accept(cm.REP(), now)

    def lookupRequested(self, lookup: Any, request: Any) -> None:
        """
        A SIDR_REQ came.
        """
        kind, now = self.dice.randrange(4), self.clock.seconds()
        if kind == 0:
            lookup.reject(SIDRStatus.REJECTED, b"", now)
        elif kind == 1:
            lookup.ignore(now)
        elif kind == 2:
            lookup.answer(cm.SIDR_REP(), now)

    def requestWithdrawn(self, connection: Any) -> None:
        """
        Nobody asks any more.
        """


class Sink(RecordReceiver):
    """
    The liar's queue pair: takes what comes, or refuses it.
    """

    def __init__(self, siege: SiegeTestCase, path: Any, number: int, remote: int) -> None:
        """
        Take it from a path.
        """
        self.siege, self.path, self.number, self.remote = siege, path, number, remote
        path.bind(self)

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record came.
        """
        siege, dice = self.siege, self.siege.dice
        siege.assertNotIn(SECRET * 4, buffer[start:stop])
        if opcode in RESPONSES:
            return 0
        if dice.random() < siege.wild / 2:
            return dice.choice(SYNDROMES)
        if opcode == 0x0C:
            self.answer(RETH.unpack_from(buffer, start)[2])
        elif opcode in (0x13, 0x14):
            self.path.post(0x12 << 24 | self.remote, b"", bytes(8), 8)
        return 0

    def answer(self, length: int) -> None:
        """
        Answer a READ, in one piece or in several.
        """
        dice, sent = self.siege.dice, 0
        while sent < length or not length:
            count = min(length - sent, dice.choice((100, 30000, 65000)))
            last = sent + count == length
            code = (0x10 if last else 0x0D) if not sent else (0x0F if last else 0x0E)
            self.path.post(code << 24 | self.remote, b"", bytes(count), count)
            sent += count
            if last:
                return

    def resume(self) -> None:
        """
        There is room.
        """

    def pathLost(self, reason: Exception) -> None:
        """
        The path is gone.
        """
