"""
Tests of messages that are posted, or arrive, several at once: everything is as if they came one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from mmap import PAGESIZE
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.counting import steps
from tests.support.calls import called
from tests.support.waiting import waitUntil
from tests.test_costs import requireBytecodes
from tests.verbs.c.posting.declared import record, useDeclared
from tests.verbs.pyverbs.pair import ALL_RIGHTS, End, VerbsTestCase
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import MR, SGE, QPAttr, QPCap, RecvWR, enums
from twisted_ib.verbs.pyverbs.base.mem_alloc import mmap, munmap, read, write

#: Messages of a story, and octets of each.
MANY, SIZE = 40, 64
_PAGE = PAGESIZE


class _Ends:
    # A sender that posts by records, and a receiver.

    def __init__(self, test: VerbsTestCase, sizes: QPCap) -> None:
        self.postings: Any = import_module("twisted_ib.verbs.c.postings")
        self.one, self.two = End(test, cap=sizes), End(test, cap=sizes)
        self.one.connect(self.two)
        waitUntil(self._hasPaths)
        # A program's own memory, of which each access is asked for.
        self.source, self.target = (
            MR(end.pd, 2 * _PAGE, ALL_RIGHTS, mmap(length=2 * _PAGE)) for end in (self.one, self.two)
        )
        write(self.source.buf, bytes(at // SIZE + 1 for at in range(_PAGE)), _PAGE)
        ffi = self.postings.ffi
        self._structure = ffi.new("struct twisted_ib_qp *")
        self.sends = self.postings.SendQueue(self.one.qp, ffi.addressof(self._structure, "sends"))
        self.sends.open()
        test.addCleanup(self.postings._queues.clear)
        self.posted: Callable[[], object] | None = None

    def _hasPaths(self) -> bool:
        with hub:
            hub.drive()
            return all(end.qp._core.path is not None for end in (self.one, self.two))

    def write(self, slot: int, whole: int, key: int = 0, remoteKey: int = 0) -> None:
        record(
            self.postings.posting,
            self.sends._structure,
            SGE(self.source.buf + slot * SIZE, SIZE, key or self.source.lkey),
            slot,
            whole,
            (self.target.buf + slot * SIZE, remoteKey or self.target.rkey),
        )
        if self.posted is not None:
            self.postings.settle()
            self.posted()

    def send(self, slot: int, size: int = SIZE, key: int = 0) -> None:
        record(
            self.postings.posting,
            self.sends._structure,
            SGE(self.source.buf + slot * SIZE, size, key or self.source.lkey),
            slot,
            1,
        )
        if self.posted is not None:
            self.postings.settle()
            self.posted()

    def receive(self, slot: int, size: int = SIZE, key: int = 0, parts: int = 1) -> None:
        size //= parts
        place = self.target.buf + slot * SIZE
        pieces = [SGE(place + part * size, size, key or self.target.lkey) for part in range(parts)]
        self.two.qp.post_recv(RecvWR(slot, parts, pieces))

    def octets(self) -> bytes:
        return read(self.target.buf, _PAGE)


class _Late:
    # The mirror of a queue for which receives are posted when they are wanted.

    shown = 0

    def __init__(self, more: Callable[[], bool]) -> None:
        self.more = more

    def wanted(self) -> None:
        pass

    show = settle = recall = wanted


class RunTests(VerbsTestCase, SynchronousTestCase):
    """
    Stories that are told twice.
    """

    def told(self, story: Callable[[_Ends], None], isTogether: bool) -> Any:
        """
        @return: what comes of a story: the completions of both ends, what was received, and the counts.
        """
        ends = _Ends(self, QPCap(MANY, MANY, 2, 2, 0))
        one, two = ends.one, ends.two
        found: list[list[tuple[int, ...]]] = [[], []]

        def poll() -> None:
            for end, own in zip((one, two), found, strict=True):
                done = end.cq.poll(MANY)[1]
                own += [(each.wr_id, each.status, 0 if each.status else each.byte_len) for each in done]

        if not isTogether:
            ends.posted = poll
        story(ends)
        ends.postings.settle()
        waitUntil(lambda: poll() or len(found[0]) == MANY)
        # What nobody sent to.
        two.qp.modify(QPAttr(qp_state=enums.IBV_QPS_ERR), enums.IBV_QP_STATE)
        waitUntil(lambda: poll() or len(found[1]) == MANY)
        counts = [end.qp._core.work.traffic()[2:] for end in (one, two)]
        return found, ends.octets(), one.qp.qp_state, counts

    def same(self, story: Callable[[_Ends], None]) -> Any:
        """
        Tell a story in both ways.

        @return: the completions of both ends, and what was received.
        """
        useDeclared(self)
        together, alone = (self.told(story, isTogether) for isTogether in (True, False))
        self.assertEqual(together, alone)
        return (*together[0], together[1])

    def test_all(self) -> None:
        """
        Each message comes into its receive, in order.
        """

        def story(ends: _Ends) -> None:
            for slot in range(MANY):
                ends.receive(slot)
            for slot in range(MANY):
                ends.send(slot, SIZE - slot % 2)

        sent, received, octets = self.same(story)
        self.assertEqual([each[:2] for each in sent], [(slot, enums.IBV_WC_SUCCESS) for slot in range(MANY)])
        self.assertEqual(received, [(slot, enums.IBV_WC_SUCCESS, SIZE - slot % 2) for slot in range(MANY)])
        self.assertEqual([octets[slot * SIZE] for slot in range(MANY)], list(range(1, MANY + 1)))

    def test_sendKey(self) -> None:
        """
        A SEND with a key that is not there fails, and what is behind it is flushed.
        """

        def story(ends: _Ends) -> None:
            for slot in range(MANY):
                ends.receive(slot)
            for slot in range(MANY):
                ends.send(slot, key=12345 if slot == 20 else 0)

        sent, received, _ = self.same(story)
        flushed = [enums.IBV_WC_WR_FLUSH_ERR] * (MANY - 21)
        self.assertEqual(
            [each[1] for each in sent], [enums.IBV_WC_SUCCESS] * 20 + [enums.IBV_WC_LOC_PROT_ERR, *flushed]
        )
        self.assertEqual([each[1] for each in received].count(enums.IBV_WC_SUCCESS), 20)

    def test_writes(self) -> None:
        """
        WRITEs among SENDs, and one with a key that is not there, here or at the peer, go as requests of any
        operation do.
        """
        for status, wrong in (
            (enums.IBV_WC_SUCCESS, {}),
            (enums.IBV_WC_LOC_PROT_ERR, {"key": 12345}),
            (enums.IBV_WC_REM_ACCESS_ERR, {"remoteKey": 12345}),
        ):
            stories = []
            for whole in 2, 0:

                def story(ends: _Ends, whole: int = whole, wrong: dict[str, int] = wrong) -> None:
                    for slot in range(MANY):
                        ends.receive(4 * slot % MANY)
                    for slot in range(MANY):
                        if slot % 4:
                            ends.write(slot, whole, **(wrong if slot == 21 else {}))
                        else:
                            ends.send(slot)

                stories.append(self.same(story))
            self.assertEqual(*stories)
            sent, _, octets = stories[0]
            self.assertEqual([each[1] for each in sent[:22]], [enums.IBV_WC_SUCCESS] * 21 + [status])
            if not status:
                self.assertEqual([octets[slot * SIZE] for slot in range(MANY)], list(range(1, MANY + 1)))

    def test_writeSteps(self) -> None:
        """
        To post a short WRITE alone takes four fifths of the bytecodes that a request of any operation takes,
        at most.
        """
        requireBytecodes()
        useDeclared(self)
        ends, found = _Ends(self, QPCap(MANY, MANY, 2, 2, 0)), []
        for whole in 2, 0:
            # What is looked up once is found.
            for slot in range(3):
                ends.write(slot, whole)
                count = steps(ends.postings.settle)["bytecodes"]
                waitUntil(lambda: ends.one.cq.poll(1)[0])
            found.append(count)
        short, other = found
        self.assertLess(5 * short, 4 * other, f"{short} and {other}")

    def test_receives(self) -> None:
        """
        A receive with two elements takes its message among the others; one with a key that is not there, or
        that is too short, fails both ends.
        """
        for status, changed in (
            (enums.IBV_WC_SUCCESS, {"parts": 2}),
            (enums.IBV_WC_LOC_PROT_ERR, {"key": 12345}),
            (enums.IBV_WC_LOC_LEN_ERR, {"size": SIZE - 1}),
        ):

            def story(ends: _Ends, changed: dict[str, int] = changed) -> None:
                for slot in range(MANY):
                    ends.receive(slot, **(changed if slot == 20 else {}))
                for slot in range(MANY):
                    ends.send(slot)

            _, received, _ = self.same(story)
            self.assertEqual([each[1] for each in received[:21]], [enums.IBV_WC_SUCCESS] * 20 + [status])

    def test_fewReceives(self) -> None:
        """
        What finds no receive is sent again, with all behind it.
        """

        def story(ends: _Ends) -> None:
            for slot in range(30):
                ends.receive(slot)
            for slot in range(MANY):
                ends.send(slot)
            ends.postings.settle()
            with hub:
                ends.two.qp._core.path.progress(MANY)
            for slot in range(30, MANY):
                ends.receive(slot)

        _, received, octets = self.same(story)
        self.assertEqual(received, [(slot, enums.IBV_WC_SUCCESS, SIZE) for slot in range(MANY)])
        self.assertEqual([octets[slot * SIZE] for slot in range(MANY)], list(range(1, MANY + 1)))

    def test_lateReceives(self) -> None:
        """
        Behind a message that was refused none is received before that has come again.
        """

        def story(ends: _Ends) -> None:
            refused: dict[str, int] = ends.two.ctx._device.counters
            before, rest = refused.get("send_rnr_err", 0), [*range(10, MANY)]

            def more() -> bool:
                if refused.get("send_rnr_err", 0) == before:
                    return False
                late = rest[:]
                rest.clear()
                for slot in late:
                    ends.receive(slot)
                return bool(late)

            for slot in range(10):
                ends.receive(slot)
            ends.two.cq._core.reflect(_Late(more))
            for slot in range(MANY):
                ends.send(slot)
            ends.postings.settle()
            with hub:
                ends.two.qp._core.path.progress(MANY)
            waitUntil(lambda: not rest, lambda: ends.one.cq.poll(0))
            ends.two.cq._core.reflect(None)

        _, received, octets = self.same(story)
        self.assertEqual(received, [(slot, enums.IBV_WC_SUCCESS, SIZE) for slot in range(MANY)])
        self.assertEqual([octets[slot * SIZE] for slot in range(MANY)], list(range(1, MANY + 1)))

    def test_inVain(self) -> None:
        """
        Where messages are not taken together, as while the queue is to tell of a completion, that is not
        tried for each of them.
        """
        useDeclared(self)
        ends = _Ends(self, QPCap(MANY, MANY, 2, 2, 0))
        for slot in range(MANY):
            ends.receive(slot)
            ends.send(slot)
        ends.postings.settle()
        with hub:
            ends.two.cq._core.arm(True)
            calls = called(lambda: ends.two.qp._core.path.progress(MANY))
        self.assertEqual(calls["_several"], 1)
        self.assertEqual(len(ends.two.cq.poll(MANY)[1]), MANY)

    def test_unmapped(self) -> None:
        """
        Memory of a region that the program has unmapped is none, beside memory that is there too.
        """

        def story(ends: _Ends) -> None:
            ends.send(_PAGE // SIZE - 1)
            for slot in range(MANY):
                ends.receive(slot)
            munmap(ends.source.buf + _PAGE, _PAGE)
            for slot in range(1, MANY):
                ends.send(_PAGE // SIZE + slot if slot == 20 else slot)

        sent, *_ = self.same(story)
        self.assertEqual(
            [each[1] for each in sent[:21]], [enums.IBV_WC_SUCCESS] * 20 + [enums.IBV_WC_LOC_PROT_ERR]
        )

    def test_armed(self) -> None:
        """
        A queue that is armed tells of the first completion.
        """

        def story(ends: _Ends) -> None:
            told: list[int] = []
            core = ends.two.cq._core
            core.onCompletion = lambda queue: told.append(len(queue))
            core.arm()
            for slot in range(MANY):
                ends.receive(slot)
            for slot in range(MANY):
                ends.send(slot)
            ends.postings.settle()
            waitUntil(lambda: ends.two.cq.poll(0) and told)
            self.assertEqual(told, [1])

        self.same(story)
