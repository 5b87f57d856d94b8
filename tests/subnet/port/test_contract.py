"""
The contracts of every fabric, on a subnet: L{tests.contracts}.  The paths are those of another fabric,
which keeps the contracts of paths.
"""

from __future__ import annotations

from unittest import skipIf

from tests.contracts.fabric import ReachContract
from tests.contracts.peers import DeathContract, ServiceContract, SleepContract
from tests.subnet.port.subnets import OnSubnetRings, SubnetTestCase
from twisted_ib.hca.host import libc

MISSING = libc.available()


class LoopbackTests(ServiceContract, SleepContract, DeathContract, ReachContract, SubnetTestCase):
    """
    Records within a thread.
    """


@skipIf(bool(MISSING), f"missing: {MISSING}")
class RingTests(OnSubnetRings, ServiceContract, SubnetTestCase):
    """
    Records on rings.
    """
