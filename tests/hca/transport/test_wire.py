"""
Tests for L{twisted_ib.hca.transport.reliable}: two connections, and what a wire does to packets.

C{python -m tests.hca.transport.test_wire FIRST LAST} makes the runs of these seeds.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

from attrs import evolve
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.transport.pair import TERMS, Arrivals, End, Pair
from tests.support.generated import given, settings
from twisted_ib import limits
from twisted_ib.hca.base.operation import RNR_EXHAUSTED, SILENT
from twisted_ib.hca.transport.parameters import ConnectionParameters, Packet
from twisted_ib.hca.transport.reliable import ReliableConnection
from twisted_ib.hca.wire.headers import NAK_REMOTE_ACCESS, RETH
from twisted_ib.hca.wire.opcodes import SEND_ONLY, SEND_ONLY_IMMEDIATE, WRITE_ONLY, Kind

SECONDS_BEHIND = 0.003


class Story:
    """
    Some of everything that is asked of the peer, and how to see that it was done.
    """

    def __init__(self, pair: Pair) -> None:
        """
        Post it at one end.
        """
        self.pair = pair
        end, peer = pair.ends
        peer.memory[8:16] = bytes(8)
        self.message = bytes(range(256)) * 4
        position = iter(range(1, 100))
        post = pair.connections[0].post
        post(SEND_ONLY, b"", b"first", 5, next(position), pair.now)
        self.reads = {next(position): (0x1000, 700)}
        end.read(0x1000, 700, 2)
        post(SEND_ONLY, b"", self.message, 1024, next(position), pair.now)
        end.atomic(8, 5, next(position))
        post(WRITE_ONLY, RETH.pack(0, 0, 300), bytes(300), 300, next(position), pair.now)
        end.atomic(8, 7, next(position), compare=5)
        self.reads[next(position)] = (0x2000, 256)
        end.read(0x2000, 256, 7)
        post(SEND_ONLY_IMMEDIATE, b"immd", b"last", 4, next(position), pair.now)
        end.atomicWrite(0x3000, b"8 octets", 9)
        self.last = 9

    def check(self, case: SynchronousTestCase) -> None:
        """
        All was done once, in order, and nothing is left to do.
        """
        end, peer = self.pair.ends
        case.assertEqual(end.refusals, [])
        case.assertEqual(end.done[-1], self.last)
        case.assertEqual(
            peer.messages,
            [
                (Kind.SEND, b"first", b""),
                (Kind.SEND, self.message, b""),
                (Kind.WRITE, bytes(300), RETH.pack(0, 0, 300)),
                (Kind.SEND, b"last", b"immd"),
            ],
        )
        case.assertEqual((peer.atomics, bytes(peer.memory[0x3000:0x3008])), (3, b"8 octets"))
        for position, (address, length) in self.reads.items():
            case.assertEqual(end.answers[position], bytes(peer.memory[address : address + length]))
        case.assertEqual((end.answers[4], end.answers[6]), (bytes(8), bytes(7) + b"\5"))
        for connection in self.pair.connections:
            case.assertFalse(connection.pending())
            case.assertIsNone(connection.deadline())


class PositionTests(SynchronousTestCase):
    """
    One thing happens to one packet, each in turn.
    """

    def _each(self, what: Any, parameters: ConnectionParameters = TERMS) -> None:
        """
        Do something to the first packet, to the second, and so on, of each end.

        @param what: called with a packet: what arrives of it.
        """
        clean = Pair(parameters)
        Story(clean)
        clean.run()
        for side in (0, 1):
            for position in range(len(clean.sent[side])):
                pair = Pair(parameters)

                def fault(sender: int, index: int, packet: Packet, at: Any = (side, position)) -> Arrivals:
                    arrivals: Arrivals = what(packet) if (sender, index) == at else [(0.0, packet)]
                    return arrivals

                pair.fault = fault
                story = Story(pair)
                pair.run(60.0)
                story.check(self)

    def test_clean(self) -> None:
        """
        Nothing happens.
        """
        pair = Pair()
        story = Story(pair)
        pair.run()
        story.check(self)
        self.assertEqual((pair.ends[0].counts, pair.ends[1].counts), ({}, {}))

    def test_lost(self) -> None:
        """
        It is lost.
        """
        self._each(lambda packet: [])

    def test_twice(self) -> None:
        """
        It comes twice, at once and a little later.
        """
        self._each(lambda packet: [(0.0, packet), (0.0, packet)])
        self._each(lambda packet: [(0.0, packet), (SECONDS_BEHIND, packet)])

    def test_late(self) -> None:
        """
        Others overtake it.
        """
        self._each(lambda packet: [(SECONDS_BEHIND, packet)])
        self._each(lambda packet: [(1.0, packet)])

    def test_windowOfOne(self) -> None:
        """
        It is lost where one packet is on the way at a time.
        """
        self.patch(limits, "TRANSPORT_WINDOW", 1)
        self.patch(limits, "TRANSPORT_READ", 1)
        self._each(lambda packet: [], evolve(TERMS, reads=1, peerReads=1))

    def test_parts(self) -> None:
        """
        It is lost where READs are asked for in parts of two packets.
        """
        self.patch(limits, "TRANSPORT_READ", 2)
        self._each(lambda packet: [])


class FaultTests(SynchronousTestCase):
    """
    Greater troubles.
    """

    def _settle(self, pair: Pair, seconds: float = 1000.0) -> None:
        """
        A story with troubles that ends well.
        """
        story = Story(pair)
        pair.run(seconds)
        story.check(self)

    def test_acknowledgements(self) -> None:
        """
        Of what the peer sends two thirds are lost.
        """
        pair = Pair()
        pair.fault = lambda sender, index, packet: [] if sender and index % 3 else [(0.0, packet)]
        self._settle(pair)

    def test_blackout(self) -> None:
        """
        For three of four seconds that the terms permit, nothing arrives.
        """
        pair = Pair()
        until = pair.now + 3.0
        pair.fault = lambda sender, index, packet: [(0.0, packet)] if pair.now > until else []
        self._settle(pair)
        self.assertLess(pair.now, until + 1.5)

    def test_dead(self) -> None:
        """
        For ever nothing arrives: the oldest request fails after eight timeouts.
        """
        pair = Pair()
        begun = pair.now
        pair.fault = lambda sender, index, packet: []
        Story(pair)
        pair.run()
        self.assertEqual(pair.ends[0].refusals, [(1, SILENT)])
        self.assertAlmostEqual(pair.now, begun + 8 * 0.5)

    def test_far(self) -> None:
        """
        A way of 750 ms, known or not, where the timeout permits it; nothing is sent in vain
        once that is known.
        """
        for roundTrip in (None, 1.5):
            pair = Pair(evolve(TERMS, timeout=4.0, roundTrip=roundTrip))
            pair.delay = 0.75
            self._settle(pair)
            self.assertLess(pair.now, 100 + 15)
            if roundTrip:
                self.assertEqual(pair.ends[0].counts["completer_retry_err"], 0)

    def test_farUnknown(self) -> None:
        """
        The same where the timeout is shorter than the way, which is not known: the round trip
        is found, and then little is sent in vain.
        """
        for timeout in (1.0, 0.537, 0.45):
            pair = Pair(evolve(TERMS, mtu=1024, timeout=timeout))
            pair.delay = 0.75
            left, data = 16, bytes(65536)
            for _ in range(100000):
                while left and pair.connections[0].post(SEND_ONLY, b"", data, 65536, 17 - left, pair.now):
                    left -= 1
                if not pair.step() and not left:
                    break
            self.assertEqual(pair.ends[0].done[-1], 16)
            self.assertLess(pair.now, 100 + 40)
            self.assertLess(pair.ends[0].counts["completer_retry_err"], 16)

    def test_receives(self) -> None:
        """
        Receives come one by one.
        """
        pair = Pair()
        peer = pair.ends[1]
        peer.receives = 0
        story = Story(pair)
        for _ in range(3):
            pair.run(0.2)
            peer.receives += 1
        pair.run(10.0)
        story.check(self)
        self.assertGreater(pair.ends[0].counts["rcvd_rnr_err"], 3)

    def test_noReceives(self) -> None:
        """
        They never come.
        """
        pair = Pair(evolve(TERMS, rnrRetries=3))
        pair.ends[1].receives = 1
        Story(pair)
        pair.run()
        self.assertEqual(pair.ends[0].refusals, [(3, RNR_EXHAUSTED)])
        self.assertEqual(pair.ends[0].counts["rcvd_rnr_err"], 4)

    def test_refused(self) -> None:
        """
        The third request is refused: what is before it is done.
        """
        pair = Pair()
        Story(pair)
        pair.ends[1].syndrome, pair.ends[1].refusing = NAK_REMOTE_ACCESS, Kind.WRITE
        pair.run()
        self.assertEqual(pair.ends[0].refusals, [(5, NAK_REMOTE_ACCESS)])
        self.assertEqual(pair.ends[0].done[-1], 4)

    def test_stale(self) -> None:
        """
        Packets of an earlier connection of the same queue pairs come in between.
        """
        old = Pair(evolve(TERMS, firstPSN=0x300000, expectedPSN=0x500000))
        Story(old)
        old.run()
        pair = Pair()
        stale = old.sent

        def fault(sender: int, index: int, packet: Packet) -> Arrivals:
            return [(0.0, packet), (0.0, stale[sender][index % len(stale[sender])])]

        pair.fault = fault
        self._settle(pair)

    def test_wrap(self) -> None:
        """
        A message goes over the end of all numbers, and so does its answer.
        """
        for first in range(0xFFFFF0, 0x1000000):
            pair = Pair(evolve(TERMS, firstPSN=first, expectedPSN=first))
            self._settle(pair)

    def test_manyPackets(self) -> None:
        """
        A megabyte each way, READ and sent, with one packet in fifty lost.
        """
        pair = Pair(evolve(TERMS, mtu=1024))
        random = Random(1)
        pair.fault = lambda *sent: [] if random.random() < 0.02 else [(0.0, sent[2])]
        data = random.randbytes(65536)
        end, peer = pair.ends
        left = 16
        end.read(0, 1 << 19, 100)
        for _ in range(100000):
            while left and peer.connection.post(SEND_ONLY, b"", data, 65536, 17 - left, pair.now):
                left -= 1
            if not pair.step() and not left:
                break
        self.assertEqual((peer.done[-1], end.done), (16, [100]))
        self.assertEqual([message[1] == data for message in end.messages], [True] * 16)
        self.assertEqual(end.answers[100], bytes(peer.memory))
        self.assertLess(pair.now, 100 + 20)

    def test_terms(self) -> None:
        """
        Each path MTU works.
        """
        for mtu in (256, 512, 1024, 2048, 4096):
            self._settle(Pair(evolve(TERMS, mtu=mtu)))


class SeededTests(SynchronousTestCase):
    """
    Everything at once.
    """

    def run_(self, seed: int) -> None:
        """
        One run.
        """
        random = Random(seed)
        loss, copies, late = (random.choice((0.0, 0.02, 0.2)) for _ in range(3))
        pair = Pair(
            evolve(
                TERMS,
                mtu=random.choice((256, 1024, 4096)),
                firstPSN=random.choice((0, 0xFFFFFE, 0x7FFFFF)),
                timeout=4.0,
                reads=random.choice((1, 2, 4)),
            )
        )
        pair.delay = random.choice((0.00005, 0.01))
        pair.ends[1].isHolding = random.random() < 0.3

        def fault(sender: int, index: int, packet: Packet) -> Arrivals:
            if random.random() < loss:
                return []
            arrivals = [(random.random() * 3 * pair.delay if random.random() < late else 0.0, packet)]
            if random.random() < copies:
                arrivals.append((random.random() * 5 * pair.delay, packet))
            return arrivals

        pair.fault = fault
        story = Story(pair)
        for _ in range(20000):
            if random.random() < 0.5:
                pair.ends[1].answer()
            if not pair.step() and not pair.connections[1].pending():
                pair.ends[1].answer()
                if not pair.connections[1].pending():
                    break
        story.check(self)

    def test_seeds(self) -> None:
        """
        A hundred runs.
        """
        for seed in range(100):
            try:
                self.run_(seed)
            except BaseException:
                print(f"python -m tests.hca.transport.test_wire {seed} {seed + 1}")
                raise


class HostileTests(SynchronousTestCase):
    """
    Any packets that a peer may send.
    """

    @settings(max_examples=60)
    @given(st.data())
    def test_anything(self, data: st.DataObject) -> None:
        """
        Nothing raises, and nothing of a packet that does not belong there comes up.
        """
        end = End()
        end.syndrome = data.draw(st.sampled_from((0, 0, 0x40, 0x41, 0x25, 0x62)))
        connection = ReliableConnection(TERMS, 18, end)
        end.connection = connection
        connection.post(SEND_ONLY, b"", bytes(1000), 1000, 1, 0.0)
        end.read(0, 1000, 2)
        connection.outputs(100, 0.0)
        packets = st.tuples(
            st.one_of(st.integers(0, 255), st.sampled_from((0x00, 0x01, 0x02, 0x04, 0x0C, 0x0D, 0x11, 0x14))),
            st.one_of(st.integers(-3, 12), st.integers(0, 0xFFFFFF)),
            st.booleans(),
            st.one_of(
                st.binary(max_size=40),
                st.sampled_from((b"\x60\0\0\1", b"\x1f\0\0\1", RETH.pack(0, 7, 1000), bytes(256), bytes(28))),
            ),
        )
        for code, psn, ask, body in data.draw(st.lists(packets, max_size=30)):
            connection.receive(code, 0xFFFFFE + psn & 0xFFFFFF, ask, body, 0, len(body), 0.0)
            connection.outputs(16, 0.0)
        for _ in range(100):
            if not connection.pending():
                break
            connection.outputs(16, 0.0)
        else:
            self.fail("it goes on sending")

    def test_atomicsOnce(self) -> None:
        """
        A thousand copies of one atomic execute it once.
        """
        pair = Pair()
        pair.fault = lambda sender, index, packet: [(i / 1000, packet) for i in range(1000 - 999 * sender)]
        pair.ends[0].atomic(8, 1, 1)
        pair.run()
        self.assertEqual(pair.ends[1].atomics, 1)


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        SeededTests("run_").run_(number)
        print(number, end="\r")
