"""
Contexts of verbs, what they tell of a device, and how objects are closed and forgotten.
"""

from __future__ import annotations

import errno
import gc
import os
import threading
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.verbs_pair import ALL_RIGHTS, End, VerbsTestCase, connected
from twisted_ib import errors, limits
from twisted_ib.errors import ResourceBusyError, ResourceLimitError
from twisted_ib.hca.core.events import EventType
from twisted_ib.hca.verbs import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    AHAttr,
    CompChannel,
    Context,
    GIDEntry,
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
    fork_init,
    get_device_list,
    is_fork_initialized,
    rdma_get_devices,
    verb,
)
from twisted_ib.hca.verbs.errors import ERRNOS, errnoOf
from twisted_ib.hca.verbs.hub import hub
from twisted_ib.hca.verbs.verb import Graveyard


class DeviceListTests(SynchronousTestCase):
    """
    The devices there are.
    """

    def test_names(self) -> None:
        """
        The usual one comes first, and names are bytes.
        """
        found = get_device_list()
        self.assertEqual([each.name for each in found], [b"shm0", b"lo0"])
        self.assertEqual([each.index for each in found], [0, 1])
        self.assertEqual(found[0].node_type, enums.IBV_NODE_CA)
        self.assertEqual(found[0].guid, 0)
        self.assertIn("Device shm0, node type CA, transport type IB", str(found[0]))
        self.assertEqual(len(rdma_get_devices()), 2)

    def test_wrongNames(self) -> None:
        """
        A context needs the name of a device.
        """
        self.assertRaises(PyverbsUserError, Context)
        error = self.assertRaises(PyverbsRDMAError, Context, name="mlx5_0")
        self.assertEqual(error.error_code, errno.ENODEV)
        self.assertIn("Failed to find device mlx5_0", str(error))
        for more in ({"cmd_fd": 1}, {"name": "shm0", "attr": object()}):
            error = self.assertRaises(PyverbsRDMAError, Context, **more)
            self.assertEqual(error.error_code, errno.EOPNOTSUPP)

    def test_fork(self) -> None:
        """
        A process may fork without preparation.
        """
        fork_init()
        self.assertEqual(is_fork_initialized(), enums.IBV_FORK_UNNEEDED)


class ErrnoTests(SynchronousTestCase):
    """
    Every error of twisted_ib has an errno.
    """

    def test_all(self) -> None:
        """
        A class has its own or its base's.
        """
        for error in vars(errors).values():
            if isinstance(error, type) and issubclass(error, errors.HCAError):
                self.assertIn(errnoOf(error.__new__(error)), ERRNOS.values())
        self.assertEqual(errnoOf(errors.SegmentError("x")), errno.ECONNABORTED)
        self.assertEqual(errnoOf(errors.ResourceBusyError("x")), errno.EBUSY)


class ContextTests(VerbsTestCase):
    """
    An open device.
    """

    def test_query(self) -> None:
        """
        The device and its port say what they are.
        """
        ctx = self.open()
        attr = ctx.query_device()
        self.assertEqual(attr.max_cqe, limits.COMPLETION_QUEUE_DEPTH)
        self.assertEqual(attr.max_qp_wr, limits.WORK_QUEUE_DEPTH)
        self.assertEqual(attr.phys_port_cnt, 1)
        self.assertEqual(attr.atomic_caps, enums.IBV_ATOMIC_HCA)
        self.assertIn("Max qp", str(attr))
        more = ctx.query_device_ex()
        self.assertEqual(more.orig_attr.node_guid, attr.node_guid)
        self.assertEqual(more.phys_port_cnt_ex, 1)
        self.assertEqual(more.cq_mod_caps.max_cq_count, 0xFFFF)
        self.assertEqual(more.odp_caps.general_caps, 0)
        port = ctx.query_port(1)
        self.assertEqual(port.state, enums.IBV_PORT_ACTIVE)
        self.assertEqual(port.link_layer, enums.IBV_LINK_LAYER_ETHERNET)
        self.assertEqual(port.max_mtu, enums.IBV_MTU_4096)
        self.assertEqual(port.max_msg_sz, limits.MESSAGE_BYTES)
        self.assertIn("Active (4)", str(port))
        self.assertEqual(ctx.num_comp_vectors, 1)
        self.assertEqual(ctx.query_pkey(1, 0), 0xFFFF)
        self.assertEqual(ctx.get_pkey_index(1, 0xFFFF), 0)
        self.assertEqual(get_device_list()[0].guid, int(ctx.query_gid(1, 0).raw[8:].hex(), 16))

    def test_wrongPlaces(self) -> None:
        """
        There is one port, and tables end somewhere.
        """
        ctx = self.open()
        for call in (ctx.query_port, ctx.query_port_speed):
            self.refused(errno.EINVAL, call, 0)
            self.refused(errno.EINVAL, call, 2)
        self.refused(errno.EOPNOTSUPP, ctx.query_port_speed, 1)
        length = ctx.query_port(1).gid_tbl_len
        for call, index in (
            (ctx.query_gid, length),
            (ctx.query_gid_type, length),
            (ctx.query_gid_ex, length),
            (ctx.query_pkey, 1),
            (ctx.query_gid, -1),
        ):
            self.refused(errno.EINVAL, call, 1, index)
            self.refused(errno.EINVAL, call, 2, 0)
        self.refused(errno.EINVAL, ctx.get_pkey_index, 1, 0x7FFF)
        self.refused(errno.EOPNOTSUPP, ctx.query_rt_values_ex)
        self.refused(errno.EOPNOTSUPP, ctx.query_comp_cntr_caps)

    def test_gids(self) -> None:
        """
        GID 0 is the HCA's, others are the host's, the rest of the table is empty.
        """
        ctx = self.open()
        gid = ctx.query_gid(1, 0)
        self.assertTrue(gid.gid.startswith("fe80:0000:0000:0000:"))
        table = ctx.query_gid_table(ctx.query_port(1).gid_tbl_len)
        self.assertEqual(table[0].gid_str(), gid.gid)
        self.assertEqual([each.gid_index for each in table], list(range(len(table))))
        self.assertIn("0000:0000:0000:0000:0000:ffff:7f00:0001", [each.gid_str() for each in table])
        for entry in table:
            self.assertEqual(ctx.query_gid(1, entry.gid_index).gid, entry.gid_str())
            self.assertEqual(ctx.query_gid_ex(1, entry.gid_index).gid_str(), entry.gid_str())
        self.assertEqual(ctx.query_gid(1, len(table)).raw, bytes(16))
        self.refused(errno.ENODATA, ctx.query_gid_ex, 1, len(table))
        self.refused(-errno.EINVAL, ctx.query_gid_table, len(table) - 1)
        self.assertEqual(ctx.query_gid_type(1, 0), enums.IBV_GID_TYPE_SYSFS_ROCE_V2)
        self.assertIn("RoCEv2", str(GIDEntry(gid_type=enums.IBV_GID_TYPE_ROCE_V2)))

    def test_twoContexts(self) -> None:
        """
        Contexts of one name share an HCA, which goes with the last.
        """
        a, b = self.open(), self.open()
        self.assertEqual(a.query_gid(1, 0).gid, b.query_gid(1, 0).gid)
        a.close()
        self.assertEqual(len(b.query_gid(1, 0).raw), 16)
        b.close()
        self.assertEqual(list(hub.devices), [])
        self.assertRaises(PyverbsUserError, b.query_device)

    def test_deviceEvents(self) -> None:
        """
        What happens to a device all of its contexts hear.
        """
        contexts = [self.open(), self.open()]
        (device,) = hub.devices
        assert device.onEvent is not None
        device.onEvent(EventType.PORT_ACTIVE, device)
        for ctx in contexts:
            event = ctx.get_async_event()
            event.ack()
            self.assertEqual(event.event_type, enums.IBV_EVENT_PORT_ACTIVE)
            self.assertIn("IBV_EVENT_PORT_ACTIVE", str(event))

    def test_waitEndsWithContext(self) -> None:
        """
        Who waits for an event of a context that is closed gets an error.
        """
        ctx = self.open()
        found: list[Any] = []

        def wait() -> None:
            try:
                ctx.get_async_event()
            except PyverbsError as error:
                found.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        ctx.close()
        thread.join(10)
        self.assertEqual([type(each) for each in found], [PyverbsUserError])


class ClosingTests(VerbsTestCase):
    """
    What depends on an object is closed before it.
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
        self.assertEqual(
            device.inUse(), {"pd": 1, "mr": 1, "cq": 1, "qp": 1, "srq": 1, "ah": 1, "mw": 1}
        )
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
        What nobody has any more is closed, and so is the context, in whatever order they go.
        """
        ctx, objects = self.everything()
        del ctx
        while objects:
            objects.pop()
        gc.collect()
        self.assertEqual(list(hub.devices), [])

    def test_forgottenInTheMiddle(self) -> None:
        """
        What is forgotten while the lock is held is closed when the next verb begins.
        """
        ctx = self.open()
        pds = [PD(ctx)]
        with hub:
            pds.clear()
            self.assertEqual(len(ctx._device.memory.domains), 1)
        ctx.query_device()
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
        A region with a window on it can not go: EBUSY; both stay.
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
        thread.join(10)
        self.assertEqual(found, [(0, [])])
        self.assertEqual(list(hub.devices), [])

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
    What waits to be closed.
    """

    def test_busyWaits(self) -> None:
        """
        What others use waits for them; what fails otherwise is gone.
        """
        graveyard = Graveyard()
        closed: list[str] = []

        def first() -> None:
            if "second" not in closed:
                raise ResourceBusyError("second")
            closed.append("first")

        def gone() -> None:
            raise ResourceLimitError("gone")

        with hub:
            graveyard.bury(first)
            graveyard.bury(gone)
            graveyard.bury(lambda: closed.append("second"))
            self.assertEqual(closed, [])
            graveyard.sweep()
        self.assertEqual(closed, ["second", "first"])

    def test_stillBusy(self) -> None:
        """
        A sweep ends if something stays busy.
        """
        graveyard = Graveyard()
        tries: list[int] = []

        def busy() -> None:
            tries.append(1)
            raise ResourceBusyError("always")

        graveyard.bury(busy)
        with hub:
            graveyard.sweep()
        self.assertEqual(len(tries), 2)
        graveyard.forget()
        with hub:
            graveyard.sweep()
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
