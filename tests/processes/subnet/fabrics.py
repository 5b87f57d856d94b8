"""
C{ib-fabric} as the host of the devices of children.
"""

from __future__ import annotations

import os
import signal
import subprocess

from tests.processes.processes import Child, ProcessTestCase
from tests.support.commands import programOf, running
from twisted_ib.settings import RUN_DIR
from twisted_ib.subnet.hosting.place import hostOf, runDirectories

PROGRAM = programOf("fabric")


class FabricTestCase(ProcessTestCase):
    """
    Children with devices, and a host.
    """

    program = "tests.processes.subnet.end.End"

    def host(self, *arguments: str) -> subprocess.Popen[str]:
        """
        @return: C{ib-fabric}, which hosts a subnet.
        """
        environment = {**os.environ, RUN_DIR: self.runDirectory}
        # The random name of a directory: of nobody else.
        name = os.path.basename(os.path.dirname(self.runDirectory))
        process = running(self, "-c", PROGRAM, *("--ibsim", name), *arguments, env=environment)
        assert process.stdout is not None
        self.assertIn("nodes: ", process.stdout.readline())
        return process

    def hostOf(self, name: str) -> int:
        """
        @return: the process that hosts a subnet; 0 for none.
        """
        with runDirectories({RUN_DIR: self.runDirectory}) as (directory,):
            return hostOf(directory, name)

    def reload(self, process: subprocess.Popen[str]) -> str:
        """
        @return: what it says when it has read its topology again.
        """
        process.send_signal(signal.SIGUSR1)
        assert process.stdout is not None
        return process.stdout.readline()

    def connect(self, one: Child, two: Child) -> list[int]:
        """
        Connect two ends.

        @return: their LIDs.
        """
        ends = one, two
        lids = [int(end.ask("active")["lid"]) for end in ends]
        for end, lid in zip(ends, lids[::-1], strict=True):
            end.ask("reaches", lid=lid)
        self.pair(ends, lids)
        return lids

    def pair(self, ends: tuple[Child, Child], lids: list[int]) -> None:
        """
        Give each end a new queue pair, and connect these.
        """
        numbers = [end.ask("create", lid=lid) for end, lid in zip(ends, lids[::-1], strict=True)]
        for end, number in zip(ends, numbers[::-1], strict=True):
            end.ask("connect", number=number)
