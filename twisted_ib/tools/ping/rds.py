"""
C{ib-ping --rds}: C{rds-ping}, which checks whether a peer's RDS answers.

Eight sockets take turns: each sends an empty datagram to port 0, which the peer's RDS answers.  Source:
rds-tools, C{rds-ping.c}.

The options that commands over RDS have in common are here: the device and the local address.
"""

from __future__ import annotations

from argparse import Namespace, RawDescriptionHelpFormatter
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import DatagramProtocol

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.hca.device import registry
from twisted_ib.hca.host.addresses import sourceFor
from twisted_ib.rds import listenRDS
from twisted_ib.tools.ping.device import addressOf, chosen, configure
from twisted_ib.tools.ping.station import PROGRAM, RDS
from twisted_ib.tools.program import (
    ArgumentParser,
    ProgramError,
    complain,
    runProgram,
    secondsWithin,
    sentence,
    whole,
    write,
)

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase

#: In place of a device: RDS over TCP.
TCP = "tcp"

#: The least time between two pings, and how long the last answer is awaited, in seconds.
RDS_PING_INTERVAL = 0.001
RDS_PING_SECONDS = 5.0

# rds-ping.c: eight sockets.  Linux net/rds/send.c hashes each to one of up to eight paths of the connection,
# so that more than one path is tried.
SOCKETS = 8
INTERVAL = 1.0
# Linux net/rds/recv.c: RDS itself answers what comes to port 0; no program is involved.
_PING_PORT = 0

_EPILOG = """\
The exit status is 0 only if -c was given and all pings were answered, the last one within
5 seconds.  Over TCP each process needs an address of its own, and port 16385 of it."""


def addDeviceOptions(parser: ArgumentParser, letter: str) -> None:
    """
    Add the options for the device and the local address.

    @param letter: the latter's.
    """
    parser.add_argument(
        "--device",
        metavar="tcp|NAME",
        help="RDS over TCP, or the device, by default roce0 if it is configured, else shm0",
    )
    parser.add_argument(letter, dest="own", metavar="OWN", help="the own address")


def ownAddress(device: str, own: str | None, peer: str) -> str:
    """
    @param device: C{tcp}, or the name of a device.
    @param own: the user's choice, if any.
    @return: the local address.
    @raise ProgramError: there is none.
    """
    try:
        place = None if device == TCP else registry.addressOf(device)
        # RDS has no wildcard address: Linux net/rds/bind.c refuses one.  So the route to the peer decides.
        return addressOf(own, True) or place or sourceFor(peer)
    except (HCAError, ValueError) as error:
        raise ProgramError(sentence(error)) from None


def openSocket(reactor: Any, port: int, protocol: DatagramProtocol, own: str, device: str) -> Any:
    """
    @param port: the port, or 0 for any.
    @param device: C{tcp}, or the name of a device.
    @return: an RDS socket, as L{listenRDS} makes it.
    @raise ProgramError: it cannot be bound.
    """
    try:
        return listenRDS(reactor, port, protocol, own, device=device)
    except CannotListenError as error:
        where = f"{own} port {port}" if port else own
        why = sentence(error.socketError)
        raise ProgramError(why if own in why else f"{where}: {why}") from None


def runOverRDS(
    program: str,
    options: Namespace,
    peer: str | None,
    run: Callable[[Any, Namespace, str], Coroutine[Any, Any, int]],
) -> int:
    """
    Run a command under a reactor.

    @param program: its name.
    @param peer: the peer, if there is one.
    @param run: called with the reactor, the options and the device; gives the exit status.
    @return: the exit status.
    """
    try:
        if options.device == TCP:
            configure()
            device = TCP
        else:
            device = chosen(options.device, options.own, peer)
        # RDS sockets are ports of a reactor, which the verbs programs do without.
        return runProgram(program, lambda reactor: Deferred.fromCoroutine(run(reactor, options, device)))
    except (ProgramError, OSError) as error:
        complain(program, error)
        return 1


def parseArguments(arguments: Sequence[str]) -> Namespace:
    """
    @param arguments: the command line without the command.
    @return: the options.
    """
    parser = ArgumentParser(
        prog=f"{PROGRAM} {RDS}",
        description="Ask a peer's RDS for signs of life, as rds-ping.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(RDS, dest="rds", action="store_true", required=True, help="here: be rds-ping")
    addDeviceOptions(parser, "-I")
    count = whole(1, limits.PING_COUNT)
    add("-c", dest="count", metavar="N", type=count, default=0, help="pings, by default without end")
    add(
        "-i",
        dest="interval",
        metavar="S",
        type=secondsWithin(RDS_PING_INTERVAL, limits.PERF_SECONDS),
        default=INTERVAL,
        help="seconds between two pings, by default 1",
    )
    add("peer", metavar="PEER", help="the peer's address or name")
    return parser.parse_args(arguments)


class _Socket(DatagramProtocol):
    """
    One of the sockets.

    @ivar waiting: its unanswered pings: number and time of sending.
    """

    def __init__(self, pinger: Pinger) -> None:
        self._pinger = pinger
        self.waiting: deque[tuple[int, float]] = deque()

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        # A pong has no payload and comes from port 0.  RDS keeps the order of a socket's messages, so it
        # belongs to the oldest ping; anything else is not an answer.
        if self.waiting and not datagram and addr == (self._pinger.peer, _PING_PORT):
            self._pinger.answered(*self.waiting.popleft())


class Pinger:
    """
    Sends pings and counts the answers.

    @ivar peer: the peer's address.
    @ivar sent: pings sent.
    @ivar received: pings answered.
    """

    def __init__(self, reactor: ReactorBase, options: Namespace, device: str) -> None:
        """
        @param device: C{tcp}, or the name of a device.
        @raise ProgramError: the peer's or the local address cannot be resolved.
        """
        self._reactor = reactor
        self._device = device
        self._count, self._interval = options.count, options.interval
        self.peer = addressOf(options.peer)
        self.sent = self.received = 0
        self._sockets: list[_Socket] = []
        self._ports: list[Any] = []
        self._call: Any = None
        self._done: Deferred[int] = Deferred()
        self._own = ownAddress(device, options.own, self.peer)

    async def run(self) -> int:
        """
        Send pings until all are answered, or the time is over.

        @return: the exit status.
        @raise ProgramError: some were not answered, or a socket cannot be bound.
        """
        try:
            self._open()
            self._next()
            return await self._done
        finally:
            await self._close()

    def _open(self) -> None:
        for _ in range(SOCKETS):
            socket = _Socket(self)
            self._ports.append(openSocket(self._reactor, 0, socket, self._own, self._device))
            self._sockets.append(socket)

    def _next(self) -> None:
        self._call = None
        index = self.sent % SOCKETS
        socket, port = self._sockets[index], self._ports[index]
        # RDS retries for ever: a late answer is still counted.
        if socket.waiting:
            write(f"{socket.waiting[0][0]:4}: no answer yet")
        self.sent += 1
        socket.waiting.append((self.sent, self._reactor.seconds()))
        try:
            port.write(b"", (self.peer, _PING_PORT))
        except (HCAError, CannotListenError) as error:
            self._fail(ProgramError(sentence(error)))
            return
        last = self.sent == self._count
        self._call = (
            self._reactor.callLater(RDS_PING_SECONDS, self._missed)
            if last
            else self._reactor.callLater(self._interval, self._next)
        )

    def answered(self, number: int, began: float) -> None:
        """
        Count an answer.

        @param number: of the ping.
        @param began: when it was sent, in the reactor's seconds.
        """
        self.received += 1
        write(f"{number:4}: {round((self._reactor.seconds() - began) * 1e6)} usec")
        if self.received == self._count and not self._done.called:
            self._done.callback(0)

    def _missed(self) -> None:
        self._call = None
        self._fail(ProgramError(f"{self.peer} has answered {self.received} of {self._count} pings"))

    def _fail(self, error: ProgramError) -> None:
        if not self._done.called:
            self._done.errback(error)

    async def _close(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
        for port in self._ports:
            # RDS_CANCEL_SENT_TO: RDS keeps unacknowledged messages for ever, and nobody waits for their
            # answers now.
            port.cancel((self.peer, _PING_PORT))
        await gatherResults([port.stopListening() for port in self._ports])


async def run(reactor: ReactorBase, options: Namespace, device: str) -> int:
    """
    Run the command.

    @param device: C{tcp}, or the name of a device.
    @return: the exit status.
    @raise ProgramError: it fails.
    """
    return await Pinger(reactor, options, device).run()


def main(arguments: Sequence[str]) -> int:
    """
    Run C{ib-ping --rds}.

    @return: the exit status.
    """
    options = parseArguments(arguments)
    return runOverRDS(PROGRAM, options, options.peer, run)
