"""
Tests for C{ib-sa}.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.mad.attributes.records import RECORDS
from tests.support.commands import CommandTestCase, programOf
from twisted_ib.errors import SATimeoutError
from twisted_ib.hca.mad.attributes.administration import (
    MCMemberRecord,
    NodeRecord,
    PathRecord,
    ServiceRecord,
)
from twisted_ib.hca.mad.attributes.node import NodeDescription, NodeInfo
from twisted_ib.tools import sa
from twisted_ib.tools.program import ProgramError

PREFIX = 0xFE80 << 112
NODE = NodeRecord(
    lid=4,
    nodeInfo=NodeInfo(portGuid=0x100004, guid=0x100003),
    nodeDescription=NodeDescription(description=b"Hca2\x1b".ljust(64, b"\0")),
)


class Administration:
    """
    Answers queries.
    """

    gid = PREFIX | 1

    def __init__(self) -> None:
        self.answers: dict[type, list[Any]] = {NodeRecord: [NODE]}
        self.asked: list[Any] = []

    def query(self, kind: type, timeout: float = 1.0, **values: Any) -> Deferred[list[Any]]:
        self.asked.append((kind, values))
        return succeed(self.answers.get(kind, []))

    def path(self, dgid: int, sgid: int, timeout: float) -> Deferred[PathRecord]:
        return succeed(PathRecord(dgid=dgid, sgid=sgid, dlid=4))


class ToolTests(SynchronousTestCase):
    """
    Commands.
    """

    def setUp(self) -> None:
        """
        Keep what is written.
        """
        self.administration = Administration()
        self.written: list[str] = []
        self.patch(sa, "write", self.written.append)

    def run_(self, *arguments: str) -> str:
        """
        @return: the output of a command.
        """
        options = sa.commandLine().parse_args(arguments)
        done = Deferred.fromCoroutine(sa.run(self.administration, options))  # type: ignore[arg-type]
        self.assertEqual(self.successResultOf(done), 0)
        return "\n".join(self.written)

    def test_dump(self) -> None:
        """
        Fields in saquery's form: GIDs, GUIDs, texts that are safe for a terminal, tables.
        """
        lines = sa.dump(NODE).splitlines()
        self.assertEqual(lines[:2], ["NodeRecord dump:", "\t\tlid.....................4"])
        self.assertIn("\t\tportGuid................0x100004", lines)
        self.assertEqual(lines[-1], "\t\tdescription.............Hca2\\x1b")
        group = sa.dump(
            MCMemberRecord(mgid=0xFF12401BFFFF << 80 | 0xFFFFFFFF, mlid=0xC000, pKey=0xFFFF, mtu=4)
        )
        for line in (
            "mgid....................ff12:401b:ffff::ffff:ffff",
            "mlid....................0xc000",
            "pKey....................0xffff",
            "mtu.....................4",
        ):
            self.assertIn(f"\t\t{line}", group.splitlines())
        service = sa.dump(ServiceRecord(serviceData16=tuple(range(8))))
        self.assertIn(" ".join(f"0x000{number}" for number in range(8)), service)

    def test_all(self) -> None:
        """
        Each record can be shown, and each command has one.
        """
        for kind in RECORDS.values():
            self.assertIn(kind.__name__, sa.dump(kind()))
        self.administration.answers = {}
        for command, (kind, _) in sa.QUERIES.items():
            self.assertEqual(self.run_(command), "")
            self.assertEqual(self.administration.asked.pop(), (kind, {}))

    def test_values(self) -> None:
        """
        Only those with some values: numbers, GIDs, texts.
        """
        self.assertIn("portGuid................0x100004", self.run_("nodes", "lid=0x4", "description=Hca2"))
        self.run_("groups", "mgid=ff12::7")
        self.assertEqual(
            self.administration.asked,
            [
                (NodeRecord, {"lid": 4, "description": b"Hca2"}),
                (MCMemberRecord, {"mgid": 0xFF12 << 112 | 7}),
            ],
        )
        self.assertRaises(ArgumentTypeError, sa.value, "lid")

    def test_path(self) -> None:
        """
        Ports by GID, by LID and by the description of their node.
        """
        for source, values in (("fe80::7", None), ("4", {"lid": 4}), ("Hca2", {"description": b"Hca2"})):
            output = self.run_("path", source, "fe80::10:4")
            self.assertIn("\t\tdgid....................fe80::10:4", output)
            asked = [given for _, given in self.administration.asked]
            self.assertEqual(asked, [] if values is None else [values])
            self.assertIn(f"\t\tsgid....................fe80::{7 if values is None else '10:4'}", output)
            self.administration.asked.clear()
            self.written.clear()

    def test_nobody(self) -> None:
        """
        A port that there is not, and a GID that is none.
        """
        self.administration.answers = {}
        for name, text in (("Hca9", "no such port: see ib-sa nodes"), ("fe80:::1", "no GID")):
            done = Deferred.fromCoroutine(sa.gidOf(self.administration, name))  # type: ignore[arg-type]
            self.assertIn(text, str(self.failureResultOf(done, ProgramError).value))

    def test_unanswered(self) -> None:
        """
        An error of subnet administration is the command's.
        """
        self.patch(
            self.administration, "query", lambda *arguments, **values: fail(SATimeoutError("no answer"))
        )
        options = Namespace(command="nodes", values=[], timeout=1.0)
        done = Deferred.fromCoroutine(sa.run(self.administration, options))  # type: ignore[arg-type]
        self.failureResultOf(done, SATimeoutError)


class ProcessTests(CommandTestCase):
    """
    C{ib-sa} as a process, which hosts the subnet where no other does.
    """

    program = programOf("sa")

    def test_nodes(self) -> None:
        """
        The nodes of the subnet, its own among them.
        """
        output = self.said("nodes", "nodeType=1")
        self.assertIn("NodeRecord dump:\n\t\tlid.....................1\n", output)
        self.assertRegex(output, r"\t\tdescription\.{13}.* ib0 [0-9]+\n")

    def test_noDevice(self) -> None:
        """
        A device that there is not: the command ends, and says so in one line.
        """
        ended = self.ended("--device", "nothing", "nodes")
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr.count("\n")), (1, "", 1))
        self.assertIn("ib-sa: there is no device 'nothing'", ended.stderr)
