"""
Tests for C{ib-ipoib}, without a TUN: L{tests.tun} has those with one.
"""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase, TestCase
from zope.interface.verify import verifyObject

from tests.support.commands import refusal
from tests.support.waiting import becomes
from twisted_ib.errors import HCAError, InterfaceClosedError, TunError
from twisted_ib.internet import channel
from twisted_ib.ipoib import forwarder, interface
from twisted_ib.tools import ipoib
from twisted_ib.tools.ipoib import ChildEnd, Session, endLike, parseArguments
from twisted_ib.tools.program import ProgramError

RUN = ["run", "ib0", "10.9.0.1/24", "fe80::1/64", "--", "ping", "--", "-c1"]


class ArgumentsTests(SynchronousTestCase):
    """
    L{parseArguments}.
    """

    def test_run(self) -> None:
        """
        The command is behind the first C{--}, with all that looks like options.
        """
        options = parseArguments(RUN)
        self.assertEqual(options.arguments, ["ping", "--", "-c1"])
        self.assertEqual(options.addresses, [ip_interface("10.9.0.1/24"), ip_interface("fe80::1/64")])
        self.assertEqual((options.device, options.name, options.tun), ("ib0", "ib0", "/dev/net/tun"))
        self.assertEqual((options.mode, options.mtu), (None, None))

    def test_up(self) -> None:
        """
        Its options.
        """
        line = "up roce0 10.9.0.1/24 --name ip0 --netns blue --mode datagram --mtu 2044 --tun /tun"
        options = parseArguments(line.split())
        self.assertEqual(
            (options.name, options.netns, options.mode, options.mtu), ("ip0", "blue", "datagram", 2044)
        )
        self.assertEqual((options.tun, options.arguments), ("/tun", []))

    def test_refused(self) -> None:
        """
        Each mistake is one line.
        """
        for line, words in (
            ("run ib0 10.9.0.1/24", "run needs -- COMMAND"),
            ("up ib0 10.9.0.1/24 -- true", "up runs no command"),
            ("run ib0 10.9.0.1 -- true", "'10.9.0.1' is no ADDRESS/LENGTH"),
            ("run ib0 10.9.0.1/33 -- true", "'10.9.0.1/33' is no ADDRESS/LENGTH"),
            ("run ib0 10.9.0.1/24 --mtu 65521 -- true", "no number from 576 to 65520"),
            ("run ib0 10.9.0.1/24 --name 0123456789abcdef -- true", "is no name of an interface"),
            ("run ib0 10.9.0.1/24 --name a/b -- true", "is no name of an interface"),
            ("run ib0 10.9.0.1/24 --name all -- true", "'all' is no name of an interface"),
        ):
            self.assertIn(words, refusal(self, parseArguments, *line.split()))


class FakeInterface:
    """
    An IPoIB interface.
    """

    made: list[FakeInterface] = []

    def __init__(self, channel: object, addresses: list[Any], **options: Any) -> None:
        self.addresses, self.options, self.mtu = addresses, options, 0
        self.consumer: Any = None
        self.made.append(self)

    def close(self) -> Deferred[None]:
        self.made.remove(self)
        self.consumer.interfaceFailed(InterfaceClosedError("closed"))
        return succeed(None)


class FakeTun:
    """
    A TUN.
    """

    name, descriptor = "ib0", -1

    def __init__(self) -> None:
        self.isClosed = False

    def begin(self, mtu: int, addresses: Any) -> None:
        """
        See L{Tun<twisted_ib.ipoib.tun.Tun>}.
        """

    routeMulticast = close = lambda self: None


class FakeReactor(Clock):
    """
    A reactor with readers and triggers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Any] = []
        self.addReader, self.removeReader = self.readers.append, self.readers.remove
        self.triggers: list[Any] = []

    def addSystemEventTrigger(self, phase: str, event: str, call: Any) -> None:
        self.triggers.append((phase, event, call))


class SessionTests(SynchronousTestCase):
    """
    L{Session}.
    """

    def setUp(self) -> None:
        """
        A session that has begun.
        """
        self.patch(channel, "channelFor", lambda reactor, device: device)
        self.patch(interface, "IPoIBInterface", FakeInterface)
        self.patch(FakeInterface, "made", [])
        self.reactor = FakeReactor()
        self.session = Session(
            self.reactor, FakeTun(), parseArguments([*RUN[:4], "--mode=datagram", *RUN[4:]])
        )  # type: ignore[arg-type]
        self.begun = Deferred.fromCoroutine(self.session.begin())
        [self.interface] = FakeInterface.made

    def test_up(self) -> None:
        """
        It has begun when the interface is up; what fails then is said.
        """
        self.assertEqual(self.interface.options, {"isConnected": False, "mtu": None})
        self.assertNoResult(self.begun)
        said = StringIO()
        with redirect_stderr(said):
            self.interface.consumer.interfaceFailed(HCAError("no subnet manager"))
            self.interface.mtu = 2044
            self.interface.consumer.interfaceUp(2044)
            self.successResultOf(self.begun)
            self.interface.consumer.interfaceFailed(HCAError("the group has gone"))
        self.assertEqual(said.getvalue(), "ib-ipoib: the group has gone\n")
        self.assertEqual(self.session.describe(), "ib0: 10.9.0.1/24 fe80::1/64 mtu 2044 on ib0")
        self.assertIsInstance(self.reactor.readers[0], forwarder.Forwarder)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_late(self) -> None:
        """
        A subnet that is not there after a time is an error, with the reason.
        """
        self.interface.consumer.interfaceFailed(HCAError("no subnet manager"))
        self.reactor.advance(ipoib.JOIN_SECONDS)
        error = self.failureResultOf(self.begun, ProgramError).value
        self.assertEqual(str(error), "no interface after 30 seconds: no subnet manager")

    def test_end(self) -> None:
        """
        The reactor's end closes the interface, which is no error.
        """
        self.interface.consumer.interfaceUp(2044)
        [(phase, event, call)] = self.reactor.triggers
        self.assertEqual((phase, event), ("before", "shutdown"))
        self.successResultOf(call())
        self.assertEqual((FakeInterface.made, self.reactor.readers), ([], []))
        self.assertNoResult(self.session.over)

    def test_over(self) -> None:
        """
        An interface that is closed by its device ends it, after a TUN that has gone, too.
        """
        self.interface.consumer.interfaceUp(2044)
        self.session._failed(TunError("ib0: the TUN device has gone"))
        self.interface.consumer.interfaceFailed(InterfaceClosedError("the device is closed"))
        self.failureResultOf(self.session.over, TunError)

    def test_overBefore(self) -> None:
        """
        One that is closed before it was up is the reason why it did not begin, at once.
        """
        self.interface.consumer.interfaceFailed(InterfaceClosedError("the device is closed"))
        self.failureResultOf(self.begun, InterfaceClosedError)
        self.assertNoResult(self.session.over)
        self.assertEqual(self.reactor.getDelayedCalls(), [])


class FakeCommand:
    """
    A child that ends by itself.

    @cvar script: what its shell does.
    """

    script = "exit 3"

    def __init__(self, arguments: list[str], name: str, node: str) -> None:
        if node != "/tun":
            raise TunError(f"{node} does not exist")
        self.tun = FakeTun()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.execvp("sh", ["sh", "-c", self.script])
            finally:
                os._exit(125)

    def go(self) -> None:
        """
        See L{Command<twisted_ib.ipoib.namespaces.Command>}.
        """

    abandon = go


class FakeSession:
    """
    A session that begins, or fails.
    """

    error: Exception | None = None

    def __init__(self, reactor: object, tun: FakeTun, options: Namespace) -> None:
        self.over: Deferred[int] = Deferred()

    async def begin(self) -> None:
        if self.error:
            raise self.error

    def describe(self) -> str:
        return "ib0: up"


class CommandTests(TestCase):
    """
    The child of C{ib-ipoib run}.
    """

    def setUp(self) -> None:
        """
        A session without a device, and signals as they were at the end.
        """
        self.patch(ipoib, "Session", FakeSession)
        for each in (*(signal.SIGINT, signal.SIGQUIT), *ipoib.PASSED):
            self.addCleanup(signal.signal, each, signal.getsignal(each))

    async def test_status(self) -> None:
        """
        The result is the child's, which has its signals.
        """
        ready = Path(self.mktemp()).resolve()
        script = f"trap 'exit 4' USR1; touch {ready}; while :; do sleep 0.01; done"
        self.patch(FakeCommand, "script", script)
        command = FakeCommand([], "ib0", "/tun")
        ended = Deferred.fromCoroutine(ipoib.serveCommand(reactor, command, Namespace()))  # type: ignore[arg-type]
        self.assertEqual(signal.getsignal(signal.SIGINT), signal.SIG_IGN)
        await becomes(reactor, ready.exists)
        os.kill(os.getpid(), signal.SIGUSR1)
        self.assertEqual(os.WEXITSTATUS(await ended), 4)
        # The child has gone: nothing is raised.
        os.kill(os.getpid(), signal.SIGUSR1)

    async def test_noNetwork(self) -> None:
        """
        A session that fails is said, and the child ends without its command.
        """
        self.patch(FakeSession, "error", ProgramError("no subnet"))
        said = StringIO()
        with redirect_stderr(said):
            command = FakeCommand([], "ib0", "/tun")
            status = await ipoib.serveCommand(reactor, command, Namespace())  # type: ignore[arg-type]
        self.assertEqual((os.WEXITSTATUS(status), said.getvalue()), (3, "ib-ipoib: no subnet\n"))

    def test_descriptor(self) -> None:
        """
        A child's end is a reader of the reactor, until it is over.
        """
        fake = FakeReactor()
        child = ChildEnd(fake, FakeCommand([], "ib0", "/tun").pid)
        verifyObject(IReadDescriptor, child)
        self.assertEqual((fake.readers, child.logPrefix()), ([child], "ib-ipoib"))
        child.doRead()
        self.assertEqual(fake.readers, [])
        self.assertEqual(os.WEXITSTATUS(self.successResultOf(child.ended)), 3)


class MainTests(SynchronousTestCase):
    """
    What C{ib-ipoib} ends with.
    """

    def setUp(self) -> None:
        """
        No reactor: what it would run has ended at once.
        """
        self.patch(ipoib, "Command", FakeCommand)
        self.patch(ipoib, "Session", FakeSession)
        self.patch(ipoib, "runProgram", self.runProgram)

        async def serveCommand(reactor: object, command: FakeCommand, options: Namespace) -> int:
            return os.waitpid(command.pid, 0)[1]

        self.patch(ipoib, "serveCommand", serveCommand)

    def runProgram(self, program: str, start: Any) -> int:
        began: Deferred[int] = start(FakeReactor())
        return self.successResultOf(began) if began.called else 130

    def test_run(self) -> None:
        """
        The command's exit status; 125 if there is no TUN.
        """
        said = StringIO()
        with redirect_stderr(said):
            self.assertEqual(ipoib.main([*RUN[:4], "--tun=/tun", *RUN[4:]]), 3)
            self.assertEqual(ipoib.main([*RUN[:4], "--tun=/none", *RUN[4:]]), 125)
        self.assertEqual(said.getvalue(), "ib-ipoib: /none does not exist\n")

    def test_up(self) -> None:
        """
        It says that it is up, and stays.
        """
        opened: list[Any] = []

        class Tuns:
            @staticmethod
            def open(name: str, node: str) -> FakeTun:
                if node == "/none":
                    raise TunError("/none does not exist")
                opened.append((name, node))
                return FakeTun()

        self.patch(ipoib, "Tun", Tuns)
        said, complaints = StringIO(), StringIO()
        with redirect_stdout(said), redirect_stderr(complaints):
            self.assertEqual(ipoib.main(["up", "ib0", "10.9.0.1/24", "--name=ip0", "--tun=/tun"]), 130)
            self.assertEqual(ipoib.main(["up", "ib0", "10.9.0.1/24", "--tun=/none"]), 1)
            self.assertEqual(ipoib.main(["up", "ib0", "10.9.0.1/24", "--netns=missing/none"]), 1)
        self.assertEqual((said.getvalue(), opened), ("ib0: up\n", [("ip0", "/tun")]))
        self.assertIn("ib-ipoib: there is no network namespace missing/none", complaints.getvalue())

    def test_signal(self) -> None:
        """
        A child that a signal has ended: this process ends so too.
        """
        sent: list[Any] = []
        self.patch(os, "kill", lambda *arguments: sent.append(arguments))
        self.patch(ipoib.resource, "setrlimit", lambda *arguments: None)
        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.assertEqual(endLike(number), 128 + number)
        self.assertEqual(sent, [(os.getpid(), signal.SIGTERM), (os.getpid(), signal.SIGKILL)])
        self.assertEqual(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)
        self.assertEqual(endLike(7 << 8), 7)
