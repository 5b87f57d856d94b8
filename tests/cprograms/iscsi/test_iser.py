"""
A disk over iSER: tgtd is the target, libiscsi the initiator, both as Debian has them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.cprograms.iscsi.disk import lackingDisk, runDisk
from tests.cprograms.iscsi.suites import compared
from tests.cprograms.iscsi.target import Target, lackingPrograms
from tests.cprograms.lab import LabError, lacking, sides
from tests.support.waiting import HANG_SECONDS

#: Tests of libiscsi: of a command without data, of data in both directions, and of errors.
TESTS = ("TestUnitReady.Simple", "ReadCapacity10.Simple", "Read10.BeyondEol", "WriteVerify16.Simple")


class DiskTests(SynchronousTestCase):
    """
    Two processes on C{shm0}.
    """

    timeout = 3 * HANG_SECONDS
    skip = lacking()

    def test_disk(self) -> None:
        """
        8 MiB written and read in requests of 4 to 256 KiB are the same, and are on the target's disk;
        libiscsi's own commands see the disk.
        """
        reason = lackingDisk()
        if reason is not None:
            raise SkipTest(reason)
        try:
            runDisk(*sides("shm0"))
        except LabError as error:
            self.fail(str(error))

    def test_commands(self) -> None:
        """
        Tests of libiscsi have the same outcome as over TCP, and pass.
        """
        reason = lackingPrograms("iscsi-test-cu")
        if reason is not None:
            raise SkipTest(reason)
        with tempfile.TemporaryDirectory() as directory:
            target = Target(*sides("shm0"), Path(directory))
            try:
                for name in TESTS:
                    outcomes = compared(target, f"ALL.{name}")
                    self.assertIn("passed", outcomes["iser"], name)
                    self.assertEqual(outcomes["iser"], outcomes["iscsi"], name)
            finally:
                target.stop()
