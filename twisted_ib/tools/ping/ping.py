"""
C{ib-ping}: C{rping}, and other test programs of rdma-core, with their protocols and option letters.

C{--as} selects C{ucmatose}, C{udaddy} or C{mckey} (L{twisted_ib.tools.ping.transfers}), C{--rds} selects
C{rds-ping} (L{twisted_ib.tools.ping.rds}).
"""

from __future__ import annotations

import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.tools.ping import transfers
from twisted_ib.tools.ping.device import chosen
from twisted_ib.tools.ping.line import PeerEnded
from twisted_ib.tools.ping.rounds import LEAST, MOST, Client, serve
from twisted_ib.tools.ping.station import CONNECTING, PROGRAM, RDS, Interrupted, VerbsSession, reason
from twisted_ib.tools.program import ArgumentParser, ProgramError, complain, remark, whole
from twisted_ib.verbs.pyverbs import enums

#: rping.c's defaults.
PORT = 7174
SIZE = 64

#: The server's address, if a client is given none.
LOOPBACK = "127.0.0.1"

_EPILOG = """\
The client compares what comes back with what it sent, and its exit status is 0 only if all
rounds were done.  A server has the status 0 if its client has disconnected between two rounds,
with -C after that many at least; with -P it goes on until it is stopped.

  ib-ping --as ucmatose|udaddy|mckey [--device NAME] OPTIONS

speaks that program's protocol, with its options: ib-ping --as ucmatose --help lists them.

  ib-ping --rds [--device tcp|NAME] [-I OWN] [-c N] PEER

is rds-ping: ib-ping --rds --help lists its options."""


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
    """
    parser = ArgumentParser(
        prog=PROGRAM,
        description="Ping-pong by RDMA READ and WRITE between two processes, as rping.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add, role = parser.add_argument, parser.add_mutually_exclusive_group(required=True)
    role.add_argument("-s", dest="server", action="store_true", help="be the server")
    role.add_argument("-c", dest="client", action="store_true", help="be the client")
    add("--device", metavar="NAME", help="the device, by default roce0 if it is configured, else shm0")
    # Both are taken before this parser is asked: they are here for completion, manual page and --help.
    transfers.addProgram(parser)
    add(RDS, dest="rds", action="store_true", help="be rds-ping, with its options")
    add("-a", dest="address", metavar="ADDR", help="the server's address; a server has all by default")
    add("-I", dest="source", metavar="ADDR", help="the client's own address")
    add("-p", dest="port", metavar="PORT", type=whole(0, 65535), default=PORT, help=f"by default {PORT}")
    add(
        "-C",
        dest="count",
        metavar="N",
        type=whole(0, limits.PING_COUNT),
        default=0,
        help="rounds, by default without end",
    )
    add(
        "-S",
        dest="size",
        metavar="SIZE",
        type=whole(LEAST, MOST),
        default=SIZE,
        help=f"bytes of data, {LEAST} to {MOST}, by default {SIZE}; a server's is the most that it takes",
    )
    add("-V", dest="validate", action="store_true", help="validate the data, also in the server")
    add("-v", dest="verbose", action="store_true", help="print the data")
    add("-P", dest="persistent", action="store_true", help="have the server take many clients")
    add("-d", dest="debug", action="store_true", help="print what goes on")
    return parser


def ping(station: VerbsSession, options: Namespace) -> int:
    """
    Run the client.

    @return: the exit status.
    @raise ProgramError: not all rounds were done.
    @raise Interrupted: a signal came.
    """
    there = options.address or LOOPBACK
    cmid = station.call(options.source, there, options.port, enums.RDMA_PS_TCP)
    line = Client(station, cmid, options.size)
    try:
        station.finish(line, line.call(), CONNECTING)
        try:
            station.finish(line, line.ping(options.count, options.verbose))
        except PeerEnded as error:
            total = f" of {options.count}" if options.count else ""
            raise ProgramError(f"{error} after {line.count}{total} rounds") from None
        # Only after success: the server counts a disconnect between two rounds as the regular end.
        line.part()
        remark(PROGRAM, f"{line.count} rounds over {options.carrier}")
    finally:
        line.disconnect()
        line.close()
    return 0


def run(options: Namespace) -> int:
    """
    Run C{rping}.

    @return: the exit status.
    @raise ProgramError: it fails.
    @raise Interrupted: a signal came.
    """
    if options.server:
        device = chosen(options.device, options.address)
    else:
        device = chosen(options.device, options.source, options.address or LOOPBACK)
    options.carrier = device
    station = VerbsSession(device, options.debug)
    try:
        return (serve if options.server else ping)(station, options)
    finally:
        station.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-ping}.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if RDS in given:
        # Imported here: it loads Twisted, which the verbs programs do without.
        from twisted_ib.tools.ping import rds

        return rds.main(given)
    name, rest = transfers.programOf(given)
    program: Callable[[Namespace], int] = run
    if name == transfers.NAMES[0]:
        options = commandLine().parse_args(rest)
    else:
        options, program = transfers.parseArguments(name, rest), transfers.run
    try:
        return program(options)
    except Interrupted as error:
        return error.status
    except ProgramError as error:
        complain(PROGRAM, error)
    except (HCAError, OSError) as error:
        complain(PROGRAM, ProgramError(reason(error)))
    return 1


if __name__ == "__main__":
    sys.exit(main())
