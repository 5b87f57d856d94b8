"""
The built libraries, for tests; skipped where they cannot be built.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from contextlib import suppress
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
        # Of the processes of C{trial -j} one builds them.
        with open(__file__) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return libraries()
    except LibraryBuildError as error:
        raise SkipTest(f"the libraries cannot be built: {error}") from None


def run(*command: str, seconds: float = HANG_SECONDS, **environment: str) -> subprocess.CompletedProcess[str]:
    """
    Run a C program on the libraries.

    @param seconds: after which it hangs, and is ended with its children.
    """
    with subprocess.Popen(
        command,
        env={**os.environ, "LD_LIBRARY_PATH": str(built()), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
