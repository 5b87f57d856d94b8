"""
Tests of waiting for records in C.
"""

from __future__ import annotations

import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.verbs.c.library import run

#: A ring of a process that is Python: what its peer has published, and what was consumed.
_BEGINNING = """
import ctypes, threading
library = ctypes.CDLL("libibverbs.so.1")
library.ibv_get_device_list(None)
from _twisted_ib_verbs import ffi, lib
published, consumed = ffi.new("uint64_t *"), ffi.new("uint64_t *")
kept = ffi.new("uint64_t *[]", [published]), ffi.new("uint64_t *[]", [consumed])
ring = ffi.new("struct twisted_ib_arrivals *", (*kept, 1, 50000))
busy = ctypes.c_uint.in_dll(library, "twisted_ib_busy")
MILLISECOND = 1000000
"""

#: A device with rings, which is watched.
_DEVICE = """
import socket
from twisted_ib.verbs.c import waiting
from twisted_ib.verbs.core.hub import hub
class Device:
    closed, rings, progress = False, [], lambda self: 0
    fabric = property(lambda self: self)
    def paths(self):
        return list(self.rings)
    def fileno(self):
        return bell.fileno()
bell, ringer = socket.socketpair()
device, arrivals = Device(), waiting.Arrivals()
hub.devices[device] = 1
# It has no timers.
hub._attended = float("inf")
"""
#: The same, of one ring.
_RING = (
    _DEVICE
    + """
from array import array
from types import SimpleNamespace
cells = array("Q", [64]), array("Q", [0]), array("Q", [0])
device.rings.append(SimpleNamespace(alive=True, owed=None, ends=lambda: tuple(map(memoryview, cells))))
def assertHeld():
    for each in cells:
        try:
            each.append(0)
        except BufferError:
            continue
        raise AssertionError("a ring that is looked at can be freed")
"""
)


class StoryTestCase(SynchronousTestCase):
    """
    Tests in a process of their own.
    """

    def inC(self, story: str) -> None:
        """
        Run a story on the libraries.
        """
        # Of a fork in a process that has threads, from Python 3.12 on.
        silent = "-W", "ignore::DeprecationWarning"
        result = run(sys.executable, *silent, "-c", _BEGINNING + story, TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))


class AwaitTests(StoryTestCase):
    """
    C{twisted_ib_await}.
    """

    def test_unread(self) -> None:
        """
        It ends with records that nobody takes, and else with its time.
        """
        self.inC("""
assert not lib.twisted_ib_await(ring, MILLISECOND)
published[0] = 64
assert lib.twisted_ib_await(ring, 3600 * 1000 * MILLISECOND)
consumed[0] = 64
assert not lib.twisted_ib_await(ring, 0)
""")

    def test_arrives(self) -> None:
        """
        Records that come later end it, and other threads run in Python meanwhile.
        """
        self.inC("""
threading.Timer(0.01, lambda: published.__setitem__(0, 64)).start()
assert lib.twisted_ib_await(ring, 3600 * 1000 * MILLISECOND)
""")

    def test_patient(self) -> None:
        """
        In a long wait, one behind a program that polls, records are left to that for a while: each pause, and
        the time that they lie, is a sixteenth of it, and no more than a millisecond.  A program that has not
        polled since the last look takes none: they are served at once, also if it has polled before.
        """
        self.inC("""
import time
published[0] = 64
for wait, least in (4, 0.0005), (16, 0.002), (3600 * 1000, 0.002):
    while True:
        lib.twisted_ib_polling, before = 1, time.monotonic()
        if lib.twisted_ib_await(ring, wait * MILLISECOND):
            break
    assert time.monotonic() - before >= least, wait
    assert not lib.twisted_ib_polling
# A millisecond for each of two pauses behind a poll, else two of 10 microseconds; the machine may be busy.
def seconds(polling):
    lib.twisted_ib_polling, before = polling, time.monotonic()
    assert lib.twisted_ib_await(ring, 3600 * 1000 * MILLISECOND)
    return time.monotonic() - before
assert any(seconds(0) < 0.002 for _ in range(1000))
""")

    def test_busy(self) -> None:
        """
        While a thread of the program is in Python, which takes the records, it does not end with them.
        """
        self.inC("""
published[0] = 64
busy.value += 1
assert not lib.twisted_ib_await(ring, 2 * MILLISECOND)
busy.value -= 1
assert lib.twisted_ib_await(ring, MILLISECOND)
""")

    def test_average(self) -> None:
        """
        Looking without a pause that finds nothing becomes rare, and one time in 64 brings it back.
        """
        self.inC("""
ring.hits = 256
for _ in range(100):
    lib.twisted_ib_await(ring, 0)
assert ring.hits < 128
published[0], ring.spin = 64, 3600 * 1000 * MILLISECOND
assert sum(lib.twisted_ib_await(ring, 0) for _ in range(256)) > 128
""")

    def test_asPolling(self) -> None:
        """
        When a pause is looked through, and what comes of each, is as L{AdaptivePolling
        <twisted_ib.hca.base.polling.AdaptivePolling>} has it.
        """
        self.inC("""
from twisted_ib.hca.base.polling import AdaptivePolling, SPIN_SECONDS
now = [0.0]
polling = AdaptivePolling(lambda: now[0], lambda: None)
def looks():
    global isLooked
    isLooked, now[0] = True, now[0] + (0 if isThere else 1)
    return isThere
for hits in 0, 1, 60, 127, 128, 129, 200, 255, 256:
    for isThere in False, True:
        for turns in 1, 62, 63, 64:
            polling.hits, polling.turns, isLooked = hits / 256, turns, False
            polling.spin(looks, answer=2 * SPIN_SECONDS)
            for _ in range(1000):
                ring.hits, ring.turns = hits, turns
                published[0], ring.spin = 64 * isThere, 3600 * 1000 * MILLISECOND if isThere else 0
                lib.twisted_ib_await(ring, 0)
                # A long yield to another process, which forgets all before, is no part of the rule.
                if abs(ring.hits - polling.hits * 256) < 1 or ring.hits not in (0, 128):
                    break
            assert ring.turns == polling.turns
            assert abs(ring.hits - polling.hits * 256) < 1, (hits, isThere, turns, ring.hits, polling.hits)
            assert isLooked == (hits >= 128 or turns == 63), (hits, turns)
""")

    def test_none(self) -> None:
        """
        Without rings it sleeps.
        """
        self.inC("""
ring.count = 0
assert not lib.twisted_ib_await(ring, MILLISECOND)
""")

    def test_readable(self) -> None:
        """
        A descriptor that nobody reads ends it, also one that becomes readable in a pause; while a thread of
        the program is in Python, which would read, it does not.
        """
        for rings in (0, 1):
            self.inC(
                f"""
import socket
bell, ringer = socket.socketpair()
fds = ffi.new("int[]", [bell.fileno()])
ring.count, ring.fds, ring.watched = {rings}, fds, 1
assert not lib.twisted_ib_await(ring, MILLISECOND)
threading.Timer(0.01, ringer.send, (b"!",)).start()
assert lib.twisted_ib_await(ring, 3600 * 1000 * MILLISECOND)
busy.value += 1
assert not lib.twisted_ib_await(ring, 2 * MILLISECOND)
busy.value -= 1
bell.recv(1)
assert not lib.twisted_ib_await(ring, MILLISECOND)
"""
            )

    def test_left(self) -> None:
        """
        Sends that were left end it soon, whether there are rings or not.
        """
        for rings in (0, 1):
            self.inC(
                f"""
ring.count = {rings}
def leave():
    lib.twisted_ib_posting.fill = 64
    lib.twisted_ib_posting.owed = 1
threading.Timer(0.01, leave).start()
assert lib.twisted_ib_await(ring, 3600 * 1000 * MILLISECOND)
lib.twisted_ib_posting.fill = lib.twisted_ib_posting.owed = 0
"""
            )

    def test_serves(self) -> None:
        """
        From what ends it until its thread calls it again or serves no more, posts are left to that thread and
        polls give way to it; what was posted then ends the next wait at once.
        """
        self.inC("""
posting = lib.twisted_ib_posting
def served():
    return posting.attending, busy.value
published[0] = 64
assert lib.twisted_ib_await(ring, 3600 * 1000 * MILLISECOND) and served() == (1, 1)
consumed[0] = 64
assert not lib.twisted_ib_await(ring, MILLISECOND) and served() == (0, 0)
for fill in 64, 0:
    consumed[0] = 0
    assert lib.twisted_ib_await(ring, 3600 * 1000 * MILLISECOND)
    consumed[0], posting.fill = 64, fill
    assert lib.twisted_ib_await(ring, MILLISECOND) == (fill > 0) and served() == (fill > 0,) * 2
    assert lib.twisted_ib_serves_no_more() == (fill > 0) and served() == (0, 0)
    assert not lib.twisted_ib_serves_no_more() and served() == (0, 0)
""")

    def test_looks(self) -> None:
        """
        Meanwhile threads that poll see in the rings whether there is something, and how much the peers have
        consumed, where the devices have nothing else; afterwards not, nor in a forked child, where the rings
        are no more.
        """
        self.inC("""
import mmap, os
library.ibv_get_device_list(None)
page = mmap.mmap(-1, mmap.PAGESIZE)
page.madvise(mmap.MADV_DONTFORK)
cells = ffi.from_buffer("uint64_t[]", page)
places = [ffi.new("uint64_t *[]", [cells + each]) for each in range(3)]
ring.published, ring.consumed, ring.read = places
def until(expected):
    while lib.twisted_ib_read() != expected:
        pass
assert not lib.twisted_ib_read()
# It does not end with records while a thread is in Python.
busy.value += 1
ended = []
thread = threading.Thread(target=lambda: ended.append(lib.twisted_ib_await(ring, 3600 * 1000 * MILLISECOND)))
thread.start()
until(1)
cells[2] = 64
until(65)
cells[0] = 64
until(0)
cells[1] = 64
until(65)
child = os.fork()
if not child:
    os._exit(lib.twisted_ib_read())
assert os.waitpid(child, 0)[1] == 0
ring.read = ffi.NULL
until(0)
ring.read = places[2]
cells[0] = 128
busy.value -= 1
thread.join()
cells[1] = 128
assert (ended, lib.twisted_ib_read()) == ([1], 0)
""")

    def test_naps(self) -> None:
        """
        Records lie for 10 microseconds at most, and what a nap of the kernel takes besides, or an eighth of
        the time since the last ones; the longest pause behind a program that polls has 60 naps at most.
        While a thread polls each takes its processor: they are fewer.
        """
        self.inC("""
def naps(pause, polled=False):
    passed, found = 0, []
    while passed < pause:
        found.append(lib.twisted_ib_nap(passed, polled))
        least = 30_000 if polled else 10_000
        assert found[-1] <= max(least, passed / 8) and found[-1] <= MILLISECOND, (passed, found)
        passed += found[-1]
    return len(found)
assert 8 <= naps(200_000) <= 20, naps(200_000)
assert naps(200_000, True) <= 7, naps(200_000, True)
assert naps(16 * MILLISECOND) <= 60, naps(16 * MILLISECOND)
assert lib.twisted_ib_nap(3600 * 1000 * MILLISECOND, False) == MILLISECOND
""")

    def test_precise(self) -> None:
        """
        Its thread's naps last no longer than they are to, by the kernel's PR_SET_TIMERSLACK; and since Linux
        6.12 it comes before threads that look at memory for a whole slice, by sched_setattr(2), where its
        policy has slices.
        """
        self.inC("""
import os, platform
lib.twisted_ib_await(ring, MILLISECOND)
slack = ctypes.CDLL(None).prctl(30, 0, 0, 0, 0)
assert slack == 1, slack
number = {"x86_64": 315, "aarch64": 275}.get(platform.machine())
hasSlices = os.sched_getscheduler(0) == os.SCHED_OTHER
if number and hasSlices and tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 12):
    # Sizes and policy, flags, nice value and priority, runtime: linux/sched/types.h.
    attributes = (ctypes.c_uint64 * 6)()
    assert not ctypes.CDLL(None).syscall(number, 0, attributes, 48, 0)
    assert attributes[3] == 100_000, list(attributes)
""")


class WatchTests(StoryTestCase):
    """
    L{Arrivals<twisted_ib.verbs.c.waiting.Arrivals>}.
    """

    def test_owed(self) -> None:
        """
        Behind a refusal that found no room, as the peer reads nothing, its records end no pause; once it has
        read they do again, unless the path is lost.
        """
        self.inC(
            _DEVICE
            + """
from unittest import mock
from twisted_ib import limits
from twisted_ib.hca.base.operation import word
from twisted_ib.hca.wire.opcodes import SEND_ONLY
from twisted_ib.hca.fabric.shm.ring import HEAD, RingPath, segmentSize
from twisted_ib.hca.fabric.shm.segment import Segment
here, there = [Segment.create(segmentSize(limits.RING)) for _ in range(2)]
path = RingPath(mock.Mock(bells=[]), None, here, there, None, limits.RING)
peer = RingPath(mock.Mock(bells=[]), None, there, here, None, limits.RING)
device.rings.append(path)
while path.postReserved(word(SEND_ONLY, 18), b"", True):
    pass
for number in 21, 22:
    peer.post(word(SEND_ONLY, number), b"", b"x", 1)
assert arrivals.watch(3600.0) is not None
path.progress(1)
assert path.owed and not path.pending() and not path.progress(1)
assert arrivals.watch(0.001) is None
there.cells[HEAD] = path.position()
assert path.progress(2) and not path.owed
assert arrivals.watch(0.001) is None
peer.post(word(SEND_ONLY, 23), b"", b"x", 1)
assert arrivals.watch(3600.0) is not None
path.alive = False
assert arrivals.watch(0.001) is None
hub.devices.clear()
"""
        )

    def test_answered(self) -> None:
        """
        What the program posts while the thread serves is posted before that waits again, also where its queue
        pair fails; and an error of a device leaves nothing to a thread that is no more.
        """
        self.inC(
            _RING
            + """
import contextlib, io
posting, settled = lib.twisted_ib_posting, []
def answer():
    if cells[0] == cells[1]:
        return 0
    assert posting.attending == busy.value == 1
    cells[1][0] = posting.fill = 64
    return 1
def settle():
    settled.append(lib.twisted_ib_swap())
    raise ValueError
def looks(structure, nanoseconds):
    assert not posting.fill
    return lib.twisted_ib_await(structure, nanoseconds)
waiting.lib = SimpleNamespace(
    twisted_ib_await=looks,
    twisted_ib_posting=posting,
    twisted_ib_serves_no_more=lib.twisted_ib_serves_no_more,
)
device.progress, hub.settle = answer, settle
with contextlib.redirect_stderr(io.StringIO()) as said:
    assert arrivals.watch(3600.0) == 1
assert settled == [64] and "ValueError" in said.getvalue()
assert (posting.attending, busy.value) == (0, 0)
def fail():
    posting.fill = 64
    raise OSError
cells[0][0], device.progress = 128, fail
with contextlib.suppress(OSError), contextlib.redirect_stderr(said):
    arrivals.watch(3600.0)
assert settled == [64, 64] and (posting.attending, busy.value) == (0, 0)
hub.settle = int
hub.devices.clear()
"""
        )

    def test_successor(self) -> None:
        """
        A thread that was told to stop may still look while its successor looks at other rings: it keeps its
        own.
        """
        self.inC(
            _RING
            + """
def looks(structure, nanoseconds):
    if device.rings:
        device.rings.clear()
        assert arrivals.watch(0.0) is None
        assertHeld()
    return lib.twisted_ib_await(structure, nanoseconds)
waiting.lib = SimpleNamespace(
    twisted_ib_await=looks,
    twisted_ib_posting=lib.twisted_ib_posting,
    twisted_ib_serves_no_more=lib.twisted_ib_serves_no_more,
)
assert arrivals.watch(1.0) is not None
for each in cells:
    each.append(0)
hub.devices.clear()
"""
        )

    def test_descriptors(self) -> None:
        """
        What comes through a device's descriptor, as packets do and new peers, ends a pause, whether it has
        rings or not; once it is closed it is not looked at.
        """
        self.inC(
            _DEVICE
            + """
assert arrivals.watch(0.001) is None
ringer.send(b"!")
assert arrivals.watch(3600.0) is not None
arrivals.forget()
assert arrivals.watch(3600.0) is not None
device.closed = True
assert arrivals.watch(0.001) is None
hub.devices.clear()
"""
        )

    def test_all(self) -> None:
        """
        Threads that poll look at the rings only where the devices have nothing else; and what one of them
        still looks at is kept.
        """
        self.inC(
            _RING
            + """
seen = []
def looks(structure, nanoseconds):
    seen.append(structure.read != ffi.NULL)
    return waiting._LOOKED
waiting.lib = SimpleNamespace(
    twisted_ib_await=looks,
    twisted_ib_posting=lib.twisted_ib_posting,
    twisted_ib_serves_no_more=lib.twisted_ib_serves_no_more,
)
for more in [], [SimpleNamespace()], []:
    device.rings[1:] = more
    assert arrivals.watch(0.0) is None
assert seen == [True, False, True]
arrivals.forget()
assertHeld()
hub.devices.clear()
"""
        )

    def test_forgotten(self) -> None:
        """
        While nothing looks for long no ring is kept mapped; the next look finds it again.
        """
        self.inC(
            _RING
            + """
for _ in range(2):
    assert arrivals.watch(3600.0) is not None
    arrivals.forget()
    for each in cells:
        each.append(0)
hub.devices.clear()
"""
        )
