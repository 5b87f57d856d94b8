"""
Work requests over a fabric: tests to mix into a L{HCATestCase<tests.hca.hcas.HCATestCase>}.

The rules of requester and responder have tests of their own, on a medium in memory; these
show that every fabric keeps what they rely on.
"""

from __future__ import annotations

import random
from sys import byteorder
from typing import Any

from zope.interface import providedBy
from zope.interface.verify import verifyObject

from tests.hca.applicable import Need, hasOperation, needs
from tests.hca.hcas import LISTENER, SDP, User, readable, settle, turn
from tests.hca.queues.keyed_pair import ALL, DeviceSide, piece
from twisted_ib import limits
from twisted_ib.hca.base.interfaces import IPath, IPeerPath
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.fabric.shm import sharedregions
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.hca.memory.windows import WindowType
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import SendOpcode, WindowBind

SEND, SEND_IMM = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM
WRITE, WRITE_IMM = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM
READ = SendOpcode.RDMA_READ
SWAP, ADD = SendOpcode.ATOMIC_CMP_AND_SWP, SendOpcode.ATOMIC_FETCH_AND_ADD
ATOMIC_WRITE = SendOpcode.ATOMIC_WRITE
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR


class WorkRequestContract:
    """
    Two queue pairs with work queues on two devices.

    @ivar one: one side; it sends mostly.
    @ivar two: the other.
    """

    def connect(self: Any, **changes: int) -> None:
        """
        Make C{one} and C{two}, in RTS.
        """
        self.a, self.b, path, other = self.joined()
        self.one, self.two = DeviceSide(self.a, path), DeviceSide(self.b, other)
        self.one.to(QPState.RTS, self.two.qp.number, **changes)
        self.two.to(QPState.RTS, self.one.qp.number, **changes)

    def settled(self: Any) -> None:
        """
        Serve both devices until nothing moves and no timer runs.
        """
        for _ in range(100):
            if not self.settledOnce():
                return
        raise AssertionError("timers never end")

    def remote(self: Any, region: MemoryRegion, offset: int = 0) -> dict[str, int]:
        """
        Fields that name remote memory.
        """
        return {"remoteAddress": region.address + offset, "remoteKey": region.remoteKey}

    def test_interfaces(self: Any) -> None:
        """
        A queue pair's path is an L{IPath}, the one that all queue pairs of the peer share an L{IPeerPath};
        each has all that its interfaces name.
        """
        self.connect()
        for side in (self.one, self.two):
            self.assertIs(side.qp.path.way, side.path)
            for path, interface in ((side.qp.path, IPath), (side.path, IPeerPath)):
                self.assertTrue(interface.providedBy(path))
                for each in providedBy(path):
                    verifyObject(each, path)

    # -- bytes

    def test_everySize(self: Any) -> None:
        """
        WRITE, SEND with immediate and READ of all sizes, from memory of the program and
        from memory that the peer may map.
        """
        self.connect()
        verb = SEND_IMM if hasOperation(self, SEND_IMM) else SEND
        maker = random.Random(1)
        for size in (0, 1, 63, 64, 1000, 16383, 16384, 65535, 65536, 65537, 300000, 3 << 20):
            for new in ("register", "allocate"):
                data = maker.randbytes(size)
                source = getattr(self.one, new)(data)
                target = getattr(self.two, new)(size + 20)
                inbox = getattr(self.two, new)(size)
                back = getattr(self.one, new)(size + 1)
                self.two.receive(5, piece(inbox))
                self.one.send(1, WRITE, piece(source), **self.remote(target, 7))
                self.one.send(2, verb, piece(source), immediate=size)
                self.one.send(3, READ, piece(back, 0, size), **self.remote(target, 7))
                self.settled()
                self.assertEqual(self.one.statuses(), [(1, OK), (2, OK), (3, OK)])
                (received,) = self.two.received()
                self.assertEqual(received.byteLength, size)
                if verb == SEND_IMM:
                    self.assertEqual(received.immediate, size)
                self.assertEqual(bytes(target.view), bytes(7) + data + bytes(13))
                self.assertEqual(bytes(inbox.view), data)
                self.assertEqual(bytes(back.view), data + b"\0")
                for side, region in (
                    (self.a, source), (self.a, back), (self.b, target), (self.b, inbox)
                ):  # fmt: skip
                    side.deregisterMemory(region)
        self.settled()
        self.assertEqual((self.a.inUse()["mr"], self.b.inUse()["mr"]), (0, 0))

    def test_copies(self: Any) -> None:
        """
        Where a peer can map memory, the bytes of 1 MiB do not pass the medium: the one
        copy is that into the target.  Elsewhere they pass it once.
        """
        self.connect()
        size = 1 << 20
        source, back = self.one.allocate(random.Random(2).randbytes(size)), self.one.allocate(size)
        target = self.two.allocate(size)
        shared = source.segment is not None
        for verb, mine, path in ((WRITE, source, self.one.path), (READ, back, self.two.path)):
            before = path.position()
            self.one.send(1, verb, piece(mine), **self.remote(target))
            self.settled()
            moved = path.position() - before
            self.assertEqual(self.one.statuses(), [(1, OK)])
            if shared:
                self.assertLess(moved, 4096)
            elif self.a.fabric.name == "shm":  # Positions of sockets count records.
                self.assertGreaterEqual(moved, size // limits.INLINE_MESSAGE)
        self.assertEqual(bytes(target.view), bytes(source.view))
        self.assertEqual(bytes(back.view), bytes(source.view))

    def test_lists(self: Any) -> None:
        """
        Lists of pieces of both kinds of memory, on both sides.
        """
        self.connect()
        maker = random.Random(3)
        plain, shared = self.one.register(maker.randbytes(100000)), self.one.allocate(maker.randbytes(200000))
        parts = [
            piece(plain, 5, 70000),
            piece(shared, 9, 100000),
            piece(plain, 1, 3),
            piece(shared, 0, 20000),
        ]
        expected = b"".join(
            bytes(region.view[at : at + size])
            for region, at, size in (
                (plain, 5, 70000),
                (shared, 9, 100000),
                (plain, 1, 3),
                (shared, 0, 20000),
            )
        )
        to, too = self.two.register(90000), self.two.allocate(150000)
        self.two.receive(1, piece(to), piece(too))
        self.one.send(1, SEND, *parts)
        self.settled()
        self.assertEqual(self.one.statuses(), [(1, OK)])
        received = bytes(to.view) + bytes(too.view)
        self.assertEqual(received[: len(expected)], expected)
        self.assertEqual(received[len(expected) :], bytes(240000 - len(expected)))

    def test_manyRegions(self: Any) -> None:
        """
        More regions than may be offered at a time work all the same; those that are given
        back make place.
        """
        self.patch(sharedregions, "OFFERED_SEGMENTS", 4)
        self.connect()
        target = self.two.allocate(20000)
        for _ in range(3):
            regions = [self.one.allocate(bytes([n]) * 20000) for n in range(7)]
            for n, region in enumerate(regions):
                self.one.send(n, WRITE, piece(region), **self.remote(target))
                self.settled()
                self.assertEqual(bytes(target.view), bytes([n]) * 20000)
            self.assertEqual(self.one.statuses(), [(n, OK) for n in range(7)])
            for region in regions:
                self.a.deregisterMemory(region)
            self.settled()

    def test_givenBackAtOnce(self: Any) -> None:
        """
        Data that was read is the reader's, although the owner releases the memory before the reader looks.
        """
        self.connect()
        target = self.two.allocate(b"x" * 50000)
        back = self.one.register(50000)
        self.one.send(1, READ, piece(back), **self.remote(target))
        turn(self.a)
        turn(self.b)
        self.b.deregisterMemory(target)
        for _ in range(5):
            turn(self.b)
        self.settled()
        self.assertEqual(self.one.statuses(), [(1, OK)])
        self.assertEqual(bytes(back.view), b"x" * 50000)

    # -- order and refusals

    def test_order(self: Any) -> None:
        """
        A stream of requests of all kinds, long and short, both ways at once: done once
        each, in order, with what they should do.  Seeds 0 to 7.
        """
        for seed in range(8):
            self.connect(min_rnr_timer=1)
            maker = random.Random(seed)
            self.mixed(maker)
            self.a.close()
            self.b.close()

    def mixed(self: Any, maker: random.Random) -> None:
        sides = (self.one, self.two)
        verbs = (
            (SEND, SEND_IMM, WRITE, WRITE_IMM, READ) if hasOperation(self, SEND_IMM) else (SEND, WRITE, READ)
        )
        for side in sides:
            side.mine = side.allocate(maker.randbytes(200000))
            side.theirs = side.allocate(200000)
            side.inbox = side.allocate(200000)
            side.model, side.got, side.receivesPosted, side.posted = bytearray(200000), [], 0, []
        for number in range(120):
            side = maker.choice(sides)
            other = sides[side is self.one]
            at, size = maker.randrange(100000), maker.choice((0, 1, 100, 3000, 20000, 70000))
            verb = maker.choice(verbs)
            bits = maker.getrandbits(32)
            data = bytes(side.mine.view[at : at + size])
            if verb in (WRITE, WRITE_IMM):
                other.model[at : at + size] = data
            elif verb == READ:
                at = 0  # Into a place that nothing else touches.
            if len(side.posted) < 100:
                remote = self.remote(other.theirs, at)
                local = side.register(size) if verb == READ else side.mine
                side.send(
                    number, verb, piece(local, 0 if verb == READ else at, size), immediate=bits, **remote
                )
                side.posted.append(number)
                if verb in (SEND, SEND_IMM, WRITE_IMM):
                    other.got.append((verb, size, bits))
            for _ in range(maker.randrange(3)):
                turn(maker.choice((self.a, self.b)))
            if maker.random() < 0.4:
                chosen = maker.choice(sides)
                chosen.receive(chosen.receivesPosted, piece(chosen.inbox))
                chosen.receivesPosted += 1
        for side in sides:
            while side.receivesPosted < len(side.got):
                side.receive(side.receivesPosted, piece(side.inbox))
                side.receivesPosted += 1
        self.settled()
        for side in sides:
            self.assertEqual(side.statuses(), [(number, OK) for number in side.posted])
            self.assertEqual(bytes(side.theirs.view), bytes(side.model))
            done = side.received()
            self.assertEqual([c.workRequestID for c in done], list(range(len(side.got))))
            for completion, (verb, size, bits) in zip(done, side.got, strict=True):
                kind = WCOpcode.RECV_RDMA_WITH_IMM if verb == WRITE_IMM else WCOpcode.RECV
                self.assertEqual((completion.opcode, completion.byteLength), (kind, size))
                if verb != SEND:
                    self.assertEqual(completion.immediate, bits)

    @needs(Need.RETRIES)
    def test_noReceive(self: Any) -> None:
        """
        A message without a receive is repeated; what is behind it waits; nothing is lost
        or done twice, also when the medium is full of it.
        """
        self.connect()
        source, inbox = self.one.register(random.Random(4).randbytes(60000)), self.two.register(60000)
        for number in range(20):
            self.one.send(number, SEND, piece(source, number))
        settle(self.a, self.b)
        self.assertEqual(self.one.statuses(), [])
        for number in range(20):
            self.two.receive(number, piece(inbox))
            self.clock.advance(0.001)
            self.a.tick(self.clock.seconds())
            settle(self.a, self.b)
            self.assertEqual(self.one.statuses(), [(number, OK)])
            self.assertEqual([c.byteLength for c in self.two.received()], [60000 - number])
            self.assertEqual(inbox.view[: 60000 - number], source.view[number:])

    @needs(Need.RETRIES)
    def test_retriesEnd(self: Any) -> None:
        """
        Both kinds of retries end, with their statuses.
        """
        self.connect(rnr_retry=2)
        self.one.send(1, SEND)
        self.settled()
        self.assertEqual(self.one.statuses(), [(1, WCStatus.RNR_RETRY_EXC_ERR)])
        self.a.close()
        self.b.close()
        self.connect()
        self.two.qp.close()
        self.one.send(1, SEND)
        self.one.send(2, WRITE)
        self.settled()
        self.assertEqual(self.one.statuses(), [(1, WCStatus.RETRY_EXC_ERR), (2, FLUSH)])

    @needs(Need.RETRIES)
    def test_absentAgain(self: Any) -> None:
        """
        A queue pair that was reset and connected again learns of an absent peer again.
        """
        self.connect()
        self.two.qp.close()
        for _ in range(2):
            self.one.send(1, SEND)
            self.settled()
            self.assertEqual(self.one.statuses(), [(1, WCStatus.RETRY_EXC_ERR)])
            self.one.qp.modify(QPState.RESET)
            self.one.to(QPState.RTS, self.two.qp.number)

    @needs(Need.TAKEN)
    def test_violations(self: Any) -> None:
        """
        An access that is not granted is refused, in one record or many, by the bytes or by reference, and not
        a byte changes.
        """
        for verb, new, size in (
            (WRITE, "register", 10),
            (WRITE, "register", 200000),
            (WRITE, "allocate", 200000),
            (WRITE_IMM, "allocate", 200000),
            (READ, "register", 10),
            (READ, "allocate", 200000),
        ):
            for wrong in ("key", "before", "behind", "right", "queue pair"):
                self.connect()
                access = int(ALL) & ~6 if wrong == "right" else int(ALL)
                target = getattr(self.two, new)(b"." * size, access)
                mine = getattr(self.one, new)(b"#" * size)
                self.two.receive(1)
                if wrong == "queue pair":
                    self.two.qp.modify(QPState.RTS, qp_access_flags=1)
                shift = {"before": -1, "behind": 1}.get(wrong, 0)
                remote = {"remoteAddress": target.address + shift, "remoteKey": target.key ^ (wrong == "key")}
                self.one.send(1, WRITE, piece(mine, 0, 0), **remote)
                self.one.send(2, verb, piece(mine), **remote)
                self.one.send(3, WRITE)
                self.settled()
                inQueuePair = wrong == "queue pair"
                status = WCStatus.REM_INV_REQ_ERR if inQueuePair else WCStatus.REM_ACCESS_ERR
                expected = [(1, status), (2, FLUSH)] if inQueuePair else [(1, OK), (2, status)]
                self.assertEqual(self.one.statuses(), [*expected, (3, FLUSH)], (verb, wrong))
                self.assertEqual(bytes(target.view), b"." * size)
                self.assertEqual(bytes(mine.view), b"#" * size)
                self.assertEqual([c.status for c in self.two.received()], [FLUSH])
                self.assertEqual((self.one.qp.state, self.two.qp.state), (QPState.ERR, QPState.ERR))
                self.a.close()
                self.b.close()

    # -- atomics, windows, promises

    @needs(Need.ATOMICS)
    def test_atomics(self: Any) -> None:
        """
        Both sides add to one counter, among other requests, and swap it: each once.
        """
        self.connect()
        counter = self.two.allocate(64)
        own = self.two.register(64)
        result = self.one.register(8)
        for number in range(50):
            self.one.send(number, ADD, piece(result), compare=1, **self.remote(counter, 8))
            if number % 7 == 0:
                self.one.send(100 + number, SEND, flags=0)
            if number % 3 == 0:
                turn(self.b)
        settle(self.a, self.b)
        for number in range(8):
            self.two.receive(number)
        self.settled()
        self.assertEqual(self.one.statuses(), [(number, OK) for number in range(50)])
        self.assertEqual(int.from_bytes(result.view, byteorder), 49)
        self.one.send(1, SWAP, piece(result), compare=50, swap=7, **self.remote(counter, 8))
        self.settled()
        self.assertEqual(int.from_bytes(counter.view[8:16], byteorder), 7)
        self.assertEqual(bytes(counter.view[:8]) + bytes(counter.view[16:]), bytes(56))
        self.assertEqual(bytes(own.view), bytes(64))

    @needs(Need.ATOMICS)
    def test_atomicWrite(self: Any) -> None:
        """
        8 bytes at a time, among other requests; a READ behind one sees it, and what is not aligned is
        refused.
        """
        self.connect()
        target, back = self.two.allocate(64), self.one.register(8)
        for number in range(30):
            value = number.to_bytes(8, "big")
            self.one.send(number, ATOMIC_WRITE, inline=value, **self.remote(target, 8))
            if number % 7 == 0:
                self.one.send(100, SEND, flags=0)
        for number in range(5):
            self.two.receive(number)
        self.one.send(30, READ, piece(back), **self.remote(target, 8))
        self.settled()
        self.assertEqual(self.one.statuses(), [(number, OK) for number in range(31)])
        self.assertEqual((bytes(back.view), bytes(target.view[8:16])), 2 * ((29).to_bytes(8, "big"),))
        self.assertEqual(bytes(target.view[:8]) + bytes(target.view[16:]), bytes(56))
        self.one.send(31, ATOMIC_WRITE, inline=bytes(8), **self.remote(target, 12))
        self.settled()
        self.assertEqual(self.one.statuses(), [(31, WCStatus.REM_INV_REQ_ERR)])

    def test_windows(self: Any) -> None:
        """
        A window bound by a request opens memory for READ and WRITE until a SEND with
        invalidate ends it.  A WRITE is by reference where the memory is shared; a READ is
        not: the peer maps nothing, of which it would see more than the window.
        """
        for new in ("register", "allocate"):
            self.connect()
            size = 200000
            target = getattr(self.two, new)(size)
            source = getattr(self.one, new)(random.Random(5).randbytes(size))
            back = getattr(self.one, new)(size)
            window = self.two.memory.allocateWindow(self.two.pd, WindowType.TYPE_2)
            bind = WindowBind(window, target, target.address + 100, size - 200, int(ALL) & 14, window.key ^ 9)
            self.two.send(1, SendOpcode.BIND_MW, bind=bind)
            self.two.receive(2)
            remote = {"remoteKey": window.key, "remoteAddress": target.address + 100}
            before = self.one.path.position()
            self.one.send(1, WRITE, piece(source, 0, size - 200), **remote)
            self.one.send(2, READ, piece(back, 0, size - 200), **remote)
            self.one.send(3, SendOpcode.SEND_WITH_INV, invalidateKey=window.key)
            self.settled()
            if back.segment is not None:
                self.assertLess(self.one.path.position() - before, 4096)
                self.assertIsNone(self.one.path.offered(1))
            self.one.send(4, READ, piece(back, 0, 1), **remote)
            self.settled()
            denied = WCStatus.REM_ACCESS_ERR
            self.assertEqual(self.one.statuses(), [(1, OK), (2, OK), (3, OK), (4, denied)])
            self.assertEqual(self.two.statuses(), [(1, OK)])
            expected = bytes(source.view[: size - 200])
            self.assertEqual(bytes(target.view), bytes(100) + expected + bytes(100))
            self.assertEqual(bytes(back.view), expected + bytes(200))
            (received,) = self.two.received()
            self.assertEqual((received.flags, received.immediate), (4, remote["remoteKey"]))
            self.a.close()
            self.b.close()

    def test_promises(self: Any) -> None:
        """
        Messages for the consumer, short and long, among requests; those for which there is
        no promise wait.
        """
        self.connect()
        self.two.qp.maxMessage = self.one.qp.maxMessage = 200000
        maker = random.Random(6)
        sent: list[tuple[bytes, int | None]] = []
        for number in range(40):
            data = maker.randbytes(maker.choice((0, 1, 1000, 65536, 65537, 150000)))
            while not self.one.work.canPost():
                self.settled()
            immediate = number if number % 3 == 0 and hasOperation(self, SEND_IMM) else None
            self.one.work.postInline([data[:5], data[5:]], len(data), immediate)
            sent.append((data, immediate))
        settle(self.a, self.b)
        self.assertEqual(self.two.consumer.got, [])
        while len(self.two.consumer.got) < 40:
            self.two.qp.postReceives(7)
            self.settledOnce()
        self.assertEqual(self.two.consumer.got, sent)
        self.assertEqual(self.one.statuses(), [])

    def settledOnce(self: Any) -> bool:
        """
        Let the next timer run.

        @return: Whether there was one.
        """
        settle(self.a, self.b)
        due = [when for device in (self.a, self.b) if (when := device.deadline()) is not None]
        if due:
            self.clock.advance(max(0.0, min(due) - self.clock.seconds()))
            self.a.tick(self.clock.seconds())
            self.b.tick(self.clock.seconds())
            settle(self.a, self.b)
        return bool(due)

    # -- within one HCA, asleep, ends

    def test_itself(self: Any) -> None:
        """
        Two queue pairs of one HCA.
        """
        self.a = self.b = self.device()
        self.a.listen(SDP, "127.0.0.1", 7009, LISTENER)
        user = User()
        self.a.connect(SDP, "127.0.0.1", 7009, user)
        settle(self.a)
        (other,) = [path for path in self.a.fabric.paths() if path is not user.path]
        self.one, self.two = DeviceSide(self.a, user.path), DeviceSide(self.a, other)
        self.one.to(QPState.RTS, self.two.qp.number)
        self.two.to(QPState.RTS, self.one.qp.number)
        source, target = self.one.allocate(b"self" * 20000), self.two.allocate(80000)
        self.one.send(1, WRITE, piece(source), **self.remote(target))
        self.settled()
        self.assertEqual(self.one.statuses(), [(1, OK)])
        self.assertEqual(target.view, source.view)

    def test_asleep(self: Any) -> None:
        """
        Both devices sleep whenever they can, and wake only by their descriptors; the
        requests are done all the same.
        """
        self.connect()
        source, target = self.one.register(bytes(range(250)) * 2000), self.two.register(500000)
        for number in range(4):
            self.one.send(number, WRITE, piece(source), **self.remote(target))
            self.two.send(number, READ, piece(target, 0, 300000), **self.remote(source))
        self.a.progress()
        self.b.progress()
        for _ in range(20000):
            awake = False
            for device in (self.a, self.b):
                if not device.arm() or readable(device):
                    awake = True
                    turn(device)
            if not awake:
                break
        self.assertEqual(self.one.statuses(), [(number, OK) for number in range(4)])
        self.assertEqual(self.two.statuses(), [(number, OK) for number in range(4)])

    @needs(Need.TAKEN)
    def test_death(self: Any) -> None:
        """
        When the peer goes, what it took is done, the first that it did not take ends with
        RETRY_EXC_ERR, the rest is flushed, receives too.
        """
        self.connect()
        source, target = self.one.register(60000), self.two.register(60000)
        self.one.receive(50)
        self.one.receive(51)
        count = limits.RING_BULK // 60000 + 15
        for number in range(count):
            self.one.send(number, WRITE, piece(source), flags=0, **self.remote(target))
        self.a.progress()
        self.b.fabric.look()
        self.b.fabric.progress(3)
        self.b.close()
        self.settled()
        statuses = self.one.statuses()
        first, status = statuses[0]
        self.assertEqual(status, WCStatus.RETRY_EXC_ERR)
        self.assertLessEqual(first, limits.RING_BULK // 60000)  # A closing device takes what has come.
        self.assertEqual(statuses[1:], [(number, FLUSH) for number in range(first + 1, count)])
        self.assertEqual(
            [(c.workRequestID, c.status) for c in self.one.received()], [(50, FLUSH), (51, FLUSH)]
        )
        self.assertEqual(len(self.one.consumer.failures), 1)

    def test_nothingLeft(self: Any) -> None:
        """
        After its queue pairs and regions are closed a device holds nothing.
        """
        self.connect()
        source, target = self.one.allocate(50000), self.two.allocate(50000)
        self.one.send(1, WRITE, piece(source), **self.remote(target))
        self.settled()
        for side, region in ((self.one, source), (self.two, target)):
            side.qp.close()
            side.device.deregisterMemory(region)
            side.memory.deallocateDomain(side.pd)
            used = side.device.inUse()
            self.assertEqual((used["pd"], used["mr"], used["qp"]), (0, 0, 0))
            self.assertEqual((side.sends.users, side.receives.users), ({}, {}))
        self.settled()
        # A path that many queue pairs share; others end with their queue pair.
        self.assertEqual(len(getattr(self.one.path, "unacknowledged", ())), 0)

    def test_badPiece(self: Any) -> None:
        """
        A piece of memory that is not the program's is a local error: nothing is sent.
        """
        self.connect()
        before = self.one.path.position()
        self.one.send(1, SEND, SGE(1, 1, 1))
        self.assertEqual(self.one.statuses(), [(1, WCStatus.LOC_PROT_ERR)])
        self.assertEqual(self.one.path.position(), before)
