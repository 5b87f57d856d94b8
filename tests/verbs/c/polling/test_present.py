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
start = mem_alloc.mmap(length=4 * PAGESIZE)
mem_alloc.munmap(start + 2 * PAGESIZE, PAGESIZE)
fixed = mem_alloc.MAP_PRIVATE_ | mem_alloc.MAP_ANONYMOUS_ | mem_alloc.MAP_FIXED_
mem_alloc.mmap(start + 3 * PAGESIZE, PAGESIZE, mem_alloc.PROT_READ_, fixed)
there = mem_alloc._asksSoon
for writes in False, True:
    assert there(start, PAGESIZE, writes) is there(start + PAGESIZE - 1, 1, writes) is True
    assert there(start + 5, 2 * PAGESIZE - 5, writes) is True
    assert there(start + PAGESIZE, PAGESIZE + 1, writes) is there(start + 2 * PAGESIZE, 1, writes) is False
    assert there(start + 3 * PAGESIZE + 1, 7, writes) is not writes
for wrong in (start, 1), (start, "1", True), (start, 1 << 70, True):
    try:
        there(*wrong)
    except (TypeError, OverflowError):
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
isThere, ran, begins = presence(mmap(length=2 * PAGESIZE)), [], threading.Lock()
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
