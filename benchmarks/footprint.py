"""
How much memory connections take, in both processes and in the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

#: Of C{/proc/PID/status}: what is a process's own, and what it shares with its peer. Pages that
#: both have mapped count twice.
_USER = ("RssAnon", "RssShmem")
#: Of C{/proc/meminfo}: sockets, their files and buffers; page tables; stacks of threads.
_KERNEL = ("Slab", "PageTables", "KernelStack")


def _sumOf(path: str, names: Sequence[str]) -> int:
    """
    Add up some lines of a file of the kernel's, in KiB.
    """
    total = 0
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name in names:
            total += int(value.split()[0])
    return total


@frozen
class Footprint:
    """
    What was in use at one moment.

    @ivar user: KiB of the processes.
    @ivar kernel: KiB of the kernel, for this whole machine: nothing else should begin or end.
    """

    user: int
    kernel: int

    @classmethod
    def take(cls, processes: Sequence[int]) -> Footprint:
        """
        Look.

        @param processes: The ids of both ends.
        """
        user = sum(_sumOf(f"/proc/{pid}/status", _USER) for pid in processes)
        return cls(user, _sumOf("/proc/meminfo", _KERNEL))

    def since(self, earlier: Footprint) -> Footprint:
        """
        What has been added.
        """
        return Footprint(self.user - earlier.user, self.kernel - earlier.kernel)
