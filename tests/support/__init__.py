"""
Helpers of tests, and what looks after descriptors that garbage in circles keeps: event loops and reactors
that a test has left.
"""

from __future__ import annotations

import gc
import os

#: With more open descriptors garbage is collected: select(2), which some tests use, takes none from 1024 on.
MOST_DESCRIPTORS = 200


def collectDescriptors() -> None:
    """
    Collect garbage if many descriptors are open, of which a left loop or reactor has a dozen.
    """
    if len(os.listdir("/proc/self/fd")) > MOST_DESCRIPTORS:
        gc.collect()
