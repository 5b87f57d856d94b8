"""
The built libraries, for tests; skipped where they cannot be built.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from twisted.trial.unittest import SkipTest

from tests.support.waiting import HANG_SECONDS
from twisted_ib.errors import LibraryBuildError
from twisted_ib.verbs.c.building import libraries


def built() -> Path:
    """
    @return: the directory with the libraries.
    """
    try:
        return libraries()
    except LibraryBuildError as error:
        raise SkipTest(f"the libraries cannot be built: {error}") from None


def run(*command: str, seconds: float = HANG_SECONDS, **environment: str) -> subprocess.CompletedProcess[str]:
    """
    Run a C program on the libraries.

    @param seconds: after which it hangs.
    """
    return subprocess.run(
        command,
        env={**os.environ, "LD_LIBRARY_PATH": str(built()), **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
