"""
Two HCAs of one thread with reactors that turn when the test says so, and the
two ends of an SDP connection between them.
"""

from __future__ import annotations

import random
import select
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IReactorFDSet, IReactorTime
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
from twisted_ib.interfaces import IReactorCompletionChannels
from twisted_ib.internet.addressing.addresses import addressOf
from twisted_ib.internet.channel import DeviceChannel
from twisted_ib.sdp.handshake import SDP_HANDSHAKE as handshake
from twisted_ib.sdp.protocol.machine import Machine
from twisted_ib.sdp.protocol.wire import BSDH, MID
from twisted_ib.sdp.transport import SDPTransport

LOCALHOST = "127.0.0.1"


@implementer(IReactorFDSet, IReactorTime)
class HandReactor(Clock):
    """
    A reactor that looks at its descriptors once per L{turn}.

    @ivar readers: The readers.
    @ivar changes: How often that changed.
    @ivar triggers: What is to be called when it stops.
    """

    def __init__(self) -> None:
        """
        Nobody reads.
        """
        Clock.__init__(self)
        self.readers: list[Any] = []
        self.changes = 0
        self.triggers: list[Any] = []

    def addReader(self, reader: Any) -> None:
        """
        Look at one more.
        """
        self.changes += 1
        if reader not in self.readers:
            self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        """
        Look at it no more.
        """
        self.changes += 1
        if reader in self.readers:
            self.readers.remove(reader)

    def getReaders(self) -> list[Any]:
        """
        @return: The readers.
        """
        return list(self.readers)

    def addWriter(self, writer: Any) -> None:
        """
        Not used.
        """

    removeWriter = addWriter

    def getWriters(self) -> list[Any]:
        """
        @return: Nobody.
        """
        return []

    removeAll = getWriters

    def addSystemEventTrigger(self, phase: str, event: str, call: Any, *arguments: Any) -> None:
        """
        Remember what to do at the end.
        """
        self.triggers.append((phase, event, call, arguments))

    @staticmethod
    def _isReadable(reader: Any) -> bool:
        # Not select(2): other tests' garbage may have all numbers below 1,024.
        poller = select.poll()
        poller.register(reader.fileno(), select.POLLIN)
        return bool(poller.poll(0))

    def turn(self) -> int:
        """
        Make the calls that are due, and let those read who can.

        @return: How many read.
        """
        self.advance(0)
        n = 0
        for reader in list(self.readers):
            if reader in self.readers and self._isReadable(reader):
                reader.doRead()
                n += 1
        return n


@implementer(IReactorCompletionChannels)
class PollingReactor(HandReactor):
    """
    The same, looking at devices by itself.

    @ivar channels: Whose.
    """

    def __init__(self) -> None:
        """
        There are none.
        """
        HandReactor.__init__(self)
        self.channels: list[Any] = []

    def addChannel(self, channel: Any) -> None:
        """
        Look at one more.
        """
        self.changes += 1
        self.channels.append(channel)

    def removeChannel(self, channel: Any) -> None:
        """
        Look at it no more.
        """
        self.changes += 1
        self.channels.remove(channel)

    def turn(self) -> int:
        """
        Make the calls that are due, and serve every device once.
        """
        self.advance(0)
        n = 0
        for channel in list(self.channels):
            n += channel.device.progress()
            channel.schedule()
        return n


class Keeper:
    """
    Uses a channel for the whole of a test, as a port does.
    """

    lost: Failure | None = None

    def connectionLost(self, reason: Failure) -> None:
        self.lost = reason


class End:
    """
    One HCA in a reactor of its own, with a L{Keeper}.
    """

    def __init__(self, polled: bool, seed: int) -> None:
        """
        @param seed: Of its random numbers.
        """
        self.keeper = Keeper()
        self.reactor = PollingReactor() if polled else HandReactor()
        bits = random.Random(seed).getrandbits
        self.device = Device("test", self.reactor.seconds, LoopbackFabric, bits)
        self.channel = DeviceChannel(self.reactor, self.device)
        self.channel.acquire(self.keeper)
        self.turn = self.reactor.turn


class Ends:
    """
    Two ends, C{a} and C{b}.
    """

    def __init__(self, polled: bool, end: Callable[[bool, int], End] = End) -> None:
        """
        @param polled: Whether their reactors look at devices by themselves.
        @param end: Makes an end.
        """
        self.a, self.b = end(polled, 1), end(polled, 2)
        self.ends = (self.a, self.b)

    def connected(self: Any, first: Any = None, second: Any = None, **options: Any) -> tuple[Any, Any]:
        """
        @return: Two transports that are connected to each other; their protocols are
            L{Recorder}s unless given.
        """
        active = self.transport(self.a, first, **options)
        passive = self.transport(self.b, second, **options)
        self.join(active, passive)
        self.attach(active), self.attach(passive)
        self.settle()
        return active, passive

    def attach(self, transport: Any) -> Any:
        """
        Let a transport begin.
        """
        transport.connected = 1
        transport.startReading()
        transport.protocol.makeConnection(transport)
        return transport

    def settle(self, most: int = 5000) -> None:
        """
        Turn until nothing moves.
        """
        quiet = 0
        for _ in range(most):
            n = sum(end.turn() for end in self.ends if not end.device.closed)
            quiet = 0 if n else quiet + 1
            if quiet > 2:
                return
        raise AssertionError("the ends do not come to rest")

    def advance(self, seconds: float) -> None:
        """
        Let time pass at both ends.
        """
        for end in self.ends:
            end.reactor.advance(seconds)

    def close(self) -> None:
        """
        Give everything back.
        """
        for end in self.ends:
            end.channel.close()


class Plain(Protocol):
    """
    Remembers what C{dataReceived} is called with, and the end.

    @ivar log: What it heard: bytes, and names of the other calls.
    @ivar hook: Called with the bytes, or L{None}.
    """

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.hook: Any = None
        self.reason: Failure | None = None

    def dataReceived(self, data: bytes) -> None:
        self.log.append(data)
        if self.hook is not None:
            self.hook(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Remember, by the name of the error.
        """
        self.reason = reason
        self.log.append(reason.type.__name__ if reason.type else "?")


class Recorder(Plain):
    """
    Tells bytes from the other calls.
    """

    @property
    def data(self) -> bytes:
        """
        The bytes.
        """
        return b"".join(item for item in self.log if isinstance(item, bytes))

    @property
    def calls(self) -> list[str]:
        """
        The other calls.
        """
        return [item for item in self.log if not isinstance(item, bytes)]


class Raw:
    """
    A peer that sends what the test wants.

    @ivar messages: What arrived.
    @ivar log: What the CM and the queue pair said.
    @ivar machine: Numbers what is sent by L{send}.
    """

    def __init__(self, device: Device, receives: int = 1000) -> None:
        """
        @param receives: What it promises to take.
        """
        self.device = device
        self.queuePair = device.createQueuePair(self)
        self.queuePair.postReceives(receives)
        self.machine = Machine(receives)
        self.connection: Any = None
        self.messages: list[bytes] = []
        self.log: list[str] = []

    def received(self, buffer: Any, start: int, stop: int) -> None:
        self.messages.append(buffer[start:stop])
        self.machine.receive(buffer, start, stop)

    def resume(self) -> None:
        """
        There is room.
        """

    def failed(self, reason: Exception) -> None:
        self.log.append(type(reason).__name__)

    def forked(self) -> None:
        """
        Not here.
        """

    def peerDisconnected(self, connection: Any) -> None:
        self.log.append("DREQ")

    def send(self, mid: int, body: bytes = b"", **options: int) -> None:
        """
        Send a message with the right numbers, but for C{options}: C{flags},
        C{length}, C{sequence}, C{acknowledged}, C{buffers}.
        """
        machine = self.machine
        machine.sequence += 1
        get = options.get
        header = BSDH.pack(
            mid,
            get("flags", 0),
            get("buffers", self.queuePair.posted),
            get("length", 16 + len(body)),
            get("sequence", machine.sequence) & 0xFFFFFFFF,
            get("acknowledged", machine.received) & 0xFFFFFFFF,
        )
        self.queuePair.postInline(header, body, len(body))

    def data(self, body: bytes = b"", **options: int) -> None:
        """
        Send Data.
        """
        self.send(MID.DATA, body, **options)

    def disconnect(self) -> None:
        """
        Send a DREQ.
        """
        self.device.disconnect(self.connection)

    def kinds(self) -> list[str]:
        """
        @return: The ids of what arrived.
        """
        return [MID(message[0]).name for message in self.messages]

    @property
    def stream(self) -> bytes:
        """
        The stream bytes that arrived.
        """
        return b"".join(message[16:] for message in self.messages if message[0] == MID.DATA)


class _Asker:
    """
    The active side's user until the REP comes.
    """

    def __init__(self, stream: Any, device: Device, port: int) -> None:
        """
        @param stream: The stream to connect.
        """
        self.stream, self.device, self.port = stream, device, port

    def pathReady(self, path: Any) -> None:
        here, there = addressOf(LOCALHOST, 40000), addressOf(LOCALHOST, self.port)
        request = handshake.request(self.stream, here, there)
        self.device.sendRequest(path, request, self, self.device.clock())

    def replied(self, connection: Any, reply: Any) -> None:
        """
        Join.
        """
        handshake.replied(self.stream, connection, reply)
        connection.ready(self.device.clock())


class _Listener:
    """
    The passive side.
    """

    stream: Any = None

    def __init__(self, device: Device) -> None:
        """
        @param device: Whose.
        """
        self.device = device

    def connectionRequested(self, connection: Any, request: Any) -> None:
        """
        Accept for C{stream}, or what it makes.
        """
        if callable(self.stream):
            self.stream = self.stream()
        hello = handshake.requested(request)
        reply = handshake.reply(self.stream, request, hello)
        handshake.accepted(self.stream, connection, request, hello)
        assert connection.accept(reply, self.device.clock())


class Kept(SDPTransport):
    """
    A transport that is told apart from others by its protocol also when that
    is gone.

    @ivar heard: The protocol.
    """

    __slots__ = ("heard",)

    heard: Any


class Pair(Ends):
    """
    Two ends and connections between them.
    """

    def __init__(self, polled: bool = False) -> None:
        """
        @param polled: Whether their reactors look at devices by themselves.
        """
        super().__init__(polled)
        self.listener = _Listener(self.b.device)
        self.port = self.b.device.listen(PortSpace.SDP, LOCALHOST, 0, self.listener).port

    def transport(self, end: End, protocol: Any = None) -> Any:
        """
        @return: A transport that is not connected yet.
        """
        transport = Kept(end.channel, addressOf(LOCALHOST, 1), addressOf(LOCALHOST, 2))
        transport.protocol = transport.heard = Recorder() if protocol is None else protocol
        end.channel.acquire(transport)
        return transport

    def connected(self, first: Any = None, second: Any = None, **options: Any) -> tuple[Any, Any]:
        active = self.transport(self.a, first, **options)
        # Made when the REQ has come, as a port does: then queue pair and connection have one number.
        self.join(active, lambda: self.transport(self.b, second, **options))
        passive = self.listener.stream
        self.attach(active), self.attach(passive)
        self.settle()
        return active, passive

    def attach(self, transport: Any) -> Any:
        transport.connection = transport.channel.device.settle(transport.connection)
        return super().attach(transport)

    def join(self, active: Any, passive: Any) -> None:
        """
        Connect two of them through the CM.
        """
        self.listener.stream = passive
        a = self.a.device
        a.connect(PortSpace.SDP, LOCALHOST, self.port, _Asker(active, a, self.port))
        self.settle()
        assert active.queuePair.path is not None and self.listener.stream.queuePair.path is not None

    def raw(self, receives: int = 1000, protocol: Any = None) -> tuple[Raw, Any]:
        """
        @return: A peer at C{a} that does what the test wants, and a transport
            at C{b}.
        """
        raw = Raw(self.a.device, receives)
        transport = self.transport(self.b, protocol)
        self.join(raw, transport)
        self.attach(transport)
        self.settle()
        return raw, transport


class PairTestCase(SynchronousTestCase):
    """
    Base of tests with a L{Pair}.

    @cvar polled: Whether the reactors poll.
    @cvar pairClass: What is made.
    """

    polled = False
    pairClass: Any = Pair

    def setUp(self) -> None:
        super().setUp()
        self.pair = self.pairClass(self.polled)
        self.addCleanup(self.pair.close)
        self.settle = self.pair.settle
