"""
Two HCAs with the agents of toy classes: for tests of management on each fabric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import skipIf

from tests.hca.hcas import HCATestCase, User, settle
from tests.hca.mad.toys.echo import EchoAgent
from tests.hca.mad.toys.node import NodeAgent
from tests.hca.memorylink import Wire, deviceOn
from twisted_ib.hca.base.operation import GSI_QPN, SMI_QPN
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import libc
from twisted_ib.hca.mad import agents
from twisted_ib.hca.mad.requests import ReceivedMAD
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.grh import GRH_BYTES, length, packGRH
from twisted_ib.hca.wire.headers import DETH, QUEUE_KEY
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY

MISSING = libc.available()


class MADTestCase(HCATestCase):
    """
    C{a} and C{b}, on C{lo0} unless a subclass says otherwise.

    @cvar toys: the agents that every device begins with, besides those of the package: a row each.
    """

    fabric = LoopbackFabric
    toys: tuple[tuple[int, Callable[[Any], Any]], ...] = ((SMI_QPN, NodeAgent), (GSI_QPN, EchoAgent))

    def setUp(self) -> None:
        """
        Open both.
        """
        super().setUp()
        #: What each device began with.
        self.agents: list[Any] = []
        rows = [(number, partial(self._begin, toy)) for number, toy in self.toys]
        self.patch(agents, "AGENTS", (*agents.AGENTS, *rows))
        self.a, self.b = self.device(), self.device()
        # Devices of processes begin with them when they first need one.
        self.tables = [each.mads for each in (self.a, self.b)]
        self._path: Any = None

    def _begin(self, toy: Callable[[Any], Any], device: Any) -> None:
        self.agents.append(toy(device))

    def of(self, kind: type, device: Device) -> Any:
        """
        @return: the agent of a class of a device.
        """
        mads = device.mads
        (found,) = [each for each in self.agents if each.__class__ is kind and each.agent._agents is mads]
        return found

    def address(self, device: Device) -> AddressVector:
        """
        @return: the address of a device.
        """
        return AddressVector(device.gid)

    def settle(self) -> None:
        """
        Let everything move.
        """
        settle(self.a, self.b)

    def wait(self, seconds: float) -> None:
        """
        Let time pass.
        """
        self.clock.advance(seconds)
        for device in (self.a, self.b):
            device.tick(self.clock.seconds())
        self.settle()

    def record(self, octets: bytes, key: int = QUEUE_KEY, source: int = 1, gid: int | None = None) -> bytes:
        """
        @return: a datagram of C{a} for C{b}, as its path carries it.
        """
        grh = packGRH(0, 0, length(len(octets)), 64, self.a.gid if gid is None else gid, self.b.gid)
        return grh + DETH.pack(key, source) + octets

    def write(self, number: int, record: bytes, opcode: int = UD_SEND_ONLY) -> None:
        """
        Send C{b} any record.
        """
        if self._path is None:
            user = User()
            self.a.fabric.reach(self.b.guid, user)
            settle(self.a, self.b)
            self._path = user.path
        assert self._path.post(opcode << 24 | number, b"", record, len(record))

    def counted(self, number: int, record: bytes, opcode: int = UD_SEND_ONLY) -> dict[str, int]:
        """
        Send C{b} any record.

        @return: the counters that it changes.
        """
        before = Counter(self.b.counters)
        self.write(number, record, opcode)
        self.settle()
        return dict(Counter(self.b.counters) - before)

    def ask(self, kind: type, target: Device, **changes: Any) -> list[ReceivedMAD | None]:
        """
        C{a} asks the agent of a toy class.

        @return: the list that its response comes to.
        """
        responses: list[ReceivedMAD | None] = []
        own = self.of(kind, self.a)
        own.agent.send(self.address(target), own.question(), responses.append, **changes)
        self.settle()
        return responses


@skipIf(bool(MISSING), f"missing: {MISSING}")
class OnRings:
    """
    C{shm0} over rings.
    """

    fabric = SharedMemoryFabric


class OnSockets:
    """
    C{shm0} over sockets.
    """

    fabric = partial(SharedMemoryFabric, rings=False)


class OnPackets:
    """
    C{roce0}, which has no queue pair 0.
    """

    def setUp(self: Any) -> None:
        """
        An empty wire.
        """
        self.wire = Wire()
        self._count = 0
        super().setUp()

    def device(self: Any) -> Device:
        """
        @return: a new HCA, closed after the test.
        """
        self._count += 1
        device = deviceOn(self.wire, f"192.0.2.{self._count}", self.clock.seconds)
        self.addCleanup(device.close)
        return device

    def write(self: Any, number: int, record: bytes, opcode: int = UD_SEND_ONLY) -> None:
        """
        Send C{b} any packet.
        """
        rest = record[GRH_BYTES:]
        self.a.fabric.transmitter.datagram(self.b.address, opcode, number, 0, 0xFFFF, 1, rest, 0, 64)
