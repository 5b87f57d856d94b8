"""
Tests of the directories of built libraries.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from twisted_ib.errors import LibraryBuildError
from twisted_ib.verbs.c.building import cache


class BuiltTests(SynchronousTestCase):
    """
    Tests for L{cache.built}.
    """

    def setUp(self) -> None:
        """
        An empty cache.
        """
        self.directory = Path(self.mktemp())
        self.directory.mkdir()
        self.folder = self.directory / "whole"

    def test_whole(self) -> None:
        """
        The directory has all files or does not exist.
        """

        def fill(temporary: Path, made: Path) -> None:
            (temporary / "source").touch()
            (made / "library").touch()
            self.assertFalse(self.folder.exists())

        cache.built(self.folder, fill)
        self.assertEqual([*self.directory.rglob("*")], [self.folder, self.folder / "library"])

    def test_first(self) -> None:
        """
        Of two that build at once, in place of a damaged directory or of none, the first one's stays: others
        have it already.
        """

        def isWhole(folder: Path) -> bool:
            return (folder / "library").exists()

        def fill(temporary: Path, made: Path) -> None:
            (made / "library").touch()

        def later(temporary: Path, made: Path) -> None:
            cache.built(self.folder, fill, isWhole)
            first.append(self.folder.stat().st_ino)
            fill(temporary, made)

        for prepare in (lambda: None, lambda: (self.folder / "library").unlink()):
            first: list[int] = []
            prepare()
            cache.built(self.folder, later, isWhole)
            self.assertEqual([self.folder.stat().st_ino], first)
            self.assertEqual([*self.directory.rglob("*")], [self.folder, self.folder / "library"])

    def test_swapped(self) -> None:
        """
        While one looks and moves, no other does: a look that another's move follows would move its away.
        """
        looked: list[bool] = []

        def isWhole(folder: Path) -> bool:
            opened = os.open(self.directory, os.O_RDONLY)
            try:
                self.assertRaises(BlockingIOError, fcntl.flock, opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                os.close(opened)
            looked.append(folder.exists())
            return False

        for _ in range(2):
            cache.built(self.folder, lambda temporary, made: None, isWhole)
        self.assertEqual(looked, [False, True])
        self.patch(cache.fcntl, "flock", self.unlocked)
        cache.built(self.folder, lambda temporary, made: (made / "new").touch(), lambda folder: False)
        self.assertTrue((self.folder / "new").exists())

    def unlocked(self, opened: int, how: int) -> None:
        """
        A file system without locks.
        """
        raise OSError(errno.ENOLCK, "No locks available")

    def test_failed(self) -> None:
        """
        A build that fails leaves nothing.
        """

        def fill(temporary: Path, made: Path) -> None:
            raise LibraryBuildError("not today")

        self.assertRaises(LibraryBuildError, cache.built, self.folder, fill)
        self.assertEqual([*self.directory.iterdir()], [])

    def test_full(self) -> None:
        """
        A disk that is full is an error by name.
        """

        def fill(temporary: Path, made: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        error = self.assertRaises(LibraryBuildError, cache.built, self.folder, fill)
        self.assertIn("No space left on device; set XDG_CACHE_HOME", str(error))

    def test_abandoned(self) -> None:
        """
        A build removes the directories of those that were killed, and of none that may still run.
        """
        old, young = self.directory / "build-old", self.directory / "build-young"
        for each, age in ((old, 10), (young, -10)):
            each.mkdir()
            (each / "made").mkdir()
            stamp = time.time() - cache.ABANDONED_SECONDS - age
            os.utime(each, (stamp, stamp))
        cache.built(self.folder, lambda temporary, made: None)
        self.assertEqual({*self.directory.iterdir()}, {young, self.folder})


class CompilerTests(SynchronousTestCase):
    """
    Tests for L{cache.compileIn}.
    """

    def failing(self, code: str) -> str:
        """
        @return: the text of the error of a compiler that is Python.
        """
        command = (sys.executable, "-c", code)
        return str(self.assertRaises(LibraryBuildError, cache.compileIn, Path(), {"this": command}))

    def test_fails(self) -> None:
        """
        The error has the last lines of its output.
        """
        text = self.failing("import sys; sys.exit('\\n'.join(map(str, range(100))))")
        self.assertEqual(text.splitlines(), ["this cannot be compiled:", *map(str, range(80, 100))])

    def test_hangs(self) -> None:
        """
        A compiler that does not end is killed with its children.
        """
        # The child has the pipe, too: its end is the pipe's.
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        os.set_inheritable(writing, True)
        self.patch(cache, "COMPILER_SECONDS", 0.5)
        popen = partial(subprocess.Popen, close_fds=False)
        self.patch(cache.subprocess, "Popen", popen)
        code = "import os, time; os.fork(); time.sleep(3600)"
        self.assertIn("timed out after 0.5 s", self.failing(code))
        os.close(writing)
        self.assertTrue(select.select([reading], [], [], HANG_SECONDS)[0])
        self.assertEqual(os.read(reading, 1), b"")

    def test_atOnce(self) -> None:
        """
        Several files are compiled at once: each of two compilers waits for the other.  The one that fails is
        named, and ends what still runs.
        """
        os.mkfifo(fifo := self.mktemp())
        waiting = "import sys, time; open(sys.argv[1], sys.argv[2]).close(); "
        one, two = (
            (sys.executable, "-c", waiting + end, fifo, mode)
            for end, mode in (("time.sleep(3600)", "r"), ("sys.exit('not today')", "w"))
        )
        error = self.assertRaises(LibraryBuildError, cache.compileIn, Path(), {"two": two, "one": one})
        self.assertEqual(str(error), "two cannot be compiled:\nnot today")

    def test_none(self) -> None:
        """
        It cannot be run.
        """
        error = self.assertRaises(LibraryBuildError, cache.compileIn, Path(), {"this": ["/nowhere/cc"]})
        self.assertTrue(str(error).startswith("/nowhere/cc: "), error)
