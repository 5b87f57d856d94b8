"""
Tests of windows that a connection opens for its peer: L{twisted_ib.internet.region.RDMAWindow}.
"""

from __future__ import annotations

import sys
from typing import Any

from zope.interface.verify import verifyObject

from tests.rdma.pair import PairTestCase
from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, ResourceLimitError, WorkCompletionError, WrongThreadError
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.interfaces import IRDMAWindow

_BINDABLE = Access.LOCAL_WRITE | Access.MW_BIND
_WINDOW = Access.REMOTE_READ | Access.REMOTE_WRITE | Access.REMOTE_ATOMIC


class WindowTests(PairTestCase):
    """
    C{two} opens windows on a region of 64 bytes for C{one}.
    """

    def setUp(self) -> None:
        """
        Connect them.
        """
        super().setUp()
        self.one, self.two = self.pair.connected()
        self.buffer = bytearray(range(64))
        self.region = self.two.registerMemory(self.buffer, _BINDABLE)

    def result(self, deferred: Any) -> Any:
        """
        @return: What it fires with when all has settled.
        """
        self.settle()
        return self.successResultOf(deferred)

    def assertDenied(self, deferred: Any) -> None:
        """
        An access must fail, and the connection end.
        """
        self.settle()
        reason = self.failureResultOf(deferred, WorkCompletionError)
        self.assertEqual(reason.value.statusName, "REM_ACCESS_ERR")
        self.assertEqual(self.one.heard.log, ["ConnectionLost"])

    def windows(self) -> int:
        """
        @return: How many windows there are.
        """
        return sum(end.device.inUse()["mw"] for end in self.pair.ends)

    def test_open(self) -> None:
        """
        A window opens its part of the region, which itself grants the peer nothing.
        """
        window = self.two.grant(self.region, _WINDOW, 8, 16)
        verifyObject(IRDMAWindow, window)
        self.assertEqual((window.address, window.length), (self.region.address + 8, 16))
        self.assertEqual((window.revoked, self.region.remoteKey, self.windows()), (False, 0, 1))
        one, key = self.one, window.remoteKey
        self.assertEqual(self.result(one.rdmaRead(2, window.address, key)), b"\x08\x09")
        self.result(one.rdmaWrite(bytes(8), window.address, key))
        self.assertEqual(self.result(one.fetchAdd(window.address, key, 3)), 0)
        self.assertEqual(self.result(one.compareAndSwap(window.address, key, 3, 4)), 3)
        self.assertEqual(self.buffer[:16], bytes([*range(8)]) + (4).to_bytes(8, sys.byteorder))

    def test_rest(self) -> None:
        """
        By default a window has the rest of the region.
        """
        window = self.two.grant(self.region, Access.REMOTE_READ)
        self.assertEqual((window.address, window.length), (self.region.address, 64))
        window = self.two.grant(self.region, Access.REMOTE_READ, 60)
        self.assertEqual((window.address, window.length), (self.region.address + 60, 4))

    def test_zeroBased(self) -> None:
        """
        A peer may be told to count from 0.
        """
        window = self.two.grant(self.region, Access.REMOTE_READ | Access.ZERO_BASED, 10)
        self.assertEqual((window.address, window.length), (0, 54))
        self.assertEqual(self.result(self.one.rdmaRead(2, 1, window.remoteKey)), b"\x0b\x0c")

    def test_allocated(self) -> None:
        """
        Memory that a peer may map is opened so too, and no more of it.
        """
        region = self.two.registerMemory(1 << 20, _BINDABLE)
        region.view[4096:8192] = b"a" * 4096
        mine = self.one.registerMemory(1 << 20)
        window = self.two.grant(region, Access.REMOTE_READ, 4096, 65536)
        self.assertEqual(self.result(self.one.rdmaRead(65536, window.address, window.remoteKey, mine)), 65536)
        self.assertEqual(bytes(mine.view[:4097]), b"a" * 4096 + b"\0")
        self.assertDenied(self.one.rdmaRead(65537, window.address, window.remoteKey, mine))

    def test_outside(self) -> None:
        """
        Memory outside of the window stays closed.
        """
        window = self.two.grant(self.region, _WINDOW, 8, 16)
        self.assertDenied(self.one.rdmaWrite(b"xx", window.address + 15, window.remoteKey))
        self.assertEqual(self.buffer, bytes(range(64)))

    def test_rights(self) -> None:
        """
        A window grants what was asked for and no more.
        """
        window = self.two.grant(self.region, Access.REMOTE_READ)
        self.assertDenied(self.one.fetchAdd(window.address, window.remoteKey, 1))
        self.assertEqual(self.buffer, bytes(range(64)))

    def test_revoked(self) -> None:
        """
        A window that is revoked opens nothing; another on the same region goes on.
        """
        first = self.two.grant(self.region, _WINDOW)
        second = self.two.grant(self.region, _WINDOW)
        first.revoke()
        first.revoke()
        self.assertEqual((first.revoked, second.revoked, self.windows()), (True, False, 1))
        self.assertIn("revoked", repr(first))
        self.assertNotIn(str(second.remoteKey), repr(second))
        self.assertEqual(self.result(self.one.rdmaRead(1, second.address, second.remoteKey)), b"\0")
        self.assertDenied(self.one.fetchAdd(first.address, first.remoteKey, 1))
        self.assertEqual(self.buffer, bytes(range(64)))
        self.assertTrue(second.revoked)
        self.assertEqual(self.windows(), 0)

    def test_forgotten(self) -> None:
        """
        A region does not keep windows that were revoked.
        """
        for _ in range(3):
            self.two.grant(self.region, _WINDOW).revoke()
        self.assertEqual(self.region.windows, set())

    def test_otherConnection(self) -> None:
        """
        Two connections open one buffer; each key is of use to one of them.
        """
        three, four = self.pair.connected()
        region = four.registerMemory(self.buffer, _BINDABLE)
        mine = self.two.grant(self.region, _WINDOW)
        other = four.grant(region, _WINDOW)
        mine.revoke()
        self.assertEqual(self.result(three.rdmaRead(1, other.address + 5, other.remoteKey)), b"\5")
        self.assertDenied(self.one.rdmaRead(1, other.address, other.remoteKey))
        self.assertFalse(other.revoked)
        self.assertRaises(MemoryAccessError, four.grant, self.region, _WINDOW)

    def test_regionClosed(self) -> None:
        """
        With the region its windows are revoked.
        """
        with self.two.grant(self.region, _WINDOW) as first:
            second = self.two.grant(self.region, _WINDOW)
            self.region.close()
        self.assertTrue(first.revoked and second.revoked and self.region.closed)
        self.assertEqual(self.windows(), 0)
        self.assertRaises(MemoryAccessError, self.two.grant, self.region, _WINDOW)

    def test_with(self) -> None:
        """
        A window is a context manager that revokes it.
        """
        with self.two.grant(self.region, _WINDOW) as window:
            self.assertFalse(window.revoked)
        self.assertTrue(window.revoked)

    def test_closedWithConnection(self) -> None:
        """
        Nothing is left of a connection with windows, whoever ends it.
        """
        for end in ("one", "two"):
            one, two = self.pair.connected()
            window = two.grant(two.registerMemory(8, _BINDABLE), _WINDOW)
            {"one": one, "two": two}[end].loseConnection()
            self.settle()
            self.assertTrue(window.revoked)
        self.one.loseConnection()
        self.settle()
        for each in self.pair.ends:
            self.assertEqual({kind: n for kind, n in each.device.inUse().items() if n}, {})

    def test_invalidated(self) -> None:
        """
        A peer that invalidates the window (SEND with invalidate) takes its own rights; to revoke
        it then does no harm.
        """
        raw, transport = self.pair.raw()
        region = transport.registerMemory(8, _BINDABLE)
        window = transport.grant(region, _WINDOW)
        raw.send(1, SendOpcode.SEND_WITH_INV, invalidateKey=window.remoteKey)
        self.settle()
        self.assertEqual([done.status for done in raw.polled()], [WCStatus.SUCCESS])
        raw.send(8, SendOpcode.RDMA_READ, remoteAddress=window.address, remoteKey=window.remoteKey)
        self.settle()
        self.assertEqual([done.status for done in raw.polled()[:1]], [WCStatus.REM_ACCESS_ERR])
        window.revoke()
        region.close()
        self.assertEqual(self.windows(), 0)

    def test_refused(self) -> None:
        """
        A window that cannot be opened raises by name, and leaves nothing.
        """
        grant = self.two.grant
        for offset, length in ((0, 0), (64, None), (-1, 8), (60, 5), (0, -1)):
            self.assertRaises(MemoryAccessError, grant, self.region, _WINDOW, offset, length)
        self.assertRaises(MemoryAccessError, grant, self.region, 1 << 30)
        plain = self.two.registerMemory(8, Access.LOCAL_WRITE)
        self.assertRaises(MemoryAccessError, grant, plain, Access.REMOTE_READ)
        fixed = self.two.registerMemory(bytes(8), Access.MW_BIND)
        self.assertRaises(MemoryAccessError, grant, fixed, Access.REMOTE_WRITE)
        self.assertEqual(self.windows(), 0)
        grant(fixed, Access.REMOTE_READ)

    def test_limit(self) -> None:
        """
        A device has so many windows; the error says so.
        """
        self.patch(limits, "MEMORY_WINDOWS", 1)
        self.two.grant(self.region, _WINDOW)
        self.assertRaises(ResourceLimitError, self.two.grant, self.region, _WINDOW)

    def test_otherThread(self) -> None:
        """
        Windows belong to the reactor's thread.
        """
        window = self.two.grant(self.region, _WINDOW)
        self.two.thread += 1
        self.assertRaises(WrongThreadError, self.two.grant, self.region, _WINDOW)
        self.assertRaises(WrongThreadError, window.revoke)
        self.two.thread -= 1
        self.assertFalse(window.revoked)
