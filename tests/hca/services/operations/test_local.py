"""
Tests of what ends and opens memory by a work request: LOCAL_INV, BIND_MW, SEND with
invalidate.
"""

from __future__ import annotations

from typing import Any

from tests.hca.queues.keyed_cases import RequesterTestCase, ResponderTestCase, bound
from tests.hca.queues.keyed_pair import ALL, piece
from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.memory.windows import MemoryWindow, WindowType
from twisted_ib.hca.queues.completion import WCFlags, WCOpcode, WCStatus
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode, WindowBind
from twisted_ib.hca.wire import headers
from twisted_ib.hca.wire.headers import INVALIDATE

SEND, SEND_IMM, SEND_INV = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM, SendOpcode.SEND_WITH_INV
WRITE, WRITE_IMM, READ = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM, SendOpcode.RDMA_READ
ADD = SendOpcode.ATOMIC_FETCH_AND_ADD
BIND, INV = SendOpcode.BIND_MW, SendOpcode.LOCAL_INV
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
SIGNALED = int(SendFlags.SIGNALED)
FENCED = SIGNALED | int(SendFlags.FENCE)
REMOTE = int(Access.REMOTE_READ | Access.REMOTE_WRITE)


class BindTests(RequesterTestCase):
    """
    BIND_MW.
    """

    def bind(self, id: int, window: MemoryWindow, length: int = 50, **fields: Any) -> None:
        """
        Post a bind to the source.
        """
        key = window.key ^ 3 if window.type == WindowType.TYPE_2 else None
        bind = WindowBind(window, self.source, self.source.address + 10, length, REMOTE, key)
        self.a.send(id, BIND, bind=bind, **fields)

    def window(self, type: WindowType) -> MemoryWindow:
        """
        A new window here.
        """
        return self.a.memory.allocateWindow(self.a.pd, type)

    def test_types(self) -> None:
        """
        It opens what it names, at once, with the key that its type asks for.
        """
        for type in WindowType:
            window = self.window(type)
            before = window.key
            self.bind(1, window)
            self.assertEqual(self.a.statuses(), [(1, OK)])
            self.assertEqual(window.key == before ^ 3, type == WindowType.TYPE_2)
            self.assertEqual((window.region, window.length), (self.source, 50))
            self.assertIs(window.queuePair, self.a.qp if type == WindowType.TYPE_2 else None)
            self.assertEqual(len(self.a.path.records), 0)

    def test_order(self) -> None:
        """
        A SEND behind it tells the peer of a key that opens already; its completion waits
        for those before it.
        """
        window = self.window(WindowType.TYPE_2)
        self.post(1, WRITE)
        self.bind(2, window)
        self.post(3, SEND)
        self.assertEqual((self.a.statuses(), window.region), ([], self.source))
        self.receives()
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK)])

    def test_onceOnly(self) -> None:
        """
        It is not done again when a request before it is repeated.
        """
        window = self.window(WindowType.TYPE_1)
        self.post(1, SEND)
        self.bind(2, window)
        self.p.flow()
        key = window.key
        self.p.pass_(0.01)
        self.receives()
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])
        self.assertEqual(window.key, key)

    def test_drains(self) -> None:
        """
        One that was done before the queue was drained is finished, one behind is not begun.
        """
        first, second = self.window(WindowType.TYPE_1), self.window(WindowType.TYPE_1)
        self.post(1, SEND)
        self.bind(2, first)
        self.p.flow()
        self.a.qp.modify(QPState.SQD)
        self.bind(3, second)
        self.receives()
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])
        self.assertIsNone(second.region)
        self.a.qp.modify(QPState.RTS)
        self.assertEqual(self.a.statuses(), [(3, OK)])

    def test_errors(self) -> None:
        """
        A bind that is not possible ends with MW_BIND_ERR, behind the requests before it and in
        front of those behind it, and the queue pair is in ERR.
        """
        for name in ("bound", "region", "range", "domain", "another domain", "deallocated", "nothing"):
            self.connect()
            window = self.window(WindowType.TYPE_2)
            length = 50
            if name == "bound":
                self.bind(0, window, flags=0)
            elif name == "region":
                self.source = self.a.register(1000, int(ALL) & ~int(Access.MW_BIND))
            elif name == "range":
                length = self.source.length - 9
            elif name == "domain":
                window = self.a.memory.allocateWindow(self.a.memory.allocateDomain(), WindowType.TYPE_2)
            elif name == "another domain":
                pd = self.a.memory.allocateDomain()
                window = self.a.memory.allocateWindow(pd, WindowType.TYPE_2)
                self.source = self.a.memory.register(bytearray(1000), int(ALL), pd)
            elif name == "deallocated":
                self.a.memory.windows.deallocate(window)
            elif name == "nothing":
                length = 0
            self.post(1, WRITE, 0)
            self.bind(2, window, length, flags=0)
            self.post(3, WRITE, 0)
            self.p.settle()
            expected = [(1, OK), (2, WCStatus.MW_BIND_ERR), (3, FLUSH)]
            self.assertEqual(self.a.statuses(), expected, name)
            self.assertEqual(self.a.qp.state, QPState.ERR)
            self.assertEqual(len(self.a.consumer.failures), 1)

    def test_promised(self) -> None:
        """
        A window of type 1 gets the key that was promised for it.
        """
        window = self.window(WindowType.TYPE_1)
        key = self.a.memory.windows.reserve(window)
        self.post(1, BIND, bind=WindowBind(window, self.source, self.source.address, 5, REMOTE, key))
        self.assertEqual((window.key, self.a.statuses()), (key, [(1, OK)]))
        self.assertEqual(window.reservedKeys, set())

    def test_promiseBroken(self) -> None:
        """
        A bind that is not done leaves no promise: whether it fails, is flushed or
        forgotten; one that is done keeps its key.
        """
        for name in ("fails", "flushed", "reset", "closed", "done"):
            self.connect()
            window = self.window(WindowType.TYPE_1)
            key = self.a.memory.windows.reserve(window)
            access = REMOTE | (int(Access.ZERO_BASED) if name == "fails" else 0)
            if name not in ("fails", "done"):
                self.post(1, READ)
            self.post(2, BIND, flags=FENCED, bind=WindowBind(
                window, self.source, self.source.address, 5, access, key
            ))  # fmt: skip
            self.assertEqual(window.reservedKeys, set() if name in ("fails", "done") else {key})
            if name == "closed":
                self.a.qp.close()
            elif name == "reset":
                self.a.qp.modify(QPState.RESET)
            elif name == "flushed":
                self.a.qp.modify(QPState.ERR)
            self.assertEqual(window.reservedKeys, set(), name)
            self.assertEqual(window.key == key, name == "done")
            self.assertRaises(MemoryAccessError, self.a.memory.windows.bind, window, None, 0, 0, 0, key)

    def test_closed(self) -> None:
        """
        When its queue pair is destroyed a window of type 2 is free.
        """
        window = bound(self.a, self.source)
        self.a.qp.close()
        self.assertIsNone(window.region)

    def test_withoutWhat(self) -> None:
        """
        A BIND_MW that does not say what is refused when it is posted.
        """
        self.assertRaises(QueuePairError, self.a.send, 1, BIND)


class InvalidateTests(RequesterTestCase):
    """
    LOCAL_INV.
    """

    def test_ends(self) -> None:
        """
        The window is free afterwards.
        """
        window = bound(self.a, self.source)
        self.a.send(1, INV, invalidateKey=window.key)
        self.assertEqual(self.a.statuses(), [(1, OK)])
        self.assertIsNone(window.region)

    def test_waits(self) -> None:
        """
        It waits until all before it is done, and what is behind it waits for it.
        """
        window = bound(self.a, self.source)
        self.post(1, WRITE)
        self.a.send(2, INV, invalidateKey=window.key)
        self.post(3, WRITE)
        self.assertEqual((len(self.wire()), window.region), (1, self.source))
        self.p.settle()
        self.assertIsNone(window.region)
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK)])

    def test_errors(self) -> None:
        """
        A key of nothing, of a region, of a window of type 1, that is free or of another
        queue pair: LOC_QP_OP_ERR, and nothing changes.
        """
        for name in ("nothing", "region", "type 1", "free", "queue pair"):
            self.connect()
            memory = self.a.memory
            window = bound(self.a, self.source)
            other = memory.allocateWindow(self.a.pd, WindowType.TYPE_1)
            memory.windows.bind(other, self.source, self.source.address, 10, REMOTE)
            key = {"nothing": 1, "region": self.source.key, "type 1": other.key}.get(name, window.key)
            if name == "free":
                memory.windows.invalidate(key, self.a.qp)
            elif name == "queue pair":
                window.queuePair = self.b.qp
            state = (window.region, other.region)
            self.a.send(1, INV, invalidateKey=key, flags=0)
            self.a.send(2, INV, invalidateKey=key)
            self.assertEqual(self.a.statuses(), [(1, WCStatus.LOC_QP_OP_ERR), (2, FLUSH)], name)
            self.assertRaises(QueuePairError, self.a.qp.modify, QPState.RTS)
            self.assertEqual((window.region, other.region), state)

    def test_behindLocal(self) -> None:
        """
        It goes on when all before it is done, also if that needed no peer, however many such
        requests waited.
        """
        window = self.a.memory.allocateWindow(self.a.pd, WindowType.TYPE_2)
        self.a.qp.modify(QPState.SQD)
        for id in range(0, 120, 2):
            bind = WindowBind(window, self.source, self.source.address, 50, REMOTE, window.key & ~0xFF | id)
            self.a.send(id, BIND, bind=bind)
            self.a.send(id + 1, INV, invalidateKey=bind.key)
        self.a.qp.modify(QPState.RTS)
        self.assertEqual(self.a.statuses(), [(id, OK) for id in range(120)])

    def test_inError(self) -> None:
        """
        In ERR it is flushed and not done.
        """
        window = bound(self.a, self.source)
        self.a.qp.modify(QPState.ERR)
        self.a.send(1, INV, invalidateKey=window.key)
        self.assertEqual(self.a.statuses(), [(1, FLUSH)])
        self.assertIs(window.region, self.source)


class SendInvalidateTests(RequesterTestCase):
    """
    SEND with invalidate.
    """

    def test_invalidates(self) -> None:
        """
        In one record and in many: the data is there, the key is at an end and named in
        the completion.
        """
        for size in (0, 100, 2000):
            self.connect()
            self.patch(limits, "INLINE_MESSAGE", 700)
            window = bound(self.b, self.target)
            key = window.key
            self.receives()
            self.post(1, SEND_INV, size, invalidateKey=key)
            codes = [0x17] if size < 700 else [0x00, 0x01, 0x16]
            self.assertEqual([code for code, _ in self.wire()], codes)
            self.assertEqual(self.wire()[-1][1][:4], INVALIDATE.pack(key))
            self.p.settle()
            (done,) = self.b.received()
            self.assertEqual(
                (done.status, done.opcode, done.byteLength, done.flags, done.immediate),
                (OK, WCOpcode.RECV, size, WCFlags.WITH_INV, key),
            )
            self.assertEqual(bytes(self.target.view[:size]), bytes(self.source.view[:size]))
            self.assertEqual((window.region, self.a.statuses()), (None, [(1, OK)]))

    def test_solicited(self) -> None:
        """
        Its solicited bit is with the code.
        """
        self.post(1, SEND_INV, 1, flags=SIGNALED | SendFlags.SOLICITED)
        self.assertEqual(self.wire()[0][0], 0x97)

    def test_repeated(self) -> None:
        """
        One that finds no receive invalidates nothing until it is repeated.
        """
        window = bound(self.b, self.target)
        self.post(1, SEND_INV, invalidateKey=window.key)
        self.p.flow()
        self.assertIs(window.region, self.target)
        self.receives()
        self.p.settle()
        self.assertEqual((window.region, self.a.statuses()), (None, [(1, OK)]))

    def test_failure(self) -> None:
        """
        A key that cannot be invalidated: the receive ends with REM_INV_REQ_ERR and its queue pair
        with it; the SEND was consumed, and the requests behind it find no queue pair.
        """
        for name in ("nothing", "region", "free", "queue pair"):
            self.connect(timeout=1, retry_cnt=0)
            window = bound(self.b, self.target)
            key = {"nothing": 1, "region": self.target.key}.get(name, window.key)
            if name == "free":
                self.b.memory.windows.invalidate(key, self.b.qp)
            elif name == "queue pair":
                window.queuePair = self.a.qp
            region = window.region
            self.receives(2)
            self.post(1, SEND_INV, invalidateKey=key)
            self.post(2, SEND)
            self.p.settle()
            self.assertEqual([c.status for c in self.b.received()], [WCStatus.REM_INV_REQ_ERR, FLUSH], name)
            self.assertEqual(self.a.statuses(), [(1, OK), (2, WCStatus.RETRY_EXC_ERR)], name)
            self.assertEqual((self.b.qp.state, self.b.events), (QPState.ERR, []))
            self.assertIs(window.region, region)

    def test_failureWhileAnswering(self) -> None:
        """
        READs before it are answered first.
        """
        self.connect(timeout=1, retry_cnt=0)
        self.receives()
        self.b.path.capacity = 0
        self.post(1, READ)
        self.post(2, SEND_INV, invalidateKey=1)
        self.p.flow()
        self.assertEqual((self.b.qp.state, self.b.received()), (QPState.RTS, []))
        self.b.path.capacity = 1 << 18
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])
        self.assertEqual([c.status for c in self.b.received()], [WCStatus.REM_INV_REQ_ERR])


class InvalidateRecordTests(ResponderTestCase):
    """
    Records of a hostile peer.
    """

    def test_short(self) -> None:
        """
        An IETH that is cut.
        """
        for code in (0x16, 0x17):
            for size in range(4):
                self.connect()
                self.b.receive(1, piece(self.target))
                if code == 0x16:
                    self.put(0x00, b"1")
                self.assertEqual(self.put(code, b"abcd"[:size]), headers.NAK_INVALID_REQUEST)
                self.assertEqual(self.b.events, [EventType.QP_REQ_ERR])

    def test_tooLong(self) -> None:
        """
        A message that does not fit invalidates nothing.
        """
        self.b.receive(1, piece(self.target, 0, 2))
        window = bound(self.b, self.target)
        self.assertEqual(self.put(0x17, INVALIDATE.pack(window.key) + b"123"), headers.NAK_INVALID_REQUEST)
        self.assertIs(window.region, self.target)
        self.assertEqual([c.status for c in self.b.received()], [WCStatus.LOC_LEN_ERR])
