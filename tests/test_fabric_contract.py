"""
Reach, work requests, meeting and datagrams on each fabric: L{tests.contracts.fabric},
L{tests.contracts.keyed}, L{tests.contracts.meeting}, L{tests.contracts.groups}.
"""

from __future__ import annotations

from functools import partial
from unittest import skipIf

from tests.contracts.fabric import ReachContract
from tests.contracts.groups import GroupContract
from tests.contracts.keyed import KeyedContract
from tests.contracts.meeting import MeetingContract
from tests.hcas import HCATestCase
from twisted_ib.hca.fabric import libc
from twisted_ib.hca.fabric.loopback import LoopbackFabric
from twisted_ib.hca.fabric.shm import SharedMemoryFabric

MISSING = libc.available()


class LoopbackTests(ReachContract, KeyedContract, MeetingContract, GroupContract, HCATestCase):
    """
    C{lo0}.
    """

    fabric = LoopbackFabric


@skipIf(bool(MISSING), f"missing: {MISSING}")
class RingTests(ReachContract, KeyedContract, MeetingContract, GroupContract, HCATestCase):
    """
    C{shm0} over rings.
    """

    fabric = SharedMemoryFabric


class CarrierTests(ReachContract, KeyedContract, MeetingContract, GroupContract, HCATestCase):
    """
    C{shm0} over sockets.
    """

    fabric = partial(SharedMemoryFabric, rings=False)
