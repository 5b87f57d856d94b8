"""
Forged requests for tables on a socket of UDP: what they draw in octets, in each class that has RMPP.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from attrs import evolve
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.support.ownaddress import ownAddress
from twisted_ib import limits
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.roce.packet import PacketFabric
from twisted_ib.hca.fabric.roce.roce import RoCELink
from twisted_ib.hca.host.libc import KernelSocket
from twisted_ib.hca.mad.rmpp.segments import TABLE, control, dataAt, segment
from twisted_ib.hca.wire.headers import BTH, DETH, QUEUE_KEY
from twisted_ib.hca.wire.icrcflow import ICRCState
from twisted_ib.hca.wire.mad.classes import ACK, DATA, FIRST, LAST, RMPPHeader, classHeader
from twisted_ib.hca.wire.mad.mad import Mad
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY
from twisted_ib.hca.wire.rocev2 import PORT

#: Those on queue pair 1.
CLASSES = [number for number in range(256) if dataAt(number) is not None]
VERSION, GET_TABLE, GET_MULTI = 2, 0x12, 0x14
#: Octets of the answer.
TABLE_OCTETS = 65536
#: Forged transfers of each kind.
FORGERS = 20
#: How the segments rise that a forger acknowledges after the first two; L{None} is by chance.
STEPS = (0,), (1,), (0, 1), (1, 1, 0), None


class ReflectionTests(SynchronousTestCase):
    """
    C{serving} has tables; what it sends comes to C{victim}, in whose name somebody asks.
    """

    def setUp(self) -> None:
        """
        Open the device and the victim's socket.
        """
        here, there = ownAddress(1), ownAddress(2)
        self.clock, self.dice = Clock(), Random(32)

        def make(owner: Any, guid: int, clock: Callable[[], float]) -> PacketFabric:
            return PacketFabric(owner, guid, clock, RoCELink(here))

        self.serving = Device("test", self.clock.seconds, make, Random(16).getrandbits, capture="")
        self.addCleanup(self.serving.close)
        self.victim = KernelSocket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(self.victim.close)
        self.victim.bind((there, PORT))
        self.victim.setblocking(False)
        self.flow = ICRCState(gidOf(there), gidOf(here), PORT, 1)
        self.given = self.drawn = self.transactions = 0

    def register(self, kind: int) -> None:
        """
        Have the device answer requests of a class.
        """
        row: Any = classHeader(kind)
        header = row[0](transfer=TABLE)

        def answer(request: Any) -> None:
            agent.reply(request, evolve(request.mad, header=header, data=bytes(TABLE_OCTETS)))

        agent = self.serving.mads.register(kind, VERSION, (GET_TABLE, GET_MULTI), answer, 1)
        self.addCleanup(agent.close)

    def send(self, mad: bytes) -> None:
        """
        Forge a packet, and take what it draws.
        """
        head = BTH.pack(UD_SEND_ONLY, 0, 0xFFFF, GSI_QPN, 1) + DETH.pack(QUEUE_KEY, GSI_QPN)
        packet = self.flow.sign(head + mad)
        self.given += len(packet)
        self.victim.sendto(packet, (ownAddress(1), PORT))
        self.take()

    def take(self) -> None:
        """
        Serve the device, and count what has come.
        """
        while self.serving.progress():
            pass
        with contextlib.suppress(BlockingIOError):
            while True:
                self.drawn += len(self.victim.recv(1 << 16))

    def end(self) -> None:
        """
        Let the time of all transfers pass.
        """
        while len(self.serving.mads.transfers):
            self.clock.advance(1.0)
            self.serving.tick(self.clock.seconds())
            self.take()

    def asked(self, kind: int, method: int = GET_TABLE) -> bytes:
        """
        @return: a request.
        """
        self.transactions += 1
        return Mad(kind, VERSION, method, self.transactions, 0x11).pack()

    def acknowledge(self, kind: int, numbers: Iterable[int]) -> None:
        """
        Forge a request, and the ACKs of these segments, with the largest window.
        """
        question, at = self.asked(kind), dataAt(kind)
        assert at is not None
        self.send(question)
        for number in numbers:
            self.send(control(question, at, ACK, 0, number, 0xFFFFFFFF, responds=False))

    def guesses(self, steps: tuple[int, ...] | None) -> list[int]:
        """
        @return: the segments that a forger acknowledges.
        """
        numbers = [1, 1]
        for turn in range(40):
            step = self.dice.getrandbits(1) if steps is None else steps[turn % len(steps)]
            numbers.append(numbers[-1] + step)
        return numbers

    def test_drawn(self) -> None:
        """
        A request, with an ACK, with many ACKs, and as a transfer that does not end, or ends, draws twice its
        octets at most, however long it is waited.
        """
        self.assertGreater(len(CLASSES), 30)
        for kind in CLASSES:
            self.register(kind)
            for numbers in (), (1,), (1, 1, 1), (1, 2, 3):
                self.acknowledge(kind, numbers)
                self.check(kind, numbers)
            for flags, number in ((FIRST, 1), (FIRST | LAST, 1), (LAST, 2)):
                request = self.asked(kind, GET_MULTI)
                self.send(segment(request, RMPPHeader(1, DATA, 31, flags | 1, 0, number, 20)))
                self.check(kind, flags)
            for steps in STEPS:
                # Of one in 512 chance has it that it proves itself.
                for _ in range(FORGERS if kind in (CLASSES[0], CLASSES[-1]) else 1):
                    self.acknowledge(kind, self.guesses(steps))
                self.check(kind, steps)

    def check(self, *what: object) -> None:
        """
        Wait for the end of all, and compare what was given and drawn since the last time.
        """
        self.end()
        given, drawn, self.given, self.drawn = self.given, self.drawn, 0, 0
        self.assertLessEqual(drawn, limits.RMPP_REFLECTED * given, what)
