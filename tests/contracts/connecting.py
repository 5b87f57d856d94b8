"""
How streams come to be, or do not: ports, attempts, names and addresses.
"""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet import error
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.base import BlockingResolver
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IHostnameResolver, IResolverSimple
from twisted.internet.test.connectionmixins import findFreePort
from twisted.trial.unittest import SkipTest
from zope.interface import implementer

from tests.internet.carriers import Accepting, Calling, StreamContract, Talk
from tests.support.waiting import becomes


def linkLocal() -> str:
    """
    @return: A link-local address of this host, with its scope.
    @raise SkipTest: There is none.
    """
    try:
        with open("/proc/net/if_inet6") as file:
            for line in file:
                digits, _, _, scope, _, name = line.split()
                if scope == "20":
                    return f"{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))}%{name}"
    except OSError:
        pass
    raise SkipTest("this host has no link-local address")


@implementer(IHostnameResolver)
class Names:
    """
    A resolver that knows one name.
    """

    def __init__(self, *addresses: Any) -> None:
        """
        @param addresses: Its.
        """
        self.addresses = addresses
        self.name = "of the resolution"
        self.asked: list[str] = []

    def resolveHostName(self, receiver: Any, name: str, *rest: Any, **more: Any) -> Any:
        self.asked.append(name)
        receiver.resolutionBegan(self)
        for address in self.addresses if name == "a-name.example" else ():
            receiver.addressResolved(address)
        receiver.resolutionComplete()


class ConnectingContract(StreamContract):
    """
    Attempts.
    """

    def test_refused(self) -> None:
        """
        Where nobody listens the attempt fails, in a later turn.
        """

        async def steps(reactor: Any) -> None:
            number = findFreePort()[1]
            clients = Calling()
            connector = self.carrier.connect(reactor, self.carrier.host, number, clients)
            self.assertEqual((clients.log, connector.state), (["started"], "connecting"))
            await becomes(reactor, lambda: len(clients.log) > 1)
            self.assertEqual(clients.log, ["started", "failed: ConnectionRefusedError"])
            self.assertEqual(connector.state, "disconnected")
            self.assertEqual(clients.one.log, [])

        self.drive(steps)

    def test_stopConnecting(self) -> None:
        """
        An attempt that is stopped fails at once; a second stop is an error.
        """

        async def steps(reactor: Any) -> None:
            port = self.carrier.listen(reactor, Accepting())
            for turns in range(3):
                clients = Calling()
                connector = self.carrier.connect(reactor, self.carrier.host, port.getHost().port, clients)
                for _ in range(turns):
                    await self.soon(reactor)
                    if connector.state == "connected":
                        break
                else:
                    connector.stopConnecting()
                    self.assertEqual(clients.log, ["started", "failed: UserError"])
                    self.assertRaises(error.NotConnectingError, connector.stopConnecting)
                    continue
                self.assertRaises(error.NotConnectingError, connector.stopConnecting)
                connector.disconnect()
                await becomes(reactor, clients.one.ended)
            await port.stopListening()

        self.drive(steps)

    def test_cancel(self) -> None:
        """
        An endpoint's attempt that is cancelled fails as such, whenever it is.
        """

        async def steps(reactor: Any) -> None:
            accepting = Accepting()
            port: Any = await self.carrier.server(reactor).listen(accepting)
            for turns in range(6):
                client = Talk()
                endpoint = self.carrier.client(reactor, port.getHost().port)
                done: Deferred[Any] = endpoint.connect(Accepting(client))
                for _ in range(turns):
                    await self.soon(reactor)
                if done.called:
                    client.transport.loseConnection()
                    await becomes(reactor, client.ended)
                    continue
                done.cancel()
                try:
                    await done
                except (error.ConnectingCancelledError, CancelledError) as reason:
                    self.assertIsInstance(reason, error.ConnectingCancelledError)
                    self.assertEqual(reason.address, port.getHost())
                self.assertEqual(client.log, [])
            await becomes(reactor, lambda: all(one.ended() for one in accepting.made))
            await port.stopListening()

        self.drive(steps)

    def crowd(
        self, reactor: Any, backlog: int, count: int, timeout: float
    ) -> tuple[Accepting, Any, list[Calling]]:
        """
        @return: What accepts, its port, which does not read, and some that call it at once.
        """
        accepting = Accepting()
        port = self.carrier.listen(reactor, accepting, backlog=backlog)
        port.stopReading()
        calling = [Calling() for _ in range(count)]
        for clients in calling:
            self.carrier.connect(reactor, self.carrier.host, port.getHost().port, clients, timeout=timeout)
        return accepting, port, calling

    def test_timeout(self) -> None:
        """
        A request that waits in a full backlog fails after the timeout.
        """

        async def steps(reactor: Any) -> None:
            accepting, port, calling = self.crowd(reactor, 1, 8, 0.1)
            await becomes(reactor, lambda: sum(len(clients.log) > 1 for clients in calling) >= 5)
            port.startReading()
            for clients in calling:
                await becomes(reactor, lambda: clients.one.log or len(clients.log) > 1)  # noqa: B023
                if clients.one.log:
                    clients.one.transport.loseConnection()
                else:
                    self.assertEqual(clients.log, ["started", "failed: TimeoutError"])
            await becomes(reactor, lambda: all(one.ended() for one in accepting.made))
            await port.stopListening()

        self.drive(steps)

    def test_backlog(self) -> None:
        """
        More than a backlog takes come when there is room again.
        """

        async def steps(reactor: Any) -> None:
            accepting, port, calling = self.crowd(reactor, 3, 6, 20)
            await self.soon(reactor, 0.1)
            self.assertEqual(accepting.made, [])
            port.startReading()
            await becomes(reactor, lambda: len(accepting.made) == 6)
            await becomes(reactor, lambda: all(clients.one.log for clients in calling))
            for clients in calling:
                clients.one.transport.loseConnection()
            await self.end(reactor, port, *accepting.made)

        self.drive(steps)

    def test_stopListeningMeanwhile(self) -> None:
        """
        A port that closes while many connect: each is refused, or connected and whole to its end.
        """

        async def steps(reactor: Any) -> None:
            for turns in range(4):
                accepting = Accepting()
                port = self.carrier.listen(reactor, accepting)
                calling = [Calling(Talk(made=lambda one: one.transport.write(b"x"))) for _ in range(20)]
                for clients in calling:
                    self.carrier.connect(reactor, self.carrier.host, port.getHost().port, clients)
                for _ in range(turns):
                    await self.soon(reactor)
                await port.stopListening()
                self.assertEqual(accepting.stopped, 1)
                await self.soon(reactor, 0.02)
                for one in accepting.made:
                    one.transport.loseConnection()
                for clients in calling:
                    await becomes(
                        reactor,
                        lambda: len(clients.log) > 1 and clients.log[-1] != "started",  # noqa: B023
                    )
                    self.assertTrue(clients.one.ended() or not clients.one.log)
                for one in accepting.made:
                    await becomes(reactor, one.ended)

        self.drive(steps)

    def test_reconnect(self) -> None:
        """
        A connector connects again, from within C{clientConnectionLost}.
        """

        async def steps(reactor: Any) -> None:
            accepting = Accepting()
            port = self.carrier.listen(reactor, accepting)
            clients: Any = Calling()
            count = []

            def again(connector: Any, reason: Any) -> None:
                count.append(reason.type)
                if len(count) < 3:
                    clients.one = Talk()
                    connector.connect()

            clients.clientConnectionLost = again
            self.carrier.connect(reactor, self.carrier.host, port.getHost().port, clients)
            for number in range(1, 4):
                await becomes(reactor, lambda: len(accepting.made) == number)  # noqa: B023
                await becomes(reactor, lambda: clients.one.log == ["made"])
                accepting.made[-1].transport.loseConnection()
                await becomes(reactor, lambda: len(count) == number)  # noqa: B023
            self.assertEqual(count, [error.ConnectionDone] * 3)
            await self.end(reactor, port, *accepting.made)

        self.drive(steps)

    def test_noProtocol(self) -> None:
        """
        A factory that makes no protocol wants no connection: it ends, on both sides.
        """

        async def steps(reactor: Any) -> None:
            class Refusing(Accepting):
                """
                Makes none.
                """

                def buildProtocol(self, addr: Any) -> Any:
                    """
                    None.
                    """
                    self.peers.append(addr)

            port = self.carrier.listen(reactor, Refusing())
            clients = Calling()
            self.carrier.connect(reactor, self.carrier.host, port.getHost().port, clients)
            await becomes(reactor, clients.one.ended)
            self.assertEqual(clients.one.log, ["made", "ConnectionDone"])
            await port.stopListening()
            port, clients = self.carrier.listen(reactor, Accepting(server := Talk())), Calling()
            clients.buildProtocol = lambda addr: None  # type: ignore[method-assign]
            self.carrier.connect(reactor, self.carrier.host, port.getHost().port, clients)
            await becomes(reactor, lambda: len(clients.log) > 1)
            self.assertEqual(clients.log, ["started", "lost: ConnectionDone"])
            await self.end(reactor, port, server)
            self.assertEqual(server.log, ["made", "ConnectionDone"])

        self.drive(steps)


class AddressContract(StreamContract):
    """
    Names, addresses and port numbers.
    """

    async def exchange(self, reactor: Any, port: Any, host: str, **options: Any) -> tuple[Any, Any]:
        """
        Connect, exchange a byte each way, close.

        @return: The client and the server.
        """
        accepting = port.factory
        client = Talk(data=lambda one: one.transport.loseConnection())
        clients = Calling(client)
        self.carrier.connect(reactor, host, port.getHost().port, clients, **options)
        await becomes(reactor, lambda: client.log or len(clients.log) > 1)
        self.assertEqual(clients.log, ["started"], clients.reasons)
        await becomes(reactor, lambda: accepting.made and accepting.made[-1].log)
        server = accepting.made[-1]
        server.transport.write(b"x")
        await becomes(reactor, lambda: client.ended() and server.ended())
        self.assertEqual(client.host.port, server.peer.port)
        self.assertEqual(accepting.peers[-1], server.peer)
        return client, server

    def test_portZero(self) -> None:
        """
        Port 0 is any that is free, and each is another; a number that is taken cannot be had.
        """

        async def steps(reactor: Any) -> None:
            ports = [self.carrier.listen(reactor, Accepting()) for _ in range(5)]
            numbers = {port.getHost().port for port in ports}
            self.assertEqual((len(numbers), 0 in numbers), (5, False))
            number = ports[0].getHost().port
            wrong = self.assertRaises(
                error.CannotListenError, self.carrier.listen, reactor, Accepting(), port=number
            )
            self.assertIn("Address already in use", str(wrong))
            for port in ports:
                await port.stopListening()
            port = self.carrier.listen(reactor, Accepting(), port=number)
            self.assertEqual(port.getHost(), IPv4Address("TCP", "127.0.0.1", number))
            await port.stopListening()

        self.drive(steps)

    def test_portAgain(self) -> None:
        """
        A port that was closed can be opened again.
        """

        async def steps(reactor: Any) -> None:
            accepting = Accepting()
            port = self.carrier.listen(reactor, accepting)
            text = repr(port)
            self.assertIn(f"on {port.getHost().port}>", text)
            await port.stopListening()
            self.assertIn("(not listening)>", repr(port))
            self.assertEqual(accepting.stopped, 1)
            port.startListening()
            await self.exchange(reactor, port, "127.0.0.1")
            await port.stopListening()
            self.assertEqual(accepting.stopped, 2)

        self.drive(steps)

    def test_localhost(self) -> None:
        """
        C{localhost} is this host.
        """

        async def steps(reactor: Any) -> None:
            port = self.carrier.listen(reactor, Accepting(), interface="")
            here, there = await self.exchange(reactor, port, "localhost")
            self.assertEqual(there.peer.host, "127.0.0.1")
            self.assertEqual(here.peer, IPv4Address("TCP", "127.0.0.1", port.getHost().port))
            self.assertEqual(port.getHost().host, "0.0.0.0")
            await port.stopListening()

        self.drive(steps)

    def test_resolver(self) -> None:
        """
        Names are looked up by the reactor's own resolver.
        """

        async def steps(reactor: Any) -> None:
            names = Names(IPv4Address("TCP", "127.0.0.1", 0))
            reactor.installNameResolver(names)
            port = self.carrier.listen(reactor, Accepting())
            here, _ = await self.exchange(reactor, port, "a-name.example")
            self.assertEqual((names.asked, here.peer.host), (["a-name.example"], "127.0.0.1"))
            clients = Calling()
            self.carrier.connect(reactor, "no-name.example", port.getHost().port, clients)
            await becomes(reactor, lambda: len(clients.log) > 1)
            self.assertEqual(clients.log, ["started", "failed: DNSLookupError"])
            await port.stopListening()

        self.drive(steps)

    def test_simpleResolver(self) -> None:
        """
        And by one that is installed in the old way.
        """

        @implementer(IResolverSimple)
        class Old(BlockingResolver):
            """
            Knows all names.
            """

            def getHostByName(self, name: str, timeout: Any = ()) -> Deferred[str]:
                """
                This host.
                """
                asked.append(name)
                return succeed("127.0.0.1")

        asked: list[str] = []

        async def steps(reactor: Any) -> None:
            reactor.installResolver(Old())
            port = self.carrier.listen(reactor, Accepting())
            await self.exchange(reactor, port, "any.example")
            self.assertEqual(asked, ["any.example"])
            await port.stopListening()

        self.drive(steps)

    def test_IPv6(self) -> None:
        """
        C{::1}, and a port of C{::} that IPv4 reaches, too.
        """

        async def steps(reactor: Any) -> None:
            port = self.carrier.listen(reactor, Accepting(), interface="::1")
            number = port.getHost().port
            self.assertEqual(port.getHost(), IPv6Address("TCP", "::1", number))
            here, there = await self.exchange(reactor, port, "::1")
            self.assertEqual(here.peer, IPv6Address("TCP", "::1", number))
            self.assertEqual(there.peer, IPv6Address("TCP", "::1", here.host.port))
            await port.stopListening()
            port = self.carrier.listen(reactor, Accepting(), interface="::")
            _, there = await self.exchange(reactor, port, "127.0.0.1")
            self.assertEqual(there.peer.host, "::ffff:127.0.0.1")
            await port.stopListening()

        self.drive(steps)

    def test_scope(self) -> None:
        """
        A link-local address with its scope.
        """
        address = linkLocal()

        async def steps(reactor: Any) -> None:
            port = self.carrier.listen(reactor, Accepting(), interface=address)
            host = port.getHost()
            self.assertEqual((host.host, host.scopeID != 0), (address, True))
            here, there = await self.exchange(reactor, port, address)
            for end in (here.host, here.peer, there.host, there.peer):
                self.assertEqual((end.host, end.scopeID), (address, host.scopeID))
            self.assertEqual(here.transport.addr, (address.partition("%")[0], host.port, 0, host.scopeID))
            await port.stopListening()

        self.drive(steps)

    def test_bound(self) -> None:
        """
        A client's address and number are what it binds.
        """

        async def steps(reactor: Any) -> None:
            port = self.carrier.listen(reactor, Accepting())
            number = findFreePort()[1]
            _, there = await self.exchange(reactor, port, "127.0.0.1", bindAddress=("127.0.0.1", number))
            self.assertEqual(there.peer, IPv4Address("TCP", "127.0.0.1", number))
            clients = Calling()
            self.carrier.connect(
                reactor, "127.0.0.1", port.getHost().port, clients, bindAddress=("192.0.2.1", 0)
            )
            await becomes(reactor, lambda: len(clients.log) > 1)
            self.assertEqual(clients.log, ["started", "failed: ConnectBindError"])
            await port.stopListening()

        self.drive(steps)
