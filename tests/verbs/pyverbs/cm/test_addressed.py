"""
Connection identifiers of verbs on devices that have an address: what holds on shared memory holds, and
which device it is.
"""

from __future__ import annotations

import errno
import threading
from collections import defaultdict
from unittest import mock

from tests.hca.addressed import onWire
from tests.verbs.pyverbs.cm import test_cmid, test_datagram
from tests.verbs.pyverbs.cm.case import CMTestCase, Kind, attributes
from twisted_ib.hca.connection import RejectReason
from twisted_ib.hca.device.registry import addDevice
from twisted_ib.verbs.pyverbs import PD, AddrInfo, Context, enums
from twisted_ib.verbs.pyverbs.cm import call, identifier, nexthop
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address
from twisted_ib.verbs.pyverbs.objects.ah import readGRH

HERE, THERE = "127.0.0.1", "127.0.0.2"


class OnAddress(CMTestCase):
    """
    One device, whose address is the one that everybody binds.
    """

    device = "roce0"

    def setUp(self) -> None:
        """
        The device is the one for all addresses.
        """
        onWire(self, {self.host: 4096})
        addDevice("roce0", "roce", self.host)
        self.patch(identifier, "deviceFor", lambda *addresses: "roce0")
        super().setUp()


class ConnectionTests(OnAddress, test_cmid.ConnectionTests):
    """
    Connections.
    """

    def test_numbers(self) -> None:
        """
        The first packet numbers are drawn as the device draws its numbers.
        """
        listener = self.listening()
        active = self.routed(listener.local_addr[1])
        active.create_qp(attributes())
        drawn = []

        def draw(bits: int) -> int:
            """
            Draw what can be foreseen.
            """
            drawn.append(bits)
            return 0xABCDE0 + len(drawn)

        with mock.patch.object(active._id.device, "randomBits", draw):
            active.connect()
            passive = self.called(listener)
        passive.accept()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.expect(self.far, Kind.RDMA_CM_EVENT_ESTABLISHED)
        found = [(attr.rq_psn, attr.sq_psn) for attr in (end.query_qp(-1)[0] for end in (active, passive))]
        self.assertEqual((found, drawn), ([(0xABCDE1, 0xABCDE2), (0xABCDE2, 0xABCDE1)], [24, 24]))

    def hops(self, *looks: bool | OSError) -> list[tuple[str, str]]:
        """
        What the kernel says of the next hop, look by look.

        @return: what is asked for, as it comes.
        """
        asked = []
        left = iter(looks)

        def made(*addresses: str) -> mock.Mock:
            """
            Make a next hop, if there is a route.
            """
            asked.append(addresses)
            if isinstance(looks[0], OSError):
                raise looks[0]
            return mock.Mock(isKnown=lambda: next(left))

        self.patch(nexthop, "NextHop", made)
        return asked

    def towards(self, host: str) -> AddrInfo:
        """
        An address of a peer.
        """
        return AddrInfo(dst=host, dst_service="7471", port_space=self.space)

    def test_searched(self) -> None:
        """
        The address is resolved once the kernel knows the next hop; until then no route can be.
        """
        asked = self.hops(False, False, False, True)
        active = self.made(self.near, port_space=self.space)
        active.resolve_addr(self.towards("192.0.2.77"))
        self.refused(errno.EINVAL, active.resolve_route)
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
        active.resolve_route()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ROUTE_RESOLVED)
        self.assertEqual(asked, [("192.0.2.77", self.host)])

    def test_nobody(self) -> None:
        """
        An address whose next hop the kernel does not find in time is an error; another one may follow.
        """
        self.hops(False, False, False, True)
        active = self.made(self.near, port_space=self.space)
        for timeout in (0, 1):
            active.resolve_addr(self.towards("192.0.2.77"), timeout)
            self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_ERROR, -errno.ETIMEDOUT)
        active.resolve_addr(self.towards("192.0.2.78"))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)

    def test_noRoute(self) -> None:
        """
        Without a route the call fails, and another address may follow.
        """
        self.hops(OSError(errno.ENETUNREACH, "no"))
        active = self.made(self.near, port_space=self.space)
        self.refused(errno.ENETUNREACH, active.resolve_addr, self.towards("192.0.2.77"))
        active.resolve_addr(self.towards(self.host))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)

    def test_closedInSearch(self) -> None:
        """
        An identifier that is closed looks no more.
        """
        self.hops(False)
        active = self.made(self.near, port_space=self.space)
        active.resolve_addr(self.towards("192.0.2.77"))
        timers = active._id.device.timers
        (timer,) = [each for _, _, each in timers._heap if each.expired == active._id._search.look]
        active.close()
        self.assertIsNone(timer.expired)
        self.quiet(self.near)

    def test_eachFamily(self) -> None:
        """
        A program listens for IPv4 and for IPv6 alone, on one port, as tgtd does: of a device with an IPv4
        address the first is the listener.
        """
        four = self.made(self.far, port_space=self.space)
        four.bind_addr(AddrInfo("0.0.0.0", src_service="0", port_space=self.space, flags=1))
        four.listen()
        for port in four.local_addr[1], 0:
            six = self.made(self.channel(), port_space=self.space)
            six.set_ipv6_only(True)
            six.bind_addr(AddrInfo("::", src_service=str(port), port_space=self.space, flags=1))
            six.listen()
            self.assertTrue(six.local_addr[1])
        self.calling(four)
        self.called(four).reject()


class IPv6Tests(OnAddress, test_cmid.IPv6Tests):
    """
    The same over IPv6.
    """

    def test_otherWildcard(self) -> None:
        """
        A program may listen for IPv4 here, too, as on Linux: nobody reaches it, and it is in nobody's way.
        """
        four = self.made(self.channel(), port_space=self.space)
        four.bind_addr(AddrInfo("0.0.0.0", src_service="0", port_space=self.space, flags=1))
        four.listen()
        port = four.local_addr[1]
        self.assertTrue(port)
        self.calling(four)
        self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.INVALID_SERVICE_ID)
        six = self.made(self.far, port_space=self.space)
        six.bind_addr(AddrInfo("::", src_service=str(port), port_space=self.space, flags=1))
        six.listen()
        self.calling(six)
        self.called(six).reject()


class LoopbackTests(OnAddress):
    """
    A device with an address of a network, and the addresses of the loopback interface.
    """

    host = "192.0.2.1"

    def test_bound(self) -> None:
        """
        An identifier may be bound to one: it listens for nobody, and connects from the device's address.
        """
        listener = self.listening(host=HERE)
        address, port = listener.local_addr
        self.assertEqual((address, port > 0), (HERE, True))
        active = self.made(self.near)
        source = AddrInfo(HERE, src_service="0", flags=1)
        active.bind_addr(source)
        active.resolve_addr(AddrInfo(dst=self.host, dst_service=str(port)))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
        self.assertEqual(active.local_addr[0], self.host)
        active.resolve_route()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ROUTE_RESOLVED)
        active.create_qp(attributes())
        active.connect()
        self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.INVALID_SERVICE_ID)


class RefusalTests(OnAddress, test_cmid.RefusalTests):
    """
    Connections that are refused.
    """

    def test_otherAddress(self) -> None:
        """
        Nobody listens at an address that the device does not have.
        """
        self.refused(errno.EADDRNOTAVAIL, self.listening, host=THERE)

    def test_elsewhere(self) -> None:
        """
        An address of another IP version is reached from no address of this one.
        """
        active = self.made(self.near)
        active.resolve_addr(AddrInfo(dst="2001:db8::1", dst_service="1"))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_ERROR, -errno.ENODEV)
        self.refused(errno.EINVAL, active.resolve_route)

    def test_smallPackets(self) -> None:
        """
        The packets that the peer will send are longer than the path from this side carries.
        """
        listener = self.listening()
        active = self.routed(listener.local_addr[1])
        active.create_qp(attributes())
        with mock.patch.object(call, "MTU_CODES", defaultdict(lambda: 5)):
            fabric = active._id.device.fabric
            self.patch(fabric.link, "pathMTU", 2048)
            self.patch(fabric, "pathMTU", 2048)
            active.connect()
        self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.INVALID_MTU)

    def test_narrowerWay(self) -> None:
        """
        The kernel's path MTU changes, as a stranger can have it do: nothing is refused, and both ends keep to
        the path MTU of the REQ.
        """
        listener = self.listening()
        for before, after in ((4096, 256), (256, 4096)):
            active = self.routed(listener.local_addr[1])
            active.create_qp(attributes())
            link = active._id.device.fabric.link
            with mock.patch.object(link, "pathMTUTo", return_value=before):
                active.connect()
            with mock.patch.object(link, "pathMTUTo", return_value=after):
                passive = self.called(listener)
                passive.accept()
                self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
            self.expect(self.far, Kind.RDMA_CM_EVENT_ESTABLISHED)
            ends = [end.query_qp(-1)[0].path_mtu for end in (active, passive)]
            self.assertEqual(ends, [5, 5] if before == 4096 else [1, 1])

    def test_forgedAddress(self) -> None:
        """
        A request claims another address than its packets have.
        """
        listener = self.listening()
        active = self.routed(listener.local_addr[1])
        active._id.source = Address(THERE, 7)
        active.create_qp(attributes())
        active.connect()
        self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.CONSUMER_DEFINED)
        self.assertEqual(active._id.device.counters["bad_rdma_cm_request"], 1)


class DatagramTests(OnAddress, test_datagram.DatagramTests):
    """
    Datagram services.
    """


class GroupTests(OnAddress, test_datagram.GroupTests):
    """
    Groups, whose GIDs are their addresses.
    """

    gid = "0000:0000:0000:0000:0000:ffff:e600:0001"


class DeviceTests(CMTestCase):
    """
    Which device an identifier uses.
    """

    def setUp(self) -> None:
        """
        Two devices with an address, and two that would have one.
        """
        onWire(self)
        addDevice("net4", "roce", THERE)
        addDevice("net6", "roce", "2001:db8::1")
        super().setUp()

    def used(self, source: str | None, destination: str | None) -> str:
        """
        @return: what two addresses decide.
        """
        addresses = [None if host is None else Address(host, 1) for host in (source, destination)]
        return identifier.deviceFor(*addresses)

    def test_byAddress(self) -> None:
        """
        The device whose address is bound; for a peer elsewhere the first of its IP version; else the
        one for this host.
        """
        cases = {
            (THERE, None): "net4",
            (THERE, HERE): "net4",
            ("2001:db8::1", "2001:db8::2"): "net6",
            (HERE, "192.0.2.1"): "shm0",
            (None, "192.0.2.1"): "net4",
            ("0.0.0.0", "192.0.2.1"): "net4",
            (None, "2001:db8::2"): "net6",
            (None, "239.1.2.3"): "shm0",
            (None, HERE): "shm0",
            (None, THERE): "shm0",
            (None, None): "shm0",
        }
        for (source, destination), expected in cases.items():
            self.assertEqual(self.used(source, destination), expected, (source, destination))

    def test_named(self) -> None:
        """
        A device that is named is at the address that is bound, or that the kernel would connect from; all
        identifiers of one address share it.
        """
        listener = self.made(self.far, device="roce0")
        listener.bind_addr(AddrInfo(HERE, src_service="0", port_space=enums.RDMA_PS_TCP, flags=1))
        listener.listen()
        port = str(listener.local_addr[1])
        made = [
            self.made(AddrInfo("127.0.0.3", HERE, None, port), device="roce0"),
            self.made(AddrInfo(None, HERE, None, port), device="roce0"),
            self.made(AddrInfo(THERE, HERE, None, port)),
        ]
        found = [each._id.device for each in (listener, *made)]
        self.assertEqual([(each.name, each.address) for each in found], [
            ("roce0", HERE), ("roce0", "127.0.0.3"), ("roce0", HERE), ("net4", THERE),
        ])  # fmt: skip
        self.assertIs(found[0], found[2])

    def test_between(self) -> None:
        """
        Two devices of one process, by domain and by name.
        """
        context = Context(name="roce0", address=HERE)
        self.addCleanup(context.close)
        domain = PD(context)
        self.addCleanup(domain.close)
        listener = self.made(AddrInfo(HERE, None, "0", None, enums.RDMA_PS_TCP, 1), attributes(), domain)
        listener.listen()
        active = self.made(
            AddrInfo(THERE, HERE, None, str(listener.local_addr[1])), attributes(), device="net4"
        )
        thread = threading.Thread(target=active.connect)
        thread.start()
        passive = listener.get_request()
        self.addCleanup(passive.close)
        passive.accept()
        thread.join()
        self.assertEqual((passive.peer_addr[0], passive.local_addr[0]), (THERE, HERE))
        self.talk(active, passive)
        self.talk(passive, active)

    def test_nowhere(self) -> None:
        """
        The device has no address, or another one.
        """
        self.refused(errno.EIO, Context, name="roce0")
        self.refused(errno.ENODEV, Context, name="rocks0")
        self.refused(errno.EINVAL, Context, name="roce0", address="host")
        with Context(name="net4", address=HERE) as context:
            self.assertEqual(context.query_gid(1, 0).gid, "0000:0000:0000:0000:0000:ffff:7f00:0002")
            self.assertEqual(context.query_port(1).active_mtu, enums.IBV_MTU_1024)


class HeaderTests(CMTestCase):
    """
    Answers to datagrams that came over IPv4.
    """

    def test_ipv4(self) -> None:
        """
        The sender's address is in the IPv4 header, which is the second half of the 40 octets.
        """
        header = bytes(20) + bytes.fromhex("45200038 00004000 4011beef c0000201 c0000202")
        grh = readGRH(header)
        self.assertEqual(grh.sgid, "0000:0000:0000:0000:0000:ffff:c000:0201")
        self.assertEqual(grh.dgid, "0000:0000:0000:0000:0000:ffff:c000:0202")
        self.assertEqual((grh.version_tclass_flow, grh.hop_limit), (6 << 28 | 0x20 << 20, 64))
