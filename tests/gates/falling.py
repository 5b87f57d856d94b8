"""
Numbers that may only fall: what is counted of the tree or of a call, and what was counted last.
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.trial.unittest import SynchronousTestCase


def mayOnlyFall(test: SynchronousTestCase, found: Mapping[str, int], recorded: Mapping[str, int]) -> None:
    """
    Fail with what has risen; with what has fallen, too, so that it is recorded and stays.

    @param found: the numbers, each by what it counts; 0 for those that are missing.
    @param recorded: the same as they stand in the test.
    """
    changes = []
    for name in sorted({*found, *recorded}):
        now, before = found.get(name, 0), recorded.get(name, 0)
        if now > before:
            changes.append(f"{name}: {now}, which may only fall, and was {before}")
        elif now < before:
            changes.append(f"{name}: {now} now, so lower the recorded {before}")
    if changes:
        test.fail("\n".join(changes))


def folderOf(path: str) -> str:
    """
    @param path: a module's, in the package.
    @return: the folder that it counts for: two levels of them at most.
    """
    return "/".join(path.split("/")[:-1][:2]) or "."
