"""
Tests that imports point downwards: the contracts in C{setup.cfg}.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).resolve().parent.parent

# Modules that must be pure (README.md, Layers): each, once it exists, stands in the contract `pure`.
PURE = (
    "twisted_ib.errors",
    "twisted_ib.limits",
    "twisted_ib.hca.polling",
    "twisted_ib.reactor.patterns",
    "twisted_ib.reactor.policy",
    "twisted_ib.reactor.rules",
    "twisted_ib.reactor.statements",
    "twisted_ib.reactor.words",
    "twisted_ib.sdp.credits",
    "twisted_ib.sdp.machine",
    "twisted_ib.sdp.modes",
    "twisted_ib.sdp.sink",
    "twisted_ib.sdp.source",
    "twisted_ib.sdp.wire",
    "twisted_ib.sdp.zerocopy",
    "twisted_ib.hca.attributes",
    "twisted_ib.hca.cm",
    "twisted_ib.hca.core",
    "twisted_ib.hca.counters",
    "twisted_ib.hca.interfaces",
    "twisted_ib.hca.mad",
    "twisted_ib.hca.operation",
    "twisted_ib.hca.sockets",
    "twisted_ib.hca.transport",
    "twisted_ib.hca.wire",
    "twisted_ib.ipoib.machine",
    "twisted_ib.ipoib.wire",
    "twisted_ib.rds.bundle",
    "twisted_ib.rds.congestion",
    "twisted_ib.rds.counters",
    "twisted_ib.rds.frames",
    "twisted_ib.rds.machine",
    "twisted_ib.rds.private",
    "twisted_ib.rds.session",
    "twisted_ib.rds.streams",
    "twisted_ib.rds.wire",
)

# Twisted stays above these.
REACTORLESS = ("twisted_ib.hca.device", "twisted_ib.hca.fabric", "twisted_ib.hca.verbs")

# The media: each, once it exists, is protected by the contract `fabrics`.
FABRICS = tuple(
    f"twisted_ib.hca.fabric.{name}" for name in ("hardware", "iwarp", "loopback", "packet", "roce", "shm")
)


def exists(module: str) -> bool:
    """
    @param module: a module's or package's full name.

    @return: whether the checkout has it.
    """
    path = ROOT.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


class LayeringTests(SynchronousTestCase):
    """
    The import contracts hold, and they speak of everything they should.
    """

    def setUp(self) -> None:
        """
        Read the contracts.
        """
        self.contracts = ConfigParser()
        self.contracts.read(ROOT / "setup.cfg")

    def modules(self, contract: str, option: str) -> set[str]:
        """
        @param contract: a contract's short name.
        @param option: the option of it that lists modules.

        @return: the modules listed.
        """
        return set(self.contracts[f"importlinter:contract:{contract}"][option].split())

    def test_contracts(self) -> None:
        """
        import-linter finds every contract kept.
        """
        # Found by path: the checkout is the first entry in both processes, as in C{python -m}.
        environment = dict(os.environ, NO_COLOR="1", COLUMNS="120")
        program = "from importlinter.cli import lint_imports_command as run; run()"
        result = subprocess.run(
            [sys.executable, "-c", program, "--config", str(ROOT / "setup.cfg"), "--no-cache"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn(" 0 broken", result.stdout)

    def test_pureModulesListed(self) -> None:
        """
        Each pure module that exists is named in the contract C{pure}.
        """
        expected = {module for module in PURE if exists(module)}
        self.assertEqual(self.modules("pure", "source_modules"), expected)

    def test_reactorlessModulesListed(self) -> None:
        """
        Each module that has to do without Twisted is named in its contract.
        """
        expected = {module for module in REACTORLESS if exists(module)}
        self.assertEqual(self.modules("device-without-twisted", "source_modules"), expected)

    def test_fabricsListed(self) -> None:
        """
        Each fabric is named in the contract that lets only the registry
        import one.
        """
        expected = {module for module in FABRICS if exists(module)}
        if expected:
            self.assertEqual(self.modules("fabrics", "protected_modules"), expected)

    def test_contractsCatchABreak(self) -> None:
        """
        The ban on I/O in pure modules holds for what they reach through
        others too: the contract is not switched to direct imports.
        """
        for name in ("pure", "device-without-twisted"):
            section = self.contracts[f"importlinter:contract:{name}"]
            self.assertNotIn("allow_indirect_imports", section)
            self.assertNotIn("ignore_imports", section)

    def test_packageDocstrings(self) -> None:
        """
        Every module of the package begins with a docstring.
        """
        bare = [
            str(path.relative_to(ROOT))
            for path in sorted((ROOT / "twisted_ib").rglob("*.py"))
            if ast.get_docstring(ast.parse(path.read_text())) is None
        ]
        self.assertEqual(bare, [])
