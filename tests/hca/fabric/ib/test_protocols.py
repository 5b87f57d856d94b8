"""
Verbs, SDP and C{ib:} messages run unchanged on a device of a subnet.
"""

from __future__ import annotations

from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.trial.unittest import SynchronousTestCase

from tests.contracts.closing import ClosingContract
from tests.hca.fabric.ib.subnets import SWITCH, Manager
from tests.hca.hcas import SDP as SDP_SPACE
from tests.hca.hcas import User, settle
from tests.hca.verbs.qp import test_qp
from tests.internet.carriers import SDP
from tests.rdma.test_reactors import RDMATestsMixin
from tests.rds.media import test_rc
from tests.sdp.test_contract import IB
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import runToEnd
from twisted_ib.errors import NoRouteError
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.connection import ConnectRequest
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.host.subnet.attached import AttachedPort
from twisted_ib.hca.host.subnet.hosted import HostedSubnet
from twisted_ib.hca.host.subnet.ofthread import hostHere
from twisted_ib.hca.subnet.topology import parse
from twisted_ib.internet.channel import channelFor
from twisted_ib.sdp.port import SDPClientEndpoint, listenSDP


class ManagedSubnet(HostedSubnet):
    """
    A subnet whose manager is done when a device is attached.
    """

    def attach(self, device: Any, guid: int, name: str) -> AttachedPort:
        """
        Attach a device, and sweep.
        """
        found = super().attach(device, guid, name)
        Manager(self).sweep()
        return found


class OnSubnet:
    """
    Hosts a subnet in this thread, for one test.
    """

    def setUp(self: Any) -> None:
        """
        One switch.
        """
        ownRunDirectory(self)
        hostHere(ManagedSubnet(parse(SWITCH, "test"), lambda name: None, Clock()))
        self.addCleanup(hostHere, None)
        super().setUp()  # type: ignore[misc]


class VerbsTests(OnSubnet, test_qp.RequestTests):
    """
    SEND, WRITE, READ and atomics by verbs.
    """

    device = "ib0"

    def test_listedGIDs(self) -> None:
        """
        A port of a subnet lists its own GIDs alone.
        """
        context = self.open()
        self.assertEqual(ip_address(str(context.query_gid(1, 0))), ip_address(context._device.gids()[0]))
        self.assertFalse(any(ip_address(str(context.query_gid(1, 1))).packed))


class RDSTests(OnSubnet, test_rc.DeliveryTests):
    """
    RDS, between two devices.
    """

    device = "ib0"


class GIDTests(SynchronousTestCase):
    """
    Hosts named by GIDs, of two devices.
    """

    def setUp(self) -> None:
        """
        Open them.
        """
        hostHere(ManagedSubnet(parse(SWITCH, "test"), lambda name: None, Clock()))
        self.addCleanup(hostHere, None)
        self.clock = Clock()
        self.one, self.two = Device("ib0", self.clock.seconds), Device("ib1", self.clock.seconds)
        for device in (self.one, self.two):
            self.addCleanup(device.close)
        settle(self.one, self.two)

    def test_found(self) -> None:
        """
        A GID of the subnet is resolved to its HCA, which need not have published anything; both ends have
        GIDs as their addresses, and claims of others are not believed.
        """
        own, gid = self.one.gids()[0], self.two.gids()[0]
        user, other = User(), User()
        self.one.connect(SDP_SPACE, gid, 7001, user)
        self.one.services.connectHCA(self.two.gid, other)
        settle(self.one, self.two)
        path = user.path
        self.assertIs(other.path, path)
        self.assertEqual(self.one.paths.gidOf(path), self.two.gid)
        self.assertEqual((path.peer.guid, path.peer.lid), (self.two.guid, self.two.port.lid))
        self.assertEqual(self.one.localAddressFor(gid), own)
        (back,) = self.two.fabric.paths()
        claims = (own, gid, "fe80::1", "127.0.0.1", "192.0.2.77")
        self.assertEqual([self.two.isPeers(back, each) for each in claims], [True, False, False, True, False])
        self.assertEqual([self.two.isLocal(each) for each in claims], [False, True, False, True, False])

    def test_names(self) -> None:
        """
        The description of a node with a device is a name for its GID.
        """
        names = ("ib1", "s", "ib2", "")
        self.assertEqual([self.one.hostNamed(name) for name in names], [self.two.gids()[0], "", "", ""])

    def test_request(self) -> None:
        """
        A request to connect has LIDs and GIDs of both ports.
        """
        got: list[Any] = []
        listener = SimpleNamespace(
            connectionRequested=lambda connection, request: got.append(request),
            requestWithdrawn=lambda connection: None,
        )
        self.two.listen(SDP_SPACE, "::", 7001, listener)
        user = User()
        self.one.connect(SDP_SPACE, self.two.gids()[0], 7001, user)
        settle(self.one, self.two)
        hello = bytearray(92)
        hello[17], hello[48:64] = 0x60, self.two.gid.to_bytes(16, "big")
        request = ConnectRequest(SDP_SPACE << 16 | 7001, bytes(hello), self.one.createQueuePair(None).number)
        self.one.sendRequest(user.path, request, SimpleNamespace(), 0.0)
        settle(self.one, self.two)
        path = got[0].primaryPath
        self.assertEqual((path.localLID, path.remoteLID), (self.one.port.lid, self.two.port.lid))
        gids = [each.gid.to_bytes(16, "big") for each in (self.one, self.two)]
        self.assertEqual(([path.localGID, path.remoteGID], path.subnetLocal), (gids, True))

    def test_elsewhere(self) -> None:
        """
        A GID that the subnet does not have, or of another prefix, is no host; one where nothing leads is not
        reached.
        """
        for address in ("fe80::1", f"fec0::{self.two.guid:x}"[:9], "192.0.2.77"):
            self.assertRaises(NoRouteError, self.one.connect, SDP_SPACE, address, 7001, User())
        self.two.fabric.port.port.state = PortState.INIT
        self.two.fabric.port._subnet.forwarding.changed()
        self.assertRaises(NoRouteError, self.one.connect, SDP_SPACE, self.two.gids()[0], 7001, User())


class StreamMixin:
    """
    A stream to a GID, and to the description of a node.
    """

    def test_stream(self: Any) -> None:
        """
        C{sdp:} takes them as hosts.
        """

        async def steps() -> None:
            gid = channelFor(reactor, "ib0").device.gids()[0]
            for host in (gid, "ib0"):
                served: Deferred[Any] = Deferred()
                factory = Factory.forProtocol(Protocol)
                factory.buildProtocol = served.callback  # type: ignore[method-assign,assignment]
                port = listenSDP(reactor, 0, factory, interface="::", device="ib0")
                client = SDPClientEndpoint(reactor, host, port.getHost().port, device="ib0")
                connecting = client.connect(Factory.forProtocol(Protocol))
                self.assertEqual((await served).host, gid)
                connecting.addErrback(lambda reason: None)
                await port.stopListening()

        reactor = self.buildReactor()
        runToEnd(self, reactor, steps)


def _make() -> dict[str, type]:
    """
    @return: The test cases of protocols on reactors, by name.
    """
    found: dict[str, type] = {}
    for name, contract in (("Closing", ClosingContract), ("RDMA", RDMATestsMixin), ("Stream", StreamMixin)):
        members = {"carrier": SDP("ib0"), "device": "ib0", "_reactors": [IB], "__module__": __name__}
        kind: Any = type(f"{name}Tests", (OnSubnet, contract, ReactorBuilder), members)
        found.update(kind.makeTestCaseClasses())
    return found


globals().update(_make())
