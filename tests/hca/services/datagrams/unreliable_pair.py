"""
Two queue pairs of an unreliable connection, joined by a medium in memory: for tests.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.queues.keyed_pair import ALL, End, Pair, climb, piece
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.wire.headers import RETH


class UnreliableEnd(End):
    """
    One side of an unreliable connection.
    """

    def equip(self, depth: int, shared: int = 0, signalAll: bool = False) -> None:
        self.qp = QueuePair(self.qp.number, self.consumer, None, QPType.UC)
        super().equip(depth, shared, signalAll)

    def to(self, state: QPState, peer: int, access: int = int(ALL), **changes: int) -> None:
        path: Any = self.path
        steps: list[tuple[QPState, dict[str, Any]]] = [
            (QPState.INIT, {"pkey_index": 0, "port_num": 1, "qp_access_flags": access}),
            (QPState.RTR, {"ah_attr": path, "dest_qp_num": peer, "path_mtu": 5, "rq_psn": 0}),
            (QPState.RTS, {"sq_psn": 0}),
            (QPState.SQD, {}),
        ]
        climb(self.qp, state, steps)


class UnreliablePair(Pair):
    """
    Two ends of an unreliable connection.
    """

    def __init__(
        self,
        capacity: int = 1 << 18,
        state: QPState = QPState.RTS,
        shared: int = 0,
        signalAll: bool = False,
    ) -> None:
        """
        @param state: of both.
        """
        self.clock = Clock()
        self.a = UnreliableEnd(17, self.clock, capacity, 1, 512, 0, signalAll)
        self.b = UnreliableEnd(18, self.clock, capacity, 2, 512, shared)
        self.a.path.other, self.b.path.other = self.b.path, self.a.path
        self.a.to(state, 18)
        self.b.to(state, 17)


class UnreliableTestCase(SynchronousTestCase):
    """
    A connection, a source and a target.
    """

    def connect(self, **arguments: Any) -> None:
        """
        Make the pair C{self.p}.
        """
        self.p = UnreliablePair(**arguments)
        self.a, self.b = self.p.a, self.p.b
        self.source = self.a.register(bytes(range(256)) * 1024, segment=True)
        self.target = self.b.register(1 << 18)

    def setUp(self) -> None:
        """
        In RTS.
        """
        self.connect()

    def post(self, id: int, opcode: SendOpcode, length: int = 100, **fields: Any) -> None:
        """
        Post a send of the first bytes of the source; what is remote is the target.
        """
        fields.setdefault("remoteAddress", self.target.address)
        fields.setdefault("remoteKey", self.target.remoteKey)
        self.a.send(id, opcode, piece(self.source, 0, length), **fields)

    def wire(self) -> list[int]:
        """
        The codes in the medium.
        """
        return [word >> 24 for _, word, _ in self.a.path.records]

    def put(self, opcode: int, data: bytes = b"") -> int:
        """
        Let a record arrive at C{b}.

        @return: messages that were dropped so far.
        """
        word = (opcode | 0x20) << 24 | 18
        assert self.a.path.post(word, b"", data, len(data))
        self.p.flow()
        # Nothing is ever refused.
        self.assertEqual(list(self.b.path.records), [])
        self.assertEqual(self.b.qp.state, QPState.RTS)
        return self.dropped

    @property
    def dropped(self) -> int:
        """
        Messages that C{b} has dropped.
        """
        return self.b.path.fabric.counters["messages_dropped"]

    def got(self) -> list[tuple[Any, ...]]:
        """
        Completions of receives at C{b}: number, status, length, flags, immediate.
        """
        return [(c.workRequestID, c.status, c.byteLength, c.flags, c.immediate) for c in self.b.received()]

    def reth(self, length: int, offset: int = 0, key: int | None = None) -> bytes:
        """
        A header that names a part of the target.
        """
        return RETH.pack(self.target.address + offset, self.target.remoteKey if key is None else key, length)
