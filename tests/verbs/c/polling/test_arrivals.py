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


class AwaitTests(SynchronousTestCase):
    """
    C{twisted_ib_await}.
    """

    def inC(self, story: str) -> None:
        """
        Run a story on the libraries.
        """
        result = run(sys.executable, "-c", _BEGINNING + story, TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))

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

    def test_none(self) -> None:
        """
        Without rings it sleeps.
        """
        self.inC("""
ring.count = 0
assert not lib.twisted_ib_await(ring, MILLISECOND)
""")
