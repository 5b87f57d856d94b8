"""
Tests for L{twisted_ib.hca.device.form}.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.device import form


class CompiledModulesTests(SynchronousTestCase):
    """
    Which modules run compiled.
    """

    def imported(self, **files: str | None) -> None:
        """
        Let these be all modules of the process.

        @param files: Their files by their names, C{_} for a dot.
        """
        modules = {}
        for name, file in files.items():
            module = modules[name.replace("_", ".")] = ModuleType(name)
            if file is not None:
                module.__file__ = file
        package = SimpleNamespace(modules=modules)
        self.patch(form, "sys", package)
        self.patch(form, "_PACKAGE", "own.")

    def test_named(self) -> None:
        """
        Those of this package whose file is a shared object, in order.
        """
        self.imported(
            own="own/__init__.py",
            own_b="own/b.cpython-311-x86_64-linux-gnu.so",
            own_c="own/c.py",
            own_a="own/a.cpython-311-x86_64-linux-gnu.so",
            owner_d="owner/d.so",
            own_builtin=None,
        )
        self.assertEqual(form.compiledModules(), ["own.a", "own.b"])

    def test_here(self) -> None:
        """
        Each of this process is one of this package, with the file that Python has loaded.
        """
        for name in form.compiledModules():
            self.assertTrue(str(sys.modules[name].__spec__.origin).endswith(".so"))  # type: ignore[union-attr]
            self.assertTrue(name.startswith("twisted_ib."))
