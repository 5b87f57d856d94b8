"""
A virtual machine that moves, and programs of Python with bindings of their own.
"""

from __future__ import annotations

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.cprograms.lab import lacking, sides
from tests.cprograms.libraries.mpi import RING_SECONDS
from tests.cprograms.others.pythons import NIXL, installedFromPyPI, runMPI4Py, runNIXL, runPyverbs
from tests.cprograms.others.qemu import missingMachine, runMigration
from tests.cprograms.programs import DEVICES
from tests.cprograms.table import installed


class OthersTests(SynchronousTestCase):
    """
    Each once on each device.
    """

    timeout = 2 * RING_SECONDS
    skip = lacking()

    def need(self, package: str) -> None:
        """
        Skip where a package of Debian lacks.
        """
        if not installed(package):
            raise SkipTest(f"no {package}: it is in Debian's package {package}")

    def test_migration(self) -> None:
        """
        A machine moves from one process to another, and runs there.
        """
        reason = missingMachine()
        if reason is not None:
            raise SkipTest(reason)
        for device in DEVICES:
            runMigration(*sides(device))

    def test_mpi4py(self) -> None:
        """
        A ring of ranks by mpi4py.
        """
        self.need("python3-mpi4py")
        for device in DEVICES:
            runMPI4Py(device)

    def test_pyverbs(self) -> None:
        """
        Two queue pairs of a process by rdma-core's own pyverbs.
        """
        self.need("python3-pyverbs")
        for device in DEVICES:
            runPyverbs(sides(device)[0])

    def test_nixl(self) -> None:
        """
        Two agents of NIXL, where the table's command has installed it.
        """
        if not installedFromPyPI(NIXL):
            raise SkipTest(f"missing: {NIXL}, which python -m tests.cprograms.programs {NIXL} installs")
        for device in DEVICES:
            runNIXL(*sides(device))
