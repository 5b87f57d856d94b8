"""
The C{ib} reactor in a process without a free descriptor: as epoll (issue 16, point 19).
"""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from tests.switch.case import Client, Server, SwitchTestsBuilder
from twisted_ib.reactor.ibreactor import IBReactor
from twisted_ib.switch.switch import Switch, explain

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import os, resource, sys
from twisted.application.reactors import installReactor
reactor = installReactor(sys.argv[1])
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import ClientFactory

class Factory(ClientFactory):
    def clientConnectionFailed(self, connector, reason):
        print(reason.type.__name__, reason.value.osError)

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    reactor.listenTCP(0, Factory())
except CannotListenError as e:
    print("CannotListenError", e.socketError.errno)
reactor.connectTCP("127.0.0.1", 9, Factory())
reactor.callLater(0.05, reactor.stop)
reactor.run()
print("ran")
"""


class ProcessTests(SynchronousTestCase):
    """
    A process of its own.
    """

    def test_first(self) -> None:
        """
        The first C{listenTCP}, C{connectTCP} and C{run} fail as on epoll, or do not fail.
        """
        for reactor in "epoll", "ib":
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, reactor],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
            )
            number = str(errno.EMFILE)
            expected = ["CannotListenError", number, "ConnectBindError", number, "ran"]
            self.assertEqual(done.stdout.split(), expected, done.stderr)


class LaterTests(SwitchTestsBuilder):
    """
    Modules that cannot be read now.
    """

    def test_later(self) -> None:
        """
        A call goes to TCP while the switch cannot be loaded, and a later one through the switch.
        """
        reasons: list[BaseException] = [MemoryError(), OSError(errno.EMFILE, "Too many open files")]
        load = Switch.load

        def unloadable(this: Any, role: str) -> None:
            if reasons:
                raise reasons.pop()
            load(role)

        self.patch(Switch, "load", unloadable)

        async def scenario(reactor: Any) -> None:
            port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
            client = Client()
            reactor.connectTCP("127.0.0.1", port.getHost().port, client)
            self.assertEqual((await client.done, reasons), ("made", []))
            self.assertEqual(explain(client.answer.transport).provider, "tcp")
            port = reactor.listenTCP(0, Server(), interface="127.0.0.1")
            self.assertEqual(explain(port).provider, "both")

        self.play(scenario)

    def test_report(self) -> None:
        """
        A reactor runs without its report.
        """

        def unloadable(this: Any) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        self.patch(IBReactor, "socketReport", property(unloadable))
        ran = []
        reactor: Any = self.buildReactor()
        reactor.callWhenRunning(ran.append, True)
        reactor.callLater(0, reactor.stop)
        reactor.run()
        self.assertEqual(ran, [True])


globals().update(LaterTests.makeTestCaseClasses())
del LaterTests
