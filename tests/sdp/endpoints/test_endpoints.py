"""
Tests for L{twisted_ib.sdp.port}, from the endpoint string to the bytes:
what works, and what each error says.
"""

from __future__ import annotations

import errno
import gc
import os
from typing import Any
from weakref import ref

from twisted.internet import error
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import (
    IListeningPort,
    IReactorFDSet,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import ClientFactory, Factory, Protocol, connectionDone
from twisted.internet.selectreactor import SelectReactor
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.trial.unittest import SkipTest, SynchronousTestCase, TestCase
from zope.interface.verify import verifyObject

from tests.sdp.fakes import RecordingClientFactory
from tests.support.certificates import selfSigned
from tests.support.waiting import HANG_SECONDS
from twisted_ib.sdp.port import SDPClientEndpoint, SDPServerEndpoint, connectSDP, listenSDP

#: A port on which nobody listens: those that a test gets are ephemeral.
NOBODY = 9


class Collector(Protocol):
    """
    Collects what arrives.

    @ivar data: That.
    @ivar lost: Fires when the connection ends.
    """

    def __init__(self) -> None:
        """
        Nothing has arrived.
        """
        self.data = b""
        self.lost: Deferred[None] = Deferred()
        self._awaited: tuple[int, Deferred[bytes]] | None = None

    def dataReceived(self, data: bytes) -> None:
        """
        Collect.
        """
        self.data += data
        if self._awaited is not None and len(self.data) >= self._awaited[0]:
            awaited, self._awaited = self._awaited[1], None
            awaited.callback(self.data)

    def whenReceived(self, length: int) -> Deferred[bytes]:
        """
        Give what arrived once it is C{length} bytes.
        """
        result: Deferred[bytes] = Deferred()
        self._awaited = (length, result)
        self.dataReceived(b"")
        return result

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost.callback(None)


class Echo(Collector):
    """
    Sends back what arrives.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Send it back.
        """
        assert self.transport is not None
        self.transport.write(data)


class Server(Factory):
    """
    Makes protocols and remembers them.
    """

    noisy = False

    def __init__(self, kind: type[Collector] = Echo) -> None:
        """
        @param kind: What to make.
        """
        self.kind = kind
        self.made: list[Collector] = []
        self.peers: list[Any] = []

    def buildProtocol(self, addr: Any) -> Collector:
        protocol = self.kind()
        protocol.factory = self
        self.made.append(protocol)
        self.peers.append(addr)
        return protocol


class EndpointTestCase(TestCase):
    """
    Endpoints on the reactor that runs the tests.
    """

    timeout = HANG_SECONDS
    device = "shm0"

    def setUp(self) -> None:
        """
        Look at the reactor.
        """
        from twisted.internet import reactor

        self.reactor: Any = reactor
        if not IReactorFDSet.providedBy(reactor):
            raise SkipTest("SDP needs IReactorFDSet")

    async def listen(self, text: str, factory: Factory) -> Any:
        """
        Listen by string, for the time of the test.
        """
        port = await serverFromString(self.reactor, text).listen(factory)
        self.addCleanup(port.stopListening)
        return port

    async def connect(self, text: str, kind: type[Collector] = Collector) -> Any:
        """
        Connect by string.
        """
        return await clientFromString(self.reactor, text).connect(Factory.forProtocol(kind))

    async def finish(self, *protocols: Any) -> None:
        """
        Close connections, and wait until all ends know it.
        """
        for protocol in protocols:
            protocol.transport.loseConnection()
        await gatherResults([protocol.lost for protocol in protocols])

    async def echo(self, client: Any, server: Collector | None = None) -> None:
        """
        Send something through a connection and back, then close it.
        """
        waiting = client.whenReceived(5)
        client.transport.write(b"hello")
        self.assertEqual(await waiting, b"hello")
        await self.finish(client)
        if server is not None:
            await server.lost


class ConnectionTests(EndpointTestCase):
    """
    Tests for what works.
    """

    async def test_echo(self) -> None:
        """
        A client finds a server by strings, and addresses are a TCP's.
        """
        server = Server()
        port = await self.listen("sdp:0", server)
        verifyObject(IListeningPort, port)
        number = port.getHost().port
        self.assertEqual(port.getHost(), IPv4Address("TCP", "0.0.0.0", number))
        client = await self.connect(f"sdp:127.0.0.1:{number}")
        self.assertEqual(client.transport.getPeer(), IPv4Address("TCP", "127.0.0.1", number))
        waiting = client.whenReceived(5)
        client.transport.write(b"hello")
        self.assertEqual(await waiting, b"hello")
        here = client.transport.getHost()
        self.assertEqual(server.peers, [here])
        transport: Any = server.made[0].transport
        self.assertEqual(transport.getPeer(), here)
        self.assertEqual(transport.getHost(), IPv4Address("TCP", "127.0.0.1", number))
        await self.finish(client)
        await server.made[0].lost

    async def test_sharedFactory(self) -> None:
        """
        The connections of one endpoint to one factory of the user's have one object that stands for it, which
        starts and stops the factory with each; another factory has its own.
        """
        port = await self.listen("sdp:0", Server())
        text = f"sdp:127.0.0.1:{port.getHost().port}:device={self.device}"
        endpoint = clientFromString(self.reactor, text)
        here, there = Factory.forProtocol(Collector), Factory.forProtocol(Collector)
        made: list[Any] = [await endpoint.connect(factory) for factory in (here, here, there)]
        first, second, other = (each.transport.connector.factory for each in made)
        self.assertIs(first, second)
        self.assertIsNot(first, other)
        self.assertEqual((here.numPorts, there.numPorts), (2, 1))
        await self.finish(made[0])
        # The connector is notified after the protocol.
        await deferLater(self.reactor, 0)
        self.assertEqual((here.numPorts, there.numPorts), (1, 1))
        await self.finish(*made[1:])
        await deferLater(self.reactor, 0)
        self.assertEqual((here.numPorts, there.numPorts), (0, 0))

    async def test_protocolItself(self) -> None:
        """
        The transport has the protocol that the endpoint gives, and none between.
        """
        server = Server()
        port = await self.listen("sdp:0", server)
        client = await self.connect(f"sdp:127.0.0.1:{port.getHost().port}")
        self.assertIs(client.transport.protocol, client)
        await self.echo(client, server.made[0])

    async def test_noGarbage(self) -> None:
        """
        A connection that has ended is gone without the garbage collector: who makes many does not pay for it.
        """
        server = Server()
        port = await self.listen("sdp:0", server)
        where = f"sdp:127.0.0.1:{port.getHost().port}"
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        gone = []
        client = await self.connect(where)
        for protocol in (client, server.made[0]):
            gone.append(ref(protocol.transport))
        await self.echo(client, server.made[0])
        del protocol, client
        server.made.clear()
        server.peers.clear()
        for _ in range(100):
            if not any(each() for each in gone):
                break
            await deferLater(self.reactor, 0.01)
        self.assertEqual([each() for each in gone], [None, None])

    async def test_options(self) -> None:
        """
        All options of both strings.
        """
        server = Server()
        port = await self.listen(f"sdp:0:interface=127.0.0.1:backlog=5:device={self.device}", server)
        self.assertEqual(port.getHost().host, "127.0.0.1")
        client = await self.connect(
            f"sdp:127.0.0.1:{port.getHost().port}:timeout=5:bindAddress=127.0.0.3:device={self.device}"
        )
        self.assertEqual(client.transport.getHost().host, "127.0.0.3")
        self.assertEqual(server.peers[0].host, "127.0.0.3")
        await self.echo(client, server.made[0])

    async def test_name(self) -> None:
        """
        The host may be a name.
        """
        server = Server()
        port = await self.listen("sdp:0", server)
        client = await self.connect(f"sdp:localhost:{port.getHost().port}")
        self.assertEqual(client.transport.getPeer().host, "127.0.0.1")
        await self.echo(client, server.made[0])

    async def test_IPv6(self) -> None:
        """
        IPv6 addresses work with their colons escaped.
        """
        server = Server()
        port = await self.listen("sdp:0:interface=\\:\\:1", server)
        number = port.getHost().port
        self.assertEqual(port.getHost(), IPv6Address("TCP", "::1", number))
        client = await self.connect(f"sdp:\\:\\:1:{number}")
        self.assertEqual(client.transport.getPeer(), IPv6Address("TCP", "::1", number))
        self.assertIsInstance(client.transport.getHost(), IPv6Address)
        await self.echo(client, server.made[0])

    async def test_bothFamilies(self) -> None:
        """
        A port on C{::} takes IPv4 too, and shows the peer as a socket does.
        """
        server = Server()
        port = await self.listen("sdp:0:interface=\\:\\:", server)
        number = port.getHost().port
        for host, shown in [("127.0.0.1", "::ffff:127.0.0.1"), ("\\:\\:1", "::1")]:
            client = await self.connect(f"sdp:{host}:{number}")
            self.assertEqual(client.transport.getPeer().host, host.replace("\\", ""))
            await self.echo(client, server.made[-1])
            self.assertEqual(server.peers[-1].host, shown)
            self.assertIsInstance(server.peers[-1], IPv6Address)

    async def test_classic(self) -> None:
        """
        The calls in the form of C{listenTCP} and C{connectTCP} work.
        """
        server = Server()
        port: Any = listenSDP(self.reactor, 0, server, device=self.device)
        self.addCleanup(port.stopListening)
        factory = RecordingClientFactory()
        lost: Deferred[None] = Deferred()
        self.patch(factory, "clientConnectionLost", lambda connector, reason: lost.callback(None))
        connector: Any = connectSDP(
            self.reactor, "127.0.0.1", port.getHost().port, factory, device=self.device
        )
        while not (factory.protocols and server.made):
            await deferLater(self.reactor, 0)
        self.assertEqual(connector.state, "connected")
        connector.disconnect()
        await lost
        await server.made[0].lost
        self.assertEqual(connector.state, "disconnected")

    async def test_dataBehindReply(self) -> None:
        """
        Bytes that the server sends in C{connectionMade} do not come before the next turn of the client's
        reactor, as with TCP: a protocol got from C{ClientCreator} misses nothing.
        """

        class Greeter(Collector):
            def connectionMade(self) -> None:
                assert self.transport is not None
                self.transport.write(b"hello ")
                self.transport.write(b"and good bye")
                self.transport.loseConnection()

        server = Server(Greeter)
        port = await self.listen("sdp:0", server)
        endpoint = clientFromString(self.reactor, f"sdp:127.0.0.1:{port.getHost().port}:device={self.device}")
        events: list[object] = []

        class Client(Collector):
            def connectionMade(inner) -> None:
                self.reactor.callLater(0, events.append, "next turn")

            def dataReceived(inner, data: bytes) -> None:
                events.append(data)

        client: Any = await endpoint.connect(Factory.forProtocol(Client))
        await gatherResults([client.lost, server.made[0].lost])
        self.assertEqual(events[0], "next turn")
        self.assertEqual(b"".join(events[1:]), b"hello and good bye")

    async def test_tls(self) -> None:
        """
        The C{tls} client string wraps an C{sdp} one, and the server's factory
        is wrapped as for TCP.
        """
        from twisted.protocols.tls import TLSMemoryBIOFactory

        options, roots = selfSigned(self.mktemp(), "localhost")
        server = Server()
        port = await self.listen("sdp:0", TLSMemoryBIOFactory(options, False, server))
        number = port.getHost().port
        client = await self.connect(
            f"tls:localhost:{number}:endpoint=sdp\\:127.0.0.1\\:{number}:trustRoots={roots}"
        )
        await self.echo(client, server.made[0])

    async def test_haproxy(self) -> None:
        """
        The C{haproxy} server string wraps an C{sdp} one: the peer is whom the
        PROXY header names.
        """
        server = Server()
        port = await self.listen("haproxy:sdp:0", server)
        client = await self.connect(f"sdp:127.0.0.1:{port.getHost().port}")
        client.transport.write(b"PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n")
        waiting = client.whenReceived(5)
        client.transport.write(b"hello")
        self.assertEqual(await waiting, b"hello")
        transport: Any = server.made[0].transport
        self.assertEqual(transport.getPeer(), IPv4Address("TCP", "192.0.2.1", 1234))
        await self.finish(client)
        await server.made[0].lost


class LoopbackConnectionTests(ConnectionTests):
    """
    The same on C{lo0}.
    """

    device = "lo0"

    async def listen(self, text: str, factory: Factory) -> Any:
        """
        Name the device.
        """
        if "device=" not in text:
            text += f":device={self.device}"
        return await ConnectionTests.listen(self, text, factory)

    async def connect(self, text: str, kind: type[Collector] = Collector) -> Any:
        """
        Name the device.
        """
        if "endpoint=" in text:
            text = text.replace(":trustRoots", f"\\:device={self.device}:trustRoots")
        elif "device=" not in text:
            text += f":device={self.device}"
        return await ConnectionTests.connect(self, text, kind)


class NumberTests(EndpointTestCase):
    """
    Tests for whose the port numbers are.
    """

    async def test_noTCP(self) -> None:
        """
        An SDP port is no TCP port: nobody answers there.
        """
        port = await self.listen("sdp:0:interface=127.0.0.1", Server())
        client = clientFromString(self.reactor, f"tcp:127.0.0.1:{port.getHost().port}")
        await self.assertFailure(client.connect(Factory.forProtocol(Protocol)), error.ConnectionRefusedError)

    async def test_besideTCP(self) -> None:
        """
        The same number can be listened on for both, and each has its own.
        """
        tcp, sdp = Server(), Server()
        number = (await self.listen("tcp:0:interface=127.0.0.1", tcp)).getHost().port
        await self.listen(f"sdp:{number}:interface=127.0.0.1", sdp)
        for kind, server in [("tcp", tcp), ("sdp", sdp)]:
            client = await self.connect(f"{kind}:127.0.0.1:{number}")
            await self.echo(client)
            await server.made[0].lost
        self.assertEqual((len(tcp.made), len(sdp.made)), (1, 1))


class ErrorTests(EndpointTestCase):
    """
    Tests for what does not work: class and text.
    """

    async def refusal(self, text: str, kind: type[Exception] = error.ConnectError) -> str:
        """
        Assert that a client string fails to connect.

        @return: The reason's text, one line.
        """
        reason = await self.assertFailure(self.connectLater(text), kind)
        self.assertNotIn("\n", str(reason))
        return str(reason)

    def connectLater(self, text: str) -> Deferred[Any]:
        """
        Begin to connect.
        """
        connecting: Deferred[Any] = clientFromString(self.reactor, text).connect(
            Factory.forProtocol(Collector)
        )
        return connecting

    async def noPort(self, text: str) -> Any:
        """
        Assert that a server string fails to listen.

        @return: The reason.
        """
        listening = serverFromString(self.reactor, text).listen(Server())
        reason = await self.assertFailure(listening, error.CannotListenError)
        self.assertNotIn("\n", str(reason))
        return reason

    def test_strings(self) -> None:
        """
        Errors visible in the string are found when it is parsed.
        """
        for text in ["sdp:65536", "sdp:-1", "sdp:http", "sdp:1:backlog=x", "sdp:", "sdp:1.5"]:
            self.assertRaises(ValueError, serverFromString, self.reactor, text)
        for text in ["sdp", "sdp:1:2:3:4:5:6", "sdp:1:backlogg=5", "sdp:interface=127.0.0.1"]:
            self.assertRaises((TypeError, ValueError), serverFromString, self.reactor, text)
        for text in ["sdp:host:0", "sdp:host:65536", "sdp:host:x", "sdp:host:1:timeout=x"]:
            self.assertRaises(ValueError, clientFromString, self.reactor, text)
        for text in ["sdp:host", "sdp:host:1:backlog=5", "sdp:port=1", "sdp:host:1:5:b:d:x"]:
            self.assertRaises((TypeError, ValueError), clientFromString, self.reactor, text)

    def test_nearly(self) -> None:
        """
        The error of a word that is nearly one of the known says so; that of another word does not.
        """
        for parse, text, word in (
            (serverFromString, "sdp:1:backlogg=5", "backlog="),
            (serverFromString, "sdp:1:devise=roce0", "device="),
            (clientFromString, "sdp:host:1:timout=5", "timeout="),
            (clientFromString, "sdp:host:1:bindAdress=127.0.0.1", "bindAddress="),
        ):
            failure = self.assertRaises(TypeError, parse, self.reactor, text)
            self.assertTrue(str(failure).endswith(f"; did you mean {word}?"), str(failure))
        failure = self.assertRaises(TypeError, clientFromString, self.reactor, "sdp:host:1:colour=red")
        self.assertNotIn("did you mean", str(failure))

    def test_constructors(self) -> None:
        """
        The same in code.
        """
        wrong: list[Any] = [-1, 65536, "80", None]
        for port in wrong:
            self.assertRaises(ValueError, SDPServerEndpoint, self.reactor, port)
            self.assertRaises(ValueError, SDPClientEndpoint, self.reactor, "host", port)
        self.assertRaises(ValueError, SDPClientEndpoint, self.reactor, "host", 1, bindAddress=("a", -1))

    def test_interfaces(self) -> None:
        """
        The endpoints provide what Twisted says they do, and have a name.
        """
        server = SDPServerEndpoint(self.reactor, 80)
        client = SDPClientEndpoint(self.reactor, "::1", 80)
        verifyObject(IStreamServerEndpoint, server)
        verifyObject(IStreamClientEndpoint, client)
        self.assertEqual(repr(server), "<SDPServerEndpoint *:80>")
        self.assertEqual(repr(client), "<SDPClientEndpoint [::1]:80>")

    async def test_portTaken(self) -> None:
        """
        A port is taken by one at a time; a wildcard takes it on all addresses.
        """
        port = await self.listen("sdp:0", Server())
        number = port.getHost().port
        for text in [f"sdp:{number}", f"sdp:{number}:interface=127.0.0.1", f"sdp:{number}:interface=\\:\\:"]:
            reason = await self.noPort(text)
            self.assertEqual(reason.port, number)
            self.assertIn(f":{number}: [Errno 98] Address already in use.", str(reason))

    async def test_unknownDevice(self) -> None:
        """
        A device that there is not: the server cannot listen, the client can
        not connect.
        """
        reason = await self.noPort("sdp:0:device=shm9")
        self.assertIn("shm9", str(reason))
        text = await self.refusal(f"sdp:127.0.0.1:{NOBODY}:device=shm9")
        self.assertIn("shm9", text)
        self.assertIn(f"127.0.0.1:{NOBODY}", text)

    async def test_foreignInterface(self) -> None:
        """
        An address that is not of this host, or none.
        """
        reason = await self.noPort("sdp:0:interface=192.0.2.1")
        self.assertIn("192.0.2.1:0: [Errno 99] 192.0.2.1 is not an address of this host.", str(reason))
        for name, why in [
            ("example.com", "'example.com' is not an IP address."),
            ("fe80\\:\\:1%no-such-one", "fe80::1%no-such-one names an interface that is not there."),
        ]:
            reason = await self.noPort(f"sdp:0:interface={name}")
            plain = name.replace("\\", "")
            self.assertEqual(reason.socketError.errno, errno.EADDRNOTAVAIL)
            self.assertIn(f"{plain}:0: [Errno 99] {why}", str(reason))

    async def test_nobodyListens(self) -> None:
        """
        Refused, with host and port in the text.
        """
        for host in ["127.0.0.1", "localhost"]:
            text = await self.refusal(f"sdp:{host}:{NOBODY}", error.ConnectionRefusedError)
            self.assertIn(f"{host}:{NOBODY}", text)
        text = await self.refusal(f"sdp:127.0.0.1:{NOBODY}:device=lo0", error.ConnectionRefusedError)
        self.assertIn(f"127.0.0.1:{NOBODY}", text)

    async def test_otherAddress(self) -> None:
        """
        Refused too on an address that the listener is not bound to.
        """
        port = await self.listen("sdp:0:interface=127.0.0.1", Server())
        await self.refusal(f"sdp:127.0.0.2:{port.getHost().port}", error.ConnectionRefusedError)
        await self.refusal(f"sdp:\\:\\:1:{port.getHost().port}", error.ConnectionRefusedError)

    async def test_noRoute(self) -> None:
        """
        An address that no device serves.
        """
        for device in ["shm0", "lo0"]:
            text = await self.refusal(f"sdp:192.0.2.1:80:device={device}", error.NoRouteError)
            self.assertIn("192.0.2.1:80", text)

    async def test_bindAddress(self) -> None:
        """
        A local address that is not of this host.
        """
        text = await self.refusal(f"sdp:127.0.0.1:{NOBODY}:bindAddress=192.0.2.1", error.ConnectBindError)
        self.assertIn("192.0.2.1", text)

    async def test_noName(self) -> None:
        """
        A name that does not resolve.
        """
        name = "a" * 70 + ".example"
        text = await self.refusal(f"sdp:{name}:80", error.DNSLookupError)
        self.assertIn(name, text)

    async def test_backlog(self) -> None:
        """
        A connect that finds the port paused waits, beyond the backlog too: it is
        not refused, and works if there is time.
        """
        server = Server()
        port = await self.listen("sdp:0:backlog=2", server)
        port.pauseProducing()
        number = port.getHost().port
        waiting = [self.connectLater(f"sdp:127.0.0.1:{number}:timeout=15") for _ in range(4)]
        text = await self.refusal(f"sdp:127.0.0.1:{number}:timeout=0.2", error.TimeoutError)
        self.assertIn(f"127.0.0.1:{number} did not answer within 0.2 s", text)
        self.assertEqual([client.called for client in waiting], [False] * 4)
        port.resumeProducing()
        clients = await gatherResults(waiting)
        self.assertEqual(len(server.made), 4)
        await self.finish(*clients)
        await gatherResults([protocol.lost for protocol in server.made])

    async def test_cancel(self) -> None:
        """
        A connect that is cancelled fails with its address and leaves nothing at
        the server.
        """
        server = Server()
        port = await self.listen("sdp:0", server)
        port.pauseProducing()
        number = port.getHost().port
        waiting = self.connectLater(f"sdp:127.0.0.1:{number}")
        while not port.requests:
            await deferLater(self.reactor, 0.001)
        waiting.cancel()
        reason = await self.assertFailure(waiting, error.ConnectingCancelledError)
        self.assertEqual(reason.address, IPv4Address("TCP", "127.0.0.1", number))
        while port.requests:
            await deferLater(self.reactor, 0.001)
        port.resumeProducing()
        await deferLater(self.reactor, 0)
        self.assertEqual(server.made, [])

    async def test_nameRaises(self) -> None:
        """
        A client protocol whose C{logPrefix} raises ends its own connection only.
        """
        server = Server()
        port = await self.listen("sdp:0:interface=127.0.0.1", server)
        number = port.getHost().port
        other = await self.connect(f"sdp:127.0.0.1:{number}")

        class Nameless(Collector):
            """
            It has no name.
            """

            def logPrefix(self) -> str:
                """
                It cannot be asked.
                """
                raise ZeroDivisionError("no name")

        made: list[Nameless] = []

        class Maker(ClientFactory):
            """
            Makes it.
            """

            noisy = False

            def buildProtocol(self, addr: Any) -> Nameless:
                made.append(Nameless())
                return made[0]

        connectSDP(self.reactor, "127.0.0.1", number, Maker())
        while not made:
            await deferLater(self.reactor, 0.001)
        await made[0].lost
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        await self.echo(other)

    async def test_closeWhileWaiting(self) -> None:
        """
        A port that closes refuses those that wait.
        """
        port = await serverFromString(self.reactor, "sdp:0").listen(Server())
        port.pauseProducing()
        number = port.getHost().port
        waiting = self.connectLater(f"sdp:127.0.0.1:{number}")
        while not port.requests:
            await deferLater(self.reactor, 0.001)
        await port.stopListening()
        await self.assertFailure(waiting, error.ConnectionRefusedError)


class RunDirectoryTests(SynchronousTestCase):
    """
    Tests for a host on which processes cannot meet.
    """

    def setUp(self) -> None:
        """
        Make a reactor that has no device yet.
        """
        before = os.environ.get("TWISTED_IB_RUN_DIR")
        os.environ["TWISTED_IB_RUN_DIR"] = "/dev/null"
        self.addCleanup(self.restore, before)
        self.reactor: Any = SelectReactor()
        self.addCleanup(self.reactor.disconnectAll)

    def restore(self, before: str | None) -> None:
        """
        Put the environment back.
        """
        if before is None:
            del os.environ["TWISTED_IB_RUN_DIR"]
        else:
            os.environ["TWISTED_IB_RUN_DIR"] = before

    def test_server(self) -> None:
        """
        A server cannot listen, and the text names the directory.
        """
        listening = SDPServerEndpoint(self.reactor, 5001).listen(Server())
        reason = self.failureResultOf(listening, error.CannotListenError)
        text = str(reason.value)
        self.assertIn("any:5001", text)
        self.assertIn("/dev/null", text)
        self.assertNotIn("\n", text)

    def test_client(self) -> None:
        """
        A client cannot connect, likewise.
        """
        connecting = SDPClientEndpoint(self.reactor, "127.0.0.1", 5001).connect(Server())
        self.assertNoResult(connecting)
        self.reactor.runUntilCurrent()
        reason = self.failureResultOf(connecting, error.ConnectError)
        text = str(reason.value)
        self.assertIn("127.0.0.1:5001", text)
        self.assertIn("/dev/null", text)
        self.assertNotIn("\n", text)
