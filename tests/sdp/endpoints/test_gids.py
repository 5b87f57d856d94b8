"""
Tests for C{ib:} strings with C{framing=sdp}: streams of SDP between GIDs, as AF_IB has them.
"""

from __future__ import annotations

from typing import Any
from unittest import mock, skipIf

from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, quoteStringArgument, serverFromString
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.addressed import onWire
from tests.sdp.endpoints import test_endpoints
from tests.sdp.endpoints.test_endpoints import Server
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.device.registry import addDevice, removeDevice
from twisted_ib.hca.host import libc
from twisted_ib.rdma.transport import RDMATransport
from twisted_ib.sdp import SDPServerEndpoint, connectSDP, listenSDP
from twisted_ib.sdp.port import GIDPort, SDPPort
from twisted_ib.sdp.transport import SDPTransport
from twisted_ib.subnet.hosting import hostthread

MISSING = libc.available()


class Named(Protocol):
    """
    Sends one word, and closes.
    """

    word = b""

    def connectionMade(self) -> None:
        """
        Send it.
        """
        assert self.transport is not None
        self.transport.write(self.word)
        self.transport.loseConnection()


class Heard(Protocol):
    """
    Collects what arrives until the end.
    """

    def __init__(self) -> None:
        """
        Nothing has arrived.
        """
        self.data = b""
        self.end: Deferred[bytes] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        """
        Collect.
        """
        self.data += data

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.end.callback(self.data)


def _factory(word: bytes) -> Any:
    named = type("Named", (Named,), {"word": word})
    return test_endpoints.Factory.forProtocol(named)


class GIDTestCase(test_endpoints.EndpointTestCase):
    """
    Base of tests on one device.

    @cvar hosts: Addresses of the device's own host.
    """

    hosts: tuple[str, ...] = ("127.0.0.1", "::1")
    #: All addresses.
    anywhere = ""

    def client(self, text: str, host: str, port: int) -> Any:
        """
        @return: An endpoint by a string like C{ib:HOST:PORT:framing=sdp}.
        """
        text = text.replace("HOST", quoteStringArgument(host)).replace("PORT", str(port))
        return clientFromString(self.reactor, f"{text}:device={self.device}")

    async def serve(self, prefix: str, port: int, factory: Any, more: str = "") -> Any:
        """
        @return: A port for the time of the test.
        """
        found = await self.listen(f"{prefix}:{port}:device={self.device}{self.anywhere}{more}", factory)
        return found


class ProcessTests(GIDTestCase):
    """
    Between processes: the addresses of the host.
    """

    async def test_threeServices(self) -> None:
        """
        SDP, messages, and SDP between GIDs listen on one number of one HCA, and their clients find each.
        """
        framed = await self.serve("ib", 0, _factory(b"framed"), ":framing=sdp")
        number = framed.getHost().port
        messages = await self.serve("ib", number, _factory(b"messages"))
        streams = await self.serve("sdp", number, _factory(b"streams"))
        services = [port._services[0].serviceID for port in (streams, messages, framed)]
        self.assertEqual(services, [0x10000 | number, 0x1060000 | number, 0x13F0000 | number])
        kinds = [
            ("sdp:HOST:PORT", b"streams", SDPTransport),
            ("ib:HOST:PORT", b"messages", RDMATransport),
            ("ib:HOST:PORT:framing=messages", b"messages", RDMATransport),
            ("ib:HOST:PORT:framing=sdp", b"framed", SDPTransport),
        ]
        for text, word, kind in kinds:
            heard: Any = await self.client(text, self.hosts[0], number).connect(
                test_endpoints.Factory.forProtocol(Heard)
            )
            self.assertIsInstance(heard.transport, kind)
            self.assertEqual(await heard.end, word)

    async def test_addresses(self) -> None:
        """
        An echo from each address; both ends agree on it, the server in the form of GIDs.
        """
        server = Server()
        port = await self.serve("ib", 0, server, ":framing=sdp")
        number = port.getHost().port
        for host in self.hosts:
            endpoint = self.client("ib:HOST:PORT:framing=sdp", host, number)
            client: Any = await endpoint.connect(test_endpoints.Factory.forProtocol(test_endpoints.Collector))
            here, there = client.transport.getHost(), client.transport.getPeer()
            self.assertEqual((there.host, there.port), (host, number))
            waiting = client.whenReceived(5)
            client.transport.write(b"hello")
            self.assertEqual(await waiting, b"hello")
            peer = server.peers[-1]
            self.assertEqual(peer.host.removeprefix("::ffff:"), here.host)
            self.assertEqual(peer.port, here.port)
            await self.finish(client)
            await server.made[-1].lost

    async def test_nobody(self) -> None:
        """
        Where SDP listens, but not between GIDs, the connection is refused.
        """
        port = await self.serve("sdp", 0, Server())
        endpoint = self.client("ib:HOST:PORT:framing=sdp", self.hosts[0], port.getHost().port)
        with self.assertRaises(error.ConnectionRefusedError):
            await endpoint.connect(test_endpoints.Factory.forProtocol(Heard))

    async def test_forged(self) -> None:
        """
        A peer that claims another's address is refused.
        """
        server = Server()
        port = await self.serve("ib", 0, server, ":framing=sdp")
        endpoint = self.client("ib:HOST:PORT:framing=sdp", self.hosts[0], port.getHost().port)
        forged = "198.51.100.7" if "." in self.hosts[0] else "fe80::1234"
        with mock.patch("twisted_ib.sdp.port.GIDAttempt._addressHere", lambda *_: forged):
            with self.assertRaises(error.ConnectError):
                await endpoint.connect(test_endpoints.Factory.forProtocol(Heard))
        self.assertEqual(server.made, [])


class OwnTests(GIDTestCase):
    """
    The GID made of an HCA's GUID.
    """

    async def test_own(self) -> None:
        """
        It needs no look-up of the service; a port may be bound to it.
        """
        for bound in (False, True):
            server = Server()
            holder = await self.serve("sdp", 0, Server())
            gid = holder._channel.device.gids()[0]
            self.assertTrue(gid.startswith("fe80:"), gid)
            interface = f":interface={quoteStringArgument(gid)}" if bound else ""
            port = await self.serve("ib", 0, server, f"{interface}:framing=sdp")
            endpoint = self.client("ib:HOST:PORT:framing=sdp", gid, port.getHost().port)
            client: Any = await endpoint.connect(test_endpoints.Factory.forProtocol(test_endpoints.Collector))
            self.assertEqual(client.transport.getHost().host, gid)
            self.assertEqual(server.peers[0], client.transport.getHost())
            await self.echo(client, server.made[0])

    async def test_notOwn(self) -> None:
        """
        The GID of another HCA is not listened on.
        """
        with self.assertRaises(error.CannotListenError) as caught:
            await self.serve("ib", 0, Server(), r":interface=fe80\:\:7:framing=sdp")
        self.assertIn("is not the GID of device shm0", str(caught.exception))


class PacketTests(ProcessTests):
    """
    Between hosts: a GID is an IP address.
    """

    device = "roce0"
    hosts = ("127.0.0.1",)

    def setUp(self) -> None:
        """
        Add the device, on a wire in memory.
        """
        onWire(self, {"127.0.0.1": 4096})
        addDevice("roce0", "roce", "127.0.0.1")
        super().setUp()


@skipIf(bool(MISSING), f"missing: {MISSING}")
class SubnetTests(ProcessTests):
    """
    In a subnet: the GID of the port, and the host's addresses.
    """

    device = "ib0"
    anywhere = r":interface=\:\:"

    def setUp(self) -> None:
        """
        Have a subnet of the test's own.
        """
        ownRunDirectory(self)
        self.patch(hostthread, "LINGER_SECONDS", 0.02)
        super().setUp()
        # It would stay for the next test, which has another run directory.
        addDevice(self.device, "ib")
        self.addCleanup(removeDevice, self.device)

    async def serve(self, prefix: str, port: int, factory: Any, more: str = "") -> Any:
        """
        See L{GIDTestCase.serve}; when the port is active.
        """
        found = await super().serve(prefix, port, factory, more)
        device = found._channel.device
        while not device.port.lid:
            await deferLater(self.reactor, 0.001)
        self.hosts = (device.gids()[0], "127.0.0.1")
        return found


class ArgumentTests(SynchronousTestCase):
    """
    Tests for what is refused.
    """

    def test_framings(self) -> None:
        """
        An unknown framing is an error that has those there are; only C{ib:} has some.
        """
        reactor = MemoryReactorClock()
        for text in ("ib:7000:framing=spd", "ib:h:7000:framing=spd"):
            parse = serverFromString if text.count(":") == 2 else clientFromString
            caught = self.assertRaises(ValueError, parse, reactor, text)
            self.assertEqual(str(caught), "ib: framing 'spd' is none of messages, sdp; did you mean sdp?")
        self.assertRaises(TypeError, serverFromString, reactor, "sdp:7000:framing=sdp")

    def test_portSpaces(self) -> None:
        """
        SDP has two port spaces.
        """
        reactor = MemoryReactorClock()
        for call in (
            lambda: listenSDP(reactor, 0, Server(), portSpace=PortSpace.TCP),
            lambda: connectSDP(reactor, "h", 1, None, portSpace=PortSpace.TCP),  # type: ignore[arg-type]
        ):
            caught = self.assertRaises(ValueError, call)
            self.assertIn("PortSpace.SDP and PortSpace.IB", str(caught))
        endpoint: Any = SDPServerEndpoint(reactor, 7000, portSpace=PortSpace.IB)
        self.assertEqual(endpoint._more, {"portSpace": PortSpace.IB})
        self.assertTrue(issubclass(GIDPort, SDPPort))
