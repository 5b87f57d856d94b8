"""
A stand-in for sockets of RDS: datagrams in memory, reliable and in order.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import CannotListenError

from twisted_ib.errors import ResourceLimitError


class FakeSockets:
    """
    All sockets there are, by (host, port).

    @ivar sockets: Them.
    @ivar budget: How many datagrams one socket has on the way; then it pauses its producer.
    @ivar most: How many it has at all; then C{write} raises.
    @ivar lost: Decides whether a datagram is lost: C{lost(sender, to, data)}.
    """

    def __init__(self, reactor: Any, budget: int = 1 << 30, most: int = 1 << 30) -> None:
        """
        There are none.
        """
        self.reactor = reactor
        self.sockets: dict[tuple[str, int], FakeSocket] = {}
        self.budget = budget
        self.most = most
        self.lost: Any = lambda sender, to, data: False
        self.next = 40000

    def listenRDS(
        self,
        reactor: Any,
        port: int,
        protocol: Any,
        interface: str = "",
        maxPacketSize: int = 1 << 20,
        device: str | None = None,
    ) -> FakeSocket:
        """
        Open a socket, of one address: C{""} is 127.0.0.1.
        """
        host = interface or "127.0.0.1"
        if not port:
            self.next += 1
            port = self.next
        if (host, port) in self.sockets:
            raise CannotListenError(interface, port, OSError(98, "Address already in use"))
        return FakeSocket(self, (host, port), protocol)


class FakeSocket:
    """
    One socket.
    """

    def __init__(self, sockets: FakeSockets, address: tuple[str, int], protocol: Any) -> None:
        """
        Bind.
        """
        self.all = sockets
        self.address = address
        self.protocol = protocol
        self.producer: Any = None
        self.paused = False
        self.queue: deque[tuple[tuple[str, int], bytes]] = deque()
        self.call: Any = None
        sockets.sockets[address] = self
        protocol.makeConnection(self)

    def getHost(self) -> IPv4Address:
        """
        @return: The address.
        """
        return IPv4Address("UDP", *self.address)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        Register a producer to pause.
        """
        self.producer = producer

    def write(self, data: bytes, address: tuple[str, int]) -> None:
        """
        Send a datagram.
        """
        assert type(data) is bytes
        if len(self.queue) >= self.all.most:
            self.paused = True
            raise ResourceLimitError("as much waits as may")
        self.queue.append((address, data))
        if len(self.queue) >= self.all.budget and not self.paused:
            self.paused = True
            self.producer.pauseProducing()
        self.want()

    def want(self) -> None:
        """
        Deliver soon.
        """
        if self.call is None and self.queue:
            self.call = self.all.reactor.callLater(0, self.deliver)

    def deliver(self) -> None:
        """
        Deliver one datagram.
        """
        self.call = None
        to, data = self.queue.popleft()
        self.want()
        receiver = self.all.sockets.get(to)
        if receiver is not None and not self.all.lost(self.address, to, data):
            receiver.protocol.datagramReceived(data, self.address)
        if self.paused and not self.queue:
            self.paused = False
            self.producer.resumeProducing()

    def stopListening(self) -> Deferred[None]:
        """
        Close, when everything has left.
        """
        if self.all.sockets.pop(self.address, None) is None:
            return succeed(None)
        while self.queue:
            if self.call is not None:
                self.call.cancel()
            self.deliver()
        self.protocol.doStop()
        return succeed(None)

    def vanish(self) -> None:
        """
        The process is gone: nothing is sent or told any more.
        """
        del self.all.sockets[self.address]
        self.queue.clear()
        if self.call is not None:
            self.call.cancel()
            self.call = None
