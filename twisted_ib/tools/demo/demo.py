"""
C{ib-demo}: round trips, a file and an unmodified Twisted web server over SDP, and over TCP for comparison.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol

from twisted_ib.errors import HCAError
from twisted_ib.ipoib.tun import NODE
from twisted_ib.sdp.transport import SDPTransport
from twisted_ib.tools.compare.twistedprocess import Caller
from twisted_ib.tools.demo import ipoib
from twisted_ib.tools.demo.children import Child, Children, temporaryFolder
from twisted_ib.tools.demo.probe import PING, CountedEndpoint, Fetcher, fetchFiles, roundTrips, used
from twisted_ib.tools.demo.report import Steps, fileLines, tripLines
from twisted_ib.tools.demo.server import READY
from twisted_ib.tools.program import (
    ArgumentParser,
    ProgramError,
    childProgram,
    complain,
    runProgram,
    sentence,
    write,
)
from twisted_ib.tools.progress import Progress

_Client = TypeVar("_Client")

PROGRAM = "ib-demo"

HOST = "127.0.0.1"

#: The file that is measured, and its bytes.
LARGE, LARGE_BYTES = "large.bin", 32 << 20

#: The files of the web server: sizes in bytes by name.
FILES = {
    LARGE: LARGE_BYTES,
    **{f"{size >> 10}k-{number}.bin": size for size in (64 << 10, 1 << 20) for number in range(8)},
}

#: In each round every transport has its turn.
ROUNDS = 12

#: The length of a round of round trips, in seconds; before the first one caches, allocators and adaptive
#: polling settle.
TRIPS_SECONDS = 0.03
WARM_UP_SECONDS = 0.1

#: The longest that a demonstration may take.
TIMEOUT_SECONDS = 120.0


def makeFiles(directory: str) -> dict[str, str]:
    """
    Write the files to serve into C{directory}; return their hashes by name.
    """
    hashes = {}
    for name, size in FILES.items():
        # Random, so that no block is found twice and a misplaced one changes the hash.
        content = os.urandom(size)
        with open(os.path.join(directory, name), "wb") as file:
            file.write(content)
        hashes[name] = sha256(content).hexdigest()
    return hashes


def freePorts(count: int) -> list[int]:
    """
    @return: TCP ports that are free on this host, all different.
    """
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            # bind(2) with port 0: free at this moment.  Another process may take it before the server does;
            # then the child's error says so.
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]


def webArguments(port: int, directory: str) -> list[str]:
    """
    @return: the command line of the twistd that serves C{directory} over SDP and TCP.
    """
    arguments = ["--nodaemon", "--pidfile=", "--reactor=ib", "web"]
    # One number in two spaces: an SDP port is a service id of its own (IBTA vol. 1 annex A4).  direct:
    # keeps the reactor's rules from making the TCP listener an SDP one.
    arguments += [f"--listen=sdp:{port}", f"--listen=direct:{port}:interface={HOST}", f"--path={directory}"]
    return arguments


def serverCommand(path: str, port: int, promptPort: int, filePort: int, registeredPort: int) -> list[str]:
    """
    Make the command line of the second server.

    @param path: the file.
    @param port: the echo's for SDP and for TCP; C{promptPort} is that for TCP with TCP_NODELAY.
    @param filePort: the file's for SDP and for TCP; C{registeredPort} is that for registered memory.
    """
    arguments = [path]
    for kind, number, schemes in (
        ("echo", port, ("sdp", "direct")),
        ("echo-nodelay", promptPort, ("direct",)),
        ("file", filePort, ("sdp", "direct")),
        ("registered", registeredPort, ("sdp",)),
    ):
        arguments += [f"{kind}={scheme}:{number}:interface={HOST}" for scheme in schemes]
    return childProgram("import twisted_ib.tools.demo.server as it; sys.exit(it.main())", arguments)


async def checkSDP(reactor: Any) -> int:
    """
    Listen for a moment, to find out whether SDP works here at all.

    @return: a port that is free for SDP and for TCP.
    @raise ProgramError: SDP does not work; the text says why.
    """
    (port,) = freePorts(1)
    try:
        listening = await serverFromString(reactor, f"sdp:{port}").listen(Factory.forProtocol(Protocol))
        await listening.stopListening()
    except CannotListenError as error:
        # The cause alone: the port number was our own choice and means nothing to the user.
        raise ProgramError(f"SDP does not work here: {sentence(error.socketError)}") from None
    except (HCAError, OSError) as error:
        raise ProgramError(f"SDP does not work here: {sentence(error)}") from None
    return port


async def inTurns(
    clients: Mapping[str, _Client],
    measure: Callable[[_Client], Coroutine[Any, Any, float]],
    progress: Progress,
) -> dict[str, list[float]]:
    """
    Measure in rounds: whatever else the machine does meets all alike.

    @return: the figures of each client by its name.
    """
    figures: dict[str, list[float]] = {name: [] for name in clients}
    for number in range(ROUNDS):
        order = list(clients)
        for name in order if number % 2 else reversed(order):
            figures[name].append(await measure(clients[name]))
        progress.show(partial(float, (number + 1) / ROUNDS))
    return figures


class Demonstration:
    """
    One run of the demonstration.
    """

    def __init__(self, reactor: Any, directory: str) -> None:
        """
        @param directory: an empty directory.
        """
        self._reactor = reactor
        self._directory = directory
        self._steps = Steps(reactor)
        self._children = Children(reactor)
        self._transports: list[SDPTransport] = []

    async def run(self) -> int:
        """
        Start the servers, measure, print; return the exit status.
        """
        tooLong = ProgramError(f"not done after {TIMEOUT_SECONDS:.0f} seconds")
        work = Deferred.fromCoroutine(self._measure())
        # Cancelling ends the work with some CancelledError; the error to report is tooLong.
        guard = self._reactor.callLater(TIMEOUT_SECONDS, work.cancel)
        try:
            await work
        except Exception:
            if not guard.active():
                raise tooLong from None
            raise
        finally:
            if guard.active():
                guard.cancel()
        self._advise()
        return 0

    async def _measure(self) -> None:
        port = await checkSDP(self._reactor)
        write(f"Writing {len(FILES)} files, {sum(FILES.values()) >> 20} MiB, to serve them.")
        hashes = makeFiles(self._directory)
        arguments = webArguments(port, self._directory)
        write(f"Starting: {shlex.join(['twistd', *arguments])}")
        web = Child("twistd", f"starting on {port}", 2)
        twistd = childProgram("from twisted.scripts.twistd import run; run()", arguments)
        with self._steps.waiting("Waiting for twistd"):
            await self._children.start(web, twistd)
        # Found after the first server has bound its port, so that they differ from it.
        ports = freePorts(4)
        server = Child("the second server", READY, 1)
        with self._steps.waiting("Waiting for the second server"):
            await self._children.start(server, serverCommand(os.path.join(self._directory, LARGE), *ports))
        where = self._place(server)
        echo, prompt, file, registered = ports
        for line in tripLines(await self._trips(echo, prompt), len(PING), where):
            write(line)
        for line in fileLines(await self._files(file, registered, hashes[LARGE]), LARGE_BYTES):
            write(line)
        write(f"Each is the middle half of {ROUNDS} rounds, in which all take turns.")
        with self._steps.waiting("Fetching from the web server"):
            for endpoint in (self._sdp(port), self._tcp(port)):
                await fetchFiles(self._reactor, endpoint, f"http://{HOST}:{port}/", hashes)
        write(f"All {len(FILES)} files of the web server came over SDP, and over TCP: hashes match.")
        write(used(self._transports))

    def _place(self, server: Child) -> str:
        available = sorted(os.sched_getaffinity(0))
        if len(available) < 2:
            return "both on one CPU"
        # Where the kernel puts both on one CPU for a while, a round trip takes three times as long.
        os.sched_setaffinity(0, {available[0]})
        server.place({available[1]})
        return "each end on a CPU of its own"

    async def _trips(self, echo: int, prompt: int) -> dict[str, list[float]]:
        callers: dict[str, Caller] = {}
        for name, endpoint in (
            ("SDP", self._sdp(echo)),
            ("TCP", self._tcp(echo)),
            ("TCP NODELAY", self._tcp(prompt)),
        ):
            caller: Any = await endpoint.connect(Factory.forProtocol(Caller))
            callers[name] = caller
        callers["TCP NODELAY"].transport.setTcpNoDelay(True)
        with self._steps.measuring("Measuring round trips") as bar:
            for caller in callers.values():
                await roundTrips(caller, WARM_UP_SECONDS)
            return await inTurns(callers, lambda caller: roundTrips(caller, TRIPS_SECONDS), bar)

    async def _files(self, file: int, registered: int, wanted: str) -> dict[str, list[float]]:
        fetchers: dict[str, Fetcher] = {}
        with self._steps.measuring("Measuring a file") as bar:
            for name, endpoint in (
                ("TCP", self._tcp(file)),
                ("SDP", self._sdp(file)),
                ("SDP, zero copy", self._sdp(registered)),
            ):
                fetcher: Any = await endpoint.connect(Factory.forProtocol(Fetcher))
                fetchers[name] = fetcher
                await fetcher.check(LARGE_BYTES, wanted)
            return await inTurns(fetchers, lambda fetcher: fetcher.rate(LARGE_BYTES), bar)

    def _tcp(self, port: int) -> IStreamClientEndpoint:
        # direct: bypasses the switch.  tcp: would go over SDP where a rule says so.
        return clientFromString(self._reactor, f"direct:{HOST}:{port}")

    def _sdp(self, port: int) -> IStreamClientEndpoint:
        return CountedEndpoint(clientFromString(self._reactor, f"sdp:{HOST}:{port}"), self._transports)

    def _advise(self) -> None:
        write("")
        write(
            "An application gains what its transport costs: 0 to 1.5 times for real ones, whose own protocols"
        )
        write("take some 500 us a request.  Small RPC, WebSocket echo (1.3 to 1.45 times) and CPU time per")
        write(
            "message are where it pays.  ib-perf compare has more transports and sizes, and one CPU for both."
        )
        write("")
        write("Try next, in two terminals:")
        twistd, get = command("twistd"), command("ib-get")
        write(f"  {twistd} --nodaemon --pidfile= --reactor=ib web --listen=sdp:8080 --path=.")
        write(f"  {get} http://{HOST}:8080/ --endpoint sdp:{HOST}:8080 -o /tmp/listing.html")


def command(name: str) -> str:
    """
    @return: how a user's shell finds a command that is installed beside this one.
    """
    beside = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), name)
    if shutil.which(name) == beside or not os.path.exists(beside):
        return name
    nearer = os.path.relpath(beside)
    return nearer if len(nearer) < len(beside) else beside


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
    """
    description = (
        "Show round trips, a file and a Twisted web server over SDP, and over TCP beside it; or ping, iperf3"
        " and ssh over IPoIB."
    )
    parser = ArgumentParser(prog=PROGRAM, description=description)
    parser.add_argument(
        "what", nargs="?", choices=("sdp", "ipoib"), default="sdp", help="by default %(default)s"
    )
    parser.add_argument("--capture", metavar="FILE", help="of ipoib: keep its capture, for Wireshark")
    parser.add_argument(
        "--tun", metavar="NODE", default=NODE, help="of ipoib: the TUN's device node (%(default)s)"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-demo}.

    @param arguments: the command line, by default this process's.
    @return: 0 if every byte came and matched, else another exit status.
    """
    options = commandLine().parse_args(arguments)

    def start(reactor: Any) -> Deferred[int]:
        if options.what == "ipoib":
            shown = ipoib.Demonstration(reactor, directory, options.tun, options.capture)
            return Deferred.fromCoroutine(shown.run())
        return Deferred.fromCoroutine(Demonstration(reactor, directory).run())

    try:
        with temporaryFolder(PROGRAM) as directory:
            return runProgram(PROGRAM, start)
    except OSError as error:
        complain(PROGRAM, error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
