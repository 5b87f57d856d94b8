"""
Where an interpreter's libpython is found.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import LibraryBuildError
from twisted_ib.verbs.c import kept


class SharedPythonTests(SynchronousTestCase):
    """
    Tests for L{kept.sharedPython}.
    """

    def setUp(self) -> None:
        """
        An interpreter in a folder of the test's own, which was built for another.
        """
        self.folder = Path(self.mktemp()).resolve()
        self.configured = {"LIBDIR": str(self.folder / "install"), "MULTIARCH": "cpu-linux"}
        self.patch(kept, "_LDVERSION", "3.99")
        self.patch(kept, "isFreeThreaded", lambda: False)
        self.patch(sysconfig, "get_config_var", self.configured.get)
        self.patch(sys, "base_prefix", str(self.folder))

    def place(self, name: str) -> str:
        """
        @return: the file of a libpython that is in this folder.
        """
        file = self.folder / name / "libpython3.99.so.1.0"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return str(file)

    def test_moved(self) -> None:
        """
        Those of python-build-standalone and conda are beside the interpreter, which may lie anywhere.
        """
        expected = self.place("lib")
        self.assertEqual(kept.sharedPython(), expected)

    def test_multiarch(self) -> None:
        """
        Debian's is in the folder of its architecture, and goes before one beside the interpreter.
        """
        self.place("lib")
        expected = self.place("install/cpu-linux")
        self.assertEqual(kept.sharedPython(), expected)

    def test_configured(self) -> None:
        """
        The place for which it was built goes first.
        """
        self.place("install/cpu-linux")
        expected = self.place("install")
        self.assertEqual(kept.sharedPython(), expected)

    def test_missing(self) -> None:
        """
        A static interpreter alone is none to start in programs: the message has the package.
        """
        error = self.assertRaises(LibraryBuildError, kept.sharedPython)
        self.assertIn("has no shared libpython: Debian's is in its package libpython3.99", str(error))
