"""
C{ib-perf}: latency and bandwidth between two processes, with perftest's option letters.

Without a host it is the server, for one client; with a host it is the client.  L{TESTS} is the table of
subcommands.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred

from twisted_ib import limits
from twisted_ib.tools.compare import comparison
from twisted_ib.tools.perf import rds
from twisted_ib.tools.perf.client import MEASUREMENTS, Client
from twisted_ib.tools.perf.method import SDP, TCP, Atomic, Read, Send, Test, Write
from twisted_ib.tools.perf.parameters import Given
from twisted_ib.tools.perf.report import Row, described, heading
from twisted_ib.tools.perf.server import Server
from twisted_ib.tools.program import (
    ArgumentParser,
    ProgramError,
    complain,
    runProgram,
    secondsWithin,
    size,
    whole,
    write,
)
from twisted_ib.tools.progress import Progress

PROGRAM = "ib-perf"
#: The subcommands.
TESTS: tuple[Test, ...] = (Send(), Write(), Read(), Atomic(), SDP(), TCP())

#: perftest's default port (perftest_parameters.h DEF_PORT).
PORT = 18515

#: The host's default device.
DEVICE = "shm0"

_EPILOG = (
    "Without HOST it is a server: it serves one client and ends with it. The client says what is"
    " measured; an option that was given to the server too has to be the same. Times are of whole"
    " round trips or requests, where perftest shows the half of a round trip."
)


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
    """
    parser = ArgumentParser(
        prog=PROGRAM,
        description="Measure latency and bandwidth between two processes.",
        epilog=f"{PROGRAM} TEST --help lists the options.",
    )
    tests = parser.add_subparsers(dest="test", metavar="TEST", required=True)
    for test in TESTS:
        description = f"Measure {test.summary}."
        options = tests.add_parser(test.name, help=test.summary, description=description, epilog=_EPILOG)
        _addOptions(options, test)
    # L{main} passes its arguments on: it has a dialogue and options of its own.
    summary = "requests and acknowledgements over RDS, as rds-stress"
    tests.add_parser(rds.NAME, help=summary, add_help=False)
    description = f"Compare {comparison.SUMMARY}."
    comparison.addOptions(tests.add_parser(comparison.NAME, help=comparison.SUMMARY, description=description))
    return parser


def _addOptions(parser: Any, test: Test) -> None:
    parser.add_argument("host", metavar="HOST", nargs="?", help="the server; without it this is one")
    # Unlike perftest, where -a rules out -D, only -s and -a, and -n and -D, exclude each other.
    sizes, length = parser.add_mutually_exclusive_group(), parser.add_mutually_exclusive_group()
    sizes.add_argument("-s", "--size", type=size, metavar="SIZE", help="bytes of a message, by default 64")
    sizes.add_argument("-a", "--all", action="store_true", help="all powers of two from 2 to 8M")
    count = whole(1, limits.PERF_ITERATIONS)
    length.add_argument("-n", "--iters", type=count, metavar="N", help="messages of each queue pair")
    length.add_argument(
        "-D",
        "--duration",
        type=secondsWithin(0, limits.PERF_SECONDS),
        metavar="S",
        help="seconds of each measurement, by default 1",
    )
    pairs = whole(1, limits.PERF_QUEUE_PAIRS)
    parser.add_argument("-q", "--qp", type=pairs, metavar="N", help="queue pairs, by default 1")
    parser.add_argument("-d", "--ib-dev", metavar="DEV", help="the device, by default shm0")
    port = whole(0, 65535)
    parser.add_argument("-p", "--port", type=port, default=PORT, help=f"the port, by default {PORT}")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")


async def serve(reactor: Any, test: Test, options: Namespace, given: Given) -> int:
    """
    Run the server, and return the exit status.
    """
    server = Server(reactor, test, given)
    port = await server.listen(options.port, options.ib_dev)
    # To standard error: standard output has the results only, so that it can be piped.
    print(f"{PROGRAM} {test.name}: waits for a client on port {port}", file=sys.stderr, flush=True)
    served = await server.serve()
    if options.json:
        device = deviceOf(test, options)
        figures = {**described(test, served.terms, device), "client": served.client}
        write(json.dumps({**figures, "received": served.received}, indent=2))
    else:
        write(f"{PROGRAM} {test.name}: {served.client} has ended, {served.received} bytes were counted")
    return 0


async def measure(reactor: Any, test: Test, options: Namespace, given: Given) -> int:
    """
    Run the client, and return the exit status.
    """
    terms = given.terms(test.name)
    device = deviceOf(test, options)
    rows: list[Row] = []
    progress = Progress(sys.stderr if options.json else sys.stdout, MEASUREMENTS * len(terms.sizes))
    # On Ctrl-C the bar is removed before the program ends, or the terminal keeps a hidden cursor.
    reactor.addSystemEventTrigger("before", "shutdown", progress.close)

    def show(row: Row) -> None:
        if not options.json:
            if not rows:
                write(heading(test, terms, device))
            write(row.line())
        rows.append(row)

    try:
        await Client(reactor, test, terms, progress).run(options.host, options.port, options.ib_dev, show)
    finally:
        progress.close()
    if options.json:
        results = [row.json() for row in rows]
        write(json.dumps({**described(test, terms, device), "results": results}, indent=2))
    return 0


def deviceOf(test: Test, options: Namespace) -> str | None:
    """
    Return the name of the HCA; L{None} if the test uses none.
    """
    return (options.ib_dev or DEVICE) if test.hasDevice else None


async def run(reactor: Any, options: Namespace) -> int:
    """
    Run the server or the client, and return the exit status.

    @raise ProgramError: It failed.
    """
    [test] = [each for each in TESTS if each.name == options.test]
    given = Given.of(options, test.only)
    if options.ib_dev is not None and not test.hasDevice:
        raise ProgramError(f"{test.name} uses no device: no -d")
    if options.host is None:
        return await serve(reactor, test, options, given)
    if not options.port:
        raise ProgramError("only a server can do with any port: -p 0")
    return await measure(reactor, test, options, given)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-perf}.
    """
    given = sys.argv[1:] if arguments is None else arguments
    # Before argparse, which would interpret the options that follow.
    if given[:1] == [rds.NAME]:
        return rds.main(given[1:])
    options = commandLine().parse_args(given)
    if options.test == comparison.NAME:
        # It has no reactor: all that is measured is in other processes.
        return comparison.main(options)
    try:
        return runProgram(PROGRAM, lambda reactor: Deferred.fromCoroutine(run(reactor, options)))
    except OSError as error:
        complain(PROGRAM, error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
