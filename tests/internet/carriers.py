"""
Streams by the classic calls, over TCP and over SDP, so that one test can be made on both.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from twisted.internet import interfaces
from twisted.internet.defer import Deferred
from twisted.internet.protocol import ClientFactory, Factory, Protocol, connectionDone
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.support.waiting import becomes, runToEnd
from twisted_ib.internet.readers import channelsOf
from twisted_ib.sdp.port import SDPClientEndpoint, SDPServerEndpoint, connectSDP, listenSDP

if TYPE_CHECKING:
    Base = ReactorBuilder
else:
    Base = object  # Mixins: trial runs what is made of them.


class TCP:
    """
    The reactor's own calls.

    @ivar host: The servers' address.
    @ivar clientHost: The clients'.
    """

    name = "TCP"
    host = clientHost = "127.0.0.1"

    def listen(self, reactor: Any, factory: Any, port: int = 0, **options: Any) -> Any:
        """
        @return: A port, on C{host} if nothing else is said.
        """
        return reactor.listenTCP(port, factory, **{"interface": self.host, **options})

    def connect(self, reactor: Any, host: str, port: int, factory: Any, **options: Any) -> Any:
        """
        @return: A connector.
        """
        return reactor.connectTCP(host, port, factory, **options)

    def server(self, reactor: Any) -> Any:
        """
        @return: An endpoint on any port of C{127.0.0.1}.
        """
        from twisted.internet.endpoints import TCP4ServerEndpoint

        return TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1")

    def client(self, reactor: Any, port: int, **options: Any) -> Any:
        """
        @return: An endpoint to it.
        """
        from twisted.internet.endpoints import TCP4ClientEndpoint

        return TCP4ClientEndpoint(reactor, "127.0.0.1", port, **options)


class SDP:
    """
    SDP's calls on one device, or between two.
    """

    def __init__(
        self, device: str, host: str = "127.0.0.1", clientDevice: str = "", clientHost: str = ""
    ) -> None:
        """
        @param device: Its name.
        @param host: Its address.
        @param clientDevice: The clients', where that is another.
        @param clientHost: The address of that.
        """
        self.device, self.host = device, host
        self.clientDevice, self.clientHost = clientDevice or device, clientHost or host
        self.name = f"SDP{device.capitalize()}"

    def listen(self, reactor: Any, factory: Any, port: int = 0, **options: Any) -> Any:
        options = {"interface": self.host, **options}
        return listenSDP(reactor, port, factory, device=self.device, **options)

    def connect(self, reactor: Any, host: str, port: int, factory: Any, **options: Any) -> Any:
        return connectSDP(reactor, host, port, factory, device=self.clientDevice, **options)

    def server(self, reactor: Any) -> Any:
        return SDPServerEndpoint(reactor, 0, interface=self.host, device=self.device)

    def client(self, reactor: Any, port: int, **options: Any) -> Any:
        return SDPClientEndpoint(reactor, self.host, port, device=self.clientDevice, **options)


class Talk(Protocol):
    """
    Records its calls.

    @ivar log: C{"made"}, bytes, names of the half-close calls, and at the end the name of the reason.
        Bytes that follow each other are one entry.
    @ivar why: The text of that.
    @ivar on: By name of a call, what to do in it.
    @ivar host: The address of this end.
    @ivar peer: The address of the other end.
    """

    transport: Any

    def __init__(self, **on: Callable[[Any], object]) -> None:
        """
        @param on: See the attribute.
        """
        self.log: list[Any] = []
        self.why = ""
        self.on = on

    def _act(self, name: str) -> None:
        """
        Do what is to be done.
        """
        call = self.on.get(name)
        if call is not None:
            call(self)

    def connectionMade(self) -> None:
        self.host, self.peer = self.transport.getHost(), self.transport.getPeer()
        self.log.append("made")
        self._act("made")

    def dataReceived(self, data: bytes) -> None:
        """
        Take it.
        """
        # To add to bytes copies all that has come.
        if isinstance(self.log[-1], bytearray):
            self.log[-1] += data
        else:
            self.log.append(bytearray(data))
        self._act("data")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        The end.
        """
        self.log.append(reason.type.__name__)  # type: ignore[union-attr]
        self.why = str(reason.value)
        self._act("lost")

    def ended(self) -> bool:
        """
        @return: Whether that has been.
        """
        return bool(self.log) and self.log[-1] in _ENDS

    def got(self) -> bytes:
        """
        @return: All data.
        """
        return b"".join(entry for entry in self.log if isinstance(entry, bytearray))


_ENDS = ("ConnectionDone", "ConnectionLost", "ConnectionAborted", "ZeroDivisionError")


@implementer(interfaces.IHalfCloseableProtocol)
class HalfTalk(Talk):
    """
    Takes half-closes, too.
    """

    def readConnectionLost(self) -> None:
        """
        The peer says no more.
        """
        self.log.append("readConnectionLost")
        self._act("read")

    def writeConnectionLost(self) -> None:
        """
        Nothing more can be said.
        """
        self.log.append("writeConnectionLost")
        self._act("written")


class Accepting(Factory):
    """
    Returns the protocols of a list, then new ones.

    @ivar made: The protocols it has made.
    """

    noisy = False

    def __init__(self, *protocols: Any) -> None:
        """
        @param protocols: The list.
        """
        self.protocols = list(protocols)
        self.made: list[Any] = []
        self.peers: list[Any] = []
        self.stopped = 0

    def buildProtocol(self, addr: Any) -> Any:
        """
        Give one.
        """
        protocol = self.protocols.pop(0) if self.protocols else Talk()
        self.made.append(protocol)
        self.peers.append(addr)
        return protocol

    def stopFactory(self) -> None:
        """
        No port has it any more.
        """
        self.stopped += 1


class Calling(ClientFactory):
    """
    Gives one protocol.

    @ivar log: C{"started"}, C{"failed: NAME"}, C{"lost: NAME"}.
    """

    noisy = False

    def __init__(self, protocol: Any = None) -> None:
        """
        @param protocol: That one; a new one if there is none.
        """
        self.one = Talk() if protocol is None else protocol
        self.log: list[str] = []
        self.reasons: list[Any] = []

    def buildProtocol(self, addr: Any) -> Any:
        """
        Give it.
        """
        return self.one

    def startedConnecting(self, connector: Any) -> None:
        self.log.append("started")

    def clientConnectionFailed(self, connector: Any, reason: Any) -> None:
        self.log.append(f"failed: {reason.type.__name__}")
        self.reasons.append(reason.value)

    def hasFailed(self) -> bool:
        """
        @return: Whether there is no connection.
        """
        return self.log[-1:] != [] and self.log[-1].startswith("failed")

    def clientConnectionLost(self, connector: Any, reason: Any) -> None:
        self.log.append(f"lost: {reason.type.__name__}")
        self.reasons.append(reason.value)


class StreamContract(Base):
    """
    The base of the contracts of streams.

    @cvar carrier: L{TCP} or L{SDP}.
    """

    requiredInterfaces = (interfaces.IReactorFDSet, interfaces.IReactorTime, interfaces.IReactorTCP)
    carrier: Any = None

    def drive(self, steps: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """
        Run a coroutine on a reactor; at its end the reactor must have nothing that was not there before.
        """
        reactor: Any = self.buildReactor()
        left: list[Any] = []

        async def whole() -> None:
            await self.soon(reactor)
            before = [*reactor.getReaders(), *reactor.getDelayedCalls()]
            await steps(reactor)
            for _ in range(500):  # A kernel may be slower than a device.
                await self.soon(reactor, 0.002)
                left[:] = [one for one in _all(reactor) if one not in before]
                if not left:
                    break

        runToEnd(self, reactor, whole)
        self.assertEqual(left, [])
        for channel in channelsOf(reactor):
            self.assertEqual(list(channel.users), [])
            self.assertEqual(channel.localPorts.ends, {})

    @staticmethod
    def soon(reactor: Any, seconds: float = 0.0) -> Deferred[None]:
        """
        @return: Fires in the next turn, or after so many seconds.
        """
        done: Deferred[None] = Deferred()
        reactor.callLater(seconds, done.callback, None)
        return done

    async def pair(self, reactor: Any, server: Any = None, client: Any = None) -> tuple[Any, Any, Any]:
        """
        @return: A port, and a client and a server that are connected.

        @raise Exception: Why they are not.
        """
        server = Talk() if server is None else server
        client = Talk() if client is None else client
        port = self.carrier.listen(reactor, Accepting(server))
        calling = Calling(client)
        self.carrier.connect(reactor, self.carrier.host, port.getHost().port, calling)
        await becomes(reactor, lambda: calling.hasFailed() or (client.log and server.log))
        if calling.hasFailed():
            raise calling.reasons[-1]
        return port, client, server

    async def end(self, reactor: Any, port: Any, *protocols: Any) -> None:
        """
        Wait until the protocols have ended, and close the port.
        """
        await becomes(reactor, lambda: all(protocol.ended() for protocol in protocols))
        await port.stopListening()


def _all(reactor: Any) -> list[Any]:
    """
    @return: The reactor's readers, writers and delayed calls.
    """
    return [*reactor.getReaders(), *reactor.getWriters(), *reactor.getDelayedCalls()]
