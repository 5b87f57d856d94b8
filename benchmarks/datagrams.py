"""
One process of a comparison of messages: C{python -m benchmarks.datagrams}.

The same application over strings of L{Int32StringReceiver} and over datagrams: an echo, and a sink that
counts what was announced.  Only what carries the messages differs.  Control messages have fewer than
L{CONTROL_BYTES} bytes, all others more.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import ClientFactory, DatagramProtocol, Factory
from twisted.internet.task import LoopingCall, deferLater
from twisted.protocols.basic import Int32StringReceiver
from zope.interface import implementer

from benchmarks.clients import latencies
from twisted_ib.tools.compare.measuring import (
    ContentError,
    Figures,
    cpuNanoseconds,
    deadlineIn,
    measured,
    pattern,
)
from twisted_ib.tools.compare.twistedprocess import run

HOST = "127.0.0.1"
CONTROL_BYTES = 48
#: Announces messages: a letter, and how many.
HEAD = struct.Struct(">cQ")
COUNT, HASH, ASK = b"c", b"h", b"?"
#: Messages of these may be lost.
LOSSY = ("udp", "ipoib")
#: A message of UDP on IPv4 is not longer.
UDP_BYTES = 65507
CHECKED = 32
#: How long UDP waits for an answer before it asks again, and after how many messages others have a turn.
SETTLE_SECONDS = 0.01
TURN = 256

Send = Callable[[bytes], Any]


class Sink:
    """
    Counts the messages of one client, and tells when all that it announced have come.
    """

    def __init__(self) -> None:
        """
        Nothing is announced.
        """
        self._expected = self._count = 0
        self._hash: Any = None

    def received(self, data: bytes, send: Send) -> None:
        """
        A message came.
        """
        if len(data) < CONTROL_BYTES:
            kind, count = HEAD.unpack(data)
            if kind == ASK:
                # The answer names the question, as either may come late or twice.
                send(struct.pack(">QQ", self._count, count))
            else:
                self._expected, self._count = count, 0
                self._hash = hashlib.sha256() if kind == HASH else None
            return
        self._count += 1
        if self._hash is not None:
            self._hash.update(data)
        if self._count != self._expected:
            return
        digest = b"" if self._hash is None else self._hash.digest()
        send(struct.pack(">Q", self._count) + digest)


def echo(data: bytes, send: Send) -> None:
    """
    Send a message back.
    """
    send(data)


# -- strings on TCP


class ServerStrings(Int32StringReceiver):
    """
    A server's end.
    """

    MAX_LENGTH = 1 << 21

    def __init__(self, service: Callable[[bytes, Send], None]) -> None:
        """
        @param service: takes messages.
        """
        self._service = service

    def stringReceived(self, string: bytes) -> None:
        """
        A message came.
        """
        self._service(string, self.sendString)


@implementer(IPushProducer)
class ClientStrings(Int32StringReceiver):
    """
    A client's end.
    """

    MAX_LENGTH = 1 << 21
    factory: Any
    take: Callable[[bytes], None]
    isPaused = False
    _waiting: Deferred[None] | None = None

    def connectionMade(self) -> None:
        """
        There is a connection.
        """
        self.send = self.sendString
        self.transport.setTcpNoDelay(True)  # type: ignore[union-attr]
        self.transport.registerProducer(self, True)  # type: ignore[union-attr]
        self.factory.made.callback(self)

    def stringReceived(self, string: bytes) -> None:
        """
        A message came.
        """
        self.take(string)

    def pauseProducing(self) -> None:
        """
        The transport has enough.
        """
        self.isPaused = True

    def resumeProducing(self) -> None:
        """
        It has room.
        """
        self.isPaused = False
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)

    def stopProducing(self) -> None:
        """
        The connection is gone.
        """

    async def sendMany(self, message: bytes, count: int) -> None:
        """
        Send a message again and again.
        """
        send = self.sendString
        for number in range(count):
            send(message)
            if self.isPaused:
                self._waiting = Deferred()
                await self._waiting
            elif not number % TURN:
                await deferLater(self.factory.reactor, 0)

    async def close(self) -> None:
        """
        End the connection.
        """
        self.transport.unregisterProducer()  # type: ignore[union-attr]
        self.transport.loseConnection()  # type: ignore[union-attr]


class _Calling(ClientFactory):
    """
    Makes one connection.
    """

    protocol = ClientStrings
    noisy = False

    def __init__(self, reactor: Any) -> None:
        """
        @param reactor: the reactor.
        """
        self.reactor = reactor
        self.made: Deferred[ClientStrings] = Deferred()

    def clientConnectionFailed(self, connector: Any, reason: Any) -> None:
        """
        There is none.
        """
        self.made.errback(reason)


# -- datagrams


class ServerDatagrams(DatagramProtocol):
    """
    A server's socket.
    """

    def __init__(self, service: Callable[[bytes, Send], None]) -> None:
        """
        @param service: takes messages.
        """
        self._service = service
        self._peer: Any = None
        self._send: Send | None = None

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        """
        A message came.
        """
        if self._send is None or addr != self._peer:
            self._peer, write = addr, self.transport.write  # type: ignore[union-attr]
            self._send = lambda data: write(data, addr)
        self._service(datagram, self._send)


class ServerEcho(DatagramProtocol):
    """
    The same, as a program would write it that has nothing but an echo.
    """

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        """
        A message came.
        """
        self.transport.write(datagram, addr)  # type: ignore[union-attr]


class ClientDatagrams(DatagramProtocol):
    """
    A client's socket.
    """

    take: Callable[[bytes], None]

    def __init__(self, reactor: Any, place: tuple[str, int]) -> None:
        """
        @param place: the server's.
        """
        self._reactor = reactor
        self._place = place

    def send(self, data: bytes) -> None:
        """
        Send a message.
        """
        self.transport.write(data, self._place)  # type: ignore[union-attr]

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        """
        A message came.
        """
        self.take(datagram)

    async def sendMany(self, message: bytes, count: int) -> None:
        """
        Send a message again and again, as fast as it is taken.
        """
        write, place = self.transport.write, self._place  # type: ignore[union-attr]
        for number in range(count):
            room = write(message, place)
            if room is not None:
                await room
            elif not number % TURN:
                await deferLater(self._reactor, 0)

    async def close(self) -> None:
        """
        Close the socket.
        """
        transport: Any = self.transport
        await transport.stopListening()


class ClientLossy(ClientDatagrams):
    """
    A client's socket of UDP.
    """

    async def sendMany(self, message: bytes, count: int) -> None:
        """
        Send a message again and again; what the kernel does not take is lost.
        """
        write, place = self.transport.write, self._place  # type: ignore[union-attr]
        for number in range(count):
            try:
                write(message, place)
            except BlockingIOError:
                pass
            if not number % TURN:
                await deferLater(self._reactor, 0)


# -- both


@define
class Device:
    """
    Where sockets of RDS are.

    @ivar name: The device.
    @ivar address: Its address, or one of the host's.
    @ivar peer: The server's, for a client.
    """

    name: str = "shm0"
    address: str = HOST
    peer: str = HOST

    def listen(self, reactor: Any, protocol: Any) -> Any:
        """
        @return: A new socket.
        """
        from twisted_ib.rds import listenRDS

        return listenRDS(reactor, 0, protocol, self.address, device=self.name)


class IPoIB(Device):
    """
    Where sockets of UDP over IPoIB are.
    """

    def listen(self, reactor: Any, protocol: Any) -> Any:
        """
        @return: A new socket.
        """
        from twisted_ib.ipoib import listenIPoIB

        return listenIPoIB(reactor, 0, protocol, self.address, self.name, maxPacketSize=1 << 17)


class UDP(Device):
    """
    The kernel's.
    """

    def listen(self, reactor: Any, protocol: Any) -> Any:
        """
        @return: A new socket.
        """
        return reactor.listenUDP(0, protocol, HOST, maxPacketSize=1 << 17)


DEVICES = {"udp": UDP, "rds": Device, "ipoib": IPoIB}


@define
class Client:
    """
    The client's part of a row.

    @ivar reactor: The reactor.
    @ivar kind: C{int32}, or one of L{DEVICES}.
    @ivar device: Of datagrams, with our address and the server's.
    @ivar echo: The server's port.
    @ivar sink: Likewise.
    @ivar processes: Whose CPU time counts.
    """

    reactor: Any
    kind: str
    device: Device
    echo: int
    sink: int
    processes: tuple[int, ...]
    _asked: int = field(default=0, init=False)

    def cpuNanoseconds(self) -> int:
        """
        CPU time of both processes so far.
        """
        return cpuNanoseconds(self.processes)

    async def _connect(self, port: int) -> Any:
        """
        @return: A client's end.
        """
        if self.kind == "int32":
            factory = _Calling(self.reactor)
            self.reactor.connectTCP(HOST, port, factory)
            return await factory.made
        end = (ClientLossy if self.kind in LOSSY else ClientDatagrams)(self.reactor, (self.device.peer, port))
        self.device.listen(self.reactor, end)
        return end

    async def roundTrip(self, size: int, seconds: float) -> Figures:
        """
        One message out and back, again and again.
        """
        end = await self._connect(self.echo)
        message = pattern(size)
        done: Deferred[bytes] = Deferred()
        end.take = done.callback
        end.send(message)
        if await done != message:
            raise ContentError(f"an echo of {size} bytes differs")
        for share in (seconds / 4, seconds):
            times: list[int] = []
            over: Deferred[None] = Deferred()
            self._roundTrips(end, message, deadlineIn(share), times, over)
            await over
        await end.close()
        return latencies(times)

    def _roundTrips(
        self, end: Any, message: bytes, deadline: int, times: list[int], over: Deferred[None]
    ) -> None:
        """
        Time round trips.
        """
        send, began = end.send, 0

        def back(data: bytes) -> None:
            """
            It came back.
            """
            nonlocal began
            now = perf_counter_ns()
            times.append(now - began)
            if now >= deadline:
                over.callback(None)
                return
            began = perf_counter_ns()
            send(message)

        end.take = back
        began = perf_counter_ns()
        send(message)

    async def messages(self, size: int, seconds: float) -> Figures:
        """
        Messages in one direction, as fast as they are taken.
        """
        end = await self._connect(self.sink)
        message = pattern(min(size, UDP_BYTES) if self.kind in LOSSY else size)
        sent = came = 0

        async def move(count: int) -> None:
            nonlocal sent, came
            sent, came = count, await self._moved(end, message, count)

        figures = await measured(self.cpuNanoseconds, move, max(8, (1 << 18) // size), size, seconds)
        if self.kind not in LOSSY:
            await self._check(end, size)
        await end.close()
        rate = came / figures["seconds"]
        cpu = figures["CPU"] * figures["bytes"] / 1024 / max(came, 1) / 1e3
        return {"msg/s": rate, "CPU/msg": cpu, "lost": 100.0 * (1 - came / sent), "count": float(came)}

    async def _moved(self, end: Any, message: bytes, count: int) -> int:
        """
        Send messages.

        @return: How many have come.
        """
        if self.kind in LOSSY:
            # Nothing is announced: that may be lost, too.
            before = await self._counted(end)
            await end.sendMany(message, count)
            return await self._counted(end) - before
        done: Deferred[bytes] = Deferred()
        end.take = lambda data: None if done.called else done.callback(data)
        end.send(HEAD.pack(COUNT, count))
        await end.sendMany(message, count)
        (came,) = struct.unpack_from(">Q", await done)
        return int(came)

    async def _counted(self, end: Any) -> int:
        """
        Ask, until there is an answer, how many messages have come since the server began to count.
        """
        self._asked += 1
        answer: Deferred[int] = Deferred()

        def take(data: bytes) -> None:
            # Others are of rows before.
            count, question = struct.unpack(">QQ", data) if len(data) == 16 else (0, 0)
            if question == self._asked and not answer.called:
                answer.callback(count)

        end.take = take
        asking = LoopingCall(end.send, HEAD.pack(ASK, self._asked))
        asking.clock = self.reactor
        asking.start(SETTLE_SECONDS).addErrback(answer.errback)
        count = await answer
        asking.stop()
        return count

    async def _check(self, end: Any, size: int) -> None:
        """
        Messages of which each differs must come in order.

        @raise ContentError: They do not.
        """
        content = pattern(size + CHECKED)
        chunks = [content[at : at + size] for at in range(CHECKED)]
        done: Deferred[bytes] = Deferred()
        end.take = done.callback
        end.send(HEAD.pack(HASH, CHECKED))
        for chunk in chunks:
            await end.sendMany(chunk, 1)
        if (await done)[8:] != hashlib.sha256(b"".join(chunks)).digest():
            raise ContentError(f"messages of {size} bytes differ")


async def _runRow(reactor: Any, line: bytes) -> dict[str, object]:
    """
    Run one workload.
    """
    command = json.loads(line)
    kind, *device, echoPort = str(command["echo"]).split()
    port = int(str(command["sink"]).split()[-1])
    processes = os.getpid(), command["server"]
    client = Client(reactor, kind, DEVICES.get(kind, Device)(*device), int(echoPort), port, processes)
    workload = client.roundTrip if command["workload"] == "roundTrip" else client.messages
    return dict(await workload(command["size"], command["seconds"]))


async def _serve(reactor: Any, words: str) -> dict[str, object]:
    """
    Listen for both services; the ports that they got.
    """
    kind, *device = words.split()
    places: dict[str, object] = {}
    for name in ("echo", "sink"):
        if kind == "int32":
            port = reactor.listenTCP(0, Factory.forProtocol(partial(_strings, name)), interface=HOST)
            port.socket.setsockopt(6, 1, 1)  # An accepted socket has its listener's TCP_NODELAY.
        else:
            protocol = ServerEcho() if name == "echo" else ServerDatagrams(Sink().received)
            port = DEVICES[kind](*device).listen(reactor, protocol)
        places[name] = port.getHost().port
    return places


def _strings(name: str) -> ServerStrings:
    """
    @return: A server's end.
    """
    return ServerStrings(echo if name == "echo" else Sink().received)


def main(arguments: list[str]) -> None:
    """
    C{datagrams (server|client) REACTOR "KIND [DEVICE ADDRESS]" NODELAY}
    """
    role, reactorName, words, _ = arguments
    run(role, reactorName, lambda reactor: _serve(reactor, words), _runRow)


if __name__ == "__main__":
    main(sys.argv[1:])
