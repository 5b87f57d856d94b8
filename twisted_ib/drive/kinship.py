"""
Which processes are children of which, as /proc shows them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

# Now: the names may stand for others later (L{twisted_ib.blocking.patch}).
_read, _close = os.read, os.close
#: Nanoseconds of a tick, in which /proc tells when a process began.
TICK: Final = 10**9 // os.sysconf("SC_CLK_TCK")
#: Errors of a look at another process; others are this one's own, such as EMFILE.
UNSHOWN: Final = (PermissionError, FileNotFoundError, ProcessLookupError)


def status(process: str) -> tuple[str, int]:
    """
    Return the parent of a process, and the tick at which it began (proc_pid_stat(5)).
    """
    descriptor = os.open(f"/proc/{process}/stat", os.O_RDONLY)
    try:
        fields = _read(descriptor, 4096).rpartition(b")")[2].split()
    finally:
        _close(descriptor)
    return fields[1].decode(), int(fields[19])


def lineage(process: str) -> dict[str, bool]:
    """
    Return a process and those above it, which adopt the orphans of those below; 0 is one that is not shown.
    """
    kin = {"0": True}
    with suppress(*UNSHOWN):
        while process not in kin:
            kin[process] = True
            process, _ = status(process)
    return kin


def isRelated(process: str, kin: dict[str, bool], since: int) -> bool:
    """
    Return whether those of L{lineage} may have forked a process, themselves or through others, since a tick.
    One that has ended may have been such a one.

    @param kin: The answers that are known, to which others are added.
    """
    line: list[str] = []
    isOne = True
    with suppress(*UNSHOWN):
        while process not in kin:
            line.append(process)
            # Until that is known: numbers that are given again may lead in a circle.
            kin[process] = False
            parent, began = status(process)
            if began >= since:
                process = parent
        isOne = kin[process]
    kin.update(dict.fromkeys(line, isOne))
    return isOne
