"""
Losses that are planted: the short comparison names each, in the time that the gate has for it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.calls import called

ROOT = Path(__file__).resolve().parent.parent.parent.parent
#: What the command may take.
SECONDS = 180.0


class LossTests(SynchronousTestCase):
    """
    C{python -m benchmarks.compare --short} on a copy of the tree that is worse than the tree.
    """

    def setUp(self) -> None:
        """
        Make the copy.
        """
        # The counts are of the pure form.
        called(lambda: None)
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("twisted_ib", "benchmarks"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, self.folder / name, ignore=ignored)

    def plant(self, path: str, old: str, new: str) -> None:
        """
        Make it worse.
        """
        source = self.folder / path
        text = source.read_text()
        self.assertEqual(text.count(old), 1, path)
        source.write_text(text.replace(old, new))

    def grown(self) -> list[str]:
        """
        Run the command.

        @return: What it says of counts that grew.
        """
        began = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.compare", "--short", "--before", str(ROOT)]
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        self.assertLess(time.monotonic() - began, SECONDS)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.report = ended.stdout
        [found] = re.findall(r"\n## Counts that grew: .*\n((?:.+\n)*)\n", ended.stdout)
        return [line.split(None, 1)[1] for line in found.splitlines()]

    def assertNamed(self, lines: list[str], *named: str) -> None:
        """
        Check that there is a line that begins with each of some texts.
        """
        for each in named:
            self.assertTrue(any(line.startswith(each) for line in lines), (each, lines))

    def test_nothing(self) -> None:
        """
        Nothing grew in a copy that is no worse.
        """
        self.assertEqual(self.grown(), [])

    def test_sleep(self) -> None:
        """
        20 us of sleep in the delivery of each piece of a stream.
        """
        self.plant(
            "twisted_ib/sdp/stream.py",
            "            self.protocol.dataReceived(data)\n            # Inlines",
            "            __import__('time').sleep(20e-6)\n"
            "            self.protocol.dataReceived(data)\n            # Inlines",
        )
        self.assertNamed(
            self.grown(), "64 B round trip, sdp-ib: system calls", "64 B round trip, sdp-ib: C calls"
        )
        [always] = re.findall(r"\n## Times below 0.95 in every round: .*\n((?:.+\n)*)\n", self.report)
        self.assertIn("64 B round trip, p50 (us), split, sdp-ib", always)

    def test_copy(self) -> None:
        """
        A copy more in the ring of shared memory.
        """
        self.plant(
            "twisted_ib/hca/fabric/shm/ring.py",
            "            target[pos : pos + length] = payload\n",
            "            target[pos : pos + length] = bytearray(payload)\n",
        )
        self.assertNamed(
            self.grown(),
            "64 KiB round trip, sdp-ib: allocated",
            "stream, 64 KiB writes, sdp-ib: allocated",
            "stream, 64 KiB writes, ib: allocated",
        )

    def test_object(self) -> None:
        """
        An object more for each connection.
        """
        self.plant(
            "twisted_ib/sdp/stream.py",
            "        self.thread: int = channel.device.thread\n",
            "        self.thread: int = int(str(channel.device.thread))\n",
        )
        self.assertNamed(self.grown(), "idle connection, sdp-ib: blocks", "idle connection, sdp-ib: kept")
