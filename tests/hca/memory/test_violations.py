"""
Every access to memory that was not granted, by every verb, through regions and windows: the
completion or event at the requester and at the responder; and not a byte beside what was granted is
read or written, there or here.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.queues.keyed_pair import ALL, Pair
from twisted_ib import limits
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.hca.memory.windows import WindowType
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.operations import message

WRITE, WRITE_IMM, READ = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM, SendOpcode.RDMA_READ
SWAP, ADD = SendOpcode.ATOMIC_CMP_AND_SWP, SendOpcode.ATOMIC_FETCH_AND_ADD
RIGHTS = {
    WRITE: Access.REMOTE_WRITE,
    WRITE_IMM: Access.REMOTE_WRITE,
    READ: Access.REMOTE_READ,
    SWAP: Access.REMOTE_ATOMIC,
    ADD: Access.REMOTE_ATOMIC,
}
REMOTE = int(Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC)
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
DENIED, INVALID = WCStatus.REM_ACCESS_ERR, WCStatus.REM_INV_REQ_ERR

#: Bytes before and behind what is granted.
GUARD = 64

#: The fault -> the kinds of keys that can have it, and how the request ends.
WRONG = {
    "key": ("region", "type 1", "type 2"),
    "before": ("region", "type 1", "type 2"),
    "behind": ("region", "type 1", "type 2"),
    "domain": ("region", "type 1", "type 2"),
    "right": ("region", "type 1", "type 2"),
    "gone": ("region", "type 1", "type 2"),
    "gone meanwhile": ("region", "type 1", "type 2"),
    "queue pair's right": ("region", "type 1", "type 2"),
    "never bound": ("type 1", "type 2"),
    "unbound": ("type 1",),
    "bound anew": ("type 1",),
    "invalidated": ("type 2",),
    "another queue pair's": ("type 2",),
    "low bits": ("type 2",),
}


class ViolationTests(SynchronousTestCase):
    """
    The table.
    """

    def prepare(self, kind: str, size: int, offering: bool, access: int = int(ALL)) -> None:
        """
        A connected pair, with memory of which the middle is granted.
        """
        self.p = Pair(connect=False)
        self.a, self.b = self.p.a, self.p.b
        self.a.to(QPState.RTS, 18)
        self.b.to(QPState.RTS, 17, access=access)
        self.kind, self.size = kind, size
        self.a.path.offering = self.b.path.offering = offering
        self.there = bytearray(b"#" * (size + 2 * GUARD))
        self.here = bytearray(b"-" * (size + 2 * GUARD))
        middle = memoryview(self.here)[GUARD:-GUARD]
        self.mine = self.a.memory.register(middle, int(ALL), self.a.pd, segment=middle)

    def grant(self, wrong: str, right: int) -> tuple[int, int]:
        """
        Grant the middle of the memory there, less what is wrong.

        @return: the key and the address for the requester.
        """
        memory, pd = self.b.memory, self.b.pd
        view = memoryview(self.there)
        domain = memory.allocateDomain() if wrong == "domain" else pd
        access = int(ALL) & ~right if wrong == "right" else int(ALL)
        if self.kind == "region":
            middle = view[GUARD:-GUARD]
            region = memory.register(middle, access, domain, segment=middle)
            self.gone = lambda: memory.deregister(region)
            key, address = region.key, region.address
        else:
            region = memory.register(view, int(ALL), domain, segment=view)
            key, address = self.window(wrong, region, access & REMOTE), region.address + GUARD
        if wrong == "key":
            key ^= 0x100
        elif wrong == "low bits":
            key ^= 1
        elif wrong == "gone":
            self.gone()
        address += {"before": -8, "behind": 8}.get(wrong, 0)
        return key, address

    def window(self, wrong: str, region: MemoryRegion, access: int) -> int:
        """
        A window on the middle of a region.

        @return: the key for the requester.
        """
        memory = self.b.memory
        type = WindowType.TYPE_1 if self.kind == "type 1" else WindowType.TYPE_2
        window = memory.allocateWindow(region.pd, type)
        key = window.key
        if wrong != "never bound":
            user: Any = self.a.qp if wrong == "another queue pair's" else self.b.qp
            newKey = key ^ 5 if type is WindowType.TYPE_2 else None
            at = region.address + GUARD
            memory.windows.bind(window, region, at, self.size, access, newKey, user)
            key = window.key
            if wrong == "unbound":
                memory.windows.bind(window, None, 0, 0, 0)
            elif wrong == "bound anew":
                memory.windows.bind(window, region, at, self.size, access)
            elif wrong == "invalidated":
                memory.windows.invalidate(key, self.b.qp)
        self.gone = lambda: memory.windows.deallocate(window)
        return key

    def request(self, verb: SendOpcode, wrong: str, key: int, address: int) -> None:
        """
        Do it, between two WRITEs of nothing.
        """
        pieces = SGE(self.mine.address, self.size, self.mine.key)
        self.b.receive(5)
        self.a.send(1, WRITE)
        self.a.send(2, verb, pieces, remoteKey=key, remoteAddress=address, compare=1, swap=2)
        self.a.send(3, WRITE)
        if wrong == "gone meanwhile":
            # The medium brings the first record of many, or has no room for the answer.
            self.b.path.capacity = 0
            self.b.path.progress(2)
            self.gone()
            self.b.path.capacity = 1 << 18
        self.p.settle()

    def test_table(self) -> None:
        """
        Every violation, by every verb, with every kind of key, in one record and many and
        by reference.
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        self.patch(message, "PULL_LEAST", 150)
        self.patch(limits, "PULL_MOST", 200)
        count = 0
        for verb, (wrong, kinds), offering in product(RIGHTS, WRONG.items(), (False, True)):
            for kind, size in product(kinds, (8,) if verb in (SWAP, ADD) else (8, 1000)):
                if wrong == "gone meanwhile" and size == 8 and verb != READ:
                    continue  # It is one record: there is no meanwhile.
                self.violate(verb, wrong, kind, size, offering)
                count += 1
        self.assertGreater(count, 450)

    def violate(self, verb: SendOpcode, wrong: str, kind: str, size: int, offering: bool) -> None:
        """
        One row of the table.
        """
        about = f"{verb.name}, {wrong}, {kind}, {size} bytes, {offering}"
        right = int(RIGHTS[verb])
        inQueuePair = wrong == "queue pair's right"
        self.prepare(kind, size, offering, int(ALL) & ~right if inQueuePair else int(ALL))
        key, address = self.grant(wrong, right)
        self.request(verb, wrong, key, address)
        status = INVALID if inQueuePair else DENIED
        # Nothing may be written without the right, not even nothing.
        expected = [(1, OK), (2, status), (3, FLUSH)]
        if inQueuePair and right == Access.REMOTE_WRITE:
            expected = [(1, status), (2, FLUSH), (3, FLUSH)]
        self.assertEqual(self.a.statuses(), expected, about)
        event = EventType.QP_REQ_ERR if inQueuePair else EventType.QP_ACCESS_ERR
        self.assertEqual(self.b.events, [event], about)
        self.assertEqual([c.status for c in self.b.received()], [FLUSH], about)
        self.assertEqual((self.a.qp.state, self.b.qp.state), (QPState.ERR, QPState.ERR), about)
        self.untouched(wrong, verb, about)

    def untouched(self, wrong: str, verb: SendOpcode, about: str) -> None:
        """
        Nothing was read or written; before what went in the middle had gone, what is
        granted may have been.
        """
        for memory, filler in ((self.there, b"#"), (self.here, b"-")):
            bound = GUARD if wrong == "gone meanwhile" else len(memory) // 2
            self.assertEqual(bytes(memory[:bound]), filler * bound, about)
            self.assertEqual(bytes(memory[-bound:]), filler * bound, about)
        if wrong == "gone meanwhile":
            written = self.there.count(b"-")
            self.assertLess(written, self.size, about)
            self.assertEqual(self.there.count(b"#") + written, len(self.there), about)
            self.assertLess(self.here.count(b"#"), self.size, about)

    def test_granted(self) -> None:
        """
        The same without anything wrong: the first and the last byte are within, and only
        what is granted changes.
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        self.patch(message, "PULL_LEAST", 150)
        self.patch(limits, "PULL_MOST", 200)
        for verb, kind, offering in product(RIGHTS, ("region", "type 1", "type 2"), (False, True)):
            for size in (8,) if verb in (SWAP, ADD) else (8, 1000):
                about = f"{verb.name}, {kind}, {size} bytes, {offering}"
                self.prepare(kind, size, offering)
                key, address = self.grant("nothing", 0)
                self.request(verb, "nothing", key, address)
                self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK)], about)
                self.assertEqual(self.b.events, [], about)
                # A READ through a window is copied: the window confines.
                if offering and size > 8 and not (verb == READ and kind != "region"):
                    self.assertLess(self.a.path.copied + self.b.path.copied, 150, about)
                there, here = bytes(self.there), bytes(self.here)
                self.assertEqual(there[:GUARD] + there[-GUARD:], b"#" * 2 * GUARD, about)
                self.assertEqual(here[:GUARD] + here[-GUARD:], b"-" * 2 * GUARD, about)
                if verb in (WRITE, WRITE_IMM):
                    self.assertEqual(there[GUARD:-GUARD], b"-" * size, about)
                else:
                    self.assertEqual(here[GUARD:-GUARD], b"#" * size, about)

    def test_nothing(self) -> None:
        """
        A READ or WRITE of no bytes is not asked for a key, whatever it names (Linux rxe
        C{check_rkey}), but the queue pair must permit it.
        """
        for verb, access in product((WRITE, READ), (int(ALL), 1)):
            self.prepare("region", 0, False, access)
            self.a.send(1, verb, remoteKey=0xDEADBEEF, remoteAddress=1)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, OK if access != 1 else INVALID)])
