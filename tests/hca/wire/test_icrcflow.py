"""
Tests of L{twisted_ib.hca.wire.icrcflow}: which packets are believed.
"""

from __future__ import annotations

import sys
from random import Random

from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.support import packets
from tests.support.generated import given
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.wire import icrcflow
from twisted_ib.hca.wire.icrcflow import LONGEST_PACKET, RIGHT, ICRCState, crc32
from twisted_ib.hca.wire.rocev2 import UDPDatagram

HERE, THERE = gidOf("10.77.0.2"), gidOf("10.77.0.3")
V6 = gidOf("fd77::2"), gidOf("fd77::3")


def packet(identification: int, body: bytes = bytes(20), gids: tuple[bytes, bytes] = (HERE, THERE)) -> bytes:
    """
    The UDP payload of a packet.
    """
    source, destination = (int.from_bytes(gid, "big") for gid in gids)
    made = UDPDatagram(source, destination, 0xC001, body, identification=identification).pack()
    return made[28 if made[0] >> 4 == 4 else 48 :]


class FlowTests(SynchronousTestCase):
    """
    L{ICRCState.isRight}.
    """

    def setUp(self) -> None:
        """
        A flow.
        """
        self.flow = ICRCState(HERE, THERE, 0xC001)

    def right(self, octets: bytes, number: int = 0) -> bool:
        """
        Whether a packet is believed.
        """
        return self.flow.isRight(memoryview(b"xy" + octets + b"z"), 2, 2 + len(octets), number)

    def test_kernel(self) -> None:
        """
        Packets of a kernel, which counts.
        """
        for octets in (packets.SEND, packets.READ_RESPONSE):
            flow = ICRCState(HERE, THERE, 0xF65D)
            self.assertTrue(flow.isRight(memoryview(octets), 28, len(octets)))

    @given(st.integers(0, 0xFFFF), st.integers(0, 63), st.binary(min_size=12, max_size=90))
    def test_any(self, identification: int, number: int, body: bytes) -> None:
        """
        Any identification will do at first, whatever is expected.
        """
        body += bytes(-len(body) & 3)
        self.assertTrue(
            ICRCState(HERE, THERE, 0xC001).isRight(
                memoryview(packet(identification, body)), 0, len(body) + 4, number
            )
        )

    @given(st.binary(min_size=12, max_size=90), st.integers(0, 1000))
    def test_residue(self, body: bytes, where: int) -> None:
        """
        The CRC of a packet with its ICRC tells whether it is right: one bit more or less, and it differs.
        """
        octets = bytearray(packet(0, body + bytes(-len(body) & 3)))
        octets[4] = 0
        state = self.flow.state(len(octets))
        self.assertEqual(crc32(self.flow.sign(bytes(octets[:-4])), state), RIGHT)
        octets[:] = self.flow.sign(bytes(octets[:-4]))
        octets[where % len(octets)] ^= 1 << where % 8
        self.assertNotEqual(crc32(octets, state), RIGHT)

    def test_counting(self) -> None:
        """
        A sender that counts identifications may use any.
        """
        for n in range(65500, 65500 + 200):
            self.assertTrue(self.right(packet(n & 0xFFFF)), n)
            self.assertTrue(self.right(packet(n & 0xFFFF), n & 3), n)

    def test_expected(self) -> None:
        """
        A flow that begins with the expected identifications is held to them: no damaged packet passes,
        though one in 65,536 would be right with another identification.
        """
        for n in (0, 1):
            self.assertTrue(self.right(packet(n), n))
        self.assertFalse(self.right(packet(0x1234)))
        self.assertFalse(self.right(packet(0x1235)))
        self.assertTrue(self.right(packet(0)))
        self.assertFalse(self.right(packet(0x1234)))
        # Segments whose place is not known.
        self.assertTrue(self.right(packet(17), 3))
        self.assertTrue(self.right(packet(3), 17))

    def test_changed(self) -> None:
        """
        Another host may get the address.
        """
        for _ in range(10):
            self.assertTrue(self.right(packet(0)))
        answers = [self.right(packet(n)) for n in range(5000, 5010)]
        self.assertEqual(answers, [False] * 3 + [True] * 7)
        self.assertTrue(self.right(packet(0)))
        self.assertTrue(self.right(packet(7000)))

    def test_impostor(self) -> None:
        """
        Another host forges the address of a sender that counts, and has the expected identification, before
        it and between: little is lost by that.
        """
        self.assertTrue(self.right(packet(0)))
        self.assertTrue(self.right(packet(0)))
        answers = []
        for n in range(5000, 5010):
            answers.append(self.right(packet(n)))
            self.assertTrue(self.right(packet(0)))
        self.assertEqual(answers, [False] * 3 + [True] * 7)

    def test_sizes(self) -> None:
        """
        The cache of a flow has a bound, which grows once it is trusted; the table for checking packets of a
        length is computed once.
        """
        stranger = ICRCState(HERE, THERE, 0xC001, 3)
        for size in range(16, 200, 4):
            stranger.state(size)
            self.assertLessEqual(len(stranger.states), 3)
        stranger.most = 100
        for size in range(16, 200, 4):
            stranger.state(size)
        self.assertEqual(len(stranger.states), 46)
        # Each connection has two of these, and its peer chooses what is sent, or answered.
        flow = ICRCState(HERE, THERE, 0xC001)
        sizes = []
        for size in range(16, LONGEST_PACKET, 4):
            flow.state(size)
            sizes.append(sys.getsizeof(flow.states) + 2 * 32 * len(flow.states))
        self.assertLess(max(sizes), 16 * 1024)
        icrcflow._undoing.cache_clear()
        for _ in range(2):
            for octets in range(12, LONGEST_PACKET, 4):
                icrcflow.identificationOf(0, octets)
        self.assertEqual(icrcflow._undoing.cache_info().misses, len(range(12, LONGEST_PACKET, 4)))

    def test_long(self) -> None:
        """
        Packets above IBTA's longest are right with the place in a batch that they can have, and leave no
        table.
        """
        icrcflow._undoing.cache_clear()
        for octets, several in ((8192, 7), (61440, 1)):
            for identification in (*range(several), several, 5000, 0xFFFF):
                for number in (0, several - 1):
                    made = packet(identification, bytes(octets + 12))
                    self.assertIs(self.right(made, number), identification < several, identification)
            damaged = bytes([*packet(0, bytes(octets + 12))[:-1], 1])
            self.assertFalse(self.right(damaged))
        self.assertEqual(icrcflow._undoing.cache_info().misses, 0)

    def test_longDamaged(self) -> None:
        """
        Damaged packets of many lengths leave no more states than they have lengths.
        """
        for octets in range(8192, 8192 + 80, 4):
            self.assertFalse(self.right(bytes([*packet(0, bytes(octets))[:-1], 1])))
        self.assertEqual(len(self.flow.states), 20)

    def test_damaged(self) -> None:
        """
        Damage is found.
        """
        dice = Random(1)
        for gids, flow in (((HERE, THERE), self.flow), (V6, ICRCState(*V6, 0xC001))):
            good = packet(0, dice.randbytes(200), gids)
            for _ in range(2):
                self.assertTrue(flow.isRight(memoryview(good), 0, len(good)))
            for _ in range(3000):
                damaged = bytearray(good)
                at = dice.randrange(8 * len(good))
                damaged[at >> 3] ^= 1 << (at & 7)
                masked = at >> 3 == 4  # Routers may change this one.
                self.assertEqual(flow.isRight(memoryview(damaged), 0, len(good)), masked)
