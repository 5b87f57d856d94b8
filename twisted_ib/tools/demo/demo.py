"""
C{ib-demo}: files from an unmodified Twisted web server over SDP, and over TCP for comparison.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol

from twisted_ib.errors import HCAError
from twisted_ib.tools.demo.children import Child, Children
from twisted_ib.tools.demo.echo import READY
from twisted_ib.tools.demo.probe import CountedEndpoint, Fetched, fetchFiles, roundTrips
from twisted_ib.tools.demo.report import Row, makeTable, progressBar
from twisted_ib.tools.program import (
    ArgumentParser,
    ProgramError,
    complain,
    pythonProgram,
    runProgram,
    sentence,
    write,
)

PROGRAM = "ib-demo"

HOST = "127.0.0.1"

#: The files to serve: sizes in bytes by name, 41 MiB in all.
FILES = {
    f"{size >> 10}k-{number}.bin": size
    for count, size in ((16, 64 << 10), (8, 1 << 20), (4, 8 << 20))
    for number in range(count)
}

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


def freePort() -> int:
    """
    @return: a TCP port that is free on this host.
    """
    with socket.socket() as probe:
        # bind(2) with port 0: free at this moment.  Another process may take it before the server does;
        # then the child's error says so.
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def webArguments(port: int, directory: str) -> list[str]:
    """
    @return: the command line of the twistd that serves C{directory} over SDP and TCP.
    """
    arguments = ["--nodaemon", "--pidfile=", "--reactor=ib", "web"]
    # One number in two spaces: an SDP port is a service id of its own (IBTA vol. 1 annex A4).  direct:
    # keeps the reactor's rules from making the TCP listener an SDP one.
    arguments += [f"--listen=sdp:{port}", f"--listen=direct:{port}:interface={HOST}", f"--path={directory}"]
    return arguments


def echoCommand(port: int, promptPort: int) -> list[str]:
    """
    Make the command line of the echo server.

    @param port: for SDP and for TCP.
    @param promptPort: for TCP with TCP_NODELAY.
    """
    arguments = [f"sdp:{port}", f"direct:{port}:interface={HOST}"]
    arguments += ["--nodelay", f"direct:{promptPort}:interface={HOST}"]
    return pythonProgram("import twisted_ib.tools.demo.echo as echo; sys.exit(echo.main())", arguments)


async def checkSDP(reactor: Any) -> int:
    """
    Listen for a moment, to find out whether SDP works here at all.

    @return: a port that is free for SDP and for TCP.
    @raise ProgramError: SDP does not work; the text says why.
    """
    port = freePort()
    try:
        listening = await serverFromString(reactor, f"sdp:{port}").listen(Factory.forProtocol(Protocol))
        await listening.stopListening()
    except CannotListenError as error:
        # The cause alone: the port number was our own choice and means nothing to the user.
        raise ProgramError(f"SDP does not work here: {sentence(error.socketError)}") from None
    except (HCAError, OSError) as error:
        raise ProgramError(f"SDP does not work here: {sentence(error)}") from None
    return port


def checkHashes(name: str, fetched: Fetched, hashes: dict[str, str]) -> None:
    """
    Compare the files that came over a transport with those served.

    @raise ProgramError: one differs.
    """
    for file, wanted in hashes.items():
        if sha256(fetched.contents[file]).hexdigest() != wanted:
            raise ProgramError(f"{file} came over {name} with another hash")


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
        self._children = Children(reactor)
        self._hashes: dict[str, str] = {}
        self._size = sum(FILES.values())

    async def run(self) -> int:
        """
        Start the servers, measure, print; return the exit status.
        """
        tooLong = ProgramError(f"not done after {TIMEOUT_SECONDS:.0f} seconds")
        work = Deferred.fromCoroutine(self._measure())
        # Cancelling ends the work with some CancelledError; the error to report is tooLong.
        guard = self._reactor.callLater(TIMEOUT_SECONDS, work.cancel)
        try:
            rows = await work
        except Exception:
            if not guard.active():
                raise tooLong from None
            raise
        finally:
            if guard.active():
                guard.cancel()
        self._report(rows)
        return 0

    async def _measure(self) -> list[Row]:
        port = await checkSDP(self._reactor)
        write(f"Writing {len(FILES)} files, {self._size >> 20} MiB, to serve them.")
        self._hashes = makeFiles(self._directory)
        arguments = webArguments(port, self._directory)
        write(f"Starting: {shlex.join(['twistd', *arguments])}")
        web = Child("twistd", f"starting on {port}", 2)
        twistd = pythonProgram("from twisted.scripts.twistd import run; run()", arguments)
        await self._children.start(web, twistd)
        # Found after the first server has bound its port, so that they differ from it.
        echoPort, promptPort = freePort(), freePort()
        await self._children.start(Child("the echo server", READY, 1), echoCommand(echoPort, promptPort))
        return [
            await self._overSDP(port, echoPort),
            await self._overTCP("TCP", port, echoPort, False),
            await self._overTCP("TCP NODELAY", port, promptPort, True),
        ]

    async def _fetch(self, name: str, endpoint: IStreamClientEndpoint, port: int) -> Fetched:
        base = f"http://{HOST}:{port}/"
        with progressBar(self._reactor, name, self._size) as advance:
            fetched = await fetchFiles(self._reactor, endpoint, base, list(FILES), advance)
        checkHashes(name, fetched, self._hashes)
        return fetched

    async def _overTCP(self, name: str, port: int, echoPort: int, noDelay: bool) -> Row:
        # direct: bypasses the switch.  tcp: would go over SDP where a rule says so.
        web = clientFromString(self._reactor, f"direct:{HOST}:{port}")
        echo = clientFromString(self._reactor, f"direct:{HOST}:{echoPort}")
        return Row(name, await self._fetch(name, web, port), await roundTrips(echo, noDelay))

    async def _overSDP(self, port: int, echoPort: int) -> Row:
        web = CountedEndpoint(clientFromString(self._reactor, f"sdp:{HOST}:{port}"))
        echo = CountedEndpoint(clientFromString(self._reactor, f"sdp:{HOST}:{echoPort}"))
        row = Row("SDP", await self._fetch("SDP", web, port), await roundTrips(echo))
        row.device = web.devices
        # IBTA vol. 1 annex A4: one RC queue pair at each end of a connection.
        row.queuePairs = f"{len(web.transports) + len(echo.transports):,}"
        row.messages = f"{web.messages + echo.messages:,}"
        return row

    def _report(self, rows: list[Row]) -> None:
        write(makeTable(rows))
        write("p50 and p99: round trips of 64 bytes to a Twisted echo server on a connection that stays.")
        write("twisted.web sets TCP_NODELAY by itself, so it tells in the round trips only.")
        write(f"All {len(FILES)} files came over SDP, and over TCP: hashes match.")
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
    description = "Fetch files from a Twisted web server over SDP, and over TCP beside it."
    return ArgumentParser(prog=PROGRAM, description=description)


def parseArguments(arguments: Sequence[str]) -> Namespace:
    """
    @return: the parsed command line, which has no options.
    """
    return commandLine().parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-demo}.

    @param arguments: the command line, by default this process's.
    @return: 0 if every byte came over SDP and matched, else another exit status.
    """
    parseArguments(sys.argv[1:] if arguments is None else arguments)
    try:
        with tempfile.TemporaryDirectory(prefix=PROGRAM) as directory:
            return runProgram(
                PROGRAM,
                lambda reactor: Deferred.fromCoroutine(Demonstration(reactor, directory).run()),
            )
    except OSError as error:
        complain(PROGRAM, error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
