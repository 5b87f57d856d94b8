"""
Devices and contexts of verbs, and their queries.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs.pair import VerbsTestCase
from twisted_ib import errors, limits
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.port import PortChange
from twisted_ib.hca.base.traits import LinkLayer, Peers, Proof, Traits, TransportType
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    AH,
    CQ,
    PD,
    QP,
    SRQ,
    AHAttr,
    CompChannel,
    Context,
    FdArr,
    GIDEntry,
    GlobalRoute,
    ODPCaps,
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
    phys_state_to_str,
    qp_state_to_str,
    qp_type_to_str,
    rdma_get_devices,
    speed_to_str,
    str_from_flags,
    translate_event_type,
    translate_mtu,
    width_to_str,
)
from twisted_ib.verbs.pyverbs.base.errors import ERRNOS, errnoOf
from twisted_ib.verbs.pyverbs.objects import device as verbsDevice


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
        The device and its port have these attributes.
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

    def test_linkLayer(self) -> None:
        """
        GIDs are InfiniBand's where the port's link layer is, and devices have the types of their transport.
        """
        ctx = self.open()
        (device,) = [each for each in get_device_list() if each.name.decode() == ctx.name]
        self.assertEqual(device.node_type, enums.IBV_NODE_CA)
        self.assertEqual(device.transport_type, enums.IBV_TRANSPORT_IB)
        iwarp = Traits(peers=Peers.ADDRESSES, proof=Proof.CONNECTION, transport=TransportType.IWARP)
        self.patch(verbsDevice, "traitsOf", lambda name: iwarp)
        self.assertEqual(get_device_list()[0].node_type, enums.IBV_NODE_RNIC)
        self.assertEqual(get_device_list()[0].transport_type, enums.IBV_TRANSPORT_IWARP)
        port = ctx._device.port
        self.addCleanup(setattr, port, "linkLayer", port.linkLayer)
        port.linkLayer = LinkLayer.INFINIBAND
        self.assertEqual(ctx.query_gid_type(1, 0), enums.IBV_GID_TYPE_SYSFS_IB_ROCE_V1)
        self.assertEqual(ctx.query_gid_ex(1, 0).gid_type, enums.IBV_GID_TYPE_IB)
        self.assertEqual(ctx.query_port(1).link_layer, enums.IBV_LINK_LAYER_INFINIBAND)

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
        An event of a device reaches all of its contexts.
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

    def test_portEvents(self) -> None:
        """
        A change of the port is an event, and queries show it.
        """
        ctx = self.open()
        ctx._device.changePort(PortChange(lid=7, lmc=1, partitions=(0xFFFF, 0x8001)))
        for kind in (enums.IBV_EVENT_LID_CHANGE, enums.IBV_EVENT_PKEY_CHANGE):
            self.assertEqual(ctx.get_async_event().event_type, kind)
        port = ctx.query_port(1)
        self.assertEqual((port.lid, port.lmc, port.pkey_tbl_len), (7, 1, 2))
        key = ctx.query_pkey(1, 1)
        self.assertEqual((key.to_bytes(2, sys.byteorder), ctx.get_pkey_index(1, key)), (b"\x80\1", 1))
        self.assertEqual(ctx.query_device().max_pkeys, 2)

    def test_waitEndsWithContext(self) -> None:
        """
        A thread that waits for an event of a context gets an error when it is closed.
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
        thread.join(HANG_SECONDS)
        self.assertEqual([type(each) for each in found], [PyverbsUserError])

    def test_noDescriptors(self) -> None:
        """
        A wait without a free descriptor is an error with an errno.
        """
        ctx = self.open()
        self.patch(hub, "wait", lambda ready, timeout: os.open("/nowhere", os.O_RDONLY))
        self.refused(errno.ENOENT, ctx.get_async_event)
        channel = CompChannel(ctx)
        self.refused(errno.ENOENT, channel.get_cq_event, CQ(ctx, 1, None, channel))

    def test_descriptors(self) -> None:
        """
        The device has one, and a list of them is a value.
        """
        ctx = self.open()
        os.close(os.dup(ctx.cmd_fd))
        arr = FdArr([3, 4, 5], 2)
        self.assertEqual((arr.arr, arr.count), ([3, 4], 2))
        self.assertIn("[3, 4]", str(arr))

    def test_numbers(self) -> None:
        """
        Each object has a number that stands for it.
        """
        ctx = self.open()
        pd, cq = PD(ctx), CQ(ctx, 1)
        srq = SRQ(pd, SrqInitAttr(SrqAttr()))
        ah = AH(pd, attr=AHAttr(is_global=1, gr=GlobalRoute(ctx.query_gid(1, 0))))
        qp = QP(pd, QPInitAttr(enums.IBV_QPT_RC, scq=cq, rcq=cq, srq=srq))
        self.assertEqual(len({ctx.context, pd.pd, cq.cq, srq.srq, ah.ah, qp.qp}), 6)
        self.assertEqual(len({each.handle for each in (ctx, pd, cq, srq, ah, qp)}), 6)

    def test_otherThreadsObjects(self) -> None:
        """
        An object that is dropped while another thread has the lock is closed later.
        """
        ctx = self.open()
        pds = [PD(ctx)]
        locked, done = threading.Event(), threading.Event()

        def hold() -> None:
            with hub:
                locked.set()
                done.wait(HANG_SECONDS)

        thread = threading.Thread(target=hold)
        thread.start()
        locked.wait(HANG_SECONDS)
        pds.clear()
        self.assertEqual(len(ctx._device.memory.domains), 1)
        done.set()
        thread.join(HANG_SECONDS)
        ctx.query_device()
        self.assertEqual(len(ctx._device.memory.domains), 0)

    def test_texts(self) -> None:
        """
        Codes have names; unknown ones are named as such.
        """
        self.assertEqual((speed_to_str(1), speed_to_str(1, 0)), 2 * ("2.5 Gbps (1)",))
        self.assertEqual(speed_to_str(1, 128), "100.0 Gbps (128)")
        self.assertEqual(translate_mtu(5), "4096 (5)")
        self.assertEqual(str_from_flags(3, {1: "one", 2: "two", 4: "four"}), "\n  one\n  two\n  ")
        self.assertEqual(translate_event_type(0), "IBV_EVENT_CQ_ERR")
        for call, code in ((translate_mtu, 6), (width_to_str, 3), (phys_state_to_str, 9)):
            self.assertIn("Invalid", call(code))
        self.assertIn("Unknown", translate_event_type(99))
        self.assertEqual((qp_type_to_str(2), qp_type_to_str(7)), ("RC", "Unknown (7)"))
        self.assertEqual((qp_state_to_str(3), qp_state_to_str(8)), ("RTS", "Unknown (8)"))
        self.assertEqual(str(ODPCaps()).count("\n"), 5)


class QueueTests(SynchronousTestCase):
    """
    The queue of asynchronous events.
    """

    def test_order(self) -> None:
        """
        Events come out in the order they came in, with their objects.
        """
        events = verbsDevice.AsyncEvents()
        self.assertIsNone(events.take())
        events.add(EventType.COMM_EST, "a")
        events.add(EventType.CQ_ERR, "b")
        self.assertEqual(len(events), 2)
        self.assertEqual(events.take(), (EventType.COMM_EST, "a"))
        self.assertEqual(events.take(), (EventType.CQ_ERR, "b"))
        self.assertIsNone(events.take())

    def test_bound(self) -> None:
        """
        Too many events are counted, and the oldest stay.
        """
        events = verbsDevice.AsyncEvents()
        for number in range(limits.ASYNC_EVENTS + 3):
            events.add(EventType.COMM_EST, number)
        self.assertEqual((len(events), events.lost), (limits.ASYNC_EVENTS, 3))
        self.assertEqual(events.take(), (EventType.COMM_EST, 0))
        events.add(EventType.COMM_EST, "late")
        self.assertEqual(events.lost, 3)

    def test_forget(self) -> None:
        """
        The events of an object go with it: of that object, not of one that is equal.
        """
        events = verbsDevice.AsyncEvents()
        one: list[int] = []
        two: list[int] = []
        for element in (one, two, one):
            events.add(EventType.QP_FATAL, element)
        events.forget(one)
        self.assertEqual(len(events), 1)
        found = events.take()
        assert found is not None
        self.assertIs(found[1], two)
