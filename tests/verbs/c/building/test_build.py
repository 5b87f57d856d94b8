"""
Tests of the build: what is missing is said by name, and one build serves all processes.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from tests.verbs.c.library import built
from twisted_ib.errors import LibraryBuildError
from twisted_ib.verbs.c import kept
from twisted_ib.verbs.c.building import build, libraries
from twisted_ib.verbs.c.building.cache import compileIn

#: A program that has no cffi calls libibverbs, and prints the number of devices and the names that are new.
_OTHER = """
import ctypes
try:
    import _cffi_backend
except ImportError:
    before = set(globals())
    count = ctypes.c_int()
    ctypes.CDLL("libibverbs.so.1").ibv_get_device_list(ctypes.byref(count))
    print(count.value, sorted(set(globals()) - before - {"before", "count"}))
"""


class MissingTests(SynchronousTestCase):
    """
    A build without something that it needs.
    """

    def setUp(self) -> None:
        """
        An empty cache.
        """
        self.cache = Path(self.mktemp()).resolve()
        self.patch(build.os, "environ", {**build.os.environ, "XDG_CACHE_HOME": str(self.cache)})
        # Those of a wheel would need no build.
        for module in build, kept:
            self.patch(module, "isCarried", lambda: False)

    def failing(self) -> str:
        """
        @return: the text of the error of a build.
        """
        try:
            kept.cffiVersion()
        except LibraryBuildError as error:
            raise SkipTest(str(error)) from None
        error = self.assertRaises(LibraryBuildError, libraries)
        self.assertEqual([*self.cache.rglob("*.so*")], [])
        return str(error)

    def test_compiler(self) -> None:
        """
        Without a compiler.
        """
        self.patch(build.shutil, "which", lambda name: None)
        self.assertIn("there is no C compiler", self.failing())

    def test_sharedLibrary(self) -> None:
        """
        With a Python that is not shared.
        """
        self.patch(build, "compilerCommand", lambda: ["true"])
        self.patch(kept, "_LDVERSION", "0.0")
        self.assertIn("has no shared libpython", self.failing())

    def test_freeThreaded(self) -> None:
        """
        With a free-threaded Python.
        """
        self.patch(build, "compilerCommand", lambda: ["true"])
        self.patch(sys, "abiflags", "t")
        self.assertIn("is free-threaded: the libraries do not start there yet", self.failing())

    def test_pythonHeaders(self) -> None:
        """
        Without Python's headers.
        """
        self.patch(build, "compilerCommand", lambda: ["true"])
        self.patch(build, "sharedPython", lambda: "")
        self.patch(build.sysconfig, "get_path", lambda name: "/nowhere")
        self.assertIn("Python.h is missing", self.failing())

    def test_headers(self) -> None:
        """
        Without the headers of a library: a compiler that finds none.
        """
        self.patch(build, "compilerCommand", lambda: ["false"])
        self.patch(build, "sharedPython", lambda: "")
        self.patch(build.sysconfig, "get_path", lambda name: self.pythonHeaders())
        text = self.failing()
        self.assertIn("infiniband/verbs.h is missing", text)
        self.assertIn("libibverbs-dev", text)

    def pythonHeaders(self) -> str:
        """
        @return: a directory with C{Python.h}.
        """
        folder = Path(self.mktemp())
        folder.mkdir(parents=True)
        (folder / "Python.h").touch()
        return str(folder)

    def test_directory(self) -> None:
        """
        Without a place for the libraries.
        """
        self.patch(build, "wanting", list)
        self.cache.touch()
        self.assertIn("set XDG_CACHE_HOME", self.failing())

    def test_unfindable(self) -> None:
        """
        The loader does not find a directory with a colon, and takes a relative one from the program's own:
        that of the user's home is taken instead, if there is one.
        """
        for home, cache in (("/a:b", ""), ("/$ORIGIN", "relative"), ("/", "/a;b"), ("relative", "relative")):
            self.patch(build.os, "environ", {**build.os.environ, "HOME": home, "XDG_CACHE_HOME": cache})
            self.assertIn("the loader finds no libraries in ", self.failing())


class OtherEnvironmentTests(SynchronousTestCase):
    """
    Programs of Python in environments of their own.
    """

    def test_lacking(self) -> None:
        """
        One without cffi gets the backend of this environment, and nothing in its C{__main__}.
        """
        folder = built()
        other = Path(self.mktemp()).resolve()
        venv.create(other, symlinks=True, with_pip=False)
        result = subprocess.run(
            [str(other / "bin" / "python"), "-c", _OTHER],
            # Trial gives its workers our path.
            env={
                **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                "LD_LIBRARY_PATH": str(folder),
                "TWISTED_IB_DEVICE": "shm0",
            },
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        found = result.returncode, result.stdout, result.stderr
        self.assertEqual(found, (0, "1 []\n", ""))


class CacheTests(SynchronousTestCase):
    """
    The cache of built libraries.
    """

    def test_once(self) -> None:
        """
        A second build is the first one's directory, for the user alone.
        """
        folder = built()
        self.patch(build, "_buildAll", self.fail)
        self.assertEqual(libraries(), folder)
        self.assertEqual(stat.S_IMODE(folder.stat().st_mode), 0o700)
        expected = {"python", kept.VIEW, *(each.soname for each in build.LIBRARIES)}
        self.assertEqual({each.name for each in folder.iterdir()}, expected)

    def test_others(self) -> None:
        """
        Libraries in a directory that another user owns or may write to are not used.
        """
        folder = built()
        other = os.geteuid() + 1
        for mode in (0o700, 0o720, 0o702):
            cache = Path(self.mktemp()).resolve()
            self.patch(build.os, "environ", {**build.os.environ, "XDG_CACHE_HOME": str(cache)})
            target = cache / "twisted_ib" / "cabi" / folder.name
            shutil.copytree(folder, target)
            target.parent.chmod(mode)
            if mode == 0o700:
                self.assertEqual(libraries(), target)
                if os.geteuid() == 0:
                    os.chown(target.parent, other, -1)
                else:
                    self.patch(build.os, "geteuid", lambda: other)
            error = self.assertRaises(LibraryBuildError, libraries)
            self.assertIn("other users may change", str(error))

    def test_link(self) -> None:
        """
        Nor are those behind a link, which others may turn elsewhere.
        """
        folder = built()
        cache = Path(self.mktemp()).resolve()
        self.patch(build.os, "environ", {**build.os.environ, "XDG_CACHE_HOME": str(cache)})
        real = cache / "twisted_ib" / "real"
        shutil.copytree(folder, real / folder.name)
        real.chmod(0o700)
        (cache / "twisted_ib" / "cabi").symlink_to(real)
        error = self.assertRaises(LibraryBuildError, libraries)
        self.assertIn("other users may change", str(error))

    def test_race(self) -> None:
        """
        Of two builds at once one stays, and the other uses it.
        """
        folder = built()
        cache = Path(self.mktemp()).resolve()
        self.patch(build.os, "environ", {**build.os.environ, "XDG_CACHE_HOME": str(cache)})
        target = cache / "twisted_ib" / "cabi" / folder.name

        def other(*arguments: Any) -> None:
            if not target.exists():
                shutil.copytree(folder, target)

        self.patch(build, "_buildAll", other)
        self.assertEqual(libraries(), target)
        self.assertEqual([each.name for each in target.parent.iterdir()], [folder.name])


class OtherLibraryTests(SynchronousTestCase):
    """
    The C library is another than glibc.
    """

    def test_musl(self) -> None:
        """
        The view of devices is compiled with musl, which has no names of its own for files of 64 bits.
        """
        if shutil.which("musl-gcc") is None:
            raise SkipTest("no musl-gcc: it is in Debian's package musl-tools")
        made = Path(self.mktemp()).resolve() / kept.VIEW
        made.parent.mkdir()
        compileIn(made.parent, {"view": build.viewCommand(made, ["musl-gcc"])})
        self.assertTrue(made.exists())


class CarriedTests(SynchronousTestCase):
    """
    Libraries that a wheel has brought.
    """

    def setUp(self) -> None:
        """
        A wheel's folder, and an empty cache.
        """
        libraries = built()
        self.carried = Path(self.mktemp()).resolve()
        shutil.copytree(libraries, self.carried, ignore=shutil.ignore_patterns("python"))
        (self.carried / kept.ORIGIN).write_text(kept.origin())
        for module in (build, kept):
            self.patch(module, "CARRIED", str(self.carried))
        cache = Path(self.mktemp()).resolve()
        self.patch(build.os, "environ", {**build.os.environ, "XDG_CACHE_HOME": str(cache)})

    def test_fit(self) -> None:
        """
        Nothing is built, and no compiler is looked for.
        """
        self.patch(build, "compilerCommand", self.fail)
        folder = libraries()
        for name in (kept.VIEW, *(library.soname for library in build.LIBRARIES)):
            self.assertEqual((folder / name).resolve(), self.carried / name)
        self.assertTrue((folder / "python/start.py").exists())

    def test_libpythonGone(self) -> None:
        """
        A cache that has outlived the package with libpython is of no use: what brings it is said, and
        libraries with another are made in their place.
        """
        folder = libraries()
        (link,) = folder.glob("python/libpython*")
        link.unlink()
        link.symlink_to("/nowhere/libpython3.so")
        self.assertFalse(kept.isKept(str(folder)))
        self.patch(build, "sharedPython", self.absent)
        error = self.assertRaises(LibraryBuildError, libraries)
        self.assertIn("no shared libpython", str(error))
        self.patch(build, "sharedPython", kept.sharedPython)
        self.assertEqual(libraries(), folder)
        self.assertEqual(os.readlink(link), kept.sharedPython())

    def test_damaged(self) -> None:
        """
        A folder of the cache of which anything is gone, one name or all, is made anew.
        """
        folder = libraries()
        python = folder / "python"
        everything = [*folder.glob("lib*"), *python.iterdir()]
        self.assertEqual(len(everything), 1 + len(build.LIBRARIES) + 3)
        for each in (*everything, python):
            with self.subTest(each.name):
                shutil.rmtree(each) if each == python else each.unlink()
                self.assertFalse(kept.isKept(str(folder)))
                self.assertEqual(libraries(), folder)
                self.assertTrue(kept.isKept(str(folder)))
                self.assertTrue(each.exists())
        shutil.rmtree(python)
        python.mkdir()
        self.assertFalse(kept.isKept(str(folder)))
        self.assertEqual(os.listdir(folder.parent), [libraries().name])

    def test_handedOut(self) -> None:
        """
        A process that has seen the damage first and is done last does not remove what another has made.
        """
        folder = libraries()
        shutil.rmtree(folder / "python")
        mark = folder / "of the first"

        def slow() -> str:
            self.patch(build, "sharedPython", kept.sharedPython)
            (libraries() / mark.name).touch()
            return kept.sharedPython()

        self.patch(build, "sharedPython", slow)
        self.assertEqual(libraries(), folder)
        self.assertTrue(mark.exists())

    def absent(self) -> str:
        """
        No libpython is here.
        """
        raise LibraryBuildError("no shared libpython")

    def test_unfit(self) -> None:
        """
        Those of another state of the sources, or of another Python, are not taken, nor is their place in the
        cache.
        """
        folder = kept.keptFolder()
        (self.carried / kept.ORIGIN).write_text(kept.origin().replace("cpython-", "cpython-9"))
        self.assertFalse(kept.isCarried())
        self.assertNotEqual(kept.keptFolder(), folder)
        self.patch(build, "wanting", lambda: iter(["a compiler"]))
        self.assertIn("a compiler", str(self.assertRaises(LibraryBuildError, libraries)))
        (self.carried / kept.ORIGIN).unlink()
        self.assertFalse(kept.isCarried())

    def test_cLibrary(self) -> None:
        """
        Those of glibc are none for musl, in the cache or of a wheel, and built ones none for another glibc,
        as a container's with the same home; a wheel's are for each.
        """

        def unknown(name: str) -> str:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        self.addCleanup(kept.origin.cache_clear)
        folders: set[str] = set()
        libraries = (lambda name: "glibc 2.28", lambda name: "glibc 2.36", unknown, lambda name: None)
        for confstr, isFit in zip(libraries, (True, True, False, False), strict=True):
            self.patch(kept.os, "confstr", confstr)
            kept.origin.cache_clear()
            if not folders:
                (self.carried / kept.ORIGIN).write_text(kept.origin())
            self.assertEqual(kept.isCarried(), isFit)
            folders.add(kept.keptFolder())
        self.assertEqual(len(folders), 3)

    def test_carry(self) -> None:
        """
        What a wheel gets is all libraries, and what they were built from; without a compiler the build fails.
        """
        made: list[str] = []

        def builds(temporary: Path, commands: dict[str, list[str]]) -> None:
            self.assertTrue(temporary.is_dir())
            made.extend(commands)

        self.patch(build, "_prepared", lambda *arguments: [])
        self.patch(build, "compileIn", builds)
        (self.carried / kept.ORIGIN).unlink()
        build.carry(self.carried)
        self.assertEqual(made, [*(library.soname for library in build.LIBRARIES), kept.VIEW])
        self.assertTrue(kept.isCarried())
        self.patch(build, "wanting", lambda: iter(["a compiler"]))
        self.assertRaises(LibraryBuildError, build.carry, self.carried)
