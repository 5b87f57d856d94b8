"""
Tests of an HCA among strangers.  The full numbers are in C{tests/soak/test_packets.py}.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from tests.hca.fabric.roce import flood
from tests.hca.fabric.roce.flood import RATE, FloodTestCase
from tests.simulation.streams import ADDRESSES, PORT
from twisted_ib import limits
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.connection.rdmacm import PortSpace, serviceID
from twisted_ib.hca.fabric.roce import connparams, receive
from twisted_ib.hca.wire.cm.messages import DREQ, LAP, MRA, REJ, REP, SIDR_REQ, byAttribute
from twisted_ib.hca.wire.rocev2 import datagramPort

_CM_PORT = 55410


class FloodTests(FloodTestCase):
    """
    Forged requests and damaged packets.
    """

    def test_small(self) -> None:
        """
        Some more than may be half open.
        """
        self.flood(6000, 1500)
        statistics = self.device.statistics()
        self.assertGreater(statistics["cm_half_open_replaced"], 1000)
        self.assertLessEqual(self.device.cm._halfOpenLimit.halfOpen, limits.CM_HALF_OPEN_ADDRESSES)
        # None of the strangers was given a queue pair or a protocol.
        self.assertEqual(self.accepted, self.honest + 3)
        for name in ("packets_malformed", "packets_bad_icrc", "packets_unknown_qp"):
            self.assertGreater(statistics[name], 0, name)
        # Requests that no listener answers wait for it; all others are given up in time.
        self.streams.world.run(lambda: not self.device.cm.accepted, 400.0)
        self.assertEqual(self.device.cm.accepted, {})
        self.assertTrue(
            all(
                connection.listener.__class__.__name__ == "Deaf"
                for connection in self.device.cm._halfOpenLimit.strangers.values()
            )
        )

    def test_oneSource(self) -> None:
        """
        One source takes its own places only.
        """
        self.stranger = lambda: "10.1.2.3"  # type: ignore[method-assign]
        self.honest = 0
        self.arrive(limits.CM_HALF_OPEN_PER_ADDRESS + 100, self.forged)
        self.assertEqual(self.device.cm._halfOpenLimit.halfOpen, limits.CM_HALF_OPEN_PER_ADDRESS)

    def test_sifted(self) -> None:
        """
        While more requests come than can be answered those that come once are dropped, as strangers' are, and
        somebody honest is answered at the second.
        """
        waiting, counters = 0, self.device.counters
        self.patch(self.link, "waiting", lambda: waiting)
        self.honest = 0
        self.arrive(1800, self.forged)
        self.assertGreater(len(self.device.reserved), receive.SIFTED_HALF_OPEN)
        self.assertEqual(counters["requests_sifted"], 0)
        waiting, known = receive.SIFTED_WAITING, len(self.device.reserved)
        self.arrive(600, self.forged)
        again = [self.forged() for _ in range(10)]
        self.arrive(20, iter(again * 2).__next__)
        # And two of somebody honest; two requests may have one bit.
        self.assertIn(counters["requests_sifted"], range(605, 613))
        self.assertLessEqual(len(self.device.reserved), known + 10 + 3)
        waiting, known = waiting - 1, counters["requests_sifted"]
        self.arrive(10, self.forged)
        self.assertEqual((counters["requests_sifted"], self.honest), (known, 5))

    def test_siftedRefused(self) -> None:
        """
        So are those for a port that nobody listens at, to refuse which takes the time that others need, once
        more than a socket keeps have come while many waited; a burst is not sifted.
        """
        waiting, counters = receive.SIFTED_WAITING, self.device.counters
        self.patch(self.link, "waiting", lambda: waiting)
        for name in ("PORT", "MESSAGES_PORT", "DEAF_PORT"):
            self.patch(flood, name, PORT + 100)
        self.honest = 0
        self.arrive(receive.SIFTED_BURST - 100, self.forged)
        self.assertEqual(counters["requests_sifted"], 0)
        waiting -= 1
        self.arrive(150, self.forged)
        waiting += 1
        self.arrive(receive.SIFTED_BURST - 200, self.forged)
        self.assertEqual(counters["requests_sifted"], 0)
        # The kernel drops none.
        self.patch(self.link, "sift", lambda program: None)
        self.arrive(1000, self.forged)
        sifted = counters["requests_sifted"]
        self.assertGreater(sifted, 700)
        self.assertGreater(self.honest, 5)
        # Also those that come again.
        refused = self.device.cm.counters["noListener"]
        again = [self.forged() for _ in range(10)]
        self.arrive(50, iter(again * 5).__next__)
        self.assertGreaterEqual(counters["requests_sifted"], sifted + 50)
        self.assertEqual(self.device.cm.counters["noListener"], refused)
        self.assertLess(len(self.device.reserved), receive.SIFTED_HALF_OPEN)

    def test_siftedByKernel(self) -> None:
        """
        Of those the kernel drops all but the first, as long as they come and a little longer, so that nearly
        none has to be read; who asks where somebody listens comes through.
        """
        waiting, counters, world = receive.SIFTED_WAITING, self.device.counters, self.streams.world
        self.patch(self.link, "waiting", lambda: waiting)
        for name in ("PORT", "MESSAGES_PORT", "DEAF_PORT"):
            self.patch(flood, name, PORT + 100)
        self.honest = 0
        self.arrive(receive.SIFTED_BURST - 100, self.forged)
        self.assertEqual((self.link.filter, self.link.filtered), (b"", 0))
        self.arrive(100, self.forged)
        for _ in range(2):
            begun, sifted = world.now, counters["requests_sifted"]
            refused, filtered = self.device.cm.counters["noListener"], self.link.filtered
            self.arrive(5000, self.forged)
            self.assertLess(counters["requests_sifted"], sifted + 30)
            self.assertGreater(self.link.filtered, filtered + 4900)
            self.assertLess(self.device.cm.counters["noListener"], refused + 30)
            self.assertLess(world.now - begun, receive.SIFT_SECONDS)
            # None comes any more: then one is refused again.  The next time it needs no burst.
            waiting = 0
            world.run(lambda: not self.link.filter, receive.SIFT_MOST_SECONDS)
            self.assertEqual(self.device.fabric.sifting.until, 0.0)
            refused = self.device.cm.counters["noListener"]
            self.arrive(1, self.forged)
            self.assertEqual(self.device.cm.counters["noListener"], refused + 1)
            waiting = receive.SIFTED_WAITING
        self.assertGreaterEqual(self.honest, 6)
        # Who begins to listen meanwhile is asked at once.
        self.arrive(10, self.forged)
        self.assertTrue(self.link.filter)
        self.device.listen(PortSpace.TCP, ADDRESSES[1], PORT + 100, flood.Deaf())
        self.assertEqual(self.link.filter, b"")
        # What has ended leaves nothing.
        self.arrive(10, self.forged)
        self.patch(flood, "PORT", PORT + 101)
        world.run(lambda: False, receive.AGAIN_SECONDS)
        self.arrive(20, self.forged)
        self.assertTrue(self.link.filter)
        self.device.close()
        self.assertEqual(self.link.filter, b"")

    def test_sieve(self) -> None:
        """
        What is remembered is bounded, and forgotten in time; a second one is never dropped.
        """
        sieve, dice = receive.Sieve(), Random(1)
        some = [dice.randbytes(4) for _ in range(100)]
        self.assertLess(sum(sieve.passes("10.0.0.1", each) for each in some), 3)
        for turn in range(3):
            passed = sum(sieve.passes("10.0.0.2", dice.randbytes(4)) for _ in range(receive.SIFTED_REQUESTS))
            self.assertLess(passed, receive.SIFTED_REQUESTS // 6)
            if not turn:
                self.assertTrue(all(sieve.passes("10.0.0.1", each) for each in some))
                # The hash has another key in each process.
                more = [dice.randbytes(4) for _ in range(100)]
                self.assertLess(sum(sieve.passes("10.0.0.1", each) for each in more), 50)
        self.assertLess(sum(sieve.passes("10.0.0.1", each) for each in some), 50)

    def test_sourcePorts(self) -> None:
        """
        Requests of strangers open no UDP source port, or a few that the strangers do not choose if they say
        theirs: the links' ports are for connections.
        """
        asked: set[int] = set()
        sourcePort = self.device.fabric.link.sourcePort

        def note(wanted: int) -> int:
            asked.add(wanted)
            port: int = sourcePort(wanted)
            return port

        self.patch(self.device.fabric.link, "sourcePort", note)
        for said, ports in ((0, 0), (0xC001, connparams.PACKET_ACCEPT_PORTS)):
            self.said, answered = said, self.device.cm._halfOpenLimit.halfOpen
            asked.clear()
            for _ in range(1000):
                source, octets = self.forged()
                self.link.take((source, _CM_PORT, ADDRESSES[1], octets, 0))
                self.streams.world.run(lambda: False, 1 / RATE)
            self.assertGreater(self.device.cm._halfOpenLimit.halfOpen, answered + 500)
            # That of the answers is open.
            self.assertEqual(len(asked - {datagramPort(GSI_QPN)}), ports)

    def test_reflection(self) -> None:
        """
        No message with a forged source draws more than twice its bytes towards that source, however long it
        is waited; a request that is repeated draws one reply each time.
        """
        drawn: Counter[str] = Counter()
        given: Counter[str] = Counter()
        network = self.streams.world.network
        send = network.send

        def note(source: Any, destination: str, port: int, octets: bytes, trafficClass: int) -> None:
            drawn[destination] += len(octets)
            send(source, destination, port, octets, trafficClass)

        self.patch(network, "send", note)
        dice, kinds = self.dice, dict[str, str]()

        def arrive(kind: str, source: str, octets: bytes, times: int) -> None:
            kinds[source] = kind
            for _ in range(times):
                given[source] += len(octets)
                self.link.take((source, _CM_PORT, ADDRESSES[1], octets, 0))
                self.streams.world.run(lambda: False, 0.01)

        for turn in range(60):
            source = f"10.9.0.{turn + 1}"
            self.stranger = lambda source=source: source  # type: ignore[method-assign]
            arrive("REQ", *self.forged(), 1 + turn % 3)
        others = {
            "DREQ": DREQ(1, 2, 3),
            "LAP": LAP(1, 2),
            "REP": REP(1, 2),
            "SIDR_REQ": SIDR_REQ(serviceID=serviceID(PortSpace.UDP, PORT), requestID=7),
            "REJ": REJ(1, 2, 0, reason=10),
            "MRA": MRA(1, 2, 1, 31),
        }
        for number, (kind, message) in enumerate(others.items()):
            source = f"10.9.1.{number + 1}"
            octets = self.management(source, message.attribute, message.pack())
            arrive(kind, source, octets, 2)
        for turn in range(200):
            source = f"10.9.2.{turn + 1}"
            attribute = dice.choice((*byAttribute, dice.getrandbits(16)))
            arrive("random", source, self.management(source, attribute, dice.randbytes(232)), 2)
        self.streams.world.run(lambda: False, 300.0)
        factors = {kind: 0.0 for kind in kinds.values()}
        for source, kind in kinds.items():
            factors[kind] = max(factors[kind], drawn[source] / given[source])
        self.assertLessEqual(max(factors.values()), 2.0, factors)
        # REQs of one message and all others.
        self.assertEqual((factors["REQ"], factors["DREQ"], factors["SIDR_REQ"]), (2.0, 1.0, 1.0))
