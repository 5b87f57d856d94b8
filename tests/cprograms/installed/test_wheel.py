"""
A wheel with the libraries, in an environment of its own: neither a compiler nor headers are there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from attrs import evolve
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.cprograms.lab import Lab, lacking, missing, sides
from tests.cprograms.programs import PROGRAMS
from tests.support.waiting import HANG_SECONDS
from tests.test_packaging import ROOT, backend

#: What a wheel is built from.
_SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.cfg", "setup.py", "twisted", "twisted_ib")
#: Of libibverbs, and of perftest, which needs stubs.
_NAMES = ("rc", "ib_send_lat")


class WheelTests(SynchronousTestCase):
    """
    Programs of Debian on what C{TWISTED_IB_CLIBRARIES=1} puts into a wheel.
    """

    timeout = 6 * HANG_SECONDS
    skip = lacking()

    def test_programs(self) -> None:
        """
        They run with a C{PATH} that has nothing else; the libraries are the wheel's.
        """
        programs = [each for each in PROGRAMS if each.name in _NAMES]
        self.assertEqual(len(programs), len(_NAMES))
        for program in programs:
            reason = missing(program)
            if reason is not None:
                raise SkipTest(reason)
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()
        python = self.installed(self.built())
        environment = {
            "PATH": self.path("ibv_devinfo", "stdbuf", *(each.server.split()[0] for each in programs)),
            "HOME": str(self.folder),
        }
        command = [python, "-m", "twisted_ib.tools.run", "-q", "ibv_devinfo", "-d", "shm0"]
        # Trial's own path is not its.
        result = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=HANG_SECONDS
        )
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("hca_id:\tshm0", result.stdout)
        (library,) = self.folder.glob(".cache/twisted_ib/cabi/cpython-*/libibverbs.so.1")
        self.assertTrue(library.resolve().is_relative_to(self.folder / "environment"), library.resolve())
        tool = python, "-m", "twisted_ib.tools.run"
        server, client = (evolve(each, tool=tool, environment=environment) for each in sides("shm0"))
        for program in programs:
            Lab(server, client).run(program)

    def built(self) -> Path:
        """
        @return: the wheel.
        """
        source = self.folder / "source"
        source.mkdir()
        # Not the shared objects of wheels that were unpacked here either.
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "carried")
        for name in _SOURCES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, source)
        self.patch(os, "environ", {**os.environ, "TWISTED_IB_CLIBRARIES": "1"})
        wheel = backend("build_wheel", source, self.folder / "wheel")
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        self.assertIn(f"-{tag}-{tag}-linux_", wheel.name)
        return wheel

    def installed(self, wheel: Path) -> str:
        """
        @return: the interpreter of an environment with the wheel, and what it needs of the tests' own.
        """
        folder = self.folder / "environment"
        venv.create(folder, symlinks=True, with_pip=False)
        (site,) = folder.glob("lib/python3*/site-packages")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        # Behind the environment's own folder.
        others = [each for each in sys.path if each and Path(each).resolve() != ROOT]
        (site / "others.pth").write_text("\n".join(others))
        return str(folder / "bin/python")

    def path(self, *names: str) -> str:
        """
        @return: a directory with these programs alone.
        """
        folder = self.folder / "bin"
        folder.mkdir()
        for name in set(names):
            found = shutil.which(name)
            if found is None:
                raise SkipTest(f"there is no {name}")
            (folder / name).symlink_to(found)
        return str(folder)
