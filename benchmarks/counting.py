"""
What one more message, connection or datagram takes, in numbers that no other program on the machine moves:
C{python -m benchmarks.counting}.

Both ends are in one process on a reactor that turns when it is told to, and whose clock stands still but for
that: C{ib}, and C{epoll} for all that do not poll.  What a turn does once cancels out: each number is the
difference between many and few, divided.  A JSON object is printed: by row and subject, the numbers, or a
text that says why there are none.

Of C{MEASURES}, C{bytecodes} sees every change of the path, C{allocated} every copy into an object that was
not there before, C{system calls} those that Python code makes itself.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

from twisted.internet.epollreactor import EPollReactor

from benchmarks.counted import Datagrams, Place, Stream

#: What is counted, by name, with its unit.
MEASURES = {
    "calls": "functions of Python",
    "C calls": "functions of C",
    "system calls": "made by Python code",
    "bytecodes": "executed",
    "allocated": "bytes",
    "kept": "bytes",
    "blocks": "kept",
    "modules": "imported",
}
KIB, MIB = 1 << 10, 1 << 20
#: Functions of C that are system calls, by module or by the class of the object whose they are.
_SYSTEM_MODULES = frozenset({"posix", "select", "_socket", "fcntl", "_posixshmem"})
_SYSTEM_CLASSES = frozenset({"socket", "epoll", "poll"})
_SYSTEM_NAMES = frozenset({"sleep", "sched_yield"})


def _isSystemCall(function: Any) -> bool:
    return (
        function.__module__ in _SYSTEM_MODULES
        # The package has a class of sockets of its own, which comes from one of these.
        or any(each.__name__ in _SYSTEM_CLASSES for each in type(getattr(function, "__self__", None)).__mro__)
        or function.__name__ in _SYSTEM_NAMES
    )


def calls(act: Callable[[], object]) -> Counter[str]:
    """
    @return: How many functions ran.
    """
    found: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            found["calls"] += 1
        elif event == "c_call":
            found["C calls"] += 1
            found["system calls"] += _isSystemCall(argument)

    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found


def steps(act: Callable[[], object]) -> Counter[str]:
    """
    @return: How many bytecodes ran.
    """
    found: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            found["bytecodes"] += 1
        return trace

    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(None)
    return found


def bytesAllocated(act: Callable[[], object], least: int) -> Counter[str]:
    """
    @param least: Smaller objects do not count.

    @return: How many bytes were allocated, what is free again included: after each bytecode it is seen how
        much more there is than before it.
    """
    total = last = 0
    memory = tracemalloc.get_traced_memory

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal total, last
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        now = memory()[0]
        if now - last >= least:
            total += now - last
        last = now
        return trace

    tracemalloc.start()
    try:
        last = memory()[0]
        sys.settrace(trace)
        act()
    finally:
        sys.settrace(None)
        tracemalloc.stop()
    return Counter({"allocated": total})


def growth(act: Callable[[], object]) -> Counter[str]:
    """
    @return: What is kept.
    """
    gc.collect()
    tracemalloc.start()
    try:
        before = sys.getallocatedblocks()
        act()
        gc.collect()
        after = sys.getallocatedblocks()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    return Counter({"kept": kept, "blocks": after - before})


def perOne(act: Callable[[int], None], few: int, many: int, size: int, isKept: bool) -> dict[str, float]:
    """
    @param isKept: What stays is counted, not what is done.

    @return: What one more takes, by measure.
    """
    # What is made once is made, and what is looked up once is found.
    for _ in range(2):
        act(many)
    found: dict[str, float] = {}
    ways: list[Callable[[Callable[[], object]], Counter[str]]] = [growth] if isKept else [calls, steps]
    if size >= KIB and not isKept:
        # A header's objects are not what this is about, and sizes of tables and frames are not steady.
        ways.append(partial(bytesAllocated, least=min(size, 64 * KIB) // 2))
    for way in ways:
        less, more = way(partial(act, few)), way(partial(act, many))
        for name in dict.fromkeys((*less, *more)):
            found[name] = round((more[name] - less[name]) / (many - few), 2)
    return found


def _import() -> dict[str, float]:
    """
    What the imports of a program with C{sdp:} on C{ib} bring, in a process of its own.
    """
    names = "twisted_ib.sdp, twisted_ib.reactor.ibreactor"
    code = f"import sys; before = len(sys.modules); import {names}; print(len(sys.modules) - before)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {"modules": float(ran.stdout)}


#: Rows of streams: the way of counting, the size, few and many.  Trips differ by whole periods of the turns
#: that call epoll (EPOLL_EVERY of L{twisted_ib.reactor.loop}), or a row has more or fewer of them by chance;
#: so do datagrams, whose acknowledgements have a period too.
_STREAMS = {
    "rt64": ("trips", 64, 8, 40),
    "rt64k": ("trips", 64 * KIB, 4, 20),
    "rt1m": ("trips", MIB, 2, 18),
    "stream64": ("stream", 64, 20, 60),
    "stream1k": ("stream", KIB, 20, 60),
    "stream16k": ("stream", 16 * KIB, 12, 36),
    "stream64k": ("stream", 64 * KIB, 8, 24),
    "stream1m": ("stream", MIB, 2, 6),
    "stream4m": ("stream", 4 * MIB, 1, 3),
    "echo100": ("crowd", 64, 20, 60),
    "connects": ("connects", 64, 10, 40),
    "idle": ("idle", 64, 40, 120),
}
_RDMA = {name: row for name, row in _STREAMS.items() if row[1] <= 64 * KIB} | {
    "write1m": ("write", MIB, 2, 6),
    "read1m": ("read", MIB, 2, 6),
}
_PACKETS = {
    "roce64": ("trips", 64, 8, 40),
    "roce1m": ("stream", MIB, 2, 6),
}
#: The size, whether each comes back first, and many: of the longest the send budget takes fewer.
_DATAGRAMS = {
    "dg64": (64, True, 20),
    "dgs64": (64, False, 20),
    "dgs1k": (KIB, False, 20),
    "dgs16k": (16 * KIB, False, 20),
    "dgs64k": (64 * KIB, False, 12),
}


def _network() -> str:
    """
    @return: The first three parts of addresses of this host that no process that counts at the same time has.
    """
    return f"127.{20 + os.getpid() // 250 % 200}.{1 + os.getpid() % 250}"


def _streams(stream: Callable[[], Stream], rows: Any, name: str) -> Iterator[tuple[str, str, Any]]:
    for row, (way, size, few, many) in rows.items():

        def count(way: str = way, size: int = size, few: int = few, many: int = many) -> dict[str, float]:
            made = stream()
            try:
                return perOne(getattr(made, way)(size), few, many, size, way == "idle")
            finally:
                made.place.close()

        yield row, name, count


def everything() -> Iterator[tuple[str, str, Callable[[], dict[str, float]]]]:
    """
    @return: Row, subject, and what counts it.
    """
    sdp, rdma = ("twisted_ib.sdp", "SDP"), ("twisted_ib.rdma", "RDMA")
    yield from _streams(partial(Stream, sdp), _STREAMS, "sdp-ib")
    # Of one message after another the kernel says when the reactor turns: no two counts would be the same.
    crowd = {"echo100": _STREAMS["echo100"]}
    yield from _streams(lambda: Stream(sdp, place=Place(EPollReactor())), crowd, "sdp-epoll")
    yield from _streams(partial(Stream, rdma), _RDMA, "ib")
    here, there = (f"{_network()}.{number}" for number in (2, 3))
    yield from _streams(partial(Stream, sdp, "roce0", here, there), _PACKETS, "sdp-roce")
    for name, device, ends in (
        ("rds-ib", "shm0", ("127.0.0.1", "127.0.0.1")),
        ("rds-roce", "roce0", (here, there)),
    ):
        for row, (size, isTrip, many) in _DATAGRAMS.items():

            def count(
                device: str = device,
                ends: Any = ends,
                size: int = size,
                isTrip: bool = isTrip,
                many: int = many,
            ) -> dict[str, float]:
                made = Datagrams(device, *ends)
                try:
                    return perOne(made.act(size, isTrip), 4, many, size, False)
                finally:
                    made.close()

            yield row, name, count
    yield "import", "sdp-ib", _import


def main() -> int:
    """
    Count, and print.

    @return: 0.
    """
    wanted = sys.argv[1:]
    found: dict[str, dict[str, Any]] = {}
    for row, subject, count in everything():
        if wanted and row not in wanted:
            continue
        result: Any
        try:
            result = count()
        except Exception as error:
            # An older tree may lack what a newer one counts.
            result = f"{type(error).__name__}: {error}"
        found.setdefault(row, {})[subject] = result
    print(json.dumps(found))
    sys.stdout.flush()
    # Without the ends of what is still open.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
