"""
A process of C{ib-perf compare} under Twisted.

A server prints where it listens as one JSON line; a client reads one JSON line for each measurement and
prints its figures as one line.  Both end when their standard input is closed: none outlives the driver.

Connections of TCP that switch to RDMA do so before they are measured: an endpoint string of such a subject
begins with L{SWITCHED}.

The applications are plain protocols, an echo, a sink, and their clients: nothing in them knows which
transport it runs on.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from twisted.application.reactors import installReactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import (
    IConsumer,
    IProtocolFactory,
    IPushProducer,
    IStreamClientEndpoint,
    ITCPTransport,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.protocols.basic import LineReceiver
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.rdma import switchToRDMA
from twisted_ib.tools.compare.measuring import CALLER, COLLECTOR, SOURCE, perform
from twisted_ib.tools.compare.subjects import SERVER, SWITCHED

if TYPE_CHECKING:
    from twisted_ib.structs import Packed

#: Before a stream: how many bytes follow, and whether to hash them.
HEAD: Packed[tuple[int, int]] = struct.Struct(">QB")

#: The longest command.
_LINE_BYTES = 65536


class IStream(ITCPTransport, IConsumer):
    """
    A transport of a stream.
    """


class Echo(Protocol):
    """
    Send back what comes.
    """

    transport: IStream

    def dataReceived(self, data: bytes) -> None:
        self.transport.write(data)


class Sink(Protocol):
    """
    Swallow a stream of announced length and acknowledge its last byte with 32
    bytes: the SHA-256 of the stream, or zeros when it was not asked for.
    """

    transport: IStream

    _remaining = 0
    _head = b""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._hashing: int = False

    def dataReceived(self, data: bytes) -> None:
        length = len(data)
        if length < self._remaining and not self._hashing:
            self._remaining -= length
        else:
            self._edge(data)

    def _edge(self, data: bytes) -> None:
        # The rare cases: an announcement, a checked stream, the last byte.
        if not self._remaining:
            self._head += data
            if len(self._head) < HEAD.size:
                return
            self._remaining, self._hashing = HEAD.unpack_from(self._head)
            data, self._head = self._head[HEAD.size :], b""
            self._hash = hashlib.sha256()
        if self._hashing:
            self._hash.update(data)
        self._remaining -= len(data)
        assert self._remaining >= 0, "more bytes than announced"
        if not self._remaining:
            digest = self._hash.digest() if self._hashing else bytes(32)
            self.transport.write(digest)


class _Waiting(Protocol):
    """
    A client protocol with at most one operation under way.
    """

    transport: IStream

    # Of the class, and made when needed: idle connections are weighed.
    _done: Deferred[bytes] | None = None
    _lost: Deferred[None] | None = None
    _isLost = False

    def _finish(self, result: bytes) -> None:
        done, self._done = self._done, None
        assert done is not None
        done.callback(result)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._done is not None:
            done, self._done = self._done, None
            done.errback(reason)
        self._isLost = True
        if self._lost is not None:
            self._lost.callback(None)

    def close(self) -> Deferred[None]:
        # Close the connection; fires when it is gone.
        self._lost = Deferred()
        if self._isLost:
            self._lost.callback(None)
        else:
            self.transport.loseConnection()
        return self._lost


class Caller(_Waiting):
    """
    Send a message, wait until as many bytes are back, and again, until a
    moment has passed.
    """

    _message = b""
    _deadline = _sentAt = _arrived = 0

    def call(self, message: bytes, deadline: int, times: list[int]) -> Deferred[bytes]:
        """
        Begin.

        @param deadline: No new message after this moment of
            C{perf_counter_ns}.
        @param times: Each round trip's nanoseconds are appended to it.
        """
        self._message, self._deadline, self._times = message, deadline, times
        self._arrived = 0
        self._done = Deferred()
        self._sentAt = perf_counter_ns()
        self.transport.write(message)
        return self._done

    def dataReceived(self, data: bytes) -> None:
        self._arrived += len(data)
        if self._arrived < len(self._message):
            return
        now = perf_counter_ns()
        self._times.append(now - self._sentAt)
        if now >= self._deadline:
            self._finish(data)
            return
        self._arrived = 0
        self._sentAt = perf_counter_ns()
        self.transport.write(self._message)


class Collector(_Waiting):
    """
    Send one message and hand over its whole echo.
    """

    def collect(self, message: bytes) -> Deferred[bytes]:
        """
        Begin; fires with the bytes that came back.
        """
        self._parts: list[bytes] = []
        self._wanted = len(message)
        self._done = Deferred()
        self.transport.write(message)
        return self._done

    def dataReceived(self, data: bytes) -> None:
        self._parts.append(data)
        self._wanted -= len(data)
        if self._wanted <= 0:
            self._finish(b"".join(self._parts))


@implementer(IPushProducer)
class Source(_Waiting):
    """
    Write a stream as fast as the transport wants it.
    """

    _left = 0
    _paused = False
    _acknowledged = b""

    def send(self, chunks: Sequence[bytes], count: int, hashing: bool = False) -> Deferred[bytes]:
        """
        Write C{count} chunks, round and round; fires with the
        acknowledgement of the last byte.
        """
        size = len(chunks[0])
        self._chunks, self._left, self._next = chunks, count, 0
        self._acknowledged = b""
        self._done = Deferred()
        self.transport.write(HEAD.pack(size * count, hashing))
        self.transport.registerProducer(self, True)
        self.resumeProducing()
        return self._done

    def resumeProducing(self) -> None:
        self._paused = False
        write = self.transport.write
        if len(self._chunks) == 1:
            chunk = self._chunks[0]
            while self._left and not self._paused:
                self._left -= 1
                write(chunk)
        else:
            while self._left and not self._paused:
                self._left -= 1
                chunk = self._chunks[self._next]
                self._next = (self._next + 1) % len(self._chunks)
                write(chunk)
        if not self._left:
            self.transport.unregisterProducer()

    def pauseProducing(self) -> None:
        self._paused = True

    def stopProducing(self) -> None:
        self._left = 0
        self._paused = True

    def dataReceived(self, data: bytes) -> None:
        self._acknowledged += data
        if len(self._acknowledged) == 32:
            self._finish(self._acknowledged)


class Switching(Protocol):
    """
    Switch at once, and let another protocol go on.

    @ivar done: Fires with that one.
    """

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self.done: Deferred[Any] = Deferred()

    def connectionMade(self) -> None:
        # The peer does the same.
        switchToRDMA(self.transport).addCallback(self._switched).chainDeferred(self.done)

    def _switched(self, transport: Any) -> Any:
        transport.protocol = protocol = self._build()
        protocol.makeConnection(transport)
        return protocol


@implementer(IStreamClientEndpoint)
class SwitchingEndpoint:
    """
    A client's endpoint whose connections have switched.
    """

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        self._endpoint = endpoint

    def connect(self, factory: IProtocolFactory) -> Deferred[Any]:
        made = Factory.forProtocol(lambda: Switching(lambda: factory.buildProtocol(None)))  # type: ignore
        connected: Deferred[Any] = self._endpoint.connect(made)
        return connected.addCallback(lambda switching: switching.done)


def clientFrom(reactor: Any, text: str) -> Any:
    """
    @return: The client's endpoint of a string, which may be that of one that switches.
    """
    isSwitched = text.startswith(SWITCHED)
    endpoint = clientFromString(reactor, text.removeprefix(SWITCHED))
    return SwitchingEndpoint(endpoint) if isSwitched else endpoint


def servicesFor(text: str, services: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """
    @return: The server's endpoint string without the mark, and its services, which switch if it had one.
    """
    if not text.startswith(SWITCHED):
        return text, services

    def switching(protocol: Any) -> Callable[[], Switching]:
        return lambda: Switching(protocol)

    return text.removeprefix(SWITCHED), {name: switching(each) for name, each in services.items()}


#: The services of a server.
SERVICES: Mapping[str, type[Protocol]] = {"echo": Echo, "sink": Sink}

#: The service that a client needs, and its protocol.
_CLIENTS = {CALLER: ("echo", Caller), COLLECTOR: ("echo", Collector), SOURCE: ("sink", Source)}


class Commands(LineReceiver):
    """
    The driver, on standard input and output.
    """

    delimiter = b"\n"
    MAX_LENGTH = _LINE_BYTES

    def __init__(
        self, reactor: Any, run: Callable[[bytes], Coroutine[Any, Any, dict[str, object]]] | None = None
    ) -> None:
        self._reactor = reactor
        self._run = run

    def lineReceived(self, line: bytes) -> None:
        if self._run is not None:
            task = Deferred.fromCoroutine(self._run(line))
            task.addErrback(failed).addCallback(self.tell)

    def tell(self, message: dict[str, object]) -> None:
        """
        Print one line.
        """
        self.sendLine(json.dumps(message).encode())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._reactor.running:
            self._reactor.stop()


def failed(failure: Failure) -> dict[str, object]:
    """
    The output of a row that failed.
    """
    failure.printTraceback(sys.stderr)
    return {"error": failure.getErrorMessage() or repr(failure.value)}


async def measure(reactor: Any, clients: dict[str, Any], line: bytes) -> dict[str, object]:
    """
    Measure what a command asks for.

    @param clients: those that are connected, by their kind; more are added.
    """
    command = json.loads(line)

    async def connect(kind: str) -> Any:
        if kind not in clients:
            service, protocol = _CLIENTS[kind]
            endpoint = clientFrom(reactor, command["places"][service])
            clients[kind] = client = await endpoint.connect(Factory.forProtocol(protocol))
            if command["noDelay"]:
                client.transport.setTcpNoDelay(True)
        return clients[kind]

    return dict(await perform(command, connect))


async def serve(
    reactor: Any, endpoint: str, noDelay: bool, services: Mapping[str, type[Protocol]] = SERVICES
) -> dict[str, object]:
    """
    Listen for all services.

    @return: the ports that they got.
    """
    places: dict[str, object] = {}
    endpoint, made = servicesFor(endpoint, services)
    for name, protocol in made.items():
        string = endpoint.replace("{folder}", os.getcwd())
        port: Any = await serverFromString(reactor, string.replace("{name}", name)).listen(
            Factory.forProtocol(protocol)
        )
        if noDelay:
            # Linux: an accepted socket has its listener's TCP_NODELAY.
            port.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        places[name] = getattr(port.getHost(), "port", 0)
    return places


def run(
    role: str,
    reactorName: str,
    serving: Callable[[Any], Coroutine[Any, Any, dict[str, object]]],
    answering: Callable[[Any, bytes], Coroutine[Any, Any, dict[str, object]]],
) -> None:
    """
    Be one process, until the driver is done with it.

    @param role: L{SERVER} or L{CLIENT}.
    @param serving: listens, with a reactor, and returns the ports.
    @param answering: runs the row of a line, with a reactor.
    """
    installReactor(reactorName)
    # After the installation, which they would do otherwise.
    from twisted.internet import reactor as installed
    from twisted.internet import stdio

    reactor: Any = installed
    Factory.noisy = False
    commands = Commands(reactor, None if role == SERVER else partial(answering, reactor))
    stdio.StandardIO(commands)
    if role == SERVER:
        started = Deferred.fromCoroutine(serving(reactor))
        started.addErrback(failed).addCallback(commands.tell)
    else:
        reactor.callWhenRunning(commands.tell, {"ready": True})
    reactor.run()


def main(arguments: Sequence[str]) -> None:
    """
    Run one process: C{(server|client) REACTOR [ENDPOINT NODELAY]}.
    """
    role, reactorName, *rest = arguments
    clients: dict[str, Any] = {}
    run(
        role,
        reactorName,
        lambda reactor: serve(reactor, rest[0], rest[1] == "1"),
        lambda reactor, line: measure(reactor, clients, line),
    )
