"""
A device that does nothing by itself, so that tests of ports and connectors
decide what the fabric and the CM say, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from twisted.internet.interfaces import IReactorPluggableNameResolver
from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.hca.base.traits import LOCAL
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.device.receivebudget import ReceiveBudget
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.internet.addressing.addresses import addressOf
from twisted_ib.internet.addressing.localports import LocalPorts
from twisted_ib.internet.batchedcalls import batchedCallsOf
from twisted_ib.sdp.handshake import SDP_HANDSHAKE as handshake
from twisted_ib.sdp.protocol import wire


@implementer(IReactorPluggableNameResolver)
class FakeReactor(Clock):
    """
    A clock, and a resolver whose answers come when the test says so.

    @ivar receivers: The waiting receivers, by name.
    """

    def __init__(self) -> None:
        """
        Nothing is asked yet.
        """
        Clock.__init__(self)
        self.receivers: list[tuple[str, Any]] = []
        self.nameResolver = self

    def installNameResolver(self, resolver: Any) -> Any:
        """
        Not used.
        """

    def turn(self) -> None:
        """
        Run what is due now, but not what that adds.
        """
        for call in [call for call in self.calls if call.getTime() <= self.seconds()]:
            self.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)

    def resolveHostName(
        self, receiver: Any, hostName: str, portNumber: int = 0, addressTypes: Any = None
    ) -> None:
        """
        Remember who asks.
        """
        self.receivers.append((hostName, receiver))

    def answer(self, *hosts: str) -> None:
        """
        Give the first that waits its addresses.
        """
        _, receiver = self.receivers.pop(0)
        for host in hosts:
            receiver.addressResolved(addressOf(host, 0))
        receiver.resolutionComplete()


class FakeQueuePair(QueuePair):
    """
    A queue pair that opens and closes, and sends nothing.
    """

    def __init__(self, number: int) -> None:
        """
        @param number: Its number.
        """
        super().__init__(number, None)
        self.closed = False

    def connect(self, path: Any, remote: int, message: Any = None) -> None:
        """
        Remember the peer.
        """
        self.path, self.remote = path, remote

    def canPost(self) -> bool:
        """
        Nothing is in the way.
        """
        return True

    def postInline(self, header: bytes, payload: Any, length: int) -> None:
        """
        Messages go nowhere.
        """

    def close(self) -> None:
        self.closed = True
        self.path = None


class FakePath(str):
    """
    The way to a peer.
    """

    messageBytes = limits.INLINE_RECORD
    alive = True


class FakeConnection:
    """
    The CM's connection, as a log of what was done with it.

    @ivar done: Names of the calls.
    @ivar answer: What C{accept} gives.
    """

    def __init__(self, destination: object = FakePath("path"), user: Any = None) -> None:
        """
        @param destination: The path.
        @param user: The object to notify.
        """
        self.destination = destination
        self.localID = 7
        self.user = user
        self.done: list[str] = []
        self.reply: ConnectReply | None = None
        self.reason = 0
        self.answer = True

    def accept(self, reply: ConnectReply, now: float, isConfirmed: bool = True) -> bool:
        """
        Remember the REP.
        """
        self.done.append("accept")
        self.reply = reply
        return self.answer

    def reject(self, reason: int, privateData: bytes, now: float) -> bool:
        """
        Remember the reason.
        """
        self.done.append("reject")
        self.reason = reason
        return True

    def sendMRA(self, now: float) -> bool:
        self.done.append("sendMRA")
        return True

    def ignore(self, now: float) -> bool:
        self.done.append("ignore")
        return True

    def ready(self, now: float, privateData: bytes = b"", isConfirmed: bool = True) -> bool:
        self.done.append("ready")
        return True

    def abandon(self, now: float) -> bool:
        self.done.append("abandon")
        return True


class FakeService:
    """
    A port that is taken.
    """

    def __init__(self, device: FakeDevice, address: str, port: int, listener: Any) -> None:
        """
        @param listener: The receiver of requests.
        """
        self.device, self.address, self.port, self.listener = device, address, port, listener

    def close(self) -> None:
        """
        Give it back.
        """
        self.device.services.remove(self)


class FakeRoute:
    """
    A search for a path.
    """

    cancelled = False

    def __init__(self, address: str, port: int, user: Any) -> None:
        """
        @param user: The object to notify.
        """
        self.address, self.port, self.user = address, port, user

    def cancel(self) -> None:
        self.cancelled = True


class FakeDevice:
    """
    Remembers what is asked of it.

    @ivar error: What it raises, whatever is asked.
    @ivar paths: Addresses whose path is known at once.
    @ivar requests: REQs sent, with their connections.
    @cvar turns: How many batches there were.
    """

    turns = 0
    traits = LOCAL
    lossless = True
    address: str | None = None
    resolver: Any = None
    sharesAddresses = True
    closed = False

    def __init__(self, clock: Callable[[], float]) -> None:
        """
        Nothing is asked yet.

        @param clock: Its clock.
        """
        self.clock = clock
        self.services: list[FakeService] = []
        self.routes: list[FakeRoute] = []
        self.requests: list[tuple[ConnectRequest, FakeConnection]] = []
        self.queuePairs: list[FakeQueuePair] = []
        self.error: Exception | None = None
        self.requestError: Exception | None = None
        self.bindError: Exception | None = None
        self.paths: set[str] = set()
        self.dirty: list[Any] = []
        self.nextPort = 50000
        self.thread = get_ident()
        self.receiveBudget = ReceiveBudget(self.count)
        self.hold = self.receiveBudget.hold

    def settle(self, connection: Any) -> Any:
        """
        No queue pair stands for one.
        """
        return connection

    def resume(self, user: Any) -> Any:
        """
        So it is there still.
        """
        return user.connection

    def hostNamed(self, name: str) -> str:
        """
        It is at no subnet.
        """
        return ""

    def unknownHost(self, name: str) -> str:
        return ""

    def listen(self, portSpace: int, address: str, port: int, listener: Any) -> FakeService:
        """
        Take a port, or fail with C{error}.
        """
        if self.error is not None:
            raise self.error
        if not port:
            port, self.nextPort = self.nextPort, self.nextPort + 1
        service = FakeService(self, address, port, listener)
        self.services.append(service)
        return service

    def localAddressFor(self, address: str, bound: str) -> str:
        """
        The address itself, or fail with C{bindError}.
        """
        if self.bindError is not None:
            raise self.bindError
        return bound or address

    def listeningAddress(self, bound: str) -> str:
        """
        The address itself.
        """
        return bound

    def isLocal(self, address: str) -> bool:
        """
        Know some addresses that this host does not have; the wildcard is no host's.
        """
        return not address.startswith(("192.0.2.", "0.0.0.0"))

    def isPeers(self, path: Any, address: str) -> bool:
        """
        The same: peers are processes of this host.
        """
        return self.isLocal(address)

    def connect(self, portSpace: int, address: str, port: int, user: Any, seconds: float = 0.0) -> FakeRoute:
        """
        Look for a path.
        """
        if self.error is not None:
            raise self.error
        route = FakeRoute(address, port, user)
        self.routes.append(route)
        if address in self.paths:
            user.pathReady(FakePath(f"path to {address}"))
        return route

    def sendRequest(self, path: Any, request: ConnectRequest, user: Any, now: float) -> FakeConnection:
        if self.requestError is not None:
            raise self.requestError
        connection = FakeConnection(path, user)
        self.requests.append((request, connection))
        return connection

    def createStreamQueuePair(self, consumer: Any) -> FakeQueuePair:
        """
        Make one, or fail with C{error}.
        """
        if self.error is not None:
            raise self.error
        queuePair = FakeQueuePair(100 + len(self.queuePairs))
        self.queuePairs.append(queuePair)
        return queuePair

    def count(self, name: str) -> None:
        """
        Never mind.
        """

    def markDirty(self, owner: Any) -> None:
        self.dirty.append(owner)


class FakeChannel:
    """
    A device in a reactor.

    @ivar users: Its holders.
    @ivar counters: What was counted.
    @cvar polled: Whether the reactor looks at the device by itself.
    @cvar shown: There is no page on which C{ib-ss} finds connections.
    """

    polled = False
    shown = None

    def __init__(self, reactor: FakeReactor) -> None:
        """
        @param reactor: The reactor.
        """
        self.reactor = reactor
        self.localPorts = LocalPorts()
        self.batchedCalls = batchedCallsOf(reactor)
        self.device = FakeDevice(reactor.seconds)
        self.users: list[Any] = []
        self.shown = None
        self.counters: dict[str, int] = {}

    def acquire(self, user: Any) -> None:
        """
        Hold.
        """
        self.users.append(user)

    def release(self, user: Any) -> None:
        """
        Let go; more than once is an error.
        """
        self.users.remove(user)

    attempt, attempted = acquire, release

    def closed(self, stream: Any) -> None:
        """
        A stream has ended.
        """

    def closing(self, stream: Any) -> None:
        """
        A stream lives on without its user.
        """

    def endTurn(self) -> None:
        """
        A connection was aborted.
        """

    def count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1

    def now(self) -> float:
        """
        The reactor's time.
        """
        return self.reactor.seconds()


class _Greeter:
    """
    A stream as L{SDP_HANDSHAKE.request<twisted_ib.sdp.handshake.Handshake.request>} needs one.
    """

    queuePair = FakeQueuePair(77)


def requestFrom(peer: str, port: int, to: str = "127.0.0.1") -> ConnectRequest:
    """
    Make the REQ of a client.
    """
    greeter: Any = _Greeter()
    return handshake.request(greeter, addressOf(peer, port), addressOf(to, 5001))


def acceptance() -> ConnectReply:
    """
    Make the REP of a server.
    """
    hello = wire.HelloAck(buffers=24, actualReceiveBytes=4096)
    return ConnectReply(localQPN=78, privateData=hello.pack())


class RecordingProtocol(Protocol):
    """
    Remembers how it ended.
    """

    made = False
    reason: Failure | None = None

    def connectionMade(self) -> None:
        self.made = True

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self.reason = reason


class RaisingProtocol(RecordingProtocol):
    """
    Raises when it is connected.
    """

    def makeConnection(self, transport: Any) -> None:
        raise ZeroDivisionError


class RecordingFactory(Factory):
    """
    Makes protocols that it remembers, and remembers its starts and stops.

    @ivar made: The class of its protocols.
    @ivar log: What happened, in order.
    @ivar hook: Called before a protocol is made; it may raise.
    @ivar none: Give no protocol.
    """

    noisy = False
    none = False
    made: type[RecordingProtocol] = RecordingProtocol

    def __init__(self) -> None:
        """
        Nothing happened.
        """
        self.log: list[str] = []
        self.protocols: list[RecordingProtocol] = []
        self.addresses: list[Any] = []
        self.hook: Any = None

    def doStart(self) -> None:
        self.log.append("start")
        Factory.doStart(self)

    def doStop(self) -> None:
        self.log.append("stop")
        Factory.doStop(self)

    def buildProtocol(self, addr: Any) -> Any:
        self.addresses.append(addr)
        if self.hook is not None:
            self.hook()
        if self.none:
            return None
        self.log.append("build")
        protocol = self.made()
        protocol.factory = self
        self.protocols.append(protocol)
        return protocol


class RecordingClientFactory(RecordingFactory, ClientFactory):
    """
    The same for clients.

    @ivar failures: What C{clientConnectionFailed} got.
    @ivar losses: What C{clientConnectionLost} got.
    """

    def __init__(self) -> None:
        """
        Nothing happened.
        """
        RecordingFactory.__init__(self)
        self.failures: list[Failure] = []
        self.losses: list[Failure] = []

    def startedConnecting(self, connector: Any) -> None:
        self.log.append("connecting")

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        self.log.append("failed")
        self.failures.append(reason)

    def clientConnectionLost(self, connector: Any, reason: Failure) -> None:
        self.log.append("lost")
        self.losses.append(reason)
