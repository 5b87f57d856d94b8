"""
The contracts of L{tests.contracts.peers} and L{tests.contracts.path} on each fabric.
"""

from __future__ import annotations

from functools import partial
from unittest import skipIf

from tests.contracts.path import FlowContract, RefusalContract
from tests.contracts.peers import DeathContract, ServiceContract, SleepContract
from tests.hca.hcas import HCATestCase
from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import libc

MISSING = libc.available()


class LoopbackTests(
    ServiceContract, SleepContract, DeathContract, FlowContract, RefusalContract, HCATestCase
):
    """
    C{lo0}.
    """

    fabric = LoopbackFabric


@skipIf(bool(MISSING), f"missing: {MISSING}")
class RingTests(ServiceContract, SleepContract, DeathContract, FlowContract, RefusalContract, HCATestCase):
    """
    C{shm0} over rings.
    """

    fabric = SharedMemoryFabric


class CarrierTests(ServiceContract, SleepContract, DeathContract, FlowContract, RefusalContract, HCATestCase):
    """
    C{shm0} over sockets.
    """

    fabric = partial(SharedMemoryFabric, rings=False)
