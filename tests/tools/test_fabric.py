"""
Tests for C{ib-fabric}, run as a user runs it: as a process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from struct import Struct
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import programOf, refusal, running
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.errors import PartitionError, RunDirectoryError, TopologyError
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.mad.attributes.port import Capability
from twisted_ib.limits import PARTITION_FILE_BYTES, TOPOLOGY_BYTES
from twisted_ib.subnet.network.umad import CLIENT, CONNECT, CONTROL, ERROR, GET_PORT, GET_PORTINFO, MAGIC
from twisted_ib.tools.fabric import SOCKET_NAME_BYTES, commandLine, main, read, readPartitions, take
from twisted_ib.tools.program import ProgramError

#: SIGINT is what a terminal sends; the tests may have been begun in the background, where it is ignored.
RUN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); " + programOf("fabric")
#: ibsim's reply to GET_PORT: LID and state.
PORT = Struct("=HB")

PAIR = """\
Ca 2 "left"
[1] "right"[1]

Ca 2 "right"
[1] "left"[1]
"""


class FabricTests(SynchronousTestCase):
    """
    C{ib-fabric}, called in this process.
    """

    def setUp(self) -> None:
        """
        Make a file, and a name of nobody else.
        """
        self.runDirectory = ownRunDirectory(self)
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()
        self.file = self.folder / "pair.net"
        self.file.write_text(PAIR)
        self.name = f"fabrictest{os.getpid()}.{self.id().rpartition('.')[2]}"

    def begin(self, *arguments: str) -> Any:
        """
        @return: the process.
        """
        return running(
            self, "-c", RUN, "--ibsim", self.name, *arguments, stderr=subprocess.PIPE, cwd=self.folder
        )

    def attach(self, node: str) -> int:
        """
        @return: the type of the answer to a client that attaches to a node.
        """
        return self._attached(node)[0]

    def ask(self, node: str, kind: int) -> bytes:
        """
        @return: the data of the answer to a client that is attached to a node.
        """
        return self._attached(node, kind)[1]

    def _attached(self, node: str, *kinds: int) -> tuple[int, bytes]:
        names = [f"\0{self.name}:{each}\0".encode() for each in ("ctl", "ctl1", "in1")]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as control:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as data:
                control.settimeout(HANG_SECONDS)
                control.bind(names[1])
                data.bind(names[2])
                control.connect(names[0])
                number, found = 0, CLIENT.pack(1, 0, 0, node.encode())
                for kind in (CONNECT, *kinds):
                    control.send(CONTROL.pack(MAGIC, number, kind, len(found), found))
                    _, _, answer, _, found = CONTROL.unpack(control.recv(CONTROL.size))
                    number = CLIENT.unpack_from(found)[0] if kind == CONNECT else number
                return answer, found

    def test_served(self) -> None:
        """
        It says what it hosts, serves clients, reads its file again on SIGUSR1 even if it is not valid, and
        ends on SIGINT with the names of what was lost.
        """
        process = self.begin("--topology", str(self.file))
        self.assertEqual(process.stdout.readline(), "nodes: 2, links: 1\n")
        self.assertEqual((self.attach("right"), self.attach("middle")), (CONNECT, ERROR))
        self.file.write_text(PAIR.replace("right", "middle"))
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.stdout.readline(), "nodes: 2, links: 1\n")
        self.assertEqual((self.attach("right"), self.attach("middle")), (ERROR, CONNECT))
        self.file.write_text("nonsense")
        process.send_signal(signal.SIGUSR1)
        self.assertIn(f"ib-fabric: {self.file}:1: ", process.stderr.readline())
        self.assertEqual(self.attach("middle"), CONNECT)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=HANG_SECONDS)
        # Where answers are late a request goes twice, and its second answer is for none.
        lost = [line for line in output.splitlines() if not line.startswith("sm_unasked ")]
        self.assertEqual((lost, errors, process.returncode), (["umad_refused 2"], "", 130))
        # The lock of what ib-ss shows stays, too, of one that has lived for some seconds.
        self.assertEqual(set(os.listdir(self.runDirectory)) - {"lock"}, {"subnet-default.lock"})

    def test_terminated(self) -> None:
        """
        SIGTERM ends it with that signal's status.
        """
        process = self.begin("--topology", str(self.file))
        self.assertEqual(process.stdout.readline(), "nodes: 2, links: 1\n")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=HANG_SECONDS)
        self.assertEqual((errors, process.returncode), ("", 128 + signal.SIGTERM))
        self.assertEqual(set(os.listdir(self.runDirectory)) - {"lock"}, {"subnet-default.lock"})

    def test_alone(self) -> None:
        """
        Without a file it has two CAs at one switch; a second one of either of its names is refused, and takes
        no other.
        """
        first = self.begin()
        self.assertEqual(first.stdout.readline(), "nodes: 3, links: 2\n")
        for arguments, expected in (
            (
                (),
                f"process {first.pid} hosts the subnet 'default': end it, or host another one with --name,"
                " which processes choose by TWISTED_IB_SUBNET",
            ),
            (("--name", "other"), f"--ibsim {self.name}: Address already in use"),
        ):
            second = self.begin(*arguments)
            output, errors = second.communicate(timeout=HANG_SECONDS)
            self.assertEqual((output, second.returncode), ("", 1))
            self.assertEqual(errors, f"ib-fabric: {expected}\n")
        self.assertNotIn("subnet-other", os.listdir(self.runDirectory))

    def test_managed(self) -> None:
        """
        It has a subnet manager, which makes the links Active, unless it is told not to.
        """
        for arguments, isManaged in (((), True), (("--no-sm",), False)):
            process = self.begin("--topology", str(self.file), *arguments)
            process.stdout.readline()
            mask = int.from_bytes(self.ask("left", GET_PORTINFO)[20:24], "big")
            self.assertEqual(bool(mask & Capability.SM), isManaged)
            if isManaged:
                waitUntil(lambda: PORT.unpack_from(self.ask("right", GET_PORT)) == (2, PortState.ACTIVE))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=HANG_SECONDS)

    def refused(self, *arguments: str) -> tuple[int, str]:
        """
        @return: exit status and errors.
        """
        ended = subprocess.run(
            [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, timeout=HANG_SECONDS
        )
        return ended.returncode, ended.stderr

    def test_errors(self) -> None:
        """
        A file that is not there or not valid, and a name that is too long, are one line.
        """
        self.file.write_text('Ca 2 "left"\n[1] "right"[1]\n')
        self.assertEqual(
            self.refused("--topology", str(self.file)),
            (1, f'ib-fabric: {self.file}:2: there is no node "right"\n'),
        )
        missing = str(self.folder / "missing")
        self.assertEqual(
            self.refused("--topology", missing), (1, f"ib-fabric: {missing}: No such file or directory\n")
        )
        self.file.write_text("blue=1: ALL\n")
        expected = f"ib-fabric: {self.file}:2: a partition ends with ';'\n"
        self.assertEqual(self.refused("--partitions", str(self.file)), (1, expected))
        status, errors = self.refused("--ibsim", "x" * (SOCKET_NAME_BYTES + 1))
        self.assertEqual(status, 2)
        self.assertIn("ib-fabric: argument --ibsim: invalid name of a socket value", errors)
        self.assertIn(
            "argument --name: invalid name of a subnet value", refusal(self, main, "--name", "../x")
        )

    def test_tooLarge(self) -> None:
        """
        A file that is longer than a topology, or than partitions may be is not read to its end.
        """
        for most, kind, function in (
            (TOPOLOGY_BYTES, TopologyError, read),
            (PARTITION_FILE_BYTES, PartitionError, readPartitions),
        ):
            with self.file.open("wb") as file:
                file.truncate(most + 1)
            error = self.assertRaises(kind, function, str(self.file))
            self.assertEqual(str(error), f"{self.file}:1: a file of more than {most} octets")

    def test_partitions(self) -> None:
        """
        Without a file there is the default partition.
        """
        self.file.write_text("blue=0x8001: ALL;")
        self.assertEqual([each.name for each in readPartitions(str(self.file))], ["blue", "Default"])
        self.assertEqual([each.name for each in readPartitions(None)], ["Default"])

    def test_commandLine(self) -> None:
        """
        The default name is ibsim's.
        """
        self.assertEqual(
            vars(commandLine().parse_args([])),
            {"ibsim": "sim", "name": None, "partitions": None, "sm": True, "topology": None},
        )

    def test_hidden(self) -> None:
        """
        A host that cannot be asked who it is keeps the name too; without a run directory there is none.
        """
        place = take("x")
        self.addCleanup(place.close)
        place.listener.close()
        error = self.assertRaises(ProgramError, take, "x")
        self.assertIn("another process hosts the subnet 'x'", str(error))
        with mock.patch.dict(os.environ, TWISTED_IB_RUN_DIR="/dev/null/x"):
            self.assertRaises(RunDirectoryError, take, "x")
