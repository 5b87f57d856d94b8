"""
Tests of asking whether a program's memory is there, in C.
"""

from __future__ import annotations

from tests.verbs.c.polling.test_arrivals import StoryTestCase


class PresentTests(StoryTestCase):
    """
    C{twisted_ib_asker}.
    """

    def test_there(self) -> None:
        """
        It says of one page and of several, from any octet on, what may be read and what may be written.
        """
        self.inC("""
from mmap import PAGESIZE
from twisted_ib.verbs.pyverbs.base import mem_alloc
size = 4 * PAGESIZE
start = mem_alloc.mmap(length=size)
mem_alloc.munmap(start + 2 * PAGESIZE, PAGESIZE)
fixed = mem_alloc.MAP_PRIVATE_ | mem_alloc.MAP_ANONYMOUS_ | mem_alloc.MAP_FIXED_
mem_alloc.mmap(start + 3 * PAGESIZE, PAGESIZE, mem_alloc.PROT_READ_, fixed)
asked = []
def other(*arguments):
    asked.append(arguments)
    return False
there = mem_alloc._sooner(start, size, 2 * PAGESIZE, other)
for writes in False, True:
    assert there(0, PAGESIZE, writes) is there(PAGESIZE - 1, 1, writes) is True
    assert there(5, 2 * PAGESIZE - 5, writes) is there(size, 0, False) is True
    assert not asked
    assert there(PAGESIZE, PAGESIZE + 1, writes) is there(2 * PAGESIZE, 1, writes) is False
    assert there(3 * PAGESIZE + 1, 7, writes) is not writes
    assert there(0, 2 * PAGESIZE + 1, writes) is False
    assert len(asked) == 3 + writes
    assert asked[-1] == (0, 2 * PAGESIZE + 1, writes)
    del asked[:]
for offset, length in (-1, 1), (0, -1), (size, 1), (1, size), (1 << 70, 1), (-1 << 70, 1), (0, 1 << 70):
    assert there(offset, length, True) is mem_alloc.presence(start, size)(offset, length, True) is False
assert not asked
for wrong in (0, 1), (0, "1", True), (None, 1, True):
    try:
        there(*wrong)
    except TypeError:
        continue
    raise AssertionError(wrong)
""")

    def test_alone(self) -> None:
        """
        No other thread runs in Python between the question and the access: each packet would wait for one
        that polls.
        """
        self.inC("""
import sys
from mmap import PAGESIZE
from twisted_ib.verbs.pyverbs.base.mem_alloc import mmap, presence
isThere, ran, begins = presence(mmap(length=2 * PAGESIZE), 2 * PAGESIZE), [], threading.Lock()
begins.acquire()
def run():
    with begins:
        ran.append(True)
thread = threading.Thread(target=run)
thread.start()
sys.setswitchinterval(1000)
begins.release()
for length in 1, PAGESIZE + 1:
    for writes in False, True:
        assert all([isThere(0, length, writes) for _ in range(5000)])
assert not ran
thread.join()
assert ran
""")


del StoryTestCase
