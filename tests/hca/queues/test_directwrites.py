"""
Tests for L{sharedregions.DirectWrites<twisted_ib.hca.fabric.shm.sharedregions.DirectWrites>}: WRITEs that the
peer's process does not execute.

Both devices are of this process: each takes the other for another process, whose memory the kernel lets it
write to all the same.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import skipIf

from tests.hca.hcas import HCATestCase, settle
from tests.hca.queues.keyed_pair import DeviceSide, piece
from tests.support.descriptors import runForked
from twisted_ib import limits
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.fabric.shm import sharedregions
from twisted_ib.hca.fabric.shm.segment import Segment
from twisted_ib.hca.fabric.shm.sharedregions import ASKS, GRANTS, WRITES, WRITTEN
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import libc, processmemory
from twisted_ib.hca.memory.access import LOCAL_WRITE, REMOTE_READ
from twisted_ib.hca.memory.windows import WindowType
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode
from twisted_ib.hca.services.operations.message import PULL_LEAST

MISSING = libc.available()
SIZE = 4096
WRITE, SEND = SendOpcode.RDMA_WRITE, SendOpcode.SEND
OK, DENIED, FLUSHED = WCStatus.SUCCESS, WCStatus.REM_ACCESS_ERR, WCStatus.WR_FLUSH_ERR


#: The number of process_vm_writev(2) by machine.
CALLS = {"x86_64": 311, "aarch64": 271}


def refuse(call: int) -> None:
    """
    Have the kernel refuse a call to this process with EPERM (seccomp(2)).
    """
    # struct sock_filter: load the number, skip one if it is another, return EPERM, allow.
    rules = (0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)
    program = b"".join(struct.pack("=HBBI", *each) for each in rules)
    held = ctypes.create_string_buffer(program)
    # struct sock_fprog.
    head = ctypes.create_string_buffer(struct.pack("@HP", len(rules), ctypes.addressof(held)))
    prctl = ctypes.CDLL(None).prctl
    # PR_SET_NO_NEW_PRIVS; PR_SET_SECCOMP, SECCOMP_MODE_FILTER.
    assert not prctl(38, 1, 0, 0, 0)
    assert not prctl(22, 2, head, 0, 0)


class DirectTestCase(HCATestCase):
    """
    Two connected queue pairs: C{one} writes, C{two} does nothing unless L{settled} is called.

    @cvar others: whether each device takes the other for one of another process.
    """

    fabric = SharedMemoryFabric
    others = True

    def setUp(self) -> None:
        """
        The first WRITE is a record, which is executed.
        """
        super().setUp()
        own = os.getpid()
        if self.others:
            self.patch(os, "getpid", lambda: own + 1)
        self.connect()

    def connect(self) -> None:
        """
        Have two devices anew.
        """
        self.a, self.b, self.path, self.other = self.joined()
        self.one, self.two = DeviceSide(self.a, self.path), DeviceSide(self.b, self.other)
        self.one.to(QPState.RTS, self.two.qp.number)
        self.two.to(QPState.RTS, self.one.qp.number)
        self.source, self.target = self.one.register(bytes(range(256)) * 16), self.two.register(SIZE)
        self.write(1)
        self.assertEqual(self.one.statuses(), [])
        self.settled()
        self.assertEqual(self.one.statuses(), [(1, OK)])
        self.target.view[:] = bytes(SIZE)

    def settled(self) -> None:
        """
        Let both devices do what there is to do.
        """
        settle(self.a, self.b)

    def write(self, id: int, offset: int = 0, length: int = 100, **fields: Any) -> None:
        """
        Post one, from and to the same offset.
        """
        remote = {"remoteAddress": self.target.address + offset, "remoteKey": self.target.remoteKey}
        self.one.send(id, WRITE, piece(self.source, offset, length), **{**remote, **fields})

    def assertRefused(self) -> None:
        """
        What is written now is a record, and refused; nothing comes to the memory.
        """
        view, before = self.target.view, bytes(self.target.view)
        self.write(9)
        self.assertEqual((self.one.statuses(), bytes(view)), ([], before))
        self.settled()
        self.assertNotEqual([status for _, status in self.one.statuses()], [OK])
        self.assertEqual(bytes(view), before)


@skipIf(bool(MISSING), f"missing: {MISSING}")
class WriteTests(DirectTestCase):
    """
    What is written.
    """

    def test_written(self) -> None:
        """
        All of it is there when the post returns, and it is done, whatever its length and place.
        """
        for offset, length in (0, 1), (1, 7), (8, 8), (3, 9), (100, 64), (5, 65), (0, SIZE), (SIZE - 1, 1):
            self.target.view[:] = bytes(SIZE)
            self.write(2, offset, length)
            self.assertEqual(self.one.statuses(), [(2, OK)])
            end = offset + length
            self.assertEqual(bytes(self.target.view[offset:end]), bytes(self.source.view[offset:end]))
            self.assertEqual(sum(self.target.view), sum(self.source.view[offset:end]))

    def test_octets(self) -> None:
        """
        Both ports count their octets, also when the path is gone.
        """
        before = self.a.fabric.octets()[0], self.b.fabric.octets()[1]
        for length in 1, 700, SIZE:
            self.write(2, 0, length)
            self.assertEqual(self.one.statuses(), [(2, OK)])
        # One that is refused is none.
        self.assertFalse(self.path.writeDirectly(self.two.qp.number, 0, 0, b"123", 0, 3))
        octets = 1 + 700 + SIZE
        found = self.a.fabric.octets()[0] - before[0], self.b.fabric.octets()[1] - before[1]
        self.assertEqual(found, (octets, octets))
        self.assertEqual(self.b.statistics()["port_rcv_data"], (before[1] + octets) // 4)
        # The path's own may come to it.
        self.a.close()
        self.settled()
        self.assertEqual(self.b.fabric.paths(), [])
        self.assertIn(self.b.fabric.octets()[1] - before[1] - octets, range(octets))

    def test_octetsBound(self) -> None:
        """
        A peer that says anything about its octets does not make more of them than a counter holds, nor fewer
        than there were.
        """
        cells = self.path._cells
        before = self.b.fabric.octets()[1]
        cells[WRITTEN] = 1000
        self.assertEqual(self.b.fabric.octets()[1], before + 1000)
        cells[WRITTEN] = 10
        self.assertEqual(self.b.fabric.octets()[1], before + 1000)
        cells[WRITTEN] = (1 << 64) - 1
        self.assertEqual(self.b.fabric.octets()[1], before + (1 << 56))

    def test_inline(self) -> None:
        """
        So with bytes that the request carries, and without a completion.
        """
        remote = {"remoteAddress": self.target.address + 5, "remoteKey": self.target.remoteKey}
        flags = int(SendFlags.INLINE)
        self.one.send(2, WRITE, piece(self.source, 1, 3), flags=flags, **remote)
        self.settled()
        self.assertEqual((bytes(self.target.view[4:9]), self.one.statuses()), (b"\0\1\2\3\0", []))

    def test_order(self) -> None:
        """
        Behind a SEND that the peer has not taken it waits as a record; behind WRITEs until these are done.
        """
        self.two.receive(7, piece(self.two.register(SIZE)))
        self.one.send(2, SEND, piece(self.source, 0, 10))
        self.write(3)
        self.assertEqual((self.one.statuses(), sum(self.target.view)), ([], 0))
        posted = self.path.position()
        self.write(4, 200)
        self.assertEqual((self.one.statuses(), self.path.position()), ([], posted + 128))
        self.settled()
        self.assertEqual(self.one.statuses(), [(2, OK), (3, OK), (4, OK)])
        self.one.send(5, WRITE, piece(self.source, 0, 1), remoteAddress=self.target.address, remoteKey=0)
        self.write(6)
        self.settled()
        self.assertEqual(self.one.statuses()[0][1], DENIED)

    def test_waits(self) -> None:
        """
        WRITEs that are on the way as records have the next one wait for them, and not become one.
        """
        region = self.two.register(SIZE)
        remote = {"remoteAddress": region.address, "remoteKey": region.remoteKey}
        self.one.send(2, WRITE, piece(self.source, 0, 10), **remote)
        posted = self.path.position()
        self.write(3)
        self.assertEqual((self.path.position(), self.one.statuses()), (posted, []))
        self.settled()
        self.assertEqual((self.path.position(), self.one.statuses()), (posted, [(2, OK), (3, OK)]))
        self.assertEqual(sum(self.target.view), sum(range(100)))

    def test_long(self) -> None:
        """
        One that is longer than a turn may copy is records.
        """
        self.patch(limits, "PULL_MOST", 99)
        self.write(2, 0, 100)
        self.assertEqual(self.one.statuses(), [])
        self.settled()
        self.assertEqual(self.one.statuses(), [(2, OK)])

    def test_pulled(self) -> None:
        """
        From memory that the peer may map, which it copies faster than the kernel, they are records; and a
        short one waits for none of these.
        """
        size = 2 * PULL_LEAST
        source, target = self.one.allocate(b"ab" * PULL_LEAST), self.two.register(size)
        remote = {"remoteAddress": target.address, "remoteKey": target.remoteKey}
        self.one.send(2, WRITE, piece(source, 0, 10), **remote)
        self.settled()
        for id, posted in (3, size), (4, PULL_LEAST), (5, PULL_LEAST - 1):
            before = self.path.position()
            self.one.send(id, WRITE, piece(source, 0, posted), **remote)
            self.assertGreater(self.path.position(), before)
        self.assertEqual(self.one.statuses(), [(2, OK)])
        self.assertEqual(bytes(target.view[:12]), b"ababababab\0\0")
        self.settled()
        self.assertEqual(self.one.statuses(), [(3, OK), (4, OK), (5, OK)])
        self.assertEqual(bytes(target.view), b"ab" * PULL_LEAST)
        self.one.send(6, WRITE, piece(source, 0, PULL_LEAST - 1), **remote)
        self.assertEqual(self.one.statuses(), [(6, OK)])
        copied = self.one.register(size)
        self.one.send(7, WRITE, piece(copied, 0, size), **remote)
        self.assertEqual((self.one.statuses(), sum(target.view)), ([(7, OK)], 0))

    def test_begun(self) -> None:
        """
        One of which some records are on the way when the peer grants the region is sent to its end.
        """
        size = limits.PULL_MOST
        source, region = self.one.register(size), self.two.register(size)
        remote = {"remoteAddress": region.address, "remoteKey": region.remoteKey}
        for value in range(1, 9):
            source.view[:] = bytes([value]) * size
            self.one.send(value, WRITE, piece(source), **remote)
        self.assertTrue(self.one.work.requester._unsent[0].begun)
        self.settled()
        self.assertEqual(self.one.statuses(), [(value, OK) for value in range(1, 9)])
        self.assertEqual(bytes(region.view), bytes(source.view))
        self.assertEqual(len(region.grants), 1)

    def test_hole(self) -> None:
        """
        Memory that the peer has unmapped: the peer decides.
        """
        memory = mmap.mmap(-1, 2 * SIZE)
        region = self.memory(memory, lambda offset, length, writes: False)
        remote = {"remoteAddress": region.address, "remoteKey": region.remoteKey}
        region.present, region.sure = None, region.length
        self.one.send(2, WRITE, piece(self.source, 0, 10), **remote)
        self.settled()
        self.one.send(3, WRITE, piece(self.source, 0, 10), **remote)
        self.assertEqual(self.one.statuses(), [(2, OK), (3, OK)])
        self.patch(processmemory.OtherProcess, "write", lambda *arguments: 4)
        self.one.send(4, WRITE, piece(self.source, 0, 10), **remote)
        self.assertEqual(self.one.statuses(), [])

    def memory(self, buffer: Any, present: Callable[[int, int, bool], bool]) -> Any:
        return self.two.memory.register(buffer, 0xF, self.two.pd, present=present)


@skipIf(bool(MISSING), f"missing: {MISSING}")
class RevokeTests(DirectTestCase):
    """
    Rights that end.
    """

    def test_before(self) -> None:
        """
        Not a byte before the region.
        """
        self.write(2, remoteAddress=self.target.address - 1)
        self.assertEqual((self.one.statuses(), sum(self.target.view)), ([], 0))
        self.settled()
        self.assertEqual(self.one.statuses(), [(2, DENIED)])

    def test_behind(self) -> None:
        """
        Nor one behind it.
        """
        self.write(2, remoteAddress=self.target.address + SIZE - 99)
        self.assertEqual((self.one.statuses(), sum(self.target.view)), ([], 0))
        self.settled()
        self.assertEqual(self.one.statuses(), [(2, DENIED)])

    def test_source(self) -> None:
        """
        Memory here that was exchanged is read where it is now.
        """
        self.write(2)
        self.one.memory.reregister(self.source, bytearray(b"n" * SIZE))
        self.write(3)
        self.assertEqual(self.one.statuses(), [(2, OK), (3, OK)])
        self.assertEqual(bytes(self.target.view[:100]), b"n" * 100)

    def test_deregister(self) -> None:
        """
        The region.
        """
        view = self.target.view
        key, address = self.target.key, self.target.address
        self.two.memory.deregister(self.target)
        self.one.send(2, WRITE, piece(self.source, 0, 9), remoteAddress=address, remoteKey=key)
        self.assertEqual((self.one.statuses(), sum(view)), ([], 0))
        self.settled()
        self.assertEqual((self.one.statuses(), sum(view)), ([(2, DENIED)], 0))

    def test_reregister(self) -> None:
        """
        What the region grants, its memory, its domain.
        """
        self.two.memory.reregister(self.target, access=LOCAL_WRITE | REMOTE_READ, keepKey=True)
        self.assertRefused()

    def test_newMemory(self) -> None:
        """
        Other memory under the same key is written where that is.
        """
        old, new = self.target.view, bytearray(SIZE)
        key, address = self.target.key, self.target.address
        self.two.memory.reregister(self.target, new, address=address)
        self.one.send(2, WRITE, piece(self.source, 0, 9), remoteAddress=address, remoteKey=key)
        self.settled()
        self.assertEqual((sum(old), sum(new), self.one.statuses()), (0, 0, [(2, DENIED)]))

    def test_failed(self) -> None:
        """
        The queue pair's state: it fails.
        """
        self.two.qp.modify(QPState.ERR)
        self.assertRefused()

    def test_reset(self) -> None:
        """
        It is reset.
        """
        self.two.qp.modify(QPState.RESET)
        self.assertRefused()

    def test_destroyed(self) -> None:
        """
        It is destroyed.
        """
        self.two.qp.close()
        self.assertRefused()

    def test_access(self) -> None:
        """
        The queue pair's rights.
        """
        self.two.qp.modify(QPState.RTS, qp_access_flags=0)
        self.assertRefused()

    def test_windows(self) -> None:
        """
        A window, which can be bound anew, is never granted.
        """
        window = self.two.memory.allocateWindow(self.two.pd, WindowType.TYPE_1)
        self.two.memory.windows.bind(window, self.target, self.target.address, SIZE, 0x2)
        for _ in range(3):
            self.one.send(
                2, WRITE, piece(self.source, 0, 9), remoteAddress=self.target.address, remoteKey=window.key
            )
            self.assertEqual(self.one.statuses(), [])
            self.settled()
            self.assertEqual(self.one.statuses(), [(2, OK)])

    def test_closed(self) -> None:
        """
        The device.
        """
        view = self.target.view
        self.b.close()
        self.write(2)
        self.assertEqual(sum(view), 0)

    def test_forked(self) -> None:
        """
        A child has none, and leaves those of its parent.
        """
        cells = self.other.mine.cells
        self.assertNotEqual(cells[GRANTS], 0)
        direct = self.other._direct
        child = sharedregions.DirectWrites(self.other, cells, self.other.theirs.cells)
        child.forked()
        child.close()
        [grant] = self.target.grants
        assert isinstance(grant, sharedregions.Grant)
        child.revoked(grant)
        self.write(2)
        self.assertEqual(self.one.statuses(), [(2, OK)])
        self.assertIs(self.other._direct, direct)

    def test_during(self) -> None:
        """
        Who revokes waits for a WRITE that has begun.
        """
        cells, waits = self.path.mine.cells, []

        def yields() -> None:
            waits.append(cells[WRITES])
            if len(waits) == 3:
                cells[WRITES] = 0

        self.patch(os, "sched_yield", yields)
        cells[WRITES] = word = self.two.qp.number << 32 | self.target.key
        self.two.memory.deregister(self.target)
        self.assertEqual(waits, [word] * 3)
        self.assertTrue(self.other.alive)

    def test_stopped(self) -> None:
        """
        But not for ever: a peer that does not end one loses its path.
        """
        self.path.mine.cells[WRITES] = self.two.qp.number << 32 | self.target.key
        self.two.memory.deregister(self.target)
        self.settled()
        self.assertFalse(self.other.alive)

    def test_ended(self) -> None:
        """
        A peer that has ended writes nothing, whatever it had begun.
        """
        self.path.mine.cells[WRITES] = self.two.qp.number << 32 | self.target.key
        self.other._direct.peerEnded()
        self.two.memory.deregister(self.target)
        self.settled()
        self.assertTrue(self.other.alive)

    def test_lost(self) -> None:
        """
        Nothing is left of what it was granted.
        """
        self.assertEqual(len(self.target.grants), 1)
        self.a.close()
        self.settled()
        self.assertEqual((self.other.alive, self.target.grants), (False, ()))

    def test_handler(self) -> None:
        """
        A signal's handler that writes amid a WRITE has it go as a record.
        """
        self.path.mine.cells[WRITES] = 5
        self.write(2)
        self.assertEqual((self.one.statuses(), self.path.mine.cells[WRITES]), ([], 5))


@skipIf(bool(MISSING), f"missing: {MISSING}")
class RefusingTests(DirectTestCase):
    """
    Peers and kernels that do not let this side write.
    """

    def test_refused(self) -> None:
        """
        A kernel that refuses is not asked again.
        """
        calls = []

        def write(self: Any, address: int, source: int, length: int, tail: int) -> int:
            calls.append(length)
            return -1

        self.patch(processmemory.OtherProcess, "write", write)
        for id in 2, 3:
            self.write(id)
            self.settled()
            self.assertEqual(self.one.statuses(), [(id, OK)])
        self.assertEqual(calls, [100])

    def test_yama(self) -> None:
        """
        Where Yama refuses each process nobody is asked.
        """
        scope = self.mktemp()
        self.patch(processmemory, "_PTRACE_SCOPE", scope)
        Path(scope).write_text("3\n")
        cells = self.path.mine.cells
        cells[ASKS] = 0
        direct = sharedregions.DirectWrites(self.path, cells, {GRANTS: 0})
        direct.ask()
        self.assertEqual(cells[ASKS], 0)
        Path(scope).write_text("1\n")
        direct.ask()
        self.assertEqual(cells[ASKS], 1)

    def test_tables(self) -> None:
        """
        A table that was never offered, or that is too short, is none.
        """
        for size in 0, 64:
            number = self.other.offer(Segment.create(size)) if size else 1234
            direct = sharedregions.DirectWrites(self.path, self.path.mine.cells, {GRANTS: number})
            direct.ask()
            self.assertIs(direct.write(1, 2, 3, None, 0, 1), False)

    def test_withdrawn(self) -> None:
        """
        One that is withdrawn is none any more.
        """
        [segment] = self.other._offers._mine
        self.other.withdraw(segment)
        self.settled()
        for id in 2, 3:
            self.write(id)
            self.assertEqual(self.one.statuses(), [])
            self.settled()
            self.assertEqual(self.one.statuses(), [(id, OK)])

    def test_full(self) -> None:
        """
        A place of the table that another key has stays with that one.
        """
        [segment] = self.other._offers._mine
        region = self.two.register(SIZE)
        word = self.two.qp.number << 32 | region.key
        place = sharedregions._place(word) // 8
        self.assertLess(place, 4 * sharedregions.GRANTS_MOST)
        segment.cells[place] = 1
        remote = {"remoteAddress": region.address, "remoteKey": region.remoteKey}
        for id in 2, 3:
            self.one.send(id, WRITE, piece(self.source, 0, 10), **remote)
            self.assertEqual(self.one.statuses(), [])
            self.settled()
            self.assertEqual(self.one.statuses(), [(id, OK)])
        self.two.memory.deregister(region)
        self.assertEqual(segment.cells[place], 1)

    def test_capture(self) -> None:
        """
        A path that is traced neither writes so nor grants.
        """
        from twisted_ib.hca.capture import trace

        path: Any = object.__new__(trace._TracedPath)
        self.assertFalse(path.writeDirectly(1, 2, 3, None, 0, 1))
        self.assertFalse(path.grantWrites(self.two.qp, self.target))


@skipIf(bool(MISSING), f"missing: {MISSING}")
class OwnTests(DirectTestCase):
    """
    Two devices of one process, which know it.
    """

    others = False

    def test_records(self) -> None:
        """
        Nobody asks, nobody grants: WRITEs are records.
        """
        self.write(2)
        self.assertEqual(self.one.statuses(), [])
        self.settled()
        self.assertEqual(self.one.statuses(), [(2, OK)])
        cells, granted = self.path.mine.cells, self.other.mine.cells
        self.assertEqual((cells[ASKS], granted[GRANTS], self.target.grants), (0, 0, ()))


@skipIf(bool(MISSING), f"missing: {MISSING}")
class OtherProcessTests(HCATestCase):
    """
    L{processmemory.OtherProcess}.
    """

    fabric = SharedMemoryFabric

    def test_write(self) -> None:
        """
        It tells how much was copied, and of a process that is gone.
        """
        source, target = bytearray(b"0123456789"), mmap.mmap(-1, SIZE)
        at = processmemory.addressOf(target)
        own = processmemory.OtherProcess(os.getpid())
        self.assertEqual(own.write(at + 3, processmemory.addressOf(source), 10, 1), 10)
        self.assertEqual(target[2:14], b"\x000123456789\x00")
        # What ends it comes last.
        self.assertEqual([*own._there], [at + 3, 9, at + 12, 1])
        self.assertEqual(own.writeBytes(at, b"ab", 2, 2), 2)
        self.assertEqual(target[:4], b"ab\x000")
        self.assertEqual(own.write(8, processmemory.addressOf(source), 10, 1), 0)
        gone = processmemory.OtherProcess(1 << 22)
        self.assertEqual(gone.write(at, processmemory.addressOf(source), 10, 1), -1)

    @skipIf(platform.machine() not in CALLS, "the number of process_vm_writev is not known for this machine")
    def test_forbidden(self) -> None:
        """
        One that the kernel does not let this process write to, as by Yama's scope 1, is not asked again.
        """

        def child() -> None:
            """
            Have the kernel refuse.
            """
            refuse(CALLS[platform.machine()])
            source, target = bytearray(b"0123456789"), bytearray(10)
            own = processmemory.OtherProcess(os.getpid())
            assert own.write(processmemory.addressOf(target), processmemory.addressOf(source), 10, 1) == -1
            assert target == bytes(10)

        self.assertEqual(runForked(child), 0)
