"""
Programs that C{ib-run} starts, in a folder of the test's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.commands import CommandTestCase


class RunTestCase(CommandTestCase):
    """
    Programs in a folder of the test's own.
    """

    def setUp(self) -> None:
        """
        Have the children import from where this process does.
        """
        super().setUp()
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()
        self.environment.update(PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
        self.environment.pop("TWISTED_IB_CONFIG", None)
        self.environment["XDG_CONFIG_HOME"] = str(self.folder)

    def started(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """
        @return: a process of Python, whose output can be read.
        """
        pipes: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            **options,
        }
        process = subprocess.Popen([sys.executable, *words], cwd=self.folder, env=self.environment, **pipes)

        def end() -> None:
            with process:
                process.kill()

        self.addCleanup(end)
        return process

    def running(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """
        @return: a process of C{ib-run}.
        """
        return self.started("-m", "twisted_ib.tools.run", *words, **options)
