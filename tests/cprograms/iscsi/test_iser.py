"""
A disk over iSER: tgtd is the target, libiscsi the initiator, both as Debian has them.
"""

from __future__ import annotations

import hashlib
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from ctypes.util import find_library
from pathlib import Path
from unittest import mock

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.cprograms.iscsi import initiator
from tests.cprograms.lab import lacking
from tests.support.commands import programOf, running
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS

TARGET, INITIATOR = "iqn.2026-01.example:disk", "iqn.2026-01.example:initiator"
#: Of iSER, in the run directory of the test.
PORT = 3260
MEBIBYTES = 64
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_LOOK_SECONDS = 0.05


class DiskTests(SynchronousTestCase):
    """
    Two processes on C{shm0}.
    """

    timeout = 3 * HANG_SECONDS
    skip = lacking()

    def setUp(self) -> None:
        """
        Start the target.
        """
        if shutil.which("tgtd", path=PATH) is None:
            raise SkipTest("no tgtd: it is in Debian's package tgt")
        if find_library("iscsi") is None:
            raise SkipTest("no libiscsi: it is in Debian's package libiscsi7")
        self.directory = directory = Path(ownRunDirectory(self)).parent
        changed = mock.patch.dict(os.environ, PATH=PATH, TGT_IPC_SOCKET=str(directory / "socket"))
        changed.start()
        self.addCleanup(changed.stop)
        self.disk = directory / "disk"
        self.disk.write_bytes(b"")
        os.truncate(self.disk, MEBIBYTES << 20)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        # Its TCP portal, which it has in any case; and a smaller pool than a gibibyte.
        options = "--iser", f"port={PORT},pool_sz_mb={MEBIBYTES}", "--iscsi", f"portal=127.0.0.1:{port}"
        self.started("tgtd", "-f", *options)
        self.until("--mode", "sys", "--op", "show")
        one = "--tid", "1"
        self.admin("--mode", "target", "--op", "new", *one, "--targetname", TARGET)
        unit = "--lun", "1", "--backing-store", str(self.disk)
        self.admin("--mode", "logicalunit", "--op", "new", *one, *unit)
        # By name too: without that it refuses the login, of the kernel's initiator as well.
        for who in (("-I", "ALL"), ("-Q", INITIATOR)):
            self.admin("--mode", "target", "--op", "bind", *one, *who)
        self.url = f"iser://127.0.0.1:{PORT}/{TARGET}/1"

    def started(self, *command: str) -> subprocess.Popen[str]:
        """
        @return: a program of C{ib-run}.
        """
        run = "-c", programOf("run.run"), "--quiet", "--device", "shm0"
        return running(self, *run, *command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)

    def ended(self, *command: str) -> str:
        """
        @return: the output of a program, which has to succeed.
        """
        process = self.started(*command)
        output, _ = process.communicate(timeout=HANG_SECONDS)
        self.assertEqual(process.returncode, 0, output)
        return output

    def admin(self, *arguments: str) -> int:
        """
        @return: the exit status of tgtadm.
        """
        command = "tgtadm", "--lld", "iser", *arguments
        return subprocess.run(command, capture_output=True, check=False, timeout=HANG_SECONDS).returncode

    def until(self, *arguments: str) -> None:
        """
        Wait until tgtd answers: nothing tells of that but looking.
        """
        deadline = time.monotonic() + HANG_SECONDS
        while self.admin(*arguments):
            self.assertLess(time.monotonic(), deadline, "tgtd does not answer")
            select.select([], [], [], _LOOK_SECONDS)

    def test_disk(self) -> None:
        """
        8 MiB written and read in requests of 4 to 256 KiB are the same, and are on the target's disk;
        libiscsi's own commands see the disk.
        """
        self.assertIn("IET", self.ended("iscsi-inq", "-i", INITIATOR, self.url))
        size = self.ended("iscsi-readcapacity16", "-i", INITIATOR, self.url)
        self.assertIn(f"Total size:{MEBIBYTES << 20}", size)
        lines = self.ended(sys.executable, initiator.__file__, self.url, INITIATOR).splitlines()
        hashes = [line.split() for line in lines]
        self.assertEqual([len(set(each)) for each in hashes], [1] * len(initiator.WRITES), lines)
        with self.disk.open("rb") as file:
            found = hashlib.sha256(file.read(initiator.TOTAL)).hexdigest()
        self.assertEqual(found, hashes[-1][0])
