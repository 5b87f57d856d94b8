"""
The inside of a child process: a reactor, and commands on standard input.

Each input line is a JSON object C{{"call": name, ...arguments}}; the answer
is a line C{{"answer": value}} or C{{"error": class name, "text": text}}.  Lines
C{{"event": name, ...}} come unasked.  The commands are the methods
C{do_NAME} of a L{Program}.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.protocol import connectionDone
from twisted.protocols.basic import LineReceiver
from twisted.python.failure import Failure

#: The longest line either way.
LINE_BYTES = 1 << 20


class Program:
    """
    Base of what children can do.

    @ivar reactor: the child's reactor.
    """

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        @param line: the way to the test.
        """
        self.reactor = reactor
        self._line = line

    def tell(self, event: str, **details: object) -> None:
        """
        Send an event.

        @param event: its name.
        @param details: what else is known.
        """
        self._line.tell({"event": event, **details})


class Line(LineReceiver):
    """
    The test process, on standard input and output.

    @ivar program: runs the commands.
    """

    delimiter = b"\n"
    MAX_LENGTH = LINE_BYTES
    program: Program

    def __init__(self, reactor: Any) -> None:
        """
        @param reactor: stopped when the test is done with this process.
        """
        self._reactor = reactor

    def lineReceived(self, line: bytes) -> None:
        """
        Run one command.
        """
        call = json.loads(line)
        method = getattr(self.program, "do_" + call.pop("call"))
        done: Deferred[Any] = maybeDeferred(method, **call)
        done.addCallbacks(self._answer, self._failed)

    def _answer(self, value: object) -> None:
        """
        A command is done.
        """
        self.tell({"answer": value})

    def _failed(self, failure: Failure) -> None:
        """
        A command failed.
        """
        failure.printTraceback(sys.stderr)
        self.tell({"error": type(failure.value).__name__, "text": failure.getErrorMessage()})

    def tell(self, message: dict[str, object]) -> None:
        """
        Send one line.
        """
        self.sendLine(json.dumps(message).encode())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        The test has closed our standard input.
        """
        if self._reactor.running:
            self._reactor.stop()


def main(arguments: list[str]) -> None:
    """
    Be a child.

    @param arguments: the reactor's short name, the program's module and the
        name of the class in it.
    """
    reactorName, moduleName, className = arguments
    from twisted.application.reactors import installReactor
    from twisted.internet.protocol import Factory
    from twisted.logger import globalLogBeginner, textFileLogObserver

    installReactor(reactorName)
    from twisted.internet import reactor as installed
    from twisted.internet import stdio

    Factory.noisy = False
    globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stderr)], redirectStandardIO=False)
    reactor: Any = installed
    line = Line(reactor)
    line.program = getattr(importlib.import_module(moduleName), className)(reactor, line)
    stdio.StandardIO(line)
    reactor.callWhenRunning(line.program.tell, "ready")
    reactor.run()
