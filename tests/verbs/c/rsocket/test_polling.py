"""
Tests of C{rpoll}, C{rselect} and C{repoll_wait} by programs in C.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from glob import glob
from pathlib import Path

from twisted.trial.unittest import SkipTest

from tests.verbs.c.library import run
from tests.verbs.c.test_calls import ProgramTestCase
from twisted_ib import limits

#: Linux elf.h: kinds of program headers, and a flag of theirs.
_PT_DYNAMIC, _PT_GNU_RELRO, _PF_W = 2, 0x6474E552, 2
#: The handlers without their library: the other thread has the lock first, and removes the descriptor.
_TWO_THREADS = """
import errno, sys
from unittest.mock import MagicMock
sys.modules.update(_twisted_ib_cm=MagicMock(), _twisted_ib_verbs=MagicMock())
from twisted_ib.verbs.c.cm import polling
from twisted_ib.verbs.c.errors import HandleError

class Lock:
    def __enter__(self):
        poll.wanted.clear()
    def __exit__(self, *exception):
        pass

number, poll = 5, polling._Poll()
polling._polls[number], polling.descriptors[0] = poll, object()
poll.wanted[0] = polling._Wanted(0, 0)
polling.hub = Lock()
try:
    polling.repoll_ctl(number, polling._DELETE, 0, None)
except HandleError as error:
    print(errno.errorcode[error.number])
"""

#: The same with a clock that each turn takes a second of, and another thread that is quicker.
_QUICKER = """
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock
from twisted.internet.task import Clock
verbs, cm = MagicMock(), MagicMock()
sys.modules.update(_twisted_ib_cm=cm, _twisted_ib_verbs=verbs)
from twisted_ib.drive.sleeper import Sleep
from twisted_ib.verbs.c import waiting
from twisted_ib.verbs.c.cm import polling

number, clock, left, ready = 1000, Clock(), [], iter([1, 1, None, 1, 0])

def lieDown(take, end, again):
    clock.advance(1.0)
    left.append(end - clock.seconds())
    found = take()
    return Sleep(60.0, Mock(fd=number), []) if found is None else found

waiting.hub, waiting.monotonic = Mock(lieDown=lieDown), clock.seconds
polling._polls[number], polling.given = polling._Poll(), Mock()
polling.awaitReady = lambda *asked: next(ready)
cm.lib.twisted_ib_epoll_wait.return_value = 0
sleep = verbs.lib.twisted_ib_own_sleep.return_value = SimpleNamespace(interrupted=0, slept=0)
first = polling.repoll_wait(number, 0, 1, 4000)
print(first == polling.AGAIN, sleep.milliseconds, polling.repoll_wait(number, 0, 1, 4000), left)
"""


def relinked(program: str) -> str:
    """
    @param program: an ELF file of 64 bits.
    @return: the same, as linkers can make it: its dynamic section is not writable (C{-z rodynamic}), and what
        becomes read-only does not end with a page (programs for pages of 64 KiB).
    """
    octets = bytearray(Path(program).read_bytes())
    (at,), (count,) = struct.unpack_from("<Q", octets, 32), struct.unpack_from("<H", octets, 56)
    for header in range(at, at + 56 * count, 56):
        kind, flags = struct.unpack_from("<II", octets, header)
        if kind == _PT_DYNAMIC:
            struct.pack_into("<I", octets, header + 4, flags & ~_PF_W)
        elif kind == _PT_GNU_RELRO:
            (size,) = struct.unpack_from("<Q", octets, header + 40)
            struct.pack_into("<Q", octets, header + 40, size + 2048)
    made = Path(f"{program}-relinked")
    made.write_bytes(octets)
    made.chmod(0o755)
    return str(made)


class OtherTests(ProgramTestCase):
    """
    C{polled.c}: descriptors that are no rsockets.
    """

    def test_others(self) -> None:
        """
        They end the wait at once, by an end that is closed, too; what nobody waits for does not.
        """
        self.passes("polled.c")

    def test_vain(self) -> None:
        """
        C{vain.c}: calls in vain do not enter Python, and see what changes.
        """
        self.passes("vain.c")

    def test_standing(self) -> None:
        """
        C{standing.c}: nor do they last until as many were made, while another thread waits within a call.
        """
        self.passes("standing.c")

    def test_sets(self) -> None:
        """
        C{repolled.c}: sets of descriptors, as many as L{limits.RSOCKET_POLLS}.
        """
        self.assertEqual(limits.RSOCKET_POLLS, 256)
        self.passes("repolled.c")

    def test_preloaded(self) -> None:
        """
        C{led.c}: what librspreload leaves out is led to rsockets, too, and says the same as without it.
        """
        found = glob("/usr/lib/*/rsocket/librspreload.so")
        if not found:
            raise SkipTest("no librspreload.so: it is in Debian's package librdmacm1")
        source = Path(__file__).with_name("led.c")
        program = self.compiled(source, "-O2", "-D_FORTIFY_SOURCE=2", "-Wl,-z,lazy,-z,relro", isLinked=False)
        own = run(program)
        for each in (program, relinked(program)):
            led = run(each, LD_PRELOAD=found[0], TWISTED_IB_DEVICE="shm0")
            self.assertEqual((led.stdout, led.stderr, led.returncode), (own.stdout, "", 0))

    def test_leading(self) -> None:
        """
        C{leading.c}: a librspreload that leads epoll(7), as later ones do, leads none of the devices' own.
        """
        leading = self.compiled(Path(__file__).with_name("leading.c"), "-shared", "-fPIC", "librdmacm.so.1")
        folder = Path(self.mktemp()).resolve()
        folder.mkdir()
        self.passes("repolled.c", shutil.copy(leading, str(folder / "librspreload.so")))

    def test_twoThreads(self) -> None:
        """
        Two threads remove one descriptor: for the second it is in the set no more.
        """
        command = [sys.executable, "-c", _TWO_THREADS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual((done.stdout, done.stderr), ("ENOENT\n", ""))

    def test_quicker(self) -> None:
        """
        A wait goes on when another thread has taken what was ready, but no longer than until its end.
        """
        command = [sys.executable, "-c", _QUICKER]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        expected = "True 1000 0 [3.0, 2.0, 1.0, 0.0, -1.0]\n"
        self.assertEqual((done.stdout, done.stderr), (expected, ""))

    def passes(self, name: str, preload: str = "") -> None:
        """
        Run a program, which says what is wrong.
        """
        program = self.compiled(Path(__file__).with_name(name), "librdmacm.so.1")
        result = run(program, TWISTED_IB_DEVICE="shm0", LD_PRELOAD=preload)
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))
