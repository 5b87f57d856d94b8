"""
Where the HCAs of one test meet, and no others.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase


def ownRunDirectory(test: SynchronousTestCase) -> str:
    """
    Have this process, and those that it starts, use a run directory of a test's own.

    @return: its path; the first user creates it.
    """
    directory = tempfile.mkdtemp()
    test.addCleanup(_remove, directory)
    path = os.path.join(directory, "run")
    environment = mock.patch.dict(os.environ, TWISTED_IB_RUN_DIR=path)
    environment.start()
    test.addCleanup(environment.stop)
    return path


class OwnDirectory:
    """
    A run directory for one test.
    """

    def setUp(self: Any) -> None:
        ownRunDirectory(self)
        super().setUp()


def _remove(directory: str) -> None:
    # A thread or a process that ends removes its own meanwhile, as the host of a subnet its socket.
    while os.path.exists(directory):
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)
