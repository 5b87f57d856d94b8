"""
A child with sockets of RDS that all talk to all others, and with C{rds:} endpoints.
"""

from __future__ import annotations

import hashlib
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from tests.processes.rds.datagrams import Datagrams
from twisted_ib.internet.readers import channelsOf


class Echo(Protocol):
    """
    Sends back what comes.
    """

    def connectionMade(self) -> None:
        """
        Let the peer wait when it does not read.
        """
        transport: Any = self.transport
        transport.registerProducer(transport, True)

    def dataReceived(self, data: bytes) -> None:
        """
        Send it back.
        """
        assert self.transport is not None
        self.transport.write(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Nothing more is sent.
        """
        transport: Any = self.transport
        transport.unregisterProducer()


class Asker(Protocol):
    """
    Sends bytes and has a hash of what comes back.
    """

    def __init__(self, count: int) -> None:
        """
        @param count: Bytes.
        """
        self.left = count
        self.count = count
        self.sent, self.got = hashlib.sha256(), hashlib.sha256()
        self.done: Deferred[bool] = Deferred()
        self.lost: Deferred[str] = Deferred()

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """
        Send more.
        """
        transport: Any = self.transport
        size = min(self.left, 1 + self.left * 7919 % 100_000)
        data = (self.left % 251).to_bytes(1, "big") * size
        self.left -= size
        self.sent.update(data)
        transport.write(data)
        if not self.left:
            transport.unregisterProducer()

    def stopProducing(self) -> None:
        """
        Send nothing more.
        """

    def dataReceived(self, data: bytes) -> None:
        """
        Some came back.
        """
        self.got.update(data)
        self.count -= len(data)
        if not self.count:
            self.done.callback(self.sent.digest() == self.got.digest())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        It has ended.
        """
        self.lost.callback(reason.type.__name__)
        if not self.done.called:
            self.done.errback(reason)
            self.done.addErrback(lambda failure: None)


class Meshed(Datagrams):
    """
    The child's further commands.
    """

    asker: Any = None

    def do_queuePairs(self) -> int:
        """
        @return: How many there are.
        """
        return sum(len(channel.device.queuePairs) for channel in channelsOf(self.reactor))

    async def do_mesh(self, mine: list[int], theirs: list[int], count: int) -> list[str]:
        """
        Write to all sockets of others from each of ours.

        @return: The hash of what each of ours has sent to each other.
        """
        found: list[Any] = [self.do_write(port, "127.0.0.1", to, count) for port in mine for to in theirs]
        return list(await gatherResults([Deferred.fromCoroutine(each) for each in found]))

    async def do_serve(self, endpoint: str) -> int:
        """
        Serve echoes.
        """
        port: Any = await serverFromString(self.reactor, endpoint).listen(Factory.forProtocol(Echo))
        return int(port.getHost().port)

    async def do_ask(self, endpoint: str, count: int, clients: int = 1) -> list[bool]:
        """
        Have bytes echoed.

        @return: Whether they came back as they were, for each client.
        """
        endpoints = [clientFromString(self.reactor, endpoint) for _ in range(clients)]
        askers = [Asker(count) for _ in endpoints]
        for each, asker in zip(endpoints, askers, strict=True):
            await each.connect(Factory.forProtocol(lambda asker=asker: asker))  # type: ignore[arg-type,misc]
        found = list(await gatherResults([asker.done for asker in askers]))
        for asker in askers:
            asker.transport.loseConnection()  # type: ignore[union-attr]
            await asker.lost
        return found

    async def do_hold(self, endpoint: str) -> None:
        """
        Connect, and stay.
        """
        self.asker = Asker(1)
        await clientFromString(self.reactor, endpoint).connect(
            Factory.forProtocol(lambda: self.asker)  # type: ignore[arg-type]
        )

    async def do_lost(self) -> str:
        """
        Wait for the end.

        @return: The error.
        """
        return str(await self.asker.lost)
