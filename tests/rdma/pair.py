"""
Two HCAs of one thread with reactors that turn when the test says so, and the two ends of a
connection of messages between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import ClientFactory
from zope.interface import implementer

from tests.sdp import pair
from tests.sdp.pair import LOCALHOST, End, Ends, Plain
from twisted_ib import limits
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.queues.completion import CompletionQueue, WorkCompletion
from twisted_ib.hca.queues.receives import SGE, ReceiveRequest
from twisted_ib.hca.queues.requests import SendOpcode, SendRequest
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.interfaces import IRDMAProtocol
from twisted_ib.internet.addressing.addresses import addressOf
from twisted_ib.rdma import handshake
from twisted_ib.rdma.transport import RDMATransport

#: All rights on memory.
EVERYTHING = int(Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE | Access.REMOTE_ATOMIC)


class Told(ClientFactory):
    """
    Passes on why attempts failed and connections were lost.
    """

    noisy = False

    def __init__(self, failed: Callable[[Any], object], lost: Callable[[Any], object]) -> None:
        """
        @param failed: Called with the reason of a failure.
        @param lost: Called with the reason of a loss.
        """
        self._failed, self._lost = failed, lost

    def clientConnectionFailed(self, connector: Any, reason: Any) -> None:
        self._failed(reason.value)

    def clientConnectionLost(self, connector: Any, reason: Any) -> None:
        self._lost(reason.value)


@implementer(IRDMAProtocol)
class Recorder(Plain):
    """
    Takes messages as they are.

    @ivar views: They.
    @ivar immediates: What came with them.
    """

    transport: Any

    def __init__(self) -> None:
        super().__init__()
        self.views: list[memoryview] = []
        self.immediates: list[int | None] = []

    def messageReceived(self, view: memoryview) -> None:
        self.views.append(view)
        self.immediates.append(self.transport.immediate)
        self.dataReceived(bytes(view))

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        self.log.append((immediate, length))


class Owner:
    """
    The owner of a transport.
    """

    maxMessageSize = limits.RDMA_MESSAGE
    privateData = b""


class Kept(RDMATransport):
    """
    A transport that no port and no connector made.

    @ivar heard: Its protocol, also when it has none any more.
    """

    __slots__ = ("heard", "owner")

    heard: Any


class Raw:
    """
    A peer with verbs: what it receives and when is the test's to say.

    @ivar completions: What became of its requests.
    @ivar memory: A region with all rights.
    @ivar log: What the CM and the queue pair said.
    """

    #: Too small for several messages in a SEND, which programs of verbs do not know.
    maxMessageSize = 0

    def __init__(self, device: Any, receives: int = 100) -> None:
        """
        @param receives: How many it posts.
        """
        self.device = device
        self.privateData = b""
        self.peerPrivateData = b""
        self.queuePair = device.createQueuePair(self)
        self.pd = device.memory.allocateDomain()
        self.queue = CompletionQueue(1000)
        self.work = WorkQueues(self.queuePair, self.pd, self.queue, self.queue, device.timers)
        self.memory = device.memory.register(bytearray(1 << 18), EVERYTHING, self.pd)
        self.connection: Any = None
        self.receives = receives
        self.log: list[str] = []

    def posted(self) -> None:
        """
        It is connected: post the receives.
        """
        for _ in range(self.receives):
            self.work.postReceive(ReceiveRequest(7, (self.piece(0, 1 << 17),)))

    def piece(self, offset: int, length: int) -> SGE:
        """
        Name a part of its memory.
        """
        return SGE(self.memory.address + offset, length, self.memory.key)

    def send(self, length: int, opcode: SendOpcode = SendOpcode.SEND, **fields: Any) -> None:
        """
        Post a send request.
        """
        self.work.postSend(SendRequest(1, opcode, (self.piece(0, length),), **fields))

    def polled(self) -> list[WorkCompletion]:
        """
        @return: What is done.
        """
        return self.queue.poll(1000)

    def resume(self) -> None:
        """
        There is room.
        """

    def failed(self, reason: Exception) -> None:
        self.log.append(str(reason))

    def forked(self) -> None:
        """
        Not here.
        """

    def peerDisconnected(self, connection: Any) -> None:
        self.log.append(f"DREQ {connection.disconnectData.rstrip(bytes(1))!r}")

    def disconnect(self) -> None:
        """
        Send a DREQ, as C{rdma_disconnect} does: without a word.
        """
        self.device.disconnect(self.connection)


class Asker:
    """
    The active side's user until the REP comes.
    """

    def __init__(self, messages: Any, device: Any, port: int) -> None:
        """
        @param messages: The connection to set up.
        """
        self.messages, self.device, self.port = messages, device, port
        self.reply: ConnectReply | None = None

    def pathReady(self, path: Any) -> None:
        here, there = addressOf(LOCALHOST, 40000), addressOf(LOCALHOST, self.port)
        request = handshake.request(self.messages, here, there)
        self.device.sendRequest(path, request, self, self.device.clock())

    def replied(self, connection: Any, reply: ConnectReply) -> None:
        """
        Join.
        """
        self.reply = reply
        handshake.replied(self.messages, connection, reply)
        connection.ready(self.device.clock())


class Listener:
    """
    The passive side.
    """

    messages: Any = None
    request: ConnectRequest | None = None

    def __init__(self, device: Any) -> None:
        """
        @param device: Whose.
        """
        self.device = device

    def connectionRequested(self, connection: Any, request: ConnectRequest) -> None:
        """
        Accept for C{messages}.
        """
        self.request = request
        header = handshake.requested(request)
        reply = handshake.reply(self.messages, request, header)
        handshake.accepted(self.messages, connection, request, header)
        assert connection.accept(reply, self.device.clock())


class Pair(Ends):
    """
    Two ends and connections between them.
    """

    def __init__(self, polled: bool = False, end: Callable[[bool, int], End] = End) -> None:
        """
        @param polled: Whether their reactors look at devices by themselves.
        @param end: Makes an end.
        """
        super().__init__(polled, end)
        self.listener = Listener(self.b.device)
        self.port = self.b.device.listen(handshake.PORT_SPACE, LOCALHOST, 0, self.listener).port

    def transport(self, end: End, protocol: Any = None, **options: Any) -> Any:
        """
        @param options: C{maxMessageSize}, C{privateData}.
        @return: A transport that is not connected yet.
        """
        owner = Owner()
        for name, value in options.items():
            setattr(owner, name, value)
        transport = Kept.__new__(Kept)
        transport.owner = owner
        transport.__init__(  # type: ignore[misc]
            end.channel, addressOf(LOCALHOST, 1), addressOf(LOCALHOST, 2)
        )
        transport.protocol = transport.heard = Recorder() if protocol is None else protocol
        end.channel.acquire(transport)
        return transport

    def join(self, active: Any, passive: Any) -> None:
        """
        Connect two of them through the CM.
        """
        self.listener.messages = passive
        a = self.a.device
        a.connect(handshake.PORT_SPACE, LOCALHOST, self.port, Asker(active, a, self.port))
        self.settle()
        assert active.queuePair.path is not None and passive.queuePair.path is not None

    def raw(self, receives: int = 100, **options: Any) -> tuple[Raw, Any]:
        """
        @return: A peer at C{a} that does what the test wants, and a transport at C{b}.
        """
        raw = Raw(self.a.device, receives)
        transport = self.transport(self.b, **options)
        self.join(raw, transport)
        raw.posted()
        self.attach(transport)
        self.settle()
        return raw, transport

    def wait(self, seconds: float = 0.002) -> None:
        """
        Let time pass, for what is repeated, and turn until nothing moves.
        """
        self.advance(seconds)
        self.settle()


class PairTestCase(pair.PairTestCase):
    """
    Base of tests with a L{Pair}.
    """

    pairClass = Pair
