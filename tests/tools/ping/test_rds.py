"""
Tests for C{ib-ping --rds}.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import PATH, CommandTestCase, programOf
from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS
from twisted_ib.errors import SendBudgetError
from twisted_ib.tools.ping import ping, rds
from twisted_ib.tools.program import ProgramError

PEER = "127.0.0.1"

#: A peer: RDS over TCP, or on a device, at an address.
SERVER = PATH + (
    "from twisted_ib.reactor import ibreactor; ibreactor.install();"
    "from twisted.internet import reactor, protocol;"
    "from twisted_ib.rds import listenRDS;"
    "listenRDS(reactor, 4000, protocol.DatagramProtocol(), sys.argv[2], device=sys.argv[1]);"
    "print('ready', flush=True);"
    f"reactor.callLater({HANG_SECONDS}, reactor.stop); reactor.run()"
)


class FakePort:
    """
    A socket that keeps what is written.
    """

    def __init__(self, protocol: Any, interface: str) -> None:
        """
        @param protocol: its protocol.
        """
        self.protocol = protocol
        self.interface = interface
        self.written: list[Any] = []
        self.cancelled: list[Any] = []
        self.closed = False
        self.error: Exception | None = None

    def write(self, data: bytes, addr: Any) -> None:
        if self.error is not None:
            raise self.error
        self.written.append((data, addr))

    def cancel(self, addr: Any) -> None:
        """
        Keep that.
        """
        self.cancelled.append(addr)

    def stopListening(self) -> Deferred[None]:
        """
        Be closed.
        """
        self.closed = True
        return succeed(None)


class PingerTests(SynchronousTestCase):
    """
    Which socket sends when, and when it is over.
    """

    def begin(self, *options: str) -> None:
        """
        Start a pinger on sockets that do nothing.
        """
        self.clock = Clock()
        self.ports: list[FakePort] = []

        def listen(reactor: Any, port: int, protocol: Any, interface: str, device: str) -> FakePort:
            self.assertEqual((port, device), (0, "tcp"))
            self.ports.append(FakePort(protocol, interface))
            return self.ports[-1]

        self.patch(rds, "listenRDS", listen)
        given = rds.parseArguments(["--rds", *options, PEER])
        self.pinger = rds.Pinger(self.clock, given, "tcp")
        self.printed = io.StringIO()
        with redirect_stdout(self.printed):
            self.result = Deferred.fromCoroutine(self.pinger.run())

    def advance(self, seconds: float) -> None:
        """
        Let time pass.
        """
        with redirect_stdout(self.printed):
            self.clock.advance(seconds)

    def answer(self, index: int, data: bytes = b"", addr: Any = (PEER, 0)) -> None:
        """
        Let a socket receive something.
        """
        with redirect_stdout(self.printed):
            self.ports[index].protocol.datagramReceived(data, addr)

    def test_turns(self) -> None:
        """
        Eight sockets take turns, one each second, with nothing to port 0.
        """
        self.begin("-c", "9", "-I", "127.0.0.5")
        for _ in range(8):
            self.advance(1.0)
        self.assertEqual([len(port.written) for port in self.ports], [2, 1, 1, 1, 1, 1, 1, 1])
        self.assertEqual({each for port in self.ports for each in port.written}, {(b"", (PEER, 0))})
        self.assertEqual({port.interface for port in self.ports}, {"127.0.0.5"})
        self.assertEqual(self.printed.getvalue(), "   1: no answer yet\n")

    def test_answers(self) -> None:
        """
        With the last answer it is over, and everything is closed; times are shown in microseconds.
        """
        self.begin("-c", "2", "-i", "0.5")
        self.clock.advance(0.25)
        self.answer(0)
        self.advance(0.25)
        self.assertNoResult(self.result)
        self.answer(1)
        self.assertEqual(self.successResultOf(self.result), 0)
        self.assertEqual(self.printed.getvalue(), "   1: 250000 usec\n   2: 0 usec\n")
        self.assertTrue(all(port.closed and port.cancelled for port in self.ports))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_strangers(self) -> None:
        """
        Datagrams from elsewhere, from another port, with data, or once too often are not taken for answers.
        """
        self.begin("-c", "2")
        for data, addr in ((b"", ("127.0.0.9", 0)), (b"", (PEER, 5)), (b"x", (PEER, 0))):
            self.answer(0, data, addr)
        self.answer(0)
        self.answer(0)
        self.answer(3)
        self.assertEqual(self.pinger.received, 1)

    def test_dead(self) -> None:
        """
        A peer that does not answer does not keep it waiting for ever.
        """
        self.begin("-c", "2")
        self.advance(1.0)
        self.answer(1)
        self.advance(rds.RDS_PING_SECONDS - 0.1)
        self.assertNoResult(self.result)
        self.advance(0.2)
        error = self.failureResultOf(self.result, ProgramError).value
        self.assertEqual(str(error), "127.0.0.1 has answered 1 of 2 pings")
        self.assertTrue(all(port.closed for port in self.ports))

    def test_full(self) -> None:
        """
        Without -c it goes on until nothing more can wait.
        """
        self.begin()
        for _ in range(20):
            self.advance(1.0)
        self.assertNoResult(self.result)
        self.ports[21 % 8].error = SendBudgetError("much waits")
        self.advance(1.0)
        self.failureResultOf(self.result, ProgramError)

    def test_noSocket(self) -> None:
        """
        An address that cannot be bound is an error of one line.
        """

        def refuse(*arguments: Any, **keys: Any) -> None:
            raise CannotListenError(PEER, 0, OSError(99, "Cannot assign requested address"))

        self.patch(rds, "listenRDS", refuse)
        given = rds.parseArguments(["--rds", "-I", "192.0.2.1", PEER])
        result = Deferred.fromCoroutine(rds.Pinger(Clock(), given, "tcp").run())
        error = self.failureResultOf(result, ProgramError).value
        self.assertEqual(str(error), "192.0.2.1: Cannot assign requested address")


class OptionTests(SynchronousTestCase):
    """
    The command line.
    """

    def test_bounds(self) -> None:
        """
        Counts and intervals have bounds, and there has to be a peer.
        """
        for arguments in (["--rds"], ["--rds", "-c", "0", PEER], ["--rds", "-i", "0", PEER]):
            said = io.StringIO()
            with redirect_stderr(said):
                failure = self.assertRaises(SystemExit, ping.main, arguments)
            self.assertEqual((failure.code, said.getvalue().count("\n")), (2, 1))

    def test_refused(self) -> None:
        """
        A device that is none, and a name that is none.
        """
        said = io.StringIO()
        with redirect_stderr(said):
            self.assertEqual(ping.main(["--rds", "--device", "lo9", PEER]), 1)
        self.assertEqual(said.getvalue().count("\n"), 1)
        given = rds.parseArguments(["--rds", "no such host"])
        self.assertRaises(ProgramError, rds.Pinger, Clock(), given, "tcp")


class ProcessTests(CommandTestCase):
    """
    A peer and the command, each a process.
    """

    program = programOf("ping.ping")

    def ping(self, device: str, own: str, peer: str) -> None:
        """
        Assert that three pings are answered.
        """
        options = ["--rds", "--device", device, "-I", own, "-c", "3", "-i", "0.01", peer]
        found = [re.fullmatch(r" +(\d): \d+ usec", line) for line in self.said(*options).splitlines()]
        self.assertEqual([each and each[1] for each in found], ["1", "2", "3"])

    def test_tcp(self) -> None:
        """
        RDS over TCP answers, the smaller address and the larger.
        """
        self.start(SERVER, "tcp", ownAddress(2))
        self.ping("tcp", ownAddress(1), ownAddress(2))
        self.ping("tcp", ownAddress(3), ownAddress(2))

    def test_roce(self) -> None:
        """
        RDS over RoCE answers, also a second process at the same address, though the peer tries to reach
        the first again.
        """
        self.start(SERVER, "roce0", ownAddress(1))
        self.ping("roce0", ownAddress(2), ownAddress(1))
        self.ping("roce0", ownAddress(2), ownAddress(1))

    def test_iwarp(self) -> None:
        """
        RDS over iWARP answers, as over RoCE.
        """
        self.start(SERVER, "iwarp0", ownAddress(1))
        self.ping("iwarp0", ownAddress(2), ownAddress(1))
        self.ping("iwarp0", ownAddress(2), ownAddress(1))
