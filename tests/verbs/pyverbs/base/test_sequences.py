"""
Verbs in any order: only declared errors, each request completes once, and nothing is left.
"""

from __future__ import annotations

import threading
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.support.generated import settings
from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs.pair import ALL_RIGHTS, QKEY, VerbsTestCase, connected
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SGE,
    SRQ,
    AHAttr,
    Context,
    GlobalRoute,
    MWBind,
    MWBindInfo,
    PyverbsError,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
    enums,
)

STATE = enums.IBV_QP_STATE
OPCODES = [
    enums.IBV_WR_SEND,
    enums.IBV_WR_SEND_WITH_IMM,
    enums.IBV_WR_RDMA_WRITE,
    enums.IBV_WR_RDMA_WRITE_WITH_IMM,
    enums.IBV_WR_RDMA_READ,
    enums.IBV_WR_ATOMIC_FETCH_AND_ADD,
    enums.IBV_WR_LOCAL_INV,
    enums.IBV_WR_SEND_WITH_INV,
]
#: As many requests as a completion queue holds.
MOST = 200


class Machine(RuleBasedStateMachine):
    """
    One context with a few objects of each kind.

    A request is I{owed} until it has completed; one that is not signalled may complete, once.
    """

    device = "lo0"

    def __init__(self) -> None:
        """
        There is a context.
        """
        super().__init__()
        self.ctx = Context(name=self.device)
        self.objects: dict[type, list[Any]] = {kind: [] for kind in (PD, MR, MW, CQ, SRQ, QP, AH)}
        self.owed: dict[int, int] = {}
        self.may: dict[int, int] = {}
        self.shared: set[int] = set()
        self.count = 0
        self.pd = self.keep(PD(self.ctx))
        self.keep(CQ(self.ctx, MOST))
        self.keep(MR(self.pd, 300, ALL_RIGHTS))
        self.connect(self.pd, enums.IBV_QPT_RC, 0, 0, None)

    def keep(self, made: Any) -> Any:
        """
        Remember an object.
        """
        self.objects[type(made)].append(made)
        return made

    def pick(self, kind: type, index: int) -> Any:
        """
        @return: one of the objects, or None.
        """
        alive = self.objects[kind] = [each for each in self.objects[kind] if each._closer is not None]
        return alive[index % len(alive)] if alive else None

    def attempt(self, call: Any, *arguments: Any) -> bool:
        """
        @return: whether a verb went through; a declared error is no surprise.
        """
        try:
            call(*arguments)
        except PyverbsError:
            return False
        return True

    index = st.integers(0, 5)
    # Mostly those that are in order, as errors end everything soon.
    often = st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, 2, 3])
    flags = st.sampled_from([2, 2, 2, 2, 0, 3, 6, 10])

    # -- creation

    @rule(index=index, length=st.integers(0, 300), access=st.sampled_from([0, 1, 7, ALL_RIGHTS]))
    def region(self, index: int, length: int, access: int) -> None:
        """
        Register memory.
        """
        pd = self.pick(PD, index)
        if pd is not None:
            self.attempt(lambda: self.keep(MR(pd, length, access)))

    @rule(index=index, kind=st.sampled_from([1, 2]))
    def window(self, index: int, kind: int) -> None:
        """
        Allocate a window.
        """
        pd = self.pick(PD, index)
        if pd is not None:
            self.attempt(lambda: self.keep(MW(pd, kind)))

    @rule(index=index, more=st.sampled_from([PD, CQ, SRQ, AH]))
    def another(self, index: int, more: type) -> None:
        """
        Create another object.
        """
        pd = self.pick(PD, index)
        if more is PD:
            self.keep(PD(self.ctx))
        elif more is CQ:
            self.keep(CQ(self.ctx, MOST))
        elif pd is not None and more is SRQ:
            self.keep(SRQ(pd, SrqInitAttr(SrqAttr(5, 2))))
        elif pd is not None:
            self.keep(AH(pd, attr=self.address()))

    def address(self) -> AHAttr:
        """
        @return: where everything is.
        """
        return AHAttr(is_global=1, gr=GlobalRoute(self.ctx.query_gid(1, 0)))

    @rule(
        index=index,
        kind=st.sampled_from([enums.IBV_QPT_RC, enums.IBV_QPT_UC, enums.IBV_QPT_UD]),
        every=st.integers(0, 1),
        shared=st.booleans(),
    )
    def pair(self, index: int, kind: int, every: int, shared: bool) -> None:
        """
        Create two queue pairs, and connect them.
        """
        pd = self.pick(PD, index)
        if pd is not None and self.pick(CQ, 0) is not None:
            self.connect(pd, kind, every, index, self.pick(SRQ, index) if shared else None)

    def connect(self, pd: PD, kind: int, every: int, index: int, srq: SRQ | None) -> None:
        """
        Create two queue pairs, and connect them.
        """
        scq, rcq = self.pick(CQ, index), self.pick(CQ, index + 1)
        attr = QPInitAttr(kind, None, scq, rcq, srq, QPCap(5, 5, 2, 2, 16), every)
        pair = [self.keep(QP(pd, attr)) for _ in range(2)]
        for qp, peer in (pair, pair[::-1]):
            ready = QPAttr()
            ready.qkey, ready.qp_access_flags = QKEY, ALL_RIGHTS & 15
            ready.ah_attr, ready.dest_qp_num = self.address(), peer.qp_num
            ready.max_rd_atomic = ready.max_dest_rd_atomic = 2
            ready.timeout, ready.retry_cnt, ready.rnr_retry, ready.min_rnr_timer = 1, 1, 1, 1
            self.attempt(qp.to_rts, ready)

    # -- requests

    def sge(self, index: int) -> SGE:
        """
        @return: a piece of a region, perhaps too long.
        """
        mr = self.pick(MR, index)
        return SGE(5, 5, 5) if mr is None else SGE(mr.buf + index, 16, mr.lkey)

    @precondition(lambda self: self.count < MOST)
    @rule(
        qp=st.sampled_from([0, 0, 0, 1, 1, 1, 2, 3]),
        index=often,
        opcode=st.sampled_from(OPCODES),
        flags=flags,
        place=often,
        remote=often,
    )
    def send(self, qp: int, index: int, opcode: int, flags: int, place: int, remote: int) -> None:
        """
        Post a send request.
        """
        queue, mr, ah = self.pick(QP, qp), self.pick(MR, remote), self.pick(AH, remote)
        if queue is None:
            return
        self.count += 1
        wr = SendWR(self.count, opcode, 1, 0, [self.sge(index)], flags)
        if queue.qp_type == enums.IBV_QPT_UD:
            if ah is not None:
                wr.set_wr_ud(ah, self.pick(QP, place).qp_num, QKEY)
        elif opcode == enums.IBV_WR_ATOMIC_FETCH_AND_ADD and mr is not None:
            wr.set_wr_atomic(mr.rkey, mr.buf + place * 8, 1)
        elif mr is not None:
            wr.set_wr_rdma(mr.rkey, mr.buf + place)
        self.may[self.count] = queue.qp_num
        if not self.attempt(queue.post_send, wr):
            del self.may[self.count]
        elif flags & enums.IBV_SEND_SIGNALED or queue._sigAll:
            self.owed[self.count] = queue.qp_num

    @precondition(lambda self: self.count < MOST)
    @rule(qp=st.sampled_from([0, 0, 0, 1, 1, 1, 2, 3]), index=often)
    def receive(self, qp: int, index: int) -> None:
        """
        Post a receive.
        """
        queue = self.pick(QP, qp)
        if queue is None:
            return
        target: Any = queue.srq or queue
        self.count += 1
        self.may[self.count] = queue.qp_num
        if queue.srq is not None:
            self.shared.add(self.count)
        elif queue.qp_state != enums.IBV_QPS_RESET:
            self.owed[self.count] = queue.qp_num
        if not self.attempt(target.post_recv, RecvWR(self.count, 1, [self.sge(index)])):
            del self.may[self.count]
            self.owed.pop(self.count, None)

    @precondition(lambda self: self.count < MOST)
    @rule(qp=often, index=often, length=st.integers(0, 50))
    def bind(self, qp: int, index: int, length: int) -> None:
        """
        Bind a window of type 1.
        """
        queue, mw, mr = self.pick(QP, qp), self.pick(MW, index), self.pick(MR, index)
        if queue is None or mw is None or mr is None:
            return
        self.count += 1
        self.may[self.count] = queue.qp_num
        request = MWBind(MWBindInfo(mr, mr.buf, length, 4), enums.IBV_SEND_SIGNALED, self.count)
        if self.attempt(queue.bind_mw, mw, request):
            self.owed[self.count] = queue.qp_num
        else:
            del self.may[self.count]

    @rule(index=index, count=st.integers(0, 10))
    def poll(self, index: int, count: int) -> None:
        """
        Take completions.
        """
        cq = self.pick(CQ, index)
        for wc in cq.poll(count)[1] if cq is not None else ():
            assert wc.wr_id in self.may, f"{wc.wr_id} completed twice"
            number = self.may.pop(wc.wr_id)
            assert wc.wr_id in self.shared or number == wc.qp_num
            self.owed.pop(wc.wr_id, None)

    # -- changes and ends

    @rule(
        qp=index,
        state=st.sampled_from([enums.IBV_QPS_RESET, enums.IBV_QPS_ERR, enums.IBV_QPS_SQD, enums.IBV_QPS_RTS]),
    )
    def modify(self, qp: int, state: int) -> None:
        """
        Change a state.
        """
        queue = self.pick(QP, qp)
        if queue is not None and self.attempt(queue.modify, QPAttr(state), STATE):
            if state == enums.IBV_QPS_RESET:
                self.forgive(queue.qp_num)

    def forgive(self, number: int) -> None:
        """
        The requests of a queue pair need not complete any more.
        """
        self.owed = {key: value for key, value in self.owed.items() if value != number}

    @rule(kind=st.sampled_from([PD, MR, MW, CQ, SRQ, QP, AH]), index=index)
    def close(self, kind: type, index: int) -> None:
        """
        Close an object and what depends on it.
        """
        each = self.pick(kind, index)
        if each is not None:
            self.attempt(each.close)
        alive = {qp.qp_num for qp in self.objects[QP] if qp._closer is not None}
        self.owed = {key: value for key, value in self.owed.items() if value in alive}

    def teardown(self) -> None:
        """
        Everything that is owed completes when all queue pairs fail, and nothing is left.
        """
        try:
            while (queue := self.pick(QP, 0)) is not None:
                queue.modify(QPAttr(enums.IBV_QPS_ERR), STATE)
                for index in range(len(self.objects[CQ])):
                    self.poll(index, MOST)
                number = queue.qp_num
                assert number not in self.owed.values(), self.owed
                queue.close()
            device = self.ctx._device
        finally:
            self.ctx.close()
        assert sum(device.inUse().values()) == 0, device.inUse()
        assert not hub.devices


class SharedMemoryMachine(Machine):
    """
    The same on rings.
    """

    device = "shm0"


class SequenceTests(VerbsTestCase):
    """
    Any order.
    """

    examples = 10

    def test_loopback(self) -> None:
        """
        On the device within a process.
        """
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            Machine, settings=settings(max_examples=2 * self.examples, stateful_step_count=40, deadline=None)
        )

    def test_rings(self) -> None:
        """
        On the rings of a device with itself.
        """
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            SharedMemoryMachine,
            settings=settings(max_examples=self.examples, stateful_step_count=40, deadline=None),
        )


class ThreadTests(VerbsTestCase):
    """
    Many threads.
    """

    def test_pingPong(self) -> None:
        """
        Threads that talk over connections of their own, and one that only waits, do not
        disturb each other.
        """
        pairs = [connected(self, sq_sig_all=1) for _ in range(3)]
        errors: list[BaseException] = []

        def talk(number: int) -> None:
            try:
                near, far = pairs[number]
                for turn in range(50):
                    near.mr.write(bytes([number, turn]) * 32, 64)
                    far.receive(wr_id=turn)
                    near.qp.post_send(near.send(wr_id=turn))
                    assert self.wait(near.cq)[0].wr_id == turn
                    assert self.wait(far.cq)[0].wr_id == turn
                    assert far.mr.read(64, 0) == bytes([number, turn]) * 32
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=talk, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_SECONDS)
        self.assertEqual(errors, [])

    def test_objects(self) -> None:
        """
        Threads that create and forget objects leave nothing.
        """
        ctx = self.open()
        errors: list[BaseException] = []

        def make() -> None:
            try:
                for _ in range(30):
                    pd = PD(ctx)
                    cq = CQ(ctx, 10)
                    QP(pd, QPInitAttr(enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap()), QPAttr())
                    MR(pd, 100, 1).write("x", 1)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_SECONDS)
        self.assertEqual(errors, [])
        ctx.query_device()
        self.assertEqual(sum(ctx._device.inUse().values()), 0)
