"""
Identifiers on devices of a subnet: connections and datagram services by GID, and multicast groups.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import product
from typing import Any
from unittest import mock, skipIf

from attrs import evolve

from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs.cm.case import TCP, UDP, CMTestCase, Kind, attributes
from twisted_ib import limits
from twisted_ib.errors import NoSubnetManagerError, SATimeoutError
from twisted_ib.hca.host import libc
from twisted_ib.hca.mad.attributes.administration import JoinState, MCMemberRecord
from twisted_ib.subnet.hosting import hostthread as hosts
from twisted_ib.subnet.port.fabric import SubnetFabric
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import AH, AddrInfo, ConnParam, JoinMCAttrEx, UDParam, enums
from twisted_ib.verbs.pyverbs.cm.groups import subnetGroupOf

MISSING = libc.available()
GROUP = "230.0.0.1"
#: Its MGID: signature of RDMA CM, default partition.
MGID = 0xFF124001FFFF00000000000006000001
BOTH = enums.RDMA_CM_JOIN_MC_ATTR_ADDRESS | enums.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS


class SubnetCase(CMTestCase):
    """
    Base of tests on the subnet of a run directory.
    """

    device = "ib0"

    def setUp(self) -> None:
        """
        Open the device.
        """
        ownRunDirectory(self)
        self.patch(hosts, "LINGER_SECONDS", 0.02)
        super().setUp()

    def until(self, holds: Callable[[], object]) -> None:
        """
        Serve the devices until something is so.
        """
        self.assertTrue(hub.wait(lambda: bool(holds()), HANG_SECONDS))


@skipIf(bool(MISSING), f"missing: {MISSING}")
class SubnetCallTests(SubnetCase):
    """
    Connections and datagram services between two devices.
    """

    def test_calls(self) -> None:
        """
        By the GID of the other, and by an address of this host.
        """
        for space, host in product((TCP, UDP), ("gid", "127.0.0.1")):
            listener = self.made(self.far, port_space=space, device="ib1")
            listener.bind_addr(
                AddrInfo("127.0.0.1" if "." in host else "::", src_service="0", port_space=space, flags=1)
            )
            listener.listen(1)
            host = host.replace("gid", listener._id.device.gids()[0])
            active = self.made(self.near, port_space=space, device="ib0")
            active.resolve_addr(AddrInfo(dst=host, dst_service=str(listener.local_addr[1]), port_space=space))
            self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
            active.resolve_route()
            self.expect(self.near, Kind.RDMA_CM_EVENT_ROUTE_RESOLVED)
            active.create_qp(attributes(space))
            active.connect(ConnParam())
            event = self.event(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
            passive = self.made(event, listen_id=listener)
            event.ack_cm_event()
            passive.create_qp(attributes(space))
            passive.accept(ConnParam())
            event = self.event(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
            target = UDParam(event)
            event.ack_cm_event()
            lid = listener._id.device.port.lid
            if space == UDP:
                self.assertEqual(target.ah_attr.dlid, lid)
                AH(active.pd, attr=target.ah_attr).close()
            else:
                attr, _ = active.init_qp_attr(enums.IBV_QPS_RTR)
                self.assertEqual(attr.ah_attr.dlid, lid)
            if space == TCP:
                self.expect(self.far, Kind.RDMA_CM_EVENT_ESTABLISHED)
                self.talk(active, passive)
                own = active._id.device.gids()[0] if ":" in host else host
                self.assertEqual(passive.peer_addr[0], own)

    def test_lateRoute(self) -> None:
        """
        An HCA of C{RDMA_PS_IB} that the subnet does not lead to yet is waited for.
        """
        space = enums.RDMA_PS_IB
        there = self.made(self.far, port_space=space, device="ib1")
        there.bind_addr(AddrInfo("::", src_service="0", port_space=space, flags=1))
        there.listen(1)
        service = str(there.local_addr[1])
        active = self.made(self.near, port_space=space, device="ib0")
        looks: list[bool] = []
        leads = SubnetFabric.connects

        def connects(fabric: SubnetFabric, guid: int) -> bool:
            looks.append(len(looks) > 2 and leads(fabric, guid))
            return looks[-1]

        self.patch(SubnetFabric, "connects", connects)
        gid = there._id.device.gids()[0]
        active.resolve_addr(AddrInfo(dst=gid, dst_service=service, port_space=space))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
        active.resolve_route()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ROUTE_RESOLVED)
        active.create_qp(attributes(TCP))
        active.connect(ConnParam())
        self.expect(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
        self.assertEqual(looks[:3], [False] * 3)
        self.assertTrue(looks[-1])

    def test_elsewhere(self) -> None:
        """
        An address of another host, or a GID of another subnet, is not reached.
        """
        for host in ("192.0.2.7", "fec0::7"):
            active = self.made(self.near, port_space=TCP, device="ib0")
            active.resolve_addr(AddrInfo(dst=host, dst_service="7", port_space=TCP))
            self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_ERROR, -errno.ENODEV)


@skipIf(bool(MISSING), f"missing: {MISSING}")
class SubnetGroupTests(SubnetCase):
    """
    Subnet administration, that of the run directory's subnet, is asked.
    """

    space = int(UDP)
    #: How many groups test_many joins; those of tests/soak are more.
    groupsJoined = 200

    def setUp(self) -> None:
        """
        Open the device.
        """
        super().setUp()
        self.sa = self.context._device.sa

    def member(self, group: str = GROUP, device: str = "ib0", **more: Any) -> Any:
        """
        An identifier with a queue pair that has asked to join.
        """
        made = self.made(self.near, port_space=UDP, device=device)
        made.resolve_addr(AddrInfo(src="127.0.0.1" if "." in group else "::1", dst=group))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
        made.create_qp(attributes(UDP))
        made.join_multicast(**(more or {"addr": AddrInfo(src=group)}))
        return made

    def where(self) -> UDParam:
        """
        What the next event says.
        """
        event = self.event(self.near, Kind.RDMA_CM_EVENT_MULTICAST_JOIN)
        found = UDParam(event)
        event.ack_cm_event()
        return found

    def groups(self, **values: int) -> list[MCMemberRecord]:
        """
        What subnet administration has, of what it knows itself.
        """
        said: list[Any] = []
        self.sa.query(MCMemberRecord, said.append, values)
        self.until(lambda: said)
        return list(said[0])

    def test_record(self) -> None:
        """
        The event has LID, service level, rate and Q_Key of the record; datagrams reach the members on other
        ports, until they leave.
        """
        first = self.member()
        where = self.where()
        (record,) = self.groups(mgid=MGID)
        attr = where.ah_attr
        self.assertEqual((attr.dlid, attr.sl, attr.static_rate), (record.mlid, record.sl, record.rate))
        self.assertEqual((attr.dgid, attr.hop_limit), ("ff12:4001:ffff:0000:0000:0000:0600:0001", 0))
        self.assertEqual((where.qp_num, where.qkey), (0xFFFFFF, enums.RDMA_UDP_QKEY))
        self.assertEqual((record.qKey, record.pKey), (enums.RDMA_UDP_QKEY, 0xFFFF))
        second = self.member(device="ib1")
        self.assertEqual(self.where().ah_attr.dlid, attr.dlid)
        other = second._id.device
        self.assertTrue(
            hub.wait(lambda: other.guid in first._id.device.fabric.members(attr.dlid), HANG_SECONDS)
        )
        region = second.reg_msgs(100)
        second.post_recv(region)
        sent = first.reg_msgs(8)
        sent.write(b"everyone", 8)
        handle = AH(first.pd, attr=attr)
        first.post_ud_send(sent, handle, where.qp_num, length=8)
        self.assertEqual(second.get_recv_comp().byte_len, 48)
        self.assertEqual(region.read(8, 40), b"everyone")
        handle.close()
        second.leave_multicast(AddrInfo(src=GROUP))
        self.assertTrue(
            hub.wait(lambda: other.guid not in first._id.device.fabric.members(attr.dlid), HANG_SECONDS)
        )
        first.close()
        self.until(lambda: not self.groups(mgid=MGID))

    def test_states(self) -> None:
        """
        A member that only sends is not attached.
        """
        attr = JoinMCAttrEx(AddrInfo(src=GROUP), BOTH, enums.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER)
        deaf = self.member(mc_attr=attr)
        self.where()
        (registration,) = self.sa.registrations._table.values()
        self.assertEqual(registration.record.joinState, JoinState.SEND_ONLY_FULL_MEMBER)
        self.assertEqual(self.context._device.paths.groupsOf(deaf.qp._core), [])

    def test_refused(self) -> None:
        """
        Errors are events: what it was refused for, and nothing is left.
        """
        key = 1 << 31
        said: list[Any] = []
        values = {"qKey": key, "pKey": 0xFFFF, "sl": 0, "flowLabel": 0, "tClass": 0}
        self.sa.join(MGID, said.append, **values)
        self.until(lambda: said)
        made = self.member()
        self.expect(self.near, Kind.RDMA_CM_EVENT_MULTICAST_ERROR, -errno.EINVAL)
        self.refused(errno.EADDRNOTAVAIL, made.leave_multicast, AddrInfo(src=GROUP))
        other = self.member(device="ib1")
        self.expect(self.near, Kind.RDMA_CM_EVENT_MULTICAST_ERROR, -errno.EINVAL)
        for error, number in (
            (NoSubnetManagerError(""), errno.EAGAIN),
            (SATimeoutError(""), errno.ETIMEDOUT),
        ):
            with mock.patch.object(other._id.device.sa, "join", side_effect=error):
                other.join_multicast(AddrInfo(src=GROUP))
            self.expect(self.near, Kind.RDMA_CM_EVENT_MULTICAST_ERROR, -number)

    def test_noRoom(self) -> None:
        """
        If the queue pair cannot be attached the port leaves, also if it was a member before.
        """
        for _ in range(2):
            with mock.patch.object(limits, "MULTICAST_GROUPS", 0):
                self.member()
                self.expect(self.near, Kind.RDMA_CM_EVENT_MULTICAST_ERROR, -errno.ENOMEM)
            self.until(lambda: not len(self.sa.registrations))
            self.assertEqual(self.groups(mgid=MGID), [])

    def test_beforeTheAnswer(self) -> None:
        """
        Whoever leaves, or ends, before the answer hears nothing of it.
        """
        made = self.member()
        made.leave_multicast(AddrInfo(src=GROUP))
        made.join_multicast(AddrInfo(src=GROUP))
        made.close()
        self.until(lambda: not len(self.sa.registrations))
        self.assertEqual((self.groups(mgid=MGID), len(self.near._reports)), ([], 0))

    def test_lost(self) -> None:
        """
        A membership that is lost, or has become another, has ended.
        """
        for outcome in (SATimeoutError("gone"), None):
            made = self.member()
            self.where()
            (registration,) = self.sa.registrations._table.values()
            # As from within a drive: other threads attend to the device too.
            with hub:
                for handle in list(registration.users):
                    handle.tell(outcome or evolve(registration.record, mlid=0xC123))
            self.expect(self.near, Kind.RDMA_CM_EVENT_MULTICAST_ERROR, -errno.ENETRESET)
            self.refused(errno.EADDRNOTAVAIL, made.leave_multicast, AddrInfo(src=GROUP))
            self.until(lambda: not len(self.sa.registrations))

    def test_many(self) -> None:
        """
        Many joins and leaves leave nothing.
        """
        before = self.groups()
        made = self.member("230.1.0.0")
        self.where()
        names = [f"230.1.{number >> 8}.{number & 255}" for number in range(1, self.groupsJoined)]
        for first in range(0, len(names), 50):
            infos = [AddrInfo(src=name) for name in names[first : first + 50]]
            for info in infos:
                made.join_multicast(info)
            for _ in infos:
                self.where()
            for info in infos:
                made.leave_multicast(info)
        made.leave_multicast(AddrInfo(src="230.1.0.0"))
        self.until(lambda: not len(self.sa.registrations))
        self.assertEqual((self.groups(), made._id._groups._members), (before, {}))
        self.assertEqual(self.context._device.paths.groupsOf(made.qp._core), [])

    def test_mapped(self) -> None:
        """
        RFC 4391's MGIDs, with the signature of RDMA CM or IPoIB; GIDs as they are.
        """
        space = enums.rdma_port_space
        for host, portSpace, expected in (
            ("239.1.2.3", space.RDMA_PS_UDP, "ff12:4001:8007:0000:0000:0000:0f01:0203"),
            ("239.1.2.3", space.RDMA_PS_IPOIB, "ff12:401b:8007:0000:0000:0000:0f01:0203"),
            ("ff0e:1:2:3:4:5:6:7", space.RDMA_PS_UDP, "ff12:6001:8007:0003:0004:0005:0006:0007"),
            ("ff02::1", space.RDMA_PS_IPOIB, "ff12:601b:8007:0000:0000:0000:0000:0001"),
            ("ff12:a01b::7", space.RDMA_PS_UDP, "ff12:a01b:0000:0000:0000:0000:0000:0007"),
            ("ff0e::7", space.RDMA_PS_IB, "ff0e:0000:0000:0000:0000:0000:0000:0007"),
        ):
            self.assertEqual(subnetGroupOf(host, 0x8007, portSpace).gid, expected)

    def test_ipoib(self) -> None:
        """
        In IPoIB's port space the group's own Q_Key is told.
        """
        said: list[Any] = []
        mgid = 0xFF12401BFFFF0000000000000F010203
        self.sa.join(mgid, said.append, qKey=0xB1B, pKey=0xFFFF, sl=3, flowLabel=0, tClass=0)
        made = self.made(self.near, port_space=enums.RDMA_PS_IPOIB, device="ib1")
        made.bind_addr(AddrInfo(src="127.0.0.1", port_space=enums.RDMA_PS_IPOIB))
        self.until(lambda: said)
        made.join_multicast(AddrInfo(src="239.1.2.3"))
        where = self.where()
        self.assertEqual((where.qkey, where.ah_attr.sl, where.ah_attr.dlid), (0xB1B, 3, said[0].mlid))
