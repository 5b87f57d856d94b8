"""
How much memory connections take, in both processes and in the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from attrs import frozen

from twisted_ib.tools.compare.measuring import Figures, cpuNanoseconds

#: How long both ends are left alone before memory is looked at, and before idle CPU time is.
SETTLE_SECONDS = 0.3
REST_SECONDS = 0.7
#: Idle CPU time is that of so many times the row's seconds.
IDLE_TIMES = 8

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
    The memory in use at one moment.

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
        The growth.
        """
        return Footprint(self.user - earlier.user, self.kernel - earlier.kernel)


class Idleness:
    """
    The cost of connections that are open and silent.

    Begun before they are made, then told of the steps: C{connected}, C{rested}, C{figures}.
    """

    def __init__(self, processes: Sequence[int], count: int) -> None:
        """
        @param processes: The ids of both ends.
        @param count: How many connections there will be.
        """
        self._processes = processes
        self._count = count
        self._growth = Footprint.take(processes)

    def connected(self) -> None:
        """
        All are made, have had an echo, and L{SETTLE_SECONDS} have passed.
        """
        self._growth = Footprint.take(self._processes).since(self._growth)

    def rested(self) -> None:
        """
        L{REST_SECONDS} more have passed: CPU time counts from now on.
        """
        self._used = [cpuNanoseconds((pid,)) for pid in self._processes]
        self._begun = perf_counter()

    def figures(self) -> Figures:
        """
        Some time has passed.

        @return: KiB for each connection, and the share of a CPU, in per cent, of the busier end.
        """
        took = (perf_counter() - self._begun) * 1e9
        pairs = zip(self._processes, self._used, strict=True)
        shares = [(cpuNanoseconds((pid,)) - used) / took * 100 for pid, used in pairs]
        user, kernel = self._growth.user / self._count, self._growth.kernel / self._count
        return {
            "memory": user + kernel,
            "user": user,
            "kernel": kernel,
            "CPU": max(shares),
            "CPU both": sum(shares),
        }
