"""
Tests of L{twisted_ib.ipoib.resolver}: hosts named by the IP addresses of IPoIB.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from ipaddress import ip_address
from typing import Any, ClassVar
from unittest import mock

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.error import NoRouteError as NoRoute
from twisted.internet.protocol import DatagramProtocol, Factory, Protocol
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.hca.addressed import onWire
from tests.hca.hcas import User
from tests.ipoib.pairs import OnLoopback, OnPackets, OnSubnet
from tests.ipoib.test_interface import ONE, TWO, Consumer, Interfaces
from tests.sdp.test_contract import IB
from tests.subnet.port.subnets import SWITCH
from tests.support.commands import PATH
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS, runToEnd
from twisted_ib import limits
from twisted_ib.errors import DeviceError, NoRouteError, ServiceInUseError
from twisted_ib.hca.connection import ConnectRequest
from twisted_ib.hca.connection.interfaces import IAddressResolver
from twisted_ib.hca.connection.rdmacm import PortSpace, RDMACMHeader
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.registry import addDevice, removeDevice
from twisted_ib.hca.mad.sa.client import SAClient
from twisted_ib.internet.channel import channelFor
from twisted_ib.ipoib import listenIPoIB, resolver
from twisted_ib.ipoib.protocol.wire import packHardwareAddress
from twisted_ib.ipoib.resolver import Resolver, interfaceFor
from twisted_ib.rdma import RDMAClientEndpoint, listenRDMA
from twisted_ib.sdp import SDPClientEndpoint, listenSDP
from twisted_ib.settings import DEVICES
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.subnet.hosting.ofthread import hostHere
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.sm.manager import Options

OWN, PEER = "10.9.0.1", "10.9.0.2"
#: Listens without endpoint strings: on a device, and then at the address of an interface.
LISTENING = f"""{PATH}
import sys
from twisted.internet import reactor
from twisted.internet.protocol import Factory
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.subnet.hosting.ofthread import hostHere
from twisted_ib.subnet.network.topology import parse
from twisted_ib.sdp import listenSDP
from tests.subnet.port.subnets import SWITCH
hostHere(HostedSubnet(parse(SWITCH, "test"), lambda name: None, reactor))
listenSDP(reactor, 0, Factory(), device="lo0")
print("twisted_ib.ipoib" in sys.modules)
from twisted_ib.ipoib import interfaceFor
interfaceFor(reactor, "ib0", "{ONE}")
print(listenSDP(reactor, 0, Factory(), interface="{OWN}", device="ib0").getHost().host)
"""


class Listener:
    """
    Accepts nothing, and remembers.

    @ivar asked: requests.
    """

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def connectionRequested(self, connection: Any, request: Any) -> None:
        self.asked.append((connection, request))

    def requestWithdrawn(self, connection: Any) -> None:
        """
        It ends with the test.
        """


class ResolverContract(Interfaces):
    """
    Two devices with an interface each.
    """

    def setUp(self: Any) -> None:
        """
        Have them resolve addresses.
        """
        super().setUp()
        for device, interface in ((self.one, self.here), (self.two, self.there)):
            device.resolver = Resolver(device)
            device.resolver.add(interface)

    def test_addresses(self: Any) -> None:
        """
        The addresses of the device, of its peers, and of neither.
        """
        verifyObject(IAddressResolver, self.one.resolver)
        device = self.one
        addresses = (OWN, PEER, "10.9.1.1", "192.0.2.7", str(self.here.addresses[-1].ip))
        self.assertEqual([device.isLocal(each) for each in addresses], [True, *[False] * 4])
        self.assertEqual([device.resolver.sourceFor(each) for each in addresses], [OWN, OWN, "", "", ""])
        for bound in ("", "0.0.0.0", OWN):
            self.assertEqual(device.localAddressFor(PEER, bound), OWN)
        self.assertRaises(NoRouteError, device.localAddressFor, PEER, "10.9.0.3")
        self.assertEqual(device.listeningAddress(OWN), OWN)
        self.here.close()
        self.assertFalse(device.isLocal(OWN))
        self.assertEqual(device.resolver.sourceFor(PEER), "")

    def test_connect(self: Any) -> None:
        """
        A service at an address of the peer is found, and who asks has the address that it says.
        """
        listener, user = Listener(), User()
        service = self.two.listen(PortSpace.TCP, PEER, 7001, listener)
        self.assertRaises(ServiceInUseError, self.two.listen, PortSpace.TCP, PEER, 7001, listener)
        other = self.two.listen(PortSpace.TCP, PEER, 0, listener)
        self.assertGreater(other.port, 49151)
        self.one.connect(PortSpace.TCP, PEER, 7001, user)
        self.settle(0.2)
        data = RDMACMHeader(OWN, 40000, PEER).pack()
        number = self.one.createQueuePair(None).number
        request = ConnectRequest(service.serviceID, data, number, responseTimeout=20, pathMTU=3)
        self.one.sendRequest(user.path, request, user, 0.0)
        self.settle()
        ((connection, got),) = listener.asked
        self.assertEqual(got.privateData.rstrip(b"\0"), data.rstrip(b"\0"))
        path = connection.destination
        self.assertEqual([self.two.isPeers(path, each) for each in (OWN, PEER)], [True, False])
        service.close()
        self.two.listen(PortSpace.TCP, PEER, 7001, listener).close()

    def test_claims(self: Any) -> None:
        """
        A peer has the addresses that ARP has for its port, and no others of the network; a packet's source
        address is a proof as ever.
        """
        user = User()
        self.one.connect(PortSpace.TCP, PEER, 7001, user)
        self.settle(0.2)
        there, other = user.path, "10.9.0.3"
        self.assertEqual([self.one.isPeers(there, each) for each in (PEER, other, OWN)], [True, False, False])
        neighbours = self.here._driver.machine.neighbours
        for gid, isKnown in ((self.two.gid ^ 1, False), (self.two.gid, True)):
            hardware = packHardwareAddress(0, 99, gid)
            neighbours.introduce(ip_address(other).packed, hardware, self.one.clock())
            self.assertEqual(self.one.isPeers(there, other), isKnown)
        if self.one.traits.hasAddress:
            self.patch(self.one.resolver, "sourceFor", lambda address: OWN)
            self.assertTrue(self.one.isPeers(there, self.two.address))
            self.assertFalse(self.one.isPeers(there, self.one.address))

    def test_own(self: Any) -> None:
        """
        The device itself has a path too.
        """
        user = User()
        self.one.connect(PortSpace.TCP, OWN, 7001, user)
        self.settle(0.2)
        self.assertEqual(self.one.paths.gidOf(user.path), self.one.gid)

    def test_nobody(self: Any) -> None:
        """
        Who does not answer, whose HCA has gone, and a search that is given up.
        """
        user, other = User(), User()
        self.one.connect(PortSpace.TCP, "10.9.0.99", 7001, user)
        self.one.connect(PortSpace.TCP, "10.9.0.98", 7001, other).cancel()
        self.settle(4.0)
        self.assertIsInstance(user.error, NoRouteError)
        self.assertEqual((other.path, other.error), (None, None))

    def test_away(self: Any) -> None:
        """
        A host that is away for longer than ARP is repeated is found when it is back, if the caller waits so
        long; the search ends with the caller's time, or when it is given up.
        """
        user, nobody, other = User(), User(), User()
        self.one.connect(PortSpace.TCP, PEER, 7001, user, 20.0)
        self.one.connect(PortSpace.TCP, "10.9.0.99", 7001, nobody, 20.0)
        search = self.one.connect(PortSpace.TCP, "10.9.0.98", 7001, other, 20.0)
        self.settle(10.0, self.one)
        self.assertEqual((user.path, user.error, nobody.error), (None, None, None))
        search.cancel()
        self.settle(4.0)
        self.assertEqual(self.one.paths.gidOf(user.path), self.two.gid)
        self.assertIsNone(nobody.error)
        self.settle(12.0)
        self.assertIsInstance(nobody.error, NoRouteError)
        self.assertEqual((other.path, other.error), (None, None))


class LoopbackTests(ResolverContract, OnLoopback):
    """
    HCAs of one thread.
    """


class PacketTests(ResolverContract, OnPackets):
    """
    Hosts.
    """


class SubnetTests(ResolverContract, OnSubnet):
    """
    Ports of a subnet with a manager.
    """

    def test_silent(self) -> None:
        """
        While subnet administration does not answer nobody can answer ARP: the search goes on until it is
        given up, or a moment after that is back.
        """
        said = [True, True, True, False]

        def silent(client: SAClient, told: Any) -> Any:
            isSilent = said.pop(0) if said else False
            return self.one.timers.start(
                limits.SA_SILENT_SECONDS if isSilent else 0.01, partial(told, isSilent)
            )

        self.patch(SAClient, "silent", silent)
        user = User()
        self.one.connect(PortSpace.TCP, "10.9.0.99", 7001, user)
        self.settle(3 * 3.5 + 5.9)
        self.assertEqual((said, user.error), ([], None))
        self.settle(0.5)
        self.assertIsInstance(user.error, NoRouteError)
        said[:] = [True] * 9
        cancelled = User()
        search = self.one.connect(PortSpace.TCP, "10.9.0.98", 7001, cancelled)
        self.settle(3.2)
        search.cancel()
        self.settle(9.0)
        self.assertEqual((len(said), cancelled.path, cancelled.error), (8, None, None))


class EndpointMixin:
    """
    Endpoints between two devices of one reactor.
    """

    def test_endpoints(self: Any) -> None:
        """
        C{sdp:} and C{ib:} take addresses of IPoIB, as clients and as servers; both ends have them.
        """
        ownRunDirectory(self)
        addDevice("lo1", "loopback")
        self.addCleanup(removeDevice, "lo1")

        async def steps() -> None:
            one, two = interfaceFor(reactor, "lo0", ONE), interfaceFor(reactor, "lo1", TWO)
            for listen, connect in ((listenSDP, SDPClientEndpoint), (listenRDMA, RDMAClientEndpoint)):
                for own in (PEER, ""):
                    served: Deferred[Any] = Deferred()
                    factory = Factory.forProtocol(Protocol)
                    factory.buildProtocol = served.callback  # type: ignore[method-assign,assignment]
                    port: Any = listen(reactor, 0, factory, interface=own, device="lo1")
                    client: Any = connect(reactor, PEER, port.getHost().port, device="lo0")
                    connecting = client.connect(Factory.forProtocol(Protocol))
                    self.assertEqual((await served).host, OWN)
                    connecting.addErrback(lambda reason: None)
                    await port.stopListening()
            for each in (one, two):
                await each.close()

        reactor = self.buildReactor()
        runToEnd(self, reactor, steps)

    def test_away(self: Any) -> None:
        """
        A client waits for a host that is away for longer than ARP is repeated.
        """
        ownRunDirectory(self)
        addDevice("lo1", "loopback")
        self.addCleanup(removeDevice, "lo1")
        self.patch(limits, "IPOIB_TRIES", 1)
        unanswered: Deferred[None] = Deferred()
        pause = resolver._pause

        def paused(device: Device) -> Deferred[None]:
            if not unanswered.called:
                unanswered.callback(None)
            return pause(device)

        self.patch(resolver, "_pause", paused)

        async def steps() -> None:
            one = interfaceFor(reactor, "lo0", ONE)
            client = SDPClientEndpoint(reactor, PEER, 7001, device="lo0")
            connecting = client.connect(Factory.forProtocol(Protocol))
            await unanswered
            two = interfaceFor(reactor, "lo1", TWO)
            port: Any = listenSDP(reactor, 7001, Factory.forProtocol(Protocol), device="lo1")
            (await connecting).transport.loseConnection()
            await port.stopListening()
            for each in (one, two):
                await each.close()

        reactor = self.buildReactor()
        runToEnd(self, reactor, steps)

    def test_interfaceFor(self: Any) -> None:
        """
        An address has one interface, whose users are counted.
        """
        ownRunDirectory(self)

        async def steps() -> None:
            self.assertRaises(DeviceError, interfaceFor, reactor, "lo0", OWN)
            one = interfaceFor(reactor, "lo0", ONE)
            for address in (OWN, ONE):
                self.assertIs(interfaceFor(reactor, "lo0", address), one)
            self.assertRaises(DeviceError, interfaceFor, reactor, "lo0", "10.9.0.1/16")
            self.assertRaises(ValueError, interfaceFor, reactor, "lo0", "localhost")
            for _ in range(3):
                self.assertFalse(one.isClosed)
                await one.close()
            self.assertTrue(one.isClosed)
            again = interfaceFor(reactor, "lo0", ONE)
            self.assertIsNot(again, one)
            self.assertIs(await again.ready(), again)
            await again.close()

        reactor = self.buildReactor()
        runToEnd(self, reactor, steps)

    def test_ports(self: Any) -> None:
        """
        A port without an address is on the interface that there is; beside another consumer there is none,
        and the error says whose.
        """
        ownRunDirectory(self)

        async def steps() -> None:
            one = interfaceFor(reactor, "lo0", "10.9.0.7/24")
            port = listenIPoIB(reactor, 0, DatagramProtocol(), device="lo0")
            await port.stopListening()
            again = interfaceFor(reactor, "lo0", "10.9.0.8/24")
            again.consumer = Consumer()
            error = self.assertRaises(
                CannotListenError, listenIPoIB, reactor, 0, DatagramProtocol(), "10.9.0.8", "lo0"
            )
            self.assertIn(
                "the interface of lo0 with 10.9.0.8/24 is in use by a Consumer: end that", str(error)
            )
            for each in (one, again):
                await each.close()

        reactor = self.buildReactor()
        runToEnd(self, reactor, steps)

    def test_configured(self: Any) -> None:
        """
        C{TWISTED_IB_DEVICES} gives devices of a subnet their addresses, by which endpoint strings name hosts
        from the first moment on; the interfaces end with the reactor.
        """
        onWire(self)
        self.patch(limits, "IPOIB_TRIES", 1)
        variable = mock.patch.dict(os.environ, {DEVICES: f"ib0=ib:{ONE},ib1=ib:{TWO}"})
        variable.start()
        self.addCleanup(variable.stop)

        async def steps() -> None:
            subnet = HostedSubnet(parse(SWITCH, "test"), lambda name: None, reactor)
            subnet.manage(Options())
            hostHere(subnet)
            served: Deferred[Any] = Deferred()
            factory = Factory.forProtocol(Protocol)
            factory.buildProtocol = served.callback  # type: ignore[method-assign,assignment]
            server = serverFromString(reactor, f"sdp:0:interface={PEER}:device=ib1")
            port = await server.listen(factory)
            client = clientFromString(reactor, f"sdp:{PEER}:{port.getHost().port}:device=ib0")
            connecting = client.connect(Factory.forProtocol(Protocol))
            self.assertEqual((await served).host, OWN)
            connecting.addErrback(lambda reason: None)
            await port.stopListening()
            # RDS names hosts of a subnet by their GIDs.
            port = await serverFromString(reactor, "rds:7001:device=ib1").listen(
                Factory.forProtocol(Protocol)
            )
            client = clientFromString(reactor, f"rds:{PEER}:7001:device=ib0")
            protocol = await client.connect(Factory.forProtocol(Protocol))
            gid = channelFor(reactor, "ib1").device.gids()[0]
            self.assertEqual(protocol.transport.getPeer().host, gid)
            protocol.transport.loseConnection()
            with self.assertRaises(NoRoute):
                await clientFromString(reactor, "rds:10.9.0.99:7001:device=ib0").connect(Factory())
            await port.stopListening()
            subnet.close()

        self.addCleanup(hostHere, None)
        reactor = self.buildReactor()
        runToEnd(self, reactor, steps)


class EndpointTests(EndpointMixin, ReactorBuilder):
    """
    On reactors.
    """

    _reactors: ClassVar = [IB]


class ProgramTests(SynchronousTestCase):
    """
    A program of its own.
    """

    def test_listens(self) -> None:
        """
        A program that uses no endpoint strings opens its interface by itself; others do not load IPoIB.
        """
        ownRunDirectory(self)
        command = [sys.executable, "-c", LISTENING]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
        self.assertEqual((done.stdout.split(), done.stderr), (["False", OWN], ""))


globals().update(EndpointTests.makeTestCaseClasses())
del EndpointTests
