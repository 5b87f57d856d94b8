"""
A reactor of its own for tests of the switch, and servers and clients that know of TCP only.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any
from unittest import mock

from twisted.internet.defer import Deferred
from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.python.failure import Failure

from tests.support.waiting import HANG_SECONDS, runToEnd

Scenario = Callable[[Any], Coroutine[Any, Any, None]]


class Server(Factory):
    """
    Counts.

    @ivar starts: How often it was started.
    @ivar stops: How often it was stopped.
    @ivar made: The protocols.
    """

    noisy = False

    def __init__(self) -> None:
        self.starts = self.stops = 0
        self.made: list[Any] = []
        self.waiting: list[Deferred[Any]] = []

    def startFactory(self) -> None:
        self.starts += 1

    def stopFactory(self) -> None:
        self.stops += 1

    def buildProtocol(self, addr: Any) -> Any:
        """
        One that is kept.
        """
        made: Any = Protocol()
        made.connectionMade = lambda: self._made(made)
        return made

    def _made(self, made: Any) -> None:
        self.made.append(made)
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each.callback(made)

    def next(self) -> Deferred[Any]:
        """
        @return: Fires with the next one.
        """
        found: Deferred[Any] = Deferred()
        self.waiting.append(found)
        return found


class Client(ClientFactory):
    """
    Records its calls.
    """

    noisy = False

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.done: Deferred[str] = Deferred()
        self.lost: Deferred[None] = Deferred()
        self.answer: Any = Protocol()

    def buildProtocol(self, addr: Any) -> Any:
        """
        The answer, or what it raises.
        """
        self.log.append("build")
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            self.answer.connectionMade = lambda: self._said("made")
        return self.answer

    def _said(self, what: str) -> None:
        """
        The first that happens fires C{done}.
        """
        self.log.append(what)
        if not self.done.called:
            self.done.callback(what)

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        """
        It did not work.
        """
        self.reason: Any = reason.value
        self._said("failed")

    def clientConnectionLost(self, connector: Any, reason: Failure) -> None:
        """
        It is over.
        """
        self.log.append("lost")
        self.lost.callback(None)


class SwitchTestsBuilder(ReactorBuilder):
    """
    C{listenTCP} and C{connectTCP} of the C{ib} reactor without rules.
    """

    _reactors = ["twisted_ib.reactor.ibreactor.IBReactor"]
    timeout = HANG_SECONDS

    def setUp(self) -> None:
        """
        A run directory and a configuration of our own.
        """
        self.folder = tempfile.mkdtemp(prefix="tib-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.run_ = os.path.join(self.folder, "run")
        patched = mock.patch.dict(os.environ, {"TWISTED_IB_RUN_DIR": self.run_, "HOME": self.folder})
        patched.start()
        self.addCleanup(patched.stop)
        for name in ("TWISTED_IB_CONFIG", "XDG_CONFIG_HOME", "SIMPLE_LIBSDP", "ALWAYS_USE_SDP"):
            os.environ.pop(name, None)

    def rules(self, text: str) -> None:
        """
        Have rules.
        """
        path = os.path.join(self.folder, "rules")
        with open(path, "w") as file:
            file.write(text)
        os.environ["TWISTED_IB_CONFIG"] = path

    def play(self, scenario: Scenario) -> None:
        """
        Run a scenario in a reactor.
        """
        reactor = self.buildReactor()
        runToEnd(self, reactor, lambda: scenario(reactor))

    def services(self) -> list[str]:
        """
        @return: The published services.
        """
        return [name for name in os.listdir(self.run_) if name.startswith("svc-")]
