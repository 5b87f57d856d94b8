"""
Objects of verbs are closed, forgotten, or left behind by a fork; protection domains.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs.pair import ALL_RIGHTS, End, VerbsTestCase, connected
from twisted_ib import limits
from twisted_ib.errors import ResourceBusyError, ResourceLimitError
from twisted_ib.verbs.core.closes import DeferredCloses
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    AH,
    CMID,
    CQ,
    CQEX,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    AddrInfo,
    AHAttr,
    CompChannel,
    Context,
    CqInitAttrEx,
    GlobalRoute,
    MWBind,
    MWBindInfo,
    ParentDomain,
    ParentDomainContext,
    ParentDomainInitAttr,
    PyverbsError,
    PyverbsRDMAError,
    PyverbsUserError,
    QPInitAttr,
    SrqAttr,
    SrqInitAttr,
    enums,
)
from twisted_ib.verbs.pyverbs.base import verb


class ClosingTests(VerbsTestCase):
    """
    The dependants of an object are closed before it.
    """

    def everything(self) -> tuple[Context, list[Any]]:
        """
        @return: a context, and one object of each kind.
        """
        ctx = Context(name=self.device)
        pd = PD(ctx)
        mr = MR(pd, 100, ALL_RIGHTS)
        mw = MW(pd, enums.IBV_MW_TYPE_1)
        channel = CompChannel(ctx)
        cq = CQ(ctx, 10, None, channel)
        srq = SRQ(pd, SrqInitAttr(SrqAttr()))
        ah = AH(pd, attr=AHAttr(is_global=1, gr=GlobalRoute(ctx.query_gid(1, 0))))
        qp = QP(pd, QPInitAttr(enums.IBV_QPT_RC, scq=cq, rcq=cq, srq=srq))
        return ctx, [qp, ah, mw, mr, srq, cq, channel, pd]

    def test_context(self) -> None:
        """
        A context closes everything; all of it may be closed again.
        """
        ctx, objects = self.everything()
        device = ctx._device
        self.addCleanup(hub.close, hub.open(self.device))
        self.assertEqual(device.inUse(), {"pd": 1, "mr": 1, "cq": 1, "qp": 1, "srq": 1, "ah": 1, "mw": 1})
        ctx.close()
        self.assertEqual(sum(device.inUse().values()), 0, device.inUse())
        for each in [*objects, ctx]:
            each.close()

    def test_with(self) -> None:
        """
        Each can be closed by itself, or at the end of a C{with}.
        """
        ctx, objects = self.everything()
        with ctx:
            for each in objects:
                with each:
                    pass
                each.close()
        self.assertEqual(list(hub.devices), [])

    def test_forgotten(self) -> None:
        """
        Objects without a reference are closed, and so is the context, in any order of collection.
        """
        ctx, objects = self.everything()
        del ctx
        while objects:
            objects.pop()
        gc.collect()
        self.assertEqual(list(hub.devices), [])

    def test_forgottenInTheMiddle(self) -> None:
        """
        An object that is dropped while the lock is held is closed when the next verb begins.
        """
        ctx = self.open()
        pds = [PD(ctx)]
        with hub:
            pds.clear()
            self.assertEqual(len(ctx._device.memory.domains), 1)
        ctx.query_device()
        self.assertEqual(len(ctx._device.memory.domains), 0)

    def test_forgottenUser(self) -> None:
        """
        A dropped object that waits keeps no other from being closed.
        """
        ctx = self.open()
        pd = PD(ctx)
        core = pd._core
        with hub:
            PD.__new__(PD)  # Never opened: nothing waits for it.
            window = [MW(pd, enums.IBV_MW_TYPE_1)]
            window.clear()
            self.assertEqual(core.users, {"memory windows": 1})
            pd.close()
        self.assertEqual(len(ctx._device.memory.domains), 0)

    def test_closedIsUseless(self) -> None:
        """
        An object that is closed says so.
        """
        ctx, objects = self.everything()
        qp, _, mw, mr, srq, cq, channel, pd = objects
        ctx.close()
        for call in (
            lambda: qp.qp_num,
            lambda: mw.rkey,
            lambda: mr.lkey,
            lambda: srq.query(),
            lambda: cq.poll(),
            lambda: channel.fd,
            lambda: MR(pd, 10, 1),
            lambda: PD(ctx),
            lambda: CQ(ctx, 1),
        ):
            self.assertRaises(PyverbsUserError, call)

    def test_busy(self) -> None:
        """
        A region with a window on it cannot go: EBUSY; both stay.
        """
        a, _ = connected(self)
        mw = MW(a.pd, enums.IBV_MW_TYPE_1)
        a.qp.bind_mw(mw, MWBind(MWBindInfo(a.mr, a.mr.buf, 8, enums.IBV_ACCESS_REMOTE_READ), 2))
        self.wait(a.cq)
        error = self.refused(errno.EBUSY, a.mr.close)
        self.assertIn("1 memory windows", str(error))
        self.assertEqual(len(a.mr.read(8, 0)), 8)
        mw.close()
        a.mr.close()

    def test_otherThread(self) -> None:
        """
        Objects may be made in one thread and used and closed in another.
        """
        ctx, objects = self.everything()
        found: list[Any] = []

        def use() -> None:
            found.append(objects[5].poll())
            ctx.close()

        thread = threading.Thread(target=use)
        thread.start()
        thread.join(HANG_SECONDS)
        self.assertEqual(found, [(0, [])])
        self.assertEqual(list(hub.devices), [])

    def test_forkedWaits(self) -> None:
        """
        A child that polls or waits for something of its parent's does not do so for ever: there
        is no such device (ENODEV).
        """
        ctx, _ = self.everything()
        self.addCleanup(ctx.close)
        channel = CompChannel(ctx)
        cq = CQ(ctx, 8, None, channel)
        extended = CQEX(ctx, CqInitAttrEx(cqe=8))
        pid = os.fork()
        if not pid:  # pragma: no cover - in the child
            codes = []
            try:
                signal.alarm(int(HANG_SECONDS))
                for call in (
                    cq.poll,
                    extended.start_poll,
                    lambda: channel.get_cq_event(cq),
                    ctx.get_async_event,
                ):
                    try:
                        call()
                    except PyverbsRDMAError as error:
                        codes.append(error.error_code)
            finally:
                os._exit(codes != [errno.ENODEV] * 4)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(cq.poll(), (0, []))

    def test_forkedChild(self) -> None:
        """
        A child has nothing of its parent's, which goes on, and opens a device of its own.
        """
        ctx, objects = self.everything()
        self.addCleanup(ctx.close)
        pid = os.fork()
        if not pid:  # pragma: no cover - in the child
            code = 1
            try:
                try:
                    objects[-1].advise_mr(0, 0, [])
                    PD(ctx)
                except PyverbsError:
                    ctx.close()
                    objects.clear()
                    with Context(name=self.device) as own, PD(own):
                        code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(objects[5].poll(), (0, []))


class LoopbackClosingTests(ClosingTests):
    """
    The same on the device within a process.
    """

    device = "lo0"


class GraveyardTests(SynchronousTestCase):
    """
    Dropped objects that wait to be closed.
    """

    def test_busyWaits(self) -> None:
        """
        A busy object waits until it is free; one that fails otherwise is gone.
        """
        deferredCloses = DeferredCloses(hub)
        closed: list[str] = []

        def first() -> None:
            if "second" not in closed:
                raise ResourceBusyError("second")
            closed.append("first")

        def gone() -> None:
            raise ResourceLimitError("gone")

        with hub:
            deferredCloses.closeLater(first)
            deferredCloses.closeLater(gone)
            deferredCloses.closeLater(lambda: closed.append("second"))
            self.assertEqual(closed, [])
            deferredCloses.closePending()
        self.assertEqual(closed, ["second", "first"])

    def test_stillBusy(self) -> None:
        """
        A sweep ends if something stays busy.
        """
        deferredCloses = DeferredCloses(hub)
        tries: list[int] = []

        def busy() -> None:
            tries.append(1)
            raise ResourceBusyError("always")

        deferredCloses.closeLater(busy)
        with hub:
            deferredCloses.closePending()
        self.assertEqual(len(tries), 2)
        deferredCloses.forget()
        with hub:
            deferredCloses.closePending()
        self.assertEqual(len(tries), 2)


class DomainTests(VerbsTestCase):
    """
    Protection domains.
    """

    def test_limit(self) -> None:
        """
        Too many are ENOMEM.
        """
        ctx = self.open()
        self.patch(limits, "PROTECTION_DOMAINS", 1)
        kept = PD(ctx)
        self.refused(errno.ENOMEM, PD, ctx)
        kept.close()
        PD(ctx)

    def test_wrongCreator(self) -> None:
        """
        A domain is of a context.
        """
        self.assertRaises(PyverbsUserError, PD, None)
        self.refused(errno.EOPNOTSUPP, PD, self.open(), handle=1)
        self.refused(errno.EOPNOTSUPP, PD(self.open()).advise_mr, 0, 0, [])

    def test_parent(self) -> None:
        """
        A parent domain gives the rights of the domain that it is on, and goes before it.
        """
        ctx = self.open()
        pd = PD(ctx)
        called: list[Any] = []
        allocator = ParentDomainContext(pd, called.append, called.append, "mine")
        attr = ParentDomainInitAttr(pd, allocator)
        self.assertEqual(attr.comp_mask, 3)
        parent = ParentDomain(ctx, attr)
        end = End(self, pd=parent)
        end.mr.close()
        self.assertEqual(MR(pd, 1, 0).length, 1)
        pd.close()
        self.assertRaises(PyverbsUserError, parent._check)
        self.assertEqual(called, [])

    def test_ofIdentifier(self) -> None:
        """
        A connection identifier lends its device and its domain, and goes last.
        """
        ctx = self.open()
        space, flags = enums.RDMA_PS_TCP, enums.RAI_PASSIVE
        info = AddrInfo(src="127.0.0.1", src_service="0", port_space=space, flags=flags)
        identifier = CMID(info, None, PD(ctx))
        self.addCleanup(identifier.close)
        with Context(cmid=identifier) as other:
            self.assertEqual(other.query_gid(1, 0).gid, ctx.query_gid(1, 0).gid)
        pd = PD(identifier)
        self.assertIs(pd._core, identifier.pd._core)
        mr = MR(identifier, 10, enums.IBV_ACCESS_REMOTE_WRITE)
        self.assertEqual(mr._core.access, enums.IBV_ACCESS_REMOTE_WRITE | enums.IBV_ACCESS_LOCAL_WRITE)
        pd.close()
        self.assertEqual(mr.length, 10)
        identifier.close()
        self.assertRaises(PyverbsUserError, lambda: mr.length)
        self.assertRaises(PyverbsUserError, PD, CMID())

    def test_parentAttributes(self) -> None:
        """
        An allocator's bits need one, and other bits are not supported.
        """
        pd = PD(self.open())
        self.assertRaises(PyverbsUserError, ParentDomainInitAttr, pd, None, 1)
        self.refused(errno.EOPNOTSUPP, ParentDomain, pd.ctx, ParentDomainInitAttr(pd, None, 4))


class VerbTests(SynchronousTestCase):
    """
    The decorator of verbs.
    """

    def test_errors(self) -> None:
        """
        Errors of the core and of the system have an errno; others pass.
        """

        @verb.verb("Failed to do")
        def do(error: BaseException) -> None:
            raise error

        for error, code in (
            (ResourceLimitError("so many"), errno.ENOMEM),
            (OSError(errno.EMFILE, "x"), errno.EMFILE),
            (OSError(), errno.EIO),
        ):
            found = self.assertRaises(PyverbsRDMAError, do, error)
            self.assertEqual(found.error_code, code)
            self.assertTrue(str(found).startswith("Failed to do"))
        self.assertRaises(KeyError, do, KeyError())
        self.assertRaises(PyverbsUserError, do, PyverbsUserError("x"))
