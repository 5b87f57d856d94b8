"""
Verbs, SDP and C{ib:} messages run unchanged on a device of a subnet.
"""

from __future__ import annotations

from ipaddress import ip_address
from itertools import count, product
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError, ConnectionRefusedError, DNSLookupError
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.trial.unittest import SynchronousTestCase

from tests.contracts.closing import ClosingContract
from tests.hca.hcas import SDP as SDP_SPACE
from tests.hca.hcas import User, settle
from tests.internet.carriers import SDP
from tests.rdma.test_reactors import RDMATestsMixin
from tests.rds.ends import ProcessesTestCase
from tests.rds.media import test_rc
from tests.sdp.fakes import requestFrom
from tests.sdp.test_contract import IB
from tests.subnet.port.subnets import SWITCH, Manager
from tests.support.commands import PATH, running
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import becomes, runToEnd
from tests.verbs.pyverbs.qp import test_qp
from twisted_ib import limits
from twisted_ib.errors import NoRouteError, ResourceLimitError
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.connection import ConnectRequest
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.mad.sa.client import SAClient
from twisted_ib.internet.channel import channelFor
from twisted_ib.rds.media.rcconnection import ADDRESSES
from twisted_ib.rds.streams.connector import RDSClientEndpoint
from twisted_ib.rds.streams.listening import listenStreams
from twisted_ib.sdp.port import SDPClientEndpoint, listenSDP
from twisted_ib.subnet.hosting import hostthread as hosts
from twisted_ib.subnet.hosting.attached import AttachedPort
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.subnet.hosting.ofthread import hostHere
from twisted_ib.subnet.network.switch import NO_PORT
from twisted_ib.subnet.network.topology import parse

#: Echoes streams of C{rds:} on all its addresses, and says its GID and description.
ECHO = f"""{PATH}
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory
from twisted.protocols.wire import Echo
from twisted_ib.internet.channel import channelFor
def listening(port):
    device = channelFor(reactor, "ib0").device
    print(device.gids()[0], device.fabric.port._description, flush=True)
serverFromString(reactor, "rds:7000:device=ib0").listen(Factory.forProtocol(Echo)).addCallback(listening)
reactor.run()
"""


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
        self.subnet = ManagedSubnet(parse(SWITCH, "test"), lambda name: None, Clock())
        hostHere(self.subnet)
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


class RDSGIDTests(OnSubnet, ProcessesTestCase):
    """
    RDS between GIDs of two devices.
    """

    device = "ib0"

    def setUp(self) -> None:
        """
        Two processes, with a socket of all addresses each.
        """
        super().setUp()
        self.a, self.b = self.process(), self.process()
        self.one, self.two = self.a.listen(4000, ""), self.b.listen(5000, "")
        self.own, self.gid = (channelFor(each.reactor, "ib0").device.gids()[0] for each in (self.a, self.b))

    def test_both(self) -> None:
        """
        Datagrams to a GID come from a GID, there and back, over one queue pair; so do those to a socket of
        that GID alone.
        """
        alone = self.b.listen(5001, self.gid)
        self.one.transport.write(b"there", (self.gid, 5000))
        self.one.transport.write(b"alone", (self.gid, 5001))
        self.settle()
        self.assertEqual(self.two.got, [(b"there", (self.own, 4000))])
        self.two.transport.write(b"back", (self.own, 4000))
        alone.transport.write(b"too", (self.own, 4000))
        self.settle()
        self.assertEqual(sorted(self.one.got), [(b"back", (self.gid, 5000)), (b"too", (self.gid, 5001))])
        self.pass_(1.0)
        self.assertEqual((self.a.queuePairs, self.b.queuePairs), (1, 1))
        self.assertEqual((alone.got[0][1], alone.transport.getHost().host), ((self.own, 4000), self.gid))

    def test_within(self) -> None:
        """
        Its own GID needs no queue pair, not for a ping either; that of another HCA is pinged there.
        """
        other = self.a.listen(4001, self.own)
        self.one.transport.write(b"x", (self.own, 4001))
        pinged = self.one.transport.ping(self.own)
        self.settle()
        self.assertEqual((other.got, self.a.queuePairs), ([(b"x", (self.own, 4000))], 0))
        self.successResultOf(pinged)
        pinged = self.one.transport.ping(self.gid)
        self.settle()
        self.successResultOf(pinged)
        self.assertEqual((self.a.queuePairs, self.b.queuePairs), (1, 1))

    def test_unbound(self) -> None:
        """
        Whether a port of a GID is bound is known; a GID that is another's, or nobody's, cannot be bound.
        """
        serves = self.a.medium.serves
        asked = ((self.gid, 5000), (self.gid, 5001), (self.own, 4000), ("fe80::1", 5000))
        self.assertEqual([serves(*each) for each in asked], [True, False, True, False])
        for address in (self.gid, "fe80::1"):
            self.assertRaises(CannotListenError, self.a.listen, 6000, address)
        self.one.transport.write(b"x", (self.gid, 5001))
        self.settle()
        self.b.listen(5001, self.gid)
        self.pass_(5.0)
        self.assertEqual(self.a.network.counters["send_drop_closed"], 0)
        self.assertEqual(self.b.network.sockets[self.gid, 5001].protocol.data, [b"x"])

    def test_gone(self) -> None:
        """
        A GID whose HCA is gone is asked no more for a while: messages and pings wait, and nothing turns.
        """
        self.one.transport.write(b"x", (self.gid, 5000))
        self.settle()
        self.b.kill()
        self.one.transport.write(b"y", (self.gid, 5000))
        pinged = self.one.transport.ping(self.gid)
        self.settle()
        self.assertFalse(self.a.medium.serves(self.gid, 5000))
        self.pass_(1.0)
        self.assertNoResult(pinged)
        self.assertEqual(self.two.data, [b"x"])
        pinged.addErrback(lambda reason: None)

    def test_claim(self) -> None:
        """
        A peer that announces a path from a GID that is not its own, or to one that is not this HCA's, is cut
        off.
        """
        self.one.transport.write(b"x", (self.gid, 5000))
        self.settle()
        (session,) = self.a.medium.sessions.values()
        for claims in ("fe80::1 " + self.gid, f"{self.gid} {self.gid}", f"{self.own} {self.own}"):
            before = self.b.network.counters["recv_bad_frame"]
            carrier = next(iter(session.ours.values()))
            carrier.padding = b"\0\0\1\0"
            session._control(carrier, ADDRESSES, claims.encode())
            session.flushGathered()
            self.settle()
            self.assertEqual(self.b.network.counters["recv_bad_frame"], before + 1, claims)
            self.pass_(3.0)
            self.one.transport.write(b"x", (self.gid, 5000))
            self.settle()
            (session,) = self.a.medium.sessions.values()

    def test_cut(self) -> None:
        """
        Where nothing leads messages wait, and go on when the way is back.
        """
        self.one.transport.write(b"x", (self.gid, 5000))
        self.settle()
        port = channelFor(self.b.reactor, "ib0").device.fabric.port.port
        manager, switch = Manager(self.subnet), self.subnet.find("s")
        assert switch is not None
        for number, got in ((NO_PORT, [b"x"]), (port.peer.number, [b"x", b"y", b"y"])):
            manager.setRoute(switch, port.lid, number)
            self.settle()
            self.one.transport.write(b"y", (self.gid, 5000))
            self.pass_(10.0)
            self.assertEqual(self.two.data, got)


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

        def unable(client: SAClient, told: Any) -> Any:
            raise ResourceLimitError("too many queries")

        self.patch(limits, "SUBNET_ROUTE_LOOKS", 0)
        self.patch(SAClient, "silent", unable)
        for address in ("fe80::1", f"fec0::{self.two.guid:x}"[:9], "192.0.2.77"):
            self.assertRaises(NoRouteError, self.one.connect, SDP_SPACE, address, 7001, User())
        self.two.fabric.port.port.state = PortState.INIT
        self.two.fabric.port._subnet.forwarding.changed()
        user = User()
        self.one.connect(SDP_SPACE, self.two.gids()[0], 7001, user)
        self.assertIsInstance(user.error, NoRouteError)


class Peers(Factory):
    """
    Wants no connection.

    @ivar hosts: Of whom it was asked for.
    """

    noisy = False

    def __init__(self) -> None:
        """
        Nobody has come.
        """
        self.hosts: list[str] = []

    def buildProtocol(self, addr: Any) -> None:
        self.hosts.append(addr.host)


class ClaimTests(OnSubnet, ProcessesTestCase):
    """
    The addresses that requests to connect name.
    """

    device = "ib0"

    def test_ours(self) -> None:
        """
        Who names the listener's own GID as both ends is refused, whether that listens there or on all
        addresses, and so are wildcards; who names its own GID is served.
        """
        a, b = self.process(), self.process()
        asking, asked = (channelFor(each.reactor, "ib0") for each in (a, b))
        asking.acquire(self)
        self.addCleanup(asking.release, self)
        device = asking.device
        own, gid = device.gids()[0], asked.device.gids()[0]
        peers, numbers = Peers(), count(40000)
        for interface in (gid, "::"):
            port: Any = listenSDP(b.reactor, 5001, peers, interface=interface, device="ib0")
            user = User()
            device.connect(SDP_SPACE, gid, 5001, user)
            self.settle()
            for here, peer in ((gid, gid), ("::", "::"), ("::", own), (gid, own)):
                request = requestFrom(peer, next(numbers), here)
                request.localQPN = device.createQueuePair(None).number
                device.sendRequest(user.path, request, Mock(), device.clock())
                self.settle()
            port.stopListening()
            self.settle()
        # Of wildcards only the one on all addresses hears.
        self.assertEqual((peers.hosts, asked.device.counters["bad_hello"]), ([own, own], 4))


class StreamMixin:
    """
    A stream to a GID, and to the description of a node.
    """

    def test_stream(self: Any) -> None:
        """
        C{sdp:} takes them as hosts, and so does C{rds:}; a server may listen on its GID alone.
        """

        async def steps() -> None:
            gid = channelFor(reactor, "ib0").device.gids()[0]
            protocols = (listenSDP, SDPClientEndpoint), (listenStreams, RDSClientEndpoint)
            for (listen, connect), host, own in product(protocols, (gid, "ib0"), ("::", gid)):
                served: Deferred[Any] = Deferred()
                factory = Factory.forProtocol(Protocol)
                factory.buildProtocol = served.callback  # type: ignore[method-assign,assignment]
                port: Any = listen(reactor, 0, factory, interface=own, device="ib0")
                client: Any = connect(reactor, host, port.getHost().port, device="ib0")
                connecting = client.connect(Factory.forProtocol(Protocol))
                self.assertEqual((await served).host, gid)
                connecting.addErrback(lambda reason: None)
                await port.stopListening()

        reactor = self.buildReactor()
        runToEnd(self, reactor, steps)

    def test_unknown(self: Any) -> None:
        """
        A host that is none: the error says what is one.
        """
        # No resolver is asked for this, as it can be no name.
        host = "no..node"

        async def steps() -> None:
            for connect in (SDPClientEndpoint, RDSClientEndpoint):
                with self.assertRaises(DNSLookupError) as raised:
                    await connect(reactor, host, 7001, device="ib0").connect(Factory())
                self.assertEqual(
                    str(raised.exception),
                    f"DNS lookup failed: no node of the subnet with a device has the description {host!r},"
                    " and no address was found for it; a host of ib0 is a GID, the description of a node, or"
                    " this host.",
                )

        reactor = self.buildReactor()
        runToEnd(self, reactor, steps)


class ProcessMixin:
    """
    Streams to another process, which hosts the subnet.
    """

    def setUp(self: Any) -> None:
        """
        A run directory of the test's own.
        """
        ownRunDirectory(self)
        self.patch(hosts, "LINGER_SECONDS", 0.02)
        super().setUp()  # type: ignore[misc]

    def test_rds(self: Any) -> None:
        """
        C{rds:} by GID, and by the description of its node, over one queue pair; a port that is not bound is
        refused.
        """
        other = running(self, "-c", ECHO)
        assert other.stdout is not None
        gid, description = other.stdout.readline().rstrip("\n").split(" ", 1)

        async def steps() -> None:
            for host in (gid, description):
                end = RDSClientEndpoint(reactor, host, 7000, device="ib0")
                protocol = await end.connect(Factory.forProtocol(Protocol))
                data = bytearray()
                protocol.dataReceived = data.extend
                self.assertEqual(protocol.transport.getPeer().host, gid)
                protocol.transport.write(bytes(100_000))
                await becomes(reactor, lambda data=data: len(data) == 100_000)
                protocol.transport.loseConnection()
            device = channelFor(reactor, "ib0").device
            self.assertEqual(len(device.queuePairs), 1)
            refused = RDSClientEndpoint(reactor, gid, 7001, device="ib0").connect(Factory())
            await refused.addErrback(lambda reason: reason.trap(ConnectionRefusedError))

        reactor = self.buildReactor()
        runToEnd(self, reactor, steps)


def _make() -> dict[str, type]:
    """
    @return: The test cases of protocols on reactors, by name.
    """
    found: dict[str, type] = {}
    members = {"carrier": SDP("ib0"), "device": "ib0", "_reactors": [IB], "__module__": __name__}
    for name, contract in (("Closing", ClosingContract), ("RDMA", RDMATestsMixin), ("Stream", StreamMixin)):
        kind: Any = type(f"{name}Tests", (OnSubnet, contract, ReactorBuilder), dict(members))
        found.update(kind.makeTestCaseClasses())
    processes: Any = type("ProcessTests", (ProcessMixin, ReactorBuilder), dict(members))
    found.update(processes.makeTestCaseClasses())
    return found


globals().update(_make())
