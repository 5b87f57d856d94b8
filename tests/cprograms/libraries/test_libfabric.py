"""
libfabric's providers over verbs.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.cprograms.lab import Lab, LabError, Side, lacking, missing, sides
from tests.cprograms.libraries.libfabric import CONNECTED, DATAGRAMS
from tests.cprograms.libraries.namespaces import apart, lackingNamespaces
from tests.cprograms.programs import Program
from tests.support.waiting import HANG_SECONDS


class PingpongTests(SynchronousTestCase):
    """
    C{fi_pingpong}.
    """

    timeout = 6 * HANG_SECONDS
    skip = lacking() or missing(CONNECTED[0])

    def passed(self, programs: Sequence[Program], server: Side, client: Side) -> None:
        """
        Run each of some programs.
        """
        for program in programs:
            try:
                Lab(server, client).run(program)
            except LabError as error:
                self.fail(f"{program.name}: {error}")

    def apart(self, device: str, programs: Sequence[Program]) -> None:
        """
        Run programs in two network namespaces.
        """
        reason = lackingNamespaces()
        if reason is not None:
            raise SkipTest(reason)
        with apart(device) as ends:
            self.passed(programs, *ends)

    def test_shm0(self) -> None:
        """
        Connections and datagrams through shared memory.
        """
        self.passed((*CONNECTED, *DATAGRAMS), *sides("shm0"))

    def test_roce0(self) -> None:
        """
        Connections and datagrams over RoCEv2.
        """
        self.apart("roce0", (*CONNECTED, *DATAGRAMS))

    def test_iwarp0(self) -> None:
        """
        Connections over iWARP.
        """
        self.apart("iwarp0", CONNECTED)

    def test_loopback(self) -> None:
        """
        Datagrams between two addresses of the loopback interface.
        """
        self.passed(DATAGRAMS, *sides("roce0"))
