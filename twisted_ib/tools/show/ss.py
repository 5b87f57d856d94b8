"""
C{ib-ss}: the listeners and connections of this user's running processes, and why each uses its transport.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from attrs import define

from twisted_ib.errors import HCAError, ResourceLimitError
from twisted_ib.hca.base.socketrows import COLUMNS, LISTENER
from twisted_ib.hca.host.entries import Entry
from twisted_ib.hca.host.query import SocketsAnswer, askSockets
from twisted_ib.hca.host.search import Search
from twisted_ib.hca.host.socketpage.reading import readPage
from twisted_ib.tools.program import ArgumentParser, complain, printable, secondsWithin, write
from twisted_ib.tools.show.filters import FilterError, Test, expression, inState
from twisted_ib.tools.show.processes import ANYWHERE, ASKED_AT_ONCE, TCP, programOf, tcpRows
from twisted_ib.tools.show.sockettext import cut, order, socketsOf, table, total

#: How long a process may take for one page of its answer, and for all of them, in seconds.  After that its
#: socket page says what it has: the answer has figures besides.
PAGE_SECONDS = 0.03
ANSWER_SECONDS = 0.2

#: The shortest and the longest interval of C{--watch}, in seconds.
WATCH_SECONDS_LEAST = 0.1
WATCH_SECONDS_MOST = 3600.0

PROGRAM = "ib-ss"

#: ECMA-48 CUP, EL and ED.  The screen is overwritten and then cleared to its end, not cleared first: no
#: flicker.
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


@define
class Found:
    """
    The sockets and devices of one process.

    @ivar pid: The process, from the kernel; 0 if it is outside our pid namespace.
    @ivar sockets: Its listeners and connections.
    @ivar note: A remark about it, or C{""}.
    """

    pid: int
    sockets: list[dict[str, Any]]
    note: str = ""


def told(search: Search, entry: Entry) -> Found | None:
    """
    @return: the sockets of an HCA's process, by its answer, or by its page if it is busy; L{None} if it is
        dead.
    """
    try:
        answer = askSockets(search, entry, PAGE_SECONDS, ANSWER_SECONDS)
    except ResourceLimitError:
        # Its backlog is full: the process is alive.
        answer = SocketsAnswer(0)
    except HCAError:
        return None
    if answer.dead:
        return None
    if answer.complete:
        return Found(answer.pid, socketsOf(answer, programOf))
    return standing(entry, answer.pid)


def pageOf(entry: Entry) -> dict[str, Any] | None:
    """
    @return: the socket page of an HCA's process, if there is one.
    """
    socket = entry.directory.status(entry.name)
    # In a directory of several users the page must be of the user whose socket it stands beside.
    return None if socket is None else readPage(entry.directory.fd, entry.name, socket.st_uid)


def standing(entry: Entry, pid: int) -> Found:
    """
    @return: the sockets that stand in the page of a process, with the kernel's of TCP.
    """
    who = f"process {pid} ({printable(programOf(pid))})" if pid else "a process"
    page = pageOf(entry)
    if page is None:
        return Found(pid, [], f"{who} does not answer")
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in page["rows"]]
    reasons = [row for row in rows if row["local"] is not None]
    known = tcpRows(pid, reasons) if pid else None
    if known is not None:
        others = [row for row in rows if row["provider"] != TCP]
        page["rows"] = [list(row.values()) for row in others] + known
    else:
        # The kernel does not show the process.  The row about all other sockets of TCP is none of them.
        page["rows"] = [list(row.values()) for row in rows if row["local"] != ANYWHERE]
    note = f"{who} does not answer in time: shown without its figures"
    return Found(pid, socketsOf(SocketsAnswer(pid, [page], True), programOf), note)


def sockets() -> tuple[list[dict[str, Any]], list[str]]:
    """
    @return: the listeners and connections of this user's live processes, and notes about some of these.
    @raise HCAError: there is a run directory, and it cannot be used.
    """
    search = Search()
    try:
        entries = search.hcas()
        # At the same time, so that many silent processes take no longer than one.
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            answers = [answer for answer in pool.map(lambda entry: told(search, entry), entries) if answer]
    finally:
        search.close()
    found = [each for answer in answers for each in answer.sockets]
    return sorted(found, key=order), sorted({answer.note for answer in answers if answer.note})


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
    """
    parser = ArgumentParser(
        prog=PROGRAM,
        description="List the listeners and connections of your running processes: over SDP, RDMA, and TCP.",
    )
    parser.add_argument("-l", "--listening", action="store_true", help="only listeners")
    parser.add_argument("-t", "--tcp", action="store_true", help="only what goes over TCP")
    parser.add_argument("-a", "--all", action="store_true", help="listeners and connections, also with -l")
    parser.add_argument("-n", "--numeric", action="store_true", help="as of ss(8): numbers are never names")
    parser.add_argument("-p", "--processes", action="store_true", help="the sockets of each process together")
    parser.add_argument("--pid", type=int, action="append", help="only of this process; may be repeated")
    parser.add_argument("--state", action="append", help="only in this state, by its name in ss(8)")
    parser.add_argument("-s", "--summary", action="store_true", help="only how many there are")
    parser.add_argument("-H", "--no-header", action="store_true", help="no names of columns, no total")
    parser.add_argument("--why", action="store_true", help="say of each why it goes that way, and since when")
    parser.add_argument(
        "-i",
        "--info",
        action="store_true",
        help="say of each connection its age, messages, bytes and round trip, as far as they are known",
    )
    parser.add_argument("--json", action="store_true", help="one JSON list, of everything")
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        type=secondsWithin(WATCH_SECONDS_LEAST, WATCH_SECONDS_MOST),
        nargs="?",
        const=1.0,
        help="again and again, until Ctrl-C; every second by default",
    )
    parser.add_argument(
        "filter", nargs="*", help="as of ss(8): 'sport = :80 and dst 10.0.0.0/8'; also src, dport, state"
    )
    return parser


def parseArguments(arguments: Sequence[str]) -> Namespace:
    """
    @return: the parsed command line.
    """
    parser = commandLine()
    # Options may stand between the words of a filter, as ss(8) has it.
    options = parser.parse_intermixed_args(arguments)
    try:
        options.test = chosen(options)
    except FilterError as error:
        parser.error(str(error))
    return options


def chosen(options: Namespace) -> Test:
    """
    @return: the test of the options and of the filter together.
    @raise FilterError: the filter is none.
    """
    tests: list[Test] = []
    if options.listening and not options.all:
        tests.append(lambda row: row["kind"] == LISTENER)
    if options.tcp:
        tests.append(lambda row: row["provider"] == TCP)
    if options.pid:
        tests.append(lambda row: row["pid"] in options.pid)
    if options.state:
        states = [inState(name) for name in options.state]
        tests.append(lambda row: any(test(row) for test in states))
    if options.filter:
        tests.append(expression(options.filter))
    return lambda row: all(test(row) for test in tests)


def lines(options: Namespace, found: list[dict[str, Any]]) -> list[str]:
    """
    @return: the list for people.
    """
    if options.summary:
        return [total(found)]
    listed = table(found, options.why, options.processes, not options.no_header, options.info)
    return listed if options.no_header else [*listed, total(found)]


def once(options: Namespace) -> None:
    """
    Print the list.
    """
    found, notes = sockets()
    found = [row for row in found if options.test(row)]
    if options.json:
        write(json.dumps(found, indent=2))
        return
    write("\n".join(lines(options, found)))
    for note in notes:
        print(f"{PROGRAM}: {note}", file=sys.stderr, flush=True)


def picture(options: Namespace) -> str:
    """
    @return: the output of one interval of C{--watch}: on a terminal a screen, else the list and an empty
        line, or the JSON list in one line.
    """
    found, notes = sockets()
    found = [row for row in found if options.test(row)]
    if options.json:
        # One line per interval: JSON Lines, which a consumer can parse as it arrives.
        return json.dumps(found) + "\n"
    listed = [*lines(options, found), *notes]
    if not sys.stdout.isatty():
        return "\n".join(listed) + "\n\n"
    size = shutil.get_terminal_size()
    head = f"{PROGRAM}  {time.strftime('%H:%M:%S')}  {len(found)} sockets"
    screen = cut([head, "", *listed], size.columns, size.lines)
    return _HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in screen) + _CLEAR_REST


def watch(options: Namespace, pause: Callable[[float], object] = time.sleep) -> None:
    """
    Print the list again and again, until Ctrl-C.
    """
    isOver = False

    def interrupt(*_: object) -> None:
        nonlocal isOver
        isOver = True
        raise KeyboardInterrupt

    # The interpreter drops an exception that is raised in a finalizer or a weak reference's callback.
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        while not isOver:
            write(picture(options), end="")
            pause(options.watch)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, before)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-ss}.
    """
    options = parseArguments(sys.argv[1:] if arguments is None else arguments)
    try:
        if options.watch is None:
            once(options)
        else:
            watch(options)
    except KeyboardInterrupt:
        return 130
    except (HCAError, OSError) as error:
        complain(PROGRAM, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
