"""
Tests for C{ib-run --check}: what is here and what is missing, and what it says of a program.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import refusal
from tests.support.rundirectory import ownRunDirectory
from tests.tools.run.case import RunTestCase
from twisted_ib.errors import DeviceError, LibraryBuildError
from twisted_ib.tools.run import check
from twisted_ib.tools.run.check import LESS, MISSING, OK, Finding
from twisted_ib.tools.run.run import parseArguments

_hasExtra = find_spec("elftools") is not None and find_spec("cffi") is not None


class CommandLineTests(SynchronousTestCase):
    """
    Which words it takes.
    """

    def test_program(self) -> None:
        """
        It takes a program or none, and JSON belongs to it or to the summary.
        """
        for words, program in ((["--check"], ""), (["--check", "--json", "x", "-y"], "x")):
            options, asked = parseArguments(words)
            self.assertEqual((options.check, asked), (True, program))
        self.assertIn("say --summary or --check, too", refusal(self, parseArguments, "--json", "x"))


class FindingTests(SynchronousTestCase):
    """
    Each thing that may be missing, with what brings it.
    """

    def setUp(self) -> None:
        """
        A run directory of this test's own, and what is written.
        """
        ownRunDirectory(self)
        self.written: list[str] = []
        self.patch(check, "write", self.written.append)
        self.patch(check, "deviceNames", lambda: ["shm0"])

    def found(self, program: str = "") -> tuple[int, dict[str, tuple[str, str]]]:
        """
        @return: the exit status, and states and texts by name.
        """
        self.written.clear()
        status = check.check(program, isJSON=True)
        (text,) = self.written
        return status, {each["name"]: (each["state"], each["text"]) for each in json.loads(text)}

    def ready(self) -> None:
        """
        Nothing is missing.
        """
        self.patch(check, "lacking", list)
        self.patch(check, "keptFolder", lambda: "/kept")
        self.patch(check, "isKept", lambda folder: True)
        self.patch(check, "sharedPython", lambda: "/lib/libpython3.so")

    def test_unknownVariable(self) -> None:
        """
        A variable that nothing reads, as one that is spelt wrong, is named.
        """
        self.ready()
        self.assertNotIn("TWISTED_IB_RUNDIR", self.found()[1])
        self.patch(os, "environ", {**os.environ, "TWISTED_IB_RUNDIR": "/run"})
        self.assertEqual(self.found()[1]["TWISTED_IB_RUNDIR"][0], LESS)

    def test_ready(self) -> None:
        """
        Nothing is missing: each line says what is here, and the status is 0.
        """
        self.ready()
        status, found = self.found()
        self.assertEqual(status, 0)
        self.assertEqual(found["device shm0"], (OK, "shm"))
        for isCarried, whose in (True, "the wheel's"), (False, "built"):
            self.patch(check, "isCarried", lambda isCarried=isCarried: isCarried)
            found = self.found()[1]
            self.assertEqual(found["C libraries"], (OK, f"{whose}, in /kept, with /lib/libpython3.so"))
        self.written.clear()
        self.assertEqual(check.check("", isJSON=False), 0)
        said = "ok       C libraries         built, in /kept, with /lib/libpython3.so"
        self.assertIn(said, self.written)

    def test_extra(self) -> None:
        """
        Without the extra C{[c]} the command that brings it is named; a program of Python runs without.
        """
        self.ready()
        self.patch(check, "lacking", lambda: ["cffi"])
        script = Path(self.mktemp())
        script.with_suffix(".py").write_text("pass\n")
        for program, state, expected in (("", MISSING, 1), (f"{script}.py", LESS, 0)):
            status, found = self.found(program)
            self.assertEqual((status, found["C libraries"][0]), (expected, state))
            self.assertIn("pip install 'twisted-ib[c]'", found["C libraries"][1])
        self.assertEqual(found[program], (OK, f"a program of Python, {sys.executable}"))

    @skipIf(not _hasExtra, "the extra [c] is not installed")
    def test_build(self) -> None:
        """
        All that a build needs is named at once, not the first only; and others may not change the cache.
        """
        from twisted_ib.verbs.c import kept
        from twisted_ib.verbs.c.building import build

        self.ready()
        self.patch(check, "isKept", lambda folder: False)
        self.patch(kept, "_LDVERSION", "0.0")
        self.patch(build, "isCarried", lambda: False)
        self.patch(build.shutil, "which", lambda name: None)
        self.patch(build.sysconfig, "get_path", lambda name: "/nowhere")
        self.patch(build.sysconfig, "get_config_var", lambda name: None)
        clauses = [each.text for each in check._libraries(True)]
        self.assertEqual(len(clauses), 3)
        for clause, words in zip(
            clauses, ("no shared libpython", "there is no C compiler", "Python.h"), strict=True
        ):
            self.assertIn(words, clause)
        self.assertEqual(self.found()[0], 1)
        # A wheel has them built: only libpython is wanted.
        self.patch(build, "isCarried", lambda: True)
        (clause,) = [each.text for each in check._libraries(True)]
        self.assertIn("no shared libpython", clause)
        # A system user has no home.
        self.patch(build, "keptFolder", lambda: "/proc/absent/libraries")
        self.patch(build.os, "access", lambda path, mode: str(path) != "/proc")
        self.assertEqual(
            next(each.text for each in check._libraries(True)),
            "no directory for libraries: /proc is not writable; set XDG_CACHE_HOME",
        )
        self.patch(build, "wanting", lambda: iter(()))
        for isCarried, when in (True, "the wheel's"), (False, "built when they are first needed"):
            self.patch(check, "isCarried", lambda isCarried=isCarried: isCarried)
            found = self.found()[1]["C libraries"]
            self.assertEqual(found, (OK, f"{when}, with /lib/libpython3.so"))

        def refused(folder: str) -> bool:
            raise LibraryBuildError("other users may change it")

        self.patch(check, "isKept", refused)
        self.assertEqual(self.found()[1]["C libraries"], (MISSING, "other users may change it"))

    def test_devices(self) -> None:
        """
        A device that cannot be opened and a variable that is wrong are missing.
        """
        self.ready()
        self.patch(check, "deviceNames", lambda: ["shm0", "roce0"])
        self.patch(check, "addressOf", lambda name: "192.0.2.1" if name == "roce0" else None)

        def wrong() -> None:
            raise DeviceError("there is no fabric 'bar'")

        self.patch(check, "readEnvironment", wrong)
        status, found = self.found()
        self.assertEqual(status, 1)
        self.assertIn("there is no fabric 'bar'", found["devices"][1])
        state, text = found["device roce0"]
        self.assertEqual(state, MISSING)
        self.assertIn("roce, at 192.0.2.1: ", text)

    def test_memory(self) -> None:
        """
        Without memory files messages take another way, and programs run.
        """
        self.ready()
        self.patch(check.libc, "available", lambda size: ("a 64-bit Python",))
        status, found = self.found()
        self.assertEqual((status, found["shared memory"][0]), (0, LESS))

    def test_calls(self) -> None:
        """
        Each call that a container's filter refuses is named, with Docker's option; else no line has one.
        """
        self.ready()
        self.assertFalse({*self.found()[1]} & {*check._CALLS})

        def refused(*arguments: object) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        self.patch(check.libc, "memfdCreate", refused)
        self.patch(check.libc, "eventfd", refused)
        self.patch(check.libc, "KernelEpoll", refused)
        found = self.found()[1]
        for name in check._CALLS:
            self.assertEqual(found[name][0], LESS)
            self.assertIn("Operation not permitted: a filter of calls refuses it", found[name][1])
            self.assertIn("--security-opt seccomp=FILE", found[name][1])

    def test_limits(self) -> None:
        """
        A call that fails at a limit, as of open descriptors, is named, and no filter is.
        """
        self.ready()

        def refused() -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        self.patch(check.libc, "eventfd", refused)
        (found,) = check._calls()
        self.assertEqual((found.name, found.state), ("eventfd", LESS))
        self.assertIn("Too many open files: a limit of this process", found.text)
        self.assertNotIn("filter", found.text)

    def test_dockersMemory(self) -> None:
        """
        What Docker gives a container if nobody asks for more is too little for MPI, also when nothing has it.
        """
        self.patch(check, "_SHM", self.mktemp())
        os.mkdir(check._SHM)
        for size, state in ((64 << 20, LESS), (1 << 30, OK)):
            blocks = SimpleNamespace(f_bavail=size >> 12, f_frsize=1 << 12)
            self.patch(check.os, "statvfs", lambda path, blocks=blocks: blocks)
            self.assertEqual(check._posixMemory().state, state)

    def test_posixMemory(self) -> None:
        """
        The devices need no /dev/shm: where it is not there, full, or another's, the line has Docker's option.
        """
        self.ready()
        folder = self.mktemp()
        self.patch(check, "_SHM", folder)
        for prepare, said in ((lambda: None, "nothing can be made there"), (lambda: os.mkdir(folder), " MB")):
            prepare()
            self.patch(check, "_SHM_BYTES", 1 << 70)
            status, found = self.found()
            self.assertEqual((status, found[folder][0]), (0, LESS))
            self.assertIn(f"{said}; the devices need none", found[folder][1])
            self.assertIn("--shm-size", found[folder][1])
        self.patch(check, "_SHM_BYTES", 0)
        self.assertEqual(self.found()[1][folder][0], OK)

    def test_namespaces(self) -> None:
        """
        Where none may be made the reason is said, and programs run.
        """
        self.ready()
        self.patch(check, "refusal", lambda: "Operation not permitted")
        status, found = self.found()
        self.assertEqual((status, found["network namespaces"][0]), (0, LESS))
        self.assertIn("Operation not permitted: ", found["network namespaces"][1])


class ProgramTests(RunTestCase):
    """
    The command, in a process of its own.
    """

    def test_nothingThere(self) -> None:
        """
        A program that is not there is missing, and nothing is started.
        """
        process = self.running("--check", "--json", "surely-not-there")
        out, _ = process.communicate()
        *others, last = (Finding(**each) for each in json.loads(out))
        self.assertEqual(process.returncode, check.NOT_READY)
        self.assertEqual((last.name, last.state), ("surely-not-there", MISSING))
        self.assertIn("device shm0", [each.name for each in others])
