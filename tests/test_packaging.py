"""
Tests for what is built from the checkout: wheel, sdist, editable install.

They call the build backend directly, on a copy, so they need no network and
leave nothing in the checkout.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parent.parent

#: All of the checkout.
FOLDERS = (
    ".ci",
    ".github",
    "benchmarks",
    "docs",
    "examples",
    "newsfragments",
    "share",
    "stubs",
    "tests",
    "twisted",
    "twisted_ib",
)
FILES = (
    ".containerignore",
    ".gitignore",
    "CONTRIBUTING.md",
    "Containerfile",
    "LICENSE",
    "MANIFEST.in",
    "NEWS.md",
    "README.md",
    "SECURITY.md",
    "compose.yaml",
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
)

PLUGIN = "twisted/plugins/twisted_ib_plugin.py"

# Says what Twisted finds in the directories of plugins that it knows of under a folder: twisted_ib
# may be installed for this interpreter too, beside Twisted's own plugins.
FIND = """
import site, sys
_, folder, installed = sys.argv
site.addsitedir(installed)
sys.path.insert(0, sys.path.pop())
from twisted.application.reactors import IReactorInstaller
from twisted.internet.interfaces import IStreamServerEndpointStringParser
from twisted import plugins
from twisted.plugin import getPlugins
plugins.__path__[:] = [path for path in plugins.__path__ if path.startswith(folder)]
reactors = [installer.shortName for installer in getPlugins(IReactorInstaller)]
parsers = [parser.prefix for parser in getPlugins(IStreamServerEndpointStringParser)]
import twisted_ib, twisted.plugins.twisted_ib_plugin as plugin
print(*reactors, *parsers, plugin.__file__, twisted_ib.__file__)
"""

# Says what the build requires in each of some environments.
REQUIRED = """
import json, os, setuptools.build_meta as b, sys
required = []
for case in json.loads(sys.argv[1]):
    os.environ.update(case)
    required.append(str(b.get_requires_for_build_wheel()))
print(*required, sep=" / ")
"""


def backend(hook: str, source: Path, target: Path) -> Path:
    """
    Call a hook of the build backend, as pip does.

    @param hook: the hook's name.
    @param source: the directory to build from.
    @param target: where the built file goes.

    @return: the built file.
    """
    target.mkdir(exist_ok=True)
    result = subprocess.run(
        [sys.executable, "-c", f"import setuptools.build_meta as b, sys; b.{hook}(sys.argv[1])", str(target)],
        cwd=source,
        env={**os.environ, "TWISTED_IB_COMPILE": ""},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    if result.returncode:
        raise AssertionError(result.stderr)
    [built] = target.iterdir()
    return built


class PackagingTestCase(SynchronousTestCase):
    """
    The checkout and what is built of it.
    """

    def setUp(self) -> None:
        """
        See that setuptools can build it.
        """
        try:
            from setuptools import __version__
        except ImportError:
            raise SkipTest("setuptools is not installed") from None
        if int(__version__.split(".")[0]) < 77:
            raise SkipTest("setuptools is older than the build asks for")
        self.share = {str(path.relative_to(ROOT)) for path in (ROOT / "share").rglob("*") if path.is_file()}
        self.modules = {str(path.relative_to(ROOT)) for path in (ROOT / "twisted_ib").rglob("*.py")} | {
            PLUGIN,
            "twisted_ib/verbs/c/building/arrivals.c",
            "twisted_ib/verbs/c/building/carried.c",
            "twisted_ib/verbs/c/building/completions.c",
            "twisted_ib/verbs/c/building/early.c",
            "twisted_ib/verbs/c/building/postings.c",
            "twisted_ib/verbs/c/building/interpreter.c",
            "twisted_ib/verbs/c/building/looks.c",
            "twisted_ib/verbs/c/building/present.c",
            "twisted_ib/verbs/c/building/sockets.c",
            "twisted_ib/verbs/c/building/vain.c",
            "twisted_ib/verbs/c/building/view.c",
            "twisted_ib/py.typed",
            *(f"twisted_ib/{name}.pyi" for name in ("select", "selectors", "socket")),
        }

    def copy(self) -> None:
        """
        Copy the checkout, with a stray plugin cache in it.
        """
        self.directory = Path(self.mktemp()).resolve()
        self.checkout = self.directory / "checkout"
        # Not the shared objects of a compiled wheel that was unpacked here either.
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "carried")
        for name in FOLDERS:
            shutil.copytree(ROOT / name, self.checkout / name, ignore=ignored)
        for name in FILES:
            shutil.copy(ROOT / name, self.checkout)
        (self.checkout / "twisted" / "plugins" / "dropin.cache").write_bytes(b"")

    def assertFound(self, site: Path, root: Path) -> None:
        """
        Assert that Twisted finds the reactor and the endpoint parser, once.

        @param site: a directory of installed packages.
        @param root: where the package is.
        """
        elsewhere = self.directory / "elsewhere"
        elsewhere.mkdir()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        result = subprocess.run(
            [sys.executable, "-c", FIND, str(self.directory), str(site)],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        package = root / "twisted_ib" / "__init__.py"
        expected = ["ib", "ib-asyncio", "sdp", "ib", "rds", "direct", str(root / PLUGIN), str(package)]
        self.assertEqual(result.stdout.split(), expected)

    def carried(self, names: set[str]) -> set[str]:
        """
        @return: the files for man, bash and zsh among those of a wheel, by their names in the checkout.
        """
        return {name.partition(".data/data/")[2] for name in names if ".data/data/" in name}

    def unpackWheel(self, wheel: Path) -> tuple[Path, set[str]]:
        """
        Unpack a wheel as an installer does.

        @param wheel: the file.

        @return: the directory, and the names of the files that are not
            metadata.
        """
        site = self.directory / "site"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
            names = {name for name in archive.namelist() if ".dist-info/" not in name}
        return site, names


class PackagingTests(PackagingTestCase):
    """
    Each way to install twisted_ib gives the whole package and its plugin, and
    nothing else; C{tests/soak} has that by an sdist.
    """

    def test_wheel(self) -> None:
        """
        A wheel holds every module and the one plugin file, no tests, no
        benchmarks, no cache; and Twisted finds the plugin.
        """
        self.copy()
        wheel = backend("build_wheel", self.checkout, self.directory / "wheel")
        self.assertTrue(wheel.name.startswith("twisted_ib-"), wheel.name)
        self.assertTrue(wheel.name.endswith("-py3-none-any.whl"), wheel.name)
        site, names = self.unpackWheel(wheel)
        self.assertEqual({name for name in names if ".data/" not in name}, self.modules)
        self.assertEqual(self.carried(names), self.share)
        self.assertFound(site, site)
        [metadata] = site.glob("*.dist-info/METADATA")
        lines = metadata.read_text().splitlines()
        self.assertIn("Name: twisted-ib", lines)
        self.assertTrue({"License: MIT", "License-Expression: MIT"} & set(lines))
        [scripts] = site.glob("*.dist-info/entry_points.txt")
        for command in ("ib-demo", "ib-devinfo", "ib-get", "ib-perf", "ib-ping", "ib-policy"):
            self.assertIn(f"{command} = twisted_ib.tools.", scripts.read_text())

    def test_checkoutIsWhole(self) -> None:
        """
        No other file is under version control.
        """
        if not (ROOT / ".git").exists():
            raise SkipTest("not a checkout")
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        self.assertEqual(
            {name.partition("/")[0] for name in listed.stdout.split("\n") if name}, {*FOLDERS, *FILES}
        )

    def test_editable(self) -> None:
        """
        With an editable install Twisted finds the plugin in the checkout.
        """
        self.copy()
        wheel = backend("build_editable", self.checkout, self.directory / "wheel")
        site, names = self.unpackWheel(wheel)
        self.assertEqual(names - {name for name in names if name.endswith(".pth") or ".data/" in name}, set())
        self.assertFound(site, self.checkout)

    def test_compiledOnRequest(self) -> None:
        """
        Only where C{TWISTED_IB_COMPILE=1} or C{TWISTED_IB_CLIBRARIES=1} asks for it the build needs more than
        setuptools.
        """
        copied = Path(self.mktemp())
        copied.mkdir()
        for name in ("pyproject.toml", "setup.cfg", "setup.py", "README.md"):
            shutil.copy(ROOT / name, copied)
        (copied / "twisted_ib").mkdir()
        shutil.copy(ROOT / "twisted_ib/__init__.py", copied / "twisted_ib")
        words = {"TWISTED_IB_COMPILE": "mypy >=", "TWISTED_IB_CLIBRARIES": "cffi >="}
        cases = [dict.fromkeys(words, ""), dict.fromkeys(words, "0")]
        cases += [{**cases[0], name: "1"} for name in words]
        result = subprocess.run(
            [sys.executable, "-c", REQUIRED, json.dumps(cases)],
            cwd=copied,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        required = result.stdout.splitlines()[-1]
        found = [[name for name, word in words.items() if word in each] for each in required.split(" / ")]
        self.assertEqual(found, [[], [], *([name] for name in words)], required)

    def test_compiledModules(self) -> None:
        """
        Each module that C{setup.py} has compiled is one of the package, named once and in order.
        """
        named = re.findall(r'^ {4}"(.*\.py)",$', (ROOT / "setup.py").read_text(), re.M)
        self.assertTrue(named)
        self.assertEqual(named, sorted(set(named)))
        self.assertLessEqual(set(named), self.modules)
        # mypy looks closer at these.
        strict = (ROOT / "pyproject.toml").read_text().partition("[[tool.mypy.overrides]]")[2]
        checked = re.findall(r'^ {4}"(twisted_ib.*)",$', strict, re.M)
        self.assertEqual(named, [name.replace(".", "/") + ".py" for name in checked])

    def test_repairedWheel(self) -> None:
        """
        Where a wheel gets its tag of manylinux, the libraries for C programs stay linked with libpython, from
        which auditwheel frees extension modules.
        """
        command = re.search(r'^repair-wheel-command = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
        assert command is not None
        words = shlex.split(command[1])
        pattern = words[words.index("--exclude") + 1]
        self.assertTrue(fnmatch.fnmatchcase("libpython3.11.so.1.0", pattern), pattern)

    def test_noNamespaceModules(self) -> None:
        """
        The plugin directories have no C{__init__.py}: with one Twisted skips
        them, and ours would hide Twisted's own.
        """
        self.assertEqual([str(path) for path in (ROOT / "twisted").rglob("__init__.py")], [])
