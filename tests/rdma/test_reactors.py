"""
Messages and RDMA on real reactors, and on each fabric of one host: from the endpoint string, the
classic call or the reactor's method to the bytes.
"""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import IConnector, IListeningPort, IReactorFDSet, IReactorTime
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.test.connectionmixins import EndpointCreator
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.python.failure import Failure
from zope.interface.verify import verifyClass, verifyObject

from tests.internet.stream_suite import StreamSubject, makeStreamTests
from tests.internet.test_stream_suite import IB_REACTORS, OTHER_REACTORS
from tests.rdma.pair import EVERYTHING, Plain, Recorder, Told
from tests.support.waiting import HANG_SECONDS, Driven
from twisted_ib import limits
from twisted_ib.errors import QueuePairError, WorkCompletionError
from twisted_ib.hca.base.traits import Completion, NodeType
from twisted_ib.hca.device.registry import traitsOf
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.interfaces import IRDMATransport, IReactorRDMA
from twisted_ib.internet.readers import channelsOf
from twisted_ib.rdma import connectRDMA, listenRDMA
from twisted_ib.rdma.port import RDMAClientEndpoint, RDMAServerEndpoint
from twisted_ib.reactor.ibreactor import IBReactor


class Talker(Recorder):
    """
    Waits for what it hears.
    """

    def __init__(self) -> None:
        """
        Nobody waits.
        """
        super().__init__()
        self.made: Deferred[Any] = Deferred()
        self.lost: Deferred[Any] = Deferred()
        self._waits: Deferred[Any] | None = None
        self._count = 0

    def connectionMade(self) -> None:
        self.made.callback(self)

    def dataReceived(self, data: bytes) -> None:
        """
        Remember, and tell.
        """
        super().dataReceived(data)
        self._look()

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        """
        Remember, and tell.
        """
        super().remoteMemoryWritten(immediate, length)
        self._look()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Remember, and tell.
        """
        super().connectionLost(reason)
        self.lost.callback(reason.value)

    def _look(self) -> None:
        """
        Tell who waits for so many messages.
        """
        if self._waits is not None and len(self.log) >= self._count:
            waits, self._waits = self._waits, None
            waits.callback(self.log)

    def heard(self, count: int) -> Deferred[Any]:
        """
        @return: Fires when it has heard so many things.
        """
        self._count = count
        self._waits = waits = Deferred()
        self._look()
        return waits


class Clients(Told):
    """
    Makes one protocol, and remembers failure and loss.
    """

    def __init__(self, protocol: Any) -> None:
        """
        @param protocol: That one.
        """
        self.one = protocol
        self.failed: Deferred[Any] = Deferred()
        self.lost: Deferred[Any] = Deferred()
        super().__init__(self.failed.callback, self.lost.callback)

    def buildProtocol(self, addr: Any) -> Any:
        """
        Give it.
        """
        self.address = addr
        return self.one


class RDMATestsMixin(Driven):
    """
    Tests for every reactor and device.

    @cvar device: Its name.
    @cvar address: An address that it has.
    @cvar clientDevice: The name of the client's device, where that is another.
    @cvar failure: What a server hears of a client that fails.
    @cvar isOverTCP: Whether a connection needs the TCP port of its number; L{None} for what the traits say.
    """

    requiredInterfaces = (IReactorFDSet, IReactorTime)
    device: str
    address = "127.0.0.1"
    clientDevice = ""
    failure = "ConnectionLost"
    isOverTCP: bool | None = None

    @property
    def asks(self) -> str:
        """
        The name of the client's device.
        """
        return self.clientDevice or self.device

    @property
    def needsTCP(self) -> bool:
        """
        Whether a connection needs the TCP port of its number.
        """
        if self.isOverTCP is None:
            return bool(traitsOf(self.device).nodeType is NodeType.RNIC)
        return self.isOverTCP

    def factory(self, made: list[Talker]) -> Factory:
        """
        @return: What makes protocols and remembers them.
        """

        def build() -> Talker:
            protocol = Talker()
            made.append(protocol)
            return protocol

        factory = Factory.forProtocol(build)  # type: ignore[arg-type]
        factory.noisy = False
        return factory

    async def pair(self, reactor: Any, **options: Any) -> tuple[Any, Talker, Talker]:
        """
        @return: A port, a client and a server that are connected, by strings.
        """
        made: list[Talker] = []
        text = f"ib:0:interface={self.address}:device={self.device}"
        port: Any = await serverFromString(reactor, text).listen(self.factory(made))
        text = f"ib:{self.address}:{port.getHost().port}:timeout=10:device={self.asks}"
        found: Any = await clientFromString(reactor, text).connect(self.factory([]))
        while not made:
            await self.turn(reactor)
        await made[0].made
        return port, found, made[0]

    @staticmethod
    def turn(reactor: Any) -> Deferred[None]:
        """
        @return: Fires in the next turn.
        """
        done: Deferred[None] = Deferred()
        reactor.callLater(0, done.callback, None)
        return done

    def test_everything(self) -> None:
        """
        Messages, requests, errors and the end, between endpoints of strings.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            one = client.transport
            verifyObject(IRDMATransport, one)
            verifyObject(IListeningPort, port)
            this.assertEqual(one.getPeer(), server.transport.getHost())
            this.assertEqual(one.getHost(), server.transport.getPeer())
            region = server.transport.registerMemory(1 << 20, EVERYTHING)
            address, key = region.address, region.remoteKey
            for number in range(200):
                one.write(b"%d" % number)
            operations = traitsOf(this.device).operations
            hasImmediate = operations is None or SendOpcode.SEND_WITH_IMM in operations
            if hasImmediate:
                one.send(b"last", 7)
            else:
                this.assertRaises(QueuePairError, one.send, b"last", 7)
                this.assertRaises(QueuePairError, one.fetchAdd, address, key, 2)
                one.write(b"last")
            await server.heard(201)
            this.assertEqual(server.log, [*(b"%d" % number for number in range(200)), b"last"])
            if hasImmediate:
                this.assertEqual(server.immediates[-1], 7)
            mine = one.registerMemory(1 << 20)
            mine.view[:] = bytes(range(256)) * 4096
            await one.rdmaWrite(mine, address, key)
            this.assertEqual(bytes(region.view), bytes(mine.view))
            this.assertEqual(await one.rdmaRead(1 << 20, address, key), bytes(mine.view))
            region.view[:] = bytes(1 << 20)
            this.assertEqual(await one.rdmaRead(1 << 20, address, key, mine), 1 << 20)
            this.assertEqual(bytes(mine.view), bytes(1 << 20))
            if hasImmediate:
                await one.rdmaWriteWithImmediate(b"now", address, key, 3)
                await server.heard(202)
                this.assertEqual(server.log[-1], (3, 3))
                this.assertEqual(await one.fetchAdd(address + 8, key, 2), 0)
                this.assertEqual(await one.compareAndSwap(address + 8, key, 2, 9), 2)
                this.assertEqual(region.view[8], 9)
            count = len(server.log)
            await one.sendRegistered(mine, 0, 65536)
            await server.heard(count + 1)
            this.assertEqual(server.log[-1], bytes(65536))
            region.close()
            try:
                await one.rdmaRead(1, address, key)
            except WorkCompletionError as wrong:
                this.assertEqual(wrong.statusName, "REM_ACCESS_ERR")
            await client.lost
            await server.lost
            this.assertEqual((client.log, server.log[-1]), (["ConnectionLost"], self.failure))
            await port.stopListening()

        self.drive(steps)

    def test_pacing(self) -> None:
        """
        A protocol that pauses makes the peer wait; all comes, and then the end.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            server.transport.pauseProducing()
            messages = [bytes([number % 256]) * 10_000 for number in range(500)]
            for message in messages:
                client.transport.write(message)
            client.transport.loseConnection()
            resumed: Deferred[None] = Deferred()
            reactor.callLater(0.05, resumed.callback, None)
            await resumed
            this.assertEqual((client.log, server.log), ([], []))
            server.transport.resumeProducing()
            await server.lost
            await client.lost
            this.assertEqual(server.log, [*messages, "ConnectionDone"])
            this.assertEqual(client.log, ["ConnectionDone"])
            await port.stopListening()

        self.drive(steps)

    def test_classic(self) -> None:
        """
        The classic calls, with private data both ways, and a plain protocol.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            made: list[Any] = []
            factory = self.factory(made)
            port: Any = listenRDMA(
                reactor, 0, factory, self.address, device=self.device, privateData=b"r" * 196
            )
            plain = Plain()
            clients = Clients(plain)
            connector: Any = connectRDMA(
                reactor,
                self.address,
                port.getHost().port,
                clients,
                device=self.asks,
                privateData=b"q" * 56,
                maxMessageSize=10,
            )
            verifyObject(IConnector, connector)
            while not made:
                await self.turn(reactor)
            server = made[0]
            await server.made
            this.assertEqual(server.transport.peerPrivateData, b"q" * 56)
            await server.transport.send(b"ten bytes.")
            while not plain.log:
                await self.turn(reactor)
            this.assertEqual(plain.log, [b"ten bytes."])
            client: Any = plain.transport
            this.assertEqual(client.peerPrivateData, b"r" * 196)
            this.assertRaises(ValueError, client.write, b"eleven byte")
            connector.disconnect()
            this.assertIsInstance(await clients.lost, error.ConnectionDone)
            await server.lost
            await port.stopListening()

        self.drive(steps)

    def test_peerSendsTooLong(self) -> None:
        """
        A message that is longer than the other side takes ends the connection by name.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            made: list[Any] = []
            server = RDMAServerEndpoint(
                reactor, 0, interface=self.address, device=self.device, maxMessageSize=100
            )
            port: Any = await server.listen(self.factory(made))
            client = RDMAClientEndpoint(reactor, self.address, port.getHost().port, device=self.asks)
            found: Any = await client.connect(self.factory([]))
            done = found.transport.send(b"x" * 101)
            try:
                await done
            except WorkCompletionError as wrong:
                # A Terminate does not name a SEND, which was complete when it was sent.
                isNamed = traitsOf(this.device).completion is Completion.TAKEN and not this.needsTCP
                this.assertEqual(wrong.statusName, "REM_INV_REQ_ERR" if isNamed else "WR_FLUSH_ERR")
            await found.lost
            reason = await made[0].lost
            this.assertIsInstance(reason, error.ConnectionLost)
            this.assertIn("more than 100 bytes", str(reason))
            await port.stopListening()

        self.drive(steps)

    def test_numberTaken(self) -> None:
        """
        A number that a TCP connection of the host has is that of no connection over TCP: who binds it is told
        so.  Elsewhere both ends say it.
        """
        this: Any = self
        isOverTCP = self.needsTCP

        async def steps(reactor: Any) -> None:
            made: list[Any] = []
            text = f"ib:0:interface={self.address}:device={self.device}"
            port: Any = await serverFromString(reactor, text).listen(self.factory(made))
            with socket.create_server((self.address, 0)) as listener, socket.socket() as other:
                other.connect(listener.getsockname())
                bound = other.getsockname()
                where = self.address, port.getHost().port
                client = RDMAClientEndpoint(reactor, *where, device=self.asks, bindAddress=bound)
                if isOverTCP:
                    with this.assertRaises(error.ConnectBindError):
                        await client.connect(self.factory([]))
                else:
                    found: Any = await client.connect(self.factory([]))
                    while not made:
                        await self.turn(reactor)
                    await made[0].made
                    this.assertEqual(found.transport.getHost().port, bound[1])
                    this.assertEqual(made[0].transport.getPeer().port, bound[1])
                    found.transport.loseConnection()
                    await found.lost
                    await made[0].lost
            await port.stopListening()

        self.drive(steps)

    def test_nobodyListens(self) -> None:
        """
        The errors are those of streams.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            factory = self.factory([])
            # The device has the address from now on: over RoCE nobody else answers for a port.
            port: Any = listenRDMA(reactor, 0, factory, self.address, device=self.device)
            clients = Clients(Plain())
            connectRDMA(reactor, self.address, 9, clients, device=self.asks)
            reason = await clients.failed
            this.assertIsInstance(reason, error.ConnectionRefusedError)
            this.assertIn(f"nobody listens on RDMA {self.address}:9", str(reason))
            this.assertRaises(
                error.CannotListenError,
                listenRDMA,
                reactor,
                port.getHost().port,
                factory,
                self.address,
                device=self.device,
            )
            await port.stopListening()

        self.drive(steps)


def _make() -> dict[str, type]:
    """
    @return: The test cases, by name.
    """
    found: dict[str, type] = {}
    for device in ("shm0", "lo0"):
        name = f"RDMA{device.capitalize()}Tests"
        kind: Any = type(name, (RDMATestsMixin, ReactorBuilder), {"device": device, "__module__": __name__})
        kind._reactors = [*IB_REACTORS, *OTHER_REACTORS]
        for case in kind.makeTestCaseClasses().values():
            case.__module__ = __name__
            found[case.__name__] = case
    return found


globals().update(_make())


class ReactorTests(ReactorBuilder):
    """
    C{ib} has the calls as methods.
    """

    def test_interface(self) -> None:
        """
        It provides what it says.
        """
        verifyClass(IReactorRDMA, IBReactor)

    def test_methods(self) -> None:
        """
        The methods are the calls.
        """
        reactor = self.buildReactor()
        clients = Clients(Talker())
        made: list[Any] = []

        def build() -> Talker:
            protocol = Talker()
            made.append(protocol)
            protocol.made.addCallback(lambda ignored: protocol.transport.write(b"hello"))
            return protocol

        factory = Factory.forProtocol(build)  # type: ignore[arg-type]
        port = reactor.listenRDMA(0, factory, interface="127.0.0.1", device="lo0", privateData=b"hi")
        number = port.getHost().port
        reactor.connectRDMA("127.0.0.1", number, clients, 5, None, "lo0", b"ho", 1000)
        clients.one.heard(1).addCallback(lambda ignored: reactor.stop())
        self.runReactor(reactor, timeout=HANG_SECONDS)
        self.assertEqual(clients.one.log[0], b"hello")
        self.assertEqual(made[0].log, ["ConnectionLost"])


class ArgumentTests(ReactorBuilder):
    """
    Invalid arguments raise before anything is opened.
    """

    def test_arguments(self) -> None:
        """
        Ports, private data and sizes are looked at first.
        """
        reactor = self.buildReactor()
        factory: Any = Factory()
        wrong: Any
        for wrong in (
            {"port": -1},
            {"port": 65536},
            {"privateData": b"x" * 197},
            {"maxMessageSize": 0},
            {"maxMessageSize": limits.RDMA_MESSAGE_MOST + 1},
            {"maxMessageSize": 1.5},
            {"interface": None},
            {"interface": 5},
        ):
            self.assertRaises(ValueError, listenRDMA, reactor, **{"port": 0, "factory": factory, **wrong})
        for wrong in (
            {"port": 0},
            {"privateData": b"x" * 57},
            {"maxMessageSize": -1},
            {"bindAddress": ("a", -1)},
            {"host": None},
            {"host": 5},
            {"timeout": -1},
            {"timeout": "5"},
            {"timeout": float("inf")},
            {"timeout": float("nan")},
        ):
            arguments = {"host": "127.0.0.1", "port": 5, "factory": factory, **wrong}
            self.assertRaises(ValueError, connectRDMA, reactor, **arguments)
        self.assertRaises(TypeError, listenRDMA, reactor, 0, factory, privateData="text")
        self.assertEqual(channelsOf(reactor), [])


for _kind in (ReactorTests, ArgumentTests):
    _kind._reactors = IB_REACTORS
    globals().update(_kind.makeTestCaseClasses())
    del globals()[_kind.__name__]


class _Creator(EndpointCreator):
    """
    Endpoints on one device, or on two, with messages long enough for any write of Twisted's tests.
    """

    def __init__(self, device: str, host: str, client: str) -> None:
        """
        @param device: Its name.
        @param host: An address that it has.
        @param client: The name of the client's device.
        """
        self.device, self.host, self.clientDevice = device, host, client

    def server(self, reactor: Any) -> RDMAServerEndpoint:
        """
        Any free port.
        """
        return RDMAServerEndpoint(
            reactor, 0, interface=self.host, device=self.device, maxMessageSize=limits.RDMA_MESSAGE_MOST
        )

    def client(self, reactor: Any, serverAddress: Any) -> RDMAClientEndpoint:
        """
        To that port.
        """
        return RDMAClientEndpoint(
            reactor,
            self.host,
            serverAddress.port,
            timeout=HANG_SECONDS,
            device=self.clientDevice,
            maxMessageSize=limits.RDMA_MESSAGE_MOST,
        )


def _subject(device: str, host: str, skips: dict[str, str], client: str) -> StreamSubject:
    """
    Describe messages on one device, or from another one to that, as if they were a stream.
    """
    return StreamSubject(
        name=f"RDMA{client.capitalize()}{device.capitalize()}",
        endpoints=_Creator(device, host, client or device),
        listen=lambda reactor, factory: listenRDMA(
            reactor, 0, factory, interface=host, device=device, maxMessageSize=limits.RDMA_MESSAGE_MOST
        ),
        connect=lambda reactor, address, factory: connectRDMA(
            reactor,
            host,
            address.port if address else 9,
            factory,
            device=client or device,
            maxMessageSize=limits.RDMA_MESSAGE_MOST,
        ),
        startMessage=lambda port, prefix: f"{prefix} starting on {port.getHost().port}",
        stopMessage=lambda port: f"(RDMA Port {port.getHost().port} Closed)",
        requiredInterfaces=(IReactorFDSet, IReactorTime),
        skips=_SKIPS | skips,
    )


#: What is not there: half-close, C{startTLS}, TCP's options.
_SKIPS = {
    "test_closePeerOnEMFILE": "counts the descriptors that accept() uses; messages use none",
    "test_halfCloseByClient": "messages have no half-close",
    "test_transportInterface": "a message transport is no ITCPTransport",
}
#: What adapters have not, besides.
OF_ADAPTERS = {
    **dict.fromkeys(
        ("test_serverAbortsConnectionTwice", "test_serverAbortsConnectionThenLosesConnection"),
        "librdmacm's end does not say why",
    ),
    **dict.fromkeys(
        ("test_fullWriteBuffer", "test_fullWriteBufferAfterByteExchange"),
        "a message of an adapter has at most 64 KiB",
    ),
}


def streamTests(
    device: str,
    reactors: list[str],
    module: str,
    host: str = RDMATestsMixin.address,
    skips: dict[str, str] | None = None,
    client: str = "",
) -> dict[str, type]:
    """
    @param host: An address that the device has.
    @param skips: What it has not: tests' names and reasons.
    @param client: The name of the client's device, where that is another.

    @return: Twisted's own tests of streams, but for C{startTLS}, by name.
    """
    made = makeStreamTests(_subject(device, host, skips or {}, client), reactors, module)
    return {name: case for name, case in made.items() if "StartTLS" not in name and "TLSProducer" not in name}


for _device in ("shm0", "lo0"):
    globals().update(streamTests(_device, [*IB_REACTORS, *OTHER_REACTORS[:1]], __name__))
