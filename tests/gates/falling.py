"""
Numbers that may only fall: what is counted of the tree or of a call, and what was counted last.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from twisted.trial.unittest import SynchronousTestCase

#: Whether a comprehension is a function (PEP 709).
_HAS_FUNCTIONS = sys.version_info < (3, 12)


def mayOnlyFall(
    test: SynchronousTestCase, found: Mapping[str, int], recorded: Mapping[str, int], isRun: bool = False
) -> None:
    """
    Fail with what has risen; with what has fallen, too, so that it is recorded and stays.

    @param found: the numbers, each by what it counts; 0 for those that are missing.
    @param recorded: the same as they stand in the test.
    @param isRun: whether it is counted as the code runs; a newer Python than that of the record may do less.
    """
    changes = []
    for name in sorted({*found, *recorded}):
        now, before = found.get(name, 0), recorded.get(name, 0)
        if now > before:
            changes.append(f"{name}: {now}, which may only fall, and was {before}")
        elif now < before and (_HAS_FUNCTIONS or not isRun):
            changes.append(f"{name}: {now} now, so lower the recorded {before}")
    if changes:
        test.fail("\n".join(changes))


def folderOf(path: str) -> str:
    """
    @param path: a module's, in the package.
    @return: the folder that it counts for: two levels of them at most.
    """
    return "/".join(path.split("/")[:-1][:2]) or "."
