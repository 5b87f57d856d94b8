"""
Where the time of bulk data goes: L{bytes} objects, and the two copies of a record where both ends are on one
CPU and where each has its own, with Python's slices, which are C{memcpy(3)}, and with stores that pass by the
caches.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

from attrs import frozen

from benchmarks.clients import chunksOf
from benchmarks.copysteps import HEAD, PAGE, RECORD, RINGS, TAIL, awaitCell, memoryOf, positionsOf
from benchmarks.steps import Table

#: Sizes of writes, by name.
SIZES = {"16 KiB": 16 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20}
#: Objects made in one run.
_OBJECTS = 64
#: Records of a run.
_RECORDS = 400
#: Where the reader's times are, behind its cells.
_TIMES = PAGE // 8

Copy = Callable[[int, int], object]


@frozen
class Kind:
    """
    A way to copy a record into the ring.

    @ivar copier: Makes, of the ring's memory, a function that copies from one of the chunks to an offset.
    """

    name: str
    copier: Callable[[mmap.mmap, list[bytes]], Copy]


def _byPython(memory: mmap.mmap, chunks: list[bytes]) -> Copy:
    def copy(at: int, number: int) -> None:
        memory[at : at + RECORD] = chunks[number]

    return copy


def _byC(function: Any) -> Callable[[mmap.mmap, list[bytes]], Copy]:
    def copier(memory: mmap.mmap, chunks: list[bytes]) -> Copy:
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return lambda at, number: function(base + at, chunks[number], RECORD)

    return copier


def kinds(folder: str) -> list[Kind]:
    """
    @param folder: Where C code is compiled, if there is a compiler, for x86-64 only.

    @return: The ways that this machine has.
    """
    found = [Kind("slices", _byPython)]
    compiler = shutil.which("cc")
    if compiler and os.uname().machine == "x86_64":
        library = os.path.join(folder, "copying.so")
        source = Path(__file__).with_name("copying.c")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, str(source)], check=True)
        function = ctypes.CDLL(library).copy_past_caches
        function.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        function.restype = None
        found.append(Kind("past the caches, by ctypes", _byC(function)))
    return found


def measure(runs: int) -> list[Table]:
    """
    Both tables; must come before there is a device, as it forks.
    """
    return [_objects(runs), _copies(runs)]


def _objects(runs: int) -> Table:
    """
    Objects that are made of hot memory and dropped at once, or kept until the next one is there.
    """
    table = Table("A bytes object, made by a copy of hot memory", "ns/KiB")
    source = mmap.mmap(-1, max(SIZES.values()))
    source[:] = bytes(len(source))
    for name, size in SIZES.items():
        target = bytearray(size)
        view, taken = memoryview(target), memoryview(source)[:size]

        def over(view: memoryview = view, taken: memoryview = taken) -> None:
            """
            Copy into memory that is there.
            """
            view[:] = taken

        def made(size: int = size) -> bytes:
            """
            Copy into a new object.
            """
            return source[:size]

        for remark, what, isKept in (
            ("the copy alone", over, False),
            ("new, dropped at once", made, False),
            ("new, dropped after the next", made, True),
        ):
            found, faults = min(_timed(what, isKept) for _ in range(max(2, runs)))
            table.add(f"{name}, {remark}", found * 1024 / size, f"{faults:.1f} page faults")
    return table


def _timed(what: Callable[[], object], isKept: bool) -> tuple[float, float]:
    """
    @return: ns of CPU time and page faults of one call.
    """
    last = None
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    begun = thread_time_ns()
    for _ in range(_OBJECTS):
        if isKept:
            last = what()
        else:
            what()
    took = thread_time_ns() - begun
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    del last
    return took / _OBJECTS, faults / _OBJECTS


def _copies(runs: int) -> Table:
    """
    One record after the other, each taken before the next is written: no copy waits for the other.
    """
    table = Table("The copies of a 64 KiB record, one at a time", "ns")
    count = min(_RECORDS, runs * 20)
    with tempfile.TemporaryDirectory(prefix="steps-") as folder:
        for kind in kinds(folder):
            for isCold, ring in ((False, RINGS[0]), (False, RINGS[-1]), (True, RINGS[-1])):
                chunks = chunksOf(RECORD, isCold)
                source = f"source of {len(chunks) * RECORD >> 10} KiB"
                for cpus, pair in (("one CPU", _alone), ("two CPUs", _split)):
                    copyIn, copyOut = pair(kind, chunks, ring, count)
                    label = f"{kind.name}, {source}, ring of {ring >> 10} KiB, {cpus}"
                    table.add(f"{label}: in", copyIn, "lower quartile")
                    table.add(f"{label}: out", copyOut, "lower quartile; always into a new object")
    return table


def _alone(kind: Kind, chunks: list[bytes], ring: int, count: int) -> tuple[float, float]:
    """
    Both copies in this process.

    @return: ns of a copy in and of a copy out.
    """
    memory, positions = memoryOf(ring), positionsOf(ring)
    copy = kind.copier(memory, chunks)
    found = []
    for number in range(count):
        at = positions[number % len(positions)]
        begun = perf_counter_ns()
        copy(at, number % len(chunks))
        middle = perf_counter_ns()
        memory[at : at + RECORD]
        found.append((middle - begun, perf_counter_ns() - middle))
    copyIn, copyOut = zip(*found, strict=True)
    return _quartile(copyIn), _quartile(copyOut)


def _split(kind: Kind, chunks: list[bytes], ring: int, count: int) -> tuple[float, float]:
    """
    The copy out in another process, on another CPU where there is one.
    """
    memory, positions = memoryOf(ring), positionsOf(ring)
    cells = memoryview(mmap.mmap(-1, PAGE + count * 8)).cast("Q")
    cpus = sorted(os.sched_getaffinity(0))
    child = os.fork()
    if not child:
        try:
            os.sched_setaffinity(0, {cpus[-1]})
            for number in range(count):
                awaitCell(cells, TAIL, number + 1)
                at = positions[number % len(positions)]
                begun = perf_counter_ns()
                memory[at : at + RECORD]
                cells[_TIMES + number] = perf_counter_ns() - begun
                cells[HEAD] = number + 1
        finally:
            os._exit(0)
    found = []
    try:
        os.sched_setaffinity(0, {cpus[0]})
        copy = kind.copier(memory, chunks)
        for number in range(count):
            at = positions[number % len(positions)]
            begun = perf_counter_ns()
            copy(at, number % len(chunks))
            found.append(perf_counter_ns() - begun)
            cells[TAIL] = number + 1
            awaitCell(cells, HEAD, number + 1)
    finally:
        os.sched_setaffinity(0, cpus)
        os.waitpid(child, 0)
    return _quartile(found), _quartile(cells[_TIMES : _TIMES + count])


def _quartile(times: Sequence[int]) -> int:
    """
    The lower quartile of the second half: by then all pages are mapped.
    """
    ordered = sorted(times[len(times) // 2 :])
    return ordered[len(ordered) // 4]
