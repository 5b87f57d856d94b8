"""
Access rights on memory.
"""

from __future__ import annotations

from enum import IntFlag
from typing import Final


class Access(IntFlag):
    """
    Access rights, of memory and of a queue pair's peer (C{enum ibv_access_flags}).
    """

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8
    MW_BIND = 0x10
    ZERO_BASED = 0x20
    ON_DEMAND = 0x40
    HUGETLB = 0x80
    FLUSH_GLOBAL = 0x100
    FLUSH_PERSISTENT = 0x200
    RELAXED_ORDERING = 0x100000


# Plain integers for the data path: an IntFlag operation makes an object and costs ten times as
# much.  LOCAL_READ is 0, as every registration includes it (IBTA vol. 1 10.6.3).
LOCAL_READ: Final = 0
LOCAL_WRITE: Final = int(Access.LOCAL_WRITE)
REMOTE_WRITE: Final = int(Access.REMOTE_WRITE)
REMOTE_READ: Final = int(Access.REMOTE_READ)
REMOTE_ATOMIC: Final = int(Access.REMOTE_ATOMIC)
MW_BIND: Final = int(Access.MW_BIND)
ZERO_BASED: Final = int(Access.ZERO_BASED)
REMOTE: Final = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
KNOWN: Final = int(sum(Access))


def checkKnown(access: int) -> int:
    """
    @return: the bits as a plain integer.

    @raise ValueError: some of them are not in L{Access}.
    """
    if access & ~KNOWN:
        raise ValueError(f"unknown access bits {access & ~KNOWN:#x}")
    return int(access)
