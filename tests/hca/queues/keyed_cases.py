"""
Bases of tests of requester and responder.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.queues.keyed_pair import ALL, Pair, Side, piece
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.hca.memory.windows import MemoryWindow, WindowType
from twisted_ib.hca.queues.requests import SendOpcode, WindowBind
from twisted_ib.hca.wire.headers import RETH


def bound(
    side: Side, region: MemoryRegion, offset: int = 0, length: int = 100, access: int = int(ALL)
) -> MemoryWindow:
    """
    A new window of type 2, bound to bytes of a region for the side's queue pair.
    """
    memory = side.memory
    window = memory.allocateWindow(side.pd, WindowType.TYPE_2)
    remote = access & int(Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC)
    memory.windows.bind(window, region, region.address + offset, length, remote, window.key ^ 1, side.qp)
    return window


class RequesterTestCase(SynchronousTestCase):
    """
    A connected pair with a source here and a target there.
    """

    def connect(self, **arguments: Any) -> None:
        """
        Make the pair C{self.p}: see L{Pair}.
        """
        self.p = Pair(**arguments)
        self.a, self.b = self.p.a, self.p.b
        self.source = self.a.register(bytes(range(256)) * 40)
        self.target = self.b.register(10240)

    def setUp(self) -> None:
        """
        Connect with the default attributes.
        """
        self.connect()

    def post(self, id: int, opcode: SendOpcode, length: int = 100, **fields: Any) -> None:
        """
        Post a send of the first bytes of the source; what is remote is the target.  A BIND_MW
        binds a new window of type 1, a LOCAL_INV or SEND with invalidate ends a new one of
        type 2.  An ATOMIC WRITE has 8 bytes.
        """
        if opcode == SendOpcode.ATOMIC_WRITE:
            length = 8
        fields.setdefault("remoteAddress", self.target.address)
        fields.setdefault("remoteKey", self.target.remoteKey)
        if opcode == SendOpcode.BIND_MW:
            window = self.a.memory.allocateWindow(self.a.pd, WindowType.TYPE_1)
            bind = WindowBind(window, self.source, self.source.address, 100, int(Access.REMOTE_READ))
            fields.setdefault("bind", bind)
        elif opcode == SendOpcode.LOCAL_INV:
            fields.setdefault("invalidateKey", bound(self.a, self.source).key)
        elif opcode == SendOpcode.SEND_WITH_INV:
            fields.setdefault("invalidateKey", bound(self.b, self.target).key)
        pieces = (
            () if opcode in (SendOpcode.BIND_MW, SendOpcode.LOCAL_INV) else (piece(self.source, 0, length),)
        )
        self.a.send(id, opcode, *pieces, **fields)

    def receives(self, count: int = 1) -> None:
        """
        Post receives at the other end.
        """
        for id in range(count):
            self.b.receive(100 + id, piece(self.target))

    def wire(self) -> list[tuple[int, bytes]]:
        """
        The records in the medium: opcodes and bytes.
        """
        return [(word >> 24, data) for _, word, data in self.a.path.records]


class ResponderTestCase(SynchronousTestCase):
    """
    A connected pair; what is looked at is the end C{b}.
    """

    def connect(self, **arguments: Any) -> None:
        """
        Make the pair C{self.p}: see L{Pair}.
        """
        self.p = Pair(**arguments)
        self.a, self.b = self.p.a, self.p.b
        self.source = self.a.register(bytes(range(1, 201)) * 50)
        self.target = self.b.register(10000)

    def setUp(self) -> None:
        """
        Connect with the default attributes.
        """
        self.connect()

    def put(self, opcode: int, data: bytes = b"") -> int:
        """
        Deliver one record to C{b}, as a hostile peer would.

        @return: the syndrome of its refusal, or 0.
        """
        answer: int = self.b.work.delivered(opcode, b"<<<" + data + b">>>", 3, 3 + len(data))
        return answer

    def reth(self, length: int, address: int = 0, key: int | None = None) -> bytes:
        """
        A header that names the target's bytes from C{address} on.
        """
        return RETH.pack(self.target.address + address, self.target.remoteKey if key is None else key, length)

    def window(self, address: int = 0, length: int = 100) -> int:
        """
        Bind a new window of type 2 to bytes of the target.

        @return: its key.
        """
        return bound(self.b, self.target, address, length).key

    def clean(self) -> bool:
        """
        Whether nothing was written to the target.
        """
        return bytes(self.target.view) == bytes(10000)
