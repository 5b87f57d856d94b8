"""
Long frames of a peer on this host, copied from the memory of its process at once.

By the rings a READ copies each byte twice, 64 KiB at a time, and both processes work for it.  The kernel
copies it once (process_vm_readv(2)), in a thread, where it lets this process do so: the peer is of the same
user, as the kernel says, and nothing forbids it (seccomp(2), Yama's ptrace_scope, another pid namespace).

A copy knows nothing of rights, so a READ of the last byte follows it.  If that succeeds, the frame was still
registered behind the copy, and the peer alive: so what was copied is the frame, as if it had been READ.
If the kernel refuses, all of it is, and that process is not asked again.  Where Yama refuses all processes
none is asked, as it logs each try.
"""

from __future__ import annotations

import asyncio
import errno
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from twisted_ib.hca.base.interfaces import ISharedMemoryPath
from twisted_ib.hca.host.processmemory import mayAttach, readProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted_ib.dask.messages import Place
    from twisted_ib.rdma.transport import RDMATransport

#: Frames from this length on are copied so; shorter ones are READ.
LEAST_BYTES: Final = 256 << 10
#: Errors that stand while both processes live: refusals by Yama or ptrace(2), and by a filter of calls.
_REFUSALS: Final = frozenset((errno.EPERM, errno.ENOSYS))
#: So many processes that refuse are remembered, then anew.  Where another has a number of theirs all is READ.
_REFUSING_PROCESSES: Final = 1024
_refusing: Final[set[int]] = set()


def processOf(transport: RDMATransport) -> int:
    """
    @return: The process at the other end, if its memory may be asked for; else 0.
    """
    path = transport.queuePair.path
    return path.peerProcess() if ISharedMemoryPath.providedBy(path) else 0


async def copied(process: int, places: Sequence[Place], views: Sequence[memoryview]) -> list[bool]:
    """
    Copy what lies in another process.

    @param process: Its number.
    @param places: Frames; of those without a pointer nothing is copied.
    @param views: Where each goes.
    @return: Whether each was copied.
    """
    found = [bool(place.pointer) and place.length >= LEAST_BYTES for place in places]
    wanted = [(place.pointer, view) for place, view, is_ in zip(places, views, found, strict=True) if is_]
    if not wanted:
        return found
    if process in _refusing:
        return [False] * len(found)
    # In a thread, as the peer's pages may have to come from a disk or a network first.  It keeps the views,
    # also if nobody waits for it any more.
    isCopied = await asyncio.get_running_loop().run_in_executor(None, _copy, process, wanted)
    return found if isCopied else [False] * len(found)


def _copy(process: int, wanted: Sequence[tuple[int, memoryview]]) -> bool:
    if not _mayAsk(process):
        _remember(process)
        return False
    for pointer, view in wanted:
        done = 0
        while done < len(view):
            try:
                count = readProcess(process, pointer + done, view[done:])
            except OSError as error:
                if error.errno in _REFUSALS:
                    _remember(process)
                return False
            if not count:
                return False
            done += count
    return True


@lru_cache(_REFUSING_PROCESSES)
def _mayAsk(process: int) -> bool:
    # Once for each: Yama's scope is a file.
    return mayAttach()


def _remember(process: int) -> None:
    if len(_refusing) >= _REFUSING_PROCESSES:
        _refusing.clear()
    _refusing.add(process)
