"""
Tests of what a queue pair with work queues tells besides completions: asynchronous events;
of shared receives and draining.
"""

from __future__ import annotations

from typing import Any

from tests.hca.queues.keyed_cases import RequesterTestCase, ResponderTestCase
from tests.hca.queues.keyed_device import Device
from tests.hca.queues.keyed_pair import piece
from twisted_ib.errors import QueuePairError, ResourceBusyError
from twisted_ib.hca.base import operation
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.receives import SGE, ReceiveRequest
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.requester import Requester
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.hca.wire.headers import RETH

SEND, WRITE, READ = SendOpcode.SEND, SendOpcode.RDMA_WRITE, SendOpcode.RDMA_READ
WRITE_IMM = SendOpcode.RDMA_WRITE_WITH_IMM
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR


class EventTests(RequesterTestCase):
    """
    Asynchronous events.
    """

    def test_established(self) -> None:
        """
        The first message of a peer in RTR is an event, once; in RTS it is none.
        """
        for state in (QPState.RTR, QPState.RTS):
            self.connect(connect=False)
            self.a.to(QPState.RTS, 18)
            self.b.to(state, 17)
            for id in range(3):
                self.post(id, WRITE)
            self.p.settle()
            expected = [EventType.COMM_EST] if state == QPState.RTR else []
            self.assertEqual(self.b.events, expected)

    def test_establishedBeforeRNR(self) -> None:
        """
        Also if it finds no receive, or is refused.
        """
        self.connect(connect=False)
        self.a.to(QPState.RTS, 18)
        self.b.to(QPState.RTR, 17)
        self.post(1, SEND)
        self.p.flow()
        self.assertEqual(self.b.events, [EventType.COMM_EST])

    def test_notEstablished(self) -> None:
        """
        That somebody before has left is no message.
        """
        self.connect(connect=False)
        self.b.to(QPState.RTR, 17)
        self.assertEqual(self.b.work.delivered(0x15, b"", 0, 0), 0)
        self.assertEqual(self.b.events, [])
        self.b.work.delivered(0x0A, RETH.pack(0, 0, 0), 0, RETH.size)
        self.assertEqual(self.b.events, [EventType.COMM_EST])

    def test_endedWhileEstablished(self) -> None:
        """
        A program that ends its queue pair at the COMM_EST event does not get the first message, and
        no shared receive is used up.
        """
        for how in ("ERR", "RESET", "close"):
            self.connect(connect=False, shared=4)
            self.a.to(QPState.RTS, 18)
            self.b.to(QPState.RTR, 17)
            self.b.receive(1, piece(self.target))
            qp = self.b.qp
            qp.onEvent = lambda kind, element, end=how, qp=qp: (  # type: ignore[misc]
                qp.close() if end == "close" else qp.modify(QPState[end])
            )
            self.post(1, SEND)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, WCStatus.RETRY_EXC_ERR)])
            self.assertEqual((self.b.received(), len(self.b.shared or ())), ([], 1))

    def test_endedOverCompletion(self) -> None:
        """
        A queue pair that is begun anew over the completion of a receive that failed has no
        event of that, and does not fail.
        """
        self.b.receive(1, SGE(self.target.address, 50, self.target.key))
        self.b.receives.onCompletion = lambda queue: self.again()
        self.b.receives.arm()
        self.assertEqual(self.b.work.delivered(0, bytes(10), 0, 10), 0)
        self.assertEqual(self.b.work.delivered(0, bytes(10), 0, 10), 0x61)
        self.assertEqual((self.b.qp.state, self.b.events, self.b.consumer.failures), (QPState.RTS, [], []))

    def again(self) -> None:
        """
        Bring C{b} from RTS by RESET to RTS.
        """
        self.b.qp.modify(QPState.RESET)
        self.b.to(QPState.RTS, 17)

    def test_nobodyListens(self) -> None:
        """
        Events without a listener go nowhere.
        """
        self.b.qp.onEvent = None
        self.post(1, WRITE, remoteKey=1)
        self.p.settle()
        self.assertEqual((self.b.qp.state, self.b.events), (QPState.ERR, []))

    def test_readGone(self) -> None:
        """
        Memory that goes while it is read is an access error on both sides.
        """
        self.b.path.capacity = 0
        self.post(1, READ)
        self.p.flow()
        self.b.memory.deregister(self.target)
        self.b.path.capacity = 1 << 18
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.REM_ACCESS_ERR)])
        self.assertEqual(self.b.events, [EventType.QP_ACCESS_ERR])

    def test_fullCompletionQueue(self) -> None:
        """
        A completion that is lost is fatal.
        """
        self.connect(depth=1)
        for id in range(2):
            self.post(id, WRITE)
        self.p.settle()
        self.assertEqual((self.a.events, self.a.qp.state), ([EventType.QP_FATAL], QPState.ERR))

    def test_counted(self) -> None:
        """
        Rare events are counted, by Linux's names.
        """
        self.connect(rnr_retry=1)
        one, two = Device(), Device()
        self.a.qp.device, self.b.qp.device = one, two
        self.post(1, SEND)
        self.p.settle()
        self.assertEqual(one.counted, ["rcvd_rnr_err", "rcvd_rnr_err", "retry_rnr_exceeded_err"])
        self.assertEqual(two.counted, ["send_rnr_err", "send_rnr_err"])

    def test_countedAbsence(self) -> None:
        """
        The same of a peer that is not there.
        """
        self.connect(connect=False)
        device = self.a.qp.device = Device()
        self.a.to(QPState.RTS, 18)
        self.post(1, SEND)
        self.p.settle()
        self.assertEqual(device.counted, ["completer_retry_err"] * 3 + ["retry_exceeded_err"])

    def test_traffic(self) -> None:
        """
        Records and messages, both ways.
        """
        self.receives(3)
        self.post(1, SEND)
        self.post(2, WRITE, flags=0)
        self.post(3, READ)
        self.post(4, SendOpcode.ATOMIC_FETCH_AND_ADD)
        self.p.settle()
        self.assertEqual(self.a.work.traffic(), (4, 2, 4, 0))
        self.assertEqual(self.b.work.traffic(), (2, 4, 0, 4))
        self.post(5, WRITE, remoteKey=1)
        self.a.qp.modify(QPState.RESET)
        self.assertEqual(self.a.work.traffic(), (5, 2, 4, 0))


class RefusalEventTests(ResponderTestCase):
    """
    The responder's refusals.
    """

    def test_kinds(self) -> None:
        """
        Each is an event, unless the completion of a receive tells of it.
        """
        for code, data, event in (
            (0x1A, b"", EventType.QP_REQ_ERR),
            (0x0A, self.reth(5) + b"1234", EventType.QP_REQ_ERR),
            (0x0A, self.reth(5, 0, 1) + b"12345", EventType.QP_ACCESS_ERR),
            (0x0C, self.reth(5, 9999), EventType.QP_ACCESS_ERR),
            (0x4A, self.reth(5) + bytes(16), EventType.QP_FATAL),
            (0x04, b"123", None),
        ):
            self.connect()
            self.b.receive(1, piece(self.target, 0, 2))
            if code == 0x0A and event == EventType.QP_ACCESS_ERR:
                data = self.reth(5, 0, 1) + b"12345"
            elif code in (0x0A, 0x0C, 0x4A):
                data = self.reth(5, 9999 if code == 0x0C else 0) + data[16:]
            self.assertNotEqual(self.put(code, data), 0)
            self.assertEqual(self.b.events, [] if event is None else [event], code)
            self.assertEqual(self.b.qp.state, QPState.ERR)


class SharedTests(RequesterTestCase):
    """
    Shared receive queues.
    """

    def setUp(self) -> None:
        """
        The other end has one.
        """
        self.connect(shared=5)

    def test_taken(self) -> None:
        """
        SEND and WRITE with immediate take the oldest, and complete in the queue pair's
        queue.
        """
        self.receives(3)
        self.post(1, SEND)
        self.post(2, WRITE_IMM)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])
        self.assertEqual([c.workRequestID for c in self.b.received()], [100, 101])
        self.assertEqual(len(self.shared()), 1)

    def shared(self) -> Any:
        """
        The queue.
        """
        return self.b.shared

    def test_empty(self) -> None:
        """
        Without one the peer has to wait.
        """
        for verb in (SEND, WRITE_IMM):
            self.connect(shared=5)
            self.post(1, verb)
            self.p.flow()
            self.assertEqual(self.a.statuses(), [])
            self.receives()
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, OK)])

    def test_ownReceives(self) -> None:
        """
        None may be posted to the queue pair itself.
        """
        self.assertRaises(QueuePairError, self.b.work.postReceive, ReceiveRequest(1))

    def test_giveBack(self) -> None:
        """
        One whose message comes again goes back; what goes to RESET in the middle of a
        message too.
        """
        self.receives(2)
        self.b.path.capacity = 0
        self.assertEqual(self.b.work.delivered(0x0C, bytes(16), 0, 16), 0)
        self.assertEqual(self.b.work.delivered(0x00, b"123", 0, 3), 0)
        self.assertEqual(len(self.shared()), 1)
        self.assertEqual(self.b.work.delivered(0x1A, b"", 0, 0), operation.LATER)
        self.assertEqual(len(self.shared()), 2)
        self.assertEqual(self.b.work.delivered(0x00, b"123", 0, 3), 0)
        self.b.qp.modify(QPState.RESET)
        self.assertEqual((len(self.shared()), self.b.received()), (2, []))

    def test_lastReceive(self) -> None:
        """
        In ERR the receive of a message that had begun is flushed, those that are shared
        stay, and the event says that no more completions come: once.
        """
        self.receives(2)
        self.assertEqual(self.b.work.delivered(0x00, b"123", 0, 3), 0)
        self.b.qp.modify(QPState.ERR)
        self.b.qp.modify(QPState.ERR)
        self.assertEqual([(c.workRequestID, c.status) for c in self.b.received()], [(100, FLUSH)])
        self.assertEqual((len(self.shared()), self.b.events), (1, [EventType.QP_LAST_WQE_REACHED]))

    def test_lastReceiveByItself(self) -> None:
        """
        The same when the peer's request brings it there.
        """
        self.receives(2)
        self.post(1, SEND)
        self.post(2, WRITE, remoteKey=1)
        self.p.settle()
        self.assertEqual([c.status for c in self.b.received()], [OK])
        self.assertEqual(self.b.events, [EventType.QP_ACCESS_ERR, EventType.QP_LAST_WQE_REACHED])

    def test_withoutShared(self) -> None:
        """
        A queue pair that has receives of its own has no such event.
        """
        self.connect()
        self.b.qp.modify(QPState.ERR)
        self.assertEqual(self.b.events, [])

    def test_limit(self) -> None:
        """
        Taking them lets the queue's event come.
        """
        events: list[EventType] = []
        self.shared().onEvent = lambda kind, element: events.append(kind)
        self.shared().modify(limit=2)
        self.receives(3)
        for id in range(3):
            self.post(id, SEND)
        self.p.settle()
        self.assertEqual(events, [EventType.SRQ_LIMIT_REACHED])

    def test_limitRefused(self) -> None:
        """
        A WRITE that is refused takes none, and so no event comes.
        """
        events: list[EventType] = []
        self.shared().onEvent = lambda kind, element: events.append(kind)
        self.shared().modify(limit=2)
        self.receives(2)
        self.post(1, WRITE_IMM, remoteKey=1)
        self.p.settle()
        self.assertEqual([each for _, each in self.a.statuses()], [WCStatus.REM_ACCESS_ERR])
        self.assertEqual((events, len(self.shared())), ([], 2))

    def test_domain(self) -> None:
        """
        Its receives name memory of its own domain, not of the queue pair's.
        """
        domain = self.b.memory.allocateDomain()
        inbox = self.b.memory.register(bytearray(100), 1, domain)
        self.shared().pd = domain
        self.b.receive(1, piece(inbox))
        self.b.receive(2, piece(self.target))
        self.post(1, SEND, 100)
        self.post(2, SEND, 100)
        self.p.settle()
        self.assertEqual([c.status for c in self.b.received()], [OK, WCStatus.LOC_PROT_ERR])
        self.assertEqual(bytes(inbox.view), bytes(range(100)))

    def test_held(self) -> None:
        """
        It is held while the queue pair is there.
        """
        self.assertRaises(ResourceBusyError, self.shared().close)
        self.b.qp.close()
        self.shared().close()


class DrainTests(RequesterTestCase):
    """
    SQ_DRAINED.
    """

    def test_event(self) -> None:
        """
        It comes when what was started is done: at once if nothing was; only if asked for.
        """
        for notify in (0, 1):
            for posted in (0, 2):
                self.connect()
                self.receives(2)
                for id in range(posted):
                    self.post(id, SEND)
                self.a.qp.modify(QPState.SQD, en_sqd_async_notify=notify)
                expected = [EventType.SQ_DRAINED] if notify else []
                self.assertEqual(self.a.events, [] if posted else expected)
                self.assertEqual(self.a.qp.query()["sq_draining"], bool(posted))
                self.p.settle()
                self.assertEqual(self.a.events, expected)
                self.assertFalse(self.a.qp.query()["sq_draining"])
                self.a.qp.modify(QPState.RTS)
                self.post(5, WRITE)
                self.p.settle()
                self.assertEqual(self.a.events, expected)

    def test_notYet(self) -> None:
        """
        It does not come when only a part is done.
        """
        self.post(1, WRITE)
        self.post(2, WRITE)
        self.a.qp.modify(QPState.SQD, en_sqd_async_notify=1)
        self.b.path.progress(1)
        for _ in range(3):
            self.a.path.progress()
        self.assertEqual((self.a.statuses(), self.a.events), ([(1, OK)], []))
        self.p.settle()
        self.assertEqual(self.a.events, [EventType.SQ_DRAINED])

    def test_errorMeanwhile(self) -> None:
        """
        A queue that goes to ERR has not drained.
        """
        self.post(1, WRITE)
        self.a.qp.modify(QPState.SQD, en_sqd_async_notify=1)
        self.a.qp.modify(QPState.ERR)
        self.p.settle()
        self.assertEqual((self.a.events, self.a.statuses()), ([], [(1, FLUSH)]))

    def test_fewerReads(self) -> None:
        """
        A READ that waited, and that is not permitted any more, ends with an error.
        """
        self.a.qp.modify(QPState.SQD)
        self.post(1, WRITE)
        self.post(2, READ)
        self.post(3, WRITE)
        self.a.qp.modify(QPState.SQD, max_rd_atomic=0)
        self.a.qp.modify(QPState.RTS)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, WCStatus.LOC_QP_OP_ERR), (3, FLUSH)])


class StopTests(RequesterTestCase):
    """
    SQE: for services that have it.
    """

    def test_stop(self) -> None:
        """
        Sends are flushed, those posted then too; RTS revives it; what is in another state
        is not changed.
        """
        self.a.qp.type = QPType.UC  # As far as the transitions go.
        self.post(1, SEND)
        self.a.qp.stop(QueuePairError("over"))
        self.assertEqual(self.a.qp.state, QPState.SQE)
        self.post(2, SEND)
        self.assertEqual(self.a.statuses(), [(1, FLUSH), (2, FLUSH)])
        self.assertEqual(self.a.consumer.failures, [])
        self.a.qp.modify(QPState.RTS)
        self.receives(2)
        self.post(3, SEND)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(3, OK)])
        self.a.qp.modify(QPState.ERR)
        self.a.qp.stop(QueuePairError("over"))
        self.assertEqual(self.a.qp.state, QPState.ERR)

    def test_afterFailure(self) -> None:
        """
        A request that ends badly stops the queue of such a service; RTS revives it.
        """

        class Stopping(Requester):
            """
            As an unreliable service's.
            """

            def _stop(self, work: WorkQueues, reason: Exception) -> None:
                work.queuePair.stop(reason)

        work = self.a.qp.work
        work.requester = Stopping(work)
        self.a.qp.type = QPType.UC
        self.a.send(1, WRITE, SGE(1, 1, 1))
        self.assertEqual(self.a.qp.state, QPState.SQE)
        self.a.qp.modify(QPState.RTS)
        self.post(2, WRITE)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.LOC_PROT_ERR), (2, OK)])
