"""
Tests of L{twisted_ib.hca.services.work}: what queue pairs do, and what a fabric takes from that.
"""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.queues.keyed_device import Device
from tests.hca.queues.keyed_pair import Consumer, Pair, piece
from twisted_ib.errors import QueuePairError, UnsupportedOperationError
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.base.traits import LOCAL
from twisted_ib.hca.queues.completion import CompletionQueue, WCOpcode
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.operations.rows import OPERATIONS, PARTS_OF, RESPONSES_TO
from twisted_ib.hca.services.work import SERVICES, WorkQueues, capabilitiesOf, operationsOf
from twisted_ib.hca.wire.opcodes import FLUSH_REQUEST, OPCODES, UNRELIABLE

#: No immediate data, no atomics, no UC and no UD, as with iWARP (RFC 5040, RFC 5041).
FEW = evolve(
    LOCAL,
    services=frozenset({QPType.RC}),
    operations=frozenset(
        {
            SendOpcode.SEND,
            SendOpcode.SEND_WITH_INV,
            SendOpcode.RDMA_WRITE,
            SendOpcode.RDMA_READ,
            SendOpcode.LOCAL_INV,
            SendOpcode.BIND_MW,
        }
    ),
)


class ServiceTests(SynchronousTestCase):
    """
    The types of queue pairs.
    """

    def test_everyType(self) -> None:
        """
        Each type of queue pair has its classes; others have no work queues.
        """
        self.assertEqual(set(SERVICES), set(QPType))
        p = Pair(connect=False)
        queuePair = QueuePair(3, Consumer(), None, 99)  # type: ignore[arg-type]
        queue = CompletionQueue(1)
        self.assertRaises(QueuePairError, WorkQueues, queuePair, p.a.pd, queue, queue, p.a.timers)
        self.assertEqual(queue.users, {})

    def test_fabric(self) -> None:
        """
        A type that the fabric does not have has no work queues there, whatever it has elsewhere.
        """
        p, queue, device = Pair(connect=False), CompletionQueue(1), Device()
        for kind in QPType:
            queuePair = QueuePair(3, Consumer(), device, kind)
            WorkQueues(queuePair, p.a.pd, queue, queue, p.a.timers)
            queuePair.close()
        device.traits = FEW
        for kind in (QPType.UC, QPType.UD):
            queuePair = QueuePair(3, Consumer(), device, kind)
            self.assertRaises(QueuePairError, WorkQueues, queuePair, p.a.pd, queue, queue, p.a.timers)
        self.assertEqual(queue.users, {})


class OperationTests(SynchronousTestCase):
    """
    The operations of their send requests.
    """

    def test_table(self) -> None:
        """
        The operations of each type: READs, atomics and SEND with invalidate need RC (IBTA vol. 1 9.8.2), UD
        only has SEND (9.8.3).
        """
        datagrams = {SendOpcode.SEND, SendOpcode.SEND_WITH_IMM}
        local = {SendOpcode.LOCAL_INV, SendOpcode.BIND_MW}
        unreliable = datagrams | local | {SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM}
        reliable = set(SendOpcode) - {SendOpcode.TSO, SendOpcode.FLUSH}
        self.assertEqual(
            {kind: set(operationsOf(kind, LOCAL)) for kind in QPType},
            {QPType.RC: reliable, QPType.UC: unreliable, QPType.UD: datagrams},
        )

    def test_rows(self) -> None:
        """
        One class for each opcode, and all completions of send requests but those of TSO and FLUSH.
        """
        self.assertEqual(len({each.opcode for each in OPERATIONS}), len(OPERATIONS))
        completed = {each.completionOpcode for each in OPERATIONS}
        sends = {opcode for opcode in WCOpcode if opcode < WCOpcode.RECV}
        self.assertEqual(completed, sends - {WCOpcode.TSO, WCOpcode.FLUSH})

    def test_requests(self) -> None:
        """
        Each request of RC is a part of a message, or owes a response, of one class; only FLUSH is nobody's.
        """
        requests = {code for code, row in OPCODES.items() if code < UNRELIABLE and row.isRequest}
        self.assertEqual({*PARTS_OF, *RESPONSES_TO}, requests - {FLUSH_REQUEST})
        self.assertFalse(set(PARTS_OF) & set(RESPONSES_TO))
        owing = {code for code in requests if OPCODES[code].response is not None}
        self.assertEqual(set(RESPONSES_TO), owing - {FLUSH_REQUEST})

    def test_fabric(self) -> None:
        """
        An operation that the fabric does not have is refused when it is posted.
        """
        self.assertEqual(set(operationsOf(QPType.RC, FEW)), FEW.operations)
        p = Pair(connect=False)
        device = Device()
        device.traits = FEW
        p.a.qp.device = device  # type: ignore[assignment]
        p.a.equip(64)
        p.a.to(QPState.RTS, 18)
        p.b.to(QPState.RTS, 17)
        source, target = p.a.register(8), p.b.register(8)
        there = {"remoteAddress": target.address, "remoteKey": target.remoteKey}
        for opcode in set(operationsOf(QPType.RC, LOCAL)) - set(operationsOf(QPType.RC, FEW)):
            error = self.assertRaises(UnsupportedOperationError, p.a.send, 1, opcode, piece(source), **there)
            self.assertIn(opcode.name, str(error))
            self.assertIn("the fabric of roce0 has it not", str(error))
        p.a.send(2, SendOpcode.RDMA_WRITE, piece(source), **there)
        p.settle()
        self.assertEqual([id for id, _ in p.a.statuses()], [2])

    def test_capabilities(self) -> None:
        """
        A capability is that of an operation, where a fabric has that.
        """
        self.assertEqual((capabilitiesOf(LOCAL), capabilitiesOf(FEW)), (1 << 40, 0))
