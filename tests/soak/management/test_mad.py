"""
The hostile tests of C{tests.hca.mad} with the large number.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from tests.hca.mad.cases import MADTestCase, OnPackets, OnRings, OnSockets
from tests.hca.mad.sa import test_client
from tests.hca.mad.test_agents import AgentContract
from tests.hca.mad.test_mutated import MutationContract
from tests.support.counting import traced

COUNT = 30_000
#: Bytes that all that hostile datagrams leave may take.
MOST = 1 << 24


class Hostile:
    """
    Datagrams of all classes and lengths.
    """

    hostile = AgentContract.hostile

    def test_random(self: Any) -> None:
        """
        Nothing is raised, and little is kept.  Seed 30.
        """
        self.assertLess(traced(lambda: self.hostile(COUNT, random.Random(30)))[0], MOST)


class LoopbackTests(Hostile, MADTestCase):
    """
    C{lo0}.
    """


class RingTests(OnRings, Hostile, MADTestCase):
    """
    C{shm0} over rings.
    """


class SocketTests(OnSockets, Hostile, MADTestCase):
    """
    C{shm0} over sockets.
    """


class PacketTests(OnPackets, Hostile, MADTestCase):
    """
    C{roce0}.
    """


class Mutated(MutationContract):
    """
    MADs of every class that are almost right.
    """

    count = COUNT

    def attack(self: Any, count: int) -> None:
        """
        Little is kept, while they come and after it.
        """
        self.assertLess(traced(partial(super().attack, count))[1], MOST)


class MutatedRingTests(OnRings, Mutated, MADTestCase):
    """
    C{shm0} over rings.
    """


class MutatedPacketTests(OnPackets, Mutated, MADTestCase):
    """
    C{roce0}.
    """


class AnswerTests(test_client.MutatedTests):
    """
    Answers of subnet administration.
    """

    count = COUNT // 3
    seed = 31
