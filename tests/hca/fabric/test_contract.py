"""
Reach, work requests, meeting, datagrams and unreliable connections on each fabric:
L{tests.contracts.fabric}, L{tests.contracts.workrequests}, L{tests.contracts.pathresolution},
L{tests.contracts.groups}, L{tests.contracts.unreliable}.
"""

from __future__ import annotations

from functools import partial
from unittest import skipIf

from tests.contracts.fabric import ReachContract
from tests.contracts.groups import GroupContract
from tests.contracts.pathresolution import PathResolutionContract
from tests.contracts.unreliable import UnreliableContract
from tests.contracts.workrequests import WorkRequestContract
from tests.hca.hcas import HCATestCase
from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import libc

MISSING = libc.available()


class Contracts(
    ReachContract, WorkRequestContract, PathResolutionContract, GroupContract, UnreliableContract
):
    """
    All of them.
    """


class LoopbackTests(Contracts, HCATestCase):
    """
    C{lo0}.
    """

    fabric = LoopbackFabric


@skipIf(bool(MISSING), f"missing: {MISSING}")
class RingTests(Contracts, HCATestCase):
    """
    C{shm0} over rings.
    """

    fabric = SharedMemoryFabric


class CarrierTests(Contracts, HCATestCase):
    """
    C{shm0} over sockets.
    """

    fabric = partial(SharedMemoryFabric, rings=False)
