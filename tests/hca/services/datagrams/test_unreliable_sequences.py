"""
Unreliable services under whatever comes: from peers, and from programs.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.queues.keyed_pair import piece
from tests.hca.services.datagrams.cases import record
from tests.hca.services.datagrams.datagram_pair import DatagramPair
from tests.hca.services.datagrams.unreliable_pair import UnreliablePair
from tests.support.generated import given, settings
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import Destination, SendFlags, SendOpcode
from twisted_ib.hca.wire.grh import guidGID
from twisted_ib.hca.wire.headers import IMMEDIATE, RETH

SEED = 20270


class HostileTests(SynchronousTestCase):
    """
    Peers that send anything.
    """

    def test_datagrams(self) -> None:
        """
        Any record is received whole or dropped whole and counted; nothing is raised, and the queue
        pair goes on.
        """
        rng = random.Random(SEED)
        p = DatagramPair()
        p.b.hca.attached[0xFF << 120] = [p.b.qp]
        memory = bytearray(1000)
        region = p.b.memory.register(memoryview(memory)[100:300], 1, p.b.pd)
        received = 0
        for n in range(5000):
            data = bytearray(record("00" * rng.randrange(8), 24 + 4 * rng.randrange(3)))
            for _ in range(rng.randrange(3)):
                data[rng.randrange(len(data))] = rng.choice((0, 1, 0xFF, rng.randrange(256)))
            if not rng.randrange(3):
                del data[rng.randrange(len(data)) :]
            if not rng.randrange(20):
                data[24:40] = b"\xff" + bytes(15)
            opcode = rng.choice((0x64, 0x65, 0xE4, 0xE5, rng.randrange(256)))
            p.b.receive(n, piece(region))
            number = 18 if len(data) >= 40 else 0xFFFFFF
            p.b.hca.counters.clear()
            p.ends[0].post(opcode << 24 | number, b"", bytes(data), len(data))
            p.flow()
            completions = p.b.received()
            received += len(completions)
            for c in completions:
                self.assertEqual((c.status, c.byteLength <= 200), (WCStatus.SUCCESS, True))
            isForB = len(data) >= 40 and (data[24] != 0xFF or not any(data[25:40]))
            if isForB:
                self.assertEqual(len(completions) + sum(p.b.hca.counters.values()), 1)
            self.assertEqual(p.b.qp.state, QPState.RTS)
            if len(p.b.work.responder._receives) > 100:
                p.b.qp.modify(QPState.RESET)
                p.b.to(QPState.RTS)
            memory[100:300] = bytes(200)
            self.assertEqual(memory, bytes(1000), "nothing outside of the region is written")
        self.assertGreater(received, 200)
        self.assertEqual(p.b.consumer.failures, [])

    def test_connection(self) -> None:
        """
        With any records, nothing is refused, nothing that was not granted is written, each receive
        completes once, and then a whole message still arrives.
        """
        rng = random.Random(SEED)
        p = UnreliablePair()
        memory = bytearray(1000)
        region = p.b.memory.register(memoryview(memory)[100:200], 3, p.b.pd)
        inbox = p.b.register(50)
        posted, ended = 0, Counter[int]()
        for _ in range(5000):
            if rng.randrange(2) and posted - sum(ended.values()) < 100:
                p.b.receive(posted, piece(inbox, 0, rng.randrange(51)))
                posted += 1
            header = RETH.pack(
                region.address + rng.choice((0, 0, 1, 99, 100, -1)),
                region.remoteKey ^ rng.choice((0, 0, 0, 1)),
                rng.choice((0, 1, 4, 10, 100, 101, 1 << 31)),
            )
            data = rng.choice((b"", header)) + rng.choice((b"", IMMEDIATE.pack(1)))
            data += bytes(rng.choice((0, 1, 4, 10, 60)))
            code = rng.choice((rng.randrange(12), rng.randrange(12), rng.randrange(32)))
            opcode = code | 0x20 | rng.choice((0, 0, 0x40, 0x80))
            p.a.path.post(opcode << 24 | 18, b"", data, len(data))
            p.flow()
            ended.update(c.workRequestID for c in p.b.received() if c.status == WCStatus.SUCCESS)
            self.assertEqual((p.b.qp.state, list(p.b.path.records)), (QPState.RTS, []))
            memory[100:200] = bytes(100)
            self.assertEqual(memory, bytes(1000))
        self.assertGreater(len(ended), 200)
        self.assertEqual(set(ended.values()), {1})
        self.assertGreater(p.b.path.fabric.counters["messages_dropped"], 1000)
        p.b.receive(posted, piece(inbox))
        p.a.send(1, SendOpcode.SEND, inline=b"x")
        p.flow()
        self.assertEqual([c.status for c in p.b.received()], [WCStatus.SUCCESS])


VERB = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(list(SendOpcode)), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("receive"), st.integers(0, 100)),
    st.tuples(st.just("modify"), st.sampled_from(list(QPState))),
    st.tuples(st.just("climb")),
    st.tuples(st.just("flow")),
    st.tuples(st.just("peer")),
)


class SequenceTests(SynchronousTestCase):
    """
    Programs that call verbs in any order.
    """

    def run_(self, p: Any, verbs: list[tuple[Any, ...]], fields: dict[str, Any]) -> None:
        """
        Call verbs on C{a}; its peer sends sometimes.

        Invariants: no exception but the declared ones; each accepted request completes once and in
        order, or is forgotten by a RESET; nothing is left at the end.
        """
        a, b = p.a, p.b
        region = a.register(200)
        sends: list[int] = []
        receives: list[int] = []
        done: dict[str, list[int]] = {"send": [], "receive": []}
        answer = dict(fields)
        if "destination" in fields:
            answer = {"destination": fields["destination"][1]}
            fields = {"destination": fields["destination"][0]}

        def collect() -> None:
            done["send"] += [id for id, _ in a.statuses()]
            done["receive"] += [c.workRequestID for c in a.received()]
            for taken, ended in ((sends, done["send"]), (receives, done["receive"])):
                self.assertEqual(ended, taken[: len(ended)])

        for id, (verb, *arguments) in enumerate(verbs):
            try:
                if verb == "send":
                    opcode, kind, inline = arguments
                    pieces = (piece(region, 0, 10), SGE(0, 1, 0), piece(region, 0, 0), piece(region))[kind]
                    flags = int(SendFlags.SIGNALED) | (int(SendFlags.INLINE) if inline else 0)
                    a.send(id, opcode, pieces, flags=flags, **fields)
                    sends.append(id)
                elif verb == "receive":
                    a.receive(id, piece(region, 0, arguments[0]))
                    receives.append(id)
                elif verb == "modify":
                    a.qp.modify(arguments[0])
                elif verb == "climb":
                    a.to(QPState.RTS, 18)
                elif verb == "peer":
                    b.send(id, SendOpcode.SEND, inline=b"hello", **answer)
            except (QueuePairError, ResourceLimitError):
                pass
            except Exception as error:
                # Inline data is taken at once, and so found missing at once.
                self.assertEqual((verb, type(error).__name__), ("send", "MemoryAccessError"))
            p.flow()
            collect()
            if a.qp.state == QPState.RESET:
                sends[len(done["send"]) :] = receives[len(done["receive"]) :] = []
        a.qp.modify(QPState.ERR)
        collect()
        self.assertEqual((done["send"], done["receive"]), (sends, receives))
        a.qp.close()
        a.memory.deregister(region)
        self.assertEqual({k: v for k, v in a.pd.users.items() if k != "address handles"}, {})

    @settings(max_examples=150, deadline=None)
    @given(st.lists(VERB, max_size=30))
    def test_connection(self, verbs: list[tuple[Any, ...]]) -> None:
        """
        On an unreliable connection.
        """
        p = UnreliablePair()
        target = p.b.register(1000)
        self.run_(p, verbs, {"remoteAddress": target.address, "remoteKey": target.remoteKey})

    @settings(max_examples=150, deadline=None)
    @given(st.lists(VERB, max_size=30))
    def test_datagrams(self, verbs: list[tuple[Any, ...]]) -> None:
        """
        On a datagram queue pair.
        """
        p = DatagramPair()
        there = Destination(p.a.handle(guidGID(0xB1)), 18, 0x11111111)
        back = Destination(p.b.handle(guidGID(0xA1)), 17, 0x11111111)
        self.run_(p, verbs, {"destination": (there, back)})
