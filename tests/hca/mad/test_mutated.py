"""
MADs of every class that are almost right, from a peer that knows the transactions of its victim.
"""

from __future__ import annotations

import random
from typing import Any

from attrs import evolve

from tests.hca.mad.cases import MADTestCase, OnPackets, OnRings
from tests.hca.mad.toys.echo import EchoAgent
from tests.hca.mad.toys.node import NodeAgent
from tests.hca.mad.toys.table import GET_MULTI, GET_TABLE, TableAgent
from twisted_ib.hca.base.operation import GSI_QPN, SMI_QPN
from twisted_ib.hca.mad.attributes.notice import ClassPortInfo
from twisted_ib.hca.mad.attributes.performance import PortCounters, PortCountersExtended, PortSamplesControl
from twisted_ib.hca.mad.rmpp.segments import RMPP_SECONDS, segment
from twisted_ib.hca.mad.vendor import OPENIB, PING
from twisted_ib.hca.wire.cm.messages import REJ, REQ, RTU
from twisted_ib.hca.wire.mad import cm
from twisted_ib.hca.wire.mad.classes import (
    ABORT,
    ACK,
    DATA,
    PERFORMANCE,
    STOP,
    OrganizationHeader,
    RMPPHeader,
)
from twisted_ib.hca.wire.mad.mad import GET, GET_RESPONSE, RESPONSE, SET, Mad

COUNT = 300
#: Requests of the victim that wait at a time.
WAITING = 8


class Mutator:
    """
    Makes MADs.
    """

    def __init__(self, dice: random.Random, victim: Any) -> None:
        """
        @param victim: its requests are answered.
        """
        self.dice, self.victim = dice, victim
        self._questions = [
            Mad(PERFORMANCE, 1, method, 0, kind.ID, kind(portSelect=1).pack())
            for kind in (PortCounters, PortCountersExtended, PortSamplesControl)
            for method in (GET, SET)
        ]
        self._questions += [
            Mad(PERFORMANCE, 1, GET, 0, ClassPortInfo.ID),
            Mad(PING, 1, GET, 0, 0, header=OrganizationHeader(organization=OPENIB)),
            victim.question(5),
            cm.wrap(REQ.attribute, REQ(5, localQPN=6).pack(), 5),
            cm.wrap(RTU.attribute, RTU(5, 6).pack(), 5),
            cm.wrap(REJ.attribute, REJ(5, 6).pack(), 5),
            EchoAgent.question(None),  # type: ignore[arg-type]
            NodeAgent.question(None),  # type: ignore[arg-type]
        ]

    def _transaction(self) -> int:
        requests = list(self.victim.agent._agents._requests)
        known = [key[2] for key in requests] + [1, 2, 3]
        found: int = self.dice.choice(known)
        return found

    def _segment(self) -> bytes:
        dice = self.dice
        method = dice.choice((GET_TABLE, GET_MULTI, GET_TABLE | RESPONSE, GET_MULTI | RESPONSE))
        mad = evolve(self.victim.exchange(b""), method=method, transaction=self._transaction()).pack()
        header = RMPPHeader(
            1,
            dice.choice((DATA, DATA, DATA, ACK, ACK, STOP, ABORT, 0, 5)),
            dice.choice((31, 31, 0, 20, 30)),
            dice.choice((1, 3, 3, 5, 7)),
            dice.choice((0, 0, 0, 0, 1, 118, 127)),
            dice.choice((0, 1, 1, 2, 3, dice.randrange(70), 0xFFFFFFFF)),
            dice.choice((0, 20, 220, 400, 660, 65, 0x7FFFFFFF, 0xFFFFFFFF)),
        )
        return segment(mad, header)

    def _redirection(self) -> bytes:
        dice = self.dice
        info = ClassPortInfo(
            redirectGID=dice.choice((0, 0, dice.randrange(1 << 128))),
            redirectQP=dice.choice((0, 1, 2, dice.randrange(1 << 24))),
            redirectQKey=dice.randrange(1 << 32),
        )
        status, attribute = dice.choice(((2, 0x12), (2, 1), (0, 1), (2, 0x11)))
        mad = Mad(*(PERFORMANCE, 1, GET_RESPONSE, self._transaction(), attribute, info.pack()), status=status)
        return mad.pack()

    def make(self) -> bytes:
        """
        @return: one MAD, most of them with some wrong octets.
        """
        dice = self.dice
        kind = dice.randrange(4)
        if kind == 0:
            octets = bytearray(evolve(dice.choice(self._questions), transaction=self._transaction()).pack())
        else:
            octets = bytearray(self._redirection() if kind == 1 else self._segment())
        for _ in range(dice.choice((0, 0, 1, 1, 2, 4, 16))):
            octets[dice.randrange(dice.choice((24, 72, 256)))] = dice.randrange(256)
        return bytes(octets[: dice.choice((256,) * 30 + (0, 24, 252))])


class MutationContract:
    """
    C{a} attacks C{b}.
    """

    toys = ((SMI_QPN, NodeAgent), (GSI_QPN, EchoAgent), (GSI_QPN, TableAgent))
    count = COUNT

    def attack(self: Any, count: int) -> None:
        """
        Send that many, in between which C{b} asks C{a}, which does not answer as it should, and time passes.
        """
        dice = random.Random(19)
        for agent in self.agents:
            if agent.agent._agents is self.a.mads:
                agent.agent.received = lambda request: None
        victim = self.of(TableAgent, self.b)
        asking = self.b.mads.register(PERFORMANCE, 1, (7,), print)
        mutator, to, ended = Mutator(dice, victim), self.address(self.a), []
        for n in range(count):
            if len(self.b.mads._requests) < WAITING:
                question = dice.choice((victim.question(9), victim.exchange(bytes(3000))))
                if dice.random() < 0.5:
                    asking.send(to, Mad(PERFORMANCE, 1, GET, 0, 0x12), ended.append, timeout=0.5)
                else:
                    victim.agent.send(to, question, ended.append, timeout=0.5)
            number = dice.choice((0, 1, 1, 1)) if self.b.mads.has(SMI_QPN) else 1
            self.write(number, self.record(mutator.make()))
            if not n % 10:
                self.settle()
            if not n % 40:
                self.wait(dice.choice((0.1, 1.0, 5.0)))
        self.settle()

    def test_mutated(self: Any) -> None:
        """
        Nothing is raised, and when time has passed nothing is left.  Seed 19.
        """
        self.attack(self.count)
        for _ in range(60):
            self.wait(RMPP_SECONDS / 40)
        transfers = self.b.mads.transfers
        self.assertEqual((self.b.mads._requests, len(transfers), len(transfers._complete)), ({}, 0, 0))
        self.assertEqual((transfers._bytesSent, transfers._bytesHeld, transfers._unasked), (0, 0, {}))
        self.assertGreater(self.b.counters["management_aborted"], self.count // 50)
        # Nobody is redirected by what has been said.
        self.b.mads.redirections = type(self.b.mads.redirections)()
        self.assertEqual(len(self.ask(EchoAgent, self.a, timeout=1.0, retries=0)), 0)
        self.assertEqual(len(self.ask(EchoAgent, self.b)), 1)


class RingTests(OnRings, MutationContract, MADTestCase):
    """
    C{shm0}.
    """


class PacketTests(OnPackets, MutationContract, MADTestCase):
    """
    C{roce0}.
    """
