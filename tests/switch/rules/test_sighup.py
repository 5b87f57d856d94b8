"""
Tests for SIGHUP.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from twisted_ib.switch.rules import sighup as module
from twisted_ib.switch.rules.sighup import reloadingOnHangup

ROOT = Path(__file__).resolve().parents[3]


class HangupTests(SynchronousTestCase):
    """
    SIGHUP, in this process.
    """

    def setUp(self) -> None:
        """
        Begin with the handler that SIGHUP has.
        """
        if threading.current_thread() is not threading.main_thread():
            raise SkipTest("signals need the main thread")
        before = signal.getsignal(signal.SIGHUP)
        self.addCleanup(signal.signal, signal.SIGHUP, before)
        self.reload = mock.Mock()
        self.calls: list[Any] = []
        self.reactor = mock.Mock(callFromThread=self.calls.append)

    def hangUp(self) -> None:
        """
        Send this process the signal.
        """
        os.kill(os.getpid(), signal.SIGHUP)
        signal.getsignal(signal.SIGHUP)

    def test_reload(self) -> None:
        """
        The rules are read again in a turn of the reactor, and afterwards the signal is as before.
        """
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with mock.patch.object(module, "_hasTerminal", return_value=True):
            with reloadingOnHangup(self.reload, self.reactor):
                self.hangUp()
                self.hangUp()
        self.assertEqual(self.calls, [self.reload] * 2)
        self.reload.assert_not_called()
        self.assertEqual(signal.getsignal(signal.SIGHUP), signal.SIG_DFL)

    def test_chain(self) -> None:
        """
        The handler that was there is called too, with the signal and the frame, and put back.
        """
        seen: list[tuple[int, object]] = []

        def application(number: int, frame: object) -> None:
            seen.append((number, frame))

        signal.signal(signal.SIGHUP, application)
        with reloadingOnHangup(self.reload, self.reactor):
            self.hangUp()
        self.assertEqual((len(self.calls), [number for number, _ in seen]), (1, [signal.SIGHUP]))
        self.assertIsNotNone(seen[0][1])
        self.assertIs(signal.getsignal(signal.SIGHUP), application)

    def test_ignored(self) -> None:
        """
        Under nohup the rules are read again all the same.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with reloadingOnHangup(self.reload, self.reactor):
            self.hangUp()
        self.assertEqual(len(self.calls), 1)
        self.assertEqual(signal.getsignal(signal.SIGHUP), signal.SIG_IGN)

    def test_taken(self) -> None:
        """
        A handler that the application puts in our place stays there; it may call ours, then and later.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with reloadingOnHangup(self.reload, self.reactor):
            ours = signal.getsignal(signal.SIGHUP)
            assert callable(ours)
            signal.signal(signal.SIGHUP, lambda *arguments: ours(*arguments))
            theirs = signal.getsignal(signal.SIGHUP)
            self.hangUp()
        self.hangUp()
        self.assertEqual(len(self.calls), 1)
        self.assertIs(signal.getsignal(signal.SIGHUP), theirs)

    def test_nested(self) -> None:
        """
        A reactor within a reactor reads for both, and one after another for itself.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with reloadingOnHangup(self.reload, self.reactor):
            with reloadingOnHangup(self.reload, self.reactor):
                self.hangUp()
            self.hangUp()
        with reloadingOnHangup(self.reload, self.reactor):
            self.hangUp()
        self.assertEqual(len(self.calls), 4)

    def test_unwanted(self) -> None:
        """
        A reactor without signal handlers, or in another thread, leaves the signal alone.
        """
        before = signal.getsignal(signal.SIGHUP)
        with reloadingOnHangup(self.reload, self.reactor, False):
            self.assertEqual(signal.getsignal(signal.SIGHUP), before)
        seen: list[object] = []

        def elsewhere() -> None:
            with reloadingOnHangup(self.reload, self.reactor):
                seen.append(signal.getsignal(signal.SIGHUP))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        self.assertEqual(seen, [before])
        with mock.patch("signal.getsignal", return_value=None), mock.patch("signal.signal") as change:
            with reloadingOnHangup(self.reload, self.reactor):
                pass
        change.assert_not_called()


# A program without a handler of its own, which prints a line when the rules were read again.
CHILD = f"""
import os, sys
sys.path.insert(0, sys.argv[1])
from twisted.internet import epollreactor
from twisted_ib.switch.rules.configuration import Configuration
from twisted_ib.switch.rules.sighup import reloadingOnHangup
reactor = epollreactor.EPollReactor()
rules = Configuration(os.environ, "p")
rules.onChange(lambda old, new: print("reloaded", new.decide("listen", "p", "", 1).verdict, flush=True))
print("first", rules.policy.decide("listen", "p", "", 1).verdict, flush=True)
reactor.callLater({HANG_SECONDS}, reactor.stop)
reactor.startRunning()
with reloadingOnHangup(rules.reload, reactor):
    print("ready", flush=True)
    reactor.mainLoop()
"""

RUNNING = """
import sys
sys.path.insert(0, sys.argv[1])
from twisted_ib.reactor import {0}
{0}.install()
from twisted.internet import reactor
reactor.callWhenRunning(print, "ready", flush=True)
reactor.run()
"""

TWISTD = """
import sys
sys.path.insert(0, sys.argv.pop(1))
sys.argv[0] = "twistd"
from twisted.scripts.twistd import run
run()
"""

# Its handler writes by itself: within a write that a signal interrupts Python's buffers take nothing, and the
# parent sends the signal as soon as it has the line before.
APPLICATION = """
import os, signal
from twisted.application import internet, service
from twisted.internet import reactor
from twisted.internet.protocol import Factory

class Told(service.Service):
    def startService(self):
        signal.signal(signal.SIGHUP, lambda *_: os.write(1, b"application told\\n"))
        reactor.callWhenRunning(lambda: reactor.callLater(0, print, "ready", flush=True))

application = service.Application("told")
Told().setServiceParent(application)
internet.TCPServer(0, Factory(), interface="127.0.0.1").setServiceParent(application)
"""


class HangupProcessTests(SynchronousTestCase):
    """
    SIGHUP, in a process with a reactor.
    """

    def start(self, **options: Any) -> subprocess.Popen[str]:
        """
        @param options: more for C{Popen}.

        @return: a process that has a file of rules.
        """
        path = Path(self.mktemp()).resolve()
        path.write_text("use tcp listen * *:*")
        self.path = str(path)
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(ROOT)],
            env=dict(os.environ, TWISTED_IB_CONFIG=self.path),
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        self.end(child)
        self.assertEqual([self.line(child), self.line(child)], ["first tcp", "ready"])
        return child

    def end(self, child: subprocess.Popen[str]) -> None:
        """
        Have a process end after the test, or if it says nothing for long.
        """
        timer = threading.Timer(HANG_SECONDS, child.kill)
        timer.start()
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        self.addCleanup(timer.cancel)

    def line(self, child: subprocess.Popen[str]) -> str:
        """
        @return: the next line that a process writes.
        """
        assert child.stdout is not None
        return child.stdout.readline().strip()

    def test_sleeping(self) -> None:
        """
        A reactor that sleeps wakes up, reads the rules, and lives on.
        """
        child = self.start(start_new_session=True)
        for verdict in ("sdp", "both"):
            Path(self.path).write_text(f"use {verdict} listen * *:*")
            child.send_signal(signal.SIGHUP)
            self.assertEqual(self.line(child), f"reloaded {verdict}")
        child.terminate()

    def test_noFile(self) -> None:
        """
        Where no file is named and none is there SIGHUP ends the program, as on other reactors.
        """
        for reactor in ("ibreactor", "asyncioreactor"):
            home = Path(self.mktemp()).resolve()
            home.mkdir()
            environment = {**os.environ, "XDG_CONFIG_HOME": str(home)}
            environment.pop("TWISTED_IB_CONFIG", None)
            child = subprocess.Popen(
                [sys.executable, "-c", RUNNING.format(reactor), str(ROOT)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self.end(child)
            self.assertEqual(self.line(child), "ready")
            child.send_signal(signal.SIGHUP)
            self.assertEqual(child.wait(HANG_SECONDS), -signal.SIGHUP)

    def test_terminalLost(self) -> None:
        """
        A program whose terminal is gone ends by the signal, as it does on any reactor.
        """
        import fcntl
        import termios

        master, slave = os.openpty()

        def control() -> None:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            # nohup(1) ignores it for all its children.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)

        try:
            child = self.start(stdin=slave, preexec_fn=control)
            Path(self.path).write_text("use sdp listen * *:*")
            child.send_signal(signal.SIGHUP)
            self.assertEqual(self.line(child), "reloaded sdp")
        finally:
            os.close(slave)
            os.close(master)
        self.assertEqual(child.wait(HANG_SECONDS), -signal.SIGHUP)

    def test_twistd(self) -> None:
        """
        C{twistd --reactor=ib} reads its rules again, calls the handler that the application has, and
        ends as ever.
        """
        path = Path(self.mktemp()).resolve()
        path.write_text("use tcp listen * *:*")
        application = path.with_name("application.tac")
        application.write_text(APPLICATION)
        options = ["-n", "--pidfile=", "--reactor=ib", "-y", str(application)]
        child = subprocess.Popen(
            [sys.executable, "-c", TWISTD, str(ROOT), *options],
            cwd=path.parent,
            env=dict(os.environ, TWISTED_IB_CONFIG=str(path)),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.end(child)
        self.until(child, "ready")
        path.write_text("use spd listen * *:*")
        child.send_signal(signal.SIGHUP)
        self.until(child, "application told")
        self.until(child, f"{path}:1:5: expected sdp, tcp or both, not 'spd'; the rules stay as they are")
        path.write_text("use tcp listen * *:*")
        child.send_signal(signal.SIGHUP)
        self.until(child, "application told")
        self.until(child, f"rules: {path}")
        child.terminate()
        self.until(child, "Server Shut Down.")
        self.assertEqual(child.wait(HANG_SECONDS), -signal.SIGTERM)

    def until(self, child: subprocess.Popen[str], text: str) -> None:
        """
        Read what a process writes up to a line.

        @param text: how the line ends.
        """
        assert child.stdout is not None
        seen = []
        for line in child.stdout:
            seen.append(line)
            if line.rstrip().endswith(text):
                return
        self.fail("".join(seen))
