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
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, cast

import attrs
from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IDelayedCall, IListeningPort, ITCPTransport
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.reactor import direct
from twisted_ib.tools.perf.load import HEADER_BYTES, TERMS, StressParameters, Task
from twisted_ib.tools.ping.device import addressOf
from twisted_ib.tools.ping.rdsoptions import addDeviceOptions, openSocket, ownAddress, runOverRDS
from twisted_ib.tools.program import ArgumentParser, ProgramError, secondsWithin, sentence, whole, write

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase


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
