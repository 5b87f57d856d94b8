"""
C{ib-perf rds}: the workload of rds-stress, with its talk, its messages and its option letters.

The active side tells the passive one over a TCP connection what is to be done.  Then each side has some
tasks, each a socket; every task sends requests to all tasks of the other side, some at a time, and each
request is answered by an acknowledgement.  Source: rds-tools, C{rds-stress.c}.
"""

from __future__ import annotations

import ipaddress
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from struct import Struct
from time import perf_counter, process_time
from typing import Any

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import DatagramProtocol, Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.hca.fabric.addresses import sourceFor
from twisted_ib.rds import listenRDS
from twisted_ib.reactor.direct import direct
from twisted_ib.tools.pingdevice import addressOf, chosen, configure
from twisted_ib.tools.pingstation import whole
from twisted_ib.tools.program import (
    ArgumentParser,
    ProgramError,
    complain,
    runProgram,
    secondsWithin,
    sentence,
)

NAME = "rds"
PROGRAM = f"ib-perf {NAME}"
TCP = "tcp"
PORT = 4000
#: What the old form of the talk says: see L{Terms}.
_TERMS = Struct("!6I2HI15B3I")
#: sequence, addresses, ports, index, op; for RDMA: op, address, physical address, pattern, key, size,
#: vector; retry, remote error, pending.
HEADER = Struct("!3I3HBB4Q2I3B")
HEADER_BYTES = HEADER.size
REQUEST, ACK = 1, 2
#: An end of one loopback address whose peer has the same.
_OTHER = "127.0.0.2"
_GO = b"\1"
_COLUMNS = "tsks   tx/s   rx/s  tx+rx K/s    rtt us cpu %"


def patternOf(size: int) -> bytes:
    """
    @param size: bytes.

    @return: what follows the header where it is verified.
    """
    found, value = bytearray(size), 11
    for index in range(size):
        value = (41 * (value + 3) + (index >> 8)) & 0xFF
        found[index] = value
    return bytes(found)


@attrs.frozen
class Terms:
    """
    What the active side wants.

    @ivar depth: requests that one task has on the way to another.
    @ivar request: bytes of a request.
    @ivar ack: bytes of an acknowledgement.
    @ivar passive: the passive side's address; C{active} the other's.
    @ivar port: the first task has the next one.
    @ivar tasks: on each side.
    @ivar seconds: how long; 0 is without end.
    @ivar verify: whether contents are compared.
    """

    depth: int
    request: int
    ack: int
    passive: str
    active: str
    port: int
    tasks: int
    seconds: int
    verify: bool

    def pack(self) -> bytes:
        """
        @return: the same for the passive side.
        """
        flags = [0] * 15
        flags[3] = int(self.verify)
        addresses = [int(ipaddress.IPv4Address(each)) for each in (self.passive, self.active)]
        head = (self.depth, self.request, self.ack, 0, *addresses, self.port, self.tasks, self.seconds)
        return _TERMS.pack(*head, *flags, 1, 0, 0)

    @classmethod
    def parse(cls, data: bytes) -> Terms:
        """
        @param data: what the active side said.

        @return: what that is.

        @raise ProgramError: it is too much, or RDMA.
        """
        depth, request, ack, rdma, passive, active, port, tasks, seconds, *flags = _TERMS.unpack(data)
        if rdma:
            raise ProgramError("the other side wants RDMA, which is not done here")
        first, second = str(ipaddress.IPv4Address(passive)), str(ipaddress.IPv4Address(active))
        found = cls(depth, request, ack, first, second, port, tasks, seconds, bool(flags[3]))
        found.check()
        return found

    def check(self) -> None:
        """
        @raise ProgramError: something is too much.
        """
        for what, value, least, most in (
            ("requests", self.depth, 1, limits.PERF_DEPTH),
            ("tasks", self.tasks, 1, limits.PERF_TASKS),
            ("bytes of a request", self.request, HEADER_BYTES, limits.RDS_MESSAGE),
            ("bytes of an acknowledgement", self.ack, HEADER_BYTES, limits.RDS_MESSAGE),
            ("seconds", self.seconds, 0, limits.PERF_SECONDS),
            ("is the last port", self.port + self.tasks, 1, 65535),
        ):
            if not least <= value <= most:
                raise ProgramError(f"{value} {what}: it is {least} to {most}")
        waits = self.tasks * self.depth * (self.request + limits.RDS_DATAGRAM_OVERHEAD)
        if waits > limits.RDS_SEND_BUDGET // 2:
            raise ProgramError("the requests of one task are more than may wait: fewer, or smaller ones")


class Peer:
    """
    What one task knows of one of the other side.

    @ivar sent: messages to it.
    @ivar received: messages from it.
    @ivar began: when each request that is not answered was sent, by its index.
    """

    __slots__ = ("began", "received", "sent", "to")

    def __init__(self, to: tuple[str, int], depth: int) -> None:
        """
        @param to: where it is.
        """
        self.to = to
        self.sent = self.received = 0
        self.began: list[float | None] = [None] * depth


class Task(DatagramProtocol):
    """
    One task.

    @ivar requests: that were sent; C{acks} that came.
    @ivar bytes: of all messages both ways.
    @ivar waited: seconds from requests to their acknowledgements, together.
    """

    def __init__(
        self, terms: Terms, own: tuple[str, int], peers: Sequence[tuple[str, int]], fail: Any
    ) -> None:
        """
        @param own: where it is.
        @param peers: the tasks of the other side.
        @param fail: is told what is wrong.
        """
        self._terms = terms
        self._own = own
        self._peers = {to: Peer(to, terms.depth) for to in peers}
        self._fail = fail
        longest = max(terms.request, terms.ack) - HEADER_BYTES
        self._content = patternOf(longest) if terms.verify else bytes(longest)
        self.requests = self.received = self.acks = self.bytes = 0
        self.waited = 0.0
        self._over = False

    def begin(self) -> None:
        """
        Send the first requests.
        """
        for peer in self._peers.values():
            for index in range(self._terms.depth):
                self._send(peer, index, REQUEST)

    def end(self) -> None:
        """
        Ask for nothing more.
        """
        self._over = True

    def _send(self, peer: Peer, index: int, op: int) -> None:
        """
        Send a request or an acknowledgement.
        """
        terms, own, to = self._terms, self._own, peer.to
        size = terms.request if op == REQUEST else terms.ack
        addresses = int(ipaddress.IPv4Address(own[0])), int(ipaddress.IPv4Address(to[0]))
        fields = (peer.sent & 0xFFFFFFFF, *addresses, own[1], to[1], index, op)
        header = HEADER.pack(*fields, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        peer.sent += 1
        self.bytes += size
        if op == REQUEST:
            self.requests += 1
            peer.began[index] = perf_counter()
        try:
            self.transport.write(header + self._content[: size - HEADER_BYTES], to)  # type: ignore[union-attr]
        except HCAError as error:
            self._fail(ProgramError(sentence(error)))

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        """
        A message came.
        """
        peer = self._peers.get(addr)
        if peer is None:
            return  # It is not in this.
        wrong = self._wrong(peer, datagram)
        if wrong:
            self._fail(ProgramError(f"{wrong} from {addr[0]} port {addr[1]}"))
            return
        index, op = datagram[16] << 8 | datagram[17], datagram[18]
        peer.received += 1
        self.bytes += len(datagram)
        if op == REQUEST:
            self.received += 1
            self._send(peer, index, ACK)
            return
        began, peer.began[index] = peer.began[index], None
        if began is None:
            self._fail(ProgramError(f"an acknowledgement of nothing from {addr[0]} port {addr[1]}"))
            return
        self.acks += 1
        self.waited += perf_counter() - began
        if not self._over:
            self._send(peer, index, REQUEST)

    def _wrong(self, peer: Peer, datagram: bytes) -> str:
        """
        @return: what is wrong with a message; nothing if it is as it should be.
        """
        terms = self._terms
        if len(datagram) < HEADER_BYTES:
            return f"a message of {len(datagram)} bytes"
        sequence, _, _, fromPort, toPort, index, op, *_ = HEADER.unpack_from(datagram)
        size = {REQUEST: terms.request, ACK: terms.ack}.get(op)
        if size != len(datagram) or index >= terms.depth:
            return f"a message of {len(datagram)} bytes, op {op}, index {index}"
        if sequence != peer.received & 0xFFFFFFFF:
            return f"message {sequence} where {peer.received} was due"
        if (fromPort, toPort) != (peer.to[1], self._own[1]):
            return f"a message from port {fromPort} to {toPort}"
        if terms.verify and datagram[HEADER_BYTES:] != self._content[: size - HEADER_BYTES]:
            return "a message with other content than it should have"
        return ""


class Control(Protocol):
    """
    The talk.

    @ivar over: whether it has ended.
    """

    def __init__(self) -> None:
        """
        Nothing was said.
        """
        self._data = b""
        self._wanted = 0
        self._waiting: Deferred[bytes] | None = None
        self.over: Deferred[None] = Deferred()

    def hear(self, count: int) -> Deferred[bytes]:
        """
        @param count: bytes.

        @return: they, when they have come.
        """
        self._wanted = count
        self._waiting = Deferred()
        waiting = self._waiting
        self.dataReceived(b"")
        return waiting

    def dataReceived(self, data: bytes) -> None:
        """
        Something was said.
        """
        self._data += data
        if len(self._data) > 2 * _TERMS.size:
            self.transport.abortConnection()  # type: ignore[union-attr]
        elif self._waiting is not None and len(self._data) >= self._wanted:
            waiting, self._waiting = self._waiting, None
            found, self._data = self._data[: self._wanted], self._data[self._wanted :]
            waiting.callback(found)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        The other side is gone.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.errback(ProgramError("the other side has gone"))
        self.over.callback(None)


class Stress:
    """
    One run.
    """

    def __init__(self, reactor: Any, options: Namespace, device: str) -> None:
        """
        @param reactor: the reactor.
        @param options: the command line.
        @param device: C{tcp}, or the name of a device.
        """
        self._reactor = reactor
        self._options = options
        self._device = device
        self._error: ProgramError | None = None
        self._done: Deferred[None] = Deferred()
        self._calls: list[Any] = []
        self.tasks: list[Task] = []

    async def run(self) -> int:
        """
        Do it.

        @return: the exit status.

        @raise ProgramError: something is wrong.
        """
        control, terms, isActive = await (self._ask() if self._options.host else self._serve())
        ports: list[Any] = []
        try:
            await self._start(control, terms, isActive, ports)
            await self._measure(control, terms)
        finally:
            for call in self._calls:
                if call.active():
                    call.cancel()
            await gatherResults([port.stopListening() for port in ports])
            control.transport.loseConnection()
        return 0

    async def _ask(self) -> tuple[Any, Terms, bool]:
        """
        Be the active side.
        """
        options = self._options
        passive = addressOf(options.host)
        try:
            active = addressOf(options.own, True) or sourceFor(passive)
        except (HCAError, ValueError) as error:
            raise ProgramError(sentence(error)) from None
        if active == passive and passive.startswith("127."):
            active = _OTHER if passive != _OTHER else "127.0.0.1"
        try:
            terms = Terms(
                options.depth,
                options.request,
                options.ack,
                str(ipaddress.IPv4Address(passive)),
                str(ipaddress.IPv4Address(active)),
                options.port,
                options.tasks,
                round(options.seconds),
                options.verify,
            )
        except ValueError as error:
            raise ProgramError(f"{error}: the talk has IPv4 addresses only") from None
        terms.check()
        endpoint = TCP4ClientEndpoint(direct(self._reactor), passive, options.port)
        try:
            control: Any = await endpoint.connect(Factory.forProtocol(Control))
        except Exception as error:
            text = f"can not connect to {passive} port {options.port}: {sentence(error)}"
            raise ProgramError(text) from None
        control.transport.write(terms.pack())
        return control, terms, True

    async def _serve(self) -> tuple[Any, Terms, bool]:
        """
        Be the passive side, for one active one.
        """
        options = self._options
        came: Deferred[Any] = Deferred()

        class One(Factory):
            """
            Takes one connection.
            """

            noisy = False

            def buildProtocol(self, addr: Any) -> Any:
                """
                Take it, if it is the first.
                """
                if came.called:
                    return None
                control = Control()
                # Not before it is connected.
                control.connectionMade = lambda: came.callback(control)  # type: ignore[method-assign]
                return control

        own = addressOf(options.own, True)
        try:
            port = direct(self._reactor).listenTCP(options.port, One(), interface=own)
        except CannotListenError as error:
            raise ProgramError(f"port {options.port}: {sentence(error.socketError)}") from None
        where = port.getHost().port
        print(f"{PROGRAM}: waits for the active side on port {where}", file=sys.stderr, flush=True)
        control = await came
        await port.stopListening()
        try:
            return control, Terms.parse(await control.hear(_TERMS.size)), False
        except ProgramError:
            control.transport.abortConnection()
            raise

    async def _start(self, control: Any, terms: Terms, isActive: bool, ports: list[Any]) -> None:
        """
        Open all sockets, and begin when the other side has done so.
        """
        own, peer = (terms.active, terms.passive) if isActive else (terms.passive, terms.active)
        numbers = range(terms.port + 1, terms.port + 1 + terms.tasks)
        for number in numbers:
            task = Task(terms, (own, number), [(peer, each) for each in numbers], self._fail)
            try:
                ports.append(listenRDS(self._reactor, number, task, own, device=self._device))
            except CannotListenError as error:
                raise ProgramError(f"{own} port {number}: {sentence(error.socketError)}") from None
            self.tasks.append(task)
        if isActive:
            control.transport.write(_GO)
            await control.hear(1)
        else:
            await control.hear(1)
            control.transport.write(_GO)
        for task in self.tasks:
            task.begin()

    async def _measure(self, control: Any, terms: Terms) -> None:
        """
        Wait until it is over, and show what happens.
        """
        control.over.addCallback(lambda _: self._end())
        if terms.seconds:
            self._calls.append(self._reactor.callLater(terms.seconds, self._end))
        began, cpu = perf_counter(), process_time()
        if not self._options.json:
            print(_COLUMNS, flush=True)
            self._tick(terms, (began, cpu, 0, 0, 0, 0, 0.0))
        await self._done
        for task in self.tasks:
            task.end()
        if self._error is not None:
            raise self._error
        self._summary(terms, perf_counter() - began, process_time() - cpu)
        # The other side is in the middle of something too.
        settled: Deferred[None] = Deferred()
        self._calls.append(self._reactor.callLater(limits.PERF_SETTLE_SECONDS, settled.callback, None))
        await settled
        if self._error is not None:
            raise self._error

    def _sums(self) -> tuple[int, int, int, int, float]:
        """
        @return: requests sent, requests that came, acknowledgements, bytes, seconds waited.
        """
        tasks = self.tasks
        return (
            sum(task.requests for task in tasks),
            sum(task.received for task in tasks),
            sum(task.acks for task in tasks),
            sum(task.bytes for task in tasks),
            sum(task.waited for task in tasks),
        )

    def _line(self, terms: Terms, seconds: float, cpu: float, figures: Sequence[float]) -> str:
        """
        @return: a line of the table.
        """
        sent, came, acks, size, waited = figures
        rtt = waited / acks * 1e6 if acks else 0.0
        return (
            f"{terms.tasks:4} {sent / seconds:6.0f} {came / seconds:6.0f} {size / 1024 / seconds:10.2f}"
            f" {rtt:9.2f} {100 * cpu / seconds:5.1f}"
        )

    def _tick(self, terms: Terms, before: tuple[float, ...]) -> None:
        """
        Print a line each second.
        """
        now = perf_counter(), process_time(), *self._sums()
        if now[0] - before[0] > 0.5:
            differences = [after - each for after, each in zip(now, before, strict=True)]
            print(self._line(terms, differences[0], differences[1], differences[2:]), flush=True)
        self._calls[1:] = [self._reactor.callLater(1.0, self._tick, terms, now)]

    def _summary(self, terms: Terms, seconds: float, cpu: float) -> None:
        """
        Print what it comes to.
        """
        sent, came, acks, size, waited = self._sums()
        if not self._options.json:
            print(self._line(terms, seconds, cpu, (sent, came, acks, size, waited)), "(average)", flush=True)
            return
        figures = {
            "test": NAME,
            "device": self._device,
            **attrs.asdict(terms),
            "measured_seconds": seconds,
            "requests_per_sec": sent / seconds,
            "received_per_sec": came / seconds,
            "KiB_per_sec": size / 1024 / seconds,
            "rtt_usec": waited / acks * 1e6 if acks else None,
            "cpu_percent": 100 * cpu / seconds,
        }
        print(json.dumps(figures, indent=2), flush=True)

    def _fail(self, error: ProgramError) -> None:
        """
        End with an error.
        """
        if self._error is None:
            self._error = error
        self._end()

    def _end(self) -> None:
        """
        It is over.
        """
        if not self._done.called:
            self._done.callback(None)


def parseArguments(arguments: Sequence[str]) -> Namespace:
    """
    @param arguments: the command line without the command and C{rds}.

    @return: its parts.
    """
    parser = ArgumentParser(
        prog=PROGRAM,
        description="Requests and acknowledgements over RDS, as rds-stress.",
        epilog="Without HOST it is the passive side, for one active side, which says what is done."
        " Over TCP each process needs an address of its own, and on a device of one host too.",
    )
    add, size = parser.add_argument, whole(HEADER_BYTES, limits.RDS_MESSAGE)
    add("host", metavar="HOST", nargs="?", help="the passive side; without it this is one")
    add("-r", dest="own", metavar="OWN", help="the own address")
    add("-p", dest="port", metavar="PORT", type=whole(0, 65534), default=PORT, help=f"by default {PORT}")
    tasks = whole(1, limits.PERF_TASKS)
    add("-t", dest="tasks", metavar="N", type=tasks, default=1, help="tasks on each side, by default 1")
    depth = whole(1, limits.PERF_DEPTH)
    add("-d", dest="depth", metavar="N", type=depth, default=1, help="requests on the way to each task")
    add("-q", dest="request", metavar="N", type=size, default=1024, help="bytes of a request (1024)")
    add("-a", dest="ack", metavar="N", type=size, default=HEADER_BYTES, help="bytes of an acknowledgement")
    seconds = secondsWithin(1, limits.PERF_SECONDS)
    add("-T", dest="seconds", metavar="S", type=seconds, default=10.0, help="seconds, by default 10")
    add("-v", "--verify", action="store_true", help="compare contents")
    add("--device", metavar="tcp|NAME", help="RDS over TCP, or the device, by default roce0 or shm0")
    add("--json", action="store_true", help="one JSON object in place of the table")
    return parser.parse_args(arguments)


async def run(reactor: Any, options: Namespace, device: str) -> int:
    """
    Be what the command line says.

    @return: the exit status.
    """
    return await Stress(reactor, options, device).run()


def main(arguments: Sequence[str]) -> int:
    """
    Run C{ib-perf rds}.

    @param arguments: the command line without the command and C{rds}.

    @return: the exit status.
    """
    options = parseArguments(arguments)
    try:
        if options.device == TCP:
            configure()
            device = TCP
        else:
            device = chosen(options.device, options.own, options.host)
        return runProgram(PROGRAM, lambda reactor: Deferred.fromCoroutine(run(reactor, options, device)))
    except (ProgramError, OSError) as error:
        complain(PROGRAM, error)
        return 1


__all__ = ["NAME", "Stress", "Task", "Terms", "main", "parseArguments", "patternOf"]
