"""
Tests of L{twisted_ib.verbs.c.postings}: what was recorded is posted, whatever fails meanwhile.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest import TestResult
from unittest.mock import Mock

from twisted.trial.unittest import SynchronousTestCase

from tests.verbs.c.posting.declared import record, useDeclared
from tests.verbs.pyverbs.pair import End, VerbsTestCase
from twisted_ib.errors import QueuePairError
from twisted_ib.verbs import c
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import SGE, SRQ, QPCap, QPInitAttr, SrqAttr, SrqInitAttr, enums


class SettlingTests(VerbsTestCase):
    """
    Queues that C posts to.
    """

    def setUp(self) -> None:
        """
        Two ends that are connected, and the receive queue of the second.
        """
        super().setUp()
        useDeclared(self)
        self.postings: Any = import_module("twisted_ib.verbs.c.postings")
        self.ends = End(self, cap=QPCap(8, 8, 1, 1, 0)), End(self, cap=QPCap(8, 8, 1, 1, 0))
        self.ends[0].connect(self.ends[1])
        self.structure = self.postings.ffi.new("struct twisted_ib_qp *")
        self.queue = self.receives(1, self.structure)
        self.addCleanup(self.postings._queues.clear)

    def opened(self, kind: str, qp: Any, structure: Any, **methods: Any) -> Any:
        """
        @param kind: the class.
        @param methods: in the place of its own.
        @return: a queue of a queue pair, open.
        """
        field = "sends" if kind == "SendQueue" else "receives"
        made = type(kind, (getattr(self.postings, kind),), methods)
        queue = made(qp, self.postings.ffi.addressof(structure, field))
        queue.open()
        return queue

    def receives(self, which: int, structure: Any, **methods: Any) -> Any:
        """
        @return: the receive queue of an end, open.
        """
        return self.opened("ReceiveQueue", self.ends[which].qp, structure, **methods)

    def record(self, queue: Any, id: int) -> None:
        """
        Record a request of 64 octets.
        """
        mr = self.ends[1].mr
        record(self.postings.posting, queue._structure, SGE(mr.buf, 64, mr.lkey), id)

    def room(self) -> int:
        """
        @return: places in the second's receive queue.
        """
        return int(self.queue.room())

    def isFree(self) -> bool:
        """
        @return: whether this thread has left the hub.
        """
        isFree = hub.enterIfFree()
        if isFree:
            hub.leave()
        return isFree

    def test_suspended(self) -> None:
        """
        A queue that is suspended stays so when its requests are posted, until the outermost statement ends.
        """
        depth = self.room()
        for number in range(5):
            self.record(self.queue, number)
        with self.queue:
            self.assertEqual((depth - self.room(), self.structure.receives.limit), (5, 0))
            with self.queue:
                pass
            self.assertEqual(self.structure.receives.limit, 0)
        self.assertEqual(self.structure.receives.limit, depth)

    def test_closed(self) -> None:
        """
        A queue that was closed is not opened again: neither by the requests that were recorded before, nor by
        a thread that waited for the lock meanwhile; and what is recorded nevertheless harms no other.
        """
        for number in range(5):
            self.record(self.queue, number)
        self.queue.close()
        self.assertEqual(self.structure.receives.limit, 0)
        with self.queue:
            pass
        self.assertEqual(self.structure.receives.limit, 0)
        structure = self.postings.ffi.new("struct twisted_ib_qp *")
        other = self.receives(0, structure)
        before = other.room()
        self.record(self.queue, 8)
        self.record(other, 9)
        self.postings.settle()
        self.assertEqual((before - other.room(), structure.receives.posted), (1, 1))

    def test_failed(self) -> None:
        """
        A request that cannot be posted ends its queue pair, and is no reason to lose others, which are posted
        one by one where not all have room; the first error that no request can have is raised after them, and
        the lock is released.
        """
        few = [1]

        def room(queue: Any) -> int:
            return few[0] if few else int(self.postings.ReceiveQueue.room(queue))

        structures = self.structure, self.postings.ffi.new("struct twisted_ib_qp *")
        self.queue, other = (
            self.receives(which, each, room=room) for which, each in zip((1, 0), structures, strict=True)
        )
        accepted: list[int] = []
        accept = other.accept

        def acceptSome(requests: Any) -> None:
            [request] = requests
            if request.id in errors:
                raise errors[request.id]
            accepted.append(request.id)
            accept(requests)

        errors = {0: QueuePairError("as usual"), 4: ZeroDivisionError("the first"), 2: MemoryError("another")}
        self.queue.accept = other.accept = acceptSome
        for number in range(6):
            self.record(other if number % 4 else self.queue, number)
        self.assertIdentical(self.assertRaises(ZeroDivisionError, self.queue.__enter__), errors[4])
        self.assertTrue(self.isFree())
        self.assertEqual(sorted(accepted), [1, 3, 5])
        for queue, end in ((other, self.ends[0]), (self.queue, self.ends[1])):
            self.assertEqual(queue.taken, queue._structure.posted)
            self.assertEqual(end.qp.qp_state, enums.IBV_QPS_ERR)
        # Once more, and it posts again.
        few.clear()
        with self.queue:
            self.assertFalse(self.isFree())
        self.assertGreater(self.structure.receives.limit, self.structure.receives.posted)

    def test_interrupted(self) -> None:
        """
        A signal's handler that raises as the lock is taken leaves it free, and what was recorded where it is.
        """
        self.record(self.queue, 0)
        lock: Any = hub.lock

        def acquire(blocking: bool) -> None:
            self.assertTrue(lock.acquire(blocking))
            raise ZeroDivisionError

        patch = self.patch(hub, "lock", Mock(acquire=acquire, release=lock.release))
        self.assertRaises(ZeroDivisionError, self.postings.settle)
        patch.restore()
        self.assertFalse(lock._is_owned())
        self.postings.settle()
        self.assertEqual(self.queue.taken, 1)

    def test_order(self) -> None:
        """
        Sends are posted before receives that were recorded before them: a peer waits for them, and queues
        have no order.
        """
        order: list[object] = []

        def accept(requests: Any) -> None:
            order.extend(each.id for each in requests)

        other = {"acceptOther": lambda _, requests: accept(requests)}
        sends = self.opened("SendQueue", self.ends[1].qp, self.structure, **other)
        self.queue.accept = accept
        for number, queue in enumerate((self.queue, sends, self.queue, sends)):
            self.record(queue, number)
        self.postings.settle()
        self.assertEqual(order, [1, 3, 0, 2])
        self.assertEqual((sends.taken, self.queue.taken), (2, 2))

    def test_pieces(self) -> None:
        """
        A receive has all of its elements, whether it is the last that was recorded or one of several.
        """
        found: list[tuple[int, list[tuple[int, int]]]] = []
        self.queue.accept = lambda requests: found.extend(
            (each.id, [(piece.address, piece.length) for piece in each.pieces]) for each in requests
        )
        mr = self.ends[1].mr
        pieces = [SGE(mr.buf + at, 8 + at, mr.lkey) for at in (0, 16, 32)]
        expected = []
        for count in 1, 2, 3:
            for number in range(count):
                id = 10 * count + number
                one, *others = pieces[: number + 1]
                record(self.postings.posting, self.queue._structure, one, id, others=others)
                expected.append((id, [(each.addr, each.length) for each in (one, *others)]))
            self.postings.settle()
        self.assertEqual(found, expected)

    def test_short(self) -> None:
        """
        The limit of a queue with few places follows completions as soon as half of them are taken: C records
        each request of a program that waits for every one.  Requests that are taken do not set it anew.
        """
        for depth, left in ((1, 1), (8, 4)):
            one = End(self, cap=QPCap(depth, 8, 1, 1, 0))
            one.connect(End(self, cap=QPCap(8, 8, 1, 1, 0)))
            asked: list[Any] = []

            def room(queue: Any, left: int = left, asked: list[Any] = asked) -> int:
                self.postings.SendQueue.room(queue)
                asked.append(queue)
                return left

            sends = self.opened("SendQueue", one.qp, self.structure, room=room)
            limit = sends.taken + left
            self.assertEqual((sends.isShort, self.structure.sends.limit), (True, limit))
            for number in range(left):
                self.record(sends, number)
                self.postings.settle()
                self.assertEqual((sends.isShort, self.structure.sends.limit), (True, limit))
            self.assertEqual(asked, [sends])
            sends.close()

    def test_completed(self) -> None:
        """
        A queue pair that is closed is known to completions no more, but one of another device that has the
        same number is.
        """
        queues = import_module("twisted_ib.verbs.c.verbs.queues")
        pd, cq = self.ends[0].pd, self.ends[0].cq
        for isTaken in False, True:
            qp = queues.PostedQP(pd, QPInitAttr(enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(8, 8, 1, 1, 0)))
            qp.reflect(self.postings.ffi.new("struct twisted_ib_qp *"), None)
            known = self.postings.completed
            self.assertEqual(known, {(qp.qp_num, False): qp.sends, (qp.qp_num, True): qp.receives})
            if isTaken:
                known[qp.qp_num, True] = self.queue
            qp.close()
            self.assertEqual(list(known.values()), [self.queue] if isTaken else [])

    def test_ended(self) -> None:
        """
        What was recorded is posted before the hub ends.
        """
        self.record(self.queue, 0)
        # Its lock after that is another.
        self.patch(hub, "lock", hub.lock)
        hub.end()
        self.assertEqual((self.queue.taken, hub.devices), (1, {}))

    def test_shared(self) -> None:
        """
        A receive that was recorded for a shared queue is posted, also if another was put back meanwhile.
        """
        srq = SRQ(self.ends[1].pd, SrqInitAttr(SrqAttr(4, 1)))
        self.addCleanup(srq.close)
        structure = self.postings.ffi.new("struct twisted_ib_srq *")
        queue = self.postings.SharedQueue(srq, self.postings.ffi.addressof(structure, "receives"))
        core = srq._core
        queue.open()
        for number in range(core.depth):
            self.record(queue, number)
        self.postings.settle()
        taken = core.take()
        queue.open()
        self.record(queue, core.depth)
        core.putBack(taken)
        self.postings.settle()
        self.assertEqual([core.take().id for _ in range(core.depth + 1)], list(range(core.depth + 1)))

    def test_looksOnce(self) -> None:
        """
        Handlers of signals that came unseen are looked for once a queue pair, and once a shared queue.
        """
        queues: Any = import_module("twisted_ib.verbs.c.verbs.queues")
        ffi, looked = self.postings.ffi, Mock()
        self.patch(self.postings.lib, "twisted_ib_look_for_handlers", looked)
        one = self.ends[1]
        srq = queues.PostedSRQ(one.pd, SrqInitAttr(SrqAttr(4, 1)))
        self.addCleanup(srq.close)
        # Kept for as long as their queues.
        structures = [ffi.new("struct twisted_ib_srq *")]
        srq.reflect(structures[0])
        self.assertEqual(looked.call_count, 1)
        for kind, shared in (enums.IBV_QPT_RC, None), (enums.IBV_QPT_RC, srq), (enums.IBV_QPT_UD, None):
            looked.reset_mock()
            attr = QPInitAttr(kind, None, one.cq, one.cq, shared, QPCap(8, 8, 1, 1, 0))
            pair = queues.PostedQP(one.pd, attr)
            self.addCleanup(pair.close)
            structures.append(ffi.new("struct twisted_ib_qp *"))
            pair.reflect(structures[-1], shared)
            self.assertEqual(looked.call_count, 1, (kind, shared))


class AgainTests(SynchronousTestCase):
    """
    The modules of the handlers that are imported for one test.
    """

    def test_named(self) -> None:
        """
        Afterwards the package names those that are in C{sys.modules}: else the next test has some of each.
        """

        class Importing(SynchronousTestCase):
            """
            A test that has them.
            """

            def runTest(self) -> None:
                """
                Import one anew.
                """
                useDeclared(self)
                import_module("twisted_ib.verbs.c.postings")
                import_module("twisted_ib.verbs.c.errors")

        import_module("twisted_ib.verbs.c.errors")
        result = TestResult()
        Importing().run(result)
        self.assertEqual((result.errors, result.failures), ([], []))
        names = [f"{c.__name__}.{each}" for each, found in vars(c).items() if isinstance(found, ModuleType)]
        for each in names:
            if each in sys.modules:
                self.assertIs(vars(c)[each.rpartition(".")[2]], sys.modules[each], each)
