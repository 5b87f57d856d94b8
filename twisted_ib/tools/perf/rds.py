"""
C{ib-perf rds}: the workload of rds-stress, with its control protocol, messages and option letters.

The active side sends the parameters over a TCP connection.  Each side then has some tasks, each with a
socket. Every task sends requests to all tasks of the other side, several at a time, and each request is
acknowledged. Source: rds-tools, C{rds-stress.c}.
"""

from __future__ import annotations

import ipaddress
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from struct import Struct
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, cast

import attrs
from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IDelayedCall, IListeningPort, ITCPTransport
from twisted.internet.protocol import DatagramProtocol, Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.reactor import direct
from twisted_ib.tools.ping.device import addressOf
from twisted_ib.tools.ping.rds import addDeviceOptions, openSocket, ownAddress, runOverRDS
from twisted_ib.tools.program import ArgumentParser, ProgramError, secondsWithin, sentence, whole, write

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase

    from twisted_ib.structs import Packed

#: The parameters on the control connection, C{struct options_2_0_6} of C{rds-stress.c}, which newer ones
#: accept too: see L{StressParameters}.
TERMS: Packed[tuple[int, ...]] = Struct("!6I2HI15B3I")
#: The header of each message, as C{struct header} in C{rds-stress.c}: sequence, addresses, ports, index, op;
#: for RDMA: op, address, physical address, pattern, key, size, vector; retry, remote error, pending.
HEADER: Packed[tuple[int, ...]] = Struct("!3I3HBB4Q2I3B")
HEADER_BYTES = HEADER.size
REQUEST, ACK = 1, 2

#: Seconds for which the tasks still answer after the end.
PERF_SETTLE_SECONDS = 0.2

NAME = "rds"
PROGRAM = f"ib-perf {NAME}"
PORT = 4000
#: The second address for a test within one host: RDS identifies a process by its address.
_OTHER = "127.0.0.2"
_GO = b"\1"
_ONLY_IPV4 = "the talk has IPv4 addresses only"
_COLUMNS = "tsks   tx/s   rx/s  tx+rx K/s    rtt us cpu %"


def patternOf(size: int) -> bytes:
    """
    Return the content behind the header where contents are verified.
    """
    # As rds-stress's init_msg_pattern, so that its verification (-v) works against us.  The shift by index >>
    # 8 makes swapped blocks of 256 bytes visible.
    found, value = bytearray(size), 11
    for index in range(size):
        value = (41 * (value + 3) + (index >> 8)) & 0xFF
        found[index] = value
    return bytes(found)


@attrs.frozen
class StressParameters:
    """
    Parameters that the active side sends.

    @ivar depth: Requests in flight from one task to another.
    @ivar request: Bytes of a request.
    @ivar ack: Bytes of an acknowledgement.
    @ivar passive: The passive side's address; C{active} the other's.
    @ivar port: Of the control connection; tasks have the next ones.
    @ivar tasks: On each side.
    @ivar seconds: Duration; 0 is without end.
    @ivar verify: Whether contents are compared.
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
        Return the bytes for the control connection.
        """
        flags = [0] * 15
        flags[3] = int(self.verify)
        addresses = [int(ipaddress.IPv4Address(each)) for each in (self.passive, self.active)]
        head = (self.depth, self.request, self.ack, 0, *addresses, self.port, self.tasks, self.seconds)
        return TERMS.pack(*head, *flags, 1, 0, 0)

    @classmethod
    def parse(cls, data: bytes) -> StressParameters:
        """
        Parse the active side's parameters.

        @raise ProgramError: They are too much, or ask for RDMA.
        """
        depth, request, ack, rdma, passive, active, port, tasks, seconds, *flags = TERMS.unpack(data)
        if rdma:
            raise ProgramError("the other side wants RDMA, which is not done here")
        first, second = str(ipaddress.IPv4Address(passive)), str(ipaddress.IPv4Address(active))
        found = cls(depth, request, ack, first, second, port, tasks, seconds, bool(flags[3]))
        found.check()
        return found

    def check(self) -> None:
        """
        Check bounds.

        @raise ProgramError: A parameter is out of range.
        """
        for what, value, least, most in (
            ("requests", self.depth, 1, limits.PERF_RDS_DEPTH),
            ("tasks", self.tasks, 1, limits.PERF_TASKS),
            ("bytes of a request", self.request, HEADER_BYTES, limits.RDS_MESSAGE),
            ("bytes of an acknowledgement", self.ack, HEADER_BYTES, limits.RDS_MESSAGE),
            ("seconds", self.seconds, 0, limits.PERF_SECONDS),
            ("is the last port", self.port + self.tasks, 1, 65535),
        ):
            if not least <= value <= most:
                raise ProgramError(f"{value} {what}: it is {least} to {most}")
        # RDS sends never block here: what waits must fit into a socket's send budget, with room for
        # acknowledgements.
        waits = self.tasks * self.depth * (self.request + limits.RDS_DATAGRAM_OVERHEAD)
        if waits > limits.RDS_SEND_BUDGET // 2:
            raise ProgramError("the requests of one task are more than may wait: fewer, or smaller ones")


class Peer:
    """
    One task's view of a task of the other side.

    @ivar sent: Messages to it.
    @ivar received: Messages from it.
    @ivar began: Send times of unanswered requests, by index.
    """

    __slots__ = ("began", "received", "sent", "to")

    def __init__(self, to: tuple[str, int], depth: int) -> None:
        self.to = to
        self.sent = self.received = 0
        self.began: list[float | None] = [None] * depth


class Task(DatagramProtocol):
    """
    One task, with a socket of its own.

    @ivar requests: Requests sent; C{received} requests received; C{acks} acknowledgements received.
    @ivar bytes: Of all messages, both ways.
    @ivar waited: Total seconds from requests to their acknowledgements.
    """

    def __init__(
        self, terms: StressParameters, own: tuple[str, int], peers: Sequence[tuple[str, int]], fail: Any
    ) -> None:
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
        Send no more requests.
        """
        self._over = True

    def _send(self, peer: Peer, index: int, op: int) -> None:
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
        # RDS accepts a datagram or refuses it at once; nothing is retried here.
        except HCAError as error:
            self._fail(ProgramError(sentence(error)))

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        peer = self._peers.get(addr)
        if peer is None:
            # RDS has no connections: anyone may send to the port.
            return
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
        # The acknowledgement makes room for the next request with its index.
        if not self._over:
            self._send(peer, index, REQUEST)

    def _wrong(self, peer: Peer, datagram: bytes) -> str:
        terms = self._terms
        if len(datagram) < HEADER_BYTES:
            return f"a message of {len(datagram)} bytes"
        sequence, _, _, fromPort, toPort, index, op, *_ = HEADER.unpack_from(datagram)
        size = {REQUEST: terms.request, ACK: terms.ack}.get(op)
        if size != len(datagram) or index >= terms.depth:
            return f"a message of {len(datagram)} bytes, op {op}, index {index}"
        # RDS delivers in order, without loss or duplicates (Documentation/networking/rds.rst), which this
        # verifies.
        if sequence != peer.received & 0xFFFFFFFF:
            return f"message {sequence} where {peer.received} was due"
        if (fromPort, toPort) != (peer.to[1], self._own[1]):
            return f"a message from port {fromPort} to {toPort}"
        if terms.verify and datagram[HEADER_BYTES:] != self._content[: size - HEADER_BYTES]:
            return "a message with other content than it should have"
        return ""


class Control(Protocol):
    """
    The control connection.

    @ivar over: Fires when it has ended.
    """

    transport: ITCPTransport

    def __init__(self) -> None:
        self._data = b""
        self._wanted = 0
        self._waiting: Deferred[bytes] | None = None
        self.over: Deferred[None] = Deferred()

    def hear(self, count: int) -> Deferred[bytes]:
        """
        Return a Deferred for the next C{count} bytes.
        """
        self._wanted = count
        self._waiting = Deferred()
        waiting = self._waiting
        # The bytes may have arrived already.
        self.dataReceived(b"")
        return waiting

    def dataReceived(self, data: bytes) -> None:
        self._data += data
        # The dialogue never has more than the parameters and one byte: a bound, whatever connects to the
        # port.
        if len(self._data) > 2 * TERMS.size:
            self.transport.abortConnection()
        elif self._waiting is not None and len(self._data) >= self._wanted:
            waiting, self._waiting = self._waiting, None
            found, self._data = self._data[: self._wanted], self._data[self._wanted :]
            waiting.callback(found)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.errback(ProgramError("the other side has gone"))
        self.over.callback(None)


class Stress:
    """
    One run.
    """

    def __init__(self, reactor: ReactorBase, options: Namespace, device: str) -> None:
        """
        @param device: C{tcp}, or the name of an HCA.
        """
        self._reactor = reactor
        self._options = options
        self._device = device
        self._error: ProgramError | None = None
        self._done: Deferred[None] = Deferred()
        self._calls: list[IDelayedCall] = []
        self.tasks: list[Task] = []

    async def run(self) -> int:
        """
        Run, and return the exit status.

        @raise ProgramError: The test failed.
        """
        control, terms, isActive = await (self._ask() if self._options.host else self._serve())
        ports: list[IListeningPort] = []
        try:
            await self._start(control, terms, isActive, ports)
            await self._measure(control, terms)
        finally:
            for call in self._calls:
                if call.active():
                    call.cancel()
            await gatherResults([maybeDeferred(port.stopListening) for port in ports])
            control.transport.loseConnection()
        return 0

    async def _ask(self) -> tuple[Control, StressParameters, bool]:
        options = self._options
        passive = addressOf(options.host)
        active = ownAddress(self._device, options.own, passive)
        # rds-stress sends both addresses; with equal ones a task could not tell its own messages from its
        # peer's.
        if active == passive and passive.startswith("127."):
            active = _OTHER if passive != _OTHER else "127.0.0.1"
        try:
            terms = StressParameters(
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
        except ValueError:
            raise ProgramError(f"{passive}: {_ONLY_IPV4}") from None
        terms.check()
        # The switch is bypassed: rds-stress speaks plain TCP, whatever the rules say.
        endpoint = TCP4ClientEndpoint(direct(self._reactor), passive, options.port)
        try:
            # The factory's own protocol, without a wrapper.
            control = cast(Control, await endpoint.connect(Factory.forProtocol(Control)))
        except Exception as error:
            text = f"cannot connect to {passive} port {options.port}: {sentence(error)}"
            raise ProgramError(text) from None
        control.transport.write(terms.pack())
        return control, terms, True

    async def _serve(self) -> tuple[Control, StressParameters, bool]:
        options = self._options
        came: Deferred[Control] = Deferred()

        class One(Factory):
            noisy = False

            def buildProtocol(self, addr: Any) -> Any:
                if came.called:
                    return None
                control = Control()
                # In connectionMade, since buildProtocol comes before there is a transport.
                control.connectionMade = lambda: came.callback(control)  # type: ignore[method-assign]
                return control

        own = addressOf(options.own, True)
        if ":" in own:
            raise ProgramError(f"{own}: {_ONLY_IPV4}")
        try:
            port = direct(self._reactor).listenTCP(options.port, One(), interface=own)
        except CannotListenError as error:
            raise ProgramError(f"port {options.port}: {sentence(error.socketError)}") from None
        where = port.getHost().port
        print(f"{PROGRAM}: waits for the active side on port {where}", file=sys.stderr, flush=True)
        control = await came
        await port.stopListening()
        try:
            return control, StressParameters.parse(await control.hear(TERMS.size)), False
        except ProgramError:
            control.transport.abortConnection()
            raise

    async def _start(
        self, control: Control, terms: StressParameters, isActive: bool, ports: list[IListeningPort]
    ) -> None:
        own, peer = (terms.active, terms.passive) if isActive else (terms.passive, terms.active)
        numbers = range(terms.port + 1, terms.port + 1 + terms.tasks)
        for number in numbers:
            task = Task(terms, (own, number), [(peer, each) for each in numbers], self._fail)
            ports.append(openSocket(self._reactor, number, task, own, self._device))
            self.tasks.append(task)
        # One byte each way, as in rds-stress: no request is sent before all sockets of the other side are
        # open, since a datagram to a port that nobody has bound is dropped (net/rds/recv.c
        # rds_recv_incoming).
        if isActive:
            control.transport.write(_GO)
            await control.hear(1)
        else:
            await control.hear(1)
            control.transport.write(_GO)
        for task in self.tasks:
            task.begin()

    async def _measure(self, control: Control, terms: StressParameters) -> None:
        control.over.addCallback(lambda _: self._end())
        if terms.seconds:
            self._calls.append(self._reactor.callLater(terms.seconds, self._end))
        began, cpu = perf_counter(), process_time()
        if not self._options.json:
            write(_COLUMNS)
            self._tick(terms, (began, cpu, 0, 0, 0, 0, 0.0))
        await self._done
        for task in self.tasks:
            task.end()
        if self._error is not None:
            raise self._error
        self._summary(terms, perf_counter() - began, process_time() - cpu)
        # The other side's requests are still on their way: its last ones would remain without
        # acknowledgement.
        settled: Deferred[None] = Deferred()
        self._calls.append(self._reactor.callLater(PERF_SETTLE_SECONDS, settled.callback, None))
        await settled
        if self._error is not None:
            raise self._error

    def _sums(self) -> tuple[int, int, int, int, float]:
        # Requests sent, requests received, acknowledgements, bytes, seconds waited.
        tasks = self.tasks
        return (
            sum(task.requests for task in tasks),
            sum(task.received for task in tasks),
            sum(task.acks for task in tasks),
            sum(task.bytes for task in tasks),
            sum(task.waited for task in tasks),
        )

    def _line(self, terms: StressParameters, seconds: float, cpu: float, figures: Sequence[float]) -> str:
        sent, came, acks, size, waited = figures
        rtt = waited / acks * 1e6 if acks else 0.0
        return (
            f"{terms.tasks:4} {sent / seconds:6.0f} {came / seconds:6.0f} {size / 1024 / seconds:10.2f}"
            f" {rtt:9.2f} {100 * cpu / seconds:5.1f}"
        )

    def _tick(self, terms: StressParameters, before: tuple[float, ...]) -> None:
        now = perf_counter(), process_time(), *self._sums()
        # The first call comes at once and has nothing to show.
        if now[0] - before[0] > 0.5:
            differences = [after - each for after, each in zip(now, before, strict=True)]
            write(self._line(terms, differences[0], differences[1], differences[2:]))
        self._calls[1:] = [self._reactor.callLater(1.0, self._tick, terms, now)]

    def _summary(self, terms: StressParameters, seconds: float, cpu: float) -> None:
        sent, came, acks, size, waited = self._sums()
        if not self._options.json:
            write(f"{self._line(terms, seconds, cpu, (sent, came, acks, size, waited))} (average)")
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
        write(json.dumps(figures, indent=2))

    def _fail(self, error: ProgramError) -> None:
        if self._error is None:
            self._error = error
        self._end()

    def _end(self) -> None:
        if not self._done.called:
            self._done.callback(None)


def parseArguments(arguments: Sequence[str]) -> Namespace:
    """
    Parse the command line without the command and C{rds}.
    """
    parser = ArgumentParser(
        prog=PROGRAM,
        description="Requests and acknowledgements over RDS, as rds-stress.",
        epilog="Without HOST it is the passive side, for one active side, which says what is done."
        " Over TCP and over RoCE devices each process of a host needs an address of its own.",
    )
    add, size = parser.add_argument, whole(HEADER_BYTES, limits.RDS_MESSAGE)
    add("host", metavar="HOST", nargs="?", help="the passive side; without it this is one")
    addDeviceOptions(parser, "-r")
    for letter, name, kind, default, what in (
        ("-p", "port", whole(0, 65534), PORT, "the port of the talk; tasks have the next ones"),
        ("-t", "tasks", whole(1, limits.PERF_TASKS), 1, "tasks on each side"),
        ("-d", "depth", whole(1, limits.PERF_RDS_DEPTH), 1, "requests on the way to each task"),
        ("-q", "request", size, 1024, "bytes of a request"),
        ("-a", "ack", size, HEADER_BYTES, "bytes of an acknowledgement"),
        ("-T", "seconds", secondsWithin(1, limits.PERF_SECONDS), 10.0, "seconds"),
    ):
        text = f"{what}, by default {default:g}"
        add(letter, dest=name, metavar="N", type=kind, default=default, help=text)
    add("-v", "--verify", action="store_true", help="compare contents")
    add("--json", action="store_true", help="one JSON object in place of the table")
    return parser.parse_args(arguments)


async def run(reactor: ReactorBase, options: Namespace, device: str) -> int:
    """
    Run a test, and return the exit status.
    """
    return await Stress(reactor, options, device).run()


def main(arguments: Sequence[str]) -> int:
    """
    Run C{ib-perf rds}.

    @param arguments: The command line without the command and C{rds}.
    @return: The exit status.
    """
    options = parseArguments(arguments)
    return runOverRDS(PROGRAM, options, options.host, run)
