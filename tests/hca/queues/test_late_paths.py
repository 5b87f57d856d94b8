"""
Tests of queue pairs whose path is found later, of L{QueuePair.query}, and of the services
that have work queues.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.queues.keyed_cases import RequesterTestCase
from tests.hca.queues.keyed_device import Device, Vector
from tests.hca.queues.keyed_pair import ALL, RTR, RTS, Consumer, Pair
from twisted_ib.errors import NoRouteError, QueuePairError, ResourceLimitError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.queues.requests import Capabilities, SendOpcode

WRITE = SendOpcode.RDMA_WRITE
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
INIT = {"pkey_index": 0, "port_num": 1, "qp_access_flags": int(ALL)}


class LateTests(SynchronousTestCase):
    """
    A path that is found later.
    """

    def setUp(self) -> None:
        """
        One end with an address vector, in RTS; the other ready.
        """
        self.p = Pair(connect=False)
        self.a, self.b = self.p.a, self.p.b
        self.device = self.a.qp.device = Device()
        self.b.to(QPState.RTS, 17)
        self.source = self.a.register(100)

    def climb(self, state: QPState = QPState.RTS, **changes: int) -> None:
        """
        To a state.
        """
        path, self.a.path = self.a.path, Vector()  # type: ignore[assignment]
        self.a.to(state, 18, **changes)
        self.a.path = path

    def test_meets(self) -> None:
        """
        The device is asked when the queue pair can receive, once; the path is bound when
        it is found, and what was posted meanwhile goes.
        """
        self.climb(QPState.RTR)
        self.assertEqual((self.device.met, self.a.qp.path), ([self.a.qp], None))
        self.a.qp.modify(QPState.RTS, **RTS)
        self.a.send(1, WRITE)
        self.a.send(2, WRITE)
        self.assertEqual((self.device.met, len(self.a.path.records)), ([self.a.qp], 0))
        self.a.qp.pathFound(self.a.path)
        self.assertEqual(len(self.a.path.records), 2)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])
        self.assertIsNone(self.a.timers.deadline())

    def test_atOnce(self) -> None:
        """
        The path may be found while it is asked for.
        """
        path = self.a.path
        self.device.resolvePath = lambda queuePair: queuePair.pathFound(path)  # type: ignore[method-assign]
        self.climb()
        self.assertIs(self.a.qp.path, path)

    def test_silent(self) -> None:
        """
        Until it is found the peer is silent: a request ends when all retries are used up,
        whether the device has given up or not.
        """
        for failed in (False, True):
            self.setUp()
            self.climb(timeout=16, retry_cnt=3)
            if failed:
                self.a.qp.pathFailed(NoRouteError("no such HCA"))
            self.a.send(1, WRITE)
            self.a.send(2, WRITE)
            self.p.pass_(4 * 4.096e-6 * 2**16 - 0.001)
            self.assertEqual((self.a.statuses(), self.a.qp.state), ([], QPState.RTS))
            self.p.pass_(0.002)
            self.assertEqual(self.a.statuses(), [(1, WCStatus.RETRY_EXC_ERR), (2, FLUSH)])
            (reason,) = self.a.consumer.failures
            self.assertEqual("no such HCA" in str(reason), failed)

    def test_drained(self) -> None:
        """
        A queue that is drained sends nothing, so nothing of it ends; in RTS it is waited
        for anew.
        """
        self.climb()
        self.a.send(1, WRITE)
        self.a.qp.modify(QPState.SQD)
        self.p.pass_(100)
        self.assertEqual((self.a.statuses(), self.a.qp.state), ([], QPState.SQD))
        self.a.qp.modify(QPState.RTS)
        self.p.pass_(100)
        self.assertEqual(self.a.statuses(), [(1, WCStatus.RETRY_EXC_ERR)])

    def test_forEver(self) -> None:
        """
        Timeout 0 never ends.
        """
        self.climb(timeout=0)
        self.a.send(1, WRITE)
        self.assertIsNone(self.a.timers.deadline())

    def test_localRequests(self) -> None:
        """
        Requests that need no peer are done without a path.
        """
        self.climb()
        self.a.send(1, SendOpcode.LOCAL_INV, invalidateKey=1)
        self.assertEqual(self.a.statuses(), [(1, WCStatus.LOC_QP_OP_ERR)])

    def test_tooLate(self) -> None:
        """
        A path for a queue pair that does not wait for one is not taken.
        """
        self.climb()
        self.a.qp.modify(QPState.ERR)
        self.a.qp.pathFound(self.a.path)
        self.a.qp.pathFailed(NoRouteError("late"))
        self.assertIsNone(self.a.qp.path)
        self.a.qp.modify(QPState.RESET)
        self.assertIsNone(self.a.qp.vector)
        self.a.qp.pathFound(self.a.path)
        self.assertIsNone(self.a.qp.path)
        self.assertEqual(self.device.paths.left[0], self.a.qp)

    def test_twice(self) -> None:
        """
        The first path stays.
        """
        self.climb()
        self.a.qp.pathFound(self.a.path)
        self.a.qp.pathFound(self.b.path)
        self.assertIs(self.a.qp.path, self.a.path)

    def test_impossible(self) -> None:
        """
        A vector that leads nowhere is refused before anything changes; where the device
        cannot look now nothing has changed either, and it can be tried again.
        """
        modify = self.a.qp.modify
        modify(QPState.INIT, **INIT)
        self.assertRaises(QueuePairError, modify, QPState.RTR, ah_attr=Vector(0), dest_qp_num=18, **RTR)
        self.assertRaises(NoRouteError, modify, QPState.RTR, ah_attr=Vector(13), dest_qp_num=18, **RTR)
        self.assertEqual((self.a.qp.state, self.a.qp.vector), (QPState.INIT, None))
        self.device.error = ResourceLimitError("too many")
        before = self.a.qp.query()
        vector: Any = {"ah_attr": Vector(), "dest_qp_num": 18}
        self.assertRaises(ResourceLimitError, modify, QPState.RTR, **vector, **RTR)
        self.assertEqual((self.a.qp.query(), self.a.qp.state), (before, QPState.INIT))
        self.device.error = None
        modify(QPState.RTR, **vector, **RTR)
        self.assertEqual(self.a.qp.state, QPState.RTR)

    def test_stays(self) -> None:
        """
        A connected queue pair keeps its vector: the same again is no change.
        """
        self.climb()
        self.a.qp.pathFound(self.a.path)
        self.a.qp.modify(QPState.SQD)
        self.a.qp.modify(QPState.SQD, ah_attr=Vector())
        self.assertRaises(QueuePairError, self.a.qp.modify, QPState.SQD, ah_attr=Vector(2))
        self.assertRaises(QueuePairError, self.a.qp.modify, QPState.SQD, ah_attr=self.b.path)

    def test_stream(self) -> None:
        """
        A queue pair without work queues fails.
        """
        stream = QueuePair(20, Consumer(), self.device)
        stream.modify(QPState.INIT, **INIT)
        stream.modify(QPState.RTR, ah_attr=Vector(), dest_qp_num=1, **RTR)
        stream.pathFailed(NoRouteError("nobody"))
        self.assertEqual(stream.state, QPState.ERR)


class QueryTests(RequesterTestCase):
    """
    L{QueuePair.query}.
    """

    def test_reset(self) -> None:
        """
        Nothing is set, but the sizes of the queues.
        """
        self.connect(connect=False)
        found = self.a.qp.query()
        self.assertEqual(found.pop("cap"), Capabilities(128, 128, 4, 4))
        self.assertEqual((found.pop("ah_attr"), found.pop("sq_draining")), (None, False))
        self.assertEqual((found.pop("qp_state"), found.pop("cur_qp_state")), (QPState.RESET, QPState.RESET))
        self.assertEqual(set(found.values()), {0})
        self.assertIsNone(QueuePair(1, None).query()["cap"])

    def test_everything(self) -> None:
        """
        Attributes that were set are found, also in ERR; RESET forgets them.
        """
        given: dict[str, Any] = {**INIT, **RTR, **RTS, "dest_qp_num": 18}
        for state in (QPState.RTS, QPState.ERR):
            if state == QPState.ERR:
                self.a.qp.modify(state)
            found = self.a.qp.query()
            self.assertEqual({name: found[name] for name in given}, given)
            self.assertEqual((found["qp_state"], found["cur_qp_state"]), (state, state))
        self.assertIsNone(found["ah_attr"])
        self.assertIs(self.b.qp.query()["ah_attr"], self.b.path)
        self.a.qp.modify(QPState.RESET)
        found = self.a.qp.query()
        self.assertEqual({found[name] for name in given}, {0})

    def test_changes(self) -> None:
        """
        The latest value counts.
        """
        self.a.qp.modify(QPState.RTS, min_rnr_timer=5, cur_qp_state=QPState.RTS)
        self.assertEqual(self.a.qp.query()["min_rnr_timer"], 5)
        self.assertRaises(QueuePairError, self.a.qp.modify, QPState.RTS, cur_qp_state=QPState.SQD)

    def test_ranges(self) -> None:
        """
        Values that no port here has are refused.
        """
        self.connect(connect=False)
        for name, value in (("pkey_index", 1), ("port_num", 0), ("port_num", 2)):
            self.assertRaises(QueuePairError, self.a.qp.modify, QPState.INIT, **{**INIT, name: value})
        self.a.qp.modify(QPState.INIT, **INIT)
        for value in (0, 6):
            changed = {**RTR, "path_mtu": value}
            self.assertRaises(
                QueuePairError, self.a.qp.modify, QPState.RTR, ah_attr=self.a.path, dest_qp_num=1, **changed
            )
