"""
Connections of bytes that switch to RDMA, on real reactors: over SDP, also where the program asked for TCP,
and over TCP itself.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import error
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import (
    IReactorFDSet,
    IReactorTime,
    IReactorUNIX,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import Factory
from twisted.internet.test.reactormixins import ReactorBuilder
from zope.interface import alsoProvides, noLongerProvides
from zope.interface.verify import verifyObject

from tests.internet.test_stream_suite import IB_REACTORS, OTHER_REACTORS
from tests.rdma.pair import EVERYTHING, Told
from tests.rdma.test_reactors import Talker
from tests.sdp.test_contract_addressed import OnWire
from tests.support.descriptors import descriptorsBefore
from tests.support.waiting import Driven, becomes, runToEnd
from twisted_ib.errors import (
    NotSwitchableError,
    SwitchError,
    SwitchTimeoutError,
    TransportSwitchedError,
)
from twisted_ib.interfaces import IRDMATransport, ISDPTransport
from twisted_ib.internet.readers import channelsOf
from twisted_ib.rdma import switchToRDMA
from twisted_ib.reactor import direct

#: More bytes than any buffer holds.
_WRITTEN = 3_000_000


class SwitchingTestsMixin(Driven):
    """
    Tests for every reactor, and what carries the bytes.

    @cvar server: The server's endpoint string; C{client} the client's, with the port to be filled in.
    @cvar interface: That of its transports.
    """

    requiredInterfaces = (IReactorFDSet, IReactorTime)
    server: str
    client: str
    interface: Any = ISDPTransport

    async def listen(self, reactor: Any, factory: Any) -> Any:
        """
        @return: The server's port.
        """
        return await serverFromString(reactor, self.server).listen(factory)

    async def pair(self, reactor: Any) -> tuple[Any, Talker, Talker]:
        """
        @return: A port, a client and a server, connected; each has heard from the other.
        """
        made: list[Talker] = []

        def build() -> Talker:
            made.append(Talker())
            return made[-1]

        factory = Factory.forProtocol(build)  # type: ignore[arg-type]
        factory.noisy = False
        port: Any = await self.listen(reactor, factory)
        text = self.client.format(port.getHost().port)
        client: Any = await clientFromString(reactor, text).connect(factory)
        await becomes(reactor, lambda: len(made) == 2 and all(each.made.called for each in made))
        server = made[1] if client is made[0] else made[0]
        this: Any = self
        this.assertTrue(self.interface.providedBy(client.transport))
        client.transport.write(b"switch?")
        await server.heard(1)
        server.transport.write(b"yes")
        await client.heard(1)
        del client.log[:], server.log[:]
        return port, client, server

    async def close(self, port: Any, client: Talker, server: Talker) -> None:
        """
        Close in order, from the client's end.
        """
        client.transport.loseConnection()
        await server.lost
        await client.lost
        await port.stopListening()

    def assertOver(self, client: Talker, server: Talker, reason: str = "ConnectionLost") -> None:
        """
        Each was told once that the connection was lost, and nothing else.
        """
        this: Any = self
        this.assertEqual((client.log, server.log), ([reason], [reason]))

    async def nothingLeft(self, reactor: Any) -> None:
        """
        Wait until devices have no objects, attempts or private services any more.
        """

        def nothing() -> bool:
            return not any(
                channel.attempts
                or channel.device.inUse()["qp"]
                or channel.device.inUse()["pd"]
                # IBTA vol. 1 annex A3: what an operating system assigns.
                or any(service >> 56 == 0x02 for service in channel.device.services._listeners)
                for channel in channelsOf(reactor)
            )

        await becomes(reactor, nothing)

    def test_switch(self) -> None:
        """
        Both ends call it: messages, READ and WRITE, the addresses of before, private data, and one end.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            old, ends = client.transport, (client.transport.getHost(), client.transport.getPeer())
            one, other = await gatherResults(
                [
                    switchToRDMA(client.transport, privateData=b"from the client\0\0"),
                    switchToRDMA(server.transport, privateData=b"from the server\0"),
                ]
            )
            verifyObject(IRDMATransport, one)
            this.assertEqual((client.transport, server.transport), (one, other))
            this.assertEqual((one.getHost(), one.getPeer()), ends)
            this.assertEqual((other.getPeer(), other.getHost()), ends)
            this.assertEqual((old.getHost(), old.getPeer()), ends)
            # MPA carries its length; the messages of InfiniBand have a room, which zeros fill.
            isTCP = this.interface is ITCPTransport
            for end, data, room in ((one, b"from the server\0", 196), (other, b"from the client\0\0", 56)):
                this.assertEqual(end.peerPrivateData, data if isTCP else data.ljust(room, b"\0"))
            for number in range(100):
                one.write(b"%d" % number)
                other.write(b"%d" % -number)
            await server.heard(100)
            await client.heard(100)
            this.assertEqual(server.log, [b"%d" % number for number in range(100)])
            this.assertEqual(client.log, [b"%d" % -number for number in range(100)])
            with other.registerMemory(1 << 20, EVERYTHING) as region:
                await one.rdmaWrite(bytes(range(256)) * 4096, region.address, region.remoteKey)
                this.assertEqual(bytes(region.view), bytes(range(256)) * 4096)
                back = await one.rdmaRead(1 << 20, region.address, region.remoteKey)
                this.assertEqual(back, bytes(range(256)) * 4096)
            del client.log[:], server.log[:]
            await self.close(port, client, server)
            self.assertOver(client, server, "ConnectionDone")
            await self.nothingLeft(reactor)

        self.drive(steps)

    def test_completion(self) -> None:
        """
        A Deferred fires when the peer has the message, also where a request completes when it was sent.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            one, other = await gatherResults([switchToRDMA(client.transport), switchToRDMA(server.transport)])
            other.pauseProducing()
            region = other.registerMemory(8, EVERYTHING)
            sent = one.send(b"a message")
            written = one.rdmaWrite(b"written!", region.address, region.remoteKey)
            later: Deferred[None] = Deferred()
            reactor.callLater(0.02, later.callback, None)
            await later
            this.assertEqual((sent.called, written.called), (False, False))
            other.resumeProducing()
            await sent
            this.assertEqual(server.log, [b"a message"])
            await written
            this.assertEqual(bytes(region.view), b"written!")
            await self.close(port, client, server)
            await self.nothingLeft(reactor)

        self.drive(steps)

    def test_written(self) -> None:
        """
        What was written before arrives before; what comes with its end belongs to the switch.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            switched: Deferred[Any] = Deferred()

            def heard(data: bytes) -> None:
                if sum(map(len, server.log)) >= _WRITTEN:
                    server.hook = None
                    leftover = b"".join(server.log)[_WRITTEN:]
                    del server.log[:]
                    switchToRDMA(server.transport, leftover=leftover).chainDeferred(switched)

            server.hook = heard
            client.transport.write(bytes(_WRITTEN))
            _, other = await gatherResults([switchToRDMA(client.transport), switched])
            other.write(b"a message")
            await client.heard(1)
            this.assertEqual(client.log.pop(), b"a message")
            await self.close(port, client, server)

        self.drive(steps)

    def test_former(self) -> None:
        """
        The former transport refuses by name from the call on, and closes the successor.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            old = client.transport
            switched = switchToRDMA(old)
            for call, arguments in (
                (old.write, (b"lost",)),
                (old.writeSequence, ([b"lost"],)),
                (old.registerProducer, (object(), True)),
                (old.startTLS, (object(),)),
                (old.loseWriteConnection, ()),
            ):
                this.assertRaises(TransportSwitchedError, call, *arguments)
            this.assertRaises(NotSwitchableError, switchToRDMA, old)
            old.pauseProducing()
            old.resumeProducing()
            await gatherResults([switched, switchToRDMA(server.transport)])
            this.assertRaises(TransportSwitchedError, old.write, b"lost")
            this.assertRaises(NotSwitchableError, switchToRDMA, client.transport)
            old.loseConnection()
            await gatherResults([client.lost, server.lost])
            self.assertOver(client, server, "ConnectionDone")
            old.abortConnection()
            await port.stopListening()

        self.drive(steps)

    def test_initiator(self) -> None:
        """
        The end that listened may be the initiator.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            one, other = await gatherResults(
                [switchToRDMA(client.transport, False), switchToRDMA(server.transport, True)]
            )
            one.write(b"to the server")
            other.write(b"to the client")
            await gatherResults([client.heard(1), server.heard(1)])
            await self.close(port, client, server)

        self.drive(steps)

    def test_late(self) -> None:
        """
        The passive end may call later than the active one, if it reads no more.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            server.transport.pauseProducing()
            switched = switchToRDMA(client.transport)
            later: Deferred[None] = Deferred()
            reactor.callLater(0.05, later.callback, None)
            await later
            await gatherResults([switched, switchToRDMA(server.transport)])
            await self.close(port, client, server)

        self.drive(steps)

    def test_paused(self) -> None:
        """
        A paused transport can switch.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            server.transport.pauseProducing()
            one, _ = await gatherResults([switchToRDMA(client.transport), switchToRDMA(server.transport)])
            one.write(b"heard")
            await server.heard(1)
            await self.close(port, client, server)

        self.drive(steps)

    def test_timeout(self) -> None:
        """
        A peer that does not switch is waited for as long as the timeout says: at both ends the connection is
        lost, and nothing is left.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            for active in (True, False):
                port, client, server = await self.pair(reactor)
                one = client if active else server
                with this.assertRaises(SwitchTimeoutError) as caught:
                    await switchToRDMA(one.transport, timeout=0.05)
                this.assertIn("within 0.05 s", str(caught.exception))
                await gatherResults([client.lost, server.lost])
                this.assertEqual(one.log, ["ConnectionLost"])
                await port.stopListening()
                await self.nothingLeft(reactor)

        self.drive(steps)

    def test_peerCloses(self) -> None:
        """
        A peer that closes, or aborts, in place of switching: the switch fails at once.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            for how in ("loseConnection", "abortConnection"):
                for active in (True, False):
                    port, client, server = await self.pair(reactor)
                    one, other = (client, server) if active else (server, client)
                    switched = switchToRDMA(one.transport)
                    getattr(other.transport, how)()
                    with this.assertRaises(SwitchError) as caught:
                        await switched
                    this.assertNotIsInstance(caught.exception, SwitchTimeoutError)
                    await gatherResults([client.lost, server.lost])
                    await port.stopListening()
            await self.nothingLeft(reactor)

        self.drive(steps)

    def test_cancelled(self) -> None:
        """
        To cancel the Deferred, or to close the former transport, which does not switch again, aborts the
        connection.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            for how in ("cancel", "loseConnection"):
                port, client, server = await self.pair(reactor)
                old, switched = client.transport, switchToRDMA(client.transport)
                with this.assertRaises(SwitchError) as caught:
                    await switchToRDMA(old)
                this.assertIn("it has switched, or is about to", str(caught.exception))
                if how == "cancel":
                    switched.cancel()
                else:
                    old.loseConnection()
                with this.assertRaises((CancelledError, SwitchError)):
                    await switched
                await gatherResults([client.lost, server.lost])
                this.assertEqual(client.log, ["ConnectionAborted"])
                await port.stopListening()
            await self.nothingLeft(reactor)

        self.drive(steps)

    def test_bytesGoOn(self) -> None:
        """
        A peer that goes on with its bytes: the switch fails at both ends.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            server.transport.write(b"bytes that are no part of MPA")
            with this.assertRaises(SwitchError):
                await switchToRDMA(client.transport)
            await gatherResults([client.lost, server.lost])
            this.assertEqual(client.log, ["ConnectionLost"])
            await port.stopListening()

        self.drive(steps)

    def test_refused(self) -> None:
        """
        Connections that cannot switch, and arguments that are wrong: refused at the call, and nothing has
        happened.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            transport = client.transport
            for error_, arguments in (
                (TypeError, {"leftover": "text"}),
                (TypeError, {"privateData": "text"}),
                (ValueError, {"privateData": bytes(1000)}),
                (ValueError, {"timeout": 0}),
                (ValueError, {"maxMessageSize": 0}),
            ):
                this.assertRaises(error_, switchToRDMA, transport, **arguments)

            def refused(reason: str) -> None:
                this.assertRaisesRegex(NotSwitchableError, reason, switchToRDMA, transport)

            transport.registerProducer(object(), True)
            refused("it has a producer")
            transport.unregisterProducer()
            transport.write(b"still bytes")
            await server.heard(1)
            this.assertEqual(server.log.pop(), b"still bytes")
            if self.interface is ISDPTransport:
                # Its peer goes on with bytes of SDP, and not with MPA's.
                this.assertRaises(NotSwitchableError, switchToRDMA, transport, leftover=b"bytes")
            transport.loseWriteConnection()
            refused("half-closed")
            transport.loseConnection()
            refused("or closes")
            await gatherResults([client.lost, server.lost])
            refused("not connected")
            this.assertRaises(NotSwitchableError, switchToRDMA, object())
            await port.stopListening()

        self.drive(steps)

    def test_encrypted(self) -> None:
        """
        TLS is refused, below a protocol of TLS too.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            transport = client.transport
            alsoProvides(client, ISSLTransport)
            if transport.protocol is client:
                this.assertRaises(NotSwitchableError, switchToRDMA, transport)
            noLongerProvides(client, ISSLTransport)
            alsoProvides(transport, ISSLTransport)
            with this.assertRaises(NotSwitchableError) as caught:
                switchToRDMA(transport)
            this.assertIn("TLS", str(caught.exception))
            noLongerProvides(transport, ISSLTransport)
            await self.close(port, client, server)

        self.drive(steps)

    def test_descriptors(self) -> None:
        """
        Connections that have switched, and those that have failed to, leave no descriptor, timer or reader.
        """
        this: Any = self

        async def once(reactor: Any) -> tuple[int, ...]:
            port, client, server = await self.pair(reactor)
            await gatherResults([switchToRDMA(client.transport), switchToRDMA(server.transport)])
            await self.close(port, client, server)
            port, client, server = await self.pair(reactor)
            with this.assertRaises(SwitchTimeoutError):
                await switchToRDMA(server.transport, timeout=0.01)
            await gatherResults([client.lost, server.lost])
            await port.stopListening()
            await self.nothingLeft(reactor)
            channels = channelsOf(reactor)
            await becomes(reactor, lambda: not any(channel.users for channel in channels))
            streams = [getattr(channel.device.fabric, "streams", ()) for channel in channels]
            await becomes(reactor, lambda: not any(streams))
            return descriptorsBefore(), len(reactor.getReaders()), len(reactor.getWriters())

        async def steps(reactor: Any) -> None:
            first = await once(reactor)
            this.assertEqual(await once(reactor), first)

        self.drive(steps)

    def test_connector(self) -> None:
        """
        The connector has the successor, and its factory is told of the end once, of the successor.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            lost: list[Any] = []
            old = client.transport
            connector = old.connector
            connector.factory = Told(lost.append, lost.append)
            connector.factory.numPorts = 1
            one, _ = await gatherResults([switchToRDMA(old), switchToRDMA(server.transport)])
            this.assertIs(connector.transport, one)
            this.assertEqual((connector.state, lost), ("connected", []))
            connector.disconnect()
            await gatherResults([client.lost, server.lost])
            this.assertEqual([type(each) for each in lost], [error.ConnectionDone])
            this.assertEqual(connector.state, "disconnected")
            await port.stopListening()

        self.drive(steps)


class SDPShmTests(SwitchingTestsMixin, ReactorBuilder):
    """
    Over SDP, between the users of one device.
    """

    server = "sdp:0:interface=127.0.0.1:device=shm0"
    client = "sdp:127.0.0.1:{}:timeout=10:device=shm0"
    _reactors = IB_REACTORS + OTHER_REACTORS[:1]


class RedirectedTests(SwitchingTestsMixin, ReactorBuilder):
    """
    Over SDP, where the program asked for TCP.
    """

    server = "tcp:0:interface=127.0.0.1"
    client = "tcp:127.0.0.1:{}:timeout=10"
    _reactors = IB_REACTORS


class SDPRoCETests(OnWire, SwitchingTestsMixin, ReactorBuilder):
    """
    Over SDP, between hosts.
    """

    server = "sdp:0:interface=127.0.0.1:device=roce0"
    client = "sdp:127.0.0.1:{}:timeout=10:device=roce0"
    _reactors = IB_REACTORS


class LocalTests(ReactorBuilder):
    """
    UNIX sockets.
    """

    requiredInterfaces = (IReactorUNIX,)
    _reactors = OTHER_REACTORS[:1]

    def test_refused(self) -> None:
        """
        They are no connections that can switch, and say so.
        """
        reactor: Any = self.buildReactor()
        path = self.mktemp()[-80:].replace("/", "-")

        async def steps() -> None:
            factory = Factory.forProtocol(Talker)
            factory.noisy = False
            port: Any = await serverFromString(reactor, f"unix:{path}").listen(factory)
            client: Any = await clientFromString(reactor, f"unix:{path}").connect(factory)
            with self.assertRaises(NotSwitchableError) as caught:
                switchToRDMA(client.transport)
            self.assertIn("UNIX", str(caught.exception))
            client.transport.loseConnection()
            await client.lost
            await port.stopListening()

        runToEnd(self, reactor, steps)


class TCPTests(SwitchingTestsMixin, ReactorBuilder):
    """
    Over TCP, on reactors that know nothing of RDMA.
    """

    server = "tcp:0:interface=127.0.0.1"
    client = "tcp:127.0.0.1:{}:timeout=10"
    interface = ITCPTransport
    _reactors = OTHER_REACTORS


class TCPOnIBTests(SwitchingTestsMixin, ReactorBuilder):
    """
    Over TCP on the C{ib} reactor, where a rule keeps the switch from taking SDP.
    """

    server = "tcp:0:interface=127.0.0.1"
    client = "tcp:127.0.0.1:{}:timeout=10"
    interface = ITCPTransport
    _reactors = IB_REACTORS

    async def listen(self, reactor: Any, factory: Any) -> Any:
        return direct(reactor).listenTCP(0, factory, interface="127.0.0.1")


for _case in (LocalTests, SDPShmTests, RedirectedTests, SDPRoCETests, TCPTests, TCPOnIBTests):
    globals().update(_case.makeTestCaseClasses())
del LocalTests, SDPShmTests, RedirectedTests, SDPRoCETests, TCPTests, TCPOnIBTests, _case
