"""
Tests for C{ib-perf rds}.
"""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr
from typing import Any

import attrs
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import CommandTestCase, begun, programOf
from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.errors import SendBudgetError
from twisted_ib.tools.perf import perf, rds
from twisted_ib.tools.perf.rds import (
    ACK,
    HEADER,
    HEADER_BYTES,
    REQUEST,
    Control,
    StressParameters,
    Task,
    patternOf,
)
from twisted_ib.tools.program import ProgramError

PASSIVE, ACTIVE = "192.0.2.1", "192.0.2.2"
OWN, PEER = (PASSIVE, 4001), (ACTIVE, 4001)
TERMS = StressParameters(2, 100, 63, PASSIVE, ACTIVE, 4000, 1, 10, True)

#: The same as rds-stress says it.
SAID = bytes.fromhex(
    "00000002 00000064 0000003f 00000000 c0000201 c0000202 0fa0 0001 0000000a"
    "000000 01 0000000000000000000000 00000001 00000000 00000000"
)


class FakeTransport:
    """
    Keeps what is written.
    """

    def __init__(self) -> None:
        """
        Nothing was.
        """
        self.written: list[tuple[bytes, Any]] = []
        self.error: Exception | None = None

    def write(self, data: bytes, addr: Any) -> None:
        if self.error is not None:
            raise self.error
        self.written.append((data, addr))


class TermsTests(SynchronousTestCase):
    """
    The active side's parameters.
    """

    def test_bytes(self) -> None:
        """
        It is rds-stress's old form, 59 bytes.
        """
        self.assertEqual((TERMS.pack(), len(SAID)), (SAID, 59))
        self.assertEqual(StressParameters.parse(SAID), TERMS)

    def test_refused(self) -> None:
        """
        RDMA, and what is too much, is not done.
        """
        for at in (0, 4, 8, 26, 28):
            data = bytearray(SAID)
            data[at] = 0xFF
            self.assertRaises(ProgramError, StressParameters.parse, bytes(data))
        data = bytearray(SAID)
        data[15] = 1
        self.assertIn("RDMA", str(self.assertRaises(ProgramError, StressParameters.parse, bytes(data))))
        wrong = {"depth": 0, "tasks": 0, "request": 62, "ack": 62, "port": 65535}
        for name, value in wrong.items():
            changes: dict[str, Any] = {name: value}
            self.assertRaises(ProgramError, attrs.evolve(TERMS, **changes).check)
        much = attrs.evolve(TERMS, depth=limits.PERF_RDS_DEPTH, request=limits.RDS_MESSAGE)
        self.assertRaises(ProgramError, much.check)

    def test_pattern(self) -> None:
        """
        The content that is verified is rds-stress's.
        """
        self.assertEqual(patternOf(6).hex(), "3e694ca73ac5")
        self.assertEqual(patternOf(257)[:6].hex(), "3e694ca73ac5")
        self.assertNotEqual(patternOf(600)[:256], patternOf(600)[256:512])


class TaskTests(SynchronousTestCase):
    """
    Requests and acknowledgements.
    """

    def setUp(self) -> None:
        """
        A task that has begun.
        """
        self.errors: list[str] = []
        self.transport = FakeTransport()
        self.task = Task(TERMS, OWN, [PEER], lambda error: self.errors.append(str(error)))
        self.task.transport = self.transport  # type: ignore[assignment]
        self.task.begin()

    def message(self, sequence: int, index: int, op: int) -> bytes:
        """
        @return: a message of the peer.
        """
        size = 100 if op == REQUEST else 63
        fields = (sequence, 0xC0000202, 0xC0000201, 4001, 4001, index, op)
        return HEADER.pack(*fields, *[0] * 10) + patternOf(size - HEADER_BYTES)

    def come(self, *messages: bytes, addr: Any = PEER) -> None:
        """
        Let messages come.
        """
        for message in messages:
            self.task.datagramReceived(message, addr)

    def test_header(self) -> None:
        """
        63 bytes, then the pattern.
        """
        first, second = self.transport.written
        head = "00000000 c0000201 c0000202 0fa1 0fa1 0000 01" + 44 * "00"
        self.assertEqual(first, (bytes.fromhex(head) + patternOf(37), PEER))
        self.assertEqual((second[0][:4].hex(), second[0][16:19].hex()), ("00000001", "000101"))
        self.assertEqual(HEADER_BYTES, 63)

    def test_answered(self) -> None:
        """
        A request is acknowledged, with its index and the next number; an acknowledged request is
        followed by another, until the end.
        """
        self.come(self.message(0, 1, REQUEST), self.message(1, 0, ACK))
        ack, request = self.transport.written[2:]
        self.assertEqual((len(ack[0]), ack[0][:4].hex(), ack[0][16:19].hex()), (63, "00000002", "000102"))
        self.assertEqual((len(request[0]), request[0][16:19].hex()), (100, "000001"))
        self.task.end()
        self.come(self.message(2, 0, ACK))
        self.assertEqual(len(self.transport.written), 4)
        self.assertEqual((self.task.requests, self.task.received, self.task.acks), (3, 1, 2))
        self.assertEqual(self.errors, [])

    def test_wrong(self) -> None:
        """
        Anything wrong is reported; a stranger is ignored.
        """
        good = self.message(0, 0, REQUEST)
        self.come(b"x", addr=(ACTIVE, 9))
        for wrong in (
            b"x",
            good[:-1],
            good + b"x",
            good[:-1] + b"x",
            self.message(1, 0, REQUEST),
            self.message(0, 2, REQUEST),
            self.message(0, 0, 3),
            good[:13] + b"\0" + good[14:],
        ):
            self.come(wrong)
        self.assertEqual((len(self.errors), len(self.transport.written)), (8, 2))
        self.come(self.message(0, 0, ACK), self.message(1, 0, ACK), self.message(2, 0, ACK))
        self.assertEqual(len(self.errors), 8)
        self.task.end()
        self.come(self.message(3, 0, ACK), self.message(4, 0, ACK))
        self.assertIn("of nothing", self.errors[8])

    def test_full(self) -> None:
        """
        A socket that takes nothing ends the run.
        """
        self.transport.error = SendBudgetError("much waits")
        self.come(self.message(0, 1, REQUEST))
        self.assertEqual(self.errors, ["much waits"])


class ControlTests(SynchronousTestCase):
    """
    The talk.
    """

    def test_pieces(self) -> None:
        """
        It comes in pieces, or more at once; the end is told, and a flood is one.
        """
        control = Control()
        transport = StringTransport()
        control.makeConnection(transport)
        control.dataReceived(b"ab")
        heard = control.hear(3)
        self.assertNoResult(heard)
        control.dataReceived(b"cd")
        self.assertEqual(self.successResultOf(heard), b"abc")
        self.assertEqual(self.successResultOf(control.hear(1)), b"d")
        last = control.hear(1)
        control.connectionLost()
        self.failureResultOf(last, ProgramError)
        self.successResultOf(control.over)
        control.dataReceived(bytes(200))
        self.assertTrue(transport.disconnected)


class OptionTests(SynchronousTestCase):
    """
    The command line.
    """

    def test_bounds(self) -> None:
        """
        Numbers have bounds.
        """
        for arguments in (["-q", "62"], ["-d", "0"], ["-T", "0.5"], ["-t", "1000"], ["-x"]):
            said = io.StringIO()
            with redirect_stderr(said):
                failure = self.assertRaises(SystemExit, perf.main, ["rds", *arguments])
            self.assertEqual((failure.code, said.getvalue().count("\n")), (2, 1))

    def test_listed(self) -> None:
        """
        The command knows it.
        """
        self.assertEqual(perf.commandLine().parse_args(["rds"]).test, "rds")

    def test_addresses(self) -> None:
        """
        IPv6 has no place in the talk.
        """
        options = rds.parseArguments(["::1", "-r", "::1"])
        run = rds.run(Clock(), options, "shm0")
        self.assertIn("IPv4", str(self.assertRaises(ProgramError, run.send, None)))
        run = rds.run(Clock(), rds.parseArguments(["-r", "::1"]), "shm0")
        self.assertIn("IPv4", str(self.assertRaises(ProgramError, run.send, None)))


class ProcessTests(CommandTestCase):
    """
    Both sides, each a process.
    """

    program = programOf("perf.perf")

    def test_both(self) -> None:
        """
        Both have figures, and all contents are right.
        """
        command = "rds", "-p", "0", "-r", ownAddress(1), "--json"
        passive = begun(self, self.environment, self.program, *command)
        assert passive.stderr is not None
        said = passive.stderr.readline()
        match = re.fullmatch(r"ib-perf rds: waits for the active side on port (\d+)\n", said)
        assert match is not None, said
        options = ["-r", ownAddress(2), "-p", match[1], "-t", "2", "-d", "4", "-q", "5000", "-v", "-T", "1"]
        active = json.loads(self.said("rds", ownAddress(1), *options, "--json"))
        out, err = passive.communicate(timeout=HANG_SECONDS)
        other = json.loads(out)
        for found in (active, other):
            self.assertTrue(found["requests_per_sec"] > 0 and found["received_per_sec"] > 0)
            self.assertEqual((found["tasks"], found["depth"], found["verify"]), (2, 4, True))
        self.assertEqual((passive.returncode, err), (0, ""))
