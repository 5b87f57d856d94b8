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

from tests.hca.besieged import GROUP, GUARD, SIZE, SYNDROMES, Besieged, Listener, Sink
from tests.hca.hcas import SDP, HCATestCase, settle, turn
from tests.hca.hostile import KEY, Target, datagram, guidGID
from tests.hca.queues.keyed_cases import bound
from tests.hca.queues.keyed_pair import piece
from twisted_ib import limits
from twisted_ib.hca.base.operation import GSI_QPN, REFERENCE, REFUSAL
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.fabric.base import path as basePath
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host.fdpassing import sendWithDescriptors
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.wire.cm import messages as cm
from twisted_ib.hca.wire.headers import ATOMIC, IMMEDIATE, RETH
from twisted_ib.hca.wire.headers import REFERENCE as REFERENCE_BYTES
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE, UD_SEND_ONLY

_MESSAGES: tuple[Any, ...] = (
    *(cm.REQ, cm.REP, cm.RTU, cm.REJ, cm.MRA, cm.DREQ, cm.DREP, cm.LAP, cm.SIDR_REQ, cm.SIDR_REP),
)
_CODES = (*range(0x18), *range(0x18), *range(0x20, 0x2C), 0x64, 0x65)


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
        self.safe = bound(self.here, self.mine)
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
        Choose a destination.
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
        keys = region.remoteKey, region.remoteKey, each.window.key, self.safe.key, dice.getrandbits(32)
        key = dice.choice(keys)
        address = region.address + dice.choice((0, 0, 8, GUARD, 1, -1, SIZE - 8, SIZE, dice.getrandbits(63)))
        lengths = 0, 1, 8, GUARD, GUARD + 1, 1000, SIZE, 1 << 31, (1 << 32) - 1, dice.getrandbits(32)
        length = dice.choice(lengths)
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
            refusal = REFUSAL.pack(dice.choice(SYNDROMES), about, self.position())
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
            keys = [each.window.key for each in self.besieged]
            body = pack(">I", dice.choice((key, self.safe.key, *keys)))
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
            address, size = each.closed.address + GUARD, min(size, GUARD)
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
            size, whole = 40, 540  # Too much for it.
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
            sendWithDescriptors(self.path.peerSocket.socket, pack(">B3xIQ", 2, dice.randrange(4), 0))
        else:
            sendWithDescriptors(self.path.peerSocket.socket, dice.randbytes(16))

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
        Check the invariants.
        """
        for each in self.besieged:
            each.check()
        device, path = self.device_, self.other
        self.assertLessEqual(len(path.absent), basePath.ABSENT_NUMBERS)
        self.assertLessEqual(len(path.unacknowledged), limits.RING // 64)
        self.assertLessEqual(len(path.waiting), 4 * len(self.besieged) + 4)
        self.assertLessEqual(len(device.timers._heap), 1000)
        self.assertLessEqual(device.receiveBudget.heldBytes, len(self.besieged) * 70000)
        self.assertLessEqual(len(device.queuePairs), len(self.besieged) + 1)
        self.assertLessEqual(len(device._dirty), len(self.besieged))
        self.assertLessEqual(device.addressPaths.waiting, 0)
        self.assertEqual(bytes(self.mine.view), bytes(100))
        self.assertIs(self.safe.region, self.mine)
        self.there.send(1, SendOpcode.SEND, piece(self.yours))
        self.here.receive(1, piece(self.mine))
        settle(self.device_, self.neighbour)
        self.assertEqual(self.there.statuses(), [(1, WCStatus.SUCCESS)])
        self.assertEqual([completion.status for completion in self.here.received()], [WCStatus.SUCCESS])
