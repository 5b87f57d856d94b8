"""
Ports and connectors of devices that have an address: which device, which addresses, which errors.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from twisted.internet import error, reactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from tests.hca.addressed import onWire
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.registry import addDevice
from twisted_ib.internet import readers
from twisted_ib.internet.readers import channelsOf

HERE, THERE = "127.0.0.1", "127.0.0.2"


class Talker(Protocol):
    """
    Collects what comes, and how it ended.
    """

    transport: Any

    def __init__(self, servers: Servers | None = None) -> None:
        """
        Nothing came.
        """
        self._servers = servers
        self.data = b""
        self.lost: Deferred[object] = Deferred()
        self.wanted: tuple[int, Deferred[None]] = (-1, Deferred())

    def connectionMade(self) -> None:
        if self._servers is not None:
            self._servers.connected(self)

    def dataReceived(self, data: bytes) -> None:
        """
        Collect.
        """
        self.data += data
        if len(self.data) == self.wanted[0]:
            self.wanted[1].callback(None)

    def heard(self, count: int) -> Deferred[None]:
        """
        @return: fires when so many bytes have come.
        """
        self.wanted = (count, Deferred())
        self.dataReceived(b"")
        return self.wanted[1]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        It is over.
        """
        self.lost.callback(reason.value)


class Servers(Factory):
    """
    Keeps what it makes.
    """

    noisy = False

    def __init__(self) -> None:
        """
        Nobody came.
        """
        self.made: list[Talker] = []
        self._next: Deferred[Talker] | None = None

    def buildProtocol(self, addr: Any) -> Talker:
        """
        Somebody comes.
        """
        return Talker(self)

    def connected(self, talker: Talker) -> None:
        """
        Somebody is connected.
        """
        waiting, self._next = self._next, None
        if waiting is None:
            self.made.append(talker)
        else:
            waiting.callback(talker)

    def came(self) -> Deferred[Talker]:
        """
        @return: fires with the next one.
        """
        if self.made:
            return succeed(self.made.pop(0))
        self._next = Deferred()
        return self._next


class AddressedTests(TestCase):
    """
    Both ends in one reactor, on a wire.
    """

    timeout = HANG_SECONDS

    def setUp(self) -> None:
        """
        No devices are open.
        """
        self.mtus: dict[str, int] = {}
        self.wire = onWire(self, self.mtus)  # type: ignore[arg-type]
        self.factory = Servers()
        self.patch(readers, "CHANNELS", "_addressedChannels")
        self.addCleanup(self.closeAll)

    def closeAll(self) -> None:
        """
        Close the devices.
        """
        for channel in channelsOf(reactor):
            channel.close()
        vars(reactor).pop("_addressedChannels", None)

    def addresses(self) -> list[str | None]:
        """
        @return: where devices are open.
        """
        return [channel.device.address for channel in channelsOf(reactor)]

    async def listen(self, text: str) -> Any:
        """
        @return: a port, which is closed after the test.
        """
        port: Any = await serverFromString(reactor, text).listen(self.factory)
        self.addCleanup(port.stopListening)
        return port

    async def connect(self, text: str) -> Any:
        """
        @return: a protocol, which is closed after the test.
        """
        found: Any = await clientFromString(reactor, text).connect(Factory.forProtocol(Talker))
        self.addCleanup(lambda: found.transport.abortConnection())
        return found

    async def fails(self, text: str, kind: type[Exception]) -> str:
        """
        @return: what an attempt fails with.
        """
        try:
            await self.connect(text)
        except kind as failed:
            return str(failed)
        self.fail("it is connected")

    async def test_bound(self) -> None:
        """
        Each end has the address that it binds; a second one there shares the device.
        """
        port = await self.listen(f"sdp:0:interface={HERE}:device=roce0")
        number = port.getHost().port
        for _ in range(2):
            client = await self.connect(f"sdp:{HERE}:{number}:bindAddress={THERE}:device=roce0")
            transport = client.transport
            self.assertEqual(transport.getHost().host, THERE)
            self.assertEqual(transport.getPeer(), IPv4Address("TCP", HERE, number))
            transport.write(b"to there" * 1000)
            server = await self.factory.came()
            await server.heard(8000)
            self.assertEqual(server.transport.getPeer(), transport.getHost())
            server.transport.write(b"and back")
            await client.heard(8)
        self.assertEqual(self.addresses(), [HERE, THERE])

    async def test_given(self) -> None:
        """
        A device with a given address needs no other, and has no other.
        """
        addDevice("net0", "roce", HERE)
        addDevice("net1", "roce", THERE)
        port = await self.listen("sdp:0:device=net0")
        number = port.getHost().port
        self.assertEqual(port.getHost().host, HERE)
        await self.connect(f"sdp:{HERE}:{number}:device=net1")
        self.assertEqual(self.addresses(), [HERE, THERE])
        with self.assertRaises(error.CannotListenError) as caught:
            await self.listen(f"sdp:0:interface={THERE}:device=net0")
        self.assertIn(f"device net0 has the address {HERE}, not {THERE}", str(caught.exception))
        text = await self.fails(f"sdp:{HERE}:{number}:bindAddress={HERE}:device=net1", error.ConnectBindError)
        self.assertIn(f"{HERE} cannot be the local address", text)
        text = await self.fails(r"sdp:\:\:1:1:device=net1", error.ConnectBindError)
        self.assertIn(f"{THERE} cannot be the local address", text)

    async def test_kernelsAddress(self) -> None:
        """
        Without a given or bound address a client has the one that the kernel would connect from, also for
        a name; a server has none.
        """
        await self.listen(f"sdp:7000:interface={THERE}:device=roce0")
        client = await self.connect(f"sdp:{THERE}:7000:device=roce0")
        self.assertEqual(client.transport.getHost().host, HERE)
        await self.listen(f"ib:7000:interface={HERE}:device=roce0")
        with mock.patch("twisted_ib.internet.connector.resolve", lambda *_: succeed([HERE])):
            other = await self.connect("ib:localhost:7000:device=roce0")
        self.assertEqual(other.transport.getHost().host, HERE)
        self.assertEqual(self.addresses(), [THERE, HERE])
        with self.assertRaises(error.CannotListenError) as caught:
            await self.listen("sdp:0:device=roce0")
        self.assertIn("device roce0 has no address: bind one", str(caught.exception))

    async def test_forged(self) -> None:
        """
        A REQ whose Hello has another source address than its packets is rejected.
        """
        for scheme in ("sdp", "ib"):
            port = await self.listen(f"{scheme}:0:interface={HERE}:device=roce0")
            connect = f"{scheme}:{HERE}:{port.getHost().port}:bindAddress={THERE}:device=roce0"
            with mock.patch.object(Device, "localAddressFor", lambda *_: "127.0.0.3"):
                text = await self.fails(connect, error.ConnectionRefusedError)
            self.assertIn("consumer defined", text)
            await self.connect(connect)
            server = await self.factory.came()
            self.assertEqual((server.transport.getPeer().host, self.factory.made), (THERE, []))

    async def test_packets(self) -> None:
        """
        An active side proposes the packets that fit on its way; a passive side with smaller ones refuses.
        """
        self.mtus.update({HERE: 2048, THERE: 4096, "127.0.0.3": 256})
        for scheme in ("sdp", "ib"):
            port = await self.listen(f"{scheme}:0:interface={HERE}:device=roce0")
            connect = f"{scheme}:{HERE}:{port.getHost().port}:device=roce0:bindAddress="
            text = await self.fails(connect + THERE, error.ConnectionRefusedError)
            self.assertIn("invalid mtu (26)", text)
            client = await self.connect(connect + "127.0.0.3")
            client.transport.write(b"x" * 10000)
            server = await self.factory.came()
            await server.heard(10000)
