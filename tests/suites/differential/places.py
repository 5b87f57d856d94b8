"""
Where a scenario is played: a run directory of its own, and no rules of the user's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def apart() -> Iterator[None]:
    """
    Within this context the environment is a scenario's.
    """
    with tempfile.TemporaryDirectory(prefix="tib-") as folder:
        names = ("TWISTED_IB_CONFIG", "SIMPLE_LIBSDP", "ALWAYS_USE_SDP")
        kept = {name: value for name, value in os.environ.items() if name not in names}
        kept |= {"TWISTED_IB_RUN_DIR": os.path.join(folder, "run"), "XDG_CONFIG_HOME": folder}
        with mock.patch.dict(os.environ, kept, clear=True):
            yield
