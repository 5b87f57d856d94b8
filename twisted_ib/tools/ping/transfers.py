"""
The command lines of C{ib-ping --as}: the options of C{ucmatose}, C{udaddy} and C{mckey}.

Source: rdma-core 65, C{librdmacm/examples/cmatose.c}, C{udaddy.c}, C{mckey.c}.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence

from twisted_ib import limits
from twisted_ib.tools.ping.device import chosen
from twisted_ib.tools.ping.messages import Cmatose, Mckey, Udaddy
from twisted_ib.tools.ping.station import PROGRAM, VerbsSession
from twisted_ib.tools.program import ArgumentParser, whole
from twisted_ib.verbs.pyverbs import enums

#: Connections of one program, which cmatose.c does not bound.
PING_CONNECTIONS = 1024
#: Bytes of one message.
PING_MESSAGE = 64 * 1024 * 1024

#: The programs; rping's options are in L{twisted_ib.tools.ping.ping}.
NAMES = ("rping", "ucmatose", "udaddy", "mckey")

#: The defaults of cmatose.c and udaddy.c.
UCMATOSE_PORT, UDADDY_PORT = 7471, 7174
_CONNECTIONS, _COUNT, _SIZE = 1, 10, 100
_SPACES = {
    "tcp": enums.RDMA_PS_TCP,
    "ib": enums.RDMA_PS_IB,
    "udp": enums.RDMA_PS_UDP,
    "ipoib": enums.RDMA_PS_IPOIB,
}
# The port spaces of queue pairs of type UD.
_DATAGRAMS = (enums.RDMA_PS_UDP, enums.RDMA_PS_IPOIB)


def portSpace(text: str) -> int:
    """
    @param text: a port space's number as in C: C{0x111} or C{0x2}.
    @return: the number.
    """
    value = _integer(text)
    if value not in _DATAGRAMS:
        raise ArgumentTypeError(f"{text!r} is no port space: 0x111 is UDP, 0x2 IPoIB")
    return value


def portOrSpace(text: str) -> int:
    """
    @param text: a port, or a port space's number.
    @return: the number.
    """
    value = _integer(text)
    if not 0 <= value <= 65535:
        raise ArgumentTypeError(f"{text!r} is no port from 0 to 65535")
    return value


def _integer(text: str) -> int:
    try:
        # Base 0: the port spaces of udaddy.c are written in hexadecimal.
        return int(text, 0)
    except ValueError:
        return -1


def _parser(name: str, what: str) -> ArgumentParser:
    parser = ArgumentParser(prog=f"{PROGRAM} --as {name}", description=what)
    add = parser.add_argument
    add("--as", dest="program", metavar="PROGRAM", required=True, help=f"here {name}")
    add("--device", metavar="NAME", help="the device, by default roce0 if it is configured, else shm0")
    add("-b", dest="own", metavar="ADDR", help="the own address")
    for letter, name, least, most, default, what in (
        ("-c", "connections", 1, PING_CONNECTIONS, _CONNECTIONS, "connections"),
        ("-C", "count", 0, limits.WORK_QUEUE_DEPTH, _COUNT, "messages of each connection"),
        ("-S", "size", 0, PING_MESSAGE, _SIZE, "bytes of a message"),
    ):
        add(
            letter,
            dest=name,
            metavar="SIZE" if name == "size" else "N",
            type=whole(least, most),
            default=default,
            help=f"{what}, by default {default}",
        )
    add("-d", dest="debug", action="store_true", help="print what goes on")
    return parser


def _addEnds(parser: ArgumentParser, read: Callable[[str], int], port: int, more: str, *spaces: str) -> None:
    # Of the port spaces the first is the default.
    add = parser.add_argument
    add("-s", dest="peer", metavar="ADDR", help="be the client of a server at this address")
    add("-p", dest="port", metavar="PORT", type=read, default=port, help=f"by default {port}{more}")
    add("-P", dest="space", choices=spaces, default=spaces[0], help=f"the port space, by default {spaces[0]}")


def _ucmatose(arguments: Sequence[str]) -> Namespace:
    parser = _parser("ucmatose", "Exchange messages over connections: the server sends, then the client.")
    _addEnds(parser, whole(0, 65535), UCMATOSE_PORT, "", "tcp", "ib")
    add = parser.add_argument
    add("-m", dest="migrate", action="store_true", help="move to another event channel before the end")
    add(
        "-a",
        dest="timeout",
        metavar="CODE",
        type=whole(0, 31),
        help="how long to wait for an acknowledgement: 4.096 us times two to the power of CODE; 0 for ever",
    )
    options = parser.parse_args(arguments)
    options.space = _SPACES[options.space]
    return options


def _udaddy(arguments: Sequence[str]) -> Namespace:
    parser = _parser("udaddy", "Exchange datagrams: the client sends, then the server.")
    more = "; 0x111 and 0x2 are port spaces, UDP and IPoIB, as to udaddy"
    _addEnds(parser, portOrSpace, UDADDY_PORT, more, "udp", "ipoib")
    options = parser.parse_args(arguments)
    options.space = _SPACES[options.space]
    # udaddy.c: -p is the port space, "for backwards compatibility".  Here it is a port, as with the other
    # programs, but for these two values.
    if options.port in _DATAGRAMS:
        options.space, options.port = options.port, UDADDY_PORT
    return options


def _mckey(arguments: Sequence[str]) -> Namespace:
    parser = _parser("mckey", "Send datagrams to a multicast group, or receive them.")
    add, group = parser.add_argument, parser.add_mutually_exclusive_group(required=True)
    # mckey.c: -M is an address that need not be an IP address, so nothing tells the device; hence -b.
    group.add_argument("-m", dest="group", metavar="ADDR", help="the group's address")
    group.add_argument("-M", dest="mgid", metavar="GID", help="the group's GID; needs -b")
    add("-s", dest="sender", action="store_true", help="send; without it, receive")
    add("-o", dest="sendOnly", action="store_true", help="join the group without receiving anything")
    add("-l", dest="loopback", action="store_false", help="of no account: a sender has no receives")
    add(
        "-p",
        dest="space",
        metavar="SPACE",
        type=portSpace,
        default=enums.RDMA_PS_UDP,
        help="the port space: 0x111 is UDP, the default, 0x2 IPoIB",
    )
    options = parser.parse_args(arguments)
    if options.mgid is not None and options.own is None:
        parser.error("-M needs -b")
    options.group = options.group or options.mgid
    options.peer = None
    return options


_PARSERS: dict[str, Callable[[Sequence[str]], Namespace]] = {
    "ucmatose": _ucmatose,
    "udaddy": _udaddy,
    "mckey": _mckey,
}
_PROGRAMS: dict[str, Callable[[VerbsSession, Namespace], Cmatose | Udaddy | Mckey]] = {
    "ucmatose": Cmatose,
    "udaddy": Udaddy,
    "mckey": Mckey,
}


def addProgram(parser: ArgumentParser) -> None:
    """
    Add the option that L{programOf} reads.
    """
    what = f"be this program, with its options: {', '.join(NAMES)}"
    parser.add_argument("--as", dest="program", choices=NAMES, default=NAMES[0], metavar="PROGRAM", help=what)


def programOf(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """
    @param arguments: the command line without the command.
    @return: the program that it names, by default C{rping}, and the other arguments.
    """
    # Without help and abbreviations: both belong to the program's own parser.
    parser = ArgumentParser(prog=PROGRAM, add_help=False, allow_abbrev=False)
    addProgram(parser)
    found, rest = parser.parse_known_args(arguments)
    return found.program, rest


def parseArguments(program: str, arguments: Sequence[str]) -> Namespace:
    """
    @param program: not C{rping}.
    @param arguments: those that L{programOf} leaves.
    @return: the options.
    """
    options = _PARSERS[program](["--as", program, *arguments])
    if not options.size:
        # cmatose.c create_message: without a size there are no messages.
        options.count = 0
    return options


def run(options: Namespace) -> int:
    """
    Run the program that the command line names.

    @return: the exit status.
    @raise ProgramError: it fails.
    @raise Interrupted: a signal came.
    """
    device = chosen(options.device, options.own, options.peer)
    station = VerbsSession(device, options.debug)
    try:
        program = _PROGRAMS[options.program](station, options)
        try:
            program.run()
        finally:
            program.close()
    finally:
        station.close()
    return 0
