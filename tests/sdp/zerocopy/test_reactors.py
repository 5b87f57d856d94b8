"""
Zero copy, places and urgent data on real reactors, and on each fabric of one host.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorFDSet, IReactorTime
from twisted.internet.protocol import Factory
from twisted.internet.test.reactormixins import ReactorBuilder

from tests.internet.test_stream_suite import IB_REACTORS, SOME_REACTORS
from tests.sdp.pair import Recorder
from tests.sdp.zerocopy.test_extensions import Hearing, Places
from tests.support.waiting import Driven
from twisted_ib.sdp.port import SDPClientEndpoint, SDPServerEndpoint

SIZE = 3_000_000
BYTES = bytes(i * 17 & 255 for i in range(SIZE))


class Waiting:
    """
    Tells when so many bytes have come, and of the end.
    """

    wanted = SIZE

    def __init__(self) -> None:
        """
        Nothing has come.
        """
        super().__init__()
        self.made: Deferred[Any] = Deferred()
        self.full: Deferred[Any] = Deferred()
        self.lost: Deferred[Any] = Deferred()

    def connectionMade(self) -> None:
        self.made.callback(self)

    def dataReceived(self, data: bytes) -> None:
        """
        Remember, and tell.
        """
        super().dataReceived(data)  # type: ignore[misc]
        if len(self.data) >= self.wanted and not self.full.called:  # type: ignore[attr-defined]
            self.full.callback(self)

    def connectionLost(self, *reason: Any) -> None:
        super().connectionLost(*reason)  # type: ignore[misc]
        self.lost.callback(self)


class WaitingRecorder(Waiting, Recorder):
    """
    Reads by C{dataReceived}.
    """


class WaitingHearing(Waiting, Hearing):
    """
    Takes urgent data.
    """


class WaitingPlaces(Waiting, Places):
    """
    Has places.
    """

    size = 100_000


class RegisteredTestsMixin(Driven):
    """
    Tests for every reactor and device.

    @cvar device: Its name.
    """

    requiredInterfaces = (IReactorFDSet, IReactorTime)
    device: str

    async def pair(self, reactor: Any, client: Any, server: Any) -> Any:
        """
        Connect two protocols.

        @return: The port.
        """
        factory = Factory.forProtocol(lambda: server)  # type: ignore[arg-type]
        factory.noisy = False
        end = SDPServerEndpoint(reactor, 0, interface="127.0.0.1", device=self.device)
        port: Any = await end.listen(factory)
        other = Factory.forProtocol(lambda: client)  # type: ignore[arg-type]
        other.noisy = False
        await SDPClientEndpoint(reactor, "127.0.0.1", port.getHost().port, device=self.device).connect(other)
        await server.made
        return port

    async def end(self, port: Any, first: Any, second: Any) -> None:
        """
        Close in order.
        """
        first.transport.loseConnection()
        await gatherResults([first.lost, second.lost])
        await port.stopListening()

    def test_file(self) -> None:
        """
        A server sends a file from an mmap and closes; all of it arrives, and then the end.
        """

        async def steps(reactor: Any) -> None:
            client, server = WaitingRecorder(), WaitingRecorder()
            port = await self.pair(reactor, client, server)
            with tempfile.TemporaryFile() as file:
                file.write(BYTES)
                file.flush()
                pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                region = server.transport.registerMemory(pages)
                sent = server.transport.writeRegistered(region)
                server.transport.loseConnection()
                await gatherResults([sent, client.lost, server.lost])
            self.assertTrue(client.data == BYTES)  # type: ignore[attr-defined]
            self.assertEqual(client.calls, ["ConnectionDone"])  # type: ignore[attr-defined]
            await port.stopListening()

        self.drive(steps)

    def test_places(self) -> None:
        """
        Both ends have places and send registered memory, several times.
        """

        async def steps(reactor: Any) -> None:
            client, server = WaitingPlaces(), WaitingPlaces()
            client.wanted = server.wanted = 3 * SIZE
            port = await self.pair(reactor, client, server)
            done = []
            for protocol in (client, server):
                region = protocol.transport.registerMemory(SIZE)
                region.view[:] = BYTES
                done += [protocol.transport.writeRegistered(region) for _ in range(3)]
            await gatherResults([*done, client.full, server.full])
            for protocol in (client, server):
                self.assertTrue(protocol.data == BYTES * 3)  # type: ignore[attr-defined]
            await self.end(port, client, server)

        self.drive(steps)

    def test_urgent(self) -> None:
        """
        An urgent byte comes out of the stream.
        """

        async def steps(reactor: Any) -> None:
            client, server = WaitingRecorder(), WaitingHearing()
            server.wanted = 5
            port = await self.pair(reactor, client, server)
            client.transport.write(b"abc")
            client.transport.sendUrgent(b"!")
            client.transport.write(b"de")
            await server.full
            self.assertEqual((server.data, server.urgent), (b"abcde", b"!"))  # type: ignore[attr-defined]
            await self.end(port, server, client)

        self.drive(steps)


def made(module: str, device: str, reactors: list[str]) -> dict[str, type]:
    """
    @param module: Whose they are.
    @return: The test cases on some reactors, by name.
    """
    members = {"device": device, "_reactors": reactors, "__module__": module}
    kind: Any = type(f"{device.capitalize()}Registered", (ReactorBuilder, RegisteredTestsMixin), members)
    found: dict[str, type] = kind.makeTestCaseClasses()
    return found


for _device in "shm0", "lo0":
    globals().update(made(__name__, _device, [*IB_REACTORS, *SOME_REACTORS]))
