"""
Shared by all commands: starting the reactor, the exit status, errors of one line.

The C{main} of each takes the command line without the command, by default this process's, and returns the
exit status.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from twisted_ib import limits

if TYPE_CHECKING:
    # Not at run time: commands that need no reactor start faster without importing twisted.internet.
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

#: bash(1): 128 and the number of the signal, SIGINT.
INTERRUPTED = 130

#: Seconds of one attempt of a command that asks the nodes of a subnet, at most.
ATTEMPT_SECONDS = 60.0

_UNITS = {"k": 1 << 10, "K": 1 << 10, "m": 1 << 20, "M": 1 << 20}


class ProgramError(Exception):
    """
    An error whose text is for the command's user.
    """


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        # Imported here: commands that look at processes start faster without it.
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("twisted-ib")
        except PackageNotFoundError:
            number = "of a checkout that is not installed"
        write(f"{parser.prog} {number}")
        parser.exit()


class _Formatter(argparse.HelpFormatter):
    # One is made for each argument.  Without a width argparse asks shutil, which imports compression.
    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"width": _columns() - 2, **options})


def _columns() -> int:
    # As shutil.get_terminal_size().
    with suppress(KeyError, ValueError):
        columns = int(os.environ["COLUMNS"])
        if columns > 0:
            return columns
    with suppress(OSError):
        columns = os.get_terminal_size().columns
        if columns > 0:
            return columns
    return 80


class ArgumentParser(argparse.ArgumentParser):
    """
    A parser of command lines whose errors are one line.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": _Formatter, **options})
        # A parser without --help only takes some words out for another one.
        if self.add_help:
            self.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")

    def error(self, message: str) -> NoReturn:
        # Without the usage.
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """
        Exit, also if nobody reads the help any more.
        """
        if status == 0:
            write("", end="")
        super().exit(status, message)


def secondsWithin(least: float, most: float) -> Callable[[str], float]:
    """
    @return: an argparse type: seconds from C{least} to C{most}, but never 0.
    """

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        # Written so that NaN, which float() parses, fails.
        if not (value > 0 and least <= value <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is no time from {least:g} to {most:g} seconds")
        return value

    return parse


def addAsking(parser: ArgumentParser, device: str) -> None:
    """
    Add the options of a command that asks the nodes of a subnet.

    @param device: the name of the device that asks by default.
    """
    parser.add_argument("--device", default=device, help="the device that asks (default: %(default)s)")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=secondsWithin(0, ATTEMPT_SECONDS),
        default=1.0,
        help="for each of four attempts (default: %(default)g)",
    )


def whole(least: int, most: int) -> Callable[[str], int]:
    """
    @return: an argparse type: integers from C{least} to C{most}.
    """

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            # Out of bounds: one message for both errors.
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to {most}")
        return value

    return parse


def size(text: str) -> int:
    """
    Parse a size option: bytes, with a suffix K (1024) or M (1024 K) if wanted.

    @return: Bytes.
    """
    unit = _UNITS.get(text[-1:], 0)
    try:
        value = int(text[:-1]) * unit if unit else int(text)
    except ValueError:
        value = -1
    if not 1 <= value <= limits.PERF_MESSAGE:
        raise argparse.ArgumentTypeError(f"{text!r} is no size from 1 to {limits.PERF_MESSAGE >> 20}M")
    return value


def sentence(error: object) -> str:
    """
    @return: an error's text in one line for a user; its type if the text is empty.
    """
    reasons = getattr(error, "reasons", None)
    inner = getattr(reasons[0], "value", None) if isinstance(reasons, list) and reasons else None
    if isinstance(inner, BaseException):
        # twisted.web.client.ResponseFailed, RequestTransmissionFailed: only wrap the Failures that happened.
        return sentence(inner)
    if isinstance(error, OSError) and error.strerror:
        # Not str(error), which begins with "[Errno 13]".
        where = "" if error.filename is None else f"{error.filename}: "
        return where + " ".join(str(error.strerror).split())
    text = " ".join(str(error).split())
    return text or type(error).__name__


def printable(text: str) -> str:
    """
    @return: text of another process made safe for a terminal: escapes for unprintable characters.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def pythonProgram(text: str, arguments: Sequence[str]) -> list[str]:
    """
    Make a command line for a Python program that imports from where this process does, installed or not.

    @param arguments: its command line.
    """
    # sys.path is passed on because -c and a different working directory would give the child another one.
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {text}", *arguments]


def childProgram(text: str, arguments: Sequence[str]) -> list[str]:
    """
    Make a command line as L{pythonProgram}, for a child of this process, which gets SIGTERM when this one
    ends, be it by SIGKILL.
    """
    tie = "from twisted_ib.hca.host.libc import endWithParent as tie"
    return pythonProgram(f"{tie}; tie({os.getpid()}, {signal.SIGTERM:d}); {text}", arguments)


def complain(program: str, error: BaseException | None) -> None:
    """
    Print an error as one line on standard error.
    """
    print(f"{program}: {sentence(error)}", file=sys.stderr, flush=True)


def remark(program: str, text: str, isAsked: bool = False) -> None:
    """
    Print a line on standard error, if it was asked for or somebody reads it.
    """
    if isAsked or (sys.stderr is not None and sys.stderr.isatty()):
        print(f"{program}: {printable(text)}", file=sys.stderr, flush=True)


def installReactor() -> Any:
    """
    Install the C{ib} reactor, unless a reactor is installed already, and return the reactor.
    """
    # twisted.internet.main.installReactor raises ReactorAlreadyInstalledError otherwise.
    if "twisted.internet.reactor" not in sys.modules:
        from twisted_ib.reactor.ibreactor import install

        install()
    from twisted.internet import reactor

    return reactor


def write(text: str, end: str = "\n") -> None:
    """
    Print lines to standard output.

    @raise SystemExit: Nothing can be written there; silently if it was closed.
    """
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"standard output: {sentence(error)}", file=sys.stderr, flush=True)
        # Without this the interpreter complains again, when it flushes what is left at exit (Python's signal
        # documentation, "Note on SIGPIPE").
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


def runProgram(program: str, start: Callable[[Any], Deferred[int]]) -> int:
    """
    Run a command on the C{ib} reactor until it ends or is interrupted.

    @param program: the command's name.
    @param start: called with the reactor; its result is the exit status.
    @return: the exit status.
    """
    from twisted.internet.defer import maybeDeferred
    from twisted.logger import globalLogBeginner
    from twisted.python.failure import Failure

    # twisted.logger buffers events until logging begins, and prints critical ones with tracebacks on
    # standard error.
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)
    reactor = installReactor()
    status = INTERRUPTED
    stopping = False

    def stop() -> None:
        nonlocal stopping
        stopping = True

    def hangUp(*_: object) -> None:
        nonlocal status
        status = 128 + signal.SIGHUP
        reactor.callFromThread(reactor.stop)

    def ended(result: int | Failure) -> None:
        nonlocal status
        if stopping:
            # A signal ended the command: errors that follow from that are not worth reporting.
            return
        if isinstance(result, Failure):
            # L{write} exits thus.
            if not result.check(SystemExit):
                complain(program, result.value)
            status = 1
        else:
            status = result
        reactor.stop()

    def begin() -> None:
        # ReactorBase installs handlers for SIGINT, SIGTERM and SIGBREAK only.  A closed terminal must clean
        # up too.
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, hangUp)
        maybeDeferred(start, reactor).addBoth(ended)

    # Before shutdown: the connections that fail by it must find this set.
    reactor.addSystemEventTrigger("before", "shutdown", stop)
    reactor.callWhenRunning(begin)
    reactor.run()
    # The signal that has ended it, if one has, by which twistd ends, too.
    number = getattr(reactor, "_exitSignal", None)
    return 128 + number if number and status == INTERRUPTED else status
