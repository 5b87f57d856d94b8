"""
C{ib-ss}: the listeners and connections of this user's running processes, and why each uses its transport.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from twisted_ib.errors import HCAError, ResourceLimitError
from twisted_ib.hca.host.entries import Entry
from twisted_ib.hca.host.query import SocketsAnswer, askSockets
from twisted_ib.hca.host.search import Search
from twisted_ib.tools.program import ArgumentParser, complain, printable, secondsWithin
from twisted_ib.tools.show.devinfo import ASKED_AT_ONCE, programOf
from twisted_ib.tools.show.sockets import order, socketsOf
from twisted_ib.tools.show.sockettext import cut, table

#: The shortest and the longest interval of C{--watch}, in seconds.
WATCH_SECONDS_LEAST = 0.1
WATCH_SECONDS_MOST = 3600.0

PROGRAM = "ib-ss"

#: ECMA-48 CUP, EL and ED.  The screen is overwritten and then cleared to its end, not cleared first: no
#: flicker.
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


def told(search: Search, entry: Entry) -> SocketsAnswer | None:
    """
    @return: the answer of an HCA's process about its sockets; L{None} if it is dead.
    """
    try:
        answer = askSockets(search, entry)
    except ResourceLimitError:
        # Its backlog is full: the process is alive.
        return SocketsAnswer(0)
    except HCAError:
        return None
    return None if answer.dead else answer


def sockets() -> tuple[list[dict[str, Any]], list[int]]:
    """
    @return: the listeners and connections of this user's live processes, and the pids of those that did not
        answer in full.
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
    found = [each for answer in answers for each in socketsOf(answer, programOf)]
    return sorted(found, key=order), sorted({answer.pid for answer in answers if not answer.complete})


def notes(silent: Sequence[int]) -> list[str]:
    """
    @return: lines about processes that did not answer in full.
    """
    return [
        f"process {pid} ({printable(programOf(pid))}) does not answer" if pid else "a process does not answer"
        for pid in silent
    ]


def parseArguments(arguments: Sequence[str]) -> Namespace:
    """
    @return: the parsed command line.
    """
    parser = ArgumentParser(
        prog=PROGRAM,
        description="List the listeners and connections of your running processes: over SDP, RDMA, and TCP.",
    )
    parser.add_argument("--why", action="store_true", help="say of each why it goes that way, and since when")
    parser.add_argument("--json", action="store_true", help="one JSON list, of everything")
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        type=secondsWithin(WATCH_SECONDS_LEAST, WATCH_SECONDS_MOST),
        nargs="?",
        const=1.0,
        help="again and again, until Ctrl-C; every second by default",
    )
    return parser.parse_args(arguments)


def once(options: Namespace) -> None:
    """
    Print the list.
    """
    found, silent = sockets()
    if options.json:
        print(json.dumps(found, indent=2), flush=True)
        return
    print("\n".join(table(found, options.why)), flush=True)
    for note in notes(silent):
        print(f"{PROGRAM}: {note}", file=sys.stderr, flush=True)


def picture(options: Namespace) -> str:
    """
    @return: the output of one interval of C{--watch}: on a terminal a screen, else the list and an empty
        line, or the JSON list in one line.
    """
    found, silent = sockets()
    if options.json:
        # One line per interval: JSON Lines, which a consumer can parse as it arrives.
        return json.dumps(found) + "\n"
    lines = [*table(found, options.why), *notes(silent)]
    if not sys.stdout.isatty():
        return "\n".join(lines) + "\n\n"
    size = shutil.get_terminal_size()
    head = f"{PROGRAM}  {time.strftime('%H:%M:%S')}  {len(found)} sockets"
    screen = cut([head, "", *lines], size.columns, size.lines)
    return _HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in screen) + _CLEAR_REST


def watch(options: Namespace, pause: Callable[[float], object] = time.sleep) -> None:
    """
    Print the list again and again, until Ctrl-C.
    """
    try:
        while True:
            print(picture(options), end="", flush=True)
            pause(options.watch)
    except KeyboardInterrupt:
        pass


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-ss}.

    @param arguments: the command line, by default this process's.
    @return: the exit status.
    """
    options = parseArguments(sys.argv[1:] if arguments is None else arguments)
    try:
        if options.watch is None:
            once(options)
        else:
            watch(options)
    except BrokenPipeError:
        # Python's signal documentation, note on SIGPIPE: the interpreter flushes standard output once more
        # when it exits, and would report the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (HCAError, OSError) as error:
        complain(PROGRAM, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
