"""
Tests of libraries that lie elsewhere than they were built: what they need is in a folder beside them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.verbs.c.library import built, run
from tests.verbs.c.test_calls import ProgramTestCase
from twisted_ib.verbs.c.kept import sharedPython

LOADED = Path(__file__).parents[1] / "loaded.c"


class RelocatedTests(ProgramTestCase):
    """
    Links to the libraries, in a folder with another name.
    """

    def setUp(self) -> None:
        """
        Make the links, and a program.
        """
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()
        for each in built().glob("*.so.*"):
            (self.folder / each.name).symlink_to(each)
        self.program = self.compiled(LOADED, isLinked=False)

    def test_placed(self) -> None:
        """
        The folder beside the link has libpython, the interpreter and the path: that beside the file does not
        count, and the program's own environment has no part in it.
        """
        beside = self.folder / "python"
        shutil.copytree(built() / "python", beside, symlinks=True)
        with (beside / "start.py").open("a") as file:
            file.write("import os; os.write(2, b'it starts')\n")
        environment = {"LD_LIBRARY_PATH": str(self.folder), "PYTHONHOME": "/nowhere"}
        result = run(self.program, TWISTED_IB_DEVICE="shm0", **environment)
        self.assertEqual((result.returncode, result.stdout), (0, "1 shm0 1\n"), result.stderr)
        self.assertIn("it starts", result.stderr)
        self.assertEqual(result.stderr.replace("it starts", ""), "")

    def test_alone(self) -> None:
        """
        Without that folder one line says what to do, if another libpython is found at all.
        """
        path = f"{self.folder}:{os.path.dirname(sharedPython())}"
        result = run(self.program, LD_LIBRARY_PATH=path)
        said = f"there is no {self.folder}/python/executable: start the program with ib-run"
        self.assertEqual((result.returncode, result.stderr), (127, f"libibverbs.so.1: {said}\n"))
