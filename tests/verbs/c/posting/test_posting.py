"""
Tests of posting in C: requests are recorded without Python, and posted in their order, each once.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

from tests.verbs.c.library import run
from tests.verbs.c.test_calls import ProgramTestCase

PROGRAM = Path(__file__).with_name("posting.c"), "librdmacm.so.1", "-rdynamic", "-ldl", "-O1"
FORKED = Path(__file__).with_name("forked.c")
#: The stories of C{posting.c}; the last one ends the process.
STORIES = "attended replaced bursts pauses last refusals keys changes bound shared threads ends".split()

#: A program of Python that forks, with the path of C{forked.c}'s library.
_FORKED = """
import ctypes, os, sys
echo = ctypes.CDLL(sys.argv[1]).echo
echo.restype = ctypes.c_char_p
print(echo(b"parent"), flush=True)
pid = os.fork()
if not pid:
    print(echo(b"child"), flush=True)
    os._exit(0)
print(os.waitpid(pid, 0)[1], flush=True)
"""


@cache
def told(program: str, device: str, *stories: str) -> CompletedProcess[str]:
    """
    @return: what stories say, of one process.
    """
    return run(program, *stories, TWISTED_IB_DEVICE=device)


class PostingTests(ProgramTestCase):
    """
    The stories of C{posting.c}; C{tests/soak} has those of a device without shared memory.
    """

    device = "shm0"

    def story(self, name: str) -> None:
        """
        Read one.
        """
        # Nobody else must be there who takes what was left to the thread that attends.
        stories = STORIES if name in STORIES else [name]
        result = told(self.compiled(*PROGRAM), self.device, *stories)
        said = dict(each.split("\n", 1) for each in result.stdout.split("= ")[1:])
        self.assertEqual((said.get(name), result.stderr), ("", ""), result)

    def test_attended(self) -> None:
        """
        While another thread attends no post enters Python, whatever its operation; inline data is copied at
        once, and all is posted in order.
        """
        self.story("attended")

    def test_replaced(self) -> None:
        """
        A receive in the place of one that a poll has found does not enter Python, also where the queue, a
        shared one too, is full: the next poll posts it.
        """
        self.story("replaced")

    def test_bursts(self) -> None:
        """
        A send amid a burst waits for the next one, or a poll, and all are taken at once; if none comes, the
        thread that serves peers takes it.
        """
        self.story("bursts")

    def test_pauses(self) -> None:
        """
        A post behind a pause yields the processor: its peer may wait for that, and its thread look at its
        memory in vain.
        """
        self.story("pauses")

    def test_last(self) -> None:
        """
        A thread that attended, and has looked, looks once more.
        """
        self.story("last")

    def test_calls(self) -> None:
        """
        Before any other call what was left to a thread that attends is posted.
        """
        self.story("calls")

    def test_ends(self) -> None:
        """
        So it is before the process ends.
        """
        self.story("ends")
        self.assertEqual(told(self.compiled(*PROGRAM), self.device, *STORIES).returncode, 0)

    def test_refusals(self) -> None:
        """
        A list is posted up to the first request that is refused, for its elements, inline data, operation,
        memory, a full queue or the state; only then C{bad_wr} is set.
        """
        self.story("refusals")

    def test_keys(self) -> None:
        """
        A key that is not there is an error of the completion.
        """
        self.story("keys")

    def test_changes(self) -> None:
        """
        ERR flushes what was recorded before and after, RESET forgets it, and a queue pair and a device end
        with it.
        """
        self.story("changes")

    def test_bound(self) -> None:
        """
        What the records have no room for is posted by Python, in order.
        """
        self.story("bound")

    def test_shared(self) -> None:
        """
        A shared receive queue has its depth, also when that changes, and its receives come in order.
        """
        self.story("shared")

    def test_threads(self) -> None:
        """
        Four threads post to one queue: each request comes once, in the order of its thread.
        """
        self.story("threads")


class ForkedTests(ProgramTestCase):
    """
    A program of Python with a library of C that posts.
    """

    def test_inline(self) -> None:
        """
        Inline data that a forked child posts is its own, not what its parent has at that address.
        """
        path = self.compiled(FORKED, "-shared", "-fPIC")
        # Of a fork in a process that has threads, from Python 3.12 on.
        silent = "-W", "ignore::DeprecationWarning"
        result = run(sys.executable, *silent, "-c", _FORKED, path, TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr), ("b'parent'\nb'child'\n0\n", ""))
