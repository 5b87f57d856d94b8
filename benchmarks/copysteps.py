"""
The two copies of a record of 64 KiB, and what the memory of this machine allows: a ring that is
only copied into and out of, without any layer.
"""

from __future__ import annotations

import mmap
import os
from time import perf_counter_ns, thread_time_ns
from typing import Any

from twisted.internet.defer import Deferred

from benchmarks.clients import chunksOf
from benchmarks.stepping import Both, Swallow, connected
from benchmarks.steps import Table
from twisted_ib import limits
from twisted_ib.hca.wire.opcodes import SEND_ONLY
from twisted_ib.sdp.protocol.wire import BSDH_BYTES

RECORD = 64 * 1024
PAGE = 4096
#: Rings that are compared; the device's own is one of them or between.
RINGS = (256 * 1024, 1024 * 1024, 4 * 1024 * 1024)
#: Bytes of one run across two processes, for each of the runs that are asked for, and at most.
PER_RUN, MOST = 8 << 20, 256 << 20
#: A payload begins half a page into a page, as in a device's ring.
_LEAD = PAGE + 2048
_STEP = RECORD + PAGE
_NUMBER = 0xFFFFF1
#: Cells, of eight bytes each, in lines of their own.
TAIL, HEAD = 0, 8


def measure(reactor: Any, runs: int) -> Deferred[list[Table]]:
    """
    In one process.
    """
    return connected(reactor).addCallback(_inProcess, runs)


def _inProcess(both: Both, runs: int) -> list[Table]:
    """
    By the device's ring, and by bare memory.
    """
    table = Table("One record of 64 KiB, both ends in one process", "ns")
    below, above = both.client.queuePair.path, both.server.queuePair.path
    above.table[_NUMBER] = Swallow(BSDH_BYTES)
    word, header, data = SEND_ONLY << 24 | _NUMBER, bytes(BSDH_BYTES), chunksOf(RECORD, False)[0]
    found = []
    warm = 2 * limits.RING // RECORD  # The first laps find pages that are not mapped yet.
    for number in range(warm + runs * 20):
        begun = perf_counter_ns()
        wasPosted = below.post(word, header, data, RECORD)
        posted = perf_counter_ns()
        n = above.progress(1)
        taken = perf_counter_ns()
        assert wasPosted and n == 1
        if number >= warm:
            found.append((posted - begun, taken - posted))
        both.settle()
    del above.table[_NUMBER]
    half = len(found) // 2
    post, take = (sorted(each)[half] for each in zip(*found, strict=True))
    table.add("fabric: post, a copy in it", post, f"median; ring of {limits.RING >> 10} KiB")
    table.add("fabric: drain, a copy out in it", take, "median")
    for ring in RINGS:
        copyIn, copyOut = _bare(ring, data, runs)
        table.add(f"bare copy in, ring of {ring >> 10} KiB", copyIn, "median")
        table.add(f"bare copy out, ring of {ring >> 10} KiB", copyOut, "median")
    both.client.abortConnection()
    both.port.stopListening()
    both.settle()
    return [table]


def positionsOf(ring: int) -> list[int]:
    """
    Where records begin, in a ring and the room behind it.
    """
    return [_LEAD + at for at in range(0, ring, _STEP)]


def memoryOf(ring: int) -> mmap.mmap:
    """
    Shared memory for a ring.
    """
    return mmap.mmap(-1, _LEAD + ring + 2 * _STEP)


def _bare(ring: int, data: bytes, runs: int) -> tuple[float, float]:
    """
    @return: ns of a copy in and of a copy out, the medians.
    """
    memory = memoryOf(ring)
    found = []
    for _ in range(max(2, runs)):
        for at in positionsOf(ring):
            begun = perf_counter_ns()
            memory[at : at + RECORD] = data
            middle = perf_counter_ns()
            memory[at : at + RECORD]
            found.append((middle - begun, perf_counter_ns() - middle))
    half = len(found) // 2
    copyIn, copyOut = (sorted(each)[half] for each in zip(*found, strict=True))
    return copyIn, copyOut


def acrossProcesses(runs: int) -> Table:
    """
    By bare memory, from one process to another, each on a CPU of its own where there are two.

    The bound of anything that copies into shared memory and out of it, on this machine.
    """
    table = Table("The bound: a bare ring between two processes", "MB/s")
    length = min(MOST, runs * PER_RUN)
    for isCold in (False, True):
        source = "cold, 128 buffers of 1 MiB" if isCold else "hot, one buffer of 1 MiB"
        chunks = chunksOf(1 << 20, isCold)
        for ring in RINGS:
            outcomes = [_across(ring, chunks, length) for _ in range(max(2, runs // 6))]
            rate, cpu = max(outcomes)
            table.add(
                f"1 MiB writes by 64 KiB records, ring of {ring >> 10} KiB, {source}",
                rate,
                f"{cpu:.0f} ns/KiB of CPU, both ends, waiting included",
            )
    return table


def _across(ring: int, chunks: list[bytes], length: int) -> tuple[float, float]:
    """
    One run.

    @param length: Bytes that are moved.
    @return: MB/s, and ns of CPU time for each KiB.
    """
    memory, cells = memoryOf(ring), memoryview(mmap.mmap(-1, PAGE)).cast("Q")
    count = length // RECORD
    cpus = sorted(os.sched_getaffinity(0))
    before = os.times()
    child = os.fork()
    if not child:
        try:
            os.sched_setaffinity(0, {cpus[-1]})
            _take(memory, cells, ring, count)
        finally:
            os._exit(0)
    try:
        os.sched_setaffinity(0, {cpus[0]})
        used, begun = thread_time_ns(), perf_counter_ns()
        _put(memory, cells, ring, count, [memoryview(chunk) for chunk in chunks])
        took, used = perf_counter_ns() - begun, thread_time_ns() - used
    finally:
        os.sched_setaffinity(0, cpus)
        os.waitpid(child, 0)
    after = os.times()
    children = after.children_user + after.children_system - before.children_user - before.children_system
    return length / took * 1e3, (used + children * 1e9) * 1024 / length


def awaitCell(cells: memoryview, index: int, least: int) -> None:
    """
    Wait until a cell has reached a number; give way to others now and then.
    """
    looks = 0
    while cells[index] < least:
        looks += 1
        if not looks & 63:
            os.sched_yield()


def _put(memory: mmap.mmap, cells: memoryview, ring: int, count: int, chunks: list[memoryview]) -> None:
    """
    The writer: so many records, and wait until the last is taken.
    """
    positions = positionsOf(ring)
    places, per = len(positions), len(chunks[0]) // RECORD
    for number in range(count):
        awaitCell(cells, HEAD, number - places + 1)
        at, start = positions[number % places], number % per * RECORD
        memory[at : at + RECORD] = chunks[number // per % len(chunks)][start : start + RECORD]
        cells[TAIL] = number + 1
    awaitCell(cells, HEAD, count)


def _take(memory: mmap.mmap, cells: memoryview, ring: int, count: int) -> None:
    """
    The reader.
    """
    positions = positionsOf(ring)
    places = len(positions)
    for number in range(count):
        awaitCell(cells, TAIL, number + 1)
        at = positions[number % places]
        memory[at : at + RECORD]
        cells[HEAD] = number + 1
