"""
Libraries that an environment of its own has built: what its site-packages start comes before the first call.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

from tests.cprograms.lab import lacking
from tests.support.waiting import HANG_SECONDS
from tests.verbs.c.test_calls import ProgramTestCase
from tests.verbs.c.test_signals import SOURCE

_BUILD = "from twisted_ib.verbs.c.building import libraries; print(libraries())"


class StartTests(ProgramTestCase):
    """
    A file C{.pth} that runs code when Python starts, as those of editable installations do.
    """

    skip = lacking()

    def test_interrupt(self) -> None:
        """
        SIGINT ends a C program although that code has imported Python's module of signals.
        """
        other = Path(self.mktemp()).resolve()
        venv.create(other, symlinks=True, with_pip=False)
        (site,) = other.glob("lib/python3*/site-packages")
        (site / "signals.pth").write_text("import _signal\n")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "XDG_CACHE_HOME": str(other),
        }

        def run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                command, env={**environment, **more}, capture_output=True, text=True, timeout=HANG_SECONDS
            )

        folder = run(str(other / "bin/python"), "-c", _BUILD)
        self.assertEqual((folder.returncode, folder.stderr), (0, ""))
        program = self.compiled(SOURCE)
        libraries = {"LD_LIBRARY_PATH": folder.stdout.strip(), "TWISTED_IB_DEVICE": "shm0"}
        ended = run(program, "interrupt", **libraries)
        self.assertEqual((ended.returncode, ended.stdout), (-signal.SIGINT, ""), ended.stderr)
