"""
What the commands share: a reactor, an exit status, errors of one line.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    # Commands that need no reactor begin sooner without it.
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

INTERRUPTED = 130


class ProgramError(Exception):
    """
    A command cannot do what it was asked to; the text is for its user.
    """


class ArgumentParser(argparse.ArgumentParser):
    """
    A parser of command lines whose errors are one line.
    """

    def error(self, message: str) -> NoReturn:
        """
        Say what is wrong, without the usage, and exit.

        @param message: what is wrong.
        """
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def secondsWithin(least: float, most: float) -> Callable[[str], float]:
    """
    @param least: a bound, in seconds; 0 is no time even then.
    @param most: another.

    @return: what makes a time between them of an option.
    """

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not (value > 0 and least <= value <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is no time from {least:g} to {most:g} seconds")
        return value

    return parse


def sentence(error: object) -> str:
    """
    Put an error in one line for a user.

    @param error: the error.

    @return: its text; where that says nothing, its type.
    """
    reasons = getattr(error, "reasons", None)
    inner = getattr(reasons[0], "value", None) if isinstance(reasons, list) and reasons else None
    if isinstance(inner, BaseException):
        # ResponseFailed and its kin of twisted.web only wrap what happened.
        return sentence(inner)
    if isinstance(error, OSError) and error.strerror:
        # Not C{str(error)}: to a user "[Errno 13]" says nothing.
        where = "" if error.filename is None else f"{error.filename}: "
        return where + " ".join(str(error.strerror).split())
    text = " ".join(str(error).split())
    return text or type(error).__name__


def printable(text: str) -> str:
    """
    @param text: what another process says.

    @return: the same for a terminal, with escapes for what is not printable.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def complain(program: str, error: BaseException | None) -> None:
    """
    Print an error as one line on standard error.

    @param program: the command's name.
    @param error: the error.
    """
    print(f"{program}: {sentence(error)}", file=sys.stderr, flush=True)


def installReactor() -> Any:
    """
    Install the C{ib} reactor, unless a reactor is installed already.

    @return: the reactor.
    """
    if "twisted.internet.reactor" not in sys.modules:
        from twisted_ib.reactor.ibreactor import install

        install()
    from twisted.internet import reactor

    return reactor


def runProgram(program: str, start: Callable[[Any], Deferred[int]]) -> int:
    """
    Run a command on the C{ib} reactor until it is done, or interrupted.

    @param program: the command's name.
    @param start: the command itself: takes the reactor, gives the exit
        status later.

    @return: the exit status.
    """
    from twisted.logger import globalLogBeginner
    from twisted.python.failure import Failure

    # Nobody asked for a log, and its default prints tracebacks on standard error.
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)
    reactor = installReactor()
    status = INTERRUPTED
    stopping = False

    def stop() -> None:
        nonlocal stopping
        stopping = True

    def ended(result: int | Failure) -> None:
        nonlocal status
        if stopping:
            return  # A signal ended the command: what fails in its wake is no news.
        if isinstance(result, Failure):
            if not result.check(SystemExit):  # rich's, when nobody reads any more
                complain(program, result.value)
            status = 1
        else:
            status = result
        reactor.stop()

    def begin() -> None:
        # A closed terminal leaves nothing behind either.
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, lambda *_: reactor.callFromThread(reactor.stop))
        start(reactor).addBoth(ended)

    reactor.addSystemEventTrigger("before", "shutdown", stop)
    reactor.callWhenRunning(begin)
    reactor.run()
    return status
