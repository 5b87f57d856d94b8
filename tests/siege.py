"""
A process that writes random and mutated records to queue pairs of all services and to the
connection manager: for tests.

Everything depends on a seed.  L{SiegeTestCase.siege} says what must hold.
"""

from __future__ import annotations

import random
from collections import Counter
from struct import pack
from typing import Any

from tests.hcas import SDP, HCATestCase, settle, turn
from tests.hostile import ALL, KEY, Target, datagram, guidGID
from tests.keyed_pair import piece
from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.core.completion import WCStatus
from twisted_ib.hca.core.memory import Access, MemoryRegion, MemoryWindow, WindowType
from twisted_ib.hca.core.requests import ReceiveRequest, SendOpcode
from twisted_ib.hca.core.states import QPState, QPType
from twisted_ib.hca.fabric.shm import SharedMemoryFabric
from twisted_ib.hca.fabric.transfer import sendWithDescriptors
from twisted_ib.hca.operation import ABSENT, ACKNOWLEDGE, GSI_QPN, LATER, REFERENCE, REFUSAL, RESPONSES, UD_SEND_ONLY
from twisted_ib.hca.wire import cm
from twisted_ib.hca.wire.cm import SIDRStatus
from twisted_ib.hca.wire.headers import ATOMIC, IMMEDIATE, RETH
from twisted_ib.hca.wire.headers import REFERENCE as REFERENCE_BYTES

GROUP = 0xFF12 << 112 | 0xABCD
SIZE, GUARD = 40000, 64
_MESSAGES: tuple[Any, ...] = (
    *(cm.REQ, cm.REP, cm.RTU, cm.REJ, cm.MRA, cm.DREQ, cm.DREP, cm.LAP, cm.SIDR_REQ, cm.SIDR_REP),
)
_SYNDROMES = (0, 0x20, 0x2C, 0x3F, ABSENT, LATER, 0x60, 0x61, 0x62, 0x63, 0x7F, 0xFF)
_SENDS = (
    *(SendOpcode.SEND, SendOpcode.SEND_WITH_IMM, SendOpcode.SEND_WITH_INV, SendOpcode.RDMA_WRITE),
    *(SendOpcode.RDMA_READ, SendOpcode.RDMA_READ, SendOpcode.ATOMIC_CMP_AND_SWP),
    *(SendOpcode.ATOMIC_FETCH_AND_ADD, SendOpcode.RDMA_WRITE_WITH_IMM),
)
_ASKS = (SendOpcode.RDMA_READ, SendOpcode.ATOMIC_CMP_AND_SWP, SendOpcode.ATOMIC_FETCH_AND_ADD)
_CODES = (*range(0x18), *range(0x18), *range(0x20, 0x2C), 0x64, 0x65)


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
        self.memory = bytearray(b"\xaa" * (SIZE + 2 * GUARD))
        self.region = self.register(self.memory, ALL)
        self.secret = bytearray(b"\x55" * 256)
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
        @return: a window of type 2 on a part of what is open.
        """
        memory = target.memory
        window: MemoryWindow = memory.allocateWindow(target.pd, WindowType.TYPE_2)
        access = int(Access.REMOTE_READ | Access.REMOTE_WRITE)
        memory.bind(window, self.region, self.region.address + 8, 100, access, window.key ^ 1, target.qp)
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
                target.work.postReceive(ReceiveRequest(1, (piece(region, 0, length),)))
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
        What must hold of it.
        """
        test, target = self.siege, self.target
        for id, status in target.statuses():
            test.assertIn(id, self.posted, "completed twice")
            self.posted.remove(id)
            test.statuses[status] += 1
        for completion in target.received():
            test.statuses[completion.status] += 1
        test.assertEqual((self.memory[:GUARD], self.memory[-GUARD:]), (b"\xaa" * GUARD,) * 2)
        test.assertEqual(self.secret, b"\x55" * 256)
        target.consumer.got.clear()
        if target.qp.state == QPState.ERR:
            test.assertEqual(self.posted, set())
            target.qp.close()
            target.memory.deallocateWindow(self.window)
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


class Sink:
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
        if opcode in RESPONSES:
            return 0
        if dice.random() < siege.wild / 2:
            return dice.choice(_SYNDROMES)
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

    def fail(self, reason: Exception) -> None:
        """
        The path is gone.
        """


class SiegeTestCase(HCATestCase):
    """
    An HCA with a neighbour that it talks to, and a liar.

    @ivar next: the number of the latest send request.
    @ivar statuses: how requests ended.
    @ivar wild: how much of what the liar writes is arbitrary: the less, the longer its
        connections last.
    @ivar recalls: how often the liar had to call again.
    """

    fabric = SharedMemoryFabric

    def begin(self, seed: int) -> None:
        """
        Make everything.
        """
        self.dice = random.Random(seed)
        self.wild = self.dice.choice((0.02, 0.05, 0.1, 0.5))
        self.next = self.recalls = 0
        self.statuses: Counter[WCStatus] = Counter()
        self.device_, self.neighbour = self.device(), self.device()
        self.device_.listen(SDP, "127.0.0.1", 7001, Listener(self.dice, self.clock))
        path = self.pathTo(self.neighbour, self.device_)
        self.here = Target(self.device_, QPType.RC, self.device_.fabric.paths()[-1], 99)
        self.there = Target(self.neighbour, QPType.RC, path, self.here.qp.number)
        self.here.qp.modify(QPState.ERR)
        self.here.qp.modify(QPState.RESET)
        self.here.to(QPState.RTS, self.there.qp.number)
        self.mine, self.yours = self.here.register(100), self.there.register(100)
        self.besieged: list[Besieged] = []
        self.sinks: dict[int, Sink] = {}
        self.call()
        for kind, mixed in (
            (QPType.RC, False),
            (QPType.RC, False),
            (QPType.RC, True),
            (QPType.UC, False),
            (QPType.UC, True),
            (QPType.UD, False),
        ):
            self.besieged.append(Besieged(self, kind, 0x1000 + len(self.besieged), mixed))
        for each in self.besieged:
            self.sinks[each.number] = Sink(self, self.path, each.number, each.target.qp.number)

    def call(self) -> None:
        """
        The liar calls.
        """
        self.liar = self.device()
        self.path = self.pathTo(self.liar, self.device_)
        self.other = self.device_.fabric.paths()[-1]
        for each in self.besieged:
            each.target.qp.modify(QPState.ERR)
            each.check()
            self.sinks[each.number] = Sink(self, self.path, each.number, each.target.qp.number)

    # -- what the liar writes

    def number(self) -> int:
        """
        Whom for.
        """
        if self.dice.random() < 0.05:
            return self.dice.choice((0, 1, 2, 0xFFFFFF, self.here.qp.number, self.dice.getrandbits(24)))
        number: int = self.dice.choice(self.besieged).target.qp.number
        return number

    def position(self) -> int:
        """
        A position of what the device has published, or another.
        """
        tail = self.other.position()
        near = max(0, tail - self.dice.randrange(1, 4000) // 64 * 64)
        return self.dice.choice((0, tail, near, near, tail + 64, 1, self.dice.getrandbits(64)))

    def name(self) -> tuple[int, int, int]:
        """
        Address, key and length of memory, granted or not.
        """
        dice, each = self.dice, self.dice.choice(self.besieged)
        if dice.random() > 2 * self.wild:
            return each.region.address, each.region.remoteKey, dice.choice((0, 8, 100, 1000, 20000))
        region = dice.choice((each.region, each.region, each.closed, self.mine))
        key = dice.choice((region.remoteKey, region.remoteKey, each.window.key, dice.getrandbits(32)))
        address = region.address + dice.choice((0, 0, 8, 8, 1, -1, SIZE - 8, SIZE, dice.getrandbits(63)))
        length = dice.choice((0, 1, 8, 100, 100, 1000, SIZE, 1 << 31, (1 << 32) - 1, dice.getrandbits(32)))
        return address & (1 << 64) - 1, key, length

    def record(self) -> tuple[int, int, bytes]:
        """
        @return: code, number, bytes.
        """
        dice = self.dice
        kind = dice.random()
        if kind < 0.1:
            return UD_SEND_ONLY, GSI_QPN, self.management()
        if kind < 0.25:
            code = UD_SEND_ONLY | dice.choice((0, 0, 1, 0x80))
            return code, self.number(), self.mutated(self.datagram(), self.wild)
        if kind < 0.25 + self.wild / 2:
            number = dice.choice((0, self.number()))
            about = dice.choice(self.besieged).number
            refusal = REFUSAL.pack(dice.choice(_SYNDROMES), about, self.position())
            return ACKNOWLEDGE, number, self.mutated(refusal, 0.1)
        if dice.random() > 2 * self.wild:
            return self.fitting()
        address, key, length = self.name()
        code = dice.choice(_CODES)
        payload = bytes(dice.choice((0, 1, 8, 100, 1000, min(length, 65000), 65000)))
        if dice.random() < 0.15:
            code |= REFERENCE
            payload = REFERENCE_BYTES.pack(dice.randrange(4), length, dice.choice((0, 1, address)))
        if dice.random() < 0.1:
            code |= 0x80
        return code, self.number(), self.mutated(self.headed(code, address, key, length, payload), 0.1)

    def headed(self, code: int, address: int, key: int, length: int, payload: bytes) -> bytes:
        """
        Put before a payload what a code wants there.
        """
        dice, plain = self.dice, code & 0x1F
        body = b""
        if plain in (0x06, 0x0A, 0x0B, 0x0C):
            body = RETH.pack(address, key, length)
        if plain in (0x13, 0x14):
            body = ATOMIC.pack(address, key, dice.getrandbits(64), dice.getrandbits(64))
        if plain in (0x03, 0x05, 0x09, 0x0B):
            body += IMMEDIATE.pack(dice.getrandbits(32))
        if plain in (0x16, 0x17):
            body = pack(">I", dice.choice((key, *[each.window.key for each in self.besieged])))
        if plain in (0x0C, 0x13, 0x14, 0x15):
            return body
        return body + (payload[:8] if plain == 0x12 else payload)

    def fitting(self) -> tuple[int, int, bytes]:
        """
        @return: a record that its queue pair may expect, if what came before it was alike.
        """
        dice, each = self.dice, self.dice.choice(self.besieged)
        if each.kind == QPType.UD:
            return UD_SEND_ONLY, each.target.qp.number, self.datagram()
        begun = each.begun
        each.begun = None
        address, key = each.region.address, dice.choice((each.region.remoteKey, each.window.key))
        size = dice.choice((0, 8, 90, 90, 1000, 30000))
        if key == each.window.key:
            address, size = address + 8, min(size, 100)
        if begun is not None:
            code, left = begun
            size = dice.choice((left, left // 2 or left))
            if size < left:
                each.begun = code, left - size
            code += (size == left) + (size == left and dice.random() < 0.3)
        else:
            codes = [0x00, 0x04, 0x05, 0x06, 0x0A, 0x0B]
            if each.kind == QPType.RC:
                codes += [0x0C, 0x0C, 0x13, 0x14, 0x17]
            code = dice.choice(codes)
            if code in (0x00, 0x06):
                each.begun = code + 1, 500
        whole = size + 500 if code in (0x00, 0x06) else size
        if code == 0x06 and key == each.window.key:
            size, whole = 40, 540
        if code in (0x13, 0x14):
            address += 8 - address % 8
        data = self.headed(code, address, key, whole, bytes(size) or (b"" if code > 3 else b"x"))
        return code | (0x20 if each.kind == QPType.UC else 0), each.target.qp.number, data

    def mutated(self, data: bytes, chance: float = 0.3) -> bytes:
        """
        Perhaps cut, prolong or change a record.
        """
        dice = self.dice
        if dice.random() > chance:
            return data
        found = bytearray(data)
        kind = dice.randrange(3)
        if kind == 0:
            del found[dice.randrange(len(found) + 1) :]
        elif kind == 1:
            found += dice.randbytes(dice.randrange(1, 60))
        else:
            for _ in range(dice.randrange(1, 4)):
                if found:
                    found[dice.randrange(min(len(found), 80))] = dice.randrange(256)
        return bytes(found[: limits.INLINE_RECORD])

    def datagram(self) -> bytes:
        """
        A datagram, more or less.
        """
        dice = self.dice
        source = dice.choice((self.liar.guid, self.liar.guid, self.neighbour.guid))
        own = guidGID(self.device_.guid)
        destination = dice.choice((own, own, GROUP, GROUP + 1, dice.getrandbits(128)))
        payload = bytes(dice.choice((0, 1, 59, 100, 4096, 4097)))
        return datagram(guidGID(source), destination, payload, dice.choice((KEY, KEY, KEY, 1)))

    def management(self) -> bytes:
        """
        A message of the connection manager, more or less.
        """
        dice = self.dice
        message = dice.choice(_MESSAGES)()
        for field in ("localCommunicationID", "requestID", "localCAGUID"):
            if hasattr(message, field):
                setattr(message, field, dice.randrange(1, 5))
        if hasattr(message, "remoteCommunicationID"):
            message.remoteCommunicationID = dice.choice((1, *self.device_.cm._connections))
        if hasattr(message, "localQPN"):
            message.localQPN = self.number()
        if hasattr(message, "serviceID"):
            message.serviceID = SDP << 16 | dice.choice((7001, 7001, 7002))
        body = bytearray(message.pack())
        if isinstance(message, cm.REQ | cm.SIDR_REQ):
            offset = len(body) - (92 if isinstance(message, cm.REQ) else 216)
            body[offset + 17] = 0x40
            body[offset + 60 : offset + 64] = b"\x7f\0\0\1"
        return self.mutated(pack(">HH", message.attribute, 0) + bytes(body), 2 * self.wild)

    def offer(self) -> None:
        """
        Offer memory, or something else, beside the rings.
        """
        dice = self.dice
        kind = dice.random()
        if kind < 0.7:
            self.path.offer(self.liar.fabric.allocate(4096))
        elif kind < 0.95:
            sendWithDescriptors(self.path.pairing.socket, pack(">B3xIQ", 2, dice.randrange(4), 0))
        else:
            sendWithDescriptors(self.path.pairing.socket, dice.randbytes(16))

    # -- the siege

    def siege(self, seed: int, steps: int) -> None:
        """
        Write so many records.  No exception comes out of the device, nothing is touched that
        is not granted, nothing grows without bound, each request completes once, and the
        neighbour is served.
        """
        self.begin(seed)
        dice = self.dice
        for step in range(steps):
            if not self.other.alive:
                self.recalls += 1
                self.call()
            for _ in range(dice.randrange(1, 8)):
                code, number, data = self.record()
                self.path.post(code << 24 | number & 0xFFFFFF, b"", data, len(data))
            if dice.random() < 0.03:
                self.offer()
            self.path.fabric.ringBells()
            for each in self.besieged:
                if dice.random() < 0.5:
                    each.post(dice)
            self.clock.advance(dice.choice((0.0, 0.0001, 0.01, 1.0)))
            self.device_.tick(self.clock.seconds())
            turn(self.device_)
            if dice.random() < 0.8:
                turn(self.liar)
            for each in self.besieged:
                each.check()
            if step % 16 == 0:
                self.hold()
        self.hold()

    def hold(self) -> None:
        """
        What must hold.
        """
        for each in self.besieged:
            each.check()
        device, path = self.device_, self.other
        self.assertLessEqual(len(path.absent), limits.ABSENT_NUMBERS)
        self.assertLessEqual(len(path.unacknowledged), limits.RING // 64)
        self.assertLessEqual(len(path.waiting), 4 * len(self.besieged) + 4)
        self.assertLessEqual(len(device.timers._heap), 1000)
        self.assertLessEqual(device.heldBytes, len(self.besieged) * 70000)
        self.assertLessEqual(len(device.queuePairs), len(self.besieged) + 1)
        self.assertLessEqual(len(device._dirty), len(self.besieged))
        self.assertLessEqual(device.departures.waiting, 0)
        self.assertEqual(bytes(self.mine.view), bytes(100))
        self.there.send(1, SendOpcode.SEND, piece(self.yours))
        self.here.receive(1, piece(self.mine))
        settle(self.device_, self.neighbour)
        self.assertEqual(self.there.statuses(), [(1, WCStatus.SUCCESS)])
        self.assertEqual([completion.status for completion in self.here.received()], [WCStatus.SUCCESS])
